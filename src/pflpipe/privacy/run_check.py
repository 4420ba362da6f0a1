"""A comparison of a finished private run with its plan.

The epsilon of a table counts T releases to cohorts drawn at rate q under noise of C sigma, so the
run must have done this. The checks detect mistakes of the engine, not of a method: more releases
than counted, participation that differs from the draw, or noise that is not the plan's
(residuals.py). No check is random: a run that kept its plan passes for any data of its clients.
Whether a row appears in a table therefore tells nothing about them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pflpipe.errors import DataError
from pflpipe.facts.departures import OF_MESSAGES
from pflpipe.privacy.plan import Plan


@dataclass(frozen=True)
class Residuals:
    """Counts of what was compared in a run so far, and of what differs.

    Attributes:
        releases: number of checked rounds, and the number of the next round.
        strangers: clients that took part without being drawn, or were drawn and took no part,
            summed over the rounds.
        coordinates: numbers that were sent with noise.
        mismatches: numbers sent that are not the clients' part plus the plan's noise, rounded once,
            plus movements of the clip bound that do not follow from the released bits.
        moves: movements of an adaptive clip bound.
        bound: clip bound of the next round, from the released bits alone; None for that of the
            plan.
    """

    releases: int = 0
    strangers: int = 0
    coordinates: int = 0
    mismatches: int = 0
    moves: int = 0
    bound: float | None = None


def check(
    plan: Plan,
    departures: Collection[str],
    location: str,
    *,
    releases: int,
    uploaded: float,
    residuals: Residuals,
    stopped: int | None = None,
) -> None:
    """Raise DataError unless the releases, the participation and the noise of a private run are
    those of its plan.

    Args:
        plan: a plan with a mechanism.
        departures: of the cell.
        location: name of the run, for the error.
        releases: number of rounds with a release.
        uploaded: numbers that a client sends in a round, a mean over the rounds.
        residuals: of all releases.
        stopped: the round after which the run was stopped; None for a run of all rounds.
    """

    def agree(what: str, got: int, expected: int, of: str = "") -> None:
        do = "do not publish results of this version"
        DataError.unless(got == expected, f"{location}: {what}", got, f"{expected}{of}", do)

    rounds = plan.rounds if stopped is None else stopped
    of_plan = ", the rounds of its plan"
    agree("rounds with a release", releases, rounds, of_plan)
    agree("releases that were drawn again", residuals.releases, rounds, of_plan)
    agree("clients that took part undrawn, or were drawn and did not", residuals.strangers, 0)
    if not plan.noise_multiplier:
        return
    if plan.adaptive is not None:
        agree("movements of the clip bound", residuals.moves, rounds, of_plan)
    agree("released numbers without exactly the noise of its plan", residuals.mismatches, 0)
    # Under departures of messages this number follows from private masks and from the cohorts, and
    # under secure aggregation more are sent than released.
    if OF_MESSAGES.isdisjoint(departures) and not plan.bits:
        sent = round(uploaded * rounds)
        agree("released numbers with noise", residuals.coordinates, sent, ", those that were sent")
