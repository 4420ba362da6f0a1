"""A job that begins elsewhere, hours after it was planned, finds what it was planned with or
stops (snakemake#3234)."""

import shutil
from pathlib import Path

import pytest

import malformed
from pflpipe.errors import ConfigError
from pflpipe.pipeline.project import Project
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline

METHOD = Path(malformed.ROOT / "docs/examples/easgd.py").read_text()
LINES = [{"name": "mine.py:easgd"}, {"name": "dp_fedavg"}]


@pytest.fixture
def planned(here: Path) -> str:
    """What a project notes that is made of a script, a helper, a study and a method beside it."""
    for name in ("workflow/scripts", "studies"):
        (here / name).mkdir(parents=True)
    shutil.copytree(malformed.ROOT / "src/pflpipe/methods", "src/pflpipe/methods")
    Path("src/pflpipe/shared.py").write_text("VALUE = 1\n")
    for script in ("train", "partition"):
        Path(f"workflow/scripts/{script}.py").write_text("from pflpipe import shared\n")
    Path("studies/mine.py").write_text(METHOD)
    malformed.write(Path("studies/tiny.yaml"), {**malformed.STUDY, "methods": LINES})
    return project().note([load_outline("tiny")])


def project(noted: str = "{}") -> Project:
    return Project(Config(studies=("tiny",)), Path.cwd(), thorough=False, noted=noted)


def begin(noted: str, method: str = "easgd") -> str:
    """Do what a job's snakemake does to know its cells and the code that trains them; return the
    digest of that code."""
    job = project(noted)
    job.code("partition")  # Snakemake asks for what comes before the job as well
    return job.training_code(job.cells({"study": "tiny", "method": method}))


def test_a_job_begins_after_edits_that_change_nothing_of_it(planned):
    code = {method: begin(planned, method) for method in ("easgd", "dp_fedavg")}
    with Path("src/pflpipe/shared.py").open("a") as file:
        file.write("# a comment\n")
    malformed.put("description", "Other words.", "studies/tiny.yaml")(Path())
    Path("workflow/scripts/partition.py").write_text("edited = True\n")
    assert begin(planned) == code["easgd"]
    Path("studies/mine.py").write_text(METHOD.replace("force *", "2 * force *"))
    assert begin(planned, "dp_fedavg") == code["dp_fedavg"]


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("studies/mine.py", "force *", "2 * force *", "studies/mine.py"),
        ("src/pflpipe/shared.py", "VALUE = 1", "VALUE = 2", "workflow/scripts/train.py"),
        ("studies/tiny.yaml", "seeds:\n- 0", "seeds:\n- 2", "studies/tiny.yaml"),
    ],
)
def test_a_job_whose_code_or_study_was_edited_says_so_in_one_line_and_stops(
    planned, file, old, new, named
):
    malformed.text(old, new, file)(Path())
    with pytest.raises(ConfigError, match=f"^{named}, or a file that it needs, was edited"):
        begin(planned)
    begin("{}")  # where nobody planned anything, as on a login node


def test_a_job_of_a_run_whose_code_was_edited_says_so_and_not_that_nobody_knows_the_run(planned):
    row = load_outline("tiny").study().rows[0]
    assert project(planned).cells({"run": row.run})
    Path("studies/mine.py").write_text(METHOD.replace("force *", "2 * force *"))
    with pytest.raises(ConfigError, match=r"^studies/mine\.py, or a file that it needs"):
        project(planned).cells({"run": row.run})
