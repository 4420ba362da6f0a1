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
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a project notes that is made of a script, a helper, a study and a method beside it."""
    for name in ("src/pflpipe", "workflow/scripts", "studies"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copytree(malformed.ROOT / "src/pflpipe/methods", tmp_path / "src/pflpipe/methods")
    (tmp_path / "src/pflpipe/shared.py").write_text("VALUE = 1\n")
    (tmp_path / "workflow/scripts/train.py").write_text("from pflpipe import shared\n")
    (tmp_path / "studies/mine.py").write_text(METHOD)
    malformed.write(tmp_path / "studies/tiny.yaml", {**malformed.STUDY, "methods": LINES})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflow/scripts/partition.py").write_text("from pflpipe import shared\n")
    project = Project(Config(studies=("tiny",)), tmp_path, thorough=False)
    return project.note([load_outline("tiny")])


def begin(noted: str, method: str = "easgd") -> str:
    """Do what a job's snakemake does to know its cells and the code that trains them; return the
    digest of that code."""
    project = Project(Config(studies=("tiny",)), Path.cwd(), thorough=False, noted=noted)
    project.code("partition")  # Snakemake asks for what comes before the job as well
    return project.training_code(project.cells({"study": "tiny", "method": method}))


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
    known = Project(Config(studies=("tiny",)), Path.cwd(), thorough=False, noted=planned)
    assert known.cells({"run": row.run})
    Path("studies/mine.py").write_text(METHOD.replace("force *", "2 * force *"))
    project = Project(Config(studies=("tiny",)), Path.cwd(), thorough=False, noted=planned)
    with pytest.raises(ConfigError, match=r"^studies/mine\.py, or a file that it needs"):
        project.cells({"run": row.run})
