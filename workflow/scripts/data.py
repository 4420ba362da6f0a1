"""Make data/<dataset>.npz: from scikit-learn, from original files (fetched where missing), or from
the user's own .npz."""

import argparse
from pathlib import Path

from pflpipe.data.datasets import prepare
from pflpipe.program import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="a known name, or any name with --source")
    parser.add_argument(
        "--source",
        type=Path,
        help="an .npz file, a function my_data.py:load, or a folder with the original files",
    )
    parser.add_argument(
        "--downloads",
        type=Path,
        default=Path("data/downloads"),
        help="where original files lie or are put",
    )
    parser.add_argument("--target", type=Path, required=True, help="the .npz file to make")
    args = parser.parse_args()
    prepare(args.dataset, args.source, args.downloads, args.target)


run_script(main)
