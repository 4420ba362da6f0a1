"""What the rules of the workflow are told of a project: its cells, their files, and what each job
depends on."""

import json
from pathlib import Path

import pytest

import malformed
import tabled
from pflpipe.auditing import cases
from pflpipe.cells import Cell
from pflpipe.code import meaning
from pflpipe.errors import ConfigError
from pflpipe.pipeline import mlflow_export
from pflpipe.pipeline.project import Project, each, partition_request, plan_request, settings_words
from pflpipe.study.config import Config
from pflpipe.study.load import load_study

ROOT = malformed.ROOT


@pytest.fixture
def asked(good: Path) -> Project:
    """What the rules ask, of a study of two methods and the official code of one."""
    official = {"name": "feddpa", "variant": "official", "profile": "paper", "official_code": True}
    official |= {"training": {"batch_size": 8}}
    words = {"methods": [{"name": "local_only"}, {"name": "feddpa"}, official], "seeds": [0]}
    malformed.write(good / "studies/good.yaml", malformed.STUDY | words)
    (good / "studies/broken.yaml").write_text("title: [")
    return Project(Config(studies=("good",)), ROOT, thorough=False)


@pytest.fixture
def cells(asked: Project) -> tuple[Cell, ...]:
    return load_study("good").cells


def test_requests_for_shared_files_hold_what_their_id_says_and_nothing_of_one_cell(cells):
    for cell in cells:
        assert Cell.from_dict(json.loads(partition_request(cell))).partition_id == cell.partition_id
        assert Cell.from_dict(json.loads(plan_request(cell))).plan_id == cell.plan_id
    assert [cell.plan_needs_partition for cell in cells] == [False, False, True]
    assert len(set(map(partition_request, cells))) == 1
    assert len(set(map(plan_request, cells))) == len({cell.plan_id for cell in cells}) == 3


def test_a_cell_is_found_by_its_id_without_its_study_being_named(cells):
    cell = cells[0]
    project = Project(Config(studies=("broken",)), ROOT, thorough=False)
    assert project.cells({"cell": cell.id}) == [cell]
    assert project.cells({"partition": cell.partition_id})[0].partition == cell.partition
    assert project.cells({"plan": cell.plan_id})[0].privacy == cell.privacy
    (run,) = each("{run}", [cell])
    assert project.cells({"run": run})[0].method == cell.method


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"cell": "x"}, r"no study contains 'x'; ask for results/tables/<study>\.csv"),
        ({"study": "good", "method": "fedpda"}, "did you mean 'feddpa'"),
    ],
    ids=["an id of no study", "a method that the study lacks"],
)
def test_what_no_study_has_says_what_to_ask_for(asked, words, said):
    with pytest.raises(ConfigError, match=said):
        asked.cells(words)


@pytest.mark.slow
def test_the_version_of_a_methods_code_is_not_that_of_another(asked):
    files = [asked.method_files([method]) for method in ("feddpa", "fedrep")]
    one, other = (asked.code("train", of_method).split(", ") for of_method in files)
    assert one[0] == other[0] != one[1] != other[1]
    assert [part.split()[0] for part in one] == ["train.py", "feddpa.py"]


def test_an_audit_depends_on_the_methods_whose_scale_it_audits(asked):
    """Two methods with a public scale of their own import feddpa.py."""
    feddpa = asked.package / "methods/feddpa.py"
    found = {
        name
        for name in cases.cases()
        for file in asked.method_files(asked.audited(name))
        if feddpa in meaning.closure(file, asked.package)
    }
    scaled = [f"gaussian-scaled_by_{name}" for name in ("fedaddp", "fedglp_adp")]
    assert found == {f"{name}-{trust}" for name in scaled for trust in ("central", "local")}


@pytest.mark.slow
def test_a_template_is_part_of_what_a_script_depends_on(asked):
    template = ROOT / "workflow/report/ledger.html"
    assert "ledger.html" not in asked.code("ledger")
    assert "ledger.html" in asked.code("ledger", [template])


def test_only_methods_of_the_studies_of_the_config_count_for_what_shows_all_methods(asked):
    assert asked.methods() == ["feddpa", "local_only"]


def test_every_cell_has_its_path_and_shared_files_come_once(cells):
    assert each("a/{cell}.npz", cells) == [f"a/{cell.id}.npz" for cell in cells]
    assert each("{dataset}", cells) == ["digits"]
    assert len(each("{partition}", cells)) == 1
    assert each("{plan}", []) == []


@pytest.mark.parametrize(("marker", "failures"), tabled.table("test_project")["MARKERS"])
def test_every_failed_attempt_at_mlflow_counts_until_one_succeeds(asked, marker, failures):
    """The number is what the attempt was made with only after a good attempt, so Snakemake tries
    again after a failed one and not after a good one."""
    if marker is not None:
        Path("results/tracking").mkdir(parents=True)
        Path("results/tracking/good.done").write_text(marker)
    assert asked.failures("good") == failures


def test_the_report_is_made_with_the_settings_of_the_snakemake_that_makes_it(tmp_path):
    file = tmp_path / "config.yaml"
    given = {"device": "cpu", "studies": ["tiny"]}
    words = ['device="cpu"', 'studies=["tiny"]']
    assert settings_words(given, file) == ["--config", *words], "there is no file"
    file.write_text("device: auto\nstudies: [tiny]\n")
    assert settings_words(given, file) == ["--config", words[0]]
    assert settings_words({"device": "auto"}, file) == []


def test_an_address_is_shown_without_credentials():
    """That of a database stays: tests/test_tracking.py."""
    address = "https://me:secret@host:5000/path?token=1#x"
    assert mlflow_export.without_credentials(address) == "https://host:5000/path"
