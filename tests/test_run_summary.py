"""What is said at the end points to files that are there, and states no epsilon that does not
hold."""

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import fake_results
import malformed
from fake_results import PUBLIC
from pflpipe.cells import Cell, Partition, Privacy
from pflpipe.pipeline import run_summary
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan
from pflpipe.report import answer, tidy
from pflpipe.study import config
from pflpipe.study.load import load_outline
from pflpipe.study.study_spec import Outline

RESULTS = Path("results")
TABLE, DATABASE = RESULTS / "tables/good.csv", "sqlite:///results/mlflow.db"
NOT_SHOWN = "learning together is not shown to help by 1 point"
ACCURACY = {"fedavg": 90.0, "dp_fedavg": 60.0, "feddpa": 70.0, "fedper": 50.0, "fedrep": 40.0}


@pytest.fixture
def outline(good: Path) -> Outline:
    """A study whose table is there: five methods at two budgets, FedDPA's nominal."""
    malformed.put("methods", [{"name": name} for name in ACCURACY])(good)
    malformed.put("axes", {"privacy.epsilon": [2, 8]})(good)
    found = load_outline("good")
    table(found)
    return found


def table(outline: Outline, **changes: object) -> None:
    records = []
    for cell in outline.study().cells:
        claim = {"feddpa": "nominal"} | dict.fromkeys(PUBLIC, "none")
        epsilon = cell.privacy.epsilon
        record = {"cell": cell.id, "method": cell.method, "seed": cell.seed, "delta": 0.001}
        record |= {"claim": claim.get(cell.method, "certified"), "rounds": cell.training.rounds}
        record |= {"personal_own": ACCURACY.get(cell.method, 50.0) + 2 * cell.seed}
        record |= {"epsilon_central": epsilon and epsilon * (5 if cell.method == "feddpa" else 1)}
        record |= {"epsilon_nominal": epsilon, "upload_bytes_per_round": 1.0} | changes
        records.append(record)
    tidy.write(pd.DataFrame(records, columns=list(tidy.COLUMNS)), TABLE)


def lines(outline: Outline, since: float = 0.0, address: str = DATABASE) -> list[str]:
    return list(run_summary.lines([outline], config.load(), address, since))


def rows_of(outline: Outline) -> list[str]:
    return [line for line in lines(outline) if "personal accuracy" in line]


def test_the_best_rows_are_certified_ones_at_the_largest_budget(outline):
    assert rows_of(outline) == [
        "  dp_fedavg: personal accuracy 61.0 ± 1.4 %, certified, ε = 8",
        "  fedper: personal accuracy 51.0 ± 1.4 %, certified, ε = 8",
        "  fedrep: personal accuracy 41.0 ± 1.4 %, certified, ε = 8",
    ]


def test_unreviewed_rows_are_shown_beside_certified_ones_with_their_word(outline):
    frame = tidy.read(TABLE)
    claim = frame["claim"].mask(frame["method"] == "fedper", "unreviewed")
    tidy.write(frame.assign(claim=claim), TABLE)
    claims = [row.split(", ")[1] for row in rows_of(outline)]
    assert claims == ["certified", "unreviewed", "certified"]


def test_nominal_rows_are_shown_with_their_honest_epsilon_or_not_at_all(outline):
    assert "  warning: 4 of 18 rows state a nominal ε; read the honest one" in lines(outline)
    table(outline, claim="nominal", epsilon_central=40.0)
    assert ["honest 40" in row for row in rows_of(outline)] == [True] * 3


def test_files_are_named_that_are_there(outline):
    assert lines(outline)[0] == "good: results/tables/good.md, .tex, .csv"
    assert not re.search("figures|MLflow", "".join(lines(outline)))
    (RESULTS / "figures/good").mkdir(parents=True)
    (RESULTS / "report.html").write_text("new")
    (RESULTS / "ledger.html").write_text("old")
    os.utime(RESULTS / "ledger.html", (1, 1))
    found = lines(outline, since=1000.0)
    assert {"  figures: results/figures/good/", "  results/report.html"} <= set(found)
    assert "ledger" not in "".join(found)


def test_mlflow_is_named_where_it_is_and_how_it_is_opened(outline):
    done = RESULTS / "tracking/good.done"
    done.parent.mkdir()
    done.write_text("sent")
    words = f"{DATABASE} --artifacts-destination results/mlartifacts, exp"
    assert words in "".join(lines(outline))
    remote = {"address": "http://me:secret@m"}
    assert "  MLflow: experiment good at http://m" in lines(outline, **remote)
    spaced = "'sqlite:////a b%2/c.db' --artifacts-destination /a%20b%252/mlartifacts, exp"
    assert spaced in "".join(lines(outline, address="sqlite:////a b%2/c.db"))
    page = "http://m/#/experiments/7/runs"
    done.write_text(f"done: 1, page {page}\nfailed before: 1\n")
    assert f"  MLflow: {page}" in lines(outline, **remote)
    assert any(line.endswith(f"/mlartifacts, {page}") for line in lines(outline))
    done.write_text("pending: no answer")
    assert "not sent yet" in "".join(lines(outline))


def test_warnings_of_this_time_are_repeated_and_many_are_counted(outline):
    for number in range(run_summary.MOST + 2):
        file = run_summary.LOGS / f"train/{number}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("round 1/2\nwarning: no checkpoint\nround 2/2\n")
    os.utime(run_summary.LOGS / "train/0.log", (1, 1))
    found = lines(outline, since=1000.0)
    assert sum("warning: no checkpoint" in line for line in found) == run_summary.MOST
    assert found[-1].startswith("and 1 more")


def test_diverged_runs_are_counted(outline):
    table(outline, diverged_round=3)
    assert "  warning: 18 of 18 runs diverged to values that are not finite" in lines(outline)


def test_an_epsilon_at_a_delta_of_one_over_m_is_warned_of(outline):
    table(outline, clients=10)
    assert "in clear" not in "".join(lines(outline))
    table(outline, clients=10, delta=0.5)
    words = "δ = 0.5 is not below 1/M = 0.1: its ε allow one client to be published in clear"
    assert lines(outline)[-2].endswith(f"warning: {words}")


def test_a_table_of_another_version_costs_its_rows_and_no_more(outline):
    malformed.put("seeds", [0, 1, 2])(Path())
    found = lines(load_outline("good"))
    assert any("warning: " in line and "another version" in line for line in found)


def test_a_study_without_a_table_is_not_mentioned(outline):
    TABLE.unlink()
    assert lines(outline) == []


@pytest.fixture
def answered(outline: Outline) -> Outline:
    """The study with learning alone, of which two people gain, one loses, and one stays."""
    malformed.put("methods", [{"name": name} for name in ("local_only", "dp_fedavg")])(Path())
    malformed.put("seeds", [0, 1, 2])(Path())
    found = load_outline("good")
    table(found, rounds=2)
    scores = {"local_only": (50, 50, 50, 50), "dp_fedavg": (60, 60, 40, 50)}
    people = [
        {"method": cell.method, "cell": cell.id, "client": person, "train_size": size}
        | {"personal_own": scores[cell.method][person]}
        for cell in found.study().cells
        for person, size in enumerate((3, 4, 8, 9))
    ]
    (RESULTS / "scores/good").mkdir(parents=True)
    for method, rows in pd.DataFrame(people).groupby("method"):
        rows.drop(columns="method").to_csv(RESULTS / f"scores/good/{method}.csv", index=False)
    return found


UNDECIDED = f"{NOT_SHOWN}; it is undecided whether personalization pays"


@pytest.mark.parametrize(
    ("alone", "looks", "word"),
    [
        (50.0, [3], "learning together helps; personalization pays: train dp_fedavg"),
        (50.0, [*range(3, 60)], UNDECIDED),
        (61.0, [3], UNDECIDED),
        (70.0, [3], f"{NOT_SHOWN}; personalization does not pay: learn alone"),
    ],
    ids=["pays", "read too often", "undecided", "does not pay"],
)
def test_five_lines_say_whether_it_helps_beside_what_whom_what_is_protected_and_what_decides(
    alone, looks, word, answered
):
    malformed.put("looks", looks)(Path())
    frame = tidy.read(TABLE)
    is_alone = frame["method"] == "local_only"
    frame.loc[is_alone, "upload_bytes_per_round"] = 0
    frame.loc[is_alone, "personal_own"] = alone + frame.loc[is_alone, "seed"].astype(float)
    tidy.write(frame, TABLE)
    verdict, beside, who, protects, decides = lines(load_outline("good"))[-5:]
    assert verdict.startswith(f"  ε = 2: {word}")
    assert f"; ε = 8: {word}" in verdict
    assert f"{62 - alone - 1:+.1f}".replace("-", "−") in beside
    assert "beside learning alone" in beside
    assert "50 % gain and 25 % lose, " in who
    assert "100 % gain and 0 % lose with 3 to 4 rows" in who
    assert "at most 8, protects one user with all of its rows" in protects
    assert "no search was made" in protects
    assert ("decided" in decides) == ("undecided" not in word)
    asks_for_more = "would decide it" in decides
    assert ("the last look of this one is at 3" in decides) == (asks_for_more and looks == [3])
    assert ("plan a study with more seeds" in verdict) == ("undecided" in word and looks == [3])


@pytest.mark.usefixtures("answered")
def test_what_is_protected_is_said_of_certified_rows_also_beside_rows_with_a_larger_epsilon():
    study = load_outline("good").study()
    frame = tidy.read(TABLE)
    nominal = frame[frame["claim"] == "certified"].tail(1)
    beside = pd.concat([frame, nominal.assign(claim="nominal", epsilon_central=99.0)])
    said = answer.protected(study, beside, RESULTS)
    assert said == answer.protected(study, frame, RESULTS)
    alone = beside[beside["claim"] == "nominal"]
    assert "at most 99" in answer.protected(study, alone, RESULTS)


BUDGET = fake_results.BASE.privacy
CELL = replace(
    fake_results.BASE, partition=Partition("natural"), privacy=replace(BUDGET, delta=1e-5)
)


def study_of(first: Cell = CELL) -> SimpleNamespace:
    """Two runs of ten rounds, the first of which is a row twice, and one without noise."""
    rows = (("a", first), ("a", first), ("b", CELL), ("c", replace(CELL, privacy=Privacy())))
    return SimpleNamespace(rows=[SimpleNamespace(key=key, cell=cell) for key, cell in rows])


def test_the_epsilon_of_all_runs_is_that_of_their_rounds_together(monkeypatch):
    plan = Plan("gaussian", 2, 1.0, 30.0, sample_rate=1.0, rounds=10, delta=1e-5, clients=60)
    monkeypatch.setattr(answer, "planned", lambda *_: SimpleNamespace(plan=plan))
    twenty = accounting.epsilon(replace(plan, rounds=20), 1e-5)
    assert answer.epsilon_of_all(study_of(), RESULTS) == pytest.approx(twenty, rel=0.02)
    dealt = {"partition": fake_results.BASE.partition}
    for change in (dealt, {"privacy": BUDGET}, {"departures": ("no clip",)}):
        assert answer.epsilon_of_all(study_of(replace(CELL, **change)), RESULTS) is None
