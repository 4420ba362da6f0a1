"""``docs/results/<study>/``: a study as one compressed file, of which every number of its page is
made, without ``results/``.

A large study comes method by method, from machines that come and go: what is finished is written,
and methods that are no longer at hand stay as they were.

- ``about.json``: title, description, caption, where, with what and when it was measured, and which
  methods are still missing.
- ``runs.parquet``: one row per run. ``RUN_COLUMNS`` say who was compared, what holds, the means
  over clients and the cost. ``global_validation`` is what the released model reached on validation
  rows: in the search that chose its hyper-parameters, on other seeds; in the run itself where the
  study has no search. ``change`` says of every client how many of its own test rows its personal
  model has right (``NO_ROWS`` where it has none), less that of the run before of the same split,
  which is much the same and takes less space (``_unsigned``). ``round`` and ``curve`` are the
  evaluated rounds and the mean over clients in each. ``HELD_COLUMNS`` say what the clients of the
  run's split hold; they stand in the first row of every split.

In ``HELD_COLUMNS``, clients who were not in training are called ``new0`` ... ``classes`` is the
effective number of classes, exp of the entropy of the training labels: 1 for a single class, K for
K classes in equal parts. ``majority`` is how many of the own test rows belong to the majority class
of the training examples: who always says that class has these right.

Clients of different splits have the same number and nothing else in common. The means of the runs
are held against the counts whenever they are read. Like all measurements these are diagnostics,
covered by no epsilon; a study of people whose records are secret is not to be committed.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pflpipe import json_records
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import atomic, write_json
from pflpipe.report.comparison import METRICS
from pflpipe.report.summary import caption
from pflpipe.report.tidy import existing, of_cells, tested, tidy
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
FILE, SEARCH = "runs.parquet", "search.json.gz"
COLUMNS = (*RUN_COLUMNS, *HELD_COLUMNS, "change", "round", "curve")
NO_ROWS = -1
_DIGITS = 4  # of a percentage: a ten-thousandth of a percent point is less than one right answer
Column: TypeAlias = "pd.Series[Any]"


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
        searched: by cell the epsilon of its run and of its search together, where that is known.
    """

    name: str
    about: About
    runs: pd.DataFrame
    correct: pd.DataFrame
    held: Mapping[str, pd.DataFrame]
    curves: pd.DataFrame
    searched: Mapping[str, float] = field(default_factory=dict)

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
    study that are in the folder stay.

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
    part = tested(study, results)
    rows, correct, held, curves = _measured(part, lines, results, data)
    ways: dict[str, dict[str, None]] = {}
    for cell in part.cells:
        ways.setdefault(cell.method, {})[measured[cell.id]] = None
    told = {method: " ".join(sentences) for method, sentences in ways.items()}
    if (folder / "about.json").is_file():
        before = read(folder)
        others = {cell.id for cell in study.cells if cell.method not in part.methods}
        stay = before.runs[before.runs["cell"].isin(others)]
        told |= {name: before.about.measured[name] for name in stay["method"]}
        rows = pd.concat([frame for frame in (stay, rows) if len(frame)])
        correct |= {cell: before.correct[cell] for cell in stay["cell"]}
        held = {**before.held, **held}
        curves |= {cell: before.curves[cell].dropna() for cell in stay["cell"]}
    rows = rows.set_index("cell", drop=False)
    there = of_cells(study, rows.index)
    rows = rows.loc[[cell.id for cell in there.cells]].reset_index(drop=True)
    about = About(
        title=study.title,
        description=study.description.strip(),
        caption=caption(there, rows),
        measured={name: told[name] for name in there.methods},
        runs=runs,
        missing=tuple(
            dict.fromkeys(cell.method for cell in study.cells if cell.id not in set(rows["cell"]))
        ),
    )
    joined = (pd.concat(series, axis=1, sort=False) for series in (correct, curves))
    write(Archive(study.name, about, rows, next(joined), held, next(joined)), folder)


def _measured(
    part: Study, lines: Mapping[str, tuple[str, str]], results: Path, data: Path
) -> tuple[pd.DataFrame, dict[str, Column], dict[str, pd.DataFrame], dict[str, Column]]:
    """Return the runs of the finished methods, right answers by cell, what clients hold by split
    and curves by cell.

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
    )[list(RUN_COLUMNS)]
    measured = [*METRICS, VALIDATION, "train_seconds"]
    rows[measured] = rows[measured].astype(float).round(_DIGITS)
    held = {}
    for name, cell in {cell.partition_id: cell for cell in part.cells}.items():
        split = Split.load(existing(results / "partitions" / f"{name}.npz"))
        with np.load(existing(data / f"{cell.dataset}.npz"), allow_pickle=False) as arrays:
            held[name] = _held(split, arrays["train_labels"], arrays["test_labels"])
    correct = {}
    for cell in part.cells:
        own = scores[cell.method]
        sizes = held[cell.partition_id]["test_size"]
        correct[cell.id] = _correct(own[own["cell"] == cell.id], sizes)
    curves = {row.cell.id: _curve(results / "runs" / row.run) for row in part.rows}
    return rows, correct, held, curves


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
    return pd.DataFrame(rows, columns=list(HELD_COLUMNS)).set_index("client")


def _correct(scores: pd.DataFrame, sizes: Column) -> Column:
    # A client has a value in one of the two columns, or none.
    percent = scores["personal_own"].fillna(scores["personal_new"])
    return (percent * sizes.loc[percent.index] / 100).round()


def _curve(run: Path) -> Column:
    rounds = pd.read_csv(existing(run / "rounds.csv"), index_col="round")["personal_own"]
    return rounds.dropna().round(_DIGITS)


def write(study: Archive, folder: Path) -> None:
    """Write what ``read`` reads."""
    rows: list[dict[Any, Any]] = []
    before: dict[str, np.ndarray] = {}
    for run in study.runs.to_dict("records"):
        split, curve = run["partition"], study.curves[run["cell"]].dropna()
        held = study.held[split]
        if split not in before:
            run |= {name: column.to_numpy() for name, column in held.reset_index().items()}
        correct = study.correct[run["cell"]].reindex(held.index).fillna(NO_ROWS).to_numpy("int16")
        change = _unsigned(correct - before.get(split, 0))
        run |= {"change": change, "round": curve.index.to_numpy()}
        before[split] = correct
        rows.append(run | {"curve": curve.to_numpy(float)})
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / FILE) as temporary:
        table.to_parquet(
            temporary,
            index=False,
            compression="brotli",
            compression_level=11,
            use_dictionary=False,
            column_encoding={"change.list.element": "BYTE_STREAM_SPLIT"},
        )
    write_json(folder / "about.json", json_records.to_json(study.about))


def _unsigned(change: np.ndarray) -> np.ndarray:
    """Return 0, -1, 1, -2 ... as 0, 1, 2, 3 ..., of which one byte of four is not zero."""
    return np.where(change < 0, -2 * change - 1, 2 * change)


def _signed(stored: np.ndarray) -> np.ndarray:
    return np.where(stored % 2, -(stored + 1) // 2, stored // 2)


def read(folder: Path) -> Archive:
    """Return what ``write`` wrote.

    Raises:
        DataError: a file is missing, damaged or has other columns than it should, or the means of
            the runs are not those of the counts.
    """
    again = f"remove that folder and make it again: make results STUDY={folder.name}"
    for name in (FILE, "about.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} does not exist", do=again)
    try:
        table = pd.read_parquet(folder / FILE)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / FILE} is damaged: {error}", do=again) from error
    if tuple(table.columns) != COLUMNS:
        raise DataError(f"{folder / FILE} has other columns than this version reads", do=again)
    held, correct, curves = {}, {}, {}
    before: dict[str, np.ndarray] = {}
    for run in table.to_dict("records"):
        if run["client"] is not None:
            columns = {name: run[name] for name in HELD_COLUMNS}
            held[run["partition"]] = pd.DataFrame(columns).set_index("client")
        split, cell = run["partition"], run["cell"]
        clients = held[split].index
        if len(run["change"]) != len(clients):
            what = f"{folder / FILE} has {len(run['change'])} counts of {len(clients)} clients"
            raise DataError(f"{what} of {cell}", do=again)
        before[split] = _signed(run["change"]) + before.get(split, 0)
        counts = pd.Series(before[split], index=clients, dtype=float)
        correct[cell] = counts.mask(counts == NO_ROWS)
        curves[cell] = pd.Series(run["curve"], index=pd.Index(run["round"], name="round"))
    found = Archive(
        folder.name,
        json_records.load(About, folder / "about.json"),
        table[list(RUN_COLUMNS)],
        pd.concat(correct, axis=1, sort=False),
        held,
        pd.concat(curves, axis=1, sort=False).sort_index(),
        _searched(folder / SEARCH),
    )
    for text, said, counted in _differing(found):
        raise DataError(
            f"{folder}: {text}", got=said, expected=f"{counted}, as its counts have it", do=again
        )
    return found


def with_lent(study: Archive, others: Iterable[Archive]) -> Archive:
    """Return a study with the methods without rounds that it lacks, from studies that have runs of
    all of its splits: the same people, rows and seeds."""
    splits = set(study.runs["partition"])
    for other in others:
        missing = ~other.runs["method"].isin(study.runs["method"])
        inside = other.runs["partition"].isin(splits)
        rows = other.runs[(other.runs["rounds"] == 1) & missing & inside]
        if set(rows["partition"]) == splits:
            cells = list(rows["cell"])
            measured = {name: other.about.measured[name] for name in rows["method"]}
            study = replace(
                study,
                about=replace(study.about, measured=study.about.measured | measured),
                runs=pd.concat([study.runs, rows], ignore_index=True),
                correct=pd.concat([study.correct, other.correct[cells]], axis=1),
                curves=pd.concat([study.curves, other.curves[cells]], axis=1).sort_index(),
            )
    return study


def _searched(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    lines = json.loads(gzip.decompress(file.read_bytes()))["lines"]
    known = ((line.get("rows", ()), line["chosen"]["epsilon_with_search"]) for line in lines)
    return {cell: epsilon for cells, epsilon in known if epsilon is not None for cell in cells}


def majority(study: Archive) -> list[float]:
    """Return for every split what clients in training with test rows have on average who always say
    the majority class of their training examples, in percent: what knowing one's own mix of classes
    is worth, without looking at an example."""
    found = []
    for held in study.held.values():
        own = held[~is_new(held)]
        found.append(100 * float((own["majority"] / own["test_size"]).mean()))  # 0 / 0 is skipped
    return found


def is_new(held: pd.DataFrame) -> np.ndarray:
    """Return for every client whether nothing of it was in training."""
    never_drawn = np.asarray(held.index.str.startswith("new"), bool)
    return never_drawn | (held["train_size"] == 0).to_numpy(bool)


def _differing(study: Archive) -> Iterator[tuple[str, float, float]]:
    """Yield every mean of a run that is not that of the counts, and both numbers."""
    clients, worst = study.percent.index, METRICS["personal_own_worst_decile"].metric.average
    new = {name: is_new(held.reindex(clients)) for name, held in study.held.items()}
    strangers = np.stack([new[name] for name in study.runs["partition"]], axis=1)
    percent = study.percent[study.runs["cell"]]
    own = percent.mask(strangers)
    counted = {
        "personal_own": own.mean(),
        "personal_own_worst_decile": own.apply(lambda values: worst(values.dropna().to_numpy())),
        "personal_new": percent.where(strangers).mean(),
    }
    for name, means in counted.items():
        for run, mean in zip(study.runs.itertuples(), means[study.runs["cell"]], strict=True):
            said = float(getattr(run, name))
            if math.isnan(said) != math.isnan(mean) or abs(mean - said) > 10.0**-_DIGITS:
                yield f"{name} of {run.cell}", said, mean
