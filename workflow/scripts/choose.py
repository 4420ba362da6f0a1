"""Choose a study's hyper-parameters by the validation accuracies of its search:
results/searches/<study>.json."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe.program import run_script
from pflpipe.study import ranking, search
from pflpipe.study.load import load_outline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with scores/ and plans/ of the search",
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file")
    args = parser.parse_args()
    outline = load_outline(args.study)
    print(*ranking.edges(outline, search.write(outline, args.results, args.out)))


run_script(main)
