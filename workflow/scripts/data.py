"""Prepare data/<dataset>.npz from scikit-learn, from original files (downloaded if missing), or
from ``source``: a path, a function my_data.py:load, or a block of config.yaml in JSON."""

from pathlib import Path

from pflpipe.data.datasets import read_header
from pflpipe.data.sources import parsed, prepare
from pflpipe.program import run_step


def main(
    dataset: str,
    target: Path,
    source: str | None = None,
    downloads: Path = Path("data/downloads"),
) -> None:
    print(prepare(dataset, None if source is None else parsed(source), downloads, target))
    for warning in read_header(target).contract.warnings:
        print(f"warning: {dataset}: {warning}")


run_step(main)
