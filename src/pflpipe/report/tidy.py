"""The tidy table of a study: one row per cell, made of score files, runs and plans once, and read
from ``results/tables/<study>.csv`` by everything else that shows a number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe import records
from pflpipe.cells import without_defaults
from pflpipe.errors import DataError
from pflpipe.files import AGAIN, atomic, intact
from pflpipe.learning.metrics import ALWAYS
from pflpipe.privacy import executed
from pflpipe.privacy.ledger import Ledger, Planned
from pflpipe.privacy.plan import Plan
from pflpipe.simulation.record import Record
from pflpipe.study import epsilon_as_published
from pflpipe.study.metrics import MetricColumn, columns
from pflpipe.study.settings import model_name
from pflpipe.study.study_spec import Row, Study

# fmt: off
COLUMNS = (
    "study", "dataset", "partition", "alpha", "classes_per_client", "clients", "sample_rate",
    "rounds", "local_epochs", "batch_size", "model", "method", "variant", "hyperparameters",
    "profile", "claim", "departures", "adjacency", "epsilon_target", "epsilon_nominal",
    "epsilon_central", "epsilon_central_1e5", "epsilon_local", "epsilon_rdp", "delta",
    "noise_multiplier", "clip_norm", "seed", "personal_own", "personal_own_worst_decile",
    "personal_common", "global_own", "global_common", "diverged_round", "upload_bytes_per_round",
    "train_seconds", "images_per_second", "paper_value", "paper_metric", "cell", "trust",
    "sampling", "releases_per_round", "noise_multiplier_effective", "noise_multiplier_message",
    "noise_multiplier_weighted", "noise_multiplier_group", "epsilon_rdp_1e5", "epsilon_local_1e5",
    "epsilon_replace_one", "epsilon_replace_one_1e5", "epsilon_published", "epsilon_with_search",
    "search_runs", "clip_quantile", "clip_bit_noise", "noise_multiplier_update", "new_clients",
    "personal_new", "global_new", "nonfinite_uploads", "epsilon_local_replace_one",
    "epsilon_local_replace_one_1e5",
)
# fmt: on
_WORDS = frozenset(
    {
        *("study", "dataset", "partition", "model", "method", "variant", "hyperparameters"),
        *("profile", "claim", "departures", "adjacency", "paper_metric", "cell", "trust"),
        "sampling",
    }
)
"""Columns that are text even where they look like a number."""
_LEDGER = [one.name for one in dataclasses.fields(Ledger) if one.name in COLUMNS]
_PARTITION = ("alpha", "classes_per_client", "new_clients")
_TRAINING = ("sample_rate", "rounds", "local_epochs", "batch_size")
_SOLVER = ("optimizer", "lr", "momentum", "weight_decay")


def tidy(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per cell of the study, in the study's order, with ``COLUMNS`` and behind them
    the columns of the study's other metrics.

    Reads scores, runs and plans below ``results``, those of the methods as published among them.
    Accuracies are percentages, seconds are wall time of training, infinite epsilons are ``inf``;
    what does not exist is ``None``. Raises DataError when a result file lacks what it should hold,
    or when a private run did something else than its plan says.
    """
    folder = results / "scores" / study.name
    scores = cache(lambda method: pd.read_csv(existing(folder / f"{method}.csv")))
    plans = cache(
        lambda plan: records.load(Planned, existing(results / "plans" / f"{plan}.json"))
    )  # one for the cells of all seeds
    rows = []
    for row in study.rows:
        clients = scores(row.cell.method)
        clients = clients[clients["cell"] == row.cell.id]
        if clients.empty:
            raise DataError(
                f"scores/{study.name}/{row.cell.method}.csv has no rows for cell {row.cell.id}",
                do="delete that file and run snakemake again",
            )
        rows.append(_record(study, row, clients, results, plans))
    return pd.DataFrame(rows, columns=_columns(study), dtype=object)


def _columns(study: Study) -> list[str]:
    return list(dict.fromkeys([*COLUMNS, *study.columns]))


def _record(
    study: Study,
    row: Row,
    clients: pd.DataFrame,
    results: Path,
    plans: Callable[[str], Planned],
) -> dict[str, Any]:
    cell = row.cell
    folder = results / "runs" / row.run
    timing = pd.read_csv(existing(folder / "timing.csv"))
    planned = plans(cell.plan_id)
    plan, ledger = planned.plan, planned.ledger
    if len(timing) != plan.rounds:
        got = f"{len(timing)} rounds"
        raise DataError(f"{folder}/timing.csv", got=got, expected=str(plan.rounds), do=AGAIN)
    run = record_of(folder, plan, cell.departures)
    seconds, images = float(timing["seconds"].sum()), float(timing["images"].sum())
    training, partition = cell.training, cell.partition
    solver = {name: getattr(training, name) for name in _SOLVER}
    solver |= {"augment": training.augment} if training.augment else {}
    solver |= {"precision": training.precision} if training.precision != "float32" else {}
    solver |= {f"server.{name}": value for name, value in without_defaults(cell.server).items()}
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
        "departures": "+".join(cell.departures) or None,
        "epsilon_published": epsilon_as_published.epsilon(cell, plans),
        "epsilon_with_search": row.chosen.epsilon_with_search if row.chosen else None,
        "search_runs": row.chosen.runs if row.chosen else None,
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
    }


def record_of(folder: Path, plan: Plan, departures: Collection[str]) -> Record:
    """Return the record of the run in a folder.

    Args:
        plan, departures: of the run's cell.

    Raises:
        DataError: there is none, or a private run did something else than its plan says.
    """
    path = existing(folder / "run.json")
    run = records.load(Record, path)
    if plan.mechanism != "none":
        executed.check(
            plan,
            departures,
            str(path),
            releases=run.released.releases,
            uploaded=run.released.uploaded_parameters,
            residuals=run.diagnostics.residuals,
        )
    return run


def averages(
    clients: pd.DataFrame, columns: Mapping[str, MetricColumn] = columns(ALWAYS)
) -> dict[str, float | None]:
    """Return the metrics of one cell from its score rows, one per client, new ones among them.

    A column is averaged over the clients that have a value, those of training or new ones. One in
    which no client has a value (no global model, no test rows) is ``None``.
    """
    values = {
        name: clients[column.scores].dropna().to_numpy(float) for name, column in columns.items()
    }
    return {
        name: columns[name].metric.average(known) if len(known) else None
        for name, known in values.items()
    }


def existing(path: Path, target: Path | str = "results/tables/all.csv") -> Path:
    """Return the path. Raises DataError when there is no such file (a script that was called before
    its inputs were made), or it is damaged (``files.intact``).

    Args:
        target: of the command that makes it.
    """
    if not path.is_file():
        make = "let snakemake make it (after removing a run's folder): snakemake --cores 2"
        raise DataError(f"{path} does not exist", do=f"{make} {target}")
    return intact(path)


def _number(name: str, value: Any) -> Any:
    # An epsilon is a float, whatever a study's file has.
    is_float = name.startswith(("epsilon_", "noise_multiplier_")) and value is not None
    return float(value) if is_float else value


def write(frame: pd.DataFrame, target: Path) -> None:
    """Write what ``tidy`` made as CSV; floats keep all their digits, what does not exist is
    empty."""
    with atomic(target) as path:
        frame.to_csv(path, index=False, lineterminator="\n")


def read(source: Path) -> pd.DataFrame:
    """Return the frame that ``write`` wrote, equal to what ``tidy`` made.

    Raises:
        DataError: there is no such file, or it has other columns.
    """
    texts = _texts(source)
    columns = {name: [_value(name, text) for text in texts[name]] for name in map(str, texts)}
    return pd.DataFrame(columns, dtype=object)


def finished(study: Study, results: Path) -> Study:
    """Return the study of those of its methods all of whose runs are trained and tested.

    Raises:
        DataError: there is no such method.
    """

    def is_finished(method: str) -> bool:
        rows = [row for row in study.rows if row.cell.method == method]
        scores = results / "scores" / study.name / f"{method}.csv"
        return (
            scores.is_file()
            and {row.cell.id for row in rows} <= set(pd.read_csv(scores, usecols=["cell"])["cell"])
            and all((results / "runs" / row.run / "run.json").is_file() for row in rows)
        )

    methods = set(filter(is_finished, study.methods))
    if not methods:
        raise DataError(
            f"study {study.name}: no method is trained and tested",
            do=f"snakemake --cores 2 results/tables/{study.name}.csv",
        )
    return of_cells(study, (cell.id for cell in study.cells if cell.method in methods))


def of_cells(study: Study, cells: Iterable[str]) -> Study:
    """Return the study of those of its rows whose cells are named."""
    named = set(cells)
    return dataclasses.replace(study, rows=tuple(row for row in study.rows if row.cell.id in named))


def stored(study: Study, results: Path) -> pd.DataFrame:
    """Return the frame of ``results/tables/<study>.csv``, with a row for each of the study's rows.

    Raises:
        DataError: there is no such file, or it is of another version of the study or of pflpipe.
    """
    source = results / "tables" / f"{study.name}.csv"
    frame = read(source)
    cells = [row.cell.id for row in study.rows]
    if (list(frame), list(frame["cell"])) != (_columns(study), cells):
        raise DataError(
            f"{source} is a table of another version of the study",
            do="delete that file and run snakemake again",
        )
    return frame


def join(sources: Sequence[Path], target: Path) -> None:
    """Concatenate tidy tables, byte for byte, in the order given; a metric that a study does not
    have is empty in its rows. Raises DataError for a file with other columns."""
    write(pd.concat(map(_texts, sources)), target)


def _texts(source: Path) -> pd.DataFrame:
    frame = pd.read_csv(existing(source), dtype=str, keep_default_na=False)
    if tuple(frame.columns[: len(COLUMNS)]) != COLUMNS:
        raise DataError(
            f"{source} has other columns than this version writes",
            got=[name for name in frame if name not in COLUMNS] or "missing or reordered columns",
            do="delete that file and run snakemake again",
        )
    return frame


def _value(name: str, text: str) -> Any:
    if name in _WORDS or not text:
        return text or None
    try:
        return int(text)
    except ValueError:
        return float(text)
