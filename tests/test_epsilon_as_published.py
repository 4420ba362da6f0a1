"""Published: what a method's own mechanism is worth at a cell's budget, whether or not the cell
runs it so."""

import dataclasses
import math

import numpy as np
import pytest

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.facts.departures import WITHOUT_BOUND
from pflpipe.methods import registry
from pflpipe.privacy.accounting import epsilon
from pflpipe.study import epsilon_as_published
from pflpipe.study.load import load_study
from pflpipe.study.plans import plan_of

LAPLACE = Privacy("laplace", epsilon=2.0, delta=0.02, clip_norm=1.0)
GAUSSIAN = dataclasses.replace(LAPLACE, mechanism="gaussian")
TRAINING = Training(rounds=30, local_epochs=3, batch_size=16, optimizer="sgd", lr=0.1)
PEOPLE = Partition("natural", clients=50)
FEDDPA = Cell("femnist", PEOPLE, Model("mlp", (4,)), TRAINING, GAUSSIAN, "feddpa")
SIZES = np.full(50, 198)  # 9,900 examples


def worth(cell, sizes=SIZES):
    def plans(name):
        counted = epsilon_as_published.as_published(cell)
        assert counted.plan_id == name
        return plan_of(counted, sizes)

    return epsilon_as_published.epsilon(cell, plans)


def changed(**changes):
    return dataclasses.replace(FEDDPA, **changes)


def run_as_published(cell):
    official = bool(registry.info(cell.method).about.official_departures)
    names = registry.departures(cell.method, "paper", official)
    return dataclasses.replace(cell, profile="paper", official_code=official, departures=names)


def test_the_official_calibration_of_feddpa_at_epsilon_2_is_worth_40():
    # 50 users, 9,900 examples, three epochs of batches of 16, 30 rounds, delta 0.02; equal sizes,
    # so the weights cost nothing.
    assert worth(FEDDPA) == pytest.approx(40.5, rel=3e-3)
    assert plan_of(FEDDPA, SIZES).ledger.epsilon_central == pytest.approx(2.0)


def test_unequal_sizes_make_the_official_weights_cost_more():
    sizes = np.array([99 + 198 * (client % 2) for client in range(50)])
    assert sizes.sum() == 9900
    assert worth(FEDDPA, sizes) > 1.2 * worth(FEDDPA)


@pytest.mark.parametrize("cell", [FEDDPA, run_as_published(FEDDPA)], ids=["strict", "paper"])
def test_clients_without_examples_take_no_share_of_the_official_noise(cell):
    """The published weights leave out who has no examples: with half of 50 clients, 25 shares
    count, each twice as much."""
    sizes = np.array([396 * (client % 2) for client in range(50)])
    assert sizes.sum() == SIZES.sum()
    half, full = (plan_of(run_as_published(FEDDPA), s).plan for s in (sizes, SIZES))
    calibrated = half.noise_multiplier
    assert calibrated == full.noise_multiplier
    halved = dataclasses.replace(half, noise_multiplier=calibrated / math.sqrt(2))
    assert worth(cell, sizes) == pytest.approx(epsilon(halved, 0.02), rel=1e-6)


PRIVATE = [name for name in registry.NAMES if registry.info(name).about.private]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_a_row_says_the_same_whether_it_runs_the_published_method_or_the_certified_one(name):
    about = registry.info(name).about
    model = Model("resnet20") if name == "fedbn" else FEDDPA.model
    privacy = LAPLACE if about.mechanism == "laplace" else FEDDPA.privacy
    cell = changed(method=name, model=model, privacy=privacy)
    sizes = np.arange(1, 51)
    executed = plan_of(run_as_published(cell), sizes).ledger.epsilon_central
    assert worth(run_as_published(cell), sizes) == float(executed)
    assert worth(cell, sizes) == pytest.approx(float(executed), rel=1e-6)
    names = set(epsilon_as_published.departures(cell))
    if not names:
        assert worth(cell, sizes) == plan_of(cell, sizes).ledger.epsilon_central <= 2.0
    elif names & WITHOUT_BOUND.keys():
        assert worth(cell, sizes) == math.inf


def test_a_paper_profile_without_the_steps_of_the_official_code_counts_these_too():
    assert worth(changed(profile="paper")) == worth(FEDDPA)


def test_a_given_multiplier_departs_in_no_calibration():
    given = dataclasses.replace(FEDDPA.privacy, epsilon=None, noise_multiplier=5.517)
    cell = changed(privacy=given)
    names = set(epsilon_as_published.departures(cell))
    assert names == {"data_size_weights", "update_against_global"}
    assert worth(cell) == pytest.approx(2.0, rel=1e-3)


NOTHING_TO_COUNT = {
    "no privacy": changed(method="fedavg", privacy=Privacy()),
    "no batch size": changed(training=dataclasses.replace(FEDDPA.training, batch_size=0)),
    "no Laplace form": changed(privacy=LAPLACE),
    "no Laplace form of messages": changed(method="fedaddp", privacy=LAPLACE),
}


@pytest.mark.parametrize("cell", NOTHING_TO_COUNT.values(), ids=NOTHING_TO_COUNT)
def test_where_there_is_no_published_mechanism_to_count_there_is_no_number(cell):
    assert worth(cell) is None


@pytest.mark.parametrize("name", PRIVATE)
def test_the_plan_of_the_published_version_is_the_one_that_its_run_has(name):
    cell = changed(method=name)
    theirs = run_as_published(cell)
    assert epsilon_as_published.as_published(theirs) == theirs
    if epsilon_as_published.departures(cell).isdisjoint(WITHOUT_BOUND):
        assert epsilon_as_published.as_published(cell).plan_id == theirs.plan_id
    else:
        assert epsilon_as_published.as_published(cell) is None


def test_where_nothing_holds_no_plan_is_asked_for():
    cell = changed(method="fedaddp")
    found = epsilon_as_published.epsilon(cell, lambda name: pytest.fail("a plan was asked for"))
    assert found == math.inf


def test_the_quickstart_needs_few_plans_that_its_runs_do_not_have():
    # Of one method alone: the others are rows as published, are worth nothing as published, or
    # calibrate to a batch size that the quickstart does not have.
    cells = load_study("quickstart").cells
    plans = {cell.plan_id for cell in cells}
    counted = [found for cell in cells if (found := epsilon_as_published.as_published(cell))]
    assert len({found.method for found in counted if found.plan_id not in plans}) == 1
