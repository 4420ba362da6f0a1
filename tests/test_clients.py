"""for_each_client: loop and vmap give the same numbers for every method, whatever the padding, the grouping and the order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pflpipe import clients, evaluate, federated, methods
from pflpipe.clients import Rows, for_each_client
from simulations import SIZES, open_plan, plan, simulation

SETTINGS = [(name, {}) for name in methods.NAMES] + [
    ("feddpa", {"schedule": "two_phase", "tau": 0.1}),
    ("feddpa", {"dfp": False}),
]


def finish(method, hyperparameters, backend, **changes):
    """Train all rounds and evaluate every client."""
    world = simulation(method, hyperparameters, backend=backend, **changes)
    progress = federated.run(world, federated.start(world))
    return progress, evaluate.accuracies(world, progress, methods.info(method).about.has_global_model)


def assert_same(one, other):
    for left, right in ((one.params, other.params), (one.states, other.states)):
        assert left.keys() == right.keys()
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=1e-10, atol=1e-12)
    for left, right in zip(one.rows, other.rows, strict=True):
        np.testing.assert_allclose(list(left.values()), list(right.values()), rtol=1e-9)


@pytest.mark.parametrize(("method", "hyperparameters"), SETTINGS, ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_loop_equals_vmap(method, hyperparameters, optimizer):
    changes = {"optimizer": optimizer, "lr": 0.3 if optimizer == "sgd" else 0.01, "weight_decay": 0.01}
    loop, loop_scores = finish(method, hyperparameters, "loop", **changes)
    grouped, grouped_scores = finish(method, hyperparameters, "vmap", **changes)
    assert_same(loop, grouped)
    np.testing.assert_equal(loop_scores, grouped_scores)


@pytest.mark.parametrize("method", methods.NAMES)
def test_groups_and_padding_change_nothing(method, monkeypatch):
    whole, _ = finish(method, {}, "vmap", batch_size=0)
    monkeypatch.setattr(clients, "GROUP_FLOATS", 1)  # one client a group: nothing is padded
    single, _ = finish(method, {}, "vmap", batch_size=0)
    assert_same(whole, single)


def test_groups_hold_no_more_than_their_floats(monkeypatch):
    world = simulation("feddpa", backend="vmap")
    begun, original, groups = federated.start(world), clients._vmapped, []

    def spy(hook, states, work, *rest):
        groups.append(len(work))
        return original(hook, states, work, *rest)

    monkeypatch.setattr(clients, "_vmapped", spy)
    monkeypatch.setattr(clients, "GROUP_FLOATS", 3 * 8 * world.network.parameters)
    federated.one_round(world, begun)
    assert groups == [3, 1]


@pytest.mark.parametrize("method", methods.NAMES)
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_hooks_do_not_modify_inputs(method, backend):
    world = simulation(method, backend=backend)
    progress = federated.run(world, federated.start(world))
    params, states = progress.params, progress.states
    before = {f"{kind}/{name}": v.clone() for kind, tree in (("p", params), ("s", states)) for name, v in tree.items()}
    federated.one_round(world, federated.Progress(0, params, progress.server, states))
    evaluate.accuracies(world, federated.Progress(3, params, progress.server, states), has_global_model=True)
    after = {f"{kind}/{name}": v for kind, tree in (("p", params), ("s", states)) for name, v in tree.items()}
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("method", methods.NAMES)
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_without_examples_keeps_its_model_and_uploads_zero(method, backend):
    sizes = (5, 0, 3)
    make = plan if methods.info(method).about.private else open_plan
    world = simulation(method, backend=backend, sizes=sizes, plan=make(3, rounds=1))
    begun = federated.start(world)
    states = {name: value.clone() for name, value in begun.states.items()}
    hook, seen = world.method.local_update, []

    def spy(state, batches, others):
        upload, new = hook(begun.params, begun.server, state, batches, world.task)
        return upload.update, new

    update, new = world.run_clients(spy, begun.states, range(3), [world.work(client, 0) for client in range(3)])
    seen.append(update)
    assert all(value[1].abs().max() == 0 for value in update.values())
    assert all(torch.equal(new[name][1], states[name][1]) for name in new)
    done = federated.run(world, begun)
    assert done.diverged_round is None
    assert np.isfinite(done.rows[0]["loss"])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_results_come_back_in_the_clients_order(backend):
    world = simulation("dp_fedavg", backend=backend)
    work = [world.work(client, 0) for client in range(len(SIZES))]
    found = world.run_clients(lambda state, batches, others: batches.n, {}, range(len(SIZES)), work)
    assert found.tolist() == list(SIZES)


def test_a_hook_that_branches_on_data_is_told_what_to_use():
    world = simulation("dp_fedavg", backend="vmap")
    work = [world.work(client, 0) for client in range(2)]

    def hook(state, schedules, n):
        return n if n > 3 else -n

    with pytest.raises(RuntimeError, match=r"use torch\.where"):
        for_each_client(hook, {}, work, [9, 4], dict.fromkeys(work[0], world.train), "vmap", 10)


def test_nobody_to_run_is_an_error_of_the_caller():
    with pytest.raises(ValueError, match="at least one client"):
        for_each_client(lambda *_: None, {}, [], [], {}, "loop", 10)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(0, 3), st.integers(0, 45), st.booleans())
def test_every_epoch_visits_every_row_once(size, epochs, batch_size, shuffled):
    rows = np.arange(100, 100 + size)
    cut = Rows.epochs(rows, epochs, batch_size, np.random.default_rng(0) if shuffled else None)
    visited = [index[:count] for index, count in zip(cut.index, cut.count, strict=True)]
    steps = len(visited) // max(epochs, 1)
    for epoch in range(epochs if size else 0):
        assert sorted(np.concatenate(visited[epoch * steps : (epoch + 1) * steps])) == rows.tolist()
    assert cut.count.sum() == size * epochs
    assert set(cut.index.reshape(-1)) <= set(rows)
    if batch_size and size:
        assert cut.index.shape[1] <= batch_size


def test_each_epoch_is_shuffled_anew():
    rows = np.arange(50)
    first, second = Rows.epochs(rows, 2, 10, np.random.default_rng(0)).index.reshape(2, 50)
    assert first.tolist() != second.tolist()
    assert rows.tolist() not in (first.tolist(), second.tolist())


@pytest.mark.parametrize(
    ("asked", "device", "parameters", "expected"),
    [
        ("auto", "cpu", 2_410, "vmap"),
        ("auto", "cpu", 343_946, "loop"),
        ("auto", "cuda", 343_946, "vmap"),
        ("loop", "cpu", 10, "loop"),
    ],
)
def test_backend_is_chosen_by_device_and_size(asked, device, parameters, expected):
    assert clients.choose_backend(asked, device, parameters) == expected
