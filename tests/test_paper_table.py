"""The table in a paper's layout: every run in its place, honest numbers below it, and no claim
without its mark."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import fake_results
import malformed
from pflpipe.cells import Privacy
from pflpipe.report import paper_table
from pflpipe.report.render_table import Table, latex, markdown
from pflpipe.report.tables import write_study
from pflpipe.report.tidy import tidy
from pflpipe.study import documents, layouts
from pflpipe.study.study_spec import Chosen, PaperLayout, Row, Study

FEDDPA = "FedDPA & co_1 (50%)"
OFFICIAL = f"{FEDDPA} (official code) [nominal]"
NAMES = {"dp_fedavg": "DP-FedAvg", "feddpa": FEDDPA}
LAYOUT = PaperLayout(
    ("privacy.epsilon",), "personal_common", NAMES, "FedDPA, Table 1", "studies/tiny.yaml: layout"
)


@pytest.fixture(scope="module")
def study() -> Study:
    """A study whose FedDPA of the official code is an entry with a label."""
    plain = fake_results.study()
    labels = ["official code" if row.cell.official_code else "" for row in plain.rows]
    rows = map(lambda row, label: replace(row, variant=label), plain.rows, labels)
    return replace(plain, rows=tuple(rows), layout=LAYOUT)


@pytest.fixture
def made(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with scores that are easy to follow: DP-FedAvg 60, FedDPA 63, both official 80, per
    seed -1, 0, +1."""
    levels = {"local_only": 40.0, "fedavg": 90.0, "dp_fedavg": 60.0, "feddpa": 63.0}
    made = frame.copy()
    made["personal_common"] = made["method"].map(levels) + made["seed"].astype(float) - 1
    made.loc[made["claim"] == "nominal", "personal_common"] += 17.0
    return made


def of(frame: pd.DataFrame, method: str, epsilon: float | None = None) -> pd.Series:
    """Which lines are of a method, at this budget or at any."""
    at = True if epsilon is None else frame["epsilon_target"] == epsilon
    return (frame["method"] == method) & at


def only(study: Study, frame: pd.DataFrame, keep: Callable) -> tuple[Study, pd.DataFrame]:
    """The study and its frame with some of their rows."""
    kept = [bool(keep(row)) for row in study.rows]
    rows = tuple(itertools.compress(study.rows, kept))
    return replace(study, rows=rows), frame[kept].reset_index(drop=True)


def texts(table: Table) -> dict[str, tuple[str, ...]]:
    """Every line of the table by the name of its method and its own label."""
    found: dict[str, tuple[str, ...]] = {}
    method = ""
    for name, *entries in itertools.chain(*table.sections):
        method = method if name.text.startswith("– ") else name.text
        key = method if name.text == method else f"{method} {name.text}"
        assert key not in found
        found[key] = tuple(f"**{one.text}**" if one.bold else one.text for one in entries)
    return found


def shown(study: Study, frame: pd.DataFrame, **layout: Any) -> dict[str, tuple[str, ...]]:
    return texts(paper_table.table(study, replace(LAYOUT, **layout), frame))


# ---------------------------------------------------------------- rows and columns


@pytest.mark.slow
def test_rows_have_the_papers_names_and_order_and_ours_come_last(study, made):
    reversed_names = dict(reversed(NAMES.items()))
    table = paper_table.table(study, replace(LAYOUT, names=reversed_names), made)
    first = [[line[0].text for line in section] for section in table.sections]
    names = [[name for name in section if not name.startswith("–")] for section in first]
    assert names == [[FEDDPA, OFFICIAL, "DP-FedAvg"], ["local_only", "fedavg"]]
    assert table.header == ("method", "target ε = 2", "target ε = 8")
    assert table.groups == ()
    assert any("The last rows are ours" in note for note in table.notes)


def test_the_caption_says_that_no_epsilon_covers_what_is_measured(study, made):
    words = "are diagnostics: the experimenter's own measurements on public data, covered by no ε."
    assert paper_table.table(study, LAYOUT, made).caption.endswith(words)
    rows = tuple(replace(row, chosen=Chosen(0, {"training.lr": 0.5}, 2, 4)) for row in study.rows)
    caption = paper_table.table(replace(study, rows=rows), LAYOUT, made).caption
    words = "Hyper-parameters were chosen on validation data; no ε covers that choice."
    assert caption.endswith(words)


def test_means_and_deviations_stand_in_the_column_of_their_run(study, made):
    made.loc[of(made, "dp_fedavg", 8.0), "personal_common"] += 5
    found = shown(study, made)
    assert found["DP-FedAvg"] == ("60.0 ± 1.0", "**65.0 ± 1.0 ↑2.0**")
    assert found[FEDDPA] == ("**63.0 ± 1.0 ↑3.0**", "63.0 ± 1.0")


def test_a_method_without_privacy_stands_in_every_column(study, made):
    found = shown(study, made)
    assert found["local_only"] == ("40.0 ± 1.0",) * 2
    assert found["local_only – ε"] == ("–", "–")
    assert found["fedavg – ε"] == ("∞", "∞")


def test_columns_of_two_conditions_are_grouped_by_the_first(tmp_path):
    def row(epsilon, alpha):
        kind = "iid" if alpha is None else "dirichlet"
        partition = replace(fake_results.BASE.partition, kind=kind, alpha=alpha)
        privacy = replace(fake_results.BASE.privacy, epsilon=epsilon)
        return Row(replace(fake_results.BASE, partition=partition, privacy=privacy))

    conditions = list(itertools.product((8.0, 2.0), (10.0, 1.0, None)))
    rows = tuple(itertools.starmap(row, conditions))
    columns = ("partition.alpha", "privacy.epsilon")
    layout = replace(LAYOUT, columns=columns, names={"dp_fedavg": "DP-FedAvg"})
    study = replace(fake_results.study(), rows=rows, layout=layout)
    table = paper_table.table(study, layout, tidy(study, fake_results.write(study, tmp_path)))
    assert table.groups == ("", "α = 10", "α = 10", "α = 1", "α = 1", "iid", "iid")
    assert table.header[1:] == ("target ε = 8", "target ε = 2") * 3
    conditions.remove((8.0, 1.0))
    other = layouts.grid(layout, list(itertools.starmap(row, [*conditions, (1.0, 10.0)])))
    at_ten = [words for words in other.header if "α = 10" in words]
    assert at_ten == [("α = 10", f"target ε = {epsilon}") for epsilon in (8, 2, 1)]
    assert "| method | α = 10, target ε = 8 | α = 10, target ε = 2 |" in markdown(table)
    text = latex(table)
    groups = (r"$\alpha$ = 10", r"$\alpha$ = 1", "iid")
    spans = " & ".join(rf"\multicolumn{{2}}{{c}}{{{group}}}" for group in groups)
    assert rf" & {spans} \\" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in text
    assert "±" not in markdown(table), "one seed has no deviation"


def test_a_place_without_a_run_stays_empty(study, made):
    def is_there(row):
        return row.variant or (row.cell.method, row.cell.privacy.epsilon) != ("feddpa", 8.0)

    found = shown(*only(study, made, is_there))
    assert found[FEDDPA] == ("**63.0 ± 1.0 ↑3.0**", "")
    assert found["DP-FedAvg"] == ("60.0 ± 1.0", "60.0 ± 1.0"), "alone in its column it wins nothing"


# ---------------------------------------------------------------- the three promises


def test_a_nominal_epsilon_has_its_mark_and_the_honest_one_below_it(study, made):
    chosen = (made["claim"] == "nominal") & (made["epsilon_target"] == 8.0)
    made.loc[chosen, "epsilon_central"] = [31.2, 40.44, 38.0]
    table = paper_table.table(study, LAYOUT, made)
    found = texts(table)
    assert found[f"{OFFICIAL} – nominal ε"] == ("2", "8")
    assert found[f"{OFFICIAL} – honest ε"] == ("∞", "40.5")
    assert found["DP-FedAvg – ε"] == ("2", "8")
    assert not any("nominal ε" in key for key in found if OFFICIAL not in key)
    assert any(note.startswith("Nominal:") for note in table.notes)
    for text in (markdown(table), latex(table)):
        rows = [line for line in text.splitlines() if line.startswith(("| ", "-- ", "FedDPA"))]
        nominal = [re.search(r"nominal (ε|\$\\varepsilon\$)", row) is not None for row in rows]
        assert sum(nominal) == 1
        assert re.search(r"honest (ε|\$\\varepsilon\$)", rows[nominal.index(True) + 1])


def test_rows_of_another_claim_or_budget_win_nothing_from_each_other(study, made):
    def is_private(row):
        return row.cell.method in NAMES and not row.variant and row.cell.privacy.epsilon == 2.0

    assert shown(study, made)[OFFICIAL] == ("80.0 ± 1.0",) * 2
    few, some = only(study, made, is_private)
    assert shown(few, some, columns=("dataset",))[FEDDPA] == ("**63.0 ± 1.0 ↑3.0**",)
    fixed = {"feddpa": Privacy("gaussian", None, 1.0, 0.001, 0.5)}
    budgets = [fixed.get(cell.method, cell.privacy) for cell in few.cells]
    cells = map(lambda cell, budget: replace(cell, privacy=budget), few.cells, budgets)
    found = shown(replace(few, rows=tuple(map(Row, cells))), some, columns=("dataset",))
    assert found[FEDDPA] == ("63.0 ± 1.0",)


def test_a_nominal_row_without_a_claimed_number_has_the_honest_one_alone(study, made):
    made.loc[made["claim"] == "nominal", "epsilon_nominal"] = None
    found = shown(study, made)
    assert found[f"{OFFICIAL} – honest ε"] == ("∞", "∞")
    assert not any("nominal ε" in key for key in found)


def test_lines_that_the_seeds_do_not_tell_apart_are_not_bold_and_gain_nothing(study, made):
    chosen = of(made, "dp_fedavg")
    made.loc[chosen, "personal_common"] = made.loc[chosen, "seed"].map({0: 63, 1: 61, 2: 62})
    found = shown(study, made)
    assert found["DP-FedAvg"] == ("62.0 ± 1.0",) * 2
    assert found[FEDDPA] == ("63.0 ± 1.0",) * 2


def test_a_diverged_run_is_marked_with_its_round(study, made):
    notes = paper_table.table(study, LAYOUT, made).notes
    assert not any(note.startswith("† diverged") for note in notes)
    first, second, _ = made.index[of(made, "dp_fedavg", 8.0)]
    made.loc[first, ["diverged_round", "personal_common"]] = [3, math.nan]
    made.loc[second, "diverged_round"] = 7
    table = paper_table.table(study, LAYOUT, made)
    assert texts(table)["DP-FedAvg"] == ("60.0 ± 1.0", "60.5 ± 0.7 (2 of 3) †3,7")
    assert any(note.startswith("† diverged") for note in table.notes)


# ---------------------------------------------------------------- printed numbers and costs


def test_the_papers_number_stands_in_brackets_below_ours_and_is_called_so(study, made):
    for epsilon, value in ((2.0, 71.92), (8.0, 73.0)):
        chosen = of(made, "dp_fedavg", epsilon)
        made.loc[chosen, ["paper_value", "paper_metric"]] = [value, "personal_common"]
    table = paper_table.table(study, LAYOUT, made)
    found = texts(table)
    assert found["DP-FedAvg – paper"] == ("(71.92)", "(73)")
    assert f"{FEDDPA} – paper" not in found
    assert any("FedDPA, Table 1" in note for note in table.notes)
    # A number is compared with the metric it measures, or not at all.
    own = paper_table.table(study, replace(LAYOUT, metric="personal_own"), made)
    assert not any("– paper" in key for key in texts(own))
    assert not any("FedDPA, Table 1" in note for note in own.notes)


def test_seconds_and_megabytes_per_round_are_best_when_least(study, made):
    costs = ["train_seconds", "upload_bytes_per_round"]
    made["rounds"] = 4
    made.loc[of(made, "dp_fedavg"), costs] = [2.0, 4e6]
    made.loc[of(made, "feddpa"), costs] = [5.0, 3e6]
    seconds = shown(study, made, metric="seconds_per_round")
    assert seconds["DP-FedAvg"] == ("**0.50 ± 0.00**",) * 2
    assert seconds[FEDDPA] == ("1.25 ± 0.00",) * 2
    megabytes = shown(study, made, metric="upload_megabytes_per_round")
    assert megabytes[FEDDPA] == ("**3.00 ± 0.00**",) * 2


@pytest.mark.slow
def test_every_quantity_that_the_schema_allows_can_be_shown(study, made):
    allowed = documents.schema()["$defs"]["layout"]["properties"]["metric"]["enum"]
    assert set(allowed) == set(paper_table.QUANTITIES)
    for metric in allowed:
        assert shown(study, made, metric=metric)["DP-FedAvg"]


# ---------------------------------------------------------------- files


@pytest.mark.slow
def test_both_tables_are_in_the_markdown_and_the_tex_file(study, results, tmp_path):
    write_study(study, results, tmp_path / "tiny.csv")
    text = (tmp_path / "tiny.md").read_text()
    assert text.index("**tiny**: ") < text.index("**tiny\\_printed**: ")
    tex = (tmp_path / "tiny.tex").read_text()
    assert re.findall(r"\\label{(.*?)}", tex) == ["tab:tiny", "tab:tiny_printed"]
    write_study(replace(study, layout=None), results, tmp_path / "plain.csv")
    assert "printed" not in (tmp_path / "plain.md").read_text()


def test_the_tex_table_is_escaped_and_balanced(study, made):
    marked = ["diverged_round", "paper_value", "paper_metric"]
    made.loc[of(made, "dp_fedavg"), marked] = [3, 50.5, "personal_common"]
    layout = replace(LAYOUT, columns=("dataset", "privacy.epsilon"))
    text = latex(paper_table.table(study, layout, made))
    assert r"{FedDPA \& co\_1 (50\%)\\(official code) [nominal]} & " in text
    assert r"\textbf{63.0$\pm$1.0 $\uparrow$3.0}" in text
    assert "$^\\dagger$3" in text
    assert not re.search(r"[^\x00-\x7f]", text)
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    columns = len(re.search(r"\\begin{tabular}{@{}(\w+)@{}}", text)[1])  # type: ignore[index]
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    for row in (line for line in body.splitlines() if line.endswith(r" \\")):
        spans = [int(width) for width in re.findall(r"\\multicolumn{(\d+)}", row)]
        assert len(re.sub(r"\\&", "", row).split("&")) + sum(spans) - len(spans) == columns, row
    unlabelled = text.partition("\n")[2].replace(r"\label{tab:tiny_printed}", "")
    assert not re.search(r"(?<!\\)[_#%]", unlabelled)
    assert set(re.findall(r"\\(\w+)rule\b", text)) == {"top", "mid", "bottom", "cmid"}


# ---------------------------------------------------------------- the block


def test_a_study_says_its_layout(load):
    rows = {"dp_fedavg": "DP-FedAvg", "feddpa": "FedDPA"}
    block = {"columns": ["privacy.epsilon"], "metric": "personal_own", "rows": rows}
    study = load(axes={"privacy.epsilon": [2, 8]}, layout=block)
    layout = study.layout
    assert layout.columns == ("privacy.epsilon",)
    assert (layout.metric, layout.names) == ("personal_own", rows)
    grid = layouts.grid(layout, study.rows)
    assert grid.header == (("target ε = 2",), ("target ε = 8",))
    for line in grid.lines:
        seeds = [{study.rows[index].cell.seed for index in members} for members in line.locations]
        assert seeds == [{0, 1}] * 2
    assert load().layout is None


def test_the_paper_block_gives_names_and_metric_to_the_layout(load):
    words = {"dataset": "cifar10", "model": {"name": "cnn_cifar"}}
    words["partition"] = {"kind": "iid", "clients": 10}
    study = load(**words, paper=malformed.PAPER, layout={"columns": ["dataset"]})
    assert study.layout.metric == malformed.PAPER["metric"]
    assert study.layout.names == malformed.PAPER["methods"]
    assert study.layout.source == "FedDPA, Table 2"
