"""``docs/results/<study>/``: a study as small CSV files, of which every number of its page is
made, without ``results/``.

A large study comes method by method, from machines that come and go: what is finished is written,
and methods that are no longer at hand stay as they were.

- ``about.json``: title, description, caption, where, with what and when it was measured, and which
  methods are still missing.
- ``runs.csv``: one line per run: who was compared, what holds, the means over clients, the cost.
  ``global_validation`` is what its released model reached on validation rows: in the search that
  chose its hyper-parameters, on other seeds; in the run itself where the study has no search.
- ``scores/<method>.csv``: one line per client, one column per run: how many of its own test rows
  the personal model of the client has right. A count is exact and three characters long where a
  percentage takes seventeen. Lines of clients who were not in training are called ``new0`` ...
- ``partitions/<id>.csv``: what the clients of a split hold: training examples, own test rows, the
  effective number of classes, exp of the entropy of the training labels: 1 for a single class, K
  for K classes in equal parts, and how many of the own test rows belong to the majority class of
  the training examples: who always says that class has these right.
- ``curves.csv``: one line per evaluated round, one column per run: the mean over clients.
- ``former.csv``, of a study that was trained again: line, budget, claim, seed, ``personal_own`` and
  ``global_own`` of the ``runs.csv`` that was there before. Nothing writes it but a person.

Clients of different splits have the same number and nothing else in common. The means in
``runs.csv`` are held against the counts whenever they are read. Like all measurements these are
diagnostics, covered by no epsilon; a study of people whose records are secret is not to be
committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflpipe import records
from pflpipe.data.partition import Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import atomic, write_json
from pflpipe.report.comparison import METRICS
from pflpipe.report.summary import caption
from pflpipe.report.tidy import existing, finished, of_cells, tidy
from pflpipe.study.settings import heading, layout
from pflpipe.study.study_spec import Study

SETTING = ("clients", "test_fraction")
"""Of a partition, what may vary in a study that is committed, besides the budget."""
VALIDATION = "global_validation"
RUN_COLUMNS = (
    *("line", "method", "budget", "claim", "adjacency", "epsilon_nominal", "epsilon_central"),
    *("delta", "seed", "cell", "partition", *SETTING, "sample_rate", "rounds", *METRICS),
    *(VALIDATION, "diverged_round", "upload_bytes_per_round", "train_seconds"),
)
HELD_COLUMNS = ("client", "train_size", "test_size", "classes", "majority")
_DIGITS = 4  # of a percentage: a ten-thousandth of a percent point is less than one right answer
_TO_MAKE = "remove that folder and make it again: make results STUDY={}"


@dataclass(frozen=True)
class About:
    """What is said of a study as a whole.

    Attributes:
        title, description: of the study's file.
        caption: of its table.
        measured: by method, a sentence for every way in which its runs were trained: machine,
            versions, commit, date, seconds of all runs that came with these and were trained so.
        runs: a comment that changes whenever the runs or their code would be others.
        missing: methods of which runs are not there yet.
    """

    title: str
    description: str
    caption: str
    measured: dict[str, str]
    runs: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """A study as it was committed.

    Attributes:
        runs: ``RUN_COLUMNS``, one row per run in the study's order.
        correct: right answers, clients x cells; NaN where a client has no test rows.
        held: by id of the partition, ``HELD_COLUMNS`` by client.
        curves: percent, rounds x cells; NaN where a run was not evaluated.
    """

    name: str
    about: About
    runs: pd.DataFrame
    correct: pd.DataFrame
    held: Mapping[str, pd.DataFrame]
    curves: pd.DataFrame

    @cached_property
    def percent(self) -> pd.DataFrame:
        """The personal accuracies in percent, clients x cells; NaN where a client has no test
        rows."""
        parts = []
        for name, cells in self.runs.groupby("partition")["cell"]:
            sizes = self.held[str(name)]["test_size"].reindex(self.correct.index)
            parts.append((100 * self.correct[list(cells)]).div(sizes, axis=0))
        return pd.concat(parts, axis=1)


def export(
    study: Study,
    results: Path,
    data: Path,
    folder: Path,
    measured: Mapping[str, str],
    runs: str,
) -> None:
    """Write ``folder`` from what a study's results hold: its finished methods. Other methods of the
    study that are in the folder stay; scores and partitions that nothing belongs to are removed,
    anything else there stays.

    Args:
        study: with all of its rows.
        results, data: the folders of config.yaml.
        measured: by cell of these methods, where it was measured.
        runs: of ``About``.

    Raises:
        ConfigError: something else than the budget and ``SETTING`` varies over all methods, which
            a page of results has no place for.
        DataError: no method is finished, or the folder is of another version.
    """
    lines = dict(zip((cell.id for cell in study.cells), _lines(study), strict=True))
    part = finished(study, results)
    tables = _tables(part, lines, results, data)
    kept: set[str] = set(tables)
    ways: dict[str, dict[str, None]] = {}
    for cell in part.cells:
        ways.setdefault(cell.method, {})[measured[cell.id]] = None
    told = {method: " ".join(sentences) for method, sentences in ways.items()}
    if (folder / "about.json").is_file():
        before = read(folder)
        others = {cell.id for cell in study.cells if cell.method not in part.methods}
        stay = before.runs[before.runs["cell"].isin(others)]
        if not stay.empty:
            kept |= {f"scores/{name}.csv" for name in stay["method"]}
            kept |= {f"partitions/{name}.csv" for name in stay["partition"]}
            told |= {name: before.about.measured[name] for name in stay["method"]}
            curves = (before.curves, tables["curves.csv"].set_index("round"))
            tables["curves.csv"] = _joined(
                (cell, frame[cell].dropna())
                for cell in (cell.id for cell in study.cells)
                for frame in curves
                if cell in frame
            ).sort_values("round")
            tables["runs.csv"] = pd.concat([stay, tables["runs.csv"]])
    rows = tables["runs.csv"].set_index("cell", drop=False)
    there = of_cells(study, rows.index)
    tables["runs.csv"] = rows = rows.loc[[cell.id for cell in there.cells]]
    for path in (*folder.glob("scores/*.csv"), *folder.glob("partitions/*.csv")):
        if path.relative_to(folder).as_posix() not in kept:
            path.unlink()
    for name, table in tables.items():
        _write(folder / name, table)
    about = About(
        title=study.title,
        description=study.description.strip(),
        caption=caption(there, rows),
        measured={name: told[name] for name in there.methods},
        runs=runs,
        missing=tuple(
            dict.fromkeys(cell.method for cell in study.cells if cell.id not in rows.index)
        ),
    )
    write_json(folder / "about.json", records.to_json(about))


def _tables(
    part: Study, lines: Mapping[str, tuple[str, str]], results: Path, data: Path
) -> dict[str, pd.DataFrame]:
    """Return the CSV files of the finished methods, by name.

    Args:
        lines: line and budget of every cell.
    """
    scores = {
        method: pd.read_csv(
            existing(results / "scores" / part.name / f"{method}.csv"), dtype={"client": str}
        ).set_index("client")
        for method in part.methods
    }
    rows = tidy(part, results).assign(
        line=[lines[cell.id][0] for cell in part.cells],
        budget=[lines[cell.id][1] for cell in part.cells],
        partition=[cell.partition_id for cell in part.cells],
        test_fraction=np.array([cell.partition.test_fraction for cell in part.cells], float),
        global_validation=_validated(part, scores),
    )
    partitions = {cell.partition_id: cell for cell in part.cells}
    tables: dict[str, pd.DataFrame] = {"runs.csv": rows[list(RUN_COLUMNS)]}
    for name, cell in partitions.items():
        split = Split.load(existing(results / "partitions" / f"{name}.npz"))
        with np.load(existing(data / f"{cell.dataset}.npz"), allow_pickle=False) as arrays:
            labels, test_labels = arrays["train_labels"], arrays["test_labels"]
        tables[f"partitions/{name}.csv"] = _held(split, labels, test_labels)
    for method in part.methods:
        cells = [cell for cell in part.cells if cell.method == method]
        own = scores[method]
        tables[f"scores/{method}.csv"] = _joined(
            (cell.id, _correct(own[own["cell"] == cell.id], tables, cell.partition_id))
            for cell in cells
        )
    tables["curves.csv"] = _joined(
        (row.cell.id, _curve(results / "runs" / row.run)) for row in part.rows
    ).sort_values("round")
    return tables


def _validated(part: Study, scores: Mapping[str, pd.DataFrame]) -> np.ndarray:
    """Return the validation accuracy of the released model of every row, from the search alone
    where the study has one: rows of a choice are of one kind."""
    if any(row.chosen for row in part.rows):
        found = [row.chosen.global_validation if row.chosen else None for row in part.rows]
        return np.array(found, float)
    means = pd.concat(scores.values()).groupby("cell")[VALIDATION].mean()
    return means[[cell.id for cell in part.cells]].to_numpy(float)


def _lines(study: Study) -> list[tuple[str, str]]:
    """Return line and budget of every row."""
    plan = layout(study)
    known = {heading(f"partition.{name}") for name in SETTING}
    if any(facet.keys() - known for facet in plan.facets):
        panels = "; ".join(setting.facet_text for setting in plan.settings[:2])
        raise ConfigError(
            f"study {study.name}: several conditions besides the budget",
            got=panels,
            expected="no other axes than the number of clients and partition.test_fraction",
            do="make a study of each condition",
        )
    found = {
        index: (setting.label, setting.budget)
        for setting in plan.settings
        for index in setting.indices
    }
    return [found[index] for index in range(len(study.rows))]


def _held(split: Split, labels: np.ndarray, test_labels: np.ndarray) -> pd.DataFrame:
    """Return ``HELD_COLUMNS``, one row per client, from the labels of the training arrays and of
    the test arrays."""
    rows = []
    own_labels = labels if split.own_from_train else test_labels
    for prefix, part in (("", split), ("new", split.new)):
        for client, train in enumerate(part.train if part else ()):
            assert part
            counts = np.bincount(labels[train], minlength=1)
            shares = counts[counts > 0] / max(len(train), 1)
            classes = round(float(np.exp(-(shares * np.log(shares)).sum())), 2)
            own = part.test[client]
            of_majority = int((own_labels[own] == counts.argmax()).sum())
            known = (classes, of_majority) if len(train) else (0, 0)
            rows.append((f"{prefix}{client}", len(train), len(own), *known))
    return pd.DataFrame(rows, columns=list(HELD_COLUMNS))


def _correct(
    scores: pd.DataFrame, tables: Mapping[str, pd.DataFrame], partition: str
) -> pd.Series[Any]:
    # A client has a value in one of the two columns, or none.
    percent = scores["personal_own"].fillna(scores["personal_new"])
    sizes = tables[f"partitions/{partition}.csv"].set_index("client")["test_size"]
    return (percent * sizes.loc[percent.index] / 100).round().astype("Int64")


def _curve(run: Path) -> pd.Series[Any]:
    rounds = pd.read_csv(existing(run / "rounds.csv"), index_col="round")["personal_own"]
    return rounds.dropna().round(_DIGITS)


def _joined(columns: Iterable[tuple[str, pd.Series[Any]]]) -> pd.DataFrame:
    found = dict(columns)
    table: pd.DataFrame = pd.concat(list(found.values()), axis=1, keys=list(found), sort=False)
    return table.copy().reset_index()  # of one piece: a frame of 300 columns warns otherwise


def _write(path: Path, table: pd.DataFrame) -> None:
    measured = [name for name in (*METRICS, VALIDATION, "train_seconds") if name in table]
    rounded = table.assign(**{name: table[name].astype(float).round(_DIGITS) for name in measured})
    with atomic(path) as temporary:
        rounded.to_csv(temporary, index=False, lineterminator="\n")


def read(folder: Path) -> Archive:
    """Return what ``export`` wrote.

    Raises:
        DataError: a file is missing or has other columns, runs or clients than it should, or
            ``runs.csv`` says something else than the counts.
    """
    runs = _read(folder, "runs.csv", index=None)
    _check_columns(folder, "runs.csv", runs, RUN_COLUMNS)
    about = records.load(About, _existing(folder, "about.json"))
    held = {
        name: _read(folder, f"partitions/{name}.csv", "client")
        for name in runs["partition"].unique()
    }
    for name, frame in held.items():
        _check_columns(folder, f"partitions/{name}.csv", frame.reset_index(), HELD_COLUMNS)
    scores = [_read(folder, f"scores/{name}.csv", "client") for name in runs["method"].unique()]
    correct = pd.concat(scores, axis=1, sort=False)
    curves = _read(folder, "curves.csv", "round")
    found = Archive(folder.name, about, runs, correct, held, curves)
    _check(found, folder)
    return found


def _existing(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DataError(f"{folder / name} does not exist", do=_TO_MAKE.format(folder.name))
    return folder / name


def _read(folder: Path, name: str, index: str | None) -> pd.DataFrame:
    types: Any = {"client": str, "line": str}
    return pd.read_csv(
        _existing(folder, name), index_col=index, dtype=types, float_precision="round_trip"
    )


def _check_columns(folder: Path, name: str, table: pd.DataFrame, known: tuple[str, ...]) -> None:
    if tuple(table.columns) != known:
        raise DataError(
            f"{folder / name} has other columns than this version reads",
            do=_TO_MAKE.format(folder.name),
        )


def majority(study: Archive) -> list[float]:
    """Return for every split what clients in training with test rows have on average who always say
    the majority class of their training examples, in percent: what knowing one's own mix of classes
    is worth, without looking at an example."""
    found = []
    for held in study.held.values():
        own = held[~is_new(held.index)]
        found.append(100 * float((own["majority"] / own["test_size"]).mean()))  # 0 / 0 is skipped
    return found


def is_new(clients: pd.Index[str]) -> np.ndarray:
    """Return for every client whether it took no part in training."""
    return np.asarray(clients.str.startswith("new"), bool)


def _check(study: Archive, folder: Path) -> None:
    """Compare the means of ``runs.csv`` with those of the counts."""
    for what in _lacking(study):
        raise DataError(f"{folder}: {what}", do=_TO_MAKE.format(folder.name))
    new = is_new(study.percent.index)
    own, strangers = study.percent[~new], study.percent[new]
    worst = METRICS["personal_own_worst_decile"].metric.average
    counted = {
        "personal_own": own.mean(),
        "personal_own_worst_decile": own.apply(lambda values: worst(values.dropna().to_numpy())),
        "personal_new": strangers.mean(),
    }
    for name, means in counted.items():
        for run, mean in zip(study.runs.itertuples(), means[study.runs["cell"]], strict=True):
            said = float(getattr(run, name))
            if math.isnan(said) != math.isnan(mean) or abs(mean - said) > 10.0**-_DIGITS:
                raise DataError(
                    f"{folder}: {name} of {run.cell}",
                    got=said,
                    expected=f"{mean}, as scores/{run.method}.csv has it",
                    do=_TO_MAKE.format(folder.name),
                )


def _lacking(study: Archive) -> Iterator[str]:
    """Yield what of the counts of its runs, and of what their clients hold, is not there."""
    for run in study.runs.itertuples():
        if run.cell not in study.correct:
            yield f"scores/{run.method}.csv lacks {run.cell!r}"
            continue
        clients = study.correct[run.cell].dropna().index
        for client in clients.difference(study.held[str(run.partition)].index):
            yield f"partitions/{run.partition}.csv lacks {client!r}"
