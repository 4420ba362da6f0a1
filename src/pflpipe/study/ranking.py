"""A study's hyper-parameter sets, ranked by a metric on validation rows (``pflpipe rank``).

Test columns are never read.
"""

import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import yaml

from pflpipe.cells import Cell
from pflpipe.errors import DataError
from pflpipe.files import intact
from pflpipe.study import expansion, metric_columns
from pflpipe.study.settings import budget_text, flatten
from pflpipe.study.study_spec import Chosen, Outline, Study

VALIDATION = "personal_validation"
Value = TypeVar("Value")
_REQUESTED = ("seed", "privacy.epsilon", "privacy.noise_multiplier")
"""Paths that are requested of a method, not chosen for it: sets are averaged over them."""


def lines(study: Study, scores: Path, most: int = 5) -> Iterator[str]:
    """Yield the ranking as text: the sets of each method, best first, with mean and spread over
    seeds and budgets.

    Args:
        study: the expanded study.
        scores: ``results/scores/<study>`` with one CSV per method. Its columns are cell, client,
            and personal_validation (percent) or the metric by which the study's search chooses.
        most: number of sets per method; 0 shows all.

    Raises:
        DataError: a file or a cell is missing, or no client has validation examples.
    """
    metric = study.metrics[study.criterion]
    column = metric_columns.column(study.metrics, study.criterion, VALIDATION)
    entries: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for row in study.rows:
        entries[row.cell.method, row.variant].append(row.cell)
    for (method, variant), cells in entries.items():
        found = answers(scores / f"{method}.csv", study.name, column)
        by_cell = {cell: metric.average(of) for cell, of in found.items()}
        labels = _labels(cells)
        sets: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for cell in cells:
            sets[labels[cell.id]].append((budget_text(cell), score(by_cell, cell)))
        # A stable sort: among equals the first in the file stays first.
        means = {label: statistics.fmean(value for _, value in of) for label, of in sets.items()}
        ranked = sorted(sets.items(), key=lambda item: -metric.sign * means[item[0]])
        yield f"{method} ({variant})" if variant else method
        for label, runs in ranked[: most or None]:
            yield f"  {_summary(runs, 1 + metric.digits)}  {label or 'as the study says'}"
    note = "Choosing by it looks at private data, which no epsilon accounts for."
    yield f"Mean {column} over runs: {metric.described}. {note}"


def chosen(outline: Outline, choices: Collection[Chosen]) -> Iterator[str]:
    """Yield a study's entries with the choices of its search, to be copied into a study without a
    search, and the choices at an edge of their range; nothing without a search."""
    for line, choice in zip(outline.searched, choices, strict=True):
        entry = expansion.chosen_entry(line.entry, choice.values)
        yield f"# chosen for {line.words}"
        # One line for each block, as in a file written by hand.
        text = yaml.safe_dump([entry], default_flow_style=None, sort_keys=False, width=1000)
        yield from text.splitlines()
    yield from edges(outline, choices)


def edges(outline: Outline, choices: Collection[Chosen]) -> Iterator[str]:
    """Yield one line with the chosen values in the outer tenths of their ranges; nothing if the
    search has no ranges."""
    chosen = [
        (edge, f"{line.words}: {path}={choice.values[path]:g} ({edge})")
        for line, choice in zip(outline.searched, choices, strict=True)
        for path, edge in line.edges(choice.values).items()
    ]
    if chosen:
        outer = "; ".join(text for edge, text in chosen if edge)
        yield f"Chosen in the outer tenth of a range: {outer or 'nothing'}"


def answers(path: Path, study: str, column: str) -> Mapping[str, np.ndarray]:
    """Return cell -> the values of the clients that have one, of a column of validation rows. Cells
    without a value are left out.

    Raises:
        DataError: the file is damaged or missing; the message says how to make it for ``study``.
    """
    do = f"run snakemake --cores all results/tables/{study.removesuffix('/search')}.csv"
    DataError.unless(path.exists(), f"{path}: no such file", do=do)
    values: dict[str, list[float]] = defaultdict(list)
    with intact(path).open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            if record[column]:
                values[record["cell"]].append(float(record[column]))
    return {cell: np.array(numbers) for cell, numbers in values.items()}


def score(by_cell: Mapping[str, Value], cell: Cell) -> Value:
    """Return what a cell reached on validation rows.

    Raises:
        DataError: there is none.
    """
    do = "run snakemake again, with partition.validation_fraction above 0"
    DataError.unless(cell.id in by_cell, f"no validation score of {cell.id}", do=do)
    return by_cell[cell.id]


def _labels(cells: list[Cell]) -> dict[str, str]:
    """Return cell -> text of the values in which its hyper-parameter set differs from the method's
    other sets."""
    flat = {cell.id: dict(flatten(cell.to_dict())) for cell in cells}
    keys = [k for k in dict.fromkeys(itertools.chain(*flat.values())) if k not in _REQUESTED]
    varied = [k for k in keys if len({repr(values.get(k)) for values in flat.values()}) > 1]
    return {c: ", ".join(f"{k}={values.get(k)}" for k in varied) for c, values in flat.items()}


def _summary(runs: list[tuple[str, float]], digits: int) -> str:
    values, spread = [value for _, value in runs], ""
    budgets: dict[str, list[float]] = defaultdict(list)
    for budget, value in runs:
        budgets[budget].append(value)
    if len(budgets) > 1:
        parts = (f"{name}: {statistics.fmean(each):.{digits}f}" for name, each in budgets.items())
        spread = f" ({', '.join(parts)})"
    elif len(values) > 1:
        spread = f" ± {statistics.stdev(values):.{digits}f}"
    return f"{statistics.fmean(values):6.{digits}f}{spread}"
