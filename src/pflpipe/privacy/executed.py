"""What a private run did, held against its plan.

A table counts T releases to cohorts that are drawn at rate q under noise of C sigma; so the run
must have done that. The checks see mistakes of the engine, not of a method: a run that releases
more often than is counted, whose clients take part more often than by chance, or whose noise is not
what the plan's law gives.
"""

from __future__ import annotations

from collections.abc import Collection

from pflpipe.errors import DataError
from pflpipe.privacy.departures import OF_MESSAGES
from pflpipe.privacy.mechanism import public_cohort
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.residuals import Residuals

NONE = Residuals()
"""Those of a bound that stays."""
RAREST = 1e-9
"""What chance alone makes less likely than this (two-sided) was not done as the plan says."""


def check(
    plan: Plan,
    departures: Collection[str],
    location: str,
    *,
    releases: int,
    participants: int,
    residuals: Residuals,
    bound_residuals: Residuals = NONE,
) -> None:
    """Raise DataError unless a private run's releases, participations and noise can be those of its
    plan.

    Args:
        plan: with a mechanism.
        departures: of the cell.
        location: what the error calls the run.
        releases: how many rounds released something.
        participants: how many clients took part, summed over the rounds.
        residuals: of all releases together.
        bound_residuals: of all movements of an adaptive clip bound together.
    """
    if releases != plan.rounds:
        raise DataError(
            f"{location}: rounds with a release",
            got=releases,
            expected=f"the {plan.rounds} of its plan",
        )
    _check_participations(participants, plan, departures, location)
    _check_noise(residuals, plan, departures, location)
    if plan.adaptive is not None:
        moved = bound_residuals.coordinates
        if moved != plan.rounds:
            raise DataError(
                f"{location}: rounds that moved the clip bound",
                got=moved,
                expected=f"the {plan.rounds} of its plan",
            )
        _check_noise(bound_residuals, plan, departures, f"{location}: adaptive clip bound")


def _check_participations(
    found: int, plan: Plan, departures: Collection[str], location: str
) -> None:
    from scipy.stats import binomtest

    trials = plan.rounds * plan.clients
    if "public_sampling" in departures:
        wanted = sum(int(public_cohort(round, plan).sum()) for round in range(plan.rounds))
        if found != wanted:
            raise DataError(
                f"{location}: participations",
                got=found,
                expected=f"{wanted}, those of the public schedule",
            )
    elif not 0 <= found <= trials or binomtest(found, trials, plan.sample_rate).pvalue < RAREST:
        raise DataError(
            f"{location}: participations",
            got=found,
            expected=f"about {trials * plan.sample_rate:.6g}, as its plan draws clients",
        )


def _check_noise(found: Residuals, plan: Plan, departures: Collection[str], location: str) -> None:
    """Compare a run's residuals with the law of its plan's noise, chi-square for Gaussian noise and
    Gamma for Laplace noise.

    Rounding what is released moves the statistic's root (for Laplace noise the statistic) by at
    most that of ``rounding``.
    """
    from scipy.stats import gamma

    if not plan.noise_multiplier:
        return
    if not found.coordinates:
        if OF_MESSAGES.isdisjoint(
            departures
        ):  # else nobody may have been there, or no mask have kept anything
            raise DataError(
                f"{location}: coordinates with noise",
                got=0,
                expected="those that were released",
                do="delete the run and train it again",
            )
        return
    # A chi-square number is twice a Gamma number of half as many degrees.
    power, law = (
        (1, gamma(found.coordinates))
        if plan.mechanism == "laplace"
        else (2, gamma(found.coordinates / 2, scale=2))
    )
    root, slack = found.statistic ** (1 / power), found.rounding ** (1 / power)
    below, above = (root + slack) ** power, max(0.0, root - slack) ** power
    if not (law.cdf(below) >= RAREST / 2 and law.sf(above) >= RAREST / 2):
        size = (found.statistic / law.mean()) ** (1 / power)
        raise DataError(
            f"{location}: size of the noise in its releases",
            got=f"{size:.6g} times that of its plan, over {found.coordinates} coordinates",
            expected="1, as its plan's noise has it",
            do="do not publish results of this version",
        )
