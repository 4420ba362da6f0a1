"""Choose a study's hyper-parameters by the validation metric of its search:
results/searches/<study>.json."""

from pathlib import Path

from pflpipe.program import run_step
from pflpipe.study import ranking, search
from pflpipe.study.load import load_outline


def main(study: str, results: Path, out: Path) -> None:
    outline = load_outline(study)
    print(*ranking.edges(outline, search.write(outline, results, out)))


run_step(main)
