"""``make readme``: the numbers and the figure of the last quickstart go into README.md and
docs/quickstart.md of the checkout in which it runs."""

from __future__ import annotations

from pathlib import Path

from pflpipe.pipeline.project import Project
from pflpipe.program import run_script
from pflpipe.report import readme
from pflpipe.study import config


def main() -> None:
    """Renew the documents of the working directory from its results."""
    settings = config.load()
    project = Project(settings, Path(), thorough=False)
    for line in readme.renew(Path(), settings.results_dir, project.training_code):
        print(line)


if __name__ == "__main__":
    run_script(main)
