"""Write results/tables/audit.csv and .md, and results/figures/audit.png and audit_column.png with
their .svg and .pdf (rule audit_table)."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import audits


def main(results: Path, out: Path) -> None:
    audits.write(results, out)


run_step(main)
