"""The content of a study in MLflow: one run for the study with its files, one run for each group of
seeds with their means, and below it one run for each seed.

This module reads results and does not import MLflow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe import json_records
from pflpipe.code.dependencies import PLACEBO
from pflpipe.files import canonical_json
from pflpipe.methods import registry
from pflpipe.report import tidy
from pflpipe.report.comparison import MAIN, METRICS, Group, largest, over_seeds
from pflpipe.report.statistics import MIN_SEEDS, paired
from pflpipe.report.tidy import existing
from pflpipe.study import settings
from pflpipe.study.config import study_file
from pflpipe.study.settings import CHOSEN_ON_VALIDATION, layout, measured
from pflpipe.study.study_spec import Row, Study

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description, in Markdown."""
BY_ROUND = "by_round/"
"""Before the name of an accuracy that was measured after a round, over ``evaluate_clients``: the
name alone is the final one, over all clients, as in the table."""
_CURVES = ("loss", *(f"{BY_ROUND}{name}" for name in METRICS))  # a group shows means over its seeds
_CLAIMS = {
    "certified": "certified: this ε holds for what is released",
    "unreviewed": "unreviewed: this ε holds only if code from outside keeps the rules",
    "nominal": "nominal: the method states less than this ε, which is the one that holds",
    "none": "no privacy",
    PLACEBO: "placebo: the noise alone, and nobody's update",
}
_COLUMNS = ("method", "variant", "profile", "claim", "unreviewed_code")
"""Those of the tidy table that are tags."""
Point = tuple[str, float, int, int]
"""Name, value, time in milliseconds, step."""


@dataclass(frozen=True)
class Tracked:
    """The content of one run in MLflow.

    Attributes:
        key: identifies the run in its experiment, whatever its content.
        name: the name that MLflow's list shows.
        start, end: in milliseconds; 0 for the time of export.
        points: metrics.
        files: path among the run's artifacts -> file.
        seeds: the runs that are shown below it.
    """

    key: str
    name: str
    start: int = 0
    end: int = 0
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    seeds: Sequence[Tracked] = ()

    @property
    def digest(self) -> str:
        """The digest of what MLflow shows of this run and those of its seeds."""
        facts = [
            [
                *(run.name, dict(run.params), dict(run.tags), run.points),
                {path: _sha256(file.read_bytes()) for path, file in run.files.items()},
            ]
            for run in (self, *self.seeds)
        ]
        return _sha256(canonical_json(facts).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def of_study(study: Study, results: Path, methods: Collection[str] | None = None) -> list[Tracked]:
    """Return the runs of a study: its own, and that of each group with those of its seeds.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        methods: only the groups of these methods, whose runs must be trained and tested; None:
            those of all methods, and the run of the study, whose table must exist.

    Raises:
        DataError: a file is missing that the study must have.
    """
    if methods is None:
        frame, tracked = tidy.stored(study, results), [_study_run(study, results)]
    else:
        cells = [cell.id for cell in study.cells if cell.method in methods]
        frame, tracked = tidy.tidy(tidy.of_cells(study, cells), results), []
    frame = frame.set_index("cell", drop=False)
    for setting in layout(study).settings:
        cells = [study.rows[index].cell.id for index in setting.indices]
        if cells[0] in frame.index:
            group = Group.of(setting, frame.loc[cells])
            tracked.append(_Group(study, results, group).run())
    return tracked


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


def _study_run(study: Study, results: Path) -> Tracked:
    name = study.name
    drawn = (results / "figures" / name).glob("[!.]*.*")
    plans = [results / "plans" / f"{cell.plan_id}.json" for cell in study.cells]
    sources = {
        "": [study_file(name)],
        "table/": [results / f"tables/{name}.{kind}" for kind in ("md", "csv", "tex")],
        "figures/": sorted(path for path in drawn if path.suffix in (".png", ".svg", ".pdf")),
        "ledger/": [*plans, results / "ledger.html"],
    }
    places = {f"{folder}{file.name}": file for folder, some in sources.items() for file in some}
    files = {name: file for name, file in places.items() if file.is_file()}
    tags = {"study": name, "level": "study", "kind": "diagnostics", "runs": str(len(study.rows))}
    tags[NOTE] = measured(study.datasets)
    return Tracked("study", f"study {name}", tags=tags, files=files)


# ---------------------------------------------------------------- a group and its seeds


class _Group:
    """All seeds of one row of the study's table, with the rows of the tidy table by cell."""

    def __init__(self, study: Study, results: Path, group: Group) -> None:
        self.study, self.results, self.group = study, results, group
        self.rows = [study.rows[index] for index in group.indices]
        self.plans = {
            row.cell.plan_id: tidy.planned(row.cell.plan_id, results) for row in self.rows
        }

    def _epsilon(self, rows: pd.DataFrame) -> float | None:
        """Return the epsilon that holds for some of the rows: infinite without a mechanism, None if
        the method sends nothing or the plans state none."""
        if self.group.claim != "none":
            return largest(rows["epsilon_central"])
        return math.inf if registry.of(self.rows[0].cell).about.sends else None

    def _name(self, epsilon: float | None) -> str:
        # The row's label with the epsilon that holds, not the requested one: ``feddpa eps=25.7
        # (official)``. The epsilon comes early because MLflow's list shows 18 letters.
        method, _, rest = self.group.label.replace("official code", "official").partition(" ")
        parts = [method, "no eps" if epsilon is None else f"eps={_plain(epsilon)}"]
        parts += (f"{name}={value}" for name, value in self.group.facet.items() if value != "–")
        parts.append(rest)
        budget = self.rows[0].cell.privacy
        if self.group.claim != "none" and epsilon in (None, math.inf):
            # Without a finite epsilon, only the requested budget distinguishes the names.
            noise = f"σ={budget.noise_multiplier:g}" if budget.epsilon is None else ""
            parts.append(noise or f"asked {budget.epsilon:g}")
        parts.append("unreviewed" * (self.group.claim == "unreviewed"))
        return " ".join(filter(None, parts))

    def _tags(self, level: str, epsilon: float | None, *paragraphs: str) -> dict[str, str]:
        row, group = self.rows[0], self.group
        claim, code = group.claim, group.first("unreviewed_code") or ""
        ledgers = [planned.ledger for planned in self.plans.values()]
        person = largest(ledger.epsilon_person for ledger in ledgers)
        delta = row.cell.privacy.delta
        bound = "unknown" if epsilon is None else _plain(epsilon)
        bound += "" if delta is None else f" at δ = {delta:g}"
        note = [
            ", ".join(filter(None, [f"**{group.label}**", group.budget, group.facet_text])),
            _CLAIMS[claim] + ("" if claim == "none" else f", ε = {bound}"),
            f"Not pflpipe's own code: {code}" if code else "",
            f"{CHOSEN_ON_VALIDATION} {group.choice}" if row.chosen else "",
            *paragraphs,
            measured(self.study.datasets),
        ]
        return {
            "study": self.study.name,
            "level": level,
            "kind": "diagnostics",
            **{name: group.first(name) or "" for name in _COLUMNS},
            "epsilon": "none" if epsilon is None else _plain(epsilon),
            "unit": "" if ledgers[0].unit == "user" else ledgers[0].unit,
            "epsilon_person": "" if person is None else _plain(person),
            "asked": group.budget,
            "departures": ", ".join(row.cell.departures),
            "chosen": CHOSEN_ON_VALIDATION if row.chosen else "",
            NOTE: "\n\n".join(filter(None, note)),
        }

    def _seed(self, row: Row) -> Tracked:
        cell = row.cell
        folder = self.results / "runs" / row.run
        files = {name: existing(folder / name) for name in ("run.json", "rounds.csv")}
        run = tidy.record_of(folder, self.plans[cell.plan_id].plan, cell)
        # Training ended when run.json was written. MLflow shows the time of training.
        end = int(files["run.json"].stat().st_mtime * 1000)
        start, points, gaps = _curves(files["rounds.csv"], existing(folder / "timing.csv"), end)
        names = (*self.study.columns, "train_seconds", "epsilon_central")
        ours = self.group.rows.loc[[cell.id]]
        points += _finals({name: ours[name].iloc[0] for name in names}, end)
        # With departures that count examples, each seed has an epsilon of its own.
        epsilon = self._epsilon(ours)
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
            params=self._params(row),
            tags=_filled(tags),
            points=points,
            files=files,
        )

    def _params(self, row: Row) -> dict[str, str]:
        planned = json_records.to_json(self.plans[row.cell.plan_id])
        values = [*settings.flatten(row.cell.to_dict()), *settings.flatten(planned)]
        return _filled({name: _text(value) for name, value in values})

    def run(self) -> Tracked:
        """Return the group's run, with those of its seeds."""
        seeds = [self._seed(row) for row in self.rows]
        end, epsilon = max(seed.end for seed in seeds), self._epsilon(self.group.rows)
        points = _mean_curves(seeds, end)
        points += _finals(dict(_means(self.group, self.study.columns)), end)
        first, *others = (self._params(row).items() for row in self.rows)
        # The key does not depend on the number of seeds.
        cell = dataclasses.replace(self.rows[0].cell, seed=0)
        return Tracked(
            key=f"setting {cell.id} {self.rows[0].variant}".strip(),
            name=self._name(epsilon),
            start=min(seed.start for seed in seeds),
            end=end,
            params={
                name: text
                for name, text in first
                if name != "seed" and all((name, text) in other for other in others)
            },
            tags=_filled(self._tags("setting", epsilon)),
            points=points,
            seeds=seeds,
        )


def _filled(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}


def _plain(epsilon: float) -> str:
    return "inf" if math.isinf(epsilon) else settings.round_up(epsilon)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _curves(rounds: Path, timing: Path, end: int) -> tuple[int, list[Point], dict[str, int]]:
    # Returns the start, the points, and the first round in which a metric is not finite.
    table = pd.read_csv(rounds).merge(pd.read_csv(timing), on="round", how="left")
    elapsed = (table["seconds"].fillna(0).cumsum() * 1000).round().astype(int)
    start = end - int(elapsed.max())
    steps, times = table["round"].tolist(), (start + elapsed).tolist()
    points: list[Point] = []
    gaps: dict[str, int] = {}
    for name in table.columns.drop("round"):
        values = pd.to_numeric(table[name], errors="coerce").astype(float)
        shown = f"{BY_ROUND}{name}" if name in METRICS else name
        for value, time, step in zip(values, times, steps, strict=True):
            if math.isfinite(value):
                points.append((shown, value, time, step))
            elif name not in METRICS:  # a missing accuracy was not measured in that round
                gaps.setdefault(name, step)
    return start, points, gaps


def _finals(values: Mapping[str, Any], end: int) -> list[Point]:
    # MLflow draws bars for metrics whose only step is 0.
    return [
        (name, float(value), end, 0)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _mean_curves(seeds: Sequence[Tracked], end: int) -> list[Point]:
    # Means in the rounds in which every seed has a value.
    columns = ["name", "value", "time", "step"]
    points = [point for seed in seeds for point in seed.points if point[0] in _CURVES]
    by_round = pd.DataFrame(points, columns=columns).groupby(["name", "step"], sort=False)["value"]
    means = by_round.mean()[by_round.count() == len(seeds)].reset_index()
    return [(name, float(value), end, int(step)) for name, step, value in means.to_numpy()]


# ---------------------------------------------------------------- statistics of a group


def _means(group: Group, metrics: Collection[str]) -> Iterator[tuple[str, float | None]]:
    # Means, their 95 % intervals, the epsilon, the seeds.
    for name in (*metrics, "train_seconds"):
        values = group.values(name).dropna()
        yield name, over_seeds(values)  # minus infinity, which is left out, where no seed has one
        if name in metrics and len(values) >= MIN_SEEDS:
            interval = paired(values, 0 * values)  # of the mean itself
            yield f"interval/{name}_low", interval.low
            yield f"interval/{name}_high", interval.high
    yield "epsilon_central", largest(group.rows["epsilon_central"])
    yield "seeds", float(len(group.rows))
