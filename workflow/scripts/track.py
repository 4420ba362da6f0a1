"""Bring MLflow up to date with a study's results; a dead server is a warning, and the next run tries again."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe import config, tracking
from pflpipe.cli import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--out", required=True, type=Path, help="marker file: 'done: ...' or 'pending: ...'")
    args = parser.parse_args()
    settings = config.load(args.config)
    tracking.sync(config.load_study(args.study), Path(settings.results_dir), args.out, settings.tracking_uri)


if __name__ == "__main__":
    run_script(main)
