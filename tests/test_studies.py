"""The studies of the repository: each can be run, all printed numbers are compared with something,
and the list of studies is complete."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
import yaml

from pflpipe.privacy.accounting import make_plan
from pflpipe.study import config
from pflpipe.study.check import validate
from pflpipe.study.load import study_names
from pflpipe.study.study_spec import Row

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "studies"
NAMES = study_names(FOLDER)
HEAD = ("epochs", "lr", "momentum", "weight_decay")
HEADED = ("ppsgd", "centaur", "dp_pfeddsu", "dp_fedavg_fb", "pmtl_ft")


@functools.cache
def rows_of(name: str) -> tuple[Row, ...]:
    """All rows that a study may come to, after all checks."""
    return validate(config.load(), [name])[name].everything.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_study_of_the_repository_can_be_run(name: str) -> None:
    assert rows_of(name)


@pytest.mark.slow
def test_every_printed_accuracy_stands_beside_a_run() -> None:
    printed: dict[tuple[str, str], set[float]] = {}
    for row in yaml.safe_load((FOLDER / "paper_results.yaml").read_text())["results"]:
        printed.setdefault((row["paper"], row["table"]), set()).add(row["accuracy"])
    for name in NAMES:
        paper = yaml.safe_load(config.study_file(name, FOLDER).read_text()).get("paper")
        if paper:
            printed[paper["paper"], paper["table"]] -= {row.paper_value for row in rows_of(name)}
    missing = {table: values for table, values in printed.items() if values}
    assert missing == {("DP-FedSim", "text V.B"): {78.93}}, "there the text contradicts the table"


def test_the_readme_lists_every_study() -> None:
    listed = re.findall(r"^\| (`[^|]*) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    named = [name for cell in listed for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(NAMES)


@pytest.mark.slow
def test_a_study_with_a_nominal_row_has_the_certified_version_beside_it() -> None:
    for name in NAMES:
        cells = [row.cell for row in rows_of(name)]
        private = [cell for cell in cells if cell.privacy.mechanism != "none"]
        nominal = {cell.method for cell in private if cell.departures}
        assert nominal <= {cell.method for cell in cells if not cell.departures}, name


RENYI = ("feddpa", "fedglp_adp", "dp_pfeddsu")
"""What the names of studies begin with whose paper prints Renyi accounting (Opacus' RDP, the
moments accountant). DP-FedSim's names no accountant, APPFL's noise is Laplace's."""


@pytest.mark.slow
def test_tables_of_papers_are_calibrated_by_the_accountant_that_the_paper_prints() -> None:
    for name in NAMES:
        asked = {row.cell.privacy for row in rows_of(name) if row.cell.privacy.epsilon is not None}
        expected = "rdp" if name.startswith(RENYI) else "exact"
        assert {privacy.accountant for privacy in asked} <= {expected}, name


@pytest.mark.slow
def test_in_dp_pfeddsus_tables_ppsgd_trains_its_own_head_as_the_paper_prints_for_all() -> None:
    for name in ("dp_pfeddsu_table2", "dp_pfeddsu_table3", "dp_pfeddsu_figure2"):
        cells = [row.cell for row in rows_of(name) if row.cell.method in HEADED]
        heads = {tuple(cell.hyperparameters[f"head_{word}"] for word in HEAD) for cell in cells}
        assert heads == {(15, 0.01, 0.9, 1e-4)}


@pytest.mark.slow
def test_rows_of_an_official_code_have_the_training_of_that_code() -> None:
    studies = ["feddpa_table1_femnist", "feddpa_table1_svhn", "feddpa_table2"]
    studies += ["quickstart_published"]
    named = [(name, row.cell) for name in studies for row in rows_of(name)]
    official = {(name, cell.method): cell.training for name, cell in named if cell.official_code}
    dropping = {key for key, training in official.items() if training.drop_last}
    assert dropping == {("feddpa_table1_svhn", "feddpa"), ("feddpa_table2", "feddpa")}
    falling = {key: t.lr_decay for key, t in official.items() if t.lr_decay != 1}
    assert falling == {("quickstart_published", "dp_fedsam"): 0.998}


@pytest.mark.slow
def test_fedglp_adp_compares_its_noise_with_that_at_epsilon_6_of_the_same_accountant() -> None:
    """Equation 11 is about one noise at two budgets; a fixed multiplier is the paper's, whose
    accountant is Renyi's."""
    # That one measures seconds, in three rounds.
    names = {name for name in NAMES if name.startswith("fedglp_adp")} - {"fedglp_adp_table6"}
    cells = [row.cell for name in names for row in rows_of(name)]
    ours = [cell for cell in cells if cell.method == "fedglp_adp"]
    asked = {(c.privacy, c.training.rounds, c.hyperparameters["sigma_0"]) for c in ours}
    assert {rounds for _, rounds, _ in asked} == {20, 40}
    for privacy, rounds, sigma_0 in asked:
        accountant = "rdp" if privacy.epsilon is None else privacy.accountant
        six = dataclasses.replace(privacy, epsilon=6, noise_multiplier=None, accountant=accountant)
        plan = make_plan(six, rounds=rounds, sample_rate=1.0, clients=10)
        assert sigma_0 == pytest.approx(plan.noise_multiplier, abs=5e-4)
