"""What a private run did, held against its plan.

A table counts T releases to cohorts that are drawn at rate q; so the run must have done that. The check sees mistakes of the
engine, not of a method: a run that releases more often than is counted, or whose clients take part more often than by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pflpipe.errors import DataError
from pflpipe.privacy import Plan, public_cohort

RAREST = 1e-9
"""A number of participations that chance alone makes less likely than this (two-sided) was not drawn at the plan's rate."""


def check(run: Mapping[str, Any], plan: Plan, departures: Collection[str], place: str) -> None:
    """Raise DataError unless a private run's releases and participations can be those of its plan.

    Args:
        run: contents of ``run.json``; ``releases`` counts rounds in which something was released, ``participants`` the clients
            of all rounds together.
        plan: with a mechanism.
        departures: of the cell.
        place: what the error calls the run.
    """
    from scipy.stats import binomtest

    for name in ("releases", "participants"):
        if not isinstance(run.get(name), int):
            raise DataError(f"{place}: {name}", got=run.get(name), expected="a count", do="delete the run and train it again")
    if run["releases"] != plan.rounds:
        raise DataError(f"{place}: rounds with a release", got=run["releases"], expected=f"the {plan.rounds} of its plan")
    found, trials = run["participants"], plan.rounds * plan.clients
    if "public_sampling" in departures:
        wanted = sum(int(public_cohort(round, plan).sum()) for round in range(plan.rounds))
        if found != wanted:
            raise DataError(f"{place}: participations", got=found, expected=f"{wanted}, those of the public schedule")
    elif not 0 <= found <= trials or binomtest(found, trials, plan.sample_rate).pvalue < RAREST:
        raise DataError(
            f"{place}: participations", got=found, expected=f"about {trials * plan.sample_rate:.6g}, as its plan draws clients"
        )
