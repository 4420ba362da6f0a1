"""studies/readings/: for each printed table, where every value of a study comes from, which
finished runs stand beside which printed number, and what was not tried.

``study_texts`` makes the studies of the readings. ``page`` makes their part of docs/reproduction.md
from committed results: the verdicts, the control of a surrogate and the studies that nobody ran.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pages import verdict_rule, wording
from pages.verdict_rule import Spread
from pflpipe.study import catalog, documents, runtime_estimate
from pflpipe.study.config import PAPERS, Config, study_file
from pflpipe.study.load import load_outline
from pflpipe.study.printed import FILE

FOLDER = "readings"
ROUNDS = "rounds"
"""The folder of docs/reproduction/ whose files have every round."""
CONTROLS = "controls"
"""Its folder of controls, which are no runs of a study."""
CONTROLLED = {"whole": "run", "part": "in part", "none": "not run"}
NOISELESS = "fedavg"
"""The method whose rows have no noise."""
WIDTH = 130
COLUMNS = ("row", "ours", "noise zero", "interval", "printed", "other numbers in it", "verdict")
SURROGATE = (
    *("normalisation", "s", "with the noise, 15 / 150 epochs (seeds)"),
    *("noise zero", "printed (CENTAUR)"),
)
BEST_VALIDATION = (
    *("normalisation", "with the noise: best validation round / last round"),
    *("noise zero", "printed (CENTAUR)"),
)
Registry = dict[str, Any]
Series = dict[str, list[list[float]]]
"""Row -> of each seed, the accuracies after its rounds."""


@dataclass(frozen=True)
class Compared:
    """A row of a printed table beside ours.

    Attributes:
        method: the printed row.
        finished: whether at least one seed has all rounds.
        seeds: number of finished seeds, or of those that are on their way.
        ours: mean over seeds of the last or the best round.
        control: the last or the best round of one seed without noise, as text.
        half: half the length of the interval for one more run.
        printed, others: the number, and the table's other numbers.
        rounds: as text, how far the runs are.
    """

    method: str
    finished: bool
    seeds: int
    ours: float
    control: str
    half: float
    printed: float
    others: list[float]
    rounds: str


def load(studies: Path) -> dict[str, Registry]:
    """Return the readings of each table, by the name of its file."""
    files = sorted((studies / FOLDER).glob("*.yaml"))
    return {file.stem: documents.read_yaml(file) for file in files}


def document(registry: Registry, name: str) -> dict[str, Any]:
    """Return a study as its readings make it: every option set in the study, or in the rows that it
    names."""
    part = registry["studies"][name]
    entries = {
        ", ".join(entry[key] for key in ("name", "variant") if key in entry): dict(entry)
        for entry in part["rows"]
    }
    made: dict[str, Any] = {"title": part["title"], "description": part["description"].strip()}
    for option in [*registry["options"], *part["options"]]:
        for target in [entries[row] for row in option["rows"]] if "rows" in option else [made]:
            *blocks, last = option["set"].split(".")
            for block in blocks:
                target = target.setdefault(block, {})
            target[last] = option["to"]
    made |= {"methods": list(entries.values())}
    made |= part["rest"]
    return made


def study_texts(studies: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file of each study of the readings, and what it has to hold."""
    for source, registry in load(studies).items():
        for name in registry.get("studies", {}):
            text = yaml.safe_dump(
                document(registry, name),
                sort_keys=False,
                width=WIDTH,
                allow_unicode=True,
                default_flow_style=None,
            )
            made = (
                f"# Made by `make readings` of studies/{FOLDER}/{source}.yaml: see sources there."
            )
            yield studies / PAPERS / f"{name}.yaml", f"{made}\n{text}"


def compared(
    registry: Registry, reading: Mapping[str, Any], studies: Path, folder: Path
) -> list[Compared]:
    """Return the rows of a reading that have a run.

    Args:
        registry: of the table.
        reading: one of its ``readings``.
        studies: the folder of studies, which has the printed numbers.
        folder: docs/reproduction/.
    """
    best = reading["round"] == "best"
    spread = _spread(registry, studies, folder, best)
    results = Path(reading["results"])
    series = _series(folder / f"{results}.csv", registry["metric"])
    rounds = _rounds(results.name, studies) if results.parent.name == ROUNDS else 1
    controls = without_noise(reading, folder)
    rows = []
    for method, label in reading["compared"].items():
        finished = [one for one in series[label] if len(one) == rounds]
        shown = finished or series[label]
        rows.append(
            Compared(
                method,
                bool(finished),
                len(shown),
                float(np.mean([max(one) if best else one[-1] for one in shown])),
                controls[method],
                spread.half(len(shown)),
                *_printed(registry, method, studies / FILE),
                f"round {max(map(len, shown))} of {rounds}",
            )
        )
    return rows


def without_noise(reading: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return what came out without noise, for each row of a reading that has a run: the accuracy,
    with the round where the run was stopped before its last; "none" for a row that has no noise.
    Arguments as above."""
    frame = pd.read_csv(folder / CONTROLS / "zero_noise.csv", keep_default_na=False)
    runs = frame.set_index(["study", "method", "variant"])
    control = reading["controls"]["zero_noise"]
    found = {}
    for method, label in reading["compared"].items():
        if method not in control:
            found[method] = "none" if label.partition(",")[0] == NOISELESS else "not run"
            continue
        run = runs.loc[tuple(control[method])]
        found[method] = f"{float(run[reading['round']]):.1f}"
        if run["round"] < run["rounds"]:
            found[method] += f" (round {run['round']} of {run['rounds']})"
    return found


def verdicts(registry: Registry, studies: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table of verdicts of one printed table, arguments as above."""
    for reading in registry["readings"]:
        if not (folder / f"{reading['results']}.csv").is_file():
            yield f"**{reading['name']}**", "", "", "", "", "", "not run"
            continue
        rows = compared(registry, reading, studies, folder)
        zero_signal = CONTROLLED[reading["controls"]["zero_signal"]["run"]]
        about = f"ε {reading['epsilon']}; zero signal {zero_signal}"
        yield (f"**{reading['name']}**, {reading['round']} round", "", "", "", "", "", about)
        done = [row for row in rows if row.finished]
        differences, halves = [row.ours - row.printed for row in done], [row.half for row in done]
        together = bool(done) and verdict_rule.off_together(differences, halves)
        yield from (_line(row, together) for row in rows)
        for method, why in reading.get("not_run", {}).items():
            yield method, "", "", "", "", "", f"not run: {why}"


def page(studies: Path, folder: Path) -> Iterator[str]:
    """Yield the parts of docs/reproduction.md that the readings make; arguments as above."""
    for registry in load(studies).values():
        yield f"### {registry['title']}"
        if registry["readings"]:
            yield _table(COLUMNS, verdicts(registry, studies, folder))
        if "surrogate" in registry:
            file = folder / CONTROLS / f"{registry['surrogate']['results']}.csv"
            yield _table(SURROGATE, surrogate(file))
            yield f"By CENTAUR's rule, s = {registry['surrogate']['rounds_at']}:"
            yield _table(BEST_VALIDATION, best_validation(registry["surrogate"], folder / CONTROLS))
        yield wording.escaped(f"Next: {registry['next']}.")
    if rows := sorted(not_run(studies, folder).items()):
        yield "## Loads, not run"
        yield (
            "CPU-hours of one thread of an Intel Xeon at 2.8 GHz, by `pflpipe cost`. A file of a "
            "study is no result."
        )
        lines = []
        for paper, hours in rows:
            each = ", ".join(f"`{name}` {value:,.0f}" for name, value in hours.items())
            lines.append((paper, each, f"{sum(hours.values()):,.0f}"))
        yield _table(("paper", "study and CPU-hours", "together"), lines)


def surrogate(file: Path) -> Iterator[tuple[str, ...]]:
    """Yield means over seeds of a surrogate with its noise and with noise zero."""
    for (norm, classes), rows in pd.read_csv(file).groupby(
        ["normalisation", "classes"], sort=False
    ):
        cells = []
        for part in (rows[rows["noise"] > 0], rows[rows["noise"] == 0]):
            means = part[["after_15", "after_150"]].mean()
            cells.append(" / ".join(f"{mean:.1f}" for mean in means) + f" ({len(part)})")
        yield str(norm), str(classes), *cells, f"{rows['printed'].iloc[0]:g}"


def best_validation(registry: Registry, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield test accuracies in the round of the best validation accuracy and in the last round."""
    found = pd.read_csv(folder / f"{registry['rounds']}.csv")
    printed = pd.read_csv(folder / f"{registry['results']}.csv").groupby("classes")["printed"]
    for norm, rows in found.groupby("normalisation", sort=False):
        cells = []
        for part in (rows[rows["noise"] > 0], rows[rows["noise"] == 0]):
            best = part.iloc[int(part["validation"].argmax())]
            last = part["test"].iloc[-1]
            cells.append(f"{best['test']:.1f} (round {best['round']:.0f}) / {last:.1f}")
        yield str(norm), *cells, f"{printed.first()[registry['rounds_at']]:g}"


def not_run(studies: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Return the estimated CPU-hours of each paper's studies that have no results, by paper and by
    study."""
    header = catalog.headers(Config(studies=("none",)))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for file in sorted((studies / PAPERS).glob("*.yaml")):
        if any((folder / part / f"{file.stem}.csv").is_file() for part in ("", ROUNDS)):
            continue
        outline = load_outline(file.stem, studies)
        cells, often = catalog.expected(outline)
        seconds = runtime_estimate.total(cells, header, often=often)
        paper = catalog.purpose(outline).removeprefix("Tables and figures of ").partition(" (")[0]
        found[paper][file.stem] = math.nan if seconds is None else seconds / 3600
    return found


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(row: Compared, together: bool) -> tuple[str, ...]:
    inside = verdict_rule.inside(row.others, row.ours, row.half)
    known = math.isfinite(row.half)
    interval = f"{max(0, row.ours - row.half):.1f} to {min(100, row.ours + row.half):.1f}"
    word = verdict_rule.verdict(row.printed, row.ours, row.half, row.others, together)
    return (
        row.method,
        f"{row.ours:.1f}" + (f" ({row.seeds} seeds)" if row.seeds > 1 else ""),
        row.control,
        interval if known and row.finished else "not measured",
        f"{row.printed:g}",
        f"{inside} of {len(row.others)}",
        word if row.finished else f"not finished: {row.rounds}",
    )


def _spread(registry: Registry, studies: Path, folder: Path, best: bool) -> Spread:
    rows = []
    for name in registry["spread"]:
        file = folder / ROUNDS / f"{name}.csv"
        rounds = _rounds(name, studies)
        series = _series(file, registry["metric"]) if file.is_file() else {}
        rows += [[one for one in seeds if len(one) == rounds] for seeds in series.values()]
    return verdict_rule.spread([seeds for seeds in rows if seeds], best)


def _series(file: Path, metric: str) -> Series:
    frame = pd.read_csv(file, keep_default_na=False)
    names = [name for name in ("method", "variant") if name in frame]
    found: Series = defaultdict(list)
    for key, rows in frame.groupby([*names, "seed"], sort=False):
        label = ", ".join(filter(None, map(str, key[:-1])))
        found[label].append(rows[metric].astype(float).tolist())
    return found


def _rounds(study: str, studies: Path) -> int:
    return int(documents.read_yaml(study_file(study, studies))["training"]["rounds"])


def _printed(registry: Registry, method: str, file: Path) -> tuple[float, list[float]]:
    rows = documents.read_yaml(file)["results"]
    of_table = [row for row in rows if all(row[key] == registry[key] for key in ("paper", "table"))]
    wanted = {"method": method, **registry["cells"]}
    (place,) = [
        place
        for place, row in enumerate(of_table)
        if all(row.get(key) == value for key, value in wanted.items())
    ]
    numbers = [float(row["accuracy"]) for row in of_table]
    return numbers[place], numbers[:place] + numbers[place + 1 :]
