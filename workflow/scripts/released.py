"""Write the released part of a study, to be published: results/released/<study>/."""

from pathlib import Path

from pflpipe.auditing.verdict import require_kept
from pflpipe.files import read_json
from pflpipe.pipeline import released
from pflpipe.program import run_step
from pflpipe.study.load import load_study


def main(study: str, results: Path, audits: list[Path], out: Path) -> None:
    require_kept(map(read_json, audits))
    released.write(load_study(study, results=results), results, out)


run_step(main)
