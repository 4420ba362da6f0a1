"""docs/reproduction.md: made of docs/reproduction/ alone, in parts, and every number beside the
printed one."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import fake_results
import malformed
from pages import blocks, publish, reproduction
from pflpipe.errors import DataError
from pflpipe.files import read_json
from pflpipe.report import tidy
from pflpipe.study.load import load_study
from pflpipe.study.study_spec import Study

STUDY = malformed.STUDY | {
    "title": "FedDPA, Table 2, one column",
    "partition": {"kind": "dirichlet", "clients": 12, "alpha": 1, "min_size": 6},
    "training": malformed.STUDY["training"] | {"rounds": fake_results.ROUNDS},
    "profile": "paper",
    "seeds": [0],
    "methods": [
        {"name": "local_only"},
        {"name": "dp_fedavg"},
        {"name": "dp_fedavg", "variant": "clip norm 2", "privacy": {"clip_norm": 2}},
        {"name": "feddpa", "hyperparameters": {"tau": 0.4}},
    ],
    "paper": {
        "paper": "FedDPA",
        "table": "Table 2",
        "metric": "personal_common",
        "match": {"partition.alpha": "partition_alpha"},
        "methods": {"dp_fedavg": "DP-FedAvg", "feddpa": "FedDPA"},
    },
    "layout": {"columns": ["partition.alpha"]},
}
"""The paper prints 42.61 and 49.75; the made-up runs have 73 of DP-FedAvg and FedDPA."""


@pytest.fixture
def made(tmp_path: Path) -> tuple[Study, Path]:
    malformed.write_good(tmp_path)
    malformed.write(tmp_path / "studies/good.yaml", STUDY)
    study = load_study("good", tmp_path / "studies")
    return study, fake_results.write(study, tmp_path)


def export(study: Study, results: Path, words: str) -> Path:
    part = tidy.tested(study, results)
    frame = tidy.tidy(part, results)
    told = dict.fromkeys(frame["cell"], words)
    return reproduction.export(study, frame, told, results.parent / "docs")


def page(results: Path) -> str:
    root = results.parent
    written = reproduction.write(root / "docs", root / "studies")
    assert written == root / "docs/reproduction.md"
    return written.read_text()


def write_note(root: Path, name: str, words: str) -> None:
    path, begin = root / "docs/reproduction.md", f"<!-- note: {name} -->\n"
    path.write_text(path.read_text().replace(begin, f"{begin}\n{words}\n"))


def methods(target: Path) -> list[tuple[str, str | None]]:
    return [(row.method, row.variant) for row in tidy.read(target).itertuples()]


def without(results: Path, method: str) -> None:
    (results / "scores/good" / f"{method}.csv").unlink()


def test_methods_with_a_run_that_is_not_trained_and_tested_are_not_finished(made):
    study, results = made
    assert tidy.tested(study, results).rows == study.rows
    without(results, "feddpa")
    shutil.rmtree(next((results / "runs").glob("*local_only*")))
    left = tidy.tested(study, results)
    assert [(row.cell.method, row.variant) for row in left.rows] == [
        *(("dp_fedavg", ""), ("dp_fedavg", "clip norm 2"))
    ]
    scores = results / "scores/good/dp_fedavg.csv"
    other = next(row.cell.id for row in study.rows if row.variant)
    lines = scores.read_text().splitlines(keepends=True)
    scores.write_text("".join(line for line in lines if not line.startswith(other)))
    with pytest.raises(DataError, match="study good: no method is trained and tested; snakemake"):
        tidy.tested(study, results)


def test_a_study_comes_in_parts_and_keeps_what_an_earlier_machine_measured(made, tmp_path):
    study, results = made
    kept = shutil.copytree(results, tmp_path / "kept")
    without(results, "dp_fedavg")
    without(results, "local_only")
    target = export(study, results, "Measured on the first.")
    assert methods(target) == [("feddpa", None)]
    assert "1 of 4 runs are finished." in page(results)
    shutil.rmtree(results)
    shutil.copytree(kept, results)
    without(results, "feddpa")
    assert export(study, results, "Measured on the second.") == target
    assert methods(target) == [
        *(("local_only", None), ("dp_fedavg", None), ("dp_fedavg", "clip norm 2")),
        ("feddpa", None),
    ]
    told = [
        words for key, words in read_json(target.with_suffix(".json")).items() if key != "sha256"
    ]
    assert sorted(told) == ["Measured on the first.", *["Measured on the second."] * 3]
    assert "runs are finished" not in page(results)


def test_a_run_that_was_made_again_replaces_what_was_there(made):
    study, results = made
    frame = tidy.read(export(study, results, "Measured on the first."))
    frame["personal_common"] = 50.0
    told = dict.fromkeys(frame["cell"], "Measured on the second.")
    target = reproduction.export(study, frame, told, results.parent / "docs")
    assert set(tidy.read(target)["personal_common"]) == {50.0}
    assert "Measured on the first." not in target.with_suffix(".json").read_text()


def test_the_page_has_printed_and_honest_numbers_and_is_made_of_the_committed_files(made):
    study, results = made
    target = export(study, results, "Measured here.")
    ours = tidy.read(target).set_index("method")["personal_common"]
    plain = ours["dp_fedavg"].iloc[0]
    listed = page(results).replace("\\_", "_").splitlines()
    assert [line for line in listed if ", printed " in line] == [
        f"- dp_fedavg on digits, α = 1: {plain:.1f}, printed 42.61, {plain - 42.61:+.1f}, under an "
        "ε that is 8.",
        f"- feddpa on digits, α = 1: {ours['feddpa']:.1f}, printed 49.75, "
        f"{ours['feddpa'] - 49.75:+.1f}, under an ε that is 8.",
    ], "a variation has no printed number to be far from"
    assert "Farther than 3 points from the print, not explained:" in listed
    write_note(results.parent, "good", "Why: the multiplier is not printed.")
    text = page(results)
    shutil.rmtree(results)
    assert page(results) == text
    lines = text.replace("\\_", "_").splitlines()
    assert f"| FedDPA | {ours['feddpa']:.1f} |" in lines
    assert "| – paper | (49.75) |" in lines
    assert "Why: the multiplier is not printed." in lines
    assert "[Its study](../studies/good.yaml)" in text
    assert "[its record](reproduction/good.json)" in text
    assert "not explained:" not in text


def test_three_points_are_near(made):
    study, results = made
    frame = tidy.read(export(study, results, "Measured here."))
    frame["personal_common"] = frame["paper_value"]
    assert not list(reproduction.far(frame))
    frame["personal_common"] = [value and value - 3.01 for value in frame["paper_value"]]
    assert len(list(reproduction.far(frame))) == 2
    varied = frame["variant"] == "clip norm 2"
    frame.loc[varied, "paper_value"], frame.loc[varied, "paper_metric"] = 20.0, "personal_own"
    assert [text.partition(" on ")[0] for text in reproduction.far(frame)] == [
        *("dp_fedavg", "dp_fedavg (clip norm 2)", "feddpa")
    ]


def test_rows_of_another_version_of_the_study_are_refused(made):
    study, results = made
    export(study, results, "Measured here.")
    malformed.write(results.parent / "studies/good.yaml", STUDY | {"seeds": [1]})
    with pytest.raises(
        DataError, match=r"good.csv has runs or columns that .*good.yaml does not have"
    ):
        page(results)


def test_rows_without_a_word_of_where_they_come_from_are_refused(made):
    study, results = made
    target = export(study, results, "Measured here.")
    target.with_suffix(".json").write_text("{}")
    with pytest.raises(DataError, match=r"good.csv and good.json are of different runs"):
        page(results)


def test_a_table_without_printed_numbers_comes_to_the_same_page(tmp_path, monkeypatch):
    """Such as those that papers print as images: nothing to be far from."""
    malformed.write_good(tmp_path)
    rows = {"metric": "personal_common", "rows": {"feddpa": "FedDPA"}}
    document = {key: value for key, value in STUDY.items() if key != "paper"}
    malformed.write(tmp_path / "studies/good.yaml", document | {"layout": STUDY["layout"] | rows})
    fake_results.write(load_study("good", tmp_path / "studies"), tmp_path)
    monkeypatch.chdir(tmp_path)
    publish.write(["good"])
    assert not (tmp_path / "docs/results").exists()
    lines = (tmp_path / "docs/reproduction.md").read_text().splitlines()
    assert any(line.startswith("| FedDPA |") for line in lines)
    differing = ("– paper", "points from the print")
    assert not [line for line in lines if any(words in line for words in differing)]
    write_note(tmp_path, "good", "Why so low: see the noise.")
    text = reproduction.write(tmp_path / "docs", tmp_path / "studies").read_text()
    assert "Why so low: see the noise." in text.splitlines()


def test_verdicts_stand_on_top_of_the_page(made):
    study, results = made
    export(study, results, "Measured here.")
    assert "None holds." not in page(results)
    write_note(results.parent, "verdicts", "## Verdicts\n\nNone holds.")
    text = page(results)
    assert text.index("None holds.") < text.index(f"## {STUDY['title']}")
    assert text.count("None holds.") == 1


ROUNDS = {
    "dp_fedsim_readings": (
        "dp_fedsim_table1_cifar10",
        [
            *("FedAvg", "DP-FedAvg", "DP-FedSim", "DP-FedSAM", "DP-FedSAM-top-k"),
            *("FedAvg, ten clients", "DP-FedSim, ten clients", "DP-FedAvg, ten clients"),
        ],
    ),
    "dp_fedsim_readings_fashion": (
        "dp_fedsim_table1_fashion",
        ["DP-FedAvg", "FedAvg", "DP-FedSAM-top-k", "DP-FedSim", "DP-FedSAM"],
    ),
    "dp_fedsim_readings_sgd": ("dp_fedsim_table1_cifar10", ["FedAvg", "DP-FedAvg", "DP-FedSim"]),
    "dp_fedsim_readings_sgd_fashion": ("dp_fedsim_table1_fashion", ["FedAvg", "DP-FedAvg"]),
    "dp_fedsim_readings_table2": (
        "dp_fedsim_table1_cifar10",
        ["base", "base + MSA", "base + AGC", "base + AGC + MSA (DP-FedSim)"],
    ),
    "feddpa_readings": ("feddpa_table2_alpha1", ["FedDPA by its official code"]),
    "feddpa_official_code": (
        "feddpa_table2_alpha1",
        ["FedDPA by its official code, its own values"],
    ),
}
"""Files of rounds: the page with their table, and the rows as the table names them, in order."""


@pytest.mark.parametrize("study", ROUNDS)
def test_the_table_of_rounds_and_the_number_of_runs_are_what_the_file_of_rounds_gives(study):
    folder = malformed.ROOT / "docs/reproduction"
    page, titles = ROUNDS[study]
    spec = load_study(study, malformed.ROOT / "studies")
    text = blocks.written(malformed.ROOT / "docs/reproduction.md", f"note: {page}")
    frame = pd.read_csv(folder / f"rounds/{study}.csv", keep_default_na=False)
    names = list(frame.columns[: frame.columns.get_loc("seed")])
    rows = [rows for _, rows in frame.groupby(names, sort=False)]
    runs = len(frame[[*names, "seed"]].drop_duplicates())
    no_control = [row for row in spec.rows if "zero" not in row.variant]
    assert f"{runs} of its {len(no_control)} runs" in text
    whole = spec.rows[0].cell.training.rounds
    for name, of_row in zip(titles, rows, strict=True):
        for seed, rounds in of_row.groupby("seed"):
            done = len(rounds)
            title = name if done == whole else f"{name} (round {done} of {whole})"
            assert list(rounds["round"]) == list(range(1, done + 1))
            values = rounds[spec.best_round]
            numbers = (values.iloc[-1], values.iloc[-5:].mean(), values.max())
            columns = [str(seed), *(f"{number:.1f}" for number in numbers)]
            assert f"| {title} | {' | '.join(columns)} |" in text


def test_every_file_of_rounds_is_compared_with_its_table():
    folder = malformed.ROOT / "docs/reproduction/rounds"
    assert {file.stem for file in folder.glob("*.csv")} == set(ROUNDS)


def test_without_a_study_there_is_no_page(tmp_path):
    assert reproduction.write(tmp_path, tmp_path) is None
