"""A check for the tests of anybody's release: an assertion that its claim is kept.

It needs the base install only. pytest finds the fixture of the same name (interface/fixtures.py) by
itself. dp-recorder (Cebere et al. 2026) replays a program's calls of noise mechanisms on a
neighbour of one data set, which needs marks in its code; this attacks one release from outside,
with inputs that it searches for (docs/related_work.md).
"""

from typing import Any

from pflpipe.auditing.audit import Audited, audit
from pflpipe.auditing.claim import Claim


def assert_private(release: Any, *, seconds: float = 10.0, seed: int = 0, **claim: Any) -> Audited:
    """Attack a release, and return what was tried if the claim is kept.

    Args:
        release: a function or a class, as ``pflpipe.audit`` takes it.
        seconds: an estimate of what the attack may take. Less time is less power, which the
            result's sentence states.
        seed: of all that the attacker draws; a failure repeats with the same one.
        claim: the fields of ``pflpipe.Claim``: ``clients``, ``noise_multiplier`` or ``epsilon``,
            ``delta``, ``rounds``, ``sample_rate`` and further ones.

    Raises:
        AssertionError: the claim is refuted or unsound; five lines with the verdict, both inputs,
            the statistic and the lower bound. A true claim fails with a probability of 1e-4.
        ReleaseError: the release fails, or returns something else.
        PrivacyError: nobody can have such a claim.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    found = audit(release, Claim(**claim), seconds=seconds, seed=seed)
    if found.verdict != "kept":
        raise AssertionError(_attack(found))
    return found


def _attack(found: Audited) -> str:
    """Return the attack in five lines."""
    row = found.row
    sent, _, other = found.situation.partition("; in the other world ")
    lower, claimed = float(row["epsilon_lower"]), float(row["epsilon_claimed"])
    proof = "the attack shows it" if lower > claimed else "the first line shows it"
    return (
        f"{row['audit']}: {found.verdict}: {found.sentence}\n"
        f"  with the client     {sent}\n"
        f"  without it          {other or 'it sends zeros'}\n"
        f"  statistic           {row['statistic']}: in {row['runs']:,} draws each, "
        f"{row['false_positives']:,} without it taken for with, "
        f"{row['false_negatives']:,} the reverse\n"
        f"  lower bound         epsilon is at least {lower:.3g}, claimed is {claimed:.3g}: {proof}"
    )
