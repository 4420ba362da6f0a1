"""Archives of studies that nobody ran, with exact accuracies, for tests of the pages."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from pages import archive

ROWS = 1000
"""Own test rows of a client: a level of a tenth of a point is a count."""
LINES = ("local_only", "dp_fedavg", "untouched", "fedrep")
Level = Callable[[str, int, float, float], tuple[float | None, ...]]
"""Line, people, test fraction, epsilon -> personal, global and validation accuracy in percent."""


def fixed(other: tuple[float, ...], **lines: tuple[float, ...]) -> Level:
    """The same levels everywhere: those of some lines, and those of all others; levels that are
    left out at the end are unknown."""

    def level(line: str, *_: float) -> tuple[float | None, ...]:
        known = lines.get(line, other)
        return (*known, *[None] * (3 - len(known)))

    return level


def made(
    level: Level,
    people: tuple[int, ...] = (10, 40),
    fractions: tuple[float, ...] = (0.2, 0.6),
    epsilons: tuple[float, ...] = (0.5, 8.0),
    seeds: int = 5,
    spread: float = 0.2,
) -> archive.Archive:
    """Return an archive. Every seed moves all lines by the same luck, and each line by multiples of
    ``spread`` of its own, whose mean is 0."""
    rows, correct, held = [], {}, {}
    for count, fraction, seed in itertools.product(people, fractions, range(seeds)):
        part = f"p{count}-{fraction}-{seed}"
        clients = pd.Index([str(client) for client in range(count)], name="client")
        table = {"train_size": round(100 * (1 - fraction)), "test_size": ROWS}
        table |= {"classes": 2.0, "majority": 500 + 10 * seed}
        held[part] = pd.DataFrame(table, index=clients)
        for index, line in enumerate(LINES):
            for epsilon in epsilons if line != "local_only" else (None,):
                own = spread * ((seed + index) % seeds - (seeds - 1) / 2)
                found = level(line, count, fraction, epsilon or 0.0)
                personal, released, validated = (
                    value if value is None else round(value + seed + own, 1) for value in found
                )
                cell = f"{part}-{line}-{epsilon}"
                correct[cell] = pd.Series(round(10 * personal), index=clients)
                budget = f"ε = {epsilon:g}" if epsilon else "no privacy"
                run = {"line": line, "method": line, "cell": cell, "partition": part}
                run |= {"budget": budget, "claim": "certified" if epsilon else "none"}
                run |= {"adjacency": "zero_out", "epsilon_central": epsilon, "delta": 1e-5}
                run |= {"seed": seed, "clients": count, "test_fraction": fraction}
                run |= {"sample_rate": 0.5, "rounds": 3, "train_seconds": 1.0}
                run |= {"personal_own": personal, "personal_own_worst_decile": personal}
                run |= {"global_own": released, "global_validation": validated}
                run["upload_bytes_per_round"] = 4 * 7 * 0.5 * count if epsilon else 0
                rows.append(run)
    about = archive.About("Made up", "", "All of it.", dict.fromkeys(LINES, "Nowhere."), "", ())
    runs = pd.DataFrame(rows, columns=list(archive.RUN_COLUMNS))
    curves = pd.DataFrame(50.0, index=pd.Index([3], name="round"), columns=runs["cell"])
    return archive.Archive("made_up", about, runs, pd.DataFrame(correct), held, curves)


def save(study: archive.Archive, docs: Path) -> Path:
    """Write an archive, and return its folder."""
    folder = docs / "results" / study.name
    about = dataclasses.replace(study.about, runs=f"<!-- {study.name} -->")
    archive.write(dataclasses.replace(study, about=about), folder)
    return folder
