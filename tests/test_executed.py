"""Executed: a run that cannot have followed its plan is found, one that did never is."""

import dataclasses

import numpy as np
import pytest

from pflpipe.errors import DataError
from pflpipe.privacy.executed import check
from pflpipe.privacy.mechanism import public_cohort, sample_clients
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.residuals import Residuals

EVERYBODY = Plan(
    "gaussian",
    2,
    clip_norm=1.0,
    noise_multiplier=1.0,
    sample_rate=1.0,
    rounds=30,
    delta=1e-3,
    clients=40,
)
SAMPLED = dataclasses.replace(EVERYBODY, sample_rate=0.1)
PUBLIC = frozenset({"public_sampling"})


def check_run(plan, participants, departures=(), releases=None):
    check(
        plan,
        departures,
        "run",
        releases=plan.rounds if releases is None else releases,
        participants=participants,
        residuals=Residuals(5000.0, 5000, 0.0),
    )


def refused(plan, participants):
    try:
        check_run(plan, participants)
    except DataError:
        return True
    return False


@pytest.mark.slow
def test_what_the_engines_own_sampling_draws_is_never_refused():
    draws = [
        np.random.default_rng(seed) for seed in range(200)
    ]  # each is refused with a chance of 1e-9
    totals = [sum(int(sample_clients(draw, SAMPLED).sum()) for _ in range(30)) for draw in draws]
    assert not [total for total in totals if refused(SAMPLED, total)]
    assert not refused(EVERYBODY, 1200)
    assert not [total for total in (70, 175) if refused(SAMPLED, total)], (
        "five standard deviations are rare, and no proof"
    )


@pytest.mark.parametrize("participants", [0, 30, 200, 240, 1200, 1201, -1])
def test_a_cohort_drawn_at_another_rate_is_found(participants):
    # 120 of 1200 are expected, with a standard deviation of 10.
    with pytest.raises(DataError, match=r"run: participations; got .*; expected about 120"):
        check_run(SAMPLED, participants)


def test_everybody_means_everybody():
    for participants in (1199, 1201):
        with pytest.raises(DataError, match="expected about 1200"):
            check_run(EVERYBODY, participants)


@pytest.mark.parametrize("releases", [29, 31, 0])
def test_a_release_too_many_or_too_few_is_found(releases):
    with pytest.raises(DataError, match=f"rounds with a release; got {releases}; expected the 30"):
        check_run(EVERYBODY, 1200, releases=releases)


def test_a_public_schedule_is_kept_exactly():
    total = sum(int(public_cohort(round, SAMPLED).sum()) for round in range(30))
    assert total == 30 * 4
    check_run(SAMPLED, total, PUBLIC)
    for other in (total - 1, total + 1):
        with pytest.raises(DataError, match="expected 120, those of the public schedule"):
            check_run(SAMPLED, other, PUBLIC)
