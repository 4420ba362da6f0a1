"""Whether private personalization pays: personal models beside the strongest that can be had for
less. Every table, sentence, map and figure takes the word from here (docs/when_it_pays.md).

A personal model that trains in rounds has four kinds of rivals (``KINDS``): (a) learning alone and
a person's own constant answer, which cost no privacy; (b) the released models of all certified
methods, tested untouched; (c) the effects of items with one number of each client; (d) methods
without rounds. None of them is chosen: a personal model pays if it beats all of them. Whichever
released model a reader would have chosen, on whatever rows, is among them.

A gain counts from ``MARGIN`` on, in both directions: a point is one of accuracy in percent, or 1 %
of the error of the own constant (``Group.point``). Personalization **pays** if the intervals of
some personal model beside every rival lie above the margin. It **does not pay** if every personal
model has an interval beside some rival that ends below it. Else it is **undecided**. One family of
intervals has as many as there are personal models or rivals, whichever are more. Each of the two
words is then wrong in at most 5 of 100 studies: a wrong "pays" needs a wrong interval of one of the
personal models beside its strongest rival; a wrong "does not pay" needs one of the best personal
model beside one of the rivals.

Learning together **helps** if it pays, or if some line that does not collapse is **shown** to gain
more than the margin over all of (a): in a family of its own of as many intervals as there are such
lines. What is advised where it does not pay, or is undecided, is a line for which that is shown
too, so that the two agree: the best of the rivals, which cost less; without one, where it is
undecided, the best personal model, and where it does not pay, the best of the rivals that a
personal model does not beat by the margin, which are then better than (a) as well. Where nothing is
shown, it is the best of (a).

A study may add seeds until the word is there. How often it is read, at which numbers of seeds, is
fixed before the first run (``looks`` of a study). The intervals of all looks are then one family,
with as many times more intervals, and a word that was said at any look is still wrong in at most 5
of 100 studies.

Collapsed runs (statistics.py) are no part of the differences; a run that diverged is one of them,
whatever it scored. A personal model with such a run never pays. A rival with one beats nobody, but
must be beaten; unless most of its runs collapsed. Where fewer than three are left, its intervals
are unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.report import statistics
from pflpipe.report.comparison import ALONE, MAIN, Group, finite, of_claim
from pflpipe.report.statistics import Difference, Model, People

MARGIN = 1.0
"""Points; one margin for everything that is said to pay or not to."""
PAYS, DOES_NOT, UNDECIDED = "pays", "does not pay", "undecided"
RELEASED = "global_own"
"""The column of a released model, tested untouched on clients' own rows."""
CONSTANT, OFFSET = "own_constant", "item_effects"
KINDS = {
    "a": "learning alone and the own constant",
    "b": "released models",
    "c": "item effects with one number of each client",
    "d": "methods without rounds",
}


@dataclass(frozen=True)
class Line:
    """What competes: the personal models of a group, or its released model."""

    group: Group
    column: str = MAIN

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        names = {ALONE: "learning alone", CONSTANT: "the own constant"}
        label = self.group.label
        return (
            f"the released model of {label}" if self.column == RELEASED else names.get(label, label)
        )


@dataclass(frozen=True)
class Verdict:
    """Whether personalization pays at one budget.

    Attributes:
        word: ``PAYS``, ``DOES_NOT`` or ``UNDECIDED``.
        group: the personal model with the largest mean; among those that pay, where some do.
        beside: by kind its strongest rival, the one with the largest mean, and the difference.
        missing: kinds of which the study has no rival.
        instead: what to use where personalization does not pay, or until that is known.
        helps: whether learning together is shown to help.
        collapsed: by name of a line, how many of its runs did, and how many there are.
        point: of all differences, in the unit of the metric.
    """

    word: str
    group: Group
    beside: Mapping[str, tuple[Line, Difference]]
    missing: tuple[str, ...]
    instead: Line
    helps: bool
    collapsed: Mapping[str, tuple[int, int]]
    point: float


def judge(members: Sequence[Group], people: People | None = None, looks: int = 1) -> Verdict | None:
    """Return the verdict on the groups of one budget; None without a personal model, without a
    rival of kind (a) of which most runs did not collapse, and of errors without a point.

    Args:
        members: certified groups, and those that send nothing.
        people: of two lines, see statistics.py.
        looks: how often the word may be read while seeds are added.
    """
    personal, rivals = _sides(members)
    if not personal or "a" not in rivals or not (point := members[0].point) > 0:
        return None
    lines = [*personal, *(line for known in rivals.values() for line in known)]
    values = pd.DataFrame({line: _scores(line, point) for line in lines})
    found = decide(values, personal, lines[len(personal) :], people, looks)
    mean = found.model.mean
    kinds = {kind: [one for one in known if one in found.beaten] for kind, known in rivals.items()}
    if not kinds["a"]:
        return None
    together = [line for line in lines if line not in rivals["a"]]
    shown = [
        line
        for line in together
        if line in found.steady
        and min(
            found.model.difference(line, each, looks * len(together)).low for each in kinds["a"]
        )
        > MARGIN
    ]
    return Verdict(
        found.word,
        found.first.group,
        {
            kind: (strongest, found.intervals[found.first][strongest])
            for kind, known in kinds.items()
            if known
            for strongest in [max(known, key=mean)]
        },
        tuple(kind for kind in KINDS if not kinds.get(kind)),
        max(_advised(found, shown) or kinds["a"], key=mean),
        found.word == PAYS or bool(shown),
        {
            line.name: (int(found.fell[line].sum()), int(values[line].count()))
            for line in lines
            if line not in found.steady
        },
        point,
    )


def _advised(found: Decision, shown: Sequence[Line]) -> Sequence[Line]:
    """Return the lines that are better than (a) and may be advised, by what is ``shown``."""
    cheaper = [line for line in shown if line in found.beaten]
    if cheaper or found.word == PAYS:
        return cheaper
    if found.word == UNDECIDED:
        return shown
    return [
        rival
        for line in shown
        for rival, one in found.intervals[line].items()
        if rival in found.steady and one.high < MARGIN
    ]


def _scores(line: Line, point: float) -> pd.Series[float]:
    """Return the points of a line by seed, more is better; minus infinity where its run diverged or
    has no score."""
    scores = line.group.points(point, line.column)
    diverged = line.group.rows["diverged_round"].notna().to_numpy()
    return scores.mask(diverged).fillna(-math.inf)


@dataclass(frozen=True)
class Decision:
    """The word on lines of one budget, and what it follows from.

    Attributes:
        first: as ``Verdict.group``.
        beaten: the rivals of which most runs did not collapse.
        intervals: of every personal model beside every one of these.
        compared: size of the family.
        fell: which runs collapsed.
        steady: the lines without such a run.
    """

    word: str
    first: Any
    beaten: Sequence[Any]
    intervals: Mapping[Any, Mapping[Any, Difference]]
    compared: int
    model: Model
    fell: pd.DataFrame
    steady: frozenset[Any]


def decide(
    values: pd.DataFrame,
    personal: Sequence[Any],
    rivals: Sequence[Any],
    people: People | None,
    looks: int = 1,
) -> Decision:
    """Return the word on seeds x lines, points; NaN where a line lacks a seed, minus infinity
    where its run diverged. ``looks`` as in ``judge``."""
    fell = statistics.collapsed(values)
    steady = frozenset(line for line in values if not fell[line].any())
    left = values.count() - fell.sum()
    beaten = [line for line in rivals if 2 * left[line] > values[line].count()]
    compared = looks * max(len(personal), len(beaten))
    model = Model(values.mask(fell), people)
    intervals = {
        line: {rival: model.difference(line, rival, compared) for rival in beaten}
        for line in personal
    }
    paying = [
        line
        for line, beside in intervals.items()
        if line in steady and min((one.low for one in beside.values()), default=MARGIN) > MARGIN
    ]
    hopeless = all(
        any(one.high < MARGIN for rival, one in beside.items() if rival in steady)
        for line, beside in intervals.items()
        if left[line]
    )
    word = PAYS if paying else DOES_NOT if hopeless else UNDECIDED
    first = max(paying or personal, key=model.mean)
    return Decision(word, first, beaten, intervals, compared, model, fell, steady)


def _sides(members: Sequence[Group]) -> tuple[list[Line], dict[str, list[Line]]]:
    """Return the personal models and by kind their rivals. Where no certified method trains in
    rounds, those without are the personal models."""
    known = [one for one in members if finite(one.rows[MAIN])]
    certified = of_claim(known, "certified")
    own = [one for one in certified if not untouched(one) and one.method not in (CONSTANT, OFFSET)]
    rounds = [one for one in own if int(one.first("rounds")) > 1] or own
    rivals = {
        "a": [one for one in known if one.method in (ALONE, CONSTANT)],
        "c": [one for one in certified if one.method == OFFSET],
        "d": [one for one in own if one not in rounds],
    }
    found = {kind: [Line(one) for one in groups] for kind, groups in rivals.items()}
    found["b"] = [Line(one, RELEASED) for one in certified if finite(one.rows[RELEASED])]
    return [Line(one) for one in rounds], {kind: found[kind] for kind in KINDS if found[kind]}


def untouched(group: Group) -> bool:
    """Return whether the personal model of every client is the released one."""
    return bool((group.values(MAIN) == group.values(RELEASED)).all())


def people(lines: Sequence[Any], runs: Sequence[np.ndarray], pool: int) -> People:
    """Return the variance over people of the difference of two lines, divided by the number of
    people of the pool. It is that within runs, which includes the luck of a person's test rows, and
    so rather too large. A line of which nobody knows the answers of each person has the largest
    variance of any other line beside the same one.

    Args:
        lines: those of which the answers of each person are known.
        runs: of every seed, lines x people, percent.
        pool: number of people from which every seed draws.
    """
    mean = np.mean([np.atleast_2d(np.cov(one)) for one in runs], axis=0)
    variances = (np.diag(mean)[:, None] + np.diag(mean)[None, :] - 2 * mean) / pool
    place = {line: index for index, line in enumerate(lines)}

    def of_pair(ours: Any, theirs: Any) -> float:
        known = [place[line] for line in (ours, theirs) if line in place]
        if len(known) == 2:
            return float(variances[known[0], known[1]])
        return float((variances[known[0]] if known else variances).max())

    return of_pair


def instead(verdict: Verdict) -> str:
    """Return what to do where personalization does not pay."""
    line = verdict.instead
    if line.column == RELEASED or line.group.sends:
        return f"use {line.name}"
    return "learn alone" if line.group.label == ALONE else f"use {line.name}"


def seeds(verdict: Verdict) -> int | None:
    """Return with about how many seeds the word would be there, if means and spreads stay: those
    that put the gain of the personal model over every rival above the margin or, where it gains
    less over some, over one of these below it. None: more than ``statistics.MOST_SEEDS``."""
    gaps = [difference for _, difference in verdict.beside.values()]
    less = [one for one in gaps if one.mean < MARGIN]
    needed = [one.seeds_beside(MARGIN) for one in less or gaps]
    known = [number for number in needed if number is not None]
    if less:
        return min(known, default=None)
    return max(known) if len(known) == len(needed) else None


def fallen(verdict: Verdict) -> Iterator[str]:
    """Yield which lines have runs that collapsed, and the interval of their share."""
    for name, (count, runs) in verdict.collapsed.items():
        low, high = statistics.share(count, runs)
        yield f"{count} of {runs} runs of {name} collapsed ({low:.0f} to {high:.0f} %)"
