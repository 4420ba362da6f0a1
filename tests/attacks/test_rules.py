"""Attacks in the workflow: one command from a study to a image, no training, and what an edit
repeats."""

from pathlib import Path

import pandas as pd
import pytest

import malformed
from pflpipe.attacks import jobs as attacks
from pflpipe.errors import ConfigError
from pflpipe.pipeline.project import Project
from pflpipe.study.config import Config
from pflpipe.study.load import load_study
from test_workflow import STUDY, snakemake, write_project

ROOT = Path(__file__).resolve().parents[2]
SMALL = STUDY | {"methods": [{"name": "local_only"}, {"name": "dp_fedavg"}]}
SMALL["partition"] = {"kind": "dirichlet", "clients": 16, "alpha": 0.5, "min_size": 8}
FIGURE = "results/figures/tiny/{}.png"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    malformed.write(tmp_path / "studies/tiny.yaml", SMALL)
    return tmp_path


@pytest.mark.pipeline
def test_the_picture_of_an_attack_needs_no_training_and_leaves_out_what_it_is_not_about(project):
    snakemake(project, FIGURE.format("membership"))
    drawn, results = project / FIGURE.format("membership"), project / "results"
    assert all(drawn.with_suffix(kind).is_file() for kind in (".png", ".svg", ".csv"))
    assert not any((results / name).exists() for name in ("runs", "scores"))
    (attacked,) = (results / "attacks/membership").iterdir()
    assert "dp_fedavg" in attacked.name
    table = pd.read_csv(drawn.with_suffix(".csv"))
    assert table["method"].unique() == ["dp_fedavg"]


@pytest.mark.slow
def test_an_attack_depends_on_its_own_code_and_its_methods_and_not_on_what_draws_it(
    project, monkeypatch
):
    monkeypatch.chdir(project)
    package = project / "src/pflpipe"

    def parts() -> dict[str, str]:
        code = Project(Config(studies=("tiny",)), project, thorough=False).code
        files = [package / f"{name}.py" for name in ("attacks/membership", "methods/dp_fedavg")]
        return {"attack": code("attack", files), "figure": code("attack_figure")}

    known = [parts()]

    def changed_by(name: str) -> set[str]:
        with (package / f"{name}.py").open("a") as file:
            file.write("\nedited = True\n")
        known.append(parts())
        before, after = known[-2:]
        return {part for part in before if before[part] != after[part]}

    for name in ("methods/dp_fedavg", "simulation/rounds", "privacy/mechanism"):
        assert "attack" in changed_by(name)
    for name in ("attacks/one_run", "methods/feddpa", "report/tables"):
        assert "attack" not in changed_by(name)
    assert changed_by("attacks/membership") == {"attack", "figure"}
    assert changed_by("report/attacks/membership") == {"figure"}


@pytest.mark.pipeline
def test_a_study_without_a_run_to_attack_ends_snakemake_with_one_line_before_any_job(project):
    malformed.put("methods", [{"name": "local_only"}], "studies/tiny.yaml")(project)
    result = snakemake(project, FIGURE.format("one_run"), code=2)
    said = "error: study tiny: no run for attack one_run; expected noise"
    assert result.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in result.stderr
    assert not (project / "results").exists()


def test_an_attack_that_does_not_exist_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'membership'"):
        attacks.load("membrship")


@pytest.mark.parametrize("study", ["attacks_digits", "attacks_cifar10"])
@pytest.mark.parametrize("name", attacks.NAMES)
def test_the_studies_for_attacks_have_budgets_and_enough_clients(study, name):
    """At least three budgets, one of them none, and a hundred clients who toss a coin."""
    cells = attacks.cells(name, load_study(study, ROOT / "studies"))
    private = {(cell.privacy.epsilon, cell.privacy.noise_multiplier) for cell in cells}
    assert len(private) >= 4
    clients = {cell.privacy: 0 for cell in cells}
    for cell in cells:
        clients[cell.privacy] += cell.partition.clients - cell.partition.clients // 4
    assert min(clients.values()) >= 200


def test_few_clients_are_refused(project, monkeypatch):
    monkeypatch.chdir(project)
    malformed.put("partition.clients", 11, "studies/tiny.yaml")(project)
    with pytest.raises(ConfigError, match="study tiny: no run for attack membership"):
        attacks.cells("membership", load_study("tiny"))
