"""Where, with what and when the runs of a study were trained, as they say it of themselves."""

import pytest

import fake_results
import tabled
from pflpipe.files import read_json, write_json
from pflpipe.methods import registry
from pflpipe.report import measured_on
from pflpipe.report.tidy import tidy

TABLES = tabled.table("test_measured_on")


@pytest.fixture
def made(tmp_path):
    """A study of two methods and two seeds, whose runs took a second each."""
    study = fake_results.study(methods=("local_only", "dp_fedavg"), seeds=(0, 1), epsilons=(2.0,))
    return study, fake_results.write(study, tmp_path)


def trained(results, cell, **program) -> None:
    """Say something else of how the run of a cell was trained."""
    file = results / "runs" / registry.run_id(cell) / "run.json"
    record = read_json(file)
    write_json(file, record | {"program": record["program"] | program})


def test_runs_that_were_trained_alike_are_told_in_one_sentence(made):
    study, results = made
    sentence = measured_on.of_study(study, tidy(study, results), results)
    start, end = "Measured on A processor, 2 cores, Python 3, torch 2, commit 1234abc, ", " runs."
    assert sentence.startswith(start)
    assert sentence.endswith(f", 4 s of training in 4{end}")


@pytest.mark.parametrize(("program", "words"), TABLES["PROGRAMS"])
def test_a_run_that_was_trained_otherwise_has_a_sentence_of_its_own(made, program, words):
    study, results = made
    other = study.cells[-1]
    trained(results, other, **program)
    told = measured_on.of_cells(study, tidy(study, results), results)
    assert words in told.pop(other.id)
    assert set(told) == {cell.id for cell in study.cells[:-1]}
    (rest,) = set(told.values())
    assert rest.endswith(", 3 s of training in 3 runs.")
    assert measured_on.of_study(study, tidy(study, results), results).count("Measured on") == 2


def test_cells_that_share_a_run_count_its_seconds_once(tmp_path):
    study = fake_results.study(methods=("dp_fedavg", "dp_fedavg_fb"), seeds=(0,), epsilons=(2.0,))
    assert len({registry.run_id(cell) for cell in study.cells}) == 1
    results = fake_results.write(study, tmp_path)
    sentence = measured_on.of_study(study, tidy(study, results), results)
    assert sentence.endswith(", 1 s of training in 1 run.")
