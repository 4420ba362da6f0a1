"""A study's search: which values of each method do best on validation data, and what having looked
costs in privacy.

One rule: for every method entry and every point of the study's axes, the candidate whose personal
models are best on validation rows by the search's metric, averaged over clients and then over
seeds; of equals the first in the file. The final runs then have seeds of their own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pflpipe import records
from pflpipe.cells import WITHOUT_DEPARTURES, Cell
from pflpipe.files import write_json
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Planned
from pflpipe.study import metrics, ranking
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Candidate, Chosen, Line, Outline


def write(outline: Outline, results: Path, target: Path) -> list[Chosen]:
    """Choose for every searched line of a study, and write ``results/searches/<study>.json``.

    Args:
        results: folder with ``scores/<study>/search/<method>.csv`` and ``plans/`` of the search's
            runs.
        target: the file; ``config.load_study`` reads ``grid`` and every line's ``chosen``, the rest
            is for people.

    Returns:
        what was chosen, a line each.

    Raises:
        DataError: a score file or a run in it is missing, or no client has validation examples.
    """
    metric = outline.metrics[outline.criterion]
    column = metrics.column(outline.criterion, ranking.VALIDATION)
    scores: dict[str, Mapping[str, float]] = {}
    choices, lines = [], []
    for line in outline.searched:
        method = line.method
        if method not in scores:
            scores[method] = ranking.means(
                results / "scores" / outline.name / "search" / f"{method}.csv",
                outline.name,
                column,
                metric,
            )
        means = [
            statistics.fmean(ranking.score(scores[method], row.cell) for row in candidate.trials)
            for candidate in line.candidates
        ]
        best = means.index(max(means, key=lambda mean: metric.sign * mean))
        choices.append(_choose(line, best, results))
        lines.append(_record(line, choices[-1], column, means))
    write_json(target, {"study": outline.name, "grid": outline.grid, "lines": lines})
    return choices


def _choose(line: Line, index: int, results: Path) -> Chosen:
    best = line.candidates[index]
    chosen = Chosen(index, best.values, len(line.candidates), len(_runs(line)))
    return dataclasses.replace(chosen, **_cost(line, best, results))


def _record(line: Line, chosen: Chosen, column: str, means: Sequence[float]) -> dict[str, Any]:
    return {
        "line": line.words,
        "chosen": dataclasses.asdict(chosen),
        "edges": line.edges(chosen.values),
        "candidates": [
            {
                "values": candidate.values,
                column: mean,
                "cells": [row.cell.id for row in candidate.trials],
            }
            for candidate, mean in zip(line.candidates, means, strict=True)
        ],
    }


def _runs(line: Line) -> dict[str, Cell]:
    """Return the training runs of a search, each by its key, with one of the cells that need it."""
    return {row.key: row.cell for candidate in line.candidates for row in candidate.trials}


def _cost(line: Line, best: Candidate, results: Path) -> dict[str, Any]:
    """Return what a run with the best values guarantees, alone and together with all runs of the
    search.

    Candidates that share a training run share its release, which costs once. A certified plan does
    not depend on the seed, so the best candidate's plan is that of the final run as well, unless
    the search tries at a budget of its own. Nothing is returned where a plan with departures, or
    none, leaves no epsilon of its own to compare with.
    """
    found = {
        cell.plan_id: records.load(Planned, results / "plans" / f"{cell.plan_id}.json")
        for cell in (row.cell for candidate in line.candidates for row in candidate.trials)
    }
    if not {planned.ledger.claim for planned in found.values()} <= set(WITHOUT_DEPARTURES):
        return {}
    plans = {name: planned.plan for name, planned in found.items()}
    tried, cell = plans[best.trials[0].cell.plan_id], best.rows[0].cell
    # All users of a data set, where no number of clients is given, are those of the search.
    counted = dataclasses.replace(cell.partition, clients=tried.clients)
    final = plans.get(cell.plan_id) or plan_of(dataclasses.replace(cell, partition=counted)).plan
    searched = [plans[cell.plan_id] for cell in _runs(line).values()]
    assert final.delta is not None
    return {
        "epsilon": accounting.epsilon(final, final.delta),
        "epsilon_with_search": accounting.composed_epsilon([*searched, final], final.delta),
        "delta": final.delta,
    }
