"""``make results``: docs/results/ gets the studies that are named, finished ones, and
docs/results.md is written from docs/results/."""

from __future__ import annotations

import sys
from pathlib import Path

from pflpipe.pipeline.project import Project
from pflpipe.program import run_script
from pflpipe.report import committed, readme, results
from pflpipe.report.tidy import stored
from pflpipe.study import config
from pflpipe.study.load import load_study


def main() -> None:
    """Export the studies of the command line and write the page, in the working directory."""
    root, docs = Path(), Path("docs")
    if names := sys.argv[1:]:
        settings = config.load()
        project = Project(settings, root, thorough=False)
        folder = settings.results_dir
        for name in names:
            study = load_study(name, results=folder)
            measured = readme.measured(study, stored(study, folder), folder, root)
            runs = readme.runs_comment(study, project.training_code)
            target = docs / "results" / name
            committed.export(study, folder, settings.data_dir, target, measured, runs)
            print(f"{target}: written")
    print(f"{results.write(docs)}: written")


if __name__ == "__main__":
    run_script(main)
