"""Discrete Gaussian noise: its law, its curve, the grid of a release, and where it is refused."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.privacy import accounting, mechanisms
from pflpipe.privacy.accounting import delta, epsilon, make_plan
from pflpipe.privacy.ledger import effective_plan, ledger
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.mechanisms.discrete_gaussian import STEPS, DiscreteGaussian
from pflpipe.privacy.plan import Plan
from releases import chance_of

PLAN = Plan("discrete_gaussian", 2, 2.5, 1.3, 1.0, 5, 1e-3, 4)


@pytest.mark.parametrize("steps", [1, 3])
def test_every_whole_number_has_its_probability(steps, monkeypatch):
    monkeypatch.setattr(mechanisms.discrete_gaussian, "STEPS", steps)
    drawn = DiscreteGaussian().draw(np.random.default_rng(0), (40, 1000)) * steps
    values = np.arange(-12 * steps, 12 * steps + 1)
    law = np.exp(-(values**2) / (2 * steps**2))
    assert chance_of(drawn, law / law.sum()) > 1e-6


def test_at_the_steps_of_a_release_its_moments_are_those_of_normal_numbers():
    drawn = DiscreteGaussian().draw(np.random.default_rng(1), (20_000,))
    assert np.array_equal(drawn * STEPS, np.rint(drawn * STEPS))
    assert stats.kstest(drawn, "norm").pvalue > 1e-4


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 1), (1.0, 40), (0.1, 10)])
def test_its_curves_are_those_of_gaussian_noise_of_the_proof(rate, rounds):
    ours = dataclasses.replace(PLAN, noise_multiplier=0.8, rounds=rounds, sample_rate=rate)
    lost = math.sqrt(1 - (4 / 1024) ** 2)
    theirs = dataclasses.replace(ours, mechanism="gaussian", noise_multiplier=0.8 * lost)

    def of_three(plan, at):
        return accounting.epsilon_of_group(plan, at, 3)

    for at in (1e-2, 1e-5):
        for curve in (epsilon, accounting.epsilon_replace_one, of_three):
            assert curve(ours, at) == curve(theirs, at)
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


def test_calibration_reaches_its_target_and_the_claim_is_certified():
    request = Privacy("discrete_gaussian", epsilon=2.0, delta=1e-4, clip_norm=1.0)
    ours = make_plan(request, rounds=10, sample_rate=1.0, clients=20)
    assert 2 * (1 - 1e-6) <= epsilon(ours, 1e-4) <= 2
    entry = ledger(ours, request)
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
    # Other messages with other noise and the same total have the same bits: nothing is rounded on
    # the way.
    for total in (12_345, -1, 2**27 + 3):
        parts = (0, 1, 999, 2**26)
        bits = {part * step + ((total - part) / STEPS) * (step * STEPS) for part in parts}
        assert len(bits) == 1


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("rate of skellam; got 0.5", {"mechanism": "skellam", "bits": 16, "sample_rate": 0.5}),
        (r"privacy\.mechanism|band", {"groups": 2}),
        (r"privacy\.mechanism|band", {"band": 2}),
        ("delta of discrete_gaussian", {"delta": 0.0}),
        ("public scale", lambda: released(np.ones((4, 3)), scale={"a": torch.tensor(0.5)})),
        ("mechanism", lambda: released(np.ones((4, 3)), departures=["noise_per_participant"])),
        ("mechanism", lambda: effective_plan(PLAN, ["noise_per_participant"])),
        ("mechanism", lambda: accounting.epsilon_local(PLAN, 1e-3)),
        ("mechanism", lambda: accounting.epsilon_rdp(PLAN, 1e-3)),
    ],
)
def test_what_no_proof_covers_is_refused(words, refused):
    with pytest.raises(PrivacyError, match=words):
        refused() if callable(refused) else dataclasses.replace(PLAN, **refused)
