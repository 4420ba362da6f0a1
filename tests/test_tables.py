"""Tables: the tidy rows, and the promises of the summaries that people read."""

import dataclasses
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fake_results
import tabled
from fake_results import BASE
from pflpipe.cells import Cell, Partition
from pflpipe.errors import DataError
from pflpipe.files import read_json, write_json
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.report.comparison import Group, epsilon_text, mean_text
from pflpipe.report.figures import kinds
from pflpipe.report.render_table import latex, markdown, tex_escape
from pflpipe.report.summary import not_covered, summarise
from pflpipe.report.tables import write_study
from pflpipe.report.tidy import COLUMNS, OF_UNITS, averages, join, stored, tidy
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.settings import NO_PRIVACY, Layout, layout, round_up
from pflpipe.study.study_spec import Chosen, Drawing, Row, Study

TABLES = tabled.table("test_tables")
OWN = "personal_own"


@pytest.fixture(scope="module")
def written(study: Study, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table's files."""
    folder = tmp_path_factory.mktemp("written")
    write_study(study, results, folder / "tiny.csv")
    return folder


@pytest.fixture
def tree(results: Path, tmp_path: Path) -> Path:
    """The results, to be edited."""
    return Path(shutil.copytree(results, tmp_path / "results"))


def with_rows(study: Study, rows: Iterable[Row]) -> Study:
    return replace(study, rows=tuple(rows))


def part_of(study: Study, keep: Callable[[Cell], bool]) -> Study:
    return with_rows(study, (row for row in study.rows if keep(row.cell)))


def varied(study: Study, *changes: Callable[[Cell], Cell]) -> Study:
    """The study with every cell as each of the changes makes it, once."""
    cells = [change(cell) for cell in study.cells for change in changes]
    return with_rows(study, map(Row, {cell.id: cell for cell in cells}.values()))


def in_partition(**fields: Any) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, partition=replace(cell.partition, **fields))


def is_private(cell: Cell) -> bool:
    return cell.privacy.mechanism != "none"


def at_budget(**fields: Any) -> Callable[[Cell], Cell]:
    """A change of the cells that have a budget."""
    return lambda cell: (
        replace(cell, privacy=replace(cell.privacy, **fields)) if is_private(cell) else cell
    )


def with_values(frame: pd.DataFrame, values: dict[str, Any], **of: Any) -> pd.DataFrame:
    """The frame with other values in the rows of some settings."""
    copy = frame.copy()
    copy.loc[(copy[list(of)] == pd.Series(of)).all(axis=1), list(values)] = [*values.values()]
    return copy


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


# ---------------------------------------------------------------- tidy rows


@pytest.mark.slow
def test_the_csv_has_exactly_the_contracts_columns_and_one_row_per_cell(study, written):
    header, *lines = (written / "tiny.csv").read_text().splitlines()
    assert header.split(",") == TABLES["HEADER"]
    assert len(lines) == len(study.cells)
    assert list(pd.read_csv(written / "tiny.csv")["cell"]) == [cell.id for cell in study.cells]


def test_accuracies_are_unweighted_means_over_clients(study, results, frame):
    scores = pd.read_csv(results / "scores" / "tiny" / "dp_fedavg.csv")
    row = frame[frame["method"] == "dp_fedavg"].iloc[0]
    mine = scores[scores["cell"] == row["cell"]]
    assert row["personal_own"] == pytest.approx(mine["personal_own"].sum() / 12)
    assert row["global_common"] == pytest.approx(mine["global_common"].sum() / 12)


def averages_of(*own: float) -> dict[str, float | None]:
    """The averages of a method without a global model, of clients with these accuracies."""
    others = dict.fromkeys(("global_own", "global_common", "personal_new", "global_new"))
    return averages(pd.DataFrame({"personal_own": own}).assign(personal_common=1.0, **others))


@pytest.mark.parametrize(("clients", "counted"), [(1, 1), (9, 1), (10, 1), (11, 2), (100, 10)])
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_rounded_up(clients, counted):
    values = [float((7 * client) % clients) for client in range(clients)]
    worst = sum(sorted(values)[:counted]) / counted
    assert averages_of(*values)["personal_own_worst_decile"] == worst


def test_a_client_without_test_rows_is_left_out_of_the_mean():
    assert averages_of(50.0, math.nan, 70.0)["personal_own"] == 60.0


def test_a_method_without_a_global_model_has_empty_global_columns(frame):
    local = frame[frame["method"] == "local_only"]
    assert local[["global_own", "global_common"]].isna().all().all()
    assert local["personal_own"].notna().all()


@pytest.mark.slow
def test_infinite_epsilons_stay_inf_in_the_csv(written):
    rows = pd.read_csv(written / "tiny.csv", dtype=str, keep_default_na=False)
    nominal = rows[rows["claim"] == "nominal"]
    assert set(nominal["epsilon_central"]) == {"inf"}
    assert set(nominal["epsilon_nominal"]) == {"2.0", "8.0"}
    assert set(nominal["departures"]) == {"+".join(fake_results.OFFICIAL)}
    assert set(rows[rows["claim"] == "certified"]["departures"]) == {""}


def test_the_ledger_of_a_row_is_that_of_its_plan(study, results, frame):
    for cell, (_, row) in zip(study.cells, frame.iterrows(), strict=True):
        ledger = json.loads((results / "plans" / f"{cell.plan_id}.json").read_text())["ledger"]
        # This study deals no rows of declared users, and its data have a name.
        for name in {*ledger, *COLUMNS} - {"departures", "warnings", "claim", *OF_UNITS}:
            if name in ledger:
                wanted = float("inf") if ledger[name] == "inf" else ledger[name]
                assert row[name] == wanted or (wanted is None and row[name] is None), name


def test_what_a_method_is_worth_as_published_stands_in_every_row_of_it(frame):
    assert set(frame[frame["claim"] == "none"]["epsilon_published"]) == {None}
    plain = frame[frame["method"] == "dp_fedavg"]
    assert list(plain["epsilon_published"]) == list(plain["epsilon_central"])
    assert set(frame[frame["claim"] == "nominal"]["epsilon_published"]) == {math.inf}
    # Its code calibrates to a batch size, and these rows have none: all local data are one batch.
    feddpa = frame[(frame["method"] == "feddpa") & (frame["claim"] == "certified")]
    assert set(feddpa["epsilon_published"]) == {None}


def trained(**fields: Any) -> Cell:
    return replace(BASE, training=replace(BASE.training, **fields))


def in_ledger(plan: Path, **words: Any) -> None:
    """Change the ledger of a plan."""
    content = read_json(plan)
    write_json(plan, content | {"ledger": content["ledger"] | words})


def test_what_is_published_is_read_from_the_plan_of_the_method_as_published(tmp_path):
    study = fake_results.study(seeds=(0,), methods=("feddpa",), base=trained(batch_size=4))
    results = fake_results.write(study, tmp_path)
    path = results / "plans" / f"{as_published(study.cells[0]).plan_id}.json"
    in_ledger(path, epsilon_central=40.5)
    assert tidy(study, results)["epsilon_published"].iloc[0] == 40.5
    path.unlink()
    with pytest.raises(DataError, match=r"plans/.*json does not exist"):
        tidy(study, results)


def test_a_table_is_read_back_as_it_was_made(study, results, frame):
    """Types included, so that whatever shows a number need not make the frame again."""
    again = stored(study, results)
    for name in COLUMNS:
        assert list(map(repr, again[name])) == list(map(repr, frame[name])), name
    assert {type(value) for value in again["seed"]} == {int}


@pytest.mark.slow
def test_words_that_look_like_numbers_stay_words(study, tmp_path):
    named = with_rows(study, (replace(row, variant="16") for row in study.rows))
    assert set(stored(named, fake_results.write(named, tmp_path))["variant"]) == {"16"}


def test_the_table_of_another_version_of_a_study_is_refused(study, results):
    with pytest.raises(DataError, match="of another version of the study; delete that file"):
        stored(with_rows(study, study.rows[1:]), results)


def searched(study: Study, chosen: Chosen) -> Study:
    """The study in which a search has chosen for FedDPA."""
    found = {"feddpa": chosen}
    return with_rows(study, (replace(row, chosen=found.get(row.cell.method)) for row in study.rows))


def test_the_cost_of_a_search_stands_in_the_rows_it_chose(tmp_path):
    budgets = {"epsilon": 2.0, "epsilon_with_search": 5.5, "delta": 1e-3}
    chosen = Chosen(0, {"tau": 0.4}, sets=3, runs=6, **budgets)
    study = fake_results.study(seeds=(0,), methods=("local_only", "feddpa"))
    found = tidy(searched(study, chosen), fake_results.write(study, tmp_path))
    assert list(found["epsilon_with_search"]) == [None, 5.5, 5.5]
    assert list(found["search_runs"]) == [None, 6, 6]


@pytest.mark.parametrize(("change", "words"), TABLES["OTHERWISE"])
def test_a_private_run_that_did_something_else_than_its_plan_is_no_row(study, tree, change, words):
    for method in ("fedavg", "dp_fedavg"):
        cell = next(cell for cell in study.cells if cell.method == method)
        path = tree / "runs" / registry.run_id(cell) / "run.json"
        written = read_json(path)
        for block in (written["released"], written["diagnostics"]["residuals"]):
            block.update((name, value) for name, value in change.items() if name in block)
        write_json(path, written)
        if method == "fedavg":
            tidy(study, tree)  # without privacy nothing is counted
    with pytest.raises(DataError, match=words) as caught:
        tidy(study, tree)
    assert registry.run_id(cell) in str(caught.value)


def test_the_sentences_of_a_caption_begin_with_a_capital_letter(study, frame):
    caption = summarise(study, frame).caption
    assert not re.findall(r"(?:^|\. )[a-z]\w*", caption)
    assert ". Accuracy " in caption


def test_hyperparameters_let_a_row_be_reproduced(frame):
    text = frame[frame["method"] == "feddpa"]["hyperparameters"].iloc[0]
    optimizer = '"lr": 0.5, "momentum": 0.0, "optimizer": "sgd"'
    assert text == f'{{{optimizer}, "tau": 0.4, "weight_decay": 0.0}}'
    assert set(frame["model"]) == {"mlp-32"}


def test_transforms_and_a_precision_asked_for_are_part_of_a_row_and_of_the_caption(tmp_path):
    study = fake_results.study(seeds=(0,), base=trained(augment=("crop", "flip"), precision="bf16"))
    frame = tidy(study, fake_results.write(study, tmp_path))
    asked = {"augment": ["crop", "flip"], "precision": "bf16"}.items()
    assert all(asked <= json.loads(text).items() for text in frame["hyperparameters"])
    assert "training transforms crop+flip, precision bf16" in summarise(study, frame).caption


@pytest.mark.parametrize("name", NAMES)
def test_no_method_calls_a_hyperparameter_like_a_setting_of_the_optimizer(name):
    of_training = {"optimizer", "lr", "momentum", "weight_decay", "augment", "precision"}
    assert not of_training & registry.check_hyperparameters(name, {}).keys()


@pytest.mark.slow
def test_seconds_are_summed_and_speed_is_total_images_over_total_seconds(study, tree):
    file = tree / "runs" / registry.run_id(study.cells[0]) / "timing.csv"
    header = "round,seconds,images,images_per_second"
    nothing = [[number, 0.0, 0, 0] for number in range(1, 5)]
    fake_results.write_csv(file, header, [[1, 1.0, 100, 100], [2, 3.0, 500, 167], *nothing[2:]])
    row = tidy(study, tree).iloc[0]
    assert (row["train_seconds"], row["images_per_second"]) == (4.0, 150.0)
    fake_results.write_csv(file, header, nothing)
    assert tidy(study, tree).iloc[0]["images_per_second"] is None
    fake_results.write_csv(file, header, nothing[:3])
    with pytest.raises(DataError, match=r"timing.csv; got '3 rounds'; expected 4; remove it"):
        tidy(study, tree)


def test_missing_results_are_one_clear_line(study, tree):
    scores = tree / "scores" / "tiny" / "fedavg.csv"
    scores.write_text("\n".join(scores.read_text().splitlines()[:1]) + "\n")
    words = r"scores/tiny/fedavg.csv has no rows for cell digits-.*fedavg-nonprivate"
    with pytest.raises(DataError, match=words):
        tidy(study, tree)
    scores.unlink()
    with pytest.raises(DataError, match=r"fedavg.csv does not exist; .*snakemake"):
        tidy(study, tree)


# ---------------------------------------------------------------- all.csv


@pytest.mark.slow
def test_all_csv_joins_byte_for_byte_in_the_given_order(study, results, written, tmp_path):
    first, second = written / "tiny.csv", tmp_path / "a.csv"
    write_study(with_rows(study, list(study.rows[:2])), results, second)
    join([first, second], tmp_path / "all.csv")
    rest = second.read_text().partition("\n")[2]
    assert (tmp_path / "all.csv").read_text() == first.read_text() + rest


def test_all_csv_refuses_a_table_of_another_version(tmp_path):
    (tmp_path / "old.csv").write_text("study,accuracy\nx,1\n")
    with pytest.raises(DataError, match=r"old.csv has other columns.*'accuracy'"):
        join([tmp_path / "old.csv"], tmp_path / "all.csv")
    assert not (tmp_path / "all.csv").exists()


# ---------------------------------------------------------------- settings


def test_a_setting_holds_all_seeds_and_nothing_else(study):
    for setting in layout(study).settings:
        rows = [study.rows[index].cell for index in setting.indices]
        assert [cell.seed for cell in rows] == [0, 1, 2]
        assert len({replace(cell, seed=0).id for cell in rows}) == 1
    assert sum(len(setting.indices) for setting in layout(study).settings) == len(study.rows)


def with_tau(cell: Cell, tau: float) -> Cell:
    return replace(cell, hyperparameters={"tau": tau}) if cell.method == "feddpa" else cell


def labels_of(plan: Layout, method: str) -> set[str]:
    return {setting.label for setting in plan.settings if setting.label.split()[0] == method}


def test_an_axis_of_the_whole_study_is_a_column_and_one_of_a_method_is_part_of_its_label(study):
    both = varied(study, *(in_partition(alpha=alpha) for alpha in (0.1, 1.0)))
    plan = layout(varied(both, lambda cell: with_tau(cell, 0.1), lambda cell: with_tau(cell, 0.4)))
    assert list(plan.facets) == [{"α": "0.1"}, {"α": "1"}]
    official = "feddpa (official code)"
    labels = {f"{name} tau={tau}" for name in ("feddpa", official) for tau in (0.1, 0.4)}
    assert labels_of(plan, "feddpa") == labels
    assert plan.shared["training.lr"] == 0.5
    assert "partition.alpha" not in plan.shared


def test_a_hyper_parameter_that_follows_from_the_columns_is_no_part_of_a_label(study):
    both = varied(study, in_partition(clients=6), in_partition(clients=12))
    tau = {6: 0.1, 12: 0.4}
    plan = layout(varied(both, lambda cell: with_tau(cell, tau[cell.partition.clients])))
    assert labels_of(plan, "feddpa") == {"feddpa", "feddpa (official code)"}
    assert len(plan.facets) == 2
    assert "tau=0.1, tau=0.4" in plan.per_method["feddpa"]


def test_a_method_without_privacy_belongs_to_every_panel_of_a_privacy_axis(study):
    plan = layout(varied(study, at_budget(clip_norm=0.1), at_budget(clip_norm=0.5)))
    assert list(plan.facets) == [{"C": "0.1"}, {"C": "0.5"}]
    public = [setting for setting in plan.settings if setting.budget == NO_PRIVACY]
    assert public
    assert all(setting.belongs(facet) for setting in public for facet in plan.facets)


def test_a_partition_axis_makes_a_panel_of_every_partition(study):
    plan = layout(varied(study, in_partition(), in_partition(kind="iid", alpha=None)))
    iid = {"partition": "iid", "α": "none"}
    assert list(plan.facets) == [{"partition": "dirichlet", "α": "0.3"}, iid]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Partition)])
def test_every_field_of_a_cell_can_be_an_axis(study, name):
    other = {"kind": "iid"}.get(name, 0.07)
    assert len(layout(varied(study, in_partition(), in_partition(**{name: other}))).facets) == 2


def test_a_fixed_noise_multiplier_is_a_budget_of_its_own(study):
    fixed = (at_budget(epsilon=None, noise_multiplier=sigma) for sigma in (0.5, 1.1))
    budgets = {setting.budget for setting in layout(varied(study, *fixed)).settings}
    assert budgets == {NO_PRIVACY, "σ = 0.5", "σ = 1.1"}


def test_variants_and_per_method_learning_rates_are_named(study):
    rows = []
    for cell in study.cells:
        training = replace(cell.training, lr=0.1 if cell.method == "feddpa" else 0.5)
        variant = "official code" if cell.official_code else ""
        rows.append(Row(replace(cell, training=training), variant=variant))
    plan = layout(with_rows(study, rows))
    assert "feddpa (official code)" in labels_of(plan, "feddpa")
    assert plan.per_method["feddpa"] == "lr=0.1, tau=0.4"
    assert plan.per_method["dp_fedavg"] == "lr=0.5"


# ---------------------------------------------------------------- the summary


def test_a_nominal_epsilon_never_stands_without_its_mark(study, frame):
    summary = summarise(study, frame)
    for text in (markdown(summary), latex(summary)):
        nominal = [line for line in lines_of(text, "nominal") if "|" in line or "&" in line]
        assert len(nominal) == 2
        honest = r"[28] \(nominal; honest (∞|\$\\infty\$) at( |\\\\)(δ|\$\\delta\$)=0\.001"
        assert all(re.search(honest, line) for line in nominal)


def privacy(rows: pd.DataFrame) -> str:
    return epsilon_text(Group("a method", "a budget", rows))


def test_the_honest_epsilon_is_the_largest_over_the_seeds():
    said = {"claim": "nominal", "epsilon_nominal": 2.0, "delta": 0.001}
    rows = pd.DataFrame(said | {"epsilon_central": [31.2, 40.44, 38.0]}, dtype=object)
    assert privacy(rows) == "2 (nominal; honest 40.5 at δ=0.001)"
    assert privacy(rows.assign(epsilon_nominal=None)) == "– (nominal; honest 40.5 at δ=0.001)"
    assert privacy(rows.assign(claim="certified")) == "40.5"


@given(st.floats(1e-4, 1e6))
@settings(derandomize=True, deadline=None)
def test_a_printed_epsilon_is_never_smaller_than_the_true_one(epsilon):
    printed = float(round_up(epsilon))
    assert epsilon * (1 - 2e-6) <= printed <= epsilon * 1.0101


def test_special_epsilons_are_words():
    words = [round_up(value) for value in (None, math.inf, 0.0, 2.0, 1.9999999)]
    assert words == ["unknown", "∞", "0", "2", "2"]


def test_without_privacy_epsilon_is_infinite_unless_nothing_is_sent(frame):
    assert privacy(frame[frame["method"] == "fedavg"]) == "∞"
    assert privacy(frame[frame["method"] == "local_only"]) == "–"


def test_mean_and_standard_deviation_over_seeds_are_the_usual_ones():
    assert mean_text([70.0, 72.0, 74.0], 3) == "72.0 ± 2.0"
    assert mean_text([70.0], 1) == "70.0"
    assert mean_text([70.0, 72.0], 3) == "71.0 ± 1.4 (2 of 3)"
    assert mean_text([], 3) == "–"


def bold(study: Study, frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Label and budget's epsilon of the lines whose personal accuracy is bold."""
    table = summarise(study, frame)
    own = table.header.index("personal own")
    lines = [line for section in table.sections for line in section]
    return {(line[0].text, line[2].text.split()[0]) for line in lines if line[own].bold}


def test_bold_is_the_best_and_nothing_where_the_seeds_separate_nothing(study, frame):
    # Pairing counts and not the spread over seeds: always 1 above, and by turns 6 and 4 above.
    scores = {"dp_fedavg": (70, 75, 80, 70, 75, 80), "feddpa": (71.1, 76, 80.9, 76, 71, 84)}
    changed = frame.copy()
    for method, values in scores.items():  # at epsilon 2 and 8
        changed.loc[(frame["method"] == method) & (frame["claim"] == "certified"), OWN] = values
    assert {line for line in bold(study, changed) if line[1] != "∞"} == {("feddpa", "2")}
    words = "not distinguishable from the best: with 95 % confidence"
    assert any(words in note for note in summarise(study, changed).notes)


def test_nothing_is_bold_with_fewer_than_three_seeds(study, frame):
    two = part_of(study, lambda cell: cell.seed < 2)
    assert bold(two, frame[frame["seed"] < 2]) == set()
    # One line that lacks a seed is never bold, and the others need no value of it.
    first = {"method": "dp_fedavg", "epsilon_target": 8.0, "seed": 0}
    changed = with_values(frame, {"personal_own": math.nan}, **first)
    assert not {line for line in bold(study, changed) if line[1] == "8"}


def test_bold_is_the_best_of_the_same_budget_and_claim(study, frame):
    certified = {"claim": "certified", "epsilon_target": 2.0}
    changed = with_values(frame, {OWN: 75.0}, method="feddpa", **certified)
    changed = with_values(changed, {OWN: 74.0}, method="dp_fedavg", **certified)
    # Never wins over certified ones, and alone wins nothing.
    changed = with_values(changed, {OWN: 99.0}, **certified | {"claim": "nominal"})
    text = markdown(summarise(study, changed))
    assert "**75.0 ± 0.0**" in text
    assert not re.search(r"\*\*(74|99)\.0", text)


def test_rows_are_grouped_by_budget_and_ranked_within(study, frame):
    summary = summarise(study, frame)
    budgets = [section[0][2].text for section in summary.sections]
    nominal = "(nominal; honest ∞ at δ=0.001)"
    assert budgets == ["∞", "2", f"2 {nominal}", "8", f"8 {nominal}"]
    own = summary.header.index("personal own")
    for section in summary.sections:
        means = [float(line[own].text.split()[0]) for line in section]
        assert means == sorted(means, reverse=True)


def test_a_diverged_run_is_marked_with_its_round(study, frame):
    scores = ("personal_own", "personal_common", "global_own", "global_common")
    values = {"diverged_round": 3, "nonfinite_uploads": 12, **dict.fromkeys(scores, math.nan)}
    of = {"method": "dp_fedavg", "epsilon_target": 8.0, "seed": 0}
    text = markdown(summarise(study, with_values(frame, values, **of)))
    (line,) = lines_of(text, "†3 |")
    assert "dp\\_fedavg" in line
    assert "(2 of 3)" in line
    assert "† diverged: dp\\_fedavg (ε = 8) seed 0 in round 3 (12 uploads not finite)" in text


def test_what_does_not_vary_is_said_once_in_the_caption(study, frame):
    caption = summarise(study, frame).caption
    for words in TABLES["IN_CAPTION"]:
        assert words in caption
    assert "momentum" not in caption
    assert "transforms" not in caption


def test_the_papers_number_stands_beside_ours(study, frame):
    printed = {"paper_value": 71.92, "paper_metric": "personal_common"}
    changed = with_values(frame, printed, method="dp_fedavg")
    summary = summarise(study, changed)
    place = summary.header.index("paper")
    assert summary.header[place - 1] == "personal common"
    shown = {line[0].text: line[place].text for section in summary.sections for line in section}
    assert shown["dp_fedavg"] == "71.92"
    assert shown["feddpa"] == ""
    other = {"paper_value": 90.0, "paper_metric": "global_common"}
    mixed = summarise(study, with_values(changed, other, method="fedavg"))
    assert mixed.header[-1] == "paper"
    assert "71.92 (personal common)" in markdown(mixed)


def test_the_caption_says_that_no_epsilon_covers_what_is_measured(study, frame):
    table = summarise(study, frame)
    for text in (markdown(table), latex(table)):
        plain = text.replace(r"$\varepsilon$", "ε")
        caption = next(line for line in plain.splitlines() if "Shared by all rows" in line)
        words = "are diagnostics: the experimenter's own measurements on public data"
        assert caption.count(f"Measured values {words}") == 1
        assert plain.count("covered by no ε") == 1
        assert plain.count("hyper-parameters is not accounted for") == 1
    own = varied(study, lambda cell: replace(cell, dataset="my_rows"))
    assert "public" not in not_covered(own), "of a user's own rows"


@pytest.mark.parametrize(
    ("title", "words"), [("A study.", "A study. Shared"), ("Which one?", "Which one? Shared")]
)
def test_the_title_ends_the_captions_first_sentence_once(study, frame, title, words):
    assert summarise(replace(study, title=title), frame).caption.startswith(words)


def test_after_a_search_the_caption_says_that_no_epsilon_covers_the_choice(study, frame):
    chosen = Chosen(0, {"hyperparameters.tau": 0.4}, sets=3, runs=6)
    table = summarise(searched(study, chosen), frame)
    said = "Hyper-parameters were chosen on validation data; no ε covers that choice."
    assert table.caption.endswith(said)
    text = markdown(table)
    assert text.count("covers that choice") == 1
    assert "accounted for" not in text


def test_a_study_without_privacy_says_nothing_about_adjacency(study, frame):
    public = part_of(study, lambda cell: not is_private(cell))
    summary = summarise(public, frame[frame["claim"] == "none"])
    assert "adjacency" not in summary.caption
    assert not any("nominal" in note or "Certified" in note for note in summary.notes)


def test_guarantees_of_one_budget_name_the_rows_they_belong_to(study, frame):
    def certified(frame: pd.DataFrame) -> list[str]:
        return [note for note in summarise(study, frame).notes if note.startswith("Certified")]

    assert certified(frame)[0].startswith("Certified ε = 2: noise multiplier")
    changed = with_values(frame, {"noise_multiplier": 7.5}, method="feddpa")  # say, of another kind
    budgets = [(epsilon, method) for epsilon in (2, 8) for method in ("dp_fedavg", "feddpa")]
    words = [f"Certified ε = {epsilon} ({method})" for epsilon, method in budgets]
    assert [note.partition(":")[0] for note in certified(changed)] == words


@pytest.mark.slow
def test_the_plans_warnings_are_printed_under_the_table(study, tree, tmp_path):
    warning = "delta 0.1 is not below 1/M = 0.1: it allows everything"
    in_ledger(tree / "plans" / f"{study.cells[-1].plan_id}.json", warnings=[warning])
    write_study(study, tree, tmp_path / "tiny.csv")
    assert "delta 0.1 is not below 1/M" in (tmp_path / "tiny.md").read_text()


# ---------------------------------------------------------------- LaTeX


def test_the_tex_table_is_balanced(study, frame):
    text = latex(summarise(study, frame))
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert re.findall(r"\\begin{([\w*]+)}", text) == ["table*", "tabular"]
    assert re.findall(r"\\end{([\w*]+)}", text) == ["tabular", "table*"]
    columns = len(re.search(r"\\begin{tabular}{@{}(\w+)@{}}", text)[1])  # type: ignore[index]
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r" \\")]
    assert len(rows) == 9
    assert {len(re.sub(r"\\&", "", row).split("&")) for row in rows} == {columns}
    assert not re.search(r"(?<!\\)[_#%]", text.partition("\n")[2].replace(r"\label{tab:tiny}", ""))


def test_the_tex_table_names_methods_as_print_does_and_others_by_their_keys(study, written):
    texts = {kind: (written / f"tiny.{kind}").read_text() for kind in ("tex", "md", "csv")}
    names = {cell.method: registry.of(cell).about.title for cell in study.cells}
    assert names["dp_fedavg"] == "DP-FedAvg"
    for key, title in names.items():
        assert re.search(rf"^{title}\b", texts["tex"], re.MULTILINE), title
        assert not re.search(rf"(?<![\w.]){key}(?!\w)", texts["tex"].replace("\\_", "_")), key
        assert f"| {key}" in texts["md"].replace("\\_", "_")
        assert f",{key}," in texts["csv"]


def test_characters_that_latex_would_trip_over_are_escaped():
    escaped = r"a\_b \& 50\% \{x\} \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
    assert tex_escape("a_b & 50% {x} #1 $ ~ ^ \\") == escaped
    assert tex_escape("ε ≤ 2 ± ∞") == r"$\varepsilon$ $\leq$ 2 $\pm$ $\infty$"


def compiled(folder: Path, body: str) -> str:
    """Compile a document of two columns that uses booktabs in a folder; return what LaTeX printed
    if it failed or if something is wider than its column or higher than its page."""
    head = r"\documentclass[twocolumn,letterpaper]{article}\usepackage{booktabs,graphicx}"
    # Columns of 3.3 inches, as conferences have.
    head += r"\textwidth=6.9in\columnsep=.3in\oddsidemargin=-.2in\textheight=9in\topmargin=-.5in"
    text = rf"{head}\begin{{document}}x {body} x\end{{document}}"
    (folder / "main.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    how = {"capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run(command, cwd=folder, check=False, **how)
    too_large = re.search(r"^(Overfull .hbox|LaTeX Warning: Float too)", done.stdout, re.MULTILINE)
    if done.returncode or too_large:
        return done.stdout[-2000:] or "nothing was printed"
    return ""


def test_the_tex_table_and_figures_fit_a_page_with_two_columns(study, results, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip(reason="no pdflatex on this machine")
    if why := compiled(tmp_path, r"\begin{tabular}{l}\toprule a \\ \bottomrule\end{tabular}"):
        pytest.skip(reason=f"pdflatex cannot compile a table; {why}")
    study = replace(study, title="50% of a_b & c #1: α ≤ 1")
    cases = {"table": part_of(study, lambda cell: not cell.departures), "table*": study}
    cases["table* of all"] = replace(study, printed=("all",))
    assert compiled(tmp_path, r"\hbox to 3.4in{}\par") != "", "too wide is noticed"
    for name, one in cases.items():
        write_study(one, results, tmp_path / "tiny.csv")
        text = (tmp_path / "tiny.tex").read_text()
        assert re.findall(r"\\begin{(table.?)}", text) == [name.split()[0]]
        assert ("global\\\\common" in text) == ("all" in name)
        assert compiled(tmp_path, r"\input{tiny}") == "", name
    for width, place in ((3.3, "figure"), (6.7, "figure*")):
        drawn = Drawing("cost", "cost", width=width)
        kinds.write(study, drawn, results, results.parent / "data", tmp_path / "cost.png")
        body = rf"\begin{{{place}}}\includegraphics{{cost.pdf}}\end{{{place}}}"
        assert compiled(tmp_path, body) == "", width
