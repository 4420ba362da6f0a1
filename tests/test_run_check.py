"""Executed: a run that did something else than its plan says is refused, by a single number that
differs."""

from dataclasses import replace

import pytest

import tabled
from pflpipe.errors import DataError
from pflpipe.privacy.plan import Adaptive
from pflpipe.privacy.run_check import Residuals, check
from releases import FEMNIST

EVERYBODY = replace(FEMNIST, delta=1e-3, clients=40)
MOVING = replace(EVERYBODY, adaptive=Adaptive(0.5, 0.2, 2.0))
QUIET = replace(EVERYBODY, noise_multiplier=0.0)
PLANS = {"everybody": EVERYBODY, "moving": MOVING, "quiet": QUIET}
KEPT = Residuals(releases=30, coordinates=3000)


def check_run(plan=EVERYBODY, departures=(), rounds=30, **changes):
    """Hold a run of so many rounds, with a hundred numbers in each, against a plan."""
    residuals = replace(KEPT, **changes)
    check(plan, departures, "run", releases=rounds, uploaded=100.0, residuals=residuals)


def test_a_run_that_kept_its_plan_passes():
    check_run()
    check_run(MOVING, moves=30)
    check_run(QUIET, coordinates=0)


@pytest.mark.parametrize(("plan", "changes", "words"), tabled.table("test_run_check"))
def test_one_number_that_differs_is_found(plan, changes, words):
    with pytest.raises(DataError, match=f"run: .*{words}.*; do not publish"):
        check_run(PLANS[plan], **changes)


def test_how_many_numbers_messages_send_follows_masks_and_is_not_asked():
    check_run(departures=("noise_on_support",), coordinates=0)
    with pytest.raises(DataError, match="without exactly the noise of its plan; got 1"):
        check_run(departures=("noise_on_support",), mismatches=1)
