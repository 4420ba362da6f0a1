"""A study's search: the values of each method that are best on validation data, and the privacy
cost of the search.

For every method entry and every point of the study's axes it chooses the candidate whose personal
models are best on validation rows by the search's metric, averaged over clients and then over
seeds; among equals the first in the file. A private search compares the noised scores of single
trials instead, and its file keeps nothing of those that lost. The final runs have other seeds.
Where each seed deals the rows anew, they have other clients, and no epsilon counts both.
"""

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe import json_records
from pflpipe.cells import Cell
from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.files import write_json
from pflpipe.learning.metrics import Metric
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Planned
from pflpipe.privacy.private_search import PrivateSearch
from pflpipe.seeds import release_rng
from pflpipe.study import metric_columns, ranking
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Candidate, Chosen, Line, Outline, Row

OTHER_CLIENTS = (
    "each seed deals the rows to other clients, so those of one client lay with many clients of "
    "the search, and nothing public bounds how many"
)
"""Why there is no epsilon of a run with the search before it, unless users are the clients."""


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
    metric, private = outline.metrics[outline.criterion], outline.private_search
    column = metric_columns.column(outline.metrics, outline.criterion, ranking.VALIDATION)
    first = next(iter(outline.metrics.values()))

    @functools.cache
    def answers(method: str, column: str) -> Mapping[str, np.ndarray]:
        path = results / "scores" / outline.name / "search" / f"{method}.csv"
        return ranking.answers(path, outline.name, column)

    def mean(candidate: Candidate, column: str, metric: Metric) -> float:
        by_cell = answers(candidate.rows[0].cell.method, column)
        found = (ranking.score(by_cell, row.cell) for row in candidate.trials)
        return statistics.fmean(map(metric.average, found))

    choices, lines = [], []
    for line in outline.searched:
        if private:
            of = answers(line.method, column)
            values = [_released(candidate, of, private) for candidate in line.candidates]
            index = values.index(max(values))
        else:
            values = [mean(candidate, column, metric) for candidate in line.candidates]
            # `index` returns the first of equal means.
            index = values.index(max(values, key=lambda value: metric.sign * value))
        best = line.candidates[index]
        facts = _cost(line, best, results, private)
        if answers(line.method, "global_validation") and not private:
            facts["global_validation"] = mean(best, "global_validation", first)
        runs = None if private else len(_runs(line))
        choices.append(Chosen(index, best.values, len(line.candidates), runs, **facts))
        tried = [
            {"values": c.values, column: value, "cells": [row.cell.id for row in c.trials]}
            for c, value in zip(() if private else line.candidates, values, strict=not private)
        ]
        lines.append(_record(line, choices[-1], private) | {"candidates": tried})
    write_json(target, {"study": outline.name, "grid": outline.grid, "lines": lines})
    return choices


def _released(
    candidate: Candidate, answers: Mapping[str, np.ndarray], private: PrivateSearch
) -> float:
    """Return the best noised score of a candidate's trials; minus infinity if none tried it."""
    found = ((row, ranking.score(answers, row.cell) / 100) for row in candidate.trials)
    return max((released_score(row, of, private) for row, of in found), default=-math.inf)


def released_score(row: Row, accuracies: np.ndarray, private: PrivateSearch) -> float:
    """Return the noised score of a trial, of its clients' validation accuracies in [0, 1]."""
    # Cells that share a training run have separate scores, hence separate noise.
    return private.score(accuracies, release_rng(row.key, "score", row.cell.id))


def _record(line: Line, chosen: Chosen, private: PrivateSearch | None) -> dict[str, Any]:
    best, plans = line.candidates[chosen.index], collections.Counter[str]()
    plans.update(cell.plan_id for cell in _runs(line).values())
    return {
        "line": line.words,
        "rows": [row.cell.id for row in best.rows],
        # What else a private search tried, and how often, stays unknown.
        "plans": {best.trials[0].cell.plan_id: None} if private else plans,
        "private": private and dataclasses.asdict(private),
        "chosen": dataclasses.asdict(chosen),
        "edges": line.edges(chosen.values),
    }


def _runs(line: Line) -> dict[str, Cell]:
    """Return key -> cell for the training runs of a search; cells may share a run."""
    return {row.key: row.cell for candidate in line.candidates for row in candidate.trials}


def _cost(
    line: Line, best: Candidate, results: Path, private: PrivateSearch | None
) -> dict[str, Any]:
    """Return the epsilon of a run with the best values, alone and together with the search, or why
    nothing counts both; empty if a plan has departures or no privacy.

    Candidates that share a training run share its release, which costs once. A certified plan does
    not depend on the seed. The final run therefore has the plan of the best candidate, unless the
    search has a budget of its own.
    """
    if not {candidate.tried.claim for candidate in line.candidates} <= set(WITHOUT_DEPARTURES):
        return {}
    runs = {best.trials[0].key: best.trials[0].cell} if private else _runs(line)
    files = {cell.plan_id: results / "plans" / f"{cell.plan_id}.json" for cell in runs.values()}
    plans = {name: json_records.load(Planned, file).plan for name, file in files.items()}
    # A private search has one plan, and the best candidate one of its trials.
    tried, cell = plans[best.trials[0].cell.plan_id], best.rows[0].cell
    # Without a number of clients, the plan of the search has counted all users.
    counted = dataclasses.replace(cell.partition, clients=tried.clients)
    final = plans.get(cell.plan_id) or plan_of(dataclasses.replace(cell, partition=counted)).plan
    assert final.delta is not None
    alone = {"epsilon": accounting.epsilon(final, final.delta), "delta": final.delta}
    if {one.clients_id for one in runs.values()} != {cell.clients_id}:
        return alone | {"search_not_counted": OTHER_CLIENTS}
    if private:
        with_search = private.epsilon(tried, final, final.delta)
    else:
        searched = [plans[cell.plan_id] for cell in runs.values()]
        with_search = accounting.composed_epsilon([*searched, final], final.delta)
    return alone | {"epsilon_with_search": with_search}
