"""What the studies of docs/results.md say together: for which methods one word holds in every one
of them.

Results are never averaged across studies. Studies have their own data, people and difficulty, so a
mean over them would be about no population. What is counted is in how many of them an interval
excludes 0 (vote counting: it needs no common scale and says nothing of the size of an effect).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pflpipe.report.comparison import ALONE
from pflpipe.report.sentences import are, each_budget, names
from pflpipe.report.statistics import Difference


@dataclass(frozen=True)
class Standing:
    """How the certified lines of one study stand at one budget.

    Attributes:
        lines: their labels.
        alone: by label, difference to learning alone (a); without lines where the study lacks it.
        released, plain: the same to its best released model (b), and to DP-FedAvg, fine-tuned.
        kept: who may be the best; empty where the seeds are too few for a contest.
    """

    lines: tuple[str, ...]
    alone: Mapping[str, Difference]
    released: Mapping[str, Difference]
    plain: Mapping[str, Difference]
    kept: frozenset[str]


Standings = Mapping[str, Mapping[str, Standing]]
"""By budget and study."""


def shared(studies: Mapping[str, Mapping[str, Standing]]) -> Standings:
    """Return by budget and study what is given by study and budget, for the budgets that two
    studies or more have."""
    found: dict[str, dict[str, Standing]] = {}
    for study, budgets in studies.items():
        for budget, standing in budgets.items():
            found.setdefault(budget, {})[study] = standing
    return {budget: standings for budget, standings in found.items() if len(standings) > 1}


def sentences(found: Standings, baseline: str) -> Iterator[str]:
    """Yield in how many studies methods gain over learning alone, which method may be the best in
    most, and which are better than the released model and than the ``baseline`` in every one,
    at the budgets that most studies have; empty texts where no study can tell."""
    most = max(map(len, found.values()), default=0)
    common = {budget: standings for budget, standings in found.items() if len(standings) == most}
    told: tuple[Callable[[Mapping[str, Standing]], str], ...] = (
        _over_alone,
        _best,
        lambda one: _over([s.released for s in one.values()], "the study's released model (b)"),
        lambda one: _over([s.plain for s in one.values()], f"{baseline}, fine-tuned,"),
    )
    for tell in told:
        parts = {budget: tell(standings) for budget, standings in common.items()}
        yield each_budget({budget: part for budget, part in parts.items() if part})


def _over_alone(standings: Mapping[str, Standing]) -> str:
    some, none = [], []
    for study, one in standings.items():
        better = [difference.sign for difference in one.alone.values()].count(1)
        if better:
            some.append(f"{better} of {len(one.alone)} methods in {study}")
        elif one.alone:
            none.append(study)
    parts = []
    if some:
        parts.append(f"{', '.join(some)} are better than learning alone ({ALONE})")
    if none:
        parts.append(f"the seeds show no gain over learning alone by any method in {names(none)}")
    return ", and ".join(parts)


def _best(standings: Mapping[str, Standing]) -> str:
    known = [one.kept for one in standings.values() if one.kept]
    counts = {label: _count(label, known) for kept in known for label in kept}
    if not counts:
        return ""
    most = max(counts.values())
    first = sorted(label for label in counts if counts[label] == most)
    return (
        f"{names(first)} {are(first)} the best or not distinguishable from the best in {most} of "
        f"{len(known)} studies, more than any other method"
    )


def _over(differences: Sequence[Mapping[str, Difference]], baseline: str) -> str:
    known = list(filter(None, differences))
    labels = sorted({label for found in known for label in found})
    shared_by = [label for label in labels if _count(label, known) > 1]
    if not shared_by:
        return ""
    better, worse = (
        [
            label
            for label in shared_by
            if all(found[label].sign == sign for found in known if label in found)
        ]
        for sign in (1, -1)
    )
    where = "in every study that has both"
    if better:
        said = f"{names(better)} {are(better)} better than {baseline} {where}"
    else:
        said = f"no method shows a gain over {baseline} {where}"
    return f"{said}, and {names(worse)} {are(worse)} worse in every one" if worse else said


def table(found: Standings) -> pd.DataFrame:
    """Return the lines that two studies or more have, by rival and budget, with a column for every
    study. First those that may be the best in most studies, then those with most ↑ beside (b)."""
    studies = list(dict.fromkeys(study for standings in found.values() for study in standings))
    rows = []
    for rival in ("alone", "released"):
        for budget, standings in found.items():
            for label in sorted(_labels(standings), key=lambda one: _order(one, standings)):
                row = {"rival": rival, "method": label, "budget": budget}
                for study in studies:
                    one = standings.get(study)
                    difference = getattr(one, rival).get(label) if one else None
                    row[study] = _text(difference, bool(one and label in one.kept))
                rows.append(row)
    return pd.DataFrame(rows)


def _order(label: str, standings: Mapping[str, Standing]) -> tuple[int, int, str]:
    ups = [one.released[label].sign for one in standings.values() if label in one.released]
    return -_count(label, [one.kept for one in standings.values()]), -ups.count(1), label


def _labels(standings: Mapping[str, Standing]) -> set[str]:
    lines = [one.lines for one in standings.values()]
    return {label for found in lines for label in found if _count(label, lines) > 1}


def _count(label: str, groups: Sequence[Collection[str]]) -> int:
    return sum(label in group for group in groups)


def _text(difference: Difference | None, kept: bool) -> str:
    if difference is None:
        return "–"
    return f"{difference.mean:+.1f}{('', ' ↑', ' ↓')[difference.sign]}{' *' * kept}"
