"""Write results/ledger.html: published claims, epsilons that hold, their cost in accuracy, and all
numbers of the ledger."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import ledger_page


def main(tables: list[Path], results: Path, template: Path, out: Path) -> None:
    ledger_page.write(tables, results, template, out)


run_step(main)
