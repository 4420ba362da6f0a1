"""Write results/tables/audit.csv and .md, and results/figures/audit and audit_column as .png, .svg
and .pdf."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import audit_table


def main(results: Path, out: Path) -> None:
    audit_table.write(results, out)


run_step(main)
