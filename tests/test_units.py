"""What a client is, and what holds for a person whose rows were dealt to several: the same words
and numbers from the plan to every page."""

import json
import math
from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

import fake_results
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.files import read_json, write_json
from pflpipe.pipeline.mlflow_runs import of_study
from pflpipe.privacy.accounting import epsilon, epsilon_of_group, make_plan
from pflpipe.privacy.ledger import DEALT, effective_plan
from pflpipe.report import comparison, ledger_page, sentences, tables, tidy
from pflpipe.report.figures import kinds as figures
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Drawing

DEALT_WISH = Partition("dirichlet", 20, alpha=0.3, users="ignored", max_clients_per_user=3)
TRAINING = Training(10, 1, 0, "sgd", 0.3)
NOISE = Privacy("gaussian", noise_multiplier=4.0, delta=1e-3, clip_norm=1.0)
CELL = Cell("mine", DEALT_WISH, Model("mlp", (4,)), TRAINING, NOISE, "dp_fedavg")


def changed(most: int | None = 3, **training: object) -> Cell:
    partition = replace(CELL.partition, max_clients_per_user=most)
    return replace(CELL, partition=partition, training=replace(CELL.training, **training))


def with_privacy(cell: Cell, **values: object) -> Cell:
    return replace(cell, privacy=replace(cell.privacy, **values))


# ---------------------------------------------------------------- the epsilon of a person


@pytest.mark.parametrize("most", [1, 2, 3, None])
def test_without_sampling_a_person_is_a_client_with_so_many_times_the_sensitivity(most):
    ledger = plan_of(changed(most)).ledger
    together = min(most or 20, 20)
    for name, delta in (("epsilon_person", 1e-3), ("epsilon_person_1e5", 1e-5)):
        expected = dp_accounting.get_epsilon_gaussian(4.0 / together / math.sqrt(10), delta)
        assert math.isclose(getattr(ledger, name), expected, rel_tol=1e-6)
    assert (ledger.unit, ledger.max_clients_per_user) == (DEALT, most)
    assert (ledger.epsilon_person == ledger.epsilon_central) == (most == 1)
    assert math.isclose(ledger.epsilon_central, plan_of(changed(1)).ledger.epsilon_central)


def test_with_sampling_a_person_is_the_mixture_of_as_many_clients_as_are_drawn():
    rate, most = 0.2, 3
    ledger = plan_of(changed(most, sample_rate=rate)).ledger
    counts = range(most + 1)
    law, interval = stats.binom.pmf(counts, most, rate), {"value_discretization_interval": 2e-3}
    mixture = privacy_loss_distribution.from_mixture_gaussian_mechanism
    losses = mixture(4.0, counts, law, **interval).self_compose(10)
    for name, delta in (("epsilon_person", 1e-3), ("epsilon_person_1e5", 1e-5)):
        expected = losses.get_epsilon_for_delta(delta)
        assert math.isclose(getattr(ledger, name), expected, rel_tol=1e-2)
    undrawn = plan_of(changed(most)).ledger.epsilon_person
    assert ledger.epsilon_central < ledger.epsilon_person < undrawn


@pytest.mark.parametrize(("mechanism", "is_tight"), [("gaussian", True), ("laplace", False)])
def test_no_pair_of_neighbouring_sums_costs_more_than_the_bound_of_its_group(mechanism, is_tight):
    """One round of one number: delta at the stated epsilon by numerical integration, in both
    directions, of the density with and without three clients that are drawn at rate 0.3."""
    request = Privacy(mechanism, noise_multiplier=3.0, delta=1e-3, clip_norm=1.0)
    plan = make_plan(request, rounds=1, sample_rate=0.3, clients=20)
    bound = epsilon_of_group(plan, 1e-3, 3)
    x, noise = np.linspace(-60, 60, 1_200_001), stats.norm if is_tight else stats.laplace
    weights = stats.binom.pmf(range(4), 3, 0.3)
    present = sum(weight * noise.pdf(x, drawn, 3.0) for drawn, weight in enumerate(weights))
    absent = noise.pdf(x, 0, 3.0)

    def delta(epsilon: float) -> float:
        pairs = ((present, absent), (absent, present))
        above = (np.maximum(p - math.exp(epsilon) * q, 0) for p, q in pairs)
        return max(float(np.trapezoid(one, x)) for one in above)

    assert delta(bound) <= 1e-3 * (1 + 1e-6)
    assert (delta(bound * 0.99) > 1e-3) == is_tight


IN_TURN = {"groups": changed(groups=5), "band": with_privacy(changed(), band=4)}
IN_TURN["buffers"] = with_privacy(changed(), buffers=2)


@pytest.mark.parametrize("cell", IN_TURN.values(), ids=IN_TURN)
def test_with_cohorts_in_turn_and_correlated_noise_sensitivities_of_a_person_add_up(cell):
    planned = plan_of(cell)
    single = effective_plan(planned.plan, ())
    weaker = replace(single, noise_multiplier=single.multiplier / 3)
    assert planned.ledger.epsilon_person == epsilon(weaker, 1e-3)


def test_a_nominal_row_counts_a_person_under_its_departures():
    cell = replace(changed(2), departures=("clip_in_training",), profile="paper")
    ledger = plan_of(cell).ledger
    assert ledger.epsilon_person == ledger.epsilon_person_1e5 == math.inf
    assert any("no epsilon holds" in warning for warning in ledger.warnings)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_where_the_group_of_all_clients_has_no_number_none_is_said(mechanism):
    cell = with_privacy(changed(None), mechanism=mechanism, noise_multiplier=1e-3)
    ledger = plan_of(cell).ledger
    if mechanism == "gaussian":
        assert ledger.epsilon_person == math.inf
        assert "with all 20 of them: no epsilon holds for it" in ledger.warnings[0]
    else:  # a pure epsilon is finite for any number
        assert math.isclose(ledger.epsilon_person, 20 * 10 / 1e-3)


def test_no_privacy_has_a_unit_and_no_number():
    ledger = plan_of(replace(CELL, privacy=Privacy(), method="fedavg")).ledger
    assert (ledger.unit, ledger.epsilon_person) == (DEALT, None)


def test_the_number_of_a_person_is_never_counted_from_rows():
    """Neither sizes nor who holds what reach it: only what the study declares."""
    few, many = (plan_of(changed(3), np.array(sizes)) for sizes in ([1] * 20, [900] * 20))
    assert few.ledger == many.ledger == plan_of(changed(3)).ledger


def test_the_warning_says_for_whom_the_epsilons_are():
    (warning,) = plan_of(changed(3), unit="patient").ledger.warnings
    assert "that of one patient with all rows" in warning
    assert "at most 3 of them (max_clients_per_user): epsilon_person counts" in warning


# ---------------------------------------------------------------- plans and ids


def test_plans_and_ids_of_other_studies_stay_as_they_are():
    plain = replace(CELL, partition=Partition("dirichlet", 20, alpha=0.3))
    for name in ("users", "max_clients_per_user"):
        assert name not in json.dumps(plain.identity)
    assert plain.plan_id == "gaussian-M20-q1-T10-3cb7f2ffce"
    assert CELL.plan_id != plain.plan_id != changed(2).plan_id
    for cell in (CELL, changed(2)):
        assert cell.accounted.partition.users == "ignored"
        assert plan_of(cell.accounted).ledger == plan_of(cell).ledger


def test_a_word_of_ones_own_is_the_unit_where_users_are_clients():
    natural = replace(CELL, partition=Partition("natural", 20))
    assert plan_of(natural).ledger.unit == "user"
    patient = plan_of(natural, unit="patient").ledger
    assert patient == replace(plan_of(natural).ledger, unit="patient")


# ---------------------------------------------------------------- pages


@pytest.fixture(scope="module", params=[(3, "at most 3", 6), (None, "any number of", 200)], ids=str)
def dealt(request, tmp_path_factory):
    """A study whose rows were dealt, its results and its table."""
    most, many, person = request.param
    said = {"users": "ignored", "max_clients_per_user": most}
    base = replace(fake_results.BASE, partition=replace(fake_results.BASE.partition, **said))
    study = fake_results.study(methods=("local_only", "fedavg", "dp_fedavg"), base=base)
    folder = tmp_path_factory.mktemp("dealt")
    results = fake_results.write(study, folder)
    words = f"lie with {many} clients, and ε = 2 of a client is {person} of one person (δ = 0.001)"
    return study, folder, tidy.stored(study, results), words


UNIT = "The unit is one dealt client with all rows, and no person: the rows of one person "


def test_a_row_names_its_unit_and_a_persons_epsilon(dealt):
    study, folder, frame, _ = dealt
    most = study.rows[0].cell.partition.max_clients_per_user
    private = frame[frame["claim"] != "none"]
    assert set(private["unit"]) == {DEALT}
    counted = [(most or 100) * value for value in private["epsilon_central"]]
    assert list(private["epsilon_person"]) == counted
    assert list(frame[frame["claim"] == "none"]["unit"]) == [None] * (len(frame) - len(private))
    joined = folder / "all.csv"
    tidy.join([folder / f"results/tables/{study.name}.csv"], joined)
    assert tidy.read(joined).equals(frame)


def test_every_page_says_that_a_client_is_no_person_and_what_holds_for_one(dealt):
    study, folder, frame, words = dealt
    results = folder / "results"
    drawing = Drawing("privacy_utility", "privacy_utility")
    audits = pd.DataFrame(columns=["profile", *ledger_page.AUDIT])
    page = ledger_page.page(frame, audits, Path("workflow/report/ledger.html"))
    summary = dict(ledger_page.summary(frame, audits))
    drawn = figures.draw(study, drawing, results, folder / "data", frame)
    shown = tables.shown(study, frame, results)[0]
    said = " ".join(sentences.of_study(study, frame))
    below = " ".join(drawn.get_supxlabel().split())
    for text in (shown.caption, said, summary["protected"], page, below):
        assert UNIT in text
        assert words in text
    assert page.count("<th>ε of a person</th>") == 1


def test_mlflow_finds_runs_by_their_unit(dealt):
    study, folder, *_ = dealt
    found = [one.tags for one in of_study(study, folder / "results", study.methods)]
    certified = [tags for tags in found if tags.get("claim") == "certified"]
    assert {tags["unit"] for tags in certified} == {DEALT}
    assert all(float(tags["epsilon_person"]) > float(tags["epsilon"]) for tags in certified)


def test_users_who_are_clients_need_no_further_words(tmp_path):
    study = fake_results.study(methods=("dp_fedavg",), seeds=(0,))
    frame = tidy.stored(study, fake_results.write(study, tmp_path))
    assert list(comparison.protected(frame)) == []
    assert not set(frame) & set(tidy.OF_UNITS)


def test_a_table_of_own_data_says_one_patient_with_all_rows(tmp_path):
    base = replace(fake_results.BASE, dataset="mine")
    study = fake_results.study(methods=("dp_fedavg",), seeds=(0,), base=base)
    results = fake_results.write(study, tmp_path)
    for cell in study.cells:
        file = results / "plans" / f"{cell.plan_id}.json"
        content = read_json(file)
        content["ledger"]["unit"] = "patient"
        write_json(file, content)
    frame = tidy.tidy(study, results)
    assert list(comparison.protected(frame)) == ["The unit is one patient with all rows."]
    assert not set(frame) & set(tidy.OF_UNITS[1:])
