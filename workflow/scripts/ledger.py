"""Write results/ledger.html: what is published, what is true, what the truth costs, and every
number of the ledger."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import ledger_page


def main(tables: list[Path], results: Path, template: Path, out: Path) -> None:
    ledger_page.write(tables, results, template, out)


run_step(main)
