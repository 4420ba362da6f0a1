"""Level 1: what an attacker's errors prove, and what the attacker finds at the reference plan."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

import tabled
from audit_plans import DRAWN, KEY, LAPLACE, REFERENCE
from pflpipe.auditing import cases
from pflpipe.auditing.distinguish import _choose, distinguish
from pflpipe.auditing.evidence import detects, errors_of_midpoint, judge
from pflpipe.auditing.neighbours import Audited
from pflpipe.privacy import accounting, cohorts
from pflpipe.seeds import derived_key

TABLES = tabled.table("test_distinguish")

# The same mu.
SHORT = dataclasses.replace(REFERENCE, noise_multiplier=2.105 / math.sqrt(10), rounds=3)


def weaker(plan, factor=0.5):
    return dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * factor)


# Audits of an independent prototype at the reference plan with 2,000 runs.
@pytest.mark.parametrize("row", TABLES["errors"])
def test_errors_prove_what_they_proved_elsewhere(row):
    *errors, mu, epsilon, direct, flagged = row
    found = judge(REFERENCE, 2000, *errors)
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


@pytest.mark.slow
def test_the_reference_audit_is_tight_and_not_flagged():
    found = distinguish(Audited(REFERENCE, REFERENCE), "dirac", 2000, KEY)
    mu = math.sqrt(30) / 2.105
    assert not found.flagged
    assert 0.80 * mu <= found.mu_lower <= mu
    assert found.epsilon_lower <= accounting.epsilon(REFERENCE, 0.02)


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_too_little_noise_is_flagged(factor):
    found = distinguish(Audited(weaker(SHORT, factor), SHORT), "dirac", 2000, KEY)
    assert found.flagged
    assert found.mu_lower <= math.sqrt(30) / 2.105 / factor


STATISTICS = ("likelihood", "energy", "energy of the canary's coordinates", "projection on layer 1")


@pytest.mark.parametrize("telling", STATISTICS)
def test_whichever_statistic_tells_the_worlds_apart_is_chosen(telling):
    draw = torch.Generator().manual_seed(0)
    worlds = [{name: torch.randn(400, generator=draw) for name in STATISTICS} for _ in range(2)]
    world = dict(zip((True, False), worlds, strict=True))
    world[True][telling] -= 2.0
    name, weights = _choose(world)
    assert name == telling
    assert weights == {telling: -1.0}


def test_statistics_that_tell_the_worlds_apart_together_are_joined():
    """Each is blurred by noise that both share."""
    draw = torch.Generator().manual_seed(0)
    world = {}
    for there in (True, False):
        shared = 5 * torch.randn(400, generator=draw)
        own = torch.randn(400, generator=draw) + 1.0 * there
        world[there] = {"energy": shared, "likelihood": shared + own}
    name, weights = _choose(world)
    assert name == "linear discriminant"
    assert weights["energy"] < 0 < weights["likelihood"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [DRAWN, LAPLACE], ids=["drawn", "laplace"])
def test_certified_curves_hold_and_half_the_noise_is_flagged(plan):
    assert not distinguish(Audited(plan, plan), "dirac", 1000, KEY).flagged
    assert distinguish(Audited(weaker(plan), plan), "dirac", 1000, KEY).flagged


# ---------------------------------------------------------------- the power of whole runs


@pytest.mark.parametrize("factor", [1.0, 0.9, 0.3])
def test_errors_of_the_midpoint_are_those_of_two_normal_numbers(factor):
    expected = [stats.norm.cdf(-math.sqrt(30) / 2.105 / factor / 2)] * 2
    assert errors_of_midpoint(REFERENCE, factor) == pytest.approx(expected, rel=2e-3, abs=1e-9)


def simulated_statistic(plan, factor, there, runs=40_000):
    """One coordinate of so many runs, round by round, and the likelihood ratio written out."""
    rng = np.random.default_rng([int(there), int(10 * factor)])
    shape, scale = (runs, plan.rounds), plan.noise_multiplier
    noise = rng.laplace(size=shape) if plan.mechanism == "laplace" else rng.standard_normal(shape)
    x = noise * scale * factor + there * (rng.random(shape) < plan.sample_rate)
    if plan.mechanism == "laplace":
        return ((np.abs(x) - np.abs(x - 1)) / scale).sum(axis=1)
    ratio = np.exp((2 * x - 1) / (2 * scale**2))
    return np.log(1 - plan.sample_rate + plan.sample_rate * ratio).sum(axis=1)


@pytest.mark.parametrize("factor", [1.0, 0.8])
@pytest.mark.parametrize("plan", [DRAWN, LAPLACE], ids=["drawn", "laplace"])
def test_errors_of_the_midpoint_are_those_of_simulated_runs(plan, factor):
    absent, there = (simulated_statistic(plan, factor, here) for here in (False, True))
    middle = (absent.mean() + there.mean()) / 2
    found = ((absent > middle).mean(), (there <= middle).mean())
    assert errors_of_midpoint(plan, factor) == pytest.approx(found, abs=0.008)


@pytest.mark.slow
def test_more_runs_detect_a_smaller_lack_of_noise():
    found = [detects(REFERENCE, runs) for runs in (500, 2000, 8000)]
    assert found == sorted(found)
    assert 0.8 < found[0] < 0.86 < found[1] < 0.92 < found[2] < 0.97


def test_a_claim_that_so_many_runs_cannot_refute_is_said_to_be_beyond_them():
    far = weaker(REFERENCE, 1 / math.sqrt(10))
    assert not judge(far, 2000, 0, 0).flagged
    assert detects(far, 2000) == 0


@pytest.mark.slow
def test_what_is_said_to_be_detected_is_flagged_by_nine_audits_of_ten_and_a_sound_one_by_none():
    def flagged(plan):
        keys = [derived_key(KEY, seed) for seed in range(30)]
        return sum(distinguish(Audited(plan, SHORT), "dirac", 300, key).flagged for key in keys)

    assert flagged(weaker(SHORT, detects(SHORT, 300))) >= 22
    assert flagged(SHORT) == 0


LEAKS = {"noise_on_support": "exclusive", "divide_by_counts": "exclusive"}
LEAKS |= {"raw_similarity_weights": "huge", "client_clip_weights": "layer"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_leaks_in_the_noise_itself_are_seen_in_whole_runs(name):
    mechanism = cases.find(f"gaussian-{name}-central").audited()
    assert distinguish(mechanism, LEAKS[name], 500, KEY).flagged


def test_same_key_same_verdict_other_key_other_runs():
    keys = [derived_key(KEY, seed) for seed in (1, 1, 2)]
    first, again, other = (distinguish(Audited(SHORT, SHORT), "dirac", 300, key) for key in keys)
    assert first == again
    errors = [(found.false_positives, found.false_negatives) for found in (first, other)]
    assert errors[0] != errors[1]


@pytest.mark.slow
def test_a_single_message_is_audited_with_its_share_of_the_noise():
    # mu local 2.6 in three rounds of ten messages
    small = dataclasses.replace(REFERENCE, rounds=3, clients=10)
    local = weaker(small, 1 / math.sqrt(10))
    mu = math.sqrt(3) / local.noise_multiplier
    of_messages, of_sums = (Audited(small, claimed, trust="local") for claimed in (local, small))
    found, central = (distinguish(one, "dirac", 2000, KEY) for one in (of_messages, of_sums))
    assert not found.flagged
    assert 0.8 * mu <= found.mu_lower <= mu
    assert central.flagged, "the central claim does not hold here"


@pytest.mark.slow
def test_single_messages_of_rounds_without_the_client_are_not_seen():
    known = frozenset({"public_sampling"})
    few = dataclasses.replace(DRAWN, rounds=40, noise_multiplier=1.0)
    claimed = dataclasses.replace(few, sample_rate=1.0)
    mechanism = Audited(few, claimed, known, trust="local")
    taken = sum(cohorts.public_cohort(round, few)[mechanism.canary] for round in range(40))
    assert 0 < taken < 20
    # Not sqrt(40 q M): a message carries its share of the noise.
    mu = math.sqrt(taken * few.expected_cohort)
    assert distinguish(mechanism, "dirac", 2000, KEY).mu_lower <= mu
