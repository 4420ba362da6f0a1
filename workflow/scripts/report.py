"""Write results/report.html: questions, results and audits of the studies, and how to repeat them.
``settings`` are command-line arguments for settings that differ from config.yaml."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import report_page
from pflpipe.study.load import load_study


def main(
    studies: list[str], results: Path, root: Path, template: Path, out: Path, settings: str = ""
) -> None:
    loaded = [load_study(name, results=results) for name in studies]
    report_page.write(loaded, results, root, settings, template, out)


run_step(main)
