"""Draw one figure of a study as .png and, beside it, .svg."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflpipe import config, figures
from pflpipe.cli import run_script


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--kind", required=True, choices=sorted(figures.KINDS))
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--out", required=True, type=Path, help="the .png file")
    args = parser.parse_args()
    settings = config.load(args.config)
    study = config.load_study(args.study)
    figures.write(study, args.kind, Path(settings.results_dir), Path(settings.data_dir), args.out)


if __name__ == "__main__":
    run_script(main)
