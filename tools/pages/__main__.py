"""``make readme`` and ``make results``: the pages of this repository that show results, in the
working directory.

``readme`` puts the numbers and the figure of the last quickstart into README.md and
docs/quickstart.md; ``results [STUDY ...]`` adds finished studies to docs/ and writes their pages.
"""

import sys
from pathlib import Path

from pages import publish, readme
from pflpipe.pipeline.project import Project
from pflpipe.program import run_script
from pflpipe.study import config


def main() -> None:
    """Write the pages that the command line names."""
    page, *studies = sys.argv[1:]
    if page == "results":
        publish.write(studies)
        return
    settings = config.load()
    project = Project(settings, Path(), thorough=False)
    for line in readme.renew(Path(), settings.results_dir, project.training_code):
        print(line)


if __name__ == "__main__":
    run_script(main)
