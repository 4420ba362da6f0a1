"""Write results/report.html: what the studies asked, what came of it, whether it is true, how to
make it again: with which settings, as words of the command line that config.yaml does not have."""

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
