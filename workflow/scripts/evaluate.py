"""Test trained cells client by client: results/scores/<study>/<method>.csv. The study is a name or
<study>/search."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.simulation.processes import joined
from pflpipe.simulation.scores import evaluate_cells, places_of
from pflpipe.study.load import load_outline


def main(
    study: str,
    cells: list[str],
    results: Path,
    data: Path,
    out: Path,
    code: str = "",
    device: str = "auto",
    backend: str = "auto",
    processes: int = 1,
) -> None:
    name, _, search = study.partition("/")
    outline = load_outline(name)
    places = places_of(outline.everything.cells, cells, results, data)
    with joined(device, processes) as (shared, place):
        evaluate_cells(
            places,
            out,
            device=place,
            backend=backend,
            code=code,
            processes=shared,
            validation_only=bool(search),
            measures=outline.measures,
        )


run_step(main)
