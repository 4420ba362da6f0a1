"""Draw one figure of a study as .png, .svg and .pdf."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report.figures import kinds
from pflpipe.study import figures
from pflpipe.study.load import load_study


def main(study: str, figure: str, results: Path, data: Path, out: Path) -> None:
    loaded = load_study(study, results=results)
    kinds.write(loaded, figures.find(loaded, figure), results, data, out)


run_step(main)
