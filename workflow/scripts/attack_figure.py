"""Draw the results of an attack on a study as .png, .svg and .pdf, with the numbers as .csv."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report.attacks import kinds
from pflpipe.study import figures
from pflpipe.study.load import load_study


def main(attack: str, study: str, results: Path, out: Path) -> None:
    loaded = load_study(study, results=results)
    kinds.write(loaded, figures.find(loaded, attack), results, out)


run_step(main)
