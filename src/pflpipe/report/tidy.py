"""The tidy table of a study, one row per cell.

It is computed once from score files, runs and plans. Everything else that shows a number reads it
from ``results/tables/<study>.csv``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe import json_records
from pflpipe.cells import Cell
from pflpipe.code import dependencies
from pflpipe.code.dependencies import PLACEBO, WITHOUT_DEPARTURES
from pflpipe.errors import DataError, counted
from pflpipe.facts.datasets import DATASETS
from pflpipe.files import AGAIN, atomic, intact
from pflpipe.json_records import without_defaults
from pflpipe.learning.metrics import ALWAYS, CONSTANT_ERROR, over_clients
from pflpipe.methods import row_code
from pflpipe.privacy import run_check
from pflpipe.privacy.ledger import Ledger, Planned
from pflpipe.privacy.plan import Plan
from pflpipe.report.comparison import FIRST_METRIC
from pflpipe.simulation.run_record import Record
from pflpipe.study import documents, epsilon_as_published
from pflpipe.study.metric_columns import BEST_ROUND, MetricColumn, columns
from pflpipe.study.settings import model_name
from pflpipe.study.study_spec import Row, Study

_KINDS: dict[str, dict[str, str]] = documents.read_yaml(Path(__file__).with_name("columns.yaml"))
COLUMNS = tuple(_KINDS["common"])
OF_UNITS = tuple(_KINDS["of_units"])
"""Columns of the ledger that only some tables have: the first one where a data set is the user's
own, which may have a word for its users; all where rows of declared users are dealt."""
_TEXT = frozenset(
    name for kinds in _KINDS.values() for name, kind in kinds.items() if kind == "text"
)
"""Columns that are text even if a value looks like a number."""
_LEDGER = [one.name for one in dataclasses.fields(Ledger) if one.name in (*COLUMNS, *OF_UNITS)]
_PARTITION = ("alpha", "classes_per_client", "new_clients")
_TRAINING = ("sample_rate", "rounds", "local_epochs", "batch_size")
_SOLVER = ("optimizer", "lr", "momentum", "weight_decay")
_UNUSUAL = ("augment", "precision", "groups", "band", "buffers", "noise")
"""Options of training and privacy that are named among the hyper-parameters where they differ from
their defaults."""


def tidy(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per cell of the study, in the study's order, with ``COLUMNS`` followed by the
    columns of the study's other metrics and, if it reports it, of the best round.

    Accuracies are percentages, and errors if the study's loss is one of real numbers; seconds are
    wall time of training, infinite epsilons are ``inf``; missing values are ``None``.

    Args:
        results: folder with scores, runs and plans, also those of the methods as published.

    Raises:
        DataError: a result file is incomplete, or a private run deviated from its plan.
    """
    folder = results / "scores" / study.name
    scores = cache(lambda method: pd.read_csv(existing(folder / f"{method}.csv")))
    plans = cache(lambda plan: planned(plan, results))  # cells that differ in their seed share one
    rows = []
    for row in study.rows:
        # One score file holds the clients of all cells of a method.
        clients = scores(row.cell.method)
        clients = clients[clients["cell"] == row.cell.id]
        if clients.empty:
            raise DataError(
                f"scores/{study.name}/{row.cell.method}.csv has no rows for cell {row.cell.id}",
                do="delete that file and run snakemake again",
            )
        rows.append(_record(study, row, clients, results, plans))
    return pd.DataFrame(rows, columns=columns_of(study), dtype=object)


def columns_of(study: Study) -> list[str]:
    """Return ``COLUMNS`` followed by the columns that not every study's table has."""
    best = [BEST_ROUND + study.best_round] if study.best_round else []
    is_dealt = any(cell.partition.users for cell in study.cells)
    is_own = not DATASETS.keys() >= set(study.datasets)
    units = OF_UNITS if is_dealt else OF_UNITS[:is_own]
    scale = [CONSTANT_ERROR] if study.metric.unit != "%" else []
    return list(dict.fromkeys([*COLUMNS, *study.columns, *best, *units, *scale]))


def _record(
    study: Study, row: Row, clients: pd.DataFrame, results: Path, plans: Callable[[str], Planned]
) -> dict[str, Any]:
    cell = row.cell
    folder = results / "runs" / row.run
    timing = pd.read_csv(existing(folder / "timing.csv"))
    plan, ledger = plans(cell.plan_id).plan, plans(cell.plan_id).ledger
    # timing.csv has one line for each round, or it is not this run's.
    if len(timing) != plan.rounds:
        got = counted(len(timing), "round")
        raise DataError(f"{folder}/timing.csv", got=got, expected=str(plan.rounds), do=AGAIN)
    run = record_of(folder, plan, cell)
    code = row_code.of_cell(cell, run.dependencies, study.measured)
    seconds, images = float(timing["seconds"].sum()), float(timing["images"].sum())
    training, partition = cell.training, cell.partition
    solver = {name: getattr(training, name) for name in _SOLVER}
    changed = without_defaults(training) | without_defaults(cell.privacy)
    solver |= {name: changed[name] for name in _UNUSUAL if name in changed}
    if training.loss != "cross_entropy":
        solver |= {"training.loss": training.loss, FIRST_METRIC: next(iter(study.metrics))}
    for block in ("server", "features"):
        values = without_defaults(getattr(cell, block)).items()
        solver |= {f"{block}.{name}": value for name, value in values}
    return {
        "study": study.name,
        "dataset": cell.dataset,
        "partition": partition.kind,
        **{name: getattr(partition, name) for name in _PARTITION},
        "clients": plan.clients,
        **{name: getattr(training, name) for name in _TRAINING},
        "model": model_name(cell),
        "method": cell.method,
        "variant": row.variant or None,
        "hyperparameters": json.dumps(cell.hyperparameters | solver, sort_keys=True),
        "profile": cell.profile,
        **{name: _number(name, getattr(ledger, name)) for name in _LEDGER},
        "claim": PLACEBO if training.placebo else ledger.claim,
        "unit": None if ledger.claim == "none" else ledger.unit,
        "departures": "+".join(cell.departures) or None,
        "epsilon_published": epsilon_as_published.epsilon(cell, plans),
        "epsilon_with_search": row.chosen.epsilon_with_search if row.chosen else None,
        "search_runs": row.chosen.runs if row.chosen else None,
        "search_not_counted": row.chosen.search_not_counted or None if row.chosen else None,
        "seed": cell.seed,
        **averages(clients, study.columns),
        "diverged_round": run.diagnostics.diverged_round,
        "upload_bytes_per_round": run.released.upload_bytes_per_round,
        "train_seconds": seconds,
        "images_per_second": images / seconds if seconds > 0 else None,
        "paper_value": row.paper_value,
        "paper_metric": row.paper_metric,
        "cell": cell.id,
        "nonfinite_uploads": run.diagnostics.nonfinite_uploads,
        "unreviewed_code": dependencies.listed(code) or None,
        "clients_evaluated": json.dumps(evaluated(clients, study.columns)),
        **_best_round(study, ledger.claim, folder),
        **_constant_error(study, clients),
    }


def _best_round(study: Study, claim: str, run: Path) -> dict[str, float]:
    """Return the metric after its best round, which the test data chose; nothing for a row with a
    guarantee, whose number has to hold for data that chose nothing."""
    column, sign = study.best_round, study.metric.sign
    if not column or claim in WITHOUT_DEPARTURES:
        return {}
    values = pd.read_csv(existing(run / "rounds.csv"))[column]
    return {BEST_ROUND + column: sign * float((sign * values).max())}


def _constant_error(study: Study, clients: pd.DataFrame) -> dict[str, float]:
    """Return the error of the own constant on training rows, where the metric is an error."""
    if study.metric.unit == "%":
        return {}
    return {CONSTANT_ERROR: over_clients(clients[CONSTANT_ERROR])}


def planned(plan: str, results: Path) -> Planned:
    """Return a plan and its ledger by its id; raise DataError if the file is missing or damaged."""
    return json_records.load(Planned, existing(results / "plans" / f"{plan}.json"))


def record_of(folder: Path, plan: Plan, cell: Cell) -> Record:
    """Return the record of the run in a folder.

    Args:
        plan, cell: of the run.

    Raises:
        DataError: there is no record, the run was trained with other code than the cell has, or a
            private run deviated from its plan.
    """
    path = existing(folder / "run.json")
    run = json_records.load(Record, path)
    row_code.check_trained(cell, run.dependencies, str(path))
    # A table never shows an epsilon next to a run that released something else than its plan.
    if plan.mechanism != "none":
        run_check.check(
            plan,
            cell.departures,
            str(path),
            releases=run.released.releases,
            uploaded=run.released.uploaded_parameters,
            residuals=run.diagnostics.residuals,
        )
    return run


def averages(
    clients: pd.DataFrame, columns: Mapping[str, MetricColumn] = columns(ALWAYS)
) -> dict[str, float | None]:
    """Return the metrics of one cell from its score rows, one per client of training or new client.

    A column is averaged over the clients that have a value. It is ``None`` if no client has one (no
    global model, no test rows).
    """
    scores = {
        name: clients[column.scores].dropna().to_numpy(float) for name, column in columns.items()
    }
    return {
        name: columns[name].metric.average(values) if len(values) else None
        for name, values in scores.items()
    }


def evaluated(clients: pd.DataFrame, columns: Mapping[str, MetricColumn]) -> dict[str, int]:
    """Return the number of clients over which ``averages`` averages each column, without zeros.
    That of the worst tenth is that of the column from which it is taken."""
    counts = {column.scores: int(clients[column.scores].count()) for column in columns.values()}
    return {name: count for name, count in counts.items() if count}


def existing(path: Path, target: Path | str = "results/tables/all.csv") -> Path:
    """Return the path of a file that exists and is intact.

    Args:
        target: what the error tells Snakemake to make.

    Raises:
        DataError: there is no such file, or it is damaged (``files.intact``).
    """
    if not path.is_file():
        make = "let snakemake make it (after removing a run's folder): snakemake --cores 2"
        raise DataError(f"{path} does not exist", do=f"{make} {target}")
    return intact(path)


def _number(name: str, value: Any) -> Any:
    # A study's file may have ``epsilon: 2``, an integer; the column is float.
    is_float = name.startswith(("epsilon_", "noise_multiplier_")) and value is not None
    return float(value) if is_float else value


def write(frame: pd.DataFrame, target: Path) -> None:
    """Write a tidy table as CSV; floats keep all digits, missing values are empty fields."""
    with atomic(target) as path:
        frame.to_csv(path, index=False, lineterminator="\n")


def read(source: Path) -> pd.DataFrame:
    """Return the frame that ``write`` wrote, equal to the result of ``tidy``.

    Raises:
        DataError: there is no such file, or it has other columns.
    """
    texts = _texts(source)
    columns = {name: [_value(name, text) for text in texts[name]] for name in map(str, texts)}
    return pd.DataFrame(columns, dtype=object)


def tested(study: Study, results: Path) -> Study:
    """Return the study with only those methods all of whose runs are trained and tested.

    Raises:
        DataError: there is no such method.
    """

    def is_tested(method: str) -> bool:
        rows = [row for row in study.rows if row.cell.method == method]
        scores = results / "scores" / study.name / f"{method}.csv"
        return (
            scores.is_file()
            and {row.cell.id for row in rows} <= set(pd.read_csv(scores, usecols=["cell"])["cell"])
            and all((results / "runs" / row.run / "run.json").is_file() for row in rows)
        )

    methods = set(filter(is_tested, study.methods))
    if not methods:
        raise DataError(
            f"study {study.name}: no method is trained and tested",
            do=f"snakemake --cores 2 results/tables/{study.name}.csv",
        )
    return of_cells(study, (cell.id for cell in study.cells if cell.method in methods))


def of_cells(study: Study, cells: Iterable[str]) -> Study:
    """Return the study with only the rows of these cells, given by their ids."""
    ids = set(cells)
    return dataclasses.replace(study, rows=tuple(row for row in study.rows if row.cell.id in ids))


def stored(study: Study, results: Path) -> pd.DataFrame:
    """Return the frame of ``results/tables/<study>.csv``, with a row for each of the study's rows.

    Raises:
        DataError: there is no such file, or it is of another version of the study or of pflpipe.
    """
    source = results / "tables" / f"{study.name}.csv"
    frame = read(source)
    cells = [row.cell.id for row in study.rows]
    if (list(frame), list(frame["cell"])) != (columns_of(study), cells):
        raise DataError(
            f"{source} is a table of another version of the study",
            do="delete that file and run snakemake again",
        )
    return frame


def join(sources: Sequence[Path], target: Path) -> None:
    """Concatenate tidy tables as text, in the order given; a metric that a study lacks is empty in
    its rows. Raises DataError for a file with other columns."""
    write(pd.concat(map(_texts, sources)), target)


def _texts(source: Path) -> pd.DataFrame:
    # As text: pandas would turn integers into floats where a column has missing values, and the
    # method or data set "nan" into a missing value.
    frame = pd.read_csv(existing(source), dtype=str, keep_default_na=False)
    if tuple(frame.columns[: len(COLUMNS)]) != COLUMNS:
        raise DataError(
            f"{source} has other columns than this version writes",
            got=[name for name in frame if name not in COLUMNS] or "missing or reordered columns",
            do="delete that file and run snakemake again",
        )
    return frame


def _value(name: str, text: str) -> Any:
    if name in _TEXT or not text:
        return text or None
    try:
        return int(text)
    except ValueError:
        return float(text)
