"""``report: best_round``: what the test data chose stands beside the last round, in rows without a
guarantee, and nothing else reads it."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import fake_results
import malformed
import tabled
from pflpipe.errors import ConfigError
from pflpipe.report import compare, paper_table, tidy
from pflpipe.report.comparison import BEST_ROUND_WORDS
from pflpipe.report.summary import summarise
from pflpipe.study.load import load_study
from pflpipe.study.study_spec import PaperLayout, Study

COLUMN = "best_round_personal_common"
LAYOUT = PaperLayout(("privacy.epsilon",), "personal_common", {"feddpa": "FedDPA"}, "", "layout")
WITH_IT = {"fedavg", "feddpa (official code)"}


@pytest.fixture(scope="module")
def study() -> Study:
    training = replace(fake_results.BASE.training, evaluate_every=1)
    base = replace(fake_results.BASE, training=training)
    plain = fake_results.study(methods=("fedavg", "feddpa", "feddpa!"), base=base)
    rows = [replace(row, variant="official code" * row.cell.official_code) for row in plain.rows]
    return replace(plain, rows=tuple(rows), layout=LAYOUT, best_round="personal_common")


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose second of four rounds is the best, with 80 + seed percent."""
    plain = replace(study, best_round="")
    folder = fake_results.write(plain, tmp_path_factory.mktemp("best"))
    for row in study.rows:
        file = folder / "runs" / row.run / "rounds.csv"
        table = pd.read_csv(file)
        table.loc[1, "personal_common"] = 80.0 + row.cell.seed
        table.to_csv(file, index=False)
    return folder


@pytest.fixture(scope="module")
def frame(study: Study, results: Path) -> pd.DataFrame:
    return tidy.tidy(study, results)


def test_the_best_round_is_the_highest_of_the_run_and_no_certified_row_has_one(study, frame):
    for _, row in frame.iterrows():
        expected = None if row["claim"] == "certified" else 80.0 + row["seed"]
        assert row[COLUMN] == expected or (expected is None and pd.isna(row[COLUMN]))
    assert {"certified", "nominal", "none"} == set(frame["claim"])


def test_only_a_study_that_reports_it_has_the_column(study, results, frame):
    plain = replace(study, best_round="")
    assert list(tidy.tidy(plain, results)) == [name for name in frame if name != COLUMN]


def test_the_summary_has_it_beside_the_last_round_and_never_bold(study, frame):
    table = summarise(study, frame)
    place = table.header.index(BEST_ROUND_WORDS)
    assert table.header[place - 1] == "personal common"
    entries = {line[0].text: line[place] for section in table.sections for line in section}
    assert {name for name, entry in entries.items() if entry.text} == WITH_IT < entries.keys()
    assert {entries[name].text for name in WITH_IT} == {"81.0 ± 1.0"}
    assert not any(entry.bold for entry in entries.values())


def test_the_papers_table_has_it_below_ours(study, frame):
    table = paper_table.table(study, LAYOUT, frame)
    lines = [line for section in table.sections for line in section]
    places = [i for i, line in enumerate(lines) if BEST_ROUND_WORDS in line[0].text]
    above = {lines[i - 1][0].text for i in places}
    assert above == {"fedavg", "FedDPA (official code) [nominal]"}
    assert {entry.text for i in places for entry in lines[i][1:]} <= {"81.0 ± 1.0", ""}
    assert not any(entry.bold for i in places for entry in lines[i])


def test_no_comparison_of_methods_reads_it(study, results, frame):
    tidy.write(frame, results / "tables/tiny.csv")
    with pytest.raises(ConfigError, match=f"metric '{COLUMN}' does not exist"):
        list(compare.lines("tiny:fedavg", "tiny:feddpa", results, COLUMN))


def test_the_released_model_alone_is_enough_for_its_accuracy(tmp_path):
    malformed.write_good(tmp_path)
    words = tabled.table("test_best_round")
    words["training"] = malformed.STUDY["training"] | words["training"]
    malformed.write(tmp_path / "studies/good.yaml", malformed.STUDY | words)
    assert load_study("good", tmp_path / "studies").best_round == "global_common"
