"""The table in a paper's layout: every run in its place, honest numbers below it, and no claim
without its mark."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fake_results
import malformed
from pflpipe.cells import Privacy
from pflpipe.errors import ConfigError
from pflpipe.report import paper_table
from pflpipe.report.render_table import Table, latex, markdown
from pflpipe.report.tables import write_study
from pflpipe.report.tidy import tidy
from pflpipe.study import layouts
from pflpipe.study.load import load_study
from pflpipe.study.study_spec import Chosen, PaperLayout, Row, Study

NAMES = {"dp_fedavg": "DP-FedAvg", "feddpa": "FedDPA & co_1 (50%)"}
LAYOUT = PaperLayout(
    ("privacy.epsilon",), "personal_common", NAMES, "FedDPA, Table 1", "studies/tiny.yaml: layout"
)


def with_variants(study: Study) -> Study:
    """The same study, its FedDPA of the official code an entry with a label."""
    rows = [
        dataclasses.replace(row, variant="official code" if row.cell.official_code else "")
        for row in study.rows
    ]
    return dataclasses.replace(study, rows=tuple(rows), layout=LAYOUT)


@pytest.fixture(scope="module")
def study() -> Study:
    return with_variants(fake_results.study())


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_results.write(study, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def frame(study: Study, results: Path) -> pd.DataFrame:
    return tidy(study, results)


@pytest.fixture
def made(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with scores that are easy to follow: DP-FedAvg 60, FedDPA 63, both official 80, per
    seed -1, 0, +1."""
    changed = frame.copy()
    for method, level in {
        "local_only": 40.0,
        "fedavg": 90.0,
        "dp_fedavg": 60.0,
        "feddpa": 63.0,
    }.items():
        chosen = changed["method"] == method
        changed.loc[chosen, "personal_common"] = (
            level + changed.loc[chosen, "seed"].astype(float) - 1
        )
    changed.loc[changed["claim"] == "nominal", "personal_common"] += 17.0
    return changed


def texts(table: Table) -> dict[str, tuple[str, ...]]:
    """Every line of the table by the name of its method and its own label."""
    found: dict[str, tuple[str, ...]] = {}
    method = ""
    for section in table.sections:
        for name, *entries in section:
            method = method if name.text.startswith("– ") else name.text
            key = method if name.text == method else f"{method} {name.text}"
            assert key not in found
            found[key] = tuple(
                f"**{entry.text}**" if entry.bold else entry.text for entry in entries
            )
    return found


def shown(
    study: Study, frame: pd.DataFrame, layout: PaperLayout = LAYOUT
) -> dict[str, tuple[str, ...]]:
    return texts(paper_table.table(study, layout, frame))


# ---------------------------------------------------------------- rows and columns


@pytest.mark.slow
def test_rows_have_the_papers_names_and_order_and_ours_come_last(study, made):
    reversed_names = dict(reversed(NAMES.items()))
    table = paper_table.table(study, dataclasses.replace(LAYOUT, names=reversed_names), made)
    names = [
        [line[0].text for line in section if not line[0].text.startswith("–")]
        for section in table.sections
    ]
    assert names == [
        ["FedDPA & co_1 (50%)", "FedDPA & co_1 (50%) (official code) [nominal]", "DP-FedAvg"],
        ["local_only", "fedavg"],
    ]
    assert table.header == ("method", "target ε = 2", "target ε = 8")
    assert table.groups == ()
    assert any("The last rows are ours" in note for note in table.notes)


def test_the_caption_says_that_no_epsilon_covers_what_is_measured(study, made):
    caption = paper_table.table(study, LAYOUT, made).caption
    assert caption.endswith(
        "are diagnostics: the experimenter's own measurements on public data, covered by no ε."
    )
    rows = tuple(
        dataclasses.replace(row, chosen=Chosen(0, {"training.lr": 0.5}, 2, 4)) for row in study.rows
    )
    caption = paper_table.table(dataclasses.replace(study, rows=rows), LAYOUT, made).caption
    assert caption.endswith(
        "Hyper-parameters were chosen on validation data; no ε covers that choice."
    )


def test_means_and_deviations_stand_in_the_column_of_their_run(study, made):
    changed = made.copy()
    changed.loc[
        (changed["method"] == "dp_fedavg") & (changed["epsilon_target"] == 8.0), "personal_common"
    ] += 5
    found = shown(study, changed)
    assert found["DP-FedAvg"] == ("60.0 ± 1.0", "**65.0 ± 1.0 ↑2.0**")
    assert found["FedDPA & co_1 (50%)"] == ("**63.0 ± 1.0 ↑3.0**", "63.0 ± 1.0")


def test_a_method_without_privacy_stands_in_every_column(study, made):
    found = shown(study, made)
    assert found["local_only"] == ("40.0 ± 1.0",) * 2
    assert found["local_only – ε"] == ("–", "–")
    assert found["fedavg – ε"] == ("∞", "∞")


def test_columns_of_two_conditions_are_grouped_by_the_first(tmp_path):
    base = fake_results.study(seeds=[0], epsilons=[2.0], methods=["dp_fedavg"])
    rows = []
    for epsilon in (8.0, 2.0):
        for alpha in (10.0, 1.0, None):
            cell = base.rows[0].cell
            kind = "iid" if alpha is None else "dirichlet"
            partition = dataclasses.replace(cell.partition, kind=kind, alpha=alpha)
            rows.append(
                Row(
                    dataclasses.replace(
                        cell,
                        partition=partition,
                        privacy=dataclasses.replace(cell.privacy, epsilon=epsilon),
                    )
                )
            )
    layout = dataclasses.replace(
        LAYOUT, columns=("partition.alpha", "privacy.epsilon"), names={"dp_fedavg": "DP-FedAvg"}
    )
    study = dataclasses.replace(base, rows=tuple(rows), layout=layout)
    table = paper_table.table(study, layout, tidy(study, fake_results.write(study, tmp_path)))
    assert table.groups == ("", "α = 10", "α = 10", "α = 1", "α = 1", "iid", "iid")
    assert table.header[1:] == ("target ε = 8", "target ε = 2") * 3
    rows = [
        row for row in rows if (row.cell.partition.alpha, row.cell.privacy.epsilon) != (1.0, 8.0)
    ]
    other = layouts.grid(
        layout,
        [
            *rows,
            dataclasses.replace(
                rows[0],
                cell=dataclasses.replace(
                    rows[0].cell, privacy=Privacy("gaussian", 1.0, None, 0.001, 0.5)
                ),
            ),
        ],
    )
    assert [words for words in other.header if "α = 10" in words] == [
        ("α = 10", f"target ε = {epsilon}") for epsilon in (8, 2, 1)
    ]
    assert "| method | α = 10, target ε = 8 | α = 10, target ε = 2 |" in markdown(table)
    text = latex(table)
    assert (
        r" & \multicolumn{2}{c}{$\alpha$ = 10} & \multicolumn{2}{c}{$\alpha$ = 1} & "
        r"\multicolumn{2}{c}{iid} \\" in text
    )
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in text
    assert "±" not in markdown(table), "one seed has no deviation"


def test_a_place_without_a_run_stays_empty(study, made):
    keep = [
        not (row.cell.method == "feddpa" and not row.variant and row.cell.privacy.epsilon == 8.0)
        for row in study.rows
    ]
    fewer = dataclasses.replace(
        study, rows=tuple(row for row, kept in zip(study.rows, keep, strict=True) if kept)
    )
    found = shown(fewer, made[keep].reset_index(drop=True))
    assert found["FedDPA & co_1 (50%)"] == ("**63.0 ± 1.0 ↑3.0**", "")
    assert found["DP-FedAvg"] == ("60.0 ± 1.0", "60.0 ± 1.0"), "alone in its column it wins nothing"


# ---------------------------------------------------------------- the three promises


def test_a_nominal_epsilon_has_its_mark_and_the_honest_one_below_it(study, made):
    changed = made.copy()
    chosen = (changed["claim"] == "nominal") & (changed["epsilon_target"] == 8.0)
    changed.loc[chosen, "epsilon_central"] = [31.2, 40.44, 38.0]
    found = shown(study, changed)
    name = "FedDPA & co_1 (50%) (official code) [nominal]"
    assert found[f"{name} – nominal ε"] == ("2", "8")
    assert found[f"{name} – honest ε"] == ("∞", "40.5")
    assert found["DP-FedAvg – ε"] == ("2", "8")
    assert not any("nominal ε" in key for key in found if name not in key)
    table = paper_table.table(study, LAYOUT, changed)
    assert any(note.startswith("Nominal:") for note in table.notes)
    for text in (markdown(table), latex(table)):
        rows = [line for line in text.splitlines() if line.startswith(("| ", "-- ", "FedDPA"))]
        places = [
            place
            for place, line in enumerate(rows)
            if "nominal ε" in line or r"nominal $\varepsilon$" in line
        ]
        assert len(places) == 1
        assert all(re.search(r"honest (ε|\$\\varepsilon\$)", rows[place + 1]) for place in places)


def test_rows_of_another_claim_or_budget_win_nothing_from_each_other(study, made):
    found = shown(study, made)
    assert found["FedDPA & co_1 (50%) (official code) [nominal]"] == ("80.0 ± 1.0",) * 2
    keep = [
        row.cell.method in NAMES and not row.variant and row.cell.privacy.epsilon == 2.0
        for row in study.rows
    ]
    rows = [row for row, kept in zip(study.rows, keep, strict=True) if kept]
    some, layout = (
        made[keep].reset_index(drop=True),
        dataclasses.replace(LAYOUT, columns=("dataset",)),
    )
    assert shown(dataclasses.replace(study, rows=tuple(rows)), some, layout)[
        "FedDPA & co_1 (50%)"
    ] == ("**63.0 ± 1.0 ↑3.0**",)
    fixed = Privacy("gaussian", None, 1.0, 0.001, 0.5)
    rows = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, privacy=fixed))
        if row.cell.method == "feddpa"
        else row
        for row in rows
    ]
    assert shown(dataclasses.replace(study, rows=tuple(rows)), some, layout)[
        "FedDPA & co_1 (50%)"
    ] == ("63.0 ± 1.0",)


def test_a_nominal_row_without_a_claimed_number_has_the_honest_one_alone(study, made):
    changed = made.copy()
    changed.loc[changed["claim"] == "nominal", "epsilon_nominal"] = None
    found = shown(study, changed)
    name = "FedDPA & co_1 (50%) (official code) [nominal]"
    assert found[f"{name} – honest ε"] == ("∞", "∞")
    assert not any("nominal ε" in key for key in found)


def test_lines_that_the_seeds_do_not_tell_apart_are_not_bold_and_gain_nothing(study, made):
    changed = made.copy()
    chosen = changed["method"] == "dp_fedavg"
    changed.loc[chosen, "personal_common"] = changed.loc[chosen, "seed"].map({0: 63, 1: 61, 2: 62})
    found = shown(study, changed)
    assert found["DP-FedAvg"] == ("62.0 ± 1.0",) * 2
    assert found["FedDPA & co_1 (50%)"] == ("63.0 ± 1.0",) * 2


def test_nothing_is_bold_with_two_seeds(study, made):
    two = dataclasses.replace(study, rows=tuple(row for row in study.rows if row.cell.seed < 2))
    found = shown(two, made[made["seed"] < 2])
    assert not any("**" in text or "↑" in text for line in found.values() for text in line)


def test_a_diverged_run_is_marked_with_its_round(study, made):
    changed = made.copy()
    first, second, _ = changed.index[
        (changed["method"] == "dp_fedavg") & (changed["epsilon_target"] == 8.0)
    ]
    changed.loc[first, ["diverged_round", "personal_common"]] = [3, math.nan]
    changed.loc[second, "diverged_round"] = 7
    table = paper_table.table(study, LAYOUT, changed)
    assert texts(table)["DP-FedAvg"] == ("60.0 ± 1.0", "60.5 ± 0.7 (2 of 3) †3,7")
    assert any(note.startswith("† diverged") for note in table.notes)
    assert not any(
        note.startswith("† diverged") for note in paper_table.table(study, LAYOUT, made).notes
    )


# ---------------------------------------------------------------- printed numbers and costs


def test_the_papers_number_stands_in_brackets_below_ours_and_is_called_so(study, made):
    changed = made.copy()
    for epsilon, value in ((2.0, 71.92), (8.0, 73.0)):
        chosen = (changed["method"] == "dp_fedavg") & (changed["epsilon_target"] == epsilon)
        changed.loc[chosen, ["paper_value", "paper_metric"]] = [value, "personal_common"]
    table = paper_table.table(study, LAYOUT, changed)
    found = texts(table)
    assert found["DP-FedAvg – paper"] == ("(71.92)", "(73)")
    assert "FedDPA & co_1 (50%) – paper" not in found
    assert any("FedDPA, Table 1" in note for note in table.notes)
    own = paper_table.table(study, dataclasses.replace(LAYOUT, metric="personal_own"), changed)
    assert not any("– paper" in key for key in texts(own)), (
        "a number is compared with the metric it measures, or not at all"
    )
    assert not any("FedDPA, Table 1" in note for note in own.notes)


def test_seconds_and_megabytes_per_round_are_best_when_least(study, made):
    changed = made.copy()
    changed["rounds"] = 4
    changed.loc[changed["method"] == "dp_fedavg", ["train_seconds", "upload_bytes_per_round"]] = [
        2.0,
        4e6,
    ]
    changed.loc[changed["method"] == "feddpa", ["train_seconds", "upload_bytes_per_round"]] = [
        5.0,
        3e6,
    ]
    seconds = shown(study, changed, dataclasses.replace(LAYOUT, metric="seconds_per_round"))
    assert seconds["DP-FedAvg"] == ("**0.50 ± 0.00**",) * 2
    assert seconds["FedDPA & co_1 (50%)"] == ("1.25 ± 0.00",) * 2
    megabytes = shown(
        study, changed, dataclasses.replace(LAYOUT, metric="upload_megabytes_per_round")
    )
    assert megabytes["FedDPA & co_1 (50%)"] == ("**3.00 ± 0.00**",) * 2


@pytest.mark.slow
def test_every_quantity_that_the_schema_allows_can_be_shown(study, made):
    from pflpipe.study import documents

    allowed = documents.schema()["$defs"]["layout"]["properties"]["metric"]["enum"]
    assert set(allowed) == set(paper_table.QUANTITIES)
    for metric in allowed:
        assert shown(study, made, dataclasses.replace(LAYOUT, metric=metric))["DP-FedAvg"]


# ---------------------------------------------------------------- files


@pytest.mark.slow
def test_both_tables_are_in_the_markdown_and_the_tex_file(study, results, tmp_path):
    write_study(study, results, tmp_path / "tiny.csv")
    text = (tmp_path / "tiny.md").read_text()
    assert text.index("**tiny**: ") < text.index("**tiny\\_printed**: ")
    tex = (tmp_path / "tiny.tex").read_text()
    assert re.findall(r"\\label{(.*?)}", tex) == ["tab:tiny", "tab:tiny_printed"]
    write_study(dataclasses.replace(study, layout=None), results, tmp_path / "plain.csv")
    assert "printed" not in (tmp_path / "plain.md").read_text()


def test_the_tex_table_is_escaped_and_balanced(study, made):
    changed = made.copy()
    changed.loc[
        changed["method"] == "dp_fedavg", ["diverged_round", "paper_value", "paper_metric"]
    ] = [
        3,
        50.5,
        "personal_common",
    ]
    text = latex(
        paper_table.table(
            study, dataclasses.replace(LAYOUT, columns=("dataset", "privacy.epsilon")), changed
        )
    )
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
    assert not re.search(
        r"(?<!\\)[_#%]", text.partition("\n")[2].replace(r"\label{tab:tiny_printed}", "")
    )
    assert set(re.findall(r"\\(?:top|mid|bottom|cmid)rule", text)) == {
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\cmidrule",
    }


# ---------------------------------------------------------------- the block


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    malformed.write_good(tmp_path)
    monkeypatch.chdir(tmp_path)

    def load(**words: Any) -> Study:
        malformed.write(tmp_path / "studies/good.yaml", malformed.STUDY | words)
        return load_study("good")

    return load


ROWS = {"dp_fedavg": "DP-FedAvg", "feddpa": "FedDPA"}


def test_a_study_says_its_layout(load):
    study = load(
        axes={"privacy.epsilon": [2, 8]},
        layout={"columns": ["privacy.epsilon"], "metric": "personal_own", "rows": ROWS},
    )
    assert study.layout is not None
    assert (study.layout.columns, study.layout.metric, study.layout.names) == (
        ("privacy.epsilon",),
        "personal_own",
        ROWS,
    )
    grid = layouts.grid(study.layout, study.rows)
    assert grid.header == (("target ε = 2",), ("target ε = 8",))
    for line in grid.lines:
        assert [
            {study.rows[index].cell.seed for index in members} for members in line.locations
        ] == [{0, 1}] * 2
    assert load().layout is None


def test_the_paper_block_gives_names_and_metric_to_the_layout(load):
    words = {
        "dataset": "cifar10",
        "model": {"name": "cnn_cifar"},
        "partition": {"kind": "iid", "clients": 10},
    }
    study = load(**words, paper=malformed.PAPER, layout={"columns": ["dataset"]})
    assert study.layout is not None
    assert study.layout.metric == malformed.PAPER["metric"]
    assert study.layout.names == malformed.PAPER["methods"]
    assert study.layout.source == "FedDPA, Table 2"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"columns": ["dataset"], "rows": ROWS}, "layout.metric is missing"),
        ({"columns": ["dataset"], "metric": "personal_own"}, "layout.rows is missing"),
        ({"columns": ["datset"], "metric": "personal_own", "rows": ROWS}, "did you mean 'dataset'"),
        (
            {"columns": ["hyperparameters.tao"], "metric": "personal_own", "rows": ROWS},
            "did you mean 'hyperparameters.tau'",
        ),
        (
            {"columns": ["dataset"], "metric": "personal_own", "rows": {"feddpo": "x"}},
            "did you mean 'feddpa'",
        ),
        (
            {"columns": ["dataset"], "metric": "personal_own", "rows": ROWS},
            "different runs of .* add .* privacy.epsilon",
        ),
    ],
)
def test_a_layout_that_cannot_be_filled_is_refused_in_one_line(load, block, words):
    with pytest.raises(ConfigError, match=words) as error:
        load(axes={"privacy.epsilon": [2, 8]}, layout=block)
    assert "\n" not in str(error.value)


def test_a_layout_of_conditions_that_no_run_has_is_refused(load):
    with pytest.raises(ConfigError, match="conditions that apply to a run"):
        load(
            methods=[{"name": "fedavg"}],
            layout={
                "columns": ["privacy.epsilon"],
                "metric": "personal_own",
                "rows": {"fedavg": "x"},
            },
        )
