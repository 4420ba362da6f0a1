"""What a private run did, held against its plan.

A table counts T releases to cohorts that are drawn at rate q under noise of C sigma; so the run
must have done that. The checks see mistakes of the engine, not of a method: a run that releases
more often than is counted, whose clients take part otherwise than they are drawn, or whose noise is
not the plan's (residuals.py). None of them leaves anything to chance: a run that kept its plan
passes, whatever its clients hold, so that whether a row appears tells nothing about them.
"""

from __future__ import annotations

from collections.abc import Collection

from pflpipe.errors import DataError
from pflpipe.named import OF_MESSAGES
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.residuals import Residuals


def check(
    plan: Plan,
    departures: Collection[str],
    location: str,
    *,
    releases: int,
    uploaded: float,
    residuals: Residuals,
) -> None:
    """Raise DataError unless a private run's releases, participations and noise are those of its
    plan.

    Args:
        plan: with a mechanism.
        departures: of the cell.
        location: what the error calls the run.
        releases: how many rounds released something.
        uploaded: numbers that a client sends in a round, the mean over the rounds.
        residuals: of all releases.
    """

    def agree(what: str, got: int, expected: int, of: str = "") -> None:
        if got != expected:
            raise DataError(
                f"{location}: {what}",
                got=got,
                expected=f"{expected}{of}",
                do="do not publish results of this version",
            )

    rounds, of_plan = plan.rounds, ", the rounds of its plan"
    agree("rounds with a release", releases, rounds, of_plan)
    agree("releases that were drawn again", residuals.releases, rounds, of_plan)
    agree("clients that took part undrawn, or were drawn and did not", residuals.strangers, 0)
    if not plan.noise_multiplier:
        return
    if plan.adaptive is not None:
        agree("movements of the clip bound", residuals.moves, rounds, of_plan)
    agree("released numbers without exactly the noise of its plan", residuals.mismatches, 0)
    if OF_MESSAGES.isdisjoint(departures):  # else the number follows masks, and who was there
        sent = round(uploaded * rounds)
        agree("released numbers with noise", residuals.coordinates, sent, ", those that were sent")
