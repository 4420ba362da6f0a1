"""Test trained cells client by client: results/scores/<study>/<method>.csv."""

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.simulation.processes import joined
from pflpipe.simulation.scores import evaluate_cells, places_of
from pflpipe.study.load import load_outline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True, help="name of the study, or <study>/search")
    parser.add_argument("--cells", nargs="+", required=True, help="ids of its cells")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with runs/, plans/ and partitions/",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with <dataset>.npz")
    parser.add_argument("--out", type=Path, required=True, help="the .csv file to write")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index>")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "loop", "vmap", "graphs"),
        help="how clients are computed",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="that share the clients: one for each core or GPU"
    )
    args = parser.parse_args()
    study, _, search = args.study.partition("/")
    outline = load_outline(study)
    places = places_of(outline.everything.cells, args.cells, args.results, args.data)
    with joined(args.device, args.processes) as (processes, device):
        evaluate_cells(
            places,
            args.out,
            device=device,
            backend=args.backend,
            processes=processes,
            validation_only=bool(search),
            measures=outline.measures,
        )


run_script(main)
