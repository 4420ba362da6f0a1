"""The answer of a study in five lines: does it help, beside what, who gains and who loses, what the
epsilon protects, and what would decide it. The terminal and the verdict page have it from here; the
words are those of verdicts.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pflpipe.learning.metrics import Metric
from pflpipe.privacy import accounting
from pflpipe.privacy.mechanisms.base import SEARCH_INTERVAL
from pflpipe.report import comparison, sentences, statistics, verdicts
from pflpipe.report.comparison import ALONE, MAIN, Group, of_claim
from pflpipe.report.statistics import Difference
from pflpipe.report.tidy import existing, planned
from pflpipe.report.verdicts import MARGIN, UNDECIDED, Verdict
from pflpipe.study.settings import layout, round_up
from pflpipe.study.study_spec import Study

PARTS = 3
"""Into how many parts people are divided by their rows."""


@dataclass(frozen=True)
class Part:
    """Who gains and who loses beside learning alone, over all runs.

    Attributes:
        rows: least and largest number of training rows; empty for everybody.
        people: of all runs.
        gain, lose: shares in percent; the rest has the same score.
    """

    rows: tuple[int, ...]
    people: int
    gain: float
    lose: float


@dataclass(frozen=True)
class Answer:
    """What a study says at one budget.

    Attributes:
        budget: with the panel of the study in front, if there are several.
        group: the personal model that is meant.
        beside: name -> difference in points to what can be had for less, or without privacy.
        parts: everybody first, then by rows; empty without learning alone.
        seeds: about how many in all would decide it, None if more than ``statistics.MOST_SEEDS``.
        last_look: the number of seeds at which the study is read last; 0 if it plans no looks.
    """

    budget: str
    group: Group
    verdict: Verdict
    beside: dict[str, Difference]
    parts: list[Part]
    seeds: int | None
    last_look: int


def of_study(study: Study, frame: pd.DataFrame, results: Path) -> list[Answer]:
    """Return the answer at every budget that has a verdict."""
    groups, found = comparison.groups(study, frame), []
    last = max(study.looks, default=0)
    for facet in layout(study).facets:
        where = "".join(f"{name} = {value}, " for name, value in facet.items())
        panel = [group for group in groups if group.belongs(facet)]
        judged = sentences.judged(panel, len(study.looks) or 1)
        none = of_claim(panel, "none")
        alone = next((one for one in none if one.method == ALONE), None)
        for budget, verdict in judged.items():
            parts = _parts(study, results, verdict.group, alone) if alone else []
            beside, seeds = _beside(verdict, none), verdicts.seeds(verdict)
            found.append(Answer(where + budget, verdict.group, verdict, beside, parts, seeds, last))
    return found


def _beside(verdict: Verdict, none: Sequence[Group]) -> dict[str, Difference]:
    found = {line.name: difference for line, difference in verdict.beside.values()}
    for public in comparison.ranked([one for one in none if one.sends])[:1]:
        ours, theirs = (one.points(verdict.point) for one in (verdict.group, public))
        found[f"{public.label} without privacy"] = statistics.paired(ours, theirs)
    return found


def _parts(study: Study, results: Path, group: Group, alone: Group) -> list[Part]:
    scores = pd.concat(
        {name: _scores(study, results, one) for name, one in (("ours", group), ("alone", alone))},
        axis=1,
        join="inner",
    )
    gain = group.metric.sign * (scores["ours", MAIN] - scores["alone", MAIN])
    people = pd.DataFrame({"gain": gain, "rows": scores["ours", "train_size"]}).dropna()
    if people.empty:
        return []
    parts = pd.qcut(people["rows"], PARTS, labels=False, duplicates="drop")
    found = [_part(people, ())]
    for _, some in people.groupby(parts):
        found.append(_part(some, (int(some["rows"].min()), int(some["rows"].max()))))
    return found


def _part(people: pd.DataFrame, rows: tuple[int, ...]) -> Part:
    gain, lose = (100 * float((sign * people["gain"] > 0).mean()) for sign in (1, -1))
    return Part(rows, len(people), gain, lose)


def _scores(study: Study, results: Path, group: Group) -> pd.DataFrame:
    """Return the score and the training rows of each client, by seed and client."""
    seeds = {study.rows[index].cell.id: study.rows[index].cell.seed for index in group.indices}
    file = existing(results / "scores" / study.name / f"{group.method}.csv")
    scores = pd.read_csv(
        file, usecols=["cell", "client", "train_size", MAIN], dtype={"client": str}
    )
    scores = scores[scores["cell"].isin(seeds)]
    return scores.assign(seed=scores["cell"].map(seeds)).set_index(["seed", "client"])


def epsilon_of_all(study: Study, results: Path) -> float | None:
    """Return the epsilon of all private runs of a study together for one of its users; None where
    clients of two runs are not the same users, or where it cannot be counted as one."""
    runs = {row.key: row.cell for row in study.rows if row.cell.privacy.mechanism != "none"}
    cells = list(runs.values())
    deltas = {cell.privacy.delta for cell in cells}
    laws = {cell.privacy.mechanism for cell in cells}
    fits = all(c.partition.kind == "natural" and not c.departures for c in cells)
    if not fits or len(deltas) != 1 or len(laws) != 1 or None in deltas:
        return None
    plans = [planned(cell.plan_id, results).plan for cell in cells]
    return accounting.composed_epsilon(plans, accounting.delta_of(plans[0]), SEARCH_INTERVAL)


# ---------------------------------------------------------------- five lines


def lines(study: Study, frame: pd.DataFrame, results: Path) -> Iterator[str]:
    """Yield the five lines; none where a study has nothing to stand beside."""
    answers = of_study(study, frame, results)
    if not answers:
        return
    yield "; ".join(f"{one.budget}: {deed(one)}" for one in answers)
    yield "; ".join(f"{one.budget}: {beside(one)}" for one in answers)
    yield "; ".join(f"{one.budget}: {who(one)}" for one in answers if one.parts)
    yield protected(study, frame, results)
    yield "; ".join(f"{one.budget}: {decides(one)}" for one in answers)


def deed(one: Answer) -> str:
    """Return whether learning together helps at a budget, whether personalization pays, and what
    to do."""
    not_shown = f"is not shown to help by {margin(one.group.metric)}"
    shown = "helps" if one.verdict.helps else not_shown
    return f"learning together {shown}; {sentences.deed(one.verdict, one.last_look)}"


def beside(one: Answer) -> str:
    """Return the differences of a budget."""
    gaps = (f"{gap(value)} beside {name}" for name, value in one.beside.items())
    return f"{one.group.name} {one.group.mean_words}; {unit(one)} {', '.join(gaps)}"


def unit(one: Answer) -> str:
    """Return in what the differences of a budget are."""
    if one.group.metric.unit == "%":
        return "in points"
    return (
        f"in percent of {100 * one.verdict.point:.3g}, the own constant's error on training rows,"
    )


def margin(metric: Metric) -> str:
    """Return from where on a gain counts."""
    return (
        f"{MARGIN:g} point" if metric.unit == "%" else f"{MARGIN:g} % of the own constant's error"
    )


def gap(value: Difference) -> str:
    """Return a difference in points with its interval; positive is better."""
    is_known = value.low > -math.inf
    ends = f"{value.low:+.1f} to {value.high:+.1f}" if is_known else "too few seeds for an interval"
    return f"{value.mean:+.1f} ({ends})".replace("-", "−")


def who(one: Answer) -> str:
    """Return who gains and who loses beside learning alone."""
    parts = [
        f"{part.gain:.0f} % gain and {part.lose:.0f} % lose"
        + (f" with {part.rows[0]} to {part.rows[1]} rows" if part.rows else "")
        for part in one.parts
    ]
    return ", ".join(parts)


def protected(study: Study, frame: pd.DataFrame, results: Path) -> str:
    """Return what the epsilons protect, in the words of the data: those of certified rows, which
    the answer is about, if there are any."""
    certified = frame[frame["claim"] == "certified"]
    private = frame[frame["claim"] != "none"] if certified.empty else certified
    unit = ", ".join(unit for unit in dict.fromkeys(private.get("unit", ())) if unit) or "user"
    worst = comparison.largest(private["epsilon_central"])
    text = f"the ε of one run, at most {round_up(worst)}, protects one {unit} with all of its rows"
    searched = comparison.largest(private["epsilon_with_search"])
    text += f"; {round_up(searched)} with its search" if searched else "; no search was made"
    count = len({row.key for row in study.rows if row.cell.privacy.mechanism != "none"})
    every = epsilon_of_all(study, results)
    total = f"{round_up(every)}" if every is not None else "not counted as one number"
    return f"{text}; all {count} private runs together: {total}"


def decides(one: Answer) -> str:
    """Return what would decide the verdict of a budget."""
    if one.verdict.word != UNDECIDED:
        return "decided"
    if one.seeds is None:
        return (
            f"the gain is so near the margin of {margin(one.group.metric)} that "
            f"{statistics.MOST_SEEDS} seeds would not decide it"
        )
    needed = f"about {one.seeds} seeds in all would decide it"
    if 0 < one.last_look < one.seeds:  # its intervals hold together at its looks alone
        return f"{needed}, in a study of its own: the last look of this one is at {one.last_look}"
    return needed
