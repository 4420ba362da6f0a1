"""for_each_client: loop and vmap give the same numbers for every method, whatever the padding, the
grouping and the order."""

import dataclasses
import types
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tabled
from pflpipe import trees
from pflpipe.code.dependencies import Dependency
from pflpipe.errors import ConfigError
from pflpipe.learning import counter_rng, solvers
from pflpipe.learning.solvers import Objective, Schedule, Solver
from pflpipe.methods import registry
from pflpipe.methods.base import Method, Upload
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import clients, evaluation, rounds
from pflpipe.simulation.clients import Engine, Examples, Rows, for_each_client
from pflpipe.trees import Update
from simulations import finished, open_plan, simulation, spied

TABLES = tabled.table("test_clients")
OFTEN = settings(derandomize=True, deadline=None, max_examples=60)

SETTINGS = [(name, {}) for name in NAMES]
SETTINGS += [("feddpa", {"schedule": "two_phase", "tau": 0.1}), ("feddpa", {"dfp": False})]


def finish(method, hyperparameters, backend, **changes):
    """Train all rounds and evaluate every client."""
    world = simulation(method, hyperparameters, backend=backend, **changes)
    progress = finished(world)
    return progress, evaluation.accuracies(world, progress)


def with_dropout(world):
    """The same simulation with a network that has dropout before its head."""
    body = world.network.body

    def dropped(params, x, key):
        z = body(params, x, None)
        if key is None:
            return z
        return z * 2 * (counter_rng.uniform(key, counter_rng.DROPOUT, tuple(z.shape)) >= 0.5)

    network = dataclasses.replace(world.network, body=dropped, keyed=True)
    return dataclasses.replace(world, network=network)


def assert_same(one, other):
    for left, right in ((one.params, other.params), (one.states, other.states)):
        assert left.keys() == right.keys()
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=1e-10, atol=1e-12)
    for left, right in zip(one.rows, other.rows, strict=True):
        np.testing.assert_allclose(list(left.values()), list(right.values()), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "hyperparameters"), SETTINGS, ids=str)
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.3), ("adam", 0.01)])
def test_loop_equals_vmap(method, hyperparameters, optimizer, lr):
    changes = {"optimizer": optimizer, "lr": lr, "weight_decay": 0.01}
    loop, loop_scores = finish(method, hyperparameters, "loop", **changes)
    grouped, grouped_scores = finish(method, hyperparameters, "vmap", **changes)
    assert_same(loop, grouped)
    np.testing.assert_equal(loop_scores, grouped_scores)


@pytest.mark.parametrize("method", ["dp_fedavg", "feddpa", "appfl_steps"])
def test_loop_equals_vmap_where_the_last_steps_are_dropped(method):
    """Of 9, 4, 1 and 6 examples in fours: one client has no step at all."""
    how = {"drop_last": True, "lr_decay": 0.5}
    assert_same(*(finish(method, {}, backend, **how)[0] for backend in ("loop", "vmap")))


def work_in(world):
    """The work of all clients in the first round."""
    return [world.work(client, 0) for client in range(len(world.split.train))]


CPU = torch.device("cpu")


def engine(parameters=50, cohort=4.0, **changes):
    return Engine("vmap", parameters, cohort, **changes)


def work_of(sizes, batch_size=4, least=16):
    return [{"train": Rows.epochs(np.arange(n), 2, batch_size, least=least)} for n in sizes]


def test_groups_hold_no_more_than_their_floats(monkeypatch):
    monkeypatch.setattr(clients, "GROUP_FLOATS", 16 * 8 * 50)
    groups = clients._groups(work_of([9] * 40), CPU, engine())
    assert list(map(len, groups)) == [15, 15, 10], "16 places, of which the last is nobody's"


def test_a_few_clients_with_many_steps_do_not_pad_those_of_the_same_shapes_with_few():
    sizes = [65] * 40 + [96] * 2
    work = work_of(sizes, batch_size=1)
    large, small = clients._groups(work, CPU, engine(parameters=100_000))
    assert {40, 41} <= set(large)
    assert len(large) < 10
    assert sorted(large + small) == list(range(42))
    (together,) = clients._groups(work, CPU, engine(parameters=100))
    assert len(together) == 42, "a tiny network wastes less than a further group costs"


def test_clients_of_a_group_have_the_same_shapes_and_those_with_most_steps_come_first():
    sizes = (3, 17, 100, 16, 0, 33, 20, 97)
    groups = clients._groups(work_of(sizes), CPU, engine())
    found = [[sizes[client] for client in group] for group in groups]
    assert sorted(found) == [[0], [16, 3], [17, 20], [33], [100, 97]]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    *(st.integers(1, 300), st.integers(0, 3), st.integers(0, 45), st.booleans()),
    st.sampled_from([8, 16, 24]),
)
def test_the_shapes_of_a_client_follow_from_its_size_and_hold_its_rows(
    size, epochs, batch_size, drop_last, least
):
    options = {"drop_last": drop_last, "least": least}
    one, other = (
        Rows.epochs(
            7 * i + np.arange(size), epochs, batch_size, np.random.default_rng(i), **options
        )
        for i in (0, 1)
    )
    shape = one.padded
    assert shape == other.padded
    assert shape.steps >= one.index.shape[0]
    assert shape.rows >= size
    if len(one.count):
        assert shape.width >= one.index.shape[1]
        assert shape.width % 4 == 0
    padded = clients._padded_steps([one, other], CPU)
    assert padded["count"].shape == (2, shape.steps)
    assert padded["count"].sum(1).tolist() == [one.count.sum(), other.count.sum()]


@given(st.integers(0, 10**6), st.integers(1, 128))
def test_data_are_padded_by_less_than_half_where_there_are_many(size, least):
    found = clients.padded_size(size, least)
    assert size <= found
    assert found % least == 0
    assert found < max(1.5 * size + 1, 2 * size if size <= 2 * least else 0, least + 1)
    assert clients.padded_size(found, least) == found, "a padded size is padded by nothing"


def test_the_least_size_is_that_at_which_a_cohorts_rows_cost_as_much_as_a_step_of_a_group():
    assert clients.least_rows(2_410, 100) == 28
    assert clients.least_rows(50_890, 67) == clients.LEAST_ROWS
    assert clients.least_rows(100, 4) == clients.MOST_ROWS


GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "cohort", "parameters", "kept", "expected"),
    [
        (10 * GIB, 1, 0.1 * GIB, 0, 6),  # (8 - 0.6) / 1.2
        (10 * GIB, 10, 0.1 * GIB, 0, 1),  # the results of all leave 2 of 8
        (10 * GIB, 1, 0.1 * GIB, 0.4 * GIB, 3),  # (8 - 0.6) / (1.2 + 0.8)
        (10 * GIB, 100, 0.1 * GIB, 0, 1),  # never nobody
    ],
)
def test_a_group_on_a_gpu_fits_its_memory(memory, cohort, parameters, kept, expected, monkeypatch):
    for name, value in {"PLANNED": 0.8, "HELD": 12, "RESULTS": 6, "PASSES": 2}.items():
        monkeypatch.setattr(clients, name, value)
    assert clients._fitting(memory, cohort, int(parameters), int(kept)) == expected


@pytest.mark.parametrize(("memory", "places"), [(2**30, 10), (2**15, 3)])
def test_all_groups_on_a_gpu_have_the_places_that_its_memory_and_the_cohort_give(
    memory, places, monkeypatch
):
    """Not those of who was drawn, nor of the memory that happens to be free."""
    gpu = types.SimpleNamespace(total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    of_gpu = engine(cohort=9.0, example_bytes=lambda: 7)
    device, work = torch.device("cuda:1"), work_of([9] * 40)
    groups = clients._groups(work, device, of_gpu)
    assert {len(group) for group in groups[:-1]} == {places - 1}
    assert {clients._places(len(group), device, of_gpu, work[0]) for group in groups} == {places}


@pytest.mark.parametrize("clients_", [1, 7, 31, 32, 40])
def test_the_last_place_of_a_group_on_a_cpu_is_nobodys(clients_):
    (work,) = work_of([9])
    assert clients._places(clients_, CPU, engine(), work) == clients_ + 1
    unreviewed = clients._places(clients_, CPU, engine(places=32), work)
    assert unreviewed == (32 if clients_ < 32 else 64)


def test_what_nobody_here_has_reviewed_gets_places_for_which_no_number_is_left_over():
    world = simulation("dp_fedavg", backend="vmap")
    assert world.engine.places == 1
    own = Dependency.of("loss", "my_loss.py:loss", "")
    assert dataclasses.replace(world, code=(own,)).engine.places == 32


def test_a_group_under_vmap_computes_on_one_thread_and_then_there_are_as_many_as_before():
    world, met = simulation("dp_fedavg", backend="vmap"), []

    def noting(state, batches, others):
        met.append(torch.get_num_threads())
        return batches.n

    torch.set_num_threads(2)
    try:
        world.run_clients(noting, None, range(4), work_in(world))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert met == [1]


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_is_given_its_own_rows_and_copies_of_the_first_and_its_result_is_in_its_place(
    backend,
):
    world = simulation("dp_fedavg_fb", {"head_epochs": 1}, backend=backend, sizes=(9, 4, 1, 6))

    def padded(x):  # in a loop nothing is padded
        return torch.cat([x, x[:1].expand(world.least_rows - len(x), -1)])

    def given(state, batches, others):
        return padded(batches.train.x), padded(batches.all.x)

    for found in world.run_clients(given, None, range(4), work_in(world)):
        for client, rows in enumerate(world.split.train):
            own = world.train.x[rows]
            assert torch.equal(found[client, : len(own)], own)
            assert all(torch.equal(row, own[0]) for row in found[client, len(own) :])


def test_an_example_is_measured_by_what_autograd_keeps_of_it():
    world = simulation("dp_fedavg", shape=(500,))
    # The example and the output of ReLU, the hidden layer of 4; the logits' softmax and the label's
    # place.
    assert 8 * (500 + 4) <= world.example_bytes <= 8 * (500 + 4) + 200
    narrow = simulation("dp_fedavg", shape=(500,), dtype=torch.float32)
    assert narrow.example_bytes < 0.6 * world.example_bytes


def test_a_group_too_large_for_the_memory_is_an_error(monkeypatch):
    full = mock.Mock(side_effect=torch.cuda.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(clients, "_vmapped", full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        finish("dp_fedavg", {}, "vmap")


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_clients_of_whom_nobody_has_examples_send_zeros_and_are_tested(method, backend):
    about = registry.info(method).about
    rule = {"departures": about.paper_departures + about.official_departures, "plan": open_plan(2)}
    world = simulation(method, backend=backend, sizes=(0, 0), **rule)
    done, seen, _ = spied(world)
    assert done.diverged_round is None
    assert [row["participants"] for row in done.rows] == [2, 2, 2]
    assert all(np.isnan(row["loss"]) for row in done.rows)
    for uploads, _, _ in seen:
        assert not any(value.count_nonzero() for value in uploads.update.values())
    assert all(value.isfinite().all() for value in done.params.values())
    for row in evaluation.accuracies(world, done):
        assert row["train_size"] == 0
        # Who has no training rows counts as a new client.
        assert np.isnan([row["personal_own"], row["personal_common"], row["global_own"]]).all()
        assert np.isfinite([row["personal_new"], row["global_new"], row["global_common"]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "feddpa", "dp_fedavg_fb"])
def test_dropout_is_the_same_in_loop_and_vmap_and_only_in_training(method):
    worlds = [with_dropout(simulation(method, backend=backend)) for backend in ("loop", "vmap")]
    loop, grouped = map(finished, worlds)
    assert_same(loop, grouped)
    scores = map(evaluation.accuracies, worlds, (loop, grouped))
    np.testing.assert_equal(*scores)
    plain, _ = finish(method, {}, "loop")
    assert not torch.equal(plain.params["head.weight"], loop.params["head.weight"])


def test_steps_have_keys_of_their_own_and_passes_without_randomness_have_none():
    world = with_dropout(simulation("dp_fedavg_fb", sizes=(9, 4, 0, 6)))
    keys = []
    for client in range(4):
        for round in range(3):
            work = world.work(client, round)
            assert work["train"].keys.shape == work["train"].count.shape
            assert work["head"].keys is None
            assert work["all"].keys is None
            assert (world.work(client, round)["train"].keys == work["train"].keys).all()
            keys.extend(work["train"].keys.tolist())
    assert len(set(keys)) == len(keys) == 3 * (6 + 2 + 0 + 4)
    other = with_dropout(simulation("dp_fedavg_fb", seed=1)).work(0, 0)["train"].keys
    assert (other != world.work(0, 0)["train"].keys).all()


def of_key(params, batches, task):
    return {name: value + batches.key for name, value in params.items()}


def of_all(params, batches, task):
    return trees.sub(params, task.gradient(params, batches.all))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("read", "declared", "words"),
    [(of_key, "draws", ""), (of_all, "full_pass", "batches.all .* ")],
    ids=["its own key", "all rows"],
)
def test_a_method_that_does_not_declare_what_it_reads_is_told_so(read, declared, words, backend):
    def local_update(params, server, state, batches, task):
        sent = read(params, batches, task)
        return Upload(Update(sent), {}, batches.n.double()), state

    plain = simulation("dp_fedavg", backend=backend)
    assert plain.work(0, 0)["train"].keys is None
    world = dataclasses.replace(plain, method=Method(local_update, **{declared: True}))
    rounds.one_round(world, rounds.start(world))
    assert (world.work(0, 0)["train"].keys is not None) == (declared == "draws")
    world = dataclasses.replace(plain, method=Method(local_update))
    with pytest.raises(ConfigError, match=f"{words}add {declared}=True to Method"):
        rounds.one_round(world, rounds.start(world))


@pytest.mark.parametrize("batch_size", [0, 4])
def test_schedules_without_draws_are_those_of_the_streams_that_have_them(batch_size):
    plain = simulation("dp_fedavg_fb", sizes=(9, 4, 0, 6), batch_size=batch_size)
    for client in range(4):
        for round in range(2):
            found = plain.work(client, round)
            drawn = with_dropout(plain).work(client, round)
            for name, rows in drawn.items():
                assert (found[name].index == rows.index).all()
                assert (found[name].count == rows.count).all()


@pytest.mark.parametrize(
    ("sizes", "batch_size", "gathers"), [((9, 4), 0, 1), ((9, 4), 4, 6), ((9, 0), 0, 1)]
)
def test_rows_that_all_steps_share_are_gathered_once(monkeypatch, sizes, batch_size, gathers):
    gathering = mock.Mock(side_effect=Schedule.rows)
    monkeypatch.setattr(Schedule, "rows", lambda *at: gathering(*at))
    x = torch.arange(9.0, dtype=torch.float64)
    stream = np.random.default_rng(0)
    work = [{"train": Rows.epochs(np.arange(size), 2, batch_size, stream)} for size in sizes]

    def hook(state, schedules, n):
        loss = Objective(lambda tree, batch: batch.mean((tree["w"] - batch.x).square()))
        start = {"w": x.new_zeros(())}
        solver = Solver("sgd", 0.25)
        return solvers.minimize_functional(start, schedules["train"], [loss], solver)[0]

    data = {"train": Examples(x, x.long())}
    found = for_each_client(hook, lambda _: {}, work, sizes, data, engine(1))
    assert gathering.call_count == gathers
    if not batch_size:  # each of the two steps goes half of the way to the mean
        means = [0.75 * x[:size].mean().nan_to_num() for size in sizes]
        torch.testing.assert_close(found["w"], torch.stack(means))


HEAD_SIZES = (40, 9, 1, 33, 0, 32, 70)
"""More and fewer than the 32 examples of one step of the full pass."""


@pytest.mark.parametrize(("backend", "floats"), [("loop", 2**26), ("vmap", 1), ("vmap", 2**26)])
def test_the_head_phase_on_features_trains_the_head_of_the_whole_network_without_dropout(
    backend, floats, monkeypatch
):
    monkeypatch.setattr(clients, "GROUP_FLOATS", floats)
    method = "dp_fedavg_fb", {"head_epochs": 3}
    make = {"sizes": HEAD_SIZES, "batch_size": 6}
    world = with_dropout(simulation(*method, backend=backend, **make))
    plain = simulation(*method, **make).task
    solver = Solver("adam", 0.05, weight_decay=0.01)
    everyone = range(len(HEAD_SIZES))
    params = rounds.start(world).params
    work = work_in(world)
    assert [len(rows["all"].count) for rows in work] == [2, 1, 1, 2, 0, 1, 3]

    def trained(state, batches, others):
        return world.task.train_head(params, batches, solver)

    found = world.run_clients(trained, None, everyone, work)
    for client in everyone:
        head = world.train.schedule(work[client]["head"])
        how = {"solver": solver, "names": plain.head_names}
        expected, _ = plain.minimize(params, head, plain.loss, **how)
        for name, value in expected.items():
            torch.testing.assert_close(found[name][client], value, rtol=1e-9, atol=1e-12)
        moved = not torch.equal(found["head.weight"][client], params["head.weight"])
        assert moved == (len(world.split.train[client]) > 0)


def test_a_hook_that_branches_on_data_is_told_what_to_use():
    world = simulation("dp_fedavg", backend="vmap")
    work = work_in(world)[:2]
    data = dict.fromkeys(work[0], world.train)

    def hook(state, schedules, n):
        return n if n > 3 else -n

    with pytest.raises(RuntimeError, match=r"use torch\.where"):
        for_each_client(hook, lambda places: {}, work, [9, 4], data, engine())


def test_nobody_to_run_is_an_error_of_the_caller():
    with pytest.raises(ValueError, match="at least one client"):
        for_each_client(lambda *_: None, lambda places: {}, [], [], {}, Engine("loop", 10))


@pytest.mark.slow
@OFTEN
@given(st.integers(0, 40), st.integers(0, 3), st.integers(0, 45), st.booleans())
def test_every_epoch_visits_every_row_once(size, epochs, batch_size, shuffled):
    rows = np.arange(100, 100 + size)
    cut = Rows.epochs(rows, epochs, batch_size, np.random.default_rng(0) if shuffled else None)
    visited = [rows[index[:count]] for index, count in zip(cut.index, cut.count, strict=True)]
    steps = len(visited) // max(epochs, 1)
    for epoch in range(epochs if size else 0):
        assert sorted(np.concatenate(visited[epoch * steps : (epoch + 1) * steps])) == rows.tolist()
    assert cut.count.sum() == size * epochs
    assert set(cut.index.reshape(-1)) <= set(range(size))
    if batch_size and size:
        assert cut.index.shape[1] <= batch_size


@OFTEN
@given(st.integers(0, 40), st.integers(0, 3), st.integers(0, 45))
def test_what_is_dropped_is_the_step_of_each_epoch_that_is_not_full(size, epochs, batch_size):
    given = np.arange(size), epochs, batch_size
    whole = Rows.epochs(*given, np.random.default_rng(0))
    cut = Rows.epochs(*given, np.random.default_rng(0), drop_last=True)
    full = whole.count == (batch_size or size)
    if batch_size:
        assert full.sum() == epochs * (size // batch_size)
    assert cut.index.tolist() == whole.index[full].tolist()
    assert cut.count.tolist() == whole.count[full].tolist()


@OFTEN
@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 45), st.booleans())
def test_steps_are_the_first_ones_of_enough_epochs(size, steps, batch_size, drop_last):
    given, drops = (np.arange(size), steps, batch_size), {"drop_last": drop_last}
    cut = Rows.steps(*given, np.random.default_rng(0), **drops)
    many = Rows.epochs(*given, np.random.default_rng(0), **drops)
    assert len(cut.count) == (steps if len(many.count) else 0)
    assert cut.index.tolist() == many.index[:steps].tolist()
    assert cut.count.tolist() == many.count[:steps].tolist()


def test_each_epoch_is_shuffled_anew():
    rows = np.arange(50)
    first, second = Rows.epochs(rows, 2, 10, np.random.default_rng(0)).index.reshape(2, 50)
    assert first.tolist() != second.tolist()
    assert list(range(50)) not in (first.tolist(), second.tolist())


@pytest.mark.parametrize(("asked", "device", "parameters", "expected"), TABLES["BACKENDS"])
def test_backend_is_chosen_by_device_and_size(asked, device, parameters, expected):
    assert clients.choose_backend(asked, device, parameters) == expected
