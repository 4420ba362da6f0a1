"""Isolation: not one bit of a client's message, of its state or of its model follows from another
client's data."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import pflpipe
import tabled
from pflpipe import cells, options, trees
from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import clients, rounds
from pflpipe.simulation import simulation as engine
from pflpipe.simulation.clients import Padded
from pflpipe.simulation.isolation import CLIENTS
from simulations import finished, overheard, plan, simulation
from two_worlds import ROUNDS, differences, given, movement, play, with_pool

TABLES = tabled.table("test_isolation")

PRIVATE = [name for name in NAMES if registry.info(name).about.private]
PUBLISHED = [name for name in PRIVATE if registry.departures(name, "paper", official_code=False)]
OTHER_BITS = "other bits than the same client computes by itself"
BACKENDS = ["vmap", pytest.param("loop", marks=pytest.mark.night)]
"""By day, test_api.py looks for all private methods at clients in a loop."""
SIZES = (9, 4, 1, 6, 20, 12, 30, 7)
SUBJECT = 4
"""The client whose data differ between the worlds."""


def uneven(method, backend, *, rate=1.0, **changes):
    """Eight clients of other sizes, by default with full batches in float32, and rows for more; in
    a loop where vmap does not keep clients of this network apart on this machine."""
    if registry.info(method).about.needs == ("norm",):
        # A deep network costs fifteen times as much, so its clients work for one epoch.
        deep = {"model": cells.Model("resnet20"), "shape": (8, 8, 1), "local_epochs": 1}
        changes = deep | changes
    settings = {"batch_size": 0, "local_epochs": 2, "dtype": torch.float32} | changes
    asked = plan(len(SIZES), rounds=ROUNDS, sample_rate=rate)
    world = simulation(method, backend=backend, sizes=SIZES, plan=asked, **settings)
    return with_pool(world.isolated("auto"))


def assert_apart(world, *others, moved=True):
    """Compare worlds in which the subject has other rows with the one in which it is removed;
    ``moved``: whether the clipped sum of the others is compared too, which departures change."""
    removed = play(given(world, SUBJECT, 0))
    for other in others:
        there = play(other, removed.heard)
        assert differences(removed, there, SUBJECT) == []
        assert not moved or movement(removed, there, SUBJECT)[0] == 0


def worlds(world, method):
    """Many rows, of small networks a thousand, and rows of NaN."""
    yield given(world, SUBJECT, 33 if registry.info(method).about.needs == ("norm",) else 1000)
    yield given(world, SUBJECT, 9, nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_of_the_others_follows_from_one_clients_rows(method, backend):
    world = uneven(method, backend)
    assert_apart(world, *worlds(world, method))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "feddpa", "fedrep", "fedala", "appfl_steps"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 4},
        {"batch_size": 5, "drop_last": True},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01},
        {"rate": 0.6},
        {"dtype": torch.float64},
        {"model": cells.Model("embedding", (4,), items=6), "shape": (6,)},
        {"model": cells.Model("gru", (3, 5), items=7), "shape": (4,)},
    ],
    ids=str,
)
def test_nor_with_minibatches_adam_a_secret_draw_or_float64(method, backend, changes):
    world = uneven(method, backend, **changes)
    assert_apart(world, given(world, SUBJECT, 33))


@pytest.mark.slow
@pytest.mark.parametrize("method", PUBLISHED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nor_as_published(method, backend):
    """Their departures belong to the release and to what a client sends about itself."""
    departures = registry.departures(method, "paper", official_code=False)
    world = uneven(method, backend, departures=departures)
    assert_apart(world, *worlds(world, method), moved=False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrep", "dp_fedavg_fb"])
@pytest.mark.parametrize("backend", ["vmap", "loop"])
@pytest.mark.parametrize("solver", ["ridge", "newton"])
def test_nor_with_heads_that_are_solved_exactly(method, backend, solver):
    """Of an odd number of features: LAPACK rounds by where a matrix lies in memory."""
    hidden = {"model": cells.Model("mlp", (5,))}
    world = uneven(method, backend, hyperparameters={"head_solver": solver}, **hidden)
    assert world.backend == backend
    assert_apart(world, *worlds(world, method))


def bits(world, cohort):
    """What each client of a cohort computes in the first round: client -> tree."""
    found = rounds.local_updates(world, rounds.start(world), cohort).tree()
    places = enumerate(cohort)
    return {client: {name: v[place] for name, v in found.items()} for place, client in places}


def assert_same_bits(world, clients, cohorts):
    """Compare what clients compute in these cohorts with what they compute beside everybody."""
    everybody = bits(world, list(range(clients)))
    for cohort in cohorts:
        for client, tree in bits(world, cohort).items():
            assert tree.keys() == everybody[client].keys()
            assert all(trees.same_bits(tree[name], everybody[client][name]) for name in tree)


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize("backend", ["vmap", "loop"])
def test_who_else_is_drawn_and_in_which_order_changes_no_bit(method, backend):
    world = uneven(method, backend)
    assert_same_bits(world, 8, ([6, 2, 7, 0, 5, 1, 4, 3], [3, 6, 0], [6]))


SHALLOW, DEEP = (
    [(options.build(cells.Model, model), tuple(shape)) for model, shape in TABLES[name]]
    for name in ("SHALLOW", "DEEP")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "dtype"),
    [
        *((*one, torch.float32) for one in SHALLOW + DEEP),
        *((*one, torch.float64) for one in SHALLOW),
        *(pytest.param(*one, torch.float64, marks=pytest.mark.night) for one in DEEP),
    ],
    ids=str,
)
def test_places_and_group_sizes_change_no_bit_of_odd_networks(network, shape, dtype):
    """Widths that are no multiple of a vector register, for which a product's rounding could follow
    from where its matrices lie."""
    sizes = (16, 9, 31, 48, 3) * 8 if len(shape) == 1 else (5, 2, 9)
    given = {"sizes": sizes, "plan": plan(len(sizes)), "batch_size": 0, "dtype": dtype}
    world = simulation("dp_fedavg", backend="vmap", model=network, shape=shape, **given)
    world = world.isolated("auto")
    order = np.random.default_rng(1).permutation(len(sizes)).tolist()
    assert_same_bits(world, len(sizes), (order, order[::3], order[:1]))


def every_second_place(value):
    value = value.clone()
    value[::2] *= 1 + 1e-15
    return value


def a_client_by_itself(value):
    return value * (1 + 1e-15) if len(value) == 2 else value


@pytest.mark.parametrize("rounded", [every_second_place, a_client_by_itself])
def test_a_machine_on_which_bits_follow_places_or_counts_is_noticed(monkeypatch, rounded):
    """As if a product were rounded otherwise at some places, or in the smallest group."""
    world = simulation("dp_fedavg", backend="vmap", batch_size=0)
    assert world.keeps_apart
    original = clients.vmap

    def uneven_places(one):
        def run(states, given, sizes):
            found = original(one)(states, given, sizes)
            return {name: rounded(value) for name, value in found.items()}

        return run

    monkeypatch.setattr(clients, "vmap", uneven_places)
    odd = replace(world)
    assert not odd.keeps_apart
    assert odd.isolated("auto").backend == "loop"
    with pytest.raises(ConfigError, match=r"config\.yaml: backend"):
        odd.isolated("vmap")
    without_privacy = replace(odd, plan=simulation("fedavg", backend="vmap").plan)
    assert without_privacy.isolated("vmap").backend == "vmap"


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_hooks_run_on_kernels_that_repeat_their_bits(backend):
    """cuDNN's fastest kernels add in any order; the flags forbid them, on every device. Afterwards
    they are as the caller had them."""
    seen = []

    def told(*arguments):
        seen.append((torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark))

    finished(overheard(simulation("dp_fedavg", backend=backend), told, "local_update"))
    assert set(seen) == {(True, False)}
    told()
    assert seen[-1] == (False, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["loop", "auto"])
def test_a_convolutional_network_on_a_gpu_passes_the_check_of_a_run(backend):
    rng = np.random.default_rng(0)

    def drawn(size):
        x = rng.normal(size=(size, 3, 32, 32)).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, size))

    rows = [drawn(size) for size in (40, 90, 64, 200)]
    budget = cells.Privacy("gaussian", noise_multiplier=1, delta=1e-3, clip_norm=1.0)
    settings = {"privacy": budget, "training": cells.Training(2, 1, 64, "sgd", 0.05)}
    settings |= {"classes": 10, "allow_large_delta": True}
    how = {"model": "cnn_cifar", "device": "cuda", "backend": backend}
    trained = pflpipe.train("dp_fedavg", rows, **settings, **how)
    assert trained.ledger.claim == "certified"


# ------------------------------------------------------------------- the proof that every run has


def leaky(world, leak):
    """The simulation with a leak in what a client computes: ``leak(world, progress, cohort)`` is
    a factor of the learning rate."""
    original = rounds.local_updates

    def local_updates(simulation, progress, cohort):
        factor = leak(simulation, progress, cohort)
        training = replace(simulation.training, lr=simulation.training.lr * factor)
        return original(replace(simulation, training=training), progress, cohort)

    return local_updates


def rows_of_the_cohort(world, progress, cohort):
    return 1 + 1e-6 * sum(len(world.split.train[client]) for client in cohort)


def the_last_loss(world, progress, cohort):
    return 1 + 1e-6 * sum(row["loss"] for row in progress.rows[-1:])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("leak", [rows_of_the_cohort, the_last_loss])
def test_a_run_whose_learning_rate_follows_others_is_refused(backend, leak, monkeypatch):
    world = simulation("dp_fedavg", backend=backend)
    finished(world)
    monkeypatch.setattr(rounds, "local_updates", leaky(world, leak))
    with pytest.raises(PrivacyError, match=OTHER_BITS):
        finished(world)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("part", ["update", "extras", "states"])
def test_a_run_is_refused_whichever_part_of_what_a_client_computes_follows_others(
    backend, part, monkeypatch
):
    """What is sent, what is sent besides, what is kept: by one bit of one of them alone."""
    departures = registry.departures("fedglp_adp", "paper", official_code=False)
    world = simulation("fedglp_adp", backend=backend, departures=departures)
    original = rounds.local_updates

    def moved(simulation, progress, cohort):
        computed = original(simulation, progress, cohort)
        tree = dict(getattr(computed, part))
        name = next(name for name in sorted(tree) if tree[name].is_floating_point())
        tree[name] = tree[name] * (1 + 1e-15 * (len(cohort) - 1))
        return replace(computed, **{part: tree})

    finished(world)
    monkeypatch.setattr(rounds, "local_updates", moved)
    with pytest.raises(PrivacyError, match="other bits") as error:
        finished(world)
    assert f"a client's {part[:5]}" in str(error.value)


def test_a_run_whose_groups_are_padded_to_the_widest_is_refused(monkeypatch):
    original = clients.for_each_client

    def widest(hook, states, work, *rest):
        """Pad all to the largest that is there, as a batch is usually padded."""
        rows = max(len(one["train"].row_indices) for one in work)
        shape = Padded(world.training.local_epochs, 4 * math.ceil(rows / 4), rows)
        padded = [{**one, "train": replace(one["train"], padded=shape)} for one in work]
        return original(hook, states, padded, *rest)

    changes = {"sizes": (30, 9, 14, 11), "batch_size": 0, "local_epochs": 5}
    world = simulation("dp_fedavg", backend="vmap", dtype=torch.float32, **changes)
    finished(world)
    monkeypatch.setattr(engine, "for_each_client", widest)
    with pytest.raises(PrivacyError, match=OTHER_BITS):
        finished(world)


def test_the_proof_is_made_where_nobody_was_drawn_either(monkeypatch):
    world = simulation("dp_fedavg", plan=plan(rounds=1, sample_rate=1e-9))
    assert finished(world).rows[0]["participants"] == 0
    monkeypatch.setattr(rounds, "local_updates", leaky(world, rows_of_the_cohort))
    with pytest.raises(PrivacyError, match="other bits"):
        finished(world)


@pytest.mark.parametrize(("method", "again"), [("fedavg", 0), ("dp_fedavg", CLIENTS)])
def test_only_a_private_run_computes_clients_again(method, again):
    """Without a guarantee there is nothing to prove, and the time is saved."""
    cohorts = []

    class Counted(engine.Simulation):
        def run_clients(self, hook, states, clients, *rest):
            cohorts.append(len(clients))
            return super().run_clients(hook, states, clients, *rest)

    world = simulation(method)
    fields = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    finished(Counted(**fields))
    assert cohorts == [world.plan.clients] * world.plan.rounds + [1] * again


def test_the_run_proves_it_with_clients_that_its_key_draws():
    """So that nobody can say for which clients it must hold."""
    met = []
    world = simulation("dp_fedavg", sizes=(3,) * 12, plan=plan(12, rounds=1))

    def told(params, server, state, batches, task):
        met.append(batches.train.x[0, 0].item())

    def proved(key):
        met.clear()
        finished(replace(overheard(world, told, "local_update"), key=key))
        return met[12:]

    assert len(proved("one")) == CLIENTS
    assert proved("one") == proved("one") != proved("two")
