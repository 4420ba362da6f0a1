"""Executed: a run that did something else than its plan says is refused, by a single number that
differs."""

import dataclasses

import pytest

from pflpipe.errors import DataError
from pflpipe.privacy.plan import Adaptive
from pflpipe.privacy.run_check import Residuals, check
from releases import FEMNIST

EVERYBODY = dataclasses.replace(FEMNIST, delta=1e-3, clients=40)
MOVING = dataclasses.replace(EVERYBODY, adaptive=Adaptive(0.5, 0.2, 2.0))
QUIET = dataclasses.replace(EVERYBODY, noise_multiplier=0.0)
KEPT = Residuals(releases=30, coordinates=3000)


def check_run(plan=EVERYBODY, departures=(), releases=30, **changes):
    """Hold a run that sends a hundred numbers a round against a plan."""
    residuals = dataclasses.replace(KEPT, **changes)
    check(plan, departures, "run", releases=releases, uploaded=100.0, residuals=residuals)


def test_a_run_that_kept_its_plan_passes():
    check_run()
    check_run(MOVING, moves=30)
    check_run(QUIET, coordinates=0)


@pytest.mark.parametrize("releases", [29, 31, 0])
def test_a_release_too_many_or_too_few_is_found(releases):
    with pytest.raises(DataError, match=f"run: rounds with a release; got {releases}; expected 30"):
        check_run(releases=releases)


@pytest.mark.parametrize(
    ("plan", "changes", "words"),
    [
        (EVERYBODY, {"strangers": 1}, "took part undrawn, or were drawn and did not; got 1"),
        (QUIET, {"strangers": 1}, "took part undrawn, or were drawn and did not; got 1"),
        (EVERYBODY, {"mismatches": 1}, "without exactly the noise of its plan; got 1"),
        (EVERYBODY, {"coordinates": 2999}, "numbers with noise; got 2999; expected 3000, those"),
        (EVERYBODY, {"coordinates": 0}, "numbers with noise; got 0; expected 3000, those"),
        (MOVING, {"moves": 29}, "movements of the clip bound; got 29; expected 30, the rounds"),
    ],
)
def test_one_number_that_differs_is_found(plan, changes, words):
    with pytest.raises(DataError, match=f"run: .*{words}.*; do not publish"):
        check_run(plan, **changes)


def test_a_release_that_nobody_looked_at_is_found():
    residuals = dataclasses.replace(KEPT, releases=29)
    with pytest.raises(DataError, match="run: releases that were drawn again; got 29; expected 30"):
        check(EVERYBODY, (), "run", releases=30, uploaded=100.0, residuals=residuals)


def test_how_many_numbers_messages_send_follows_masks_and_is_not_asked():
    check_run(departures=("noise_on_support",), coordinates=0)
    with pytest.raises(DataError, match="without exactly the noise of its plan; got 1"):
        check_run(departures=("noise_on_support",), mismatches=1)
