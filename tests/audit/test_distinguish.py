"""Level 1: what an attacker's errors prove, and what the attacker finds at the reference plan."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from pflpipe import accounting, privacy
from pflpipe.audit import cases
from pflpipe.audit.distinguish import distinguish, judge
from pflpipe.audit.worlds import Mechanism
from pflpipe.privacy import Plan

torch.set_num_threads(1)
# mu = 2.602: epsilon 8 at delta 0.02 over 30 rounds.
REFERENCE = Plan("gaussian", 2, clip_norm=1.0, noise_multiplier=2.105, sample_rate=1.0, rounds=30, delta=0.02, clients=10)
DRAWN = dataclasses.replace(REFERENCE, noise_multiplier=2.248, sample_rate=0.1, rounds=100, delta=1e-5)
LAPLACE = Plan("laplace", 1, clip_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rounds=8, delta=0.0, clients=10)


def weaker(plan, factor=0.5):
    return dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * factor)


# Audits of an independent prototype at the reference plan with 2,000 runs.
@pytest.mark.parametrize(
    ("false_positives", "false_negatives", "mu", "epsilon", "direct", "flagged"),
    [
        (218, 167, 2.413, 7.15, 2.14, False),
        (198, 194, 2.387, 7.04, 2.01, False),
        (203, 212, 2.325, 6.77, 1.96, False),
        (151, 120, 2.768, 8.78, 2.47, True),
        (73, 56, 3.421, 12.1, 3.17, True),
        (13, 5, 4.689, 19.8, 4.92, True),
        (10, 6, 4.720, 20.0, 4.82, True),
        (0, 0, 5.577, 26.2, 5.91, True),
    ],
)
def test_errors_prove_what_they_proved_elsewhere(false_positives, false_negatives, mu, epsilon, direct, flagged):
    found = judge(REFERENCE, 2000, false_positives, false_negatives)
    assert found.mu_lower == pytest.approx(mu, abs=2e-3)
    assert found.epsilon_lower == pytest.approx(epsilon, rel=5e-3)
    assert found.epsilon_direct == pytest.approx(direct, abs=0.011)
    assert found.flagged == flagged


def test_an_attacker_who_is_always_or_never_wrong_proves_nothing_or_the_opposite():
    blind = judge(REFERENCE, 1000, 500, 500)
    assert (blind.mu_lower, blind.epsilon_lower, blind.epsilon_direct) == (0.0, 0.0, 0.0)
    assert not blind.flagged
    always = judge(REFERENCE, 1000, 1000, 0)  # says "there" whatever it sees
    assert not always.flagged
    assert always.epsilon_direct == 0.0


def test_the_bounds_hold_together_with_99_percent():
    """Errors drawn from the very trade-off curve that is claimed are rarely taken for more."""
    rng, runs = np.random.default_rng(0), 500
    rate = 0.5 * math.erfc(math.sqrt(30) / 2.105 / 2 / math.sqrt(2))  # Phi(-mu / 2)
    flagged = [judge(REFERENCE, runs, *rng.binomial(runs, rate, 2)).flagged for _ in range(300)]
    assert sum(flagged) <= 3 + 3 * math.sqrt(3)


def test_the_reference_audit_is_tight_and_not_flagged():
    found = distinguish(Mechanism(REFERENCE, REFERENCE), "dirac", 2000)
    mu = math.sqrt(30) / 2.105
    assert not found.flagged
    assert 0.80 * mu <= found.mu_lower <= mu
    assert found.epsilon_lower <= accounting.epsilon(REFERENCE, 0.02)


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_too_little_noise_is_flagged(factor):
    found = distinguish(Mechanism(weaker(REFERENCE, factor), REFERENCE), "dirac", 2000)
    assert found.flagged
    assert found.mu_lower <= math.sqrt(30) / 2.105 / factor


@pytest.mark.parametrize(("plan", "runs"), [(DRAWN, 10_000), (LAPLACE, 10_000)], ids=["drawn", "laplace"])
def test_certified_curves_hold_and_half_the_noise_is_flagged(plan, runs):
    assert not distinguish(Mechanism(plan, plan), "dirac", runs).flagged
    assert distinguish(Mechanism(weaker(plan), plan), "dirac", runs).flagged


@pytest.mark.parametrize("name", ["noise_on_support", "divide_by_counts", "raw_similarity_weights", "client_clip_weights"])
def test_leaks_in_the_noise_itself_are_seen_in_whole_runs(name):
    mechanism = cases.find(f"gaussian-{name}-central").mechanism_under_audit()
    canary = "layer" if name == "client_clip_weights" else "exclusive" if name != "raw_similarity_weights" else "huge"
    assert distinguish(mechanism, canary, 500).flagged


def test_same_seed_same_verdict_other_seed_other_runs():
    short = dataclasses.replace(REFERENCE, rounds=3)
    first, again, other = (distinguish(Mechanism(short, short), "dirac", 300, seed) for seed in (1, 1, 2))
    assert first == again
    assert (first.false_positives, first.false_negatives) != (other.false_positives, other.false_negatives)


def test_a_single_message_is_audited_with_its_share_of_the_noise():
    small = dataclasses.replace(REFERENCE, rounds=3)  # mu local 2.6 in three rounds of ten messages
    local = dataclasses.replace(small, noise_multiplier=2.105 / math.sqrt(10))
    mu = math.sqrt(3) / local.noise_multiplier
    found = distinguish(Mechanism(small, local, trust="local"), "dirac", 2000)
    assert not found.flagged
    assert 0.8 * mu <= found.mu_lower <= mu
    assert distinguish(Mechanism(small, small, trust="local"), "dirac", 2000).flagged  # the central claim does not hold here


def test_single_messages_of_rounds_without_the_client_are_not_seen():
    known = frozenset({"public_sampling"})
    few = dataclasses.replace(DRAWN, rounds=40, noise_multiplier=1.0)
    claimed = dataclasses.replace(few, sample_rate=1.0)
    mechanism = Mechanism(few, claimed, known, trust="local")
    taken = sum(privacy.public_cohort(round, few)[mechanism.canary] for round in range(40))
    assert 0 < taken < 20
    assert distinguish(mechanism, "dirac", 2000).mu_lower <= math.sqrt(taken)  # not sqrt(40); a cohort of one has all the noise
