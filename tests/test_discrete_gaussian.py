"""Discrete Gaussian noise: its law, its curve, the grid of a release, and where it is refused."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from pflpipe.auditing import cases
from pflpipe.auditing.coupled import sensitivity
from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.privacy import accounting
from pflpipe.privacy.accounting import delta, epsilon, make_plan
from pflpipe.privacy.ledger import effective_plan, ledger
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.mechanisms import discrete_gaussian
from pflpipe.privacy.mechanisms.discrete_gaussian import STEPS, DiscreteGaussian
from pflpipe.privacy.plan import Plan

PLAN = Plan("discrete_gaussian", 2, 2.5, 1.3, 1.0, 5, 1e-3, 4)


@pytest.mark.parametrize("steps", [1, 3])
def test_every_whole_number_has_its_probability(steps, monkeypatch):
    monkeypatch.setattr(discrete_gaussian, "STEPS", steps)
    drawn = DiscreteGaussian().draw(np.random.default_rng(0), (40, 1000)) * steps
    values = np.arange(-12 * steps, 12 * steps + 1)
    law = np.exp(-(values**2) / (2 * steps**2))
    law /= law.sum()
    counts = (drawn.ravel() == values[:, None]).sum(axis=1)
    assert counts.sum() == drawn.size, "whole numbers, none farther away"
    often = law * drawn.size >= 20
    expected = law[often] / law[often].sum() * counts[often].sum()
    assert stats.chisquare(counts[often], expected).pvalue > 1e-6


def test_at_the_steps_of_a_release_its_moments_are_those_of_normal_numbers():
    drawn = DiscreteGaussian().draw(np.random.default_rng(1), (20_000,))
    assert np.array_equal(drawn * STEPS, np.rint(drawn * STEPS))
    assert stats.kstest(drawn, "norm").pvalue > 1e-4


@pytest.mark.parametrize(("scale", "rounded"), [(6.0, 0.4), (6.0, 2.0), (9.0, 4.0)])
def test_it_is_gaussian_noise_rounded_at_random_but_for_the_factor_of_the_proof(scale, rounded):
    """Probabilities by quadrature: normal numbers become whole ones with weights around them."""
    values = np.arange(-60, 61)
    law = np.exp(-(values**2) / (2 * scale**2))
    reals = stats.norm(scale=math.sqrt(scale**2 - rounded**2))
    u = 2 * sum(math.exp(-2 * (math.pi * rounded * j) ** 2) for j in (1, 2, 3))
    factor = (1 + u) / (1 - u)

    def weight(y):
        weights = np.exp(-((values - y) ** 2) / (2 * rounded**2))
        return reals.pdf(y) * weights / weights.sum()

    found, _ = integrate.quad_vec(weight, -50, 50, epsabs=1e-13, epsrel=1e-13)
    ratio = found / (law / law.sum())
    inside = np.abs(values) <= 3 * scale
    assert ratio[inside].max() <= factor + 1e-10
    assert ratio[inside].min() >= 1 / factor - 1e-10
    if rounded < 1:
        assert ratio[inside].max() > 1 + 1e-4, "where the factor is needed"


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 1), (1.0, 40), (0.1, 10)])
def test_its_curves_are_those_of_gaussian_noise_of_the_proof(rate, rounds):
    ours = dataclasses.replace(PLAN, noise_multiplier=0.8, rounds=rounds, sample_rate=rate)
    lost = math.sqrt(1 - (4 / 1024) ** 2)
    theirs = dataclasses.replace(ours, mechanism="gaussian", noise_multiplier=0.8 * lost)
    for at in (1e-2, 1e-5):
        assert epsilon(ours, at) == epsilon(theirs, at)
        assert accounting.epsilon_replace_one(ours, at) == accounting.epsilon_replace_one(
            theirs, at
        )
        assert accounting.epsilon_of_group(ours, at, 3) == accounting.epsilon_of_group(
            theirs, at, 3
        )
    assert delta(ours, 1.0) == delta(theirs, 1.0)
    assert epsilon(ours, 0.0) == math.inf


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("multiplier", [0.5, 2.0])
def test_the_curve_is_that_of_brute_force(multiplier, rate):
    """The exact delta of one round, number by number: a message moves by STEPS / sigma, here a
    whole number, and is drawn at a rate."""
    moved = round(STEPS / multiplier)
    values = np.arange(-14 * STEPS, 14 * STEPS + moved)
    here, there = (-((values - shift) ** 2) / (2 * STEPS**2) for shift in (0, moved))
    mass = np.exp(here).sum()
    without, with_it = (np.exp(logs) / mass for logs in (here, there))
    with_it = (1 - rate) * without + rate * with_it
    plan = dataclasses.replace(PLAN, noise_multiplier=multiplier, rounds=1, sample_rate=rate)
    for at in (0.1, 0.5, 1.5, 3.0):
        sides = (without, with_it), (with_it, without)
        exact = max(np.maximum(0, one - math.exp(at) * two).sum() for one, two in sides)
        assert exact <= delta(plan, at)
        assert delta(plan, at) - exact < (1e-5 if rate == 1 else 2e-4), "and it is no loose one"


def test_calibration_reaches_its_target_with_hardly_more_noise_than_gaussian():
    def plan(mechanism, rate=1.0):
        request = Privacy(mechanism, epsilon=2.0, delta=1e-4, clip_norm=1.0)
        return make_plan(request, rounds=10, sample_rate=rate, clients=20)

    ours, gaussian = plan("discrete_gaussian"), plan("gaussian")
    assert 2 * (1 - 1e-6) <= epsilon(ours, 1e-4) <= 2
    assert 1 < ours.multiplier / gaussian.multiplier < 1 + 1e-5
    assert plan("discrete_gaussian", 0.2).multiplier < ours.multiplier / 2
    entry = ledger(ours, Privacy("discrete_gaussian", epsilon=2.0, delta=1e-4, clip_norm=1.0))
    assert entry.claim == "certified"
    assert entry.epsilon_rdp is entry.epsilon_local is None


def released(rows, seed=0, plan=PLAN, dtype=torch.float64, **options):
    sent = Uploads({"a": torch.as_tensor(rows, dtype=dtype)})
    present = torch.ones(len(rows), dtype=torch.bool)
    return release(np.random.default_rng(seed), sent, present, plan, **options)


def test_a_release_is_a_whole_number_of_steps_and_no_message_moves_it_farther_than_the_bound():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((4, 300)) * rng.choice([1e-9, 1.0, 100.0], (4, 1))
    found = released(rows)
    law = PLAN.law
    step = law.step(law.spread(2.5 * 1.3 / 4))
    for values in (found.sum["a"], found.clean["a"]):
        assert torch.equal(values / step, (values / step).round())
    without = released(rows * np.array([[1], [1], [0], [1]]))
    moved = (found.sum["a"] - without.sum["a"]) / step
    assert torch.linalg.vector_norm(moved) <= STEPS / 1.3 * (1 + 1e-6)
    assert law.spread(2.5 * 1.3 / 4) >= 2.5 * 1.3 / 4


def test_a_release_follows_from_its_number_of_steps_alone():
    """Other messages with other noise and the same total have the same bits: nothing was rounded
    on the way."""
    law = PLAN.law
    step = law.step(law.spread(2.5 * 1.3 / 4))
    for total in (12_345, -1, 2**27 + 3):
        parts = (0, 1, 999, 2**26)
        bits = {part * step + ((total - part) / STEPS) * (step * STEPS) for part in parts}
        assert len(bits) == 1


def test_what_no_proof_covers_is_refused_in_one_line():
    with pytest.raises(PrivacyError, match=r"sample_rate of skellam; got 0\.5"):
        dataclasses.replace(PLAN, mechanism="skellam", bits=16, sample_rate=0.5)
    for changes in ({"groups": 2}, {"band": 2}):
        with pytest.raises(PrivacyError, match=r"privacy\.mechanism|band"):
            dataclasses.replace(PLAN, **changes)
    with pytest.raises(PrivacyError, match="delta of discrete_gaussian"):
        dataclasses.replace(PLAN, delta=0.0)
    with pytest.raises(PrivacyError, match="public scale"):
        released(np.ones((4, 3)), scale={"a": torch.tensor(0.5)})
    with pytest.raises(PrivacyError, match="mechanism"):
        released(np.ones((4, 3)), departures=["noise_per_participant"])
    with pytest.raises(PrivacyError, match="mechanism"):
        effective_plan(PLAN, ["noise_per_participant"])
    for refused in (accounting.epsilon_local, accounting.epsilon_rdp):
        with pytest.raises(PrivacyError, match="mechanism"):
            refused(PLAN, 1e-3)


def test_the_audit_finds_too_little_of_its_noise():
    case = cases.find("discrete_gaussian-central").audited()
    less = dataclasses.replace(case.plan, noise_multiplier=0.8 * case.plan.multiplier)
    assert sensitivity(dataclasses.replace(case, plan=less), "key", 600).flagged
