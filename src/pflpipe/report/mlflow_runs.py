"""The content of a study in MLflow: one run for the study with its files, one run for each group of
seeds with their means, and below it one run for each seed.

This module reads results and does not import MLflow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflpipe import json_records
from pflpipe.cells import Cell
from pflpipe.code import dependencies
from pflpipe.errors import DataError
from pflpipe.files import canonical_json, read_json
from pflpipe.methods import registry, row_code
from pflpipe.privacy.ledger import Planned
from pflpipe.report import tidy
from pflpipe.report.comparison import MAIN, METRICS, finite, largest, over_seeds
from pflpipe.report.statistics import MIN_SEEDS, paired
from pflpipe.report.tidy import existing
from pflpipe.simulation.run_record import Record
from pflpipe.study.config import study_file
from pflpipe.study.settings import (
    CHOSEN_ON_VALIDATION,
    Setting,
    flatten,
    layout,
    measured,
    round_up,
)
from pflpipe.study.study_spec import Row, Study

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description, in Markdown."""
_CURVES = ("loss", *METRICS)  # of which a group shows the mean over its seeds
_CLAIMS = {
    "certified": "certified: this ε holds for what is released",
    "unreviewed": "unreviewed: this ε holds only if code from outside keeps the rules",
    "nominal": "nominal: the method states less than this ε, which is the one that holds",
    "none": "no privacy",
}
Point = tuple[str, float, int, int]
"""Name, value, time in milliseconds, step."""
_Scores = dict[str, Any]
"""Cell id -> row of the tidy table, for cells that are scored."""


@dataclass(frozen=True)
class Tracked:
    """The content of one run in MLflow.

    Attributes:
        key: identifies the run in its experiment, whatever its content.
        name: the name that MLflow's list shows.
        complete: whether its results are final; MLflow shows it as running until then.
        start, end: in milliseconds; 0 for the time of export.
        parent: key of the run that it is shown below; empty for none.
        points: metrics.
        files: path among the run's artifacts -> file.
        dataset: name, digest and description (JSON) of the training data; None for the study.
    """

    key: str
    name: str
    complete: bool
    start: int = 0
    end: int = 0
    parent: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    dataset: tuple[str, str, str] | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of the content that MLflow shows.

        Start and end are left out: those of an unfinished group change with each seed, and those
        of a seed are in its points.
        """
        files = {path: _sha256(file.read_bytes()) for path, file in self.files.items()}
        facts = [self.name, self.complete, dict(self.params), dict(self.tags), self.dataset]
        return _sha256(canonical_json([*facts, self.points, files]).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def of_study(study: Study, results: Path, *, partial: bool = False) -> list[Tracked]:
    """Return the runs of a study, parents before their children.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        partial: include only what is finished; otherwise the study's table must exist.

    Raises:
        DataError: a file is missing that the study, or with ``partial`` a trained run, must have.
    """
    scores, is_done = _scores(study, results, partial)
    tracked = [_study_run(study, results, is_done)]
    for setting in layout(study).settings:
        rows = [study.rows[index] for index in setting.indices]
        trained = [row for row in rows if not partial or _is_trained(row, results)]
        if trained:
            tracked += _Group(study, results, setting, trained, scores).runs()
    return tracked


def check_copies(study: Study, results: Path) -> None:
    """Check that the results have the runs of a study that is in an object store: all if its table
    is there, at least one otherwise. Without them an export would take the runs for removed.

    Raises:
        DataError: they are not there.
    """
    found = sum(_is_trained(row, results) for row in study.rows)
    is_done = (results / "tables" / f"{study.name}.csv").exists()
    expected = len(study.rows) if is_done else 1
    if found < expected:
        raise DataError(
            f"study {study.name}: runs of the object store have no copies in {results}/runs",
            got=found,
            expected=f"at least {expected}",
            do=f"snakemake --cores 1 --force {results}/tracking/{study.name}.done "
            "fetches the runs and exports them",
        )


def _scores(study: Study, results: Path, partial: bool) -> tuple[_Scores, bool]:
    # And whether the table on disk has these rows.
    if not partial:
        return _by_cell(tidy.stored(study, results)), True
    scores, table = _Scores(), _Scores()
    with suppress(DataError):  # no method is scored yet
        scores = _by_cell(tidy.tidy(tidy.finished(study, results), results))
    with suppress(DataError):  # no table yet, or an old one
        table = _by_cell(tidy.stored(study, results))
    # Compared as text, because the table may hold an integer where ``tidy`` has a float.
    return scores, bool(table) and [*map(str, scores.values())] == [*map(str, table.values())]


def _by_cell(frame: pd.DataFrame) -> _Scores:
    return {record["cell"]: record for record in frame.to_dict("records")}


def _is_trained(row: Row, results: Path) -> bool:
    # run.json is written last.
    run = results / "runs" / row.run / "run.json"
    return run.is_file() and _plan(row.cell, results).is_file()


def _plan(cell: Cell, results: Path) -> Path:
    return results / "plans" / f"{cell.plan_id}.json"


# ---------------------------------------------------------------- the study


def experiment_note(study: Study) -> str:
    """Return the text that MLflow shows above all runs of a study."""
    title = f"## {study.title}\n\n" if study.title else ""
    text = f"{study.description.strip()}\n\n" if study.description else ""
    return (
        f"{title}{text}`{MAIN}` and the like: {study.metric.described}. "
        f"{measured(study.datasets)}\n\n"
        "A run for each setting, with the means over its seeds, and below it one for each seed; "
        "the study's run has table, figures and ledger. Names have the ε that holds. Search with "
        "`tags.claim = 'certified'`, `tags.level = 'setting'`, `tags.method = 'dp_fedavg'`."
    )


def _study_run(study: Study, results: Path, is_done: bool) -> Tracked:
    name, sources = study.name, dict[str, Iterable[Path]]()
    if is_done:
        drawn = sorted((results / "figures" / name).glob("[!.]*"))
        sources = {
            "": [study_file(name)],
            "table/": [results / f"tables/{name}.{kind}" for kind in ("md", "csv", "tex")],
            "figures/": [path for path in drawn if path.suffix in (".png", ".svg", ".pdf")],
            "ledger/": [*(_plan(cell, results) for cell in study.cells), results / "ledger.html"],
        }
    files = {
        f"{folder}{path.name}": path
        for folder, paths in sources.items()
        for path in paths
        if path.is_file()
    }
    tags = _tags(study, "study") | {"runs": str(len(study.rows)), NOTE: measured(study.datasets)}
    return Tracked("study", f"study {name}", is_done, tags=tags, files=files)


def _tags(study: Study, level: str) -> dict[str, str]:
    return {"study": study.name, "level": level, "kind": "diagnostics"}


# ---------------------------------------------------------------- a group and its seeds


class _Group:
    """All seeds of one row of the study's table, as far as they exist.

    Args:
        trained: those of its rows whose training is finished: at least one.
    """

    def __init__(
        self, study: Study, results: Path, setting: Setting, trained: list[Row], scores: _Scores
    ) -> None:
        self.study, self.results, self.setting = study, results, setting
        self.trained, self.scores = trained, scores
        self.rows = [study.rows[index] for index in setting.indices]
        self.plans = {
            row.cell.plan_id: json_records.load(Planned, existing(_plan(row.cell, results)))
            for row in trained
        }
        first = self.rows[0].cell
        self.claim, self.epsilon = claim_and_epsilon(first, self.plans.values())
        cell = trained[0].cell
        run = self._record(trained[0])
        self.code = dependencies.listed(row_code.of_cell(cell, run.parts, study.measured))
        # The key does not depend on the number of seeds.
        self.key = f"setting {dataclasses.replace(first, seed=0).id} {self.rows[0].variant}".strip()

    def runs(self) -> list[Tracked]:
        """Return the group's run and those of its seeds."""
        seeds = [self._seed(row) for row in self.trained]
        return [self._mean(seeds), *seeds]

    def _record(self, row: Row) -> Record:
        folder = self.results / "runs" / row.run
        return tidy.record_of(folder, self.plans[row.cell.plan_id].plan, row.cell)

    def _name(self, epsilon: float | None) -> str:
        # The row's label with the epsilon that holds, not the requested one: ``feddpa eps=25.7
        # (official)``. The epsilon comes early because MLflow's list shows 18 letters.
        method, _, rest = self.setting.label.replace("official code", "official").partition(" ")
        parts = [method, "no eps" if epsilon is None else f"eps={_plain(epsilon)}"]
        parts += (f"{name}={value}" for name, value in self.setting.facet.items() if value != "–")
        parts.append(rest)
        budget = self.rows[0].cell.privacy
        if self.claim != "none" and epsilon in (None, math.inf):
            # Without a finite epsilon, only the requested budget distinguishes the names.
            noise = f"σ={budget.noise_multiplier:g}" if budget.epsilon is None else ""
            parts.append(noise or f"asked {budget.epsilon:g}")
        parts.append("unreviewed" * (self.claim == "unreviewed"))
        return " ".join(filter(None, parts))

    def _tags(self, level: str, epsilon: float | None, *paragraphs: str) -> dict[str, str]:
        row, setting = self.rows[0], self.setting
        delta = row.cell.privacy.delta
        bound = "unknown" if epsilon is None else _plain(epsilon)
        bound += "" if delta is None else f" at δ = {delta:g}"
        note = [
            ", ".join(filter(None, [f"**{setting.label}**", setting.budget, setting.facet_text])),
            _CLAIMS[self.claim] + ("" if self.claim == "none" else f", ε = {bound}"),
            f"Not pflpipe's own code: {self.code}" if self.code else "",
            f"{CHOSEN_ON_VALIDATION} {setting.choice}" if row.chosen else "",
            *paragraphs,
            measured(self.study.datasets),
        ]
        return _tags(self.study, level) | {
            "method": row.cell.method,
            "variant": row.variant,
            "profile": row.cell.profile,
            "claim": self.claim,
            "unreviewed_code": self.code,
            "epsilon": "none" if epsilon is None else _plain(epsilon),
            **self._unit(),
            "asked": setting.budget,
            "departures": ", ".join(row.cell.departures),
            "chosen": CHOSEN_ON_VALIDATION if row.chosen else "",
            NOTE: "\n\n".join(filter(None, note)),
        }

    def _unit(self) -> dict[str, str]:
        """Return tags of what a client is, if no user, and of a person's epsilon beside it."""
        ledgers = [planned.ledger for planned in self.plans.values()]
        person = largest(ledger.epsilon_person for ledger in ledgers)
        tags = {} if ledgers[0].unit == "user" else {"unit": ledgers[0].unit}
        return tags | ({} if person is None else {"epsilon_person": _plain(person)})

    def _seed(self, row: Row) -> Tracked:
        cell = row.cell
        folder = self.results / "runs" / row.run
        files = {name: existing(folder / name) for name in ("run.json", "rounds.csv")}
        run = self._record(row)
        # Training ended when run.json was written. MLflow shows the time of training.
        end = int(files["run.json"].stat().st_mtime * 1000)
        start, points, gaps = _curves(files["rounds.csv"], existing(folder / "timing.csv"), end)
        score = self.scores.get(cell.id)
        if score:
            names = (*self.study.columns, "train_seconds", "epsilon_central")
            points += _finals({name: score[name] for name in names}, points, end)
        # With departures that count examples, each seed has an epsilon of its own.
        _, epsilon = claim_and_epsilon(cell, [self.plans[cell.plan_id]])
        tags = self._tags("run", epsilon, f"Seed {cell.seed}; its files are in `{folder}`.") | {
            "seed": str(cell.seed),
            "diverged_round": str(run.diagnostics.diverged_round or ""),
            # MLflow cannot plot NaN and stores infinity as a huge number: such values are left out
            # and named here.
            "not_finite": ", ".join(f"{name} from round {first}" for name, first in gaps.items()),
        }
        return Tracked(
            key=cell.id,
            name=f"{self._name(epsilon)} s{cell.seed}",
            start=start,
            end=end,
            complete=score is not None,
            parent=self.key,
            params=self._params(row),
            tags=_filled(tags),
            points=points,
            files=files,
            dataset=_dataset([row]),
        )

    def _params(self, row: Row) -> dict[str, str]:
        plan = _plan(row.cell, self.results)
        values = dict(flatten(row.cell.to_dict()))
        values |= flatten(read_json(plan)) if plan.is_file() else ()
        return _filled({name: _text(value) for name, value in values.items()})

    def _mean(self, seeds: Sequence[Tracked]) -> Tracked:
        end = max(seed.end for seed in seeds)
        scores = [self.scores[row.cell.id] for row in self.rows if row.cell.id in self.scores]
        complete = len(scores) == len(self.rows)
        points = _mean_curves(seeds, end) if complete else []
        if complete:
            means = dict(of_group(pd.DataFrame(scores), self.study.columns))
            points += _finals(means, points, end)
        first, *others = (self._params(row).items() for row in self.rows)
        return Tracked(
            key=self.key,
            name=self._name(self.epsilon),
            start=min(seed.start for seed in seeds),
            end=end,
            complete=complete,
            params={
                name: text
                for name, text in first
                if name != "seed" and all((name, text) in other for other in others)
            },
            tags=_filled(self._tags("setting", self.epsilon)),
            points=points,
            dataset=_dataset(self.rows),
        )


def _filled(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}


def _plain(epsilon: float) -> str:
    return "inf" if math.isinf(epsilon) else round_up(epsilon)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _dataset(rows: Sequence[Row]) -> tuple[str, str, str]:
    first = rows[0].cell
    partition = {name: _text(value) for name, value in flatten(first.to_dict()["partition"])}
    seeds = sorted(row.cell.seed for row in rows)
    profile = canonical_json(_filled(partition) | {"seeds": seeds})
    return first.dataset, _sha256(f"{first.dataset} {profile}".encode())[:8], profile


def _curves(rounds: Path, timing: Path, end: int) -> tuple[int, list[Point], dict[str, int]]:
    # Returns the start, the points, and the first round in which a metric is not finite.
    table = pd.read_csv(rounds).merge(pd.read_csv(timing), on="round", how="left")
    elapsed = (table["seconds"].fillna(0).cumsum() * 1000).round().astype(int)
    start = end - int(elapsed.max())
    values = table.assign(time=start + elapsed).melt(["round", "time"], var_name="name")
    values["value"] = pd.to_numeric(values["value"], errors="coerce").astype(float)
    finite = np.isfinite(values["value"])
    points = [
        (name, value, time, step)
        for step, time, name, value in values[finite].itertuples(index=False)
    ]
    # An accuracy that is missing was not measured in that round.
    gaps = values[~finite & ~values["name"].isin(METRICS)].drop_duplicates("name")
    return start, points, dict(zip(gaps["name"], gaps["round"], strict=True))


def _finals(values: Mapping[str, Any], points: Sequence[Point], end: int) -> list[Point]:
    # Finite values, except those that are the last point of a curve. MLflow draws a line for
    # metrics with steps, and bars for metrics whose only step is 0.
    ends = {name: step for name, *_, step in points}
    last = max(ends.values(), default=0)
    steps = {name: last if ends.get(name) else 0 for name in values}
    return [
        (name, float(value), end, steps[name])
        for name, value in values.items()
        if value is not None and math.isfinite(value) and ends.get(name) != steps[name]
    ]


def _mean_curves(seeds: Sequence[Tracked], end: int) -> list[Point]:
    # Means in the rounds in which every seed has a value.
    columns = ["name", "value", "time", "step"]
    points = [point for seed in seeds for point in seed.points if point[0] in _CURVES]
    by_round = pd.DataFrame(points, columns=columns).groupby(["name", "step"], sort=False)["value"]
    means = by_round.mean()[by_round.count() == len(seeds)].reset_index()
    return [(name, float(value), end, int(step)) for name, step, value in means.to_numpy()]


# ---------------------------------------------------------------- statistics of a group


def claim_and_epsilon(cell: Cell, plans: Iterable[Planned]) -> tuple[str, float | None]:
    """Return the claim and the epsilon that holds for runs with these plans.

    The epsilon is the largest of the plans: infinite without a mechanism, None if the method sends
    nothing or the plans state none.
    """
    ledgers = [planned.ledger for planned in plans]
    if ledgers[0].claim == "none":
        return "none", math.inf if registry.of(cell).about.sends else None
    return ledgers[0].claim, largest(ledger.epsilon_central for ledger in ledgers)


def of_group(frame: pd.DataFrame, metrics: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield name and value of a group's means, their 95 % intervals, its epsilon and the number of
    its seeds.

    Args:
        frame: the group's rows of the tidy table.
        metrics: its columns that are metrics.
    """
    for name in (*metrics, "train_seconds"):
        values = finite(frame[name])
        if not values:
            continue
        yield name, over_seeds(values)
        if name in metrics and len(values) >= MIN_SEEDS:
            series = pd.Series(values)
            interval = paired(series, 0 * series)  # of the mean itself
            yield f"interval/{name}_low", interval.low
            yield f"interval/{name}_high", interval.high
    epsilon = largest(frame["epsilon_central"])
    if epsilon is not None:
        yield "epsilon_central", epsilon
    yield "seeds", float(len(frame))
