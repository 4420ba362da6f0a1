"""Evaluation: what is counted, for whom, and what is left empty."""

import dataclasses

import numpy as np
import pytest
import torch

from pflpipe import evaluate, federated
from simulations import simulation


def trained(method="dp_fedavg", **changes):
    world = simulation(method, **changes)
    return world, federated.run(world, federated.start(world))


def test_scores_equal_a_count_by_hand():
    world, progress = trained()
    rows = evaluate.accuracies(world, progress, has_global_model=True)
    for client, row in enumerate(rows):
        train = world.train.schedule(world.work(client, progress.round)["train"])
        personal = world.task.minimize(progress.params, train, world.task.loss)[0]
        for kind, params in (("personal", personal), ("global", progress.params)):
            for data, chosen in (("own", world.split.test[client]), ("common", world.split.common)):
                guess = world.network.apply(params, world.test.x[chosen]).argmax(1)
                expected = 100 * (guess == world.test.y[chosen]).double().mean().item()
                assert row[f"{kind}_{data}"] == pytest.approx(expected)
        assert row["train_size"] == len(world.split.train[client])


def test_no_examples_means_no_accuracy():
    world, progress = trained()
    assert all(np.isnan(row["personal_validation"]) for row in evaluate.accuracies(world, progress, has_global_model=True))


def test_a_method_without_a_global_model_has_no_global_accuracy():
    world, progress = trained("local_only")
    for row in evaluate.accuracies(world, progress, has_global_model=False):
        assert np.isnan(row["global_own"])
        assert np.isnan(row["global_common"])
        assert np.isfinite(row["personal_own"])


def test_a_model_that_is_not_finite_is_never_right():
    world, progress = trained("local_only")
    broken = {name: torch.full_like(value, torch.nan) for name, value in progress.states.items()}
    progress.states = {name: torch.cat([broken[name][:1], progress.states[name][1:]]) for name in broken}
    rows = evaluate.accuracies(world, progress, has_global_model=False)
    assert rows[0]["personal_own"] == rows[0]["personal_common"] == 0
    assert any(row["personal_common"] > 0 for row in rows[1:])


def test_methods_never_see_test_or_validation_examples():
    world, progress = trained()
    seen = []

    def personalize(params, server, state, batches, task):
        seen.append({field.name for field in dataclasses.fields(batches)})
        return params

    spied = dataclasses.replace(world, method=dataclasses.replace(world.method, personalize=personalize))
    evaluate.accuracies(spied, progress, has_global_model=True)
    assert seen == [{"n", "train", "head", "all"}] * 4
