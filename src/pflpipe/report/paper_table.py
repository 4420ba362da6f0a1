"""A study's table as a paper prints it: its rows, its columns, its names, our numbers above the
printed ones.

It keeps the promises of the summary (summary.py): a nominal epsilon is called so and has the honest
one below it, an unreviewed method is called so, a diverged run is marked with its round, and bold
type is what the seeds support among rows of the same column, budget and claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from pflpipe.report.statistics import by_seed, contest
from pflpipe.report.summary import (
    BOLD_WORDS,
    METRICS,
    explained,
    finite,
    largest,
    mean_text,
    not_covered,
    round_up,
)
from pflpipe.report.typeset import Entry, Table
from pflpipe.study import layouts
from pflpipe.study.outline import PaperLayout, Study
from pflpipe.study.settings import budget_text

# Less is better, and a difference between two of them has no sign to print.
_COSTS = {
    "seconds_per_round": "seconds of training per round, all clients together",
    "upload_megabytes_per_round": "megabytes uploaded per round, all clients together",
}
QUANTITIES = {
    name: f"accuracy in percent ({column.heading})" for name, column in METRICS.items()
} | _COSTS


@dataclass(frozen=True)
class _Position:
    """All seeds of one setting: one line of the table in one column.

    Attributes:
        rows: of the tidy frame.
        rival: what it competes with for bold type: rows of the same column, budget and claim.
        values: what is shown, by seed; NaN where there is none.
    """

    rows: pd.DataFrame
    rival: tuple[int, str, str]
    values: pd.Series[float]

    @property
    def claim(self) -> str:
        return self.rival[2]

    @property
    def diverged(self) -> list[int]:
        return sorted({int(value) for value in self.rows["diverged_round"] if pd.notna(value)})


Positions = Sequence[
    _Position | None
]  # of one line: one for every column, None where the study has no run


def table(study: Study, layout: PaperLayout, frame: pd.DataFrame) -> Table:
    """Return the table of a study's ``layout`` block.

    Args:
        frame: what ``tidy.tidy`` made of the same study.
    """
    grid = layouts.grid(layout, study.rows)
    lines = [
        (
            line,
            [
                _position(study, layout, frame, column, members)
                for column, members in enumerate(line.locations)
            ],
        )
        for line in grid.lines
    ]
    everywhere = [
        position for _, positions in lines for position in positions if position is not None
    ]
    rivals: dict[tuple[int, str, str], list[_Position]] = {}
    for position in everywhere:
        rivals.setdefault(position.rival, []).append(position)
    contests = [_contest(layout, members) for members in rivals.values()]
    gains = {name: gain for found in contests for name, gain in found.items()}
    sections = [
        tuple(
            entries
            for line, positions in lines
            if line.named == named
            for entries in _lines(layout, line.name, positions, gains)
        )
        for named in (True, False)
    ]
    groups = [", ".join(words[:-1]) for words in grid.header]
    seeds = max(len(position.rows) for position in everywhere)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return Table(
        name=f"{study.name}_printed",
        caption=(
            f"{study.title.rstrip('.')}. In the layout of the paper: {QUANTITIES[layout.metric]}, "
            f"{spread}. {not_covered(study)}"
        ),
        notes=tuple(_notes(layout, everywhere, ours_too=bool(sections[1]))),
        header=("method", *(words[-1] for words in grid.header)),
        sections=tuple(filter(None, sections)),
        labels=1,
        groups=("", *groups) if any(groups) else (),
    )


def _position(
    study: Study, layout: PaperLayout, frame: pd.DataFrame, column: int, members: tuple[int, ...]
) -> _Position | None:
    if not members:
        return None
    rows = frame.iloc[list(members)]
    if layout.metric == "seconds_per_round":
        values = rows["train_seconds"] / rows["rounds"]
    elif layout.metric == "upload_megabytes_per_round":
        values = rows["upload_bytes_per_round"] / 1e6
    else:
        values = rows[layout.metric]
    rival = (column, budget_text(study.rows[members[0]].cell), str(rows["claim"].iloc[0]))
    return _Position(rows, rival, by_seed([(0, rows.assign(shown=values))], "shown")[0])


def _contest(layout: PaperLayout, members: Sequence[_Position]) -> dict[int, float]:
    """Return those that may be the best, by identity; with its distance to the next one where only
    one may be and it is no cost, else with 0."""
    costs = layout.metric in _COSTS
    found = contest(
        pd.DataFrame({id(one): -one.values if costs else one.values for one in members})
    )
    if found is None:
        return {}
    distances = [difference.mean for difference in found.behind.values()]
    return dict.fromkeys(found.kept, min(distances) if found.decided and not costs else 0.0)


def _digits(layout: PaperLayout) -> int:
    return 2 if layout.metric in _COSTS else 1


def _lines(
    layout: PaperLayout,
    name: str,
    positions: Positions,
    gains: dict[int, float],
) -> Iterator[tuple[Entry, ...]]:
    """Yield a method's line of the table and, below it, the printed numbers and the epsilons."""
    claims = {position.claim for position in positions if position is not None}
    nominal = "nominal" in claims
    marks = "".join(f" [{claim}]" for claim in ("unreviewed", "nominal") if claim in claims)
    ours = [
        Entry("") if position is None else _ours(layout, position, gains.get(id(position)))
        for position in positions
    ]
    yield (Entry(name + marks), *ours)
    printed = [_paper(layout, position) for position in positions]
    if any(printed):
        yield tuple(map(Entry, ("– paper", *printed)))
    claimed = [_nominal(position) for position in positions]
    if any(claimed):
        yield tuple(map(Entry, ("– nominal ε", *claimed)))
    yield tuple(map(Entry, ("– honest ε" if nominal else "– ε", *map(_honest, positions))))


def _ours(layout: PaperLayout, position: _Position, gain: float | None) -> Entry:
    text = mean_text(finite(position.values), len(position.rows), _digits(layout))
    if gain:
        text += f" ↑{gain:.{_digits(layout)}f}"
    if position.diverged:
        text += f" †{','.join(map(str, position.diverged))}"
    return Entry(text, bold=gain is not None)


def _paper(layout: PaperLayout, position: _Position | None) -> str:
    if position is None or position.rows["paper_metric"].iloc[0] != layout.metric:
        return ""
    return f"({float(position.rows['paper_value'].iloc[0]):g})"


def _nominal(position: _Position | None) -> str:
    claimed = None if position is None else largest(position.rows["epsilon_nominal"])
    return "" if claimed is None else round_up(claimed)


def _honest(position: _Position | None) -> str:
    if position is None:
        return ""
    if position.claim == "none":
        return "∞" if position.rows["upload_bytes_per_round"].any() else "–"
    return round_up(largest(position.rows["epsilon_central"]))


def _notes(layout: PaperLayout, positions: Sequence[_Position], *, ours_too: bool) -> Iterator[str]:
    if any(_paper(layout, position) for position in positions):
        yield (
            f"In brackets: what the paper prints ({layout.source}), under the privacy that the "
            "paper claims."
        )
    deltas = sorted(
        {
            float(value)
            for position in positions
            for value in position.rows["delta"]
            if pd.notna(value)
        }
    )
    if deltas:
        words = ", ".join(f"{delta:g}" for delta in deltas)
        yield (
            f"ε: what the noise provides for a whole client (central trust) at δ = {words}, the "
            "largest over the seeds."
        )
    yield from explained(position.claim for position in positions)
    gain = (
        "" if layout.metric in _COSTS else "; ↑ the distance of one that is bold alone to the next"
    )
    yield f"Bold, in its column among rows of the same budget and claim: {BOLD_WORDS}{gain}."
    if any(position.diverged for position in positions):
        yield "† diverged in that round; its scores are counted as they are."
    if ours_too:
        yield "The last rows are ours; the paper's table does not have them."
