"""What a run leaves in the model beside its clients' part is fresh noise of its plan, seen from
outside the engine.

Single rounds, pairs of rounds of all runs, pairs of worlds that differ in nothing but the clients'
data, and runs through the files that a user sees (residual_runs.py has the checks;
test_training_faults.py shows what each of them is there for).
"""

import numpy as np
import pytest
import torch

import residual_runs
from pflpipe.privacy.noise_laws.buffers import Buffers
from residual_runs import (
    CERTIFIED,
    RAREST,
    certified_run,
    final_model,
    findings,
    lay_out,
    real,
    watch,
)
from simulations import held, plan

torch.set_num_threads(1)
DTYPES = (torch.float64, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("method", CERTIFIED)
def test_a_certified_method_leaves_nothing_but_noise_of_its_plan(method, rate, dtype):
    run = certified_run(method, rate, dtype)
    assert len(run.rounds) == run.world.plan.rounds
    assert run.scores.size > 100
    assert findings(run) == {}
    assert run.done.residuals.coordinates == run.scores.size, "every number that was sent"
    held(run.world, run.done)


@pytest.mark.parametrize(
    ("groups", "noise"),
    [
        (1, {"band": 5}),
        (2, {"band": 5}),
        (2, {"band": 12, "buffers": Buffers((0.9, 0.5), (0.3, 0.2))}),
    ],
)
def test_correlated_noise_is_that_of_its_plan_when_all_rounds_are_whitened_together(groups, noise):
    rule = plan(4, rounds=12, groups=groups, noise_multiplier=1.0, **noise)
    small = {"sizes": (2, 1, 2, 3), "shape": (100,), "hidden": ()}
    run = watch(residual_runs.world(plan=rule, **small))
    assert findings(residual_runs.whitened(run)) == {}
    assert "size" in findings(run), "what is released has more than the noise of its own round"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_six_million_numbers_have_the_tails_of_their_law(mechanism):
    wide = residual_runs.wide_run(mechanism)
    assert wide.scores.size > 6_000_000
    assert findings(wide) == {}


@pytest.mark.slow
def test_all_numbers_of_all_runs_together_have_the_tails_of_their_law():
    certified = [run.scores for run in certified_runs()]
    everything = np.concatenate(
        [*certified, *(residual_runs.wide_run(law).scores for law in ("gaussian", "laplace"))]
    )
    assert everything.size > 14_000_000
    assert residual_runs.tails(everything) > RAREST


def certified_runs():
    return [
        certified_run(method, rate, dtype)
        for method in CERTIFIED
        for rate in (1.0, 0.5)
        for dtype in DTYPES
    ]


@pytest.mark.slow
def test_no_two_rounds_of_any_two_runs_share_noise():
    many, known = residual_runs.many_runs(), {}
    assert findings(*many) == {}
    for run in certified_runs():
        same = known.setdefault(run.world.key, run)
        assert np.array_equal(run.scores, same.scores), (
            "runs of one key are one run and one release"
        )
    assert len(known) == 4 * (len(CERTIFIED) - 2), "three methods share DP-FedAvg's training"
    everything = [*known.values(), *many]
    assert sum(len(run.rounds) for run in everything) > 1000
    assert residual_runs.shared(everything) == {}


@pytest.mark.slow
def test_cohorts_of_runs_that_differ_in_one_setting_are_independent():
    drawn = residual_runs.sampled_runs()
    assert findings(*drawn) == {}
    assert residual_runs.shared(drawn) == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", CERTIFIED)
def test_neither_model_cohort_nor_noise_shows_whose_data_it_was(method):
    everybody, drawn = (certified_run(method, rate, torch.float64) for rate in (1.0, 0.5))
    one = drawn.rounds[0].clients[-1]
    spoiled = real(residual_runs.spoiled(drawn.world, one))
    assert spoiled.done.rows[0]["nonfinite_uploads"] == 1
    for base, changed in (
        (everybody, real(residual_runs.other_data(everybody.world))),
        (drawn, real(residual_runs.other_data(drawn.world))),
        (drawn, real(residual_runs.without_rows(drawn.world, one))),
        (drawn, spoiled),
    ):
        assert residual_runs.differences(base, changed) == []
        moved = [
            not np.array_equal(base.done.params[name], value)
            for name, value in changed.done.params.items()
        ]
        assert any(moved), "the other world is another one"


@pytest.mark.slow
@pytest.mark.parametrize("method", CERTIFIED)
def test_a_client_reaches_others_through_the_releases_alone(method):
    """Which is what joint differential privacy needs beside the noise."""
    assert residual_runs.strangers(residual_runs.world(method, rounds=2), 1) == []


@pytest.mark.slow
def test_files_of_runs_that_differ_in_one_setting_share_no_noise(tmp_path):
    place = lay_out(tmp_path)
    changes = [
        {},
        {"lr": 0.11},
        {"noise": 999.0},
        {"clip_norm": 0.51},
        {"epochs": 2},
        {"seed": 1},
        {"method": "dp_fedsam"},
    ]
    models = [final_model(place, **change) for change in changes]
    assert np.array_equal(models[0], final_model(place)), "the same run again is the same file"
    assert abs(np.corrcoef(models[0], models[1])[0, 1]) < 5 / np.sqrt(len(models[0]))
    assert residual_runs.pairs(models) > RAREST
    assert min(map(residual_runs.size, models)) > RAREST


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "fedglp_adp", "appfl"])
def test_files_of_two_worlds_are_equal_to_the_bit_when_nothing_is_learned(method, tmp_path):
    """At learning rate 0 every upload is zero, and what is released is the first model and the
    noise."""
    places = [lay_out(tmp_path / str(changed), changed) for changed in (False, True)]
    one, other = (final_model(place, method, lr=0.0, noise=1.0) for place in places)
    assert np.array_equal(one, other)
    learned, elsewhere = (final_model(place, method, lr=0.1, noise=1.0) for place in places)
    assert not np.array_equal(learned, elsewhere), "the other world is another one"


@pytest.mark.slow
def test_what_the_checks_call_rare_is_at_least_as_rare_in_noise_that_is_right():
    draw, found = np.random.default_rng(5), []
    for _ in range(400):
        rounds = [
            residual_runs.Round((), {"w": part}, True, True)
            for part in draw.standard_normal((3, 200))
        ]
        streams = [round.stream for round in rounds]
        whole = np.concatenate(streams)
        checks = residual_runs.size, residual_runs.mean, residual_runs.shape, residual_runs.tails
        joint = (
            residual_runs.halves(rounds),
            residual_runs.neighbours(rounds),
            residual_runs.pairs(streams),
        )
        found.append([*(check(whole) for check in checks), *joint])
    rates = (np.array(found) < 0.02).mean(axis=0)
    assert (rates < 0.05).all(), (
        "a binomial number of 400 draws at 0.02 is above 20 with a probability of 1e-4"
    )
