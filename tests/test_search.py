"""A search tries what it is told on other seeds, chooses by validation accuracy alone, and its cost
in privacy is counted."""

import itertools
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import dp_accounting
import pytest
import yaml
from dp_accounting.pld import PLDAccountant

import fake_results
import gdp
import malformed
import tabled
from pflpipe.cells import Cell, Partition
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import read_json, write_json
from pflpipe.pipeline import certificate
from pflpipe.pipeline.project import Project
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan
from pflpipe.report import tables, tidy
from pflpipe.study import search
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline, load_study
from pflpipe.study.plans import plan_of
from pflpipe.study.settings import round_up
from pflpipe.study.study_spec import Outline, Row, Study

TABLES = tabled.table("test_search")

STUDY = malformed.STUDY | TABLES["STUDY"]
USERS = {"kind": "natural", "clients": 10}
"""Clients that a search and the runs that follow from it share."""
HEADER = ",".join(fake_results.SCORES[:9])


def changed(**changes) -> Outline:
    """Write the study with some keys changed."""
    malformed.write(Path("studies/good.yaml"), STUDY | changes)
    return load_outline("good")


@pytest.fixture
def outline(good: Path) -> Outline:
    return changed()


def choose(outline: Outline, quality, *, tested=lambda _: 50.0, released=lambda _: "") -> Study:
    """Make scores in which client 0 has this validation accuracy by its cell, of its own and of the
    released model, and client 1 no example, and return the study that follows."""
    assert outline.search
    results = fake_results.write(outline.search, Path())
    for method in outline.search.methods:
        lines = []
        for cell in (cell for cell in outline.search.cells if cell.method == method):
            test = tested(cell)
            reached = [test, quality(cell), test, test, released(cell), test]
            lines += [[cell.id, 0, 9, *reached], [cell.id, 1, 9, test, "", test, "", "", ""]]
        fake_results.write_csv(results / f"scores/good/search/{method}.csv", HEADER, lines)
    search.write(outline, results, outline.choices(results))
    return load_study("good")


def searched(study: Study) -> list[Row]:
    return [row for row in study.rows if row.chosen]


def values(study: Study) -> dict[tuple[str, float | None], tuple[float, float]]:
    """(variant, epsilon) -> (tau, lr) of the rows that search."""
    found = {}
    for row in searched(study):
        tau, lr = row.cell.hyperparameters["tau"], row.cell.training.lr
        found[row.variant, row.cell.privacy.epsilon] = tau, lr
    return found


def by_rate(cell: Cell) -> float:
    """Best: the largest learning rate."""
    return cell.training.lr


def by_rate_and_tau(cell: Cell) -> float:
    """Best: lr 0.25 and tau 0.1 at epsilon 2, lr 0.5 and tau 0.4 at epsilon 8."""
    rate, tau = (0.25, 0.1) if cell.privacy.epsilon == 2 else (0.5, 0.4)
    return 50 + 10 * (cell.training.lr == rate) + 5 * (cell.hyperparameters["tau"] == tau)


@pytest.fixture
def study(outline) -> Study:
    """The study that follows from a search."""
    return choose(outline, by_rate_and_tau)


# What is tried


def test_every_point_of_the_grid_is_tried_at_the_searchs_seeds_and_fraction(outline):
    tried = [
        (cell.privacy.epsilon, cell.hyperparameters["tau"], cell.training.lr, cell.seed)
        for cell in outline.search.cells
        if cell.hyperparameters["ac"]
    ]
    assert tried == list(itertools.product([2.0, 8.0], [0.1, 0.4], [0.25, 0.5], [100, 101]))
    assert {cell.partition.validation_fraction for cell in outline.search.cells} == {0.2}
    assert outline.search.methods == ("feddpa",)


def test_a_study_without_a_search_has_none_and_waits_for_nothing(project):
    malformed.write(Path("studies/plain.yaml"), malformed.STUDY)
    plain = load_outline("plain")
    assert plain.search is None
    assert plain.everything == plain.study() == load_study("plain")
    assert searched(plain.study()) == []
    with pytest.raises(ConfigError, match="study 'plain' has no search"):
        project.study("plain/search")


def test_the_words_of_the_search_win_over_the_axes_of_the_method(outline):
    method = {"name": "dp_fedavg", "axes": {"training.lr": [7, 8]}}
    method["search"] = {"training": [{"lr": 1}, {"lr": 2, "rounds": 3}]}
    found = [cell.training for cell in changed(axes={}, methods=[method]).search.cells]
    assert [(one.lr, one.rounds) for one in found] == [(1.0, 2)] * 2 + [(2.0, 3)] * 2


# What is chosen


@pytest.mark.slow
def test_each_entry_and_each_point_of_the_axes_gets_what_was_best_there(study):
    at_two = {("", 2): (0.1, 0.25), ("no AC", 2): (0.4, 0.25)}
    assert values(study) == at_two | {("", 8): (0.4, 0.5), ("no AC", 8): (0.4, 0.5)}


@pytest.mark.slow
def test_the_study_runs_the_choice_at_its_own_seeds_and_partition(outline, study):
    assert {cell.seed for cell in study.cells} == {0, 1}
    assert {cell.partition.validation_fraction for cell in study.cells} == {0.1}
    assert {cell.id for cell in study.cells}.isdisjoint(cell.id for cell in outline.search.cells)
    assert study.methods == ("fedavg", "feddpa")
    assert len(study.rows) == 2 + 2 * 2 * 2


def test_a_choice_says_what_its_released_model_reached_on_validation_rows(outline):
    """The mean over the seeds 100 and 101, and nothing of a method that releases no model."""

    def released(cell):
        return 80 * cell.training.lr + cell.seed - 100

    study = choose(outline, by_rate_and_tau, released=released)
    for row in searched(study):
        assert row.chosen.global_validation == 80 * row.cell.training.lr + 0.5
    without = choose(outline, by_rate_and_tau)
    assert values(without) == values(study), "the personal models alone choose"
    assert {row.chosen.global_validation for row in searched(without)} == {None}


def test_a_search_at_one_budget_chooses_for_all_of_them(outline):
    asked = {**STUDY["search"], "at": {"privacy.epsilon": 8}}
    at_eight = changed(search=asked, partition=USERS)
    assert {cell.privacy.epsilon for cell in at_eight.search.cells} == {8.0}
    assert len(at_eight.search.cells) == len(outline.search.cells) // 2
    study = choose(at_eight, by_rate_and_tau)
    assert values(study)["", 2.0] == values(study)["", 8.0] == (0.4, 0.5)
    row = next(row for row in searched(study) if row.cell.privacy.epsilon == 2)
    final = plan_of(row.cell).plan.noise_multiplier
    mu = math.sqrt(row.cell.training.rounds * (row.chosen.runs / (24 / 8) ** 2 + 1 / final**2))
    assert row.chosen.epsilon == pytest.approx(2)
    assert gdp.delta(mu, row.chosen.epsilon_with_search) == pytest.approx(0.001)


def test_an_entry_may_have_more_seeds_than_the_study(outline):
    """And none of the search's: malformed.yaml."""
    methods = [{**STUDY["methods"][0], "seeds": [0, 1, 2, 3]}, *STUDY["methods"][1:]]
    for line in changed(methods=methods).lines:
        seeds = [row.cell.seed for row in line.candidates[0].rows]
        assert seeds == ([0, 1, 2, 3] if line.method == "fedavg" else STUDY["seeds"])


@pytest.mark.slow
def test_test_data_do_not_matter(outline, study):
    # The worse on validation data, the better on test data.
    opposite = choose(outline, by_rate_and_tau, tested=lambda cell: 100 - by_rate_and_tau(cell))
    assert values(opposite) == values(study)


@pytest.mark.slow
def test_the_mean_over_seeds_counts_and_not_the_best_seed(outline):
    reached = {(0.25, 100): 90, (0.25, 101): 10}
    study = choose(outline, lambda cell: reached.get((cell.training.lr, cell.seed), 60.0))
    assert {rate for _, rate in values(study).values()} == {0.5}


@pytest.mark.slow
def test_of_equals_the_first_in_the_file_is_chosen(outline):
    study = choose(outline, lambda cell: 50 + (cell.hyperparameters["tau"] == 0.4))
    lines = itertools.product(("", "no AC"), (2, 8))
    assert values(study) == dict.fromkeys(lines, (0.4, 0.25))


def test_the_file_says_what_every_candidate_reached_and_with_which_cells(study):
    first, *others = lines = read_json("results/searches/good.json")["lines"]
    assert not any(line["edges"] for line in lines), "a grid has no edges"
    assert first["line"] == "feddpa at privacy.epsilon=2"
    words = ["feddpa at privacy.epsilon=8", "feddpa (no AC) at privacy.epsilon=2"]
    assert [line["line"] for line in others[:2]] == words
    reached = [candidate["personal_validation"] for candidate in first["candidates"]]
    assert reached == [65, 55, 60, 50]
    assert [len(candidate["cells"]) for candidate in first["candidates"]] == [2] * 4
    assert (first["chosen"]["sets"], first["chosen"]["runs"]) == (4, 8)
    assert sum(first["plans"].values()) == 8
    chosen = [row.cell for row in study.rows if row.cell.privacy.epsilon == 2]
    assert first["rows"] == [cell.id for cell in chosen if cell.hyperparameters.get("ac")]


@pytest.mark.slow
def test_a_certificate_names_the_search_behind_each_row(outline, study):
    results = fake_results.write(study, Path())
    rows = read_json(certificate.write(study, results, Path("data")))["rows"]
    assert [row["cell"] for row in rows] == [cell.id for cell in study.cells]
    runs = [row["search"] and row["search"]["runs"] for row in rows]
    assert runs == [row.chosen and row.chosen.runs for row in study.rows]
    names = {row["search"]["line"] for row in rows if row["search"]}
    assert names == {line.words for line in outline.searched}


@pytest.mark.slow
def test_a_run_without_a_score_is_named(outline, study):
    path = Path("results/scores/good/search/feddpa.csv")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match=f"no validation score of {outline.search.cells[-1].id}"):
        search.write(outline, Path("results"), Path("results/searches/good.json"))


def test_a_study_is_not_known_before_its_search_has_chosen(outline):
    words = r"results/searches/good\.json does not exist; let snakemake make it"
    with pytest.raises(DataError, match=words):
        load_study("good")


@pytest.mark.slow
def test_a_choice_among_other_candidates_is_refused(study):
    grid = STUDY["methods"][1]["search"] | {"training.lr": [0.5, 0.25]}
    malformed.put("methods.1.search", grid)(Path())
    with pytest.raises(DataError, match="belongs to another search"):
        load_study("good")


@pytest.mark.slow
def test_what_a_study_says_besides_its_grid_leaves_the_choice_alone(study):
    changed(description="Other words.", seeds=[5])
    after = load_study("good")
    assert values(after) == values(study)
    assert {cell.seed for cell in after.cells} == {5}


# What is chosen of what was drawn


@pytest.fixture
def drawn(outline) -> Outline:
    return changed(**TABLES["DRAWN"])


@pytest.mark.slow
def test_candidates_that_were_drawn_are_chosen_among_like_those_of_a_grid(drawn):
    assert len(drawn.search.cells) == 2 * 16 * 2
    study = choose(drawn, by_rate)
    for line in drawn.lines:
        tried = [candidate.values for candidate in line.candidates]
        best = max(tried, key=lambda values: values["training.lr"])
        rows = [row for row in study.rows if row.cell.method == line.method]
        assert [row.chosen.values for row in rows] == [best] * 2
        assert {row.cell.training.lr for row in rows} == {best["training.lr"]}
        assert {row.chosen.sets for row in rows} == {16}


@pytest.mark.slow
def test_the_file_says_which_chosen_values_lie_at_the_edge_of_their_range(drawn):
    choose(drawn, by_rate)
    fedavg, feddpa = read_json("results/searches/good.json")["lines"]
    assert fedavg["chosen"]["values"]["training.lr"] > 2
    assert fedavg["edges"] == {"training.lr": "high"}
    assert set(feddpa["edges"]) == {"training.lr", "hyperparameters.tau"}, "a list has no edge"


# What it costs


@pytest.mark.slow
def test_the_cost_is_that_of_all_runs_of_the_search_and_the_final_one_on_the_same_clients(outline):
    rows = searched(choose(changed(partition=USERS), by_rate_and_tau))
    for row in rows:
        multiplier = 24 / row.cell.privacy.epsilon  # of the made-up plans
        mu = math.sqrt(row.cell.training.rounds) / multiplier
        assert gdp.delta(mu, row.chosen.epsilon) == pytest.approx(0.001)
        mu *= math.sqrt(row.chosen.runs + 1)
        assert gdp.delta(mu, row.chosen.epsilon_with_search) == pytest.approx(0.001)
        assert (row.chosen.delta, row.chosen.search_not_counted) == (0.001, "")
    assert {row.chosen.runs for row in rows} == {8, 4}


@pytest.mark.parametrize("partition", TABLES["DEALT"], ids=lambda one: one["kind"])
def test_a_search_on_clients_dealt_anew_has_no_epsilon_with_the_final_run(outline, partition):
    """A client of a final run is none of the search: its rows lay with many of those."""
    methods = [{"name": "dp_fedavg", "search": {"training.lr": [0.25, 0.5]}}]
    study = choose(changed(partition=partition, methods=methods), by_rate)
    assert all(row.chosen.epsilon > 0 for row in study.rows), "that of the run itself"
    assert f"; no ε counts that search as well: {search.OTHER_CLIENTS}." in summary_of(study)
    frame = tidy.read(Path("results/tables/good.csv"))
    assert set(frame["epsilon_with_search"]) == {None}
    assert set(frame["search_not_counted"]) == {search.OTHER_CLIENTS}


def test_rows_dealt_at_other_seeds_are_a_client_of_no_search_and_users_are_theirs_at_every_seed():
    dealt = [replace(fake_results.BASE, seed=seed) for seed in (0, 100)]
    assert len({cell.clients_id for cell in dealt}) == 2
    divisions = (Partition("natural", 10), Partition("natural", 5, test_fraction=0.5))
    users = [replace(cell, partition=division) for cell in dealt for division in divisions]
    assert len({cell.clients_id for cell in users}) == 1


def test_candidates_that_share_a_training_run_pay_for_it_once(outline):
    """Head learning rates are read after training: with two of training and two seeds that is four
    runs for eight cells."""
    grid = {"hyperparameters.head_lr": [0.01, 0.1], "training.lr": [0.25, 0.5]}
    methods = [{"name": "dp_fedavg_fb", "search": grid}]
    study = choose(changed(axes={}, methods=methods, partition=USERS), by_rate)
    chosen = study.rows[0].chosen
    assert (chosen.sets, chosen.runs) == (4, 4)
    mu = math.sqrt(study.cells[0].training.rounds) / (24 / 8)
    assert gdp.delta(mu * math.sqrt(4 + 1), chosen.epsilon_with_search) == pytest.approx(0.001)
    assert "chosen among 4 settings by 4 runs" in summary_of(study)
    candidates = read_json("results/searches/good.json")["lines"][0]["candidates"]
    assert len({cell for candidate in candidates for cell in candidate["cells"]}) == 8


def plan(**words) -> Plan:
    return Plan(clip_norm=1.0, clients=10, **words)


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", 2), ("laplace", 1)])
def test_sampled_runs_compose_by_their_privacy_losses(mechanism, norm):
    kind = getattr(dp_accounting, f"{mechanism.title()}DpEvent")
    words = {"mechanism": mechanism, "norm": norm, "delta": 1e-3, "rounds": 4}
    first = plan(**words, sample_rate=0.5, noise_multiplier=3.0)
    plans = [first, replace(first, sample_rate=0.25, noise_multiplier=2.0), first]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for one in plans:
        event = dp_accounting.PoissonSampledDpEvent(one.sample_rate, kind(one.noise_multiplier))
        accountant.compose(event, one.rounds)
    epsilon = accounting.composed_epsilon(plans, 1e-3)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-3)
    whole = accounting.epsilon(replace(first, rounds=12), 1e-3)
    assert accounting.composed_epsilon([first] * 3, 1e-3) == whole


def test_pure_budgets_of_laplace_add_up():
    words = {"mechanism": "laplace", "norm": 1, "sample_rate": 1.0, "delta": 0.0}
    plans = [plan(rounds=n, noise_multiplier=scale, **words) for n, scale in ((2, 4.0), (3, 2.0))]
    assert accounting.composed_epsilon(plans, 0.0) == pytest.approx(2 / 4 + 3 / 2)


def test_nominal_epsilons_are_not_counted_on(outline):
    official = {"name": "feddpa", "profile": "paper", "official_code": True}
    official |= {"training": {"batch_size": 8}, "search": {"training.lr": [0.1, 0.2]}}
    study = choose(changed(methods=[official]), by_rate)
    epsilons = {(row.chosen.epsilon, row.chosen.epsilon_with_search) for row in study.rows}
    assert epsilons == {(None, None)}


def test_runs_of_a_method_from_outside_cost_what_certified_ones_do(outline):
    shutil.copy(malformed.ROOT / "docs/examples/easgd.py", "studies")
    found = []
    for name in ("dp_fedavg", "easgd.py:easgd"):
        methods = [{"name": name, "search": {"training.lr": [0.1, 0.2]}}]
        study = choose(changed(methods=methods, partition=USERS), by_rate)
        found.append([row.chosen.epsilon_with_search for row in searched(study)])
    ours, its = found
    assert its == ours
    assert all(ours)


# What people are told


def summary_of(study: Study) -> str:
    results = fake_results.write(study, Path())
    tables.write_study(study, results, results / "tables/good.csv")
    return (results / "tables/good.md").read_text().replace("\\_", "_")


@pytest.fixture
def printed(outline) -> str:
    """The summary of the study, after a search."""
    return summary_of(choose(changed(partition=USERS), by_rate_and_tau))


@pytest.mark.slow
def test_the_table_names_what_was_chosen_where(printed):
    chosen = "chosen by the search"
    assert f"- feddpa: {chosen}: lr=0.25, tau=0.1 (ε = 2); lr=0.5, tau=0.4 (ε = 8)." in printed
    assert f"- feddpa (no AC): {chosen}: lr=0.25 (ε = 2); lr=0.5 (ε = 8)." in printed


@pytest.mark.slow
def test_the_table_says_what_looking_at_the_data_costs(printed):
    rows = [row for row in searched(load_study("good")) if not row.variant]
    chosen = [row.chosen for row in rows if row.cell.seed == 0]
    both = [(round_up(one.epsilon_with_search), round_up(one.epsilon)) for one in chosen]
    two, eight = (f"{all_runs} instead of {one_run} (δ = 0.001)" for all_runs, one_run in both)
    assert two != eight
    assert (
        "- feddpa: chosen among 4 settings by 8 runs on validation data of other splits of these "
        "examples; counting the releases of those 8 runs with the final one's, of the same "
        f"clients, ε is {two}, {eight}."
    ) in printed
    assert "- feddpa (no AC): chosen among 2 settings by 4 runs" in printed
    words = "Hyper-parameters were chosen on validation data; no ε covers that choice."
    assert printed.count(words) == 1
    assert words in printed.splitlines()[0]


@pytest.mark.slow
def test_chosen_values_are_neither_part_of_a_label_nor_said_to_be_shared(printed):
    labels = [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| feddpa ")]
    assert sorted(labels) == ["| feddpa"] * 2 + ["| feddpa (no AC)"] * 2, "one line per budget"
    assert "Shared by all rows" in printed.splitlines()[0]
    assert "lr" not in printed.splitlines()[0]
    assert "- fedavg: lr=0.5." in printed


@pytest.mark.slow
def test_the_commands_know_the_search(outline, ran):
    found = "good: 10 cells after a search of 24, fedavg, feddpa on digits: ok\n"
    assert ran("validate").out == found
    assert "10 cells after a search of 24" in ran("studies").out
    choose(outline, by_rate_and_tau)
    assert "hyperparameters.tau=0.4" in ran("rank", "good").out


def test_a_search_in_which_nothing_can_be_learned_is_warned_of(outline, ran):
    changed(axes={"privacy.epsilon": [0.5, 8]})
    checked, warning = ran("validate").out.splitlines()
    assert checked.endswith(": ok")
    assert warning.startswith("warning: good: feddpa at ε = 0.5: the noise is about 16 times as")


@pytest.mark.slow
def test_rank_prints_the_chosen_entries_as_a_study_has_them_and_what_lies_at_an_edge(drawn, ran):
    study = choose(drawn, by_rate)
    shown = ran("rank", "good").out
    entries = shown[shown.index("# chosen for fedavg") : shown.index("Chosen in the outer")]
    plain = malformed.STUDY | {"axes": {}, "methods": yaml.safe_load(entries)}
    malformed.write(Path("studies/plain.yaml"), plain)
    assert load_study("plain").cells == study.cells
    rate = study.rows[0].cell.training.lr
    assert f"Chosen in the outer tenth of a range: fedavg: training.lr={rate:g} (high)" in shown


# What the workflow is told


@pytest.fixture
def project(outline) -> Project:
    return Project(Config(studies=("good",)), Path(), thorough=False)


def test_every_run_is_found_by_its_id_whatever_will_be_chosen(outline, project):
    for cell in outline.everything.cells:
        assert project.cells({"cell": cell.id}) == [cell]
        assert project.cells({"partition": cell.partition_id})[0].partition_id == cell.partition_id


def test_methods_that_search_wait_and_others_do_not(project):
    assert project.waits({"study": "good"})
    assert project.waits({"study": "good", "method": "feddpa"})
    assert not project.waits({"study": "good", "method": "fedavg"})
    assert not project.waits({"study": "good/search", "method": "feddpa"})
    assert {cell.seed for cell in project.cells({"study": "good", "method": "fedavg"})} == {0, 1}
    trials = project.cells({"study": "good/search", "method": "feddpa"})
    assert {cell.seed for cell in trials} == {100, 101}
    with pytest.raises(DataError, match="does not exist"):
        project.cells({"study": "good", "method": "feddpa"})


@pytest.mark.slow
def test_a_new_choice_is_read_again(study, project):
    assert values(project.study("good"))["", 2] == (0.1, 0.25)
    record = read_json("results/searches/good.json")
    record["lines"][0]["chosen"]["index"] = 3
    write_json("results/searches/good.json", record)
    os.utime("results/searches/good.json", (1, 1))
    assert values(project.study("good"))["", 2] == (0.4, 0.5)
