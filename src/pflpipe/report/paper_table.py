"""A study's table in the layout of a paper: the paper's rows, columns and names, with our numbers
above the printed ones.

It keeps the promises of summary.py: a nominal epsilon has its mark and the honest epsilon below it;
an unreviewed method is marked; a diverged run is marked with its round; a number is bold if it may
be the best among rows of the same column, budget and claim.
"""

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from pflpipe.report import comparison
from pflpipe.report.comparison import BOLD_WORDS, METRICS, Group, best_round_text, finite
from pflpipe.report.render_table import Entry, Table
from pflpipe.report.summary import dagger, not_covered
from pflpipe.study import layouts
from pflpipe.study.settings import budget_text, round_up
from pflpipe.study.study_spec import PaperLayout, Study

# Less is better, and a difference between two of them has no sign to print.
_COSTS = {
    "seconds_per_round": "seconds of training per round, all clients together",
    "upload_megabytes_per_round": "megabytes uploaded per round, all clients together",
}
QUANTITIES = {name: column.heading for name, column in METRICS.items()} | _COSTS
Places = Sequence[Group | None]
"""One row of the table: the group of each column, None if the study has no run for it."""


def table(study: Study, layout: PaperLayout, frame: pd.DataFrame) -> Table:
    """Return the table of a study's ``layout`` block.

    Args:
        frame: the tidy table of the study.
    """
    grid = layouts.grid(layout, study.rows)
    shown = _with_quantity(layout, frame, study.metric.sign)
    lines: list[tuple[layouts.Line, Places]] = [
        (line, [_group(study, line.name, shown, indices) for indices in line.locations])
        for line in grid.lines
    ]
    # Bold compares groups within a column: other columns have other data or budgets.
    gains: dict[Group, float] = {}
    for column in zip(*(places for _, places in lines), strict=True):
        for section in comparison.sections(filter(None, column)):
            gains |= _gains(layout, section)
    sections: list[tuple[tuple[Entry, ...], ...]] = []
    for named in (True, False):
        own = [(line.name, places) for line, places in lines if line.named == named]
        rows = (_lines(layout, *line, gains, study.best_round) for line in own)
        sections.append(tuple(itertools.chain.from_iterable(rows)))
    groups = [", ".join(levels[:-1]) for levels in grid.header]
    everywhere = [group for _, places in lines for group in places if group is not None]
    seeds = max(len(group.rows) for group in everywhere)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return Table(
        name=f"{study.name}_printed",
        caption=(
            f"{study.title.rstrip('.')}. In the layout of the paper: {_quantity(study, layout)}, "
            f"{spread}. {not_covered(study)}"
        ),
        notes=tuple(_notes(layout, everywhere, ours_too=bool(sections[1]))),
        header=("method", *(levels[-1] for levels in grid.header)),
        sections=tuple(filter(None, sections)),
        labels=1,
        groups=("", *groups) if any(groups) else (),
    )


def _quantity(study: Study, layout: PaperLayout) -> str:
    """Return what the entries show, in words."""
    words = QUANTITIES[layout.metric]
    return words if layout.metric in _COSTS else f"{study.metric.described} ({words})"


def _with_quantity(layout: PaperLayout, frame: pd.DataFrame, sign: int) -> pd.DataFrame:
    """Return the frame with two more columns: ``quantity``, which is shown, and ``worth``, of which
    more is better."""
    if layout.metric == "seconds_per_round":
        quantity = frame["train_seconds"] / frame["rounds"]
    elif layout.metric == "upload_megabytes_per_round":
        quantity = frame["upload_bytes_per_round"] / 1e6
    else:
        quantity = frame[layout.metric]
    worth = -quantity if layout.metric in _COSTS else sign * quantity
    return frame.assign(quantity=quantity, worth=worth)


def _group(study: Study, name: str, frame: pd.DataFrame, indices: Sequence[int]) -> Group | None:
    if not indices:
        return None
    return Group(name, budget_text(study.rows[indices[0]].cell), frame.iloc[list(indices)])


def _gains(layout: PaperLayout, section: Sequence[Group]) -> dict[Group, float]:
    """Return the groups that may be the best, with 0; a single one, if it is no cost, with its
    distance to the next."""
    outcome = comparison.contest(section, "worth")
    if outcome is None:
        return {}
    is_shown = outcome.decided and layout.metric not in _COSTS
    distance = min(difference.mean for difference in outcome.behind.values()) if is_shown else 0.0
    return dict.fromkeys(outcome.bold, distance)


def _lines(
    layout: PaperLayout, name: str, places: Places, gains: dict[Group, float], best_round: str
) -> Iterator[tuple[Entry, ...]]:
    """Yield a method's row of the table and, below it, its best round, the printed numbers and the
    epsilons."""
    claims = {group.claim for group in places if group is not None}
    marks = "".join(f" [{claim}]" for claim in ("unreviewed", "nominal") if claim in claims)

    def ours(group: Group) -> Entry:
        digits = 2 if layout.metric in _COSTS else group.metric.digits
        text = comparison.mean_text(finite(group.rows["quantity"]), len(group.rows), digits)
        gain = f" ↑{gains[group]:.{digits}f}" if gains.get(group) else ""
        return Entry(text + gain + dagger(group), bold=group in gains)

    yield (Entry(name + marks), *(ours(group) if group else Entry("") for group in places))
    for heading, text in (
        (
            f"– {comparison.BEST_ROUND_WORDS}",
            lambda group: best_round and best_round_text(group, best_round),
        ),
        ("– paper", lambda group: _printed(layout, group)),
        ("– nominal ε", _nominal),
        ("– honest ε" if "nominal" in claims else "– ε", _honest),
    ):
        texts = [text(group) if group else "" for group in places]
        if any(texts):
            yield tuple(map(Entry, (heading, *texts)))


def _printed(layout: PaperLayout, group: Group) -> str:
    is_printed = group.first("paper_metric") == layout.metric
    return f"({float(group.first('paper_value')):g})" if is_printed else ""


def _nominal(group: Group) -> str:
    claimed = comparison.largest(group.rows["epsilon_nominal"])
    return "" if claimed is None else round_up(claimed)


def _honest(group: Group) -> str:
    return (
        comparison.epsilon_text(group) if group.claim == "none" else group.worst("epsilon_central")
    )


def _notes(layout: PaperLayout, groups: Sequence[Group], *, ours_too: bool) -> Iterator[str]:
    if any(_printed(layout, group) for group in groups):
        yield (
            f"In brackets: what the paper prints ({layout.source}), under the privacy that the "
            "paper claims."
        )
    deltas = {value for group in groups for value in finite(group.rows["delta"])}
    if deltas:
        text = ", ".join(f"{delta:g}" for delta in sorted(deltas))
        yield (
            f"ε: what the noise provides for a whole client (central trust) at δ = {text}, the "
            "largest over the seeds."
        )
    yield from comparison.claim_notes(groups)
    yield from comparison.code_notes(groups)
    is_cost = layout.metric in _COSTS
    gain = "" if is_cost else "; ↑ the distance of one that is bold alone to the next"
    yield f"Bold, in its column among rows of the same budget and claim: {BOLD_WORDS}{gain}."
    if any(group.diverged for group in groups):
        yield "† diverged in that round; its scores are counted as they are."
    if ours_too:
        yield "The last rows are ours; the paper's table does not have them."
