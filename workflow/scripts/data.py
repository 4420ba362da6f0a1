"""Prepare data/<dataset>.npz from scikit-learn, from original files (downloaded if missing), or
from ``source``: an .npz file, a function my_data.py:load, or a folder with the original files."""

from pathlib import Path

from pflpipe.data.datasets import prepare
from pflpipe.program import run_step


def main(
    dataset: str,
    target: Path,
    source: Path | None = None,
    downloads: Path = Path("data/downloads"),
) -> None:
    print(prepare(dataset, source, downloads, target))


run_step(main)
