"""``make readme``, ``make results`` and ``make readings``: the pages of this repository that show
results, and the studies of papers, in the working directory.

``readme`` puts the numbers and the figure of the last quickstart into README.md and
docs/quickstart.md; ``results [STUDY ...]`` adds finished studies to docs/ and writes their pages;
``readings`` writes the studies of studies/readings/.
"""

import sys
from pathlib import Path

from pages import publish, readings, readme
from pflpipe.files import write_text
from pflpipe.pipeline.project import Project
from pflpipe.program import run_script
from pflpipe.study import config


def main() -> None:
    """Write the pages that the command line names."""
    page, *studies = sys.argv[1:]
    if page == "results":
        publish.write(studies)
        return
    if page == "readings":
        for file, text in readings.study_texts(Path(config.STUDIES)):
            write_text(file, text)
        return
    settings = config.load()
    project = Project(settings, Path(), thorough=False)
    for line in readme.renew(Path(), settings.results_dir, project.training_code):
        print(line)


if __name__ == "__main__":
    run_script(main)
