"""Archives of studies that nobody ran, with exact accuracies, for tests of the pages."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from pages import archive

ROWS = 1000
"""Own test rows of a client: a level of a tenth of a point is a count."""
LINES = ("local_only", "dp_fedavg", "untouched", "fedrep")
Level = Callable[[str, int, float, float], tuple[float, float | None, float | None]]
"""Line, people, test fraction, epsilon -> personal, global and validation accuracy in percent."""


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
    for count in people:
        for fraction in fractions:
            for seed in range(seeds):
                part = f"p{count}-{fraction}-{seed}"
                table = {"train_size": round(100 * (1 - fraction)), "test_size": ROWS}
                clients = pd.Index([str(client) for client in range(count)], name="client")
                held[part] = pd.DataFrame(
                    table | {"classes": 2.0, "majority": 500 + 10 * seed}, index=clients
                )
                for index, line in enumerate(LINES):
                    for epsilon in epsilons if line != "local_only" else (None,):
                        own = spread * ((seed + index) % seeds - (seeds - 1) / 2)
                        found = level(line, count, fraction, epsilon or 0.0)
                        personal, released, validated = (
                            value if value is None else round(value + seed + own, 1)
                            for value in found
                        )
                        cell = f"{part}-{line}-{epsilon}"
                        correct[cell] = pd.Series(round(10 * personal), index=clients)
                        rows.append(
                            {
                                **{"line": line, "method": line, "cell": cell, "partition": part},
                                "budget": f"ε = {epsilon:g}" if epsilon else "no privacy",
                                "claim": "certified" if epsilon else "none",
                                **{"adjacency": "zero_out", "epsilon_central": epsilon},
                                **{"delta": 1e-5, "seed": seed, "clients": count},
                                **{"test_fraction": fraction, "sample_rate": 0.5, "rounds": 3},
                                **{"personal_own": personal, "global_own": released},
                                "personal_own_worst_decile": personal,
                                "global_validation": validated,
                                "upload_bytes_per_round": 4 * 7 * 0.5 * count if epsilon else 0,
                                "train_seconds": 1.0,
                            }
                        )
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
