"""What the studies of docs/results.md say together: of whom one word holds in every one of them.

Nothing is pooled. Studies have their own data, people and difficulty, so a mean over them would be
about no population; what is counted is in how many of them an interval excludes 0 (vote counting,
which asks for no common scale and tells no size of an effect).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pflpipe.report.comparison import ALONE, BOLD_WORDS
from pflpipe.report.render_table import Entry, Table
from pflpipe.report.sentences import are, each_budget, names
from pflpipe.report.statistics import Difference


@dataclass(frozen=True)
class Standing:
    """How the certified lines of one study stand at one budget.

    Attributes:
        lines: their labels.
        alone: by label, difference to learning alone (a); without lines where the study lacks it.
        released, plain: the same to its best released model (b), and to DP-FedAvg, fine-tuned (c).
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
    """Yield who gains over learning alone, who may be the best and who is better than the released
    model and than the ``baseline`` (c) in how many studies; empty texts where no study can tell."""
    told: tuple[Callable[[Mapping[str, Standing]], str], ...] = (
        _over_alone,
        _best,
        lambda standings: _over(
            [one.released for one in standings.values()], "the study's released model (b)"
        ),
        lambda standings: _over(
            [one.plain for one in standings.values()], f"{baseline}, fine-tuned (c),"
        ),
    )
    for tell in told:
        parts = {budget: tell(standings) for budget, standings in found.items()}
        yield each_budget({budget: part for budget, part in parts.items() if part})


def _over_alone(standings: Mapping[str, Standing]) -> str:
    known = {study: one.alone for study, one in standings.items() if one.alone}
    better = {
        study: [one.sign for one in differences.values()].count(1)
        for study, differences in known.items()
    }
    some = [
        f"{number} of {len(known[study])} methods in {study}"
        for study, number in better.items()
        if number
    ]
    none = [study for study, number in better.items() if not number]
    parts = []
    if some:
        parts.append(f"{names(some)} are better than learning alone ({ALONE})")
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
        f"{len(known)} studies, nobody in more"
    )


def _over(differences: Sequence[Mapping[str, Difference]], baseline: str) -> str:
    known = list(filter(None, differences))
    labels = sorted({label for found in known for label in found})
    shared_by = [label for label in labels if _count(label, known) > 1]
    if not shared_by:
        return ""

    def always(sign: int) -> list[str]:
        return [
            label
            for label in shared_by
            if all(found[label].sign == sign for found in known if label in found)
        ]

    where = "in every study that has both"
    better, worse = always(1), always(-1)
    if better:
        said = f"{names(better)} {are(better)} better than {baseline} {where}"
    else:
        said = f"no method shows a gain over {baseline} {where}"
    return f"{said}, and {names(worse)} {are(worse)} worse in every one" if worse else said


def tables(found: Standings) -> Iterator[Table]:
    """Yield the lines that two studies or more have, by budget, compared with learning alone and
    with the released model in each of them."""
    studies = list(dict.fromkeys(study for standings in found.values() for study in standings))
    for name, rival, differences in (
        ("to alone", "learning alone (a)", lambda one: one.alone),
        ("to released", "the released model (b)", lambda one: one.released),
    ):
        yield Table(
            f"the studies compared, {name}",
            f"mean differences in percent points to {rival}, of personal models on their clients' "
            "own test rows. ↑, ↓: the adjusted 95 % interval, which is in the study's own table, "
            "excludes 0; it is adjusted to the lines of one study and not to several. First those "
            "who are bold in most studies, then those with most ↑ compared with (b). –: was not "
            "compared.",
            (f"Bold, among the certified rows of one study and budget: {BOLD_WORDS}.",),
            ("method", "budget", *studies),
            tuple(
                tuple(_rows(budget, standings, studies, differences))
                for budget, standings in found.items()
            ),
            labels=2,
        )


def _rows(
    budget: str,
    standings: Mapping[str, Standing],
    studies: list[str],
    differences: Callable[[Standing], Mapping[str, Difference]],
) -> Iterator[tuple[Entry, ...]]:
    def order(label: str) -> tuple[int, int, str]:
        ups = [one.released[label].sign for one in standings.values() if label in one.released]
        return -_count(label, [one.kept for one in standings.values()]), -ups.count(1), label

    nothing = Standing((), {}, {}, {}, frozenset())
    for label in sorted(_labels(standings), key=order):
        places = [standings.get(study, nothing) for study in studies]
        entries = (_entry(differences(one).get(label), label in one.kept) for one in places)
        yield (Entry(label), Entry(budget), *entries)


def _labels(standings: Mapping[str, Standing]) -> list[str]:
    lines = [one.lines for one in standings.values()]
    return sorted({label for found in lines for label in found if _count(label, lines) > 1})


def _count(label: str, groups: Sequence[Collection[str]]) -> int:
    return sum(label in group for group in groups)


def _entry(difference: Difference | None, bold: bool) -> Entry:
    if difference is None:
        return Entry("–")
    mark = ("", " ↑", " ↓")[difference.sign]
    return Entry(f"{difference.mean:+.1f}{mark}", bold)
