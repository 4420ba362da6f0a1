"""A study's search: the values of each method that are best on validation data, and the privacy
cost of the search.

For every method entry and every point of the study's axes it chooses the candidate whose personal
models are best on validation rows by the search's metric, averaged over clients and then over
seeds; among equals the first in the file. The final runs have other seeds.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pflpipe import records
from pflpipe.cells import WITHOUT_DEPARTURES, Cell
from pflpipe.files import write_json
from pflpipe.learning.metrics import ACCURACY, Metric
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
        target: the file. ``load.chosen`` reads ``grid`` and the ``chosen`` of every line, and a
            certificate ``rows``, the cells that follow, and ``plans``, the runs of the search by
            their plan; the rest is for readers.

    Returns:
        the choice for each line.

    Raises:
        DataError: a score file or a run in it is missing, or no client has validation examples.
    """
    metric = outline.metrics[outline.criterion]
    column = metrics.column(outline.criterion, ranking.VALIDATION)

    @functools.cache
    def scores(method: str, column: str, metric: Metric) -> Mapping[str, float]:
        path = results / "scores" / outline.name / "search" / f"{method}.csv"
        return ranking.means(path, outline.name, column, metric)

    choices, lines = [], []
    for line in outline.searched:
        by_cell = scores(line.method, column, metric)
        means = [
            statistics.fmean(ranking.score(by_cell, row.cell) for row in candidate.trials)
            for candidate in line.candidates
        ]
        # `index` returns the first of equal means.
        index = means.index(max(means, key=lambda mean: metric.sign * mean))
        best, runs = line.candidates[index], _runs(line)
        facts = _cost(line, best, results)
        released = scores(line.method, "global_validation", outline.metrics[ACCURACY])
        if released:
            facts["global_validation"] = statistics.fmean(
                ranking.score(released, row.cell) for row in best.trials
            )
        choices.append(Chosen(index, best.values, len(line.candidates), len(runs), **facts))
        lines.append(_record(line, choices[-1], column, means))
    write_json(target, {"study": outline.name, "grid": outline.grid, "lines": lines})
    return choices


def _record(line: Line, chosen: Chosen, column: str, means: Sequence[float]) -> dict[str, Any]:
    return {
        "line": line.words,
        "rows": [row.cell.id for row in line.candidates[chosen.index].rows],
        "plans": collections.Counter(cell.plan_id for cell in _runs(line).values()),
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
    """Return key -> cell for the training runs of a search; cells may share a run."""
    return {row.key: row.cell for candidate in line.candidates for row in candidate.trials}


def _cost(line: Line, best: Candidate, results: Path) -> dict[str, Any]:
    """Return the epsilon of a run with the best values, alone and together with all runs of the
    search; empty if a plan has departures or no privacy.

    Candidates that share a training run share its release, which costs once. A certified plan does
    not depend on the seed. The final run therefore has the plan of the best candidate, unless the
    search has a budget of its own.
    """
    planned = {
        cell.plan_id: records.load(Planned, results / "plans" / f"{cell.plan_id}.json")
        for cell in (row.cell for candidate in line.candidates for row in candidate.trials)
    }
    if not {one.ledger.claim for one in planned.values()} <= set(WITHOUT_DEPARTURES):
        return {}
    plans = {name: one.plan for name, one in planned.items()}
    tried, cell = plans[best.trials[0].cell.plan_id], best.rows[0].cell
    # Without a number of clients, the plan of the search has counted all users.
    counted = dataclasses.replace(cell.partition, clients=tried.clients)
    final = plans.get(cell.plan_id) or plan_of(dataclasses.replace(cell, partition=counted)).plan
    searched = [plans[cell.plan_id] for cell in _runs(line).values()]
    assert final.delta is not None
    return {
        "epsilon": accounting.epsilon(final, final.delta),
        "epsilon_with_search": accounting.composed_epsilon([*searched, final], final.delta),
        "delta": final.delta,
    }
