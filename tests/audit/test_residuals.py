"""What a run leaves in the model beside its clients' part is the noise of its key, seen from
outside the engine; and it shows nobody's data (residual_runs.py has the checks;
test_training_faults.py shows what each of them is there for)."""

import numpy as np
import pytest
import torch

import residual_runs
from residual_runs import CERTIFIED, certified_run, final_model, findings, lay_out, real
from simulations import held

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("method", CERTIFIED)
def test_a_certified_method_leaves_nothing_but_noise_of_its_plan(method, rate, dtype):
    run = certified_run(method, rate, dtype)
    assert len(run.rounds) == run.world.plan.rounds
    assert run.scores.size > 100
    assert findings(run) == set()
    assert run.done.residuals.coordinates == run.scores.size, "every number that was sent"
    held(run.world, run.done)


@pytest.mark.parametrize("method", CERTIFIED)
def test_neither_model_cohort_nor_noise_shows_whose_data_it_was(method):
    everybody, drawn = (certified_run(method, rate, torch.float64) for rate in (1.0, 0.5))
    one = drawn.rounds[0].clients[-1]
    spoiled = real(residual_runs.spoiled(drawn.world, one))
    assert spoiled.done.rows[0]["nonfinite_uploads"] == 1
    for base, changed in (
        (everybody, real(residual_runs.other_data(everybody.world))),
        (drawn, real(residual_runs.without_rows(drawn.world, one))),
        (drawn, spoiled),
    ):
        assert residual_runs.differences(base, changed) == []
        same = [torch.equal(base.done.params[k], value) for k, value in changed.done.params.items()]
        assert not all(same), "the other world is another one"


@pytest.mark.parametrize("method", CERTIFIED)
def test_a_client_reaches_others_through_the_releases_alone(method):
    """Which is what joint differential privacy needs beside the noise."""
    assert residual_runs.strangers(residual_runs.world(method, rounds=2), 1) == []


def test_the_file_of_a_run_has_the_noise_of_its_own_key(tmp_path):
    place, seen = lay_out(tmp_path), []
    for change in ({}, {"lr": 0.11}, {"seed": 1}, {"method": "dp_fedsam"}):
        model, noise = final_model(place, **change)
        assert np.abs(model - noise).max() < 0.02
        seen.append(noise[0])
    assert len(set(seen)) == 4


@pytest.mark.parametrize("method", ["dp_fedavg", "fedglp_adp", "appfl"])
def test_files_of_two_worlds_are_equal_to_the_bit_when_nothing_is_learned(method, tmp_path):
    """At learning rate 0 every upload is zero, and what is released is the first model and the
    noise."""
    places = [lay_out(tmp_path / str(changed), changed) for changed in (False, True)]
    one, other = (final_model(place, method, lr=0.0, noise=1.0)[0] for place in places)
    assert np.array_equal(one, other)
    learned, elsewhere = (final_model(place, method, noise=1.0)[0] for place in places)
    assert not np.array_equal(learned, elsewhere), "the other world is another one"
