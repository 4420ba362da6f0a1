"""Join the tables of several studies, in the order given."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.report import tidy


def main(tables: list[Path], out: Path) -> None:
    tidy.join(tables, out)


run_step(main)
