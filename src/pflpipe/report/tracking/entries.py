"""What MLflow shows of a study: a run for the study with its files, one for every setting with its
means, and below each setting one for every seed.

An entry has two stages, because a run may be looked at before it is scored: what training left, and
what is known at the end. ``begun`` and ``digest`` are their fingerprints, by which whoever writes
knows what is up to date. Nothing here knows MLflow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe import records
from pflpipe.cells import Cell
from pflpipe.errors import DataError
from pflpipe.files import canonical_json, read_json
from pflpipe.methods import registry
from pflpipe.privacy.ledger import Planned
from pflpipe.report import tidy
from pflpipe.report.statistics import MIN_SEEDS, paired
from pflpipe.report.summary import METRIC_WORDS, METRICS, finite, largest, mean_text, round_up
from pflpipe.report.tidy import existing
from pflpipe.study.config import STUDIES
from pflpipe.study.settings import CHOSEN_ON_VALIDATION, MEASURED, Setting, flatten, layout
from pflpipe.study.study_spec import Row, Study

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description, in Markdown."""
_FINALS = (*METRICS, "train_seconds", "epsilon_central")
_CURVES = ("loss", *METRICS)  # of which a setting shows the mean over its seeds
_FIGURES = (".png", ".svg", ".pdf")
_CLAIMS = {
    "certified": "certified: this ε holds for what is released",
    "unreviewed": "unreviewed: this ε holds only if the method's file keeps the rules",
    "nominal": "nominal: the method states less than this ε, which is the one that holds",
    "none": "no privacy",
}
Point = tuple[str, float, int, int]
"""Name, value, time in milliseconds, step."""


@dataclass(frozen=True)
class Entry:
    """One run in MLflow.

    Attributes:
        key: tells it from all others of the study, whatever becomes of it.
        name: what people call it.
        start, end: in milliseconds.
        complete: whether the second stage is known.
        parent: key of the entry that it is shown below; empty for none.
        params, tags, points: words and numbers of the first stage.
        final_tags, finals: words and numbers of the second stage.
        files: path among the run's artifacts -> file.
        seen: digest of the files behind it.
        dataset: name and description of what it was trained on; None for the study.
    """

    key: str
    name: str
    start: int
    end: int
    complete: bool
    parent: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    final_tags: Mapping[str, str] = field(default_factory=dict)
    finals: Sequence[Point] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    seen: str = ""
    dataset: tuple[str, Mapping[str, Any]] | None = None

    @cached_property
    def begun(self) -> str:
        """Fingerprint of the first stage: with another one it is another run."""
        words = [self.key, self.name, dict(self.params), dict(self.tags), sorted(self.files)]
        return _digest([words, self.points, self.dataset])

    @cached_property
    def digest(self) -> str:
        """Fingerprint of all that is known."""
        late = [self.finals, dict(self.final_tags)] if self.complete else []
        return _digest([self.begun, self.seen, late])


def _digest(content: Any) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def of_study(study: Study, results: Path, *, partial: bool = False) -> Iterator[Entry]:
    """Yield the entries of a study, parents before their children.

    Args:
        results: folder with scores, runs, plans, figures and tables.
        partial: show what there is of a study that may not be done; else its table must be there.

    Raises:
        DataError: a file is missing that the study, or with ``partial`` a trained run, must have.
    """
    scored, finished = _scored(study, results, partial)
    yield _of_study(study, results, finished)
    for setting in layout(study).settings:
        rows = [study.rows[index] for index in setting.indices]
        trained = [row for row in rows if not partial or _is_trained(row.cell, results)]
        if trained:
            yield from _Line(study, results, setting, rows, trained, scored).entries()


def _scored(study: Study, results: Path, partial: bool) -> tuple[dict[str, Any], bool]:
    # Id of a cell -> its row of the tidy table; and whether that table is there and says the same.
    if not partial:
        return _by_cell(tidy.stored(study, results)), True
    found: dict[str, Any] = {}
    for method in study.methods:
        rows = tuple(row for row in study.rows if row.cell.method == method)
        if all(_is_trained(row.cell, results) for row in rows):
            try:
                found |= _by_cell(tidy.tidy(dataclasses.replace(study, rows=rows), results))
            except DataError:  # not scored yet
                continue
    try:
        table = _by_cell(tidy.stored(study, results))
    except DataError:
        return found, False
    # As text, because an integer may have been read as a float.
    return found, [*map(str, found.values())] == [*map(str, table.values())]


def _by_cell(frame: pd.DataFrame) -> dict[str, Any]:
    return {record["cell"]: record for record in frame.to_dict("records")}


def _is_trained(cell: Cell, results: Path) -> bool:
    # run.json is written last.
    run = results / "runs" / registry.run_id(cell) / "run.json"
    return run.is_file() and _plan(cell, results).is_file()


def _plan(cell: Cell, results: Path) -> Path:
    return results / "plans" / f"{cell.plan_id}.json"


def _seen(files: Mapping[str, Path]) -> str:
    found = hashlib.sha256()
    for name, path in files.items():
        found.update(name.encode() + path.read_bytes())
    return found.hexdigest()


def _tags(study: Study, level: str) -> dict[str, str]:
    return {"study": study.name, "level": level, "kind": "diagnostics"}


# ---------------------------------------------------------------- the study


def experiment_note(study: Study) -> str:
    """Return what MLflow shows above all runs of a study."""
    title = f"## {study.title}\n\n" if study.title else ""
    text = f"{study.description.strip()}\n\n" if study.description else ""
    return (
        f"{title}{text}{MEASURED}\n\n"
        "A run for each setting, with the means over its seeds, and below it one for each seed; "
        "the study's run has table, figures and ledger. Names have the ε that holds. Search with "
        "`tags.claim = 'certified'`, `tags.level = 'setting'`, `tags.method = 'dp_fedavg'`."
    )


def _of_study(study: Study, results: Path, finished: bool) -> Entry:
    name = study.name
    files: dict[str, Path] = {}
    if finished:
        tables = [results / "tables" / f"{name}{suffix}" for suffix in (".md", ".csv", ".tex")]
        drawn = sorted((results / "figures" / name).glob("[!.]*"))
        plans = {cell.plan_id: _plan(cell, results) for cell in study.cells}
        files = {f"{path.name}": path for path in (STUDIES / f"{name}.yaml",)}
        files |= {f"table/{path.name}": path for path in tables}
        files |= {f"figures/{path.name}": path for path in drawn if path.suffix in _FIGURES}
        files |= {f"ledger/{path.name}": path for path in plans.values()}
        files |= {"ledger/ledger.html": results / "ledger.html"}
        files = {target: path for target, path in files.items() if path.is_file()}
    made = int(max((path.stat().st_mtime for path in files.values()), default=0) * 1000)
    return Entry(
        key="study",
        name=f"study {name}",
        start=made,
        end=made,
        complete=finished,
        tags=_tags(study, "study")
        | {
            "runs": str(len(study.rows)),
            NOTE: f"**{study.title or name}**\n\nTable, figures, ledger and the study's file are "
            f"among the artifacts of this run.\n\n{MEASURED}",
        },
        files=files,
        seen=_seen(files),
    )


# ---------------------------------------------------------------- a setting and its seeds


@dataclass(frozen=True)
class _Line:
    """A line of the study's table, as far as it is there.

    Attributes:
        rows, trained: its rows, and those whose training is done: one or more.
        scored: id of a cell -> row of the tidy table, for those that have one.
    """

    study: Study
    results: Path
    setting: Setting
    rows: list[Row]
    trained: list[Row]
    scored: Mapping[str, Any]

    def entries(self) -> Iterator[Entry]:
        """Yield the setting and its seeds."""
        seeds = [self._seed(row) for row in self.trained]
        yield self._setting(seeds)
        yield from seeds

    @cached_property
    def key(self) -> str:
        """The setting's, which its seeds do not change."""
        first = self.rows[0]
        unseeded = dataclasses.replace(first.cell, seed=0).id
        return " ".join(filter(None, ["setting", unseeded, first.variant]))

    @cached_property
    def plans(self) -> dict[str, Planned]:
        """Id of a plan -> what it holds."""
        return {
            row.cell.plan_id: records.load(Planned, existing(_plan(row.cell, self.results)))
            for row in self.trained
        }

    @cached_property
    def claim(self) -> str:
        """As in the table."""
        return next(iter(self.plans.values())).ledger.claim

    @cached_property
    def epsilon(self) -> float | None:
        """The largest of the seeds that holds; infinite without a mechanism, None where nothing is
        sent."""
        if self.claim == "none":
            return math.inf if registry.of(self.rows[0].cell).about.sends else None
        return largest(planned.ledger.epsilon_central for planned in self.plans.values())

    @cached_property
    def name(self) -> str:
        """The words of the table's line, with the epsilon that holds, not the one asked for:
        ``feddpa eps=25.7 (official)``. MLflow's list shows the first 18 letters."""
        method, _, rest = self.setting.label.replace("official code", "official").partition(" ")
        facet = [f"{name}={value}" for name, value in self.setting.facet.items() if value != "–"]
        known = "no eps" if self.epsilon is None else f"eps={_plain(self.epsilon)}"
        privacy = self.rows[0].cell.privacy
        asked = ""
        if self.claim != "none" and self.epsilon in (None, math.inf):
            # Where nothing holds, what was asked for tells one budget from another.
            is_asked = privacy.epsilon is not None
            asked = f"asked {privacy.epsilon:g}" if is_asked else f"σ={privacy.noise_multiplier:g}"
        marked = "unreviewed" * (self.claim == "unreviewed")
        return " ".join(filter(None, [method, known, *facet, rest, asked, marked]))

    def tags(self, level: str) -> dict[str, str]:
        """Return the words to filter by."""
        row = self.rows[0]
        return _tags(self.study, level) | {
            "method": row.cell.method,
            "variant": row.variant,
            "profile": row.cell.profile,
            "claim": self.claim,
            "epsilon": "none" if self.epsilon is None else _plain(self.epsilon),
            "asked": self.setting.budget,
            "departures": ", ".join(row.cell.departures),
            "chosen": CHOSEN_ON_VALIDATION if row.chosen else "",
        }

    def note(self, *paragraphs: str) -> str:
        """Return a description."""
        first = self.rows[0]
        claim = [_CLAIMS[self.claim]]
        if self.claim != "none":
            known = "unknown" if self.epsilon is None else _plain(self.epsilon)
            delta = first.cell.privacy.delta
            claim.append(f"ε = {known}" + ("" if delta is None else f" at δ = {delta:g}"))
        title = [f"**{self.setting.label}**", self.setting.budget, self.setting.facet_text]
        choice = f"{CHOSEN_ON_VALIDATION} {self.setting.choice}" if first.chosen else ""
        found = [_list(title), _list(claim), choice, *paragraphs, MEASURED]
        return "\n\n".join(filter(None, found))

    def _seed(self, row: Row) -> Entry:
        cell = row.cell
        folder = self.results / "runs" / registry.run_id(cell)
        files = {name: existing(folder / name) for name in ("run.json", "rounds.csv", "timing.csv")}
        run = tidy.record_of(folder, self.plans[cell.plan_id].plan, cell.departures)
        # The run ended when its file was written; MLflow's clock shows the training, not the sync.
        end = int(files["run.json"].stat().st_mtime * 1000)
        start, points, gaps = _curves(files["rounds.csv"], files["timing.csv"], end)
        record = self.scored.get(cell.id)
        values = {name: record[name] for name in _FINALS} if record else {}
        params = [
            *flatten(cell.to_dict()),
            *flatten(read_json(_plan(cell, self.results))),
        ]
        tags = self.tags("run") | {
            "seed": str(cell.seed),
            "pflpipe.cell": cell.id,
            "diverged_round": str(run.diagnostics.diverged_round or ""),
            # MLflow cannot plot NaN and stores infinity as a huge number: such values are left out
            # and named here.
            "not_finite": ", ".join(f"{name} from round {first}" for name, first in gaps.items()),
            NOTE: self.note(f"Seed {cell.seed}; its files are in `{folder}`."),
        }
        return Entry(
            key=cell.id,
            name=f"{self.name} s{cell.seed}",
            start=start,
            end=end,
            complete=record is not None,
            parent=self.key,
            params={name: text for name, value in params if (text := _param(value))},
            tags=_filled(tags),
            points=points,
            finals=_new(values, points, end),
            files={name: files[name] for name in ("run.json", "rounds.csv")},
            seen=_seen(files),
            dataset=_dataset([row]),
        )

    def _setting(self, seeds: Sequence[Entry]) -> Entry:
        end = max(seed.end for seed in seeds)
        found = [self.scored[row.cell.id] for row in self.rows if row.cell.id in self.scored]
        complete = len(found) == len(self.rows)
        curves = list(_means(seeds, end)) if complete else []
        frame = pd.DataFrame(found)
        # What all seeds share, whether they are trained or not.
        words = [dict(flatten(row.cell.to_dict())) for row in self.rows]
        if len({row.cell.plan_id for row in self.rows}) == 1:
            plan = dict(flatten(read_json(_plan(self.rows[0].cell, self.results))))
            words = [one | plan for one in words]
        params = {
            name: _param(value)
            for name, value in words[0].items()
            if all(other.get(name) == value for other in words)
        }
        return Entry(
            key=self.key,
            name=self.name,
            start=min(seed.start for seed in seeds),
            end=end,
            complete=complete,
            params={name: text for name, text in params.items() if text and name != "seed"},
            tags=_filled(self.tags("setting") | {NOTE: self.note()}),
            final_tags={NOTE: self.note(_table(frame))} if complete else {},
            finals=[*curves, *_new(dict(_over_seeds(frame)), curves, end)] if complete else (),
            dataset=_dataset(self.rows),
        )


def _filled(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if value}


def _list(words: Iterable[str]) -> str:
    return ", ".join(filter(None, words))


def _plain(epsilon: float) -> str:
    return "inf" if math.isinf(epsilon) else round_up(epsilon)


def _param(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _dataset(rows: Sequence[Row]) -> tuple[str, Mapping[str, Any]]:
    first = rows[0].cell
    partition = {name: _param(value) for name, value in flatten(first.to_dict()["partition"])}
    return first.dataset, _filled(partition) | {"seeds": sorted(row.cell.seed for row in rows)}


def _curves(rounds: Path, timing: Path, end: int) -> tuple[int, list[Point], dict[str, int]]:
    # The start, what was measured in each round, and from which round on something was no number.
    seconds = pd.read_csv(timing)
    elapsed = (seconds["seconds"].cumsum() * 1000).round().astype(int).tolist()
    start = end - (elapsed[-1] if elapsed else 0)
    stamps = dict(zip(seconds["round"].tolist(), (start + value for value in elapsed), strict=True))
    points, gaps = [], dict[str, int]()
    table = pd.read_csv(rounds).merge(seconds, on="round", how="left")
    for name in (column for column in table.columns if column != "round"):
        values = pd.to_numeric(table[name], errors="coerce")
        for step, value in zip(table["round"].tolist(), values.tolist(), strict=True):
            if math.isfinite(value):
                points.append((name, float(value), stamps.get(step, end), int(step)))
            elif name not in METRICS:  # an accuracy that is missing was not asked for in that round
                gaps.setdefault(name, int(step))
    return start, points, gaps


def _new(values: Mapping[str, Any], points: Sequence[Point], end: int) -> list[Point]:
    # Values that are finite and not the last point of a curve already. MLflow draws a line through
    # what has steps, and bars of what has none but 0.
    last = max((step for *_, step in points), default=0)
    steps = dict.fromkeys((name for name, *_ in points), last)
    known = {(name, step) for name, _, _, step in points}
    return [
        (name, float(value), end, steps.get(name, 0))
        for name, value in values.items()
        if value is not None and math.isfinite(float(value)) and (name, last) not in known
    ]


def _means(seeds: Sequence[Entry], end: int) -> Iterator[Point]:
    # Of the rounds in which every seed has a value.
    found: dict[tuple[str, int], list[float]] = {}
    for seed in seeds:
        for name, value, _, step in seed.points:
            if name in _CURVES:
                found.setdefault((name, step), []).append(value)
    for (name, step), values in found.items():
        if len(values) == len(seeds):
            yield name, math.fsum(values) / len(values), end, step


def _over_seeds(frame: pd.DataFrame) -> Iterator[tuple[str, float]]:
    for name in (*METRICS, "train_seconds"):
        values = finite(frame[name])
        if not values:
            continue
        yield name, math.fsum(values) / len(values)
        if name in METRICS and len(values) >= MIN_SEEDS:
            series = pd.Series(values)
            interval = paired(series, 0 * series)  # of the mean itself
            yield f"interval/{name}_low", interval.low
            yield f"interval/{name}_high", interval.high
    honest = largest(frame["epsilon_central"])
    if honest is not None:
        yield "epsilon_central", honest
    yield "seeds", float(len(frame))


def _table(frame: pd.DataFrame) -> str:
    means = dict(_over_seeds(frame))
    lines = ["| accuracy | % over seeds | 95 % interval |", "|---|--:|--:|"]
    for name in METRICS:
        if name in means:
            low, high = (means.get(f"interval/{name}_{end}") for end in ("low", "high"))
            interval = "" if low is None else f"{low:.1f} – {high:.1f}"
            text = mean_text(finite(frame[name]), len(frame))
            lines.append(f"| {METRIC_WORDS[name]} | {text} | {interval} |")
    return "\n".join(lines)
