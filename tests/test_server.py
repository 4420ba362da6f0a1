"""Server optimizers: golden steps, what stays as it is, and that a server knows releases alone."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import simulations
from fake_results import BASE
from pflpipe import cells, options, trees
from pflpipe.cells import Server
from pflpipe.data.datasets import Arrays
from pflpipe.data.split import Split
from pflpipe.errors import PflpipeError, Problems
from pflpipe.interface.training import federation
from pflpipe.methods import registry
from pflpipe.methods.base import Method
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import rounds, runs
from pflpipe.simulation.server import with_optimizer
from pflpipe.study.load import read
from pflpipe.trees import ServerState
from simulations import assert_equal, ends_of_other_data, plan, simulation, snapshot, spied

torch.set_num_threads(1)
SERVERS = {
    "sgd": Server("sgd", lr=0.5),
    "momentum": Server("momentum", lr=0.7, momentum=0.8),
    "adam": Server("adam", lr=0.1, beta1=0.8, beta2=0.95, tau=0.01),
    "yogi": Server("yogi", lr=0.1, beta1=0.8, beta2=0.95, tau=0.01),
}


def served(world, server):
    """The simulation with a server optimizer."""
    return replace(world, method=with_optimizer(world.method, server))


def by_hand(w, releases, server):
    """Algorithm 2 of Reddi et al. and FedAvgM once more, coordinate by coordinate."""
    w = np.array(w, dtype=np.float64)
    for i in range(w.size):
        m, v = 0.0, server.tau * server.tau
        for release in releases:
            d = float(release[i])
            if server.optimizer in ("sgd", "momentum"):
                m = server.momentum * m + d if server.optimizer == "momentum" else d
                w[i] += server.lr * m
                continue
            m = server.beta1 * m + (1 - server.beta1) * d
            if server.optimizer == "adam":
                v = server.beta2 * v + (1 - server.beta2) * d**2
            else:
                v = v - (1 - server.beta2) * d**2 * np.sign(v - d**2)
            w[i] += server.lr * m / (np.sqrt(v) + server.tau)
    return w


def flat(tree):
    return torch.cat([tree[name].reshape(-1) for name in sorted(tree)]).numpy()


@pytest.mark.parametrize("name", SERVERS)
def test_steps_are_those_of_the_papers(name):
    world = simulation("dp_fedavg", plan=plan(rounds=5))
    done, seen, states = spied(served(world, SERVERS[name]))
    releases = [flat(released.sum) for _, _, released in seen]
    expected = by_hand(flat(states[0][0]), releases, SERVERS[name])
    np.testing.assert_allclose(flat(done.params), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", NAMES)
def test_the_default_is_the_method_itself(method):
    own = registry.info(method).factory()
    assert with_optimizer(own, Server()) is own


@pytest.mark.parametrize("method", ["fedper", "dp_fedsim", "fedglp_adp", "dp_pfeddsu", "fedavg"])
def test_a_server_optimizer_changes_what_it_should_and_nothing_else(method):
    """Own parts of the model stay where they were; what a method's server keeps is what it keeps
    of releases."""
    world = served(simulation(method), SERVERS["adam"])
    _, seen, states = spied(world)
    sent = set(world.method.sends(world.task))
    models = itertools.pairwise(params for params, _ in states)
    for (before, after), (_, scale, released) in zip(models, seen, strict=True):
        for name, value in after.items():
            moved = value != before[name]
            if name not in sent:
                assert not moved.any()
                continue
            carried = released.sum[name] != 0
            if name in scale:
                assert not moved[(scale[name] == 0).expand(moved.shape)].any()
            assert (moved | ~carried).all()


def test_a_coordinate_that_is_not_sent_keeps_its_value_and_its_moments():
    """Else it would go on by what was released of it before."""
    both, one = torch.ones(2), torch.tensor([1.0, 0.0])
    scales = iter((both, one))
    sends = {"sends": lambda task: ("w",), "scale": lambda *given: {"w": next(scales)}}
    method = with_optimizer(Method(lambda *_: None, **sends), SERVERS["yogi"])
    first = {"w": torch.zeros(2)}
    params, state = method.aggregate(first, {"w": both}, method.init_server(first, None), None)
    after, kept = method.aggregate(params, {"w": one}, state, None)
    assert after["w"][1] == params["w"][1] > 0
    for moment in ("first.w", "second.w"):
        assert kept[moment][1] == state[moment][1]
        assert kept[moment][0] != state[moment][0]


def test_parts_besides_parameters_are_left_to_the_method():
    ends = []
    for server in (Server(), SERVERS["sgd"]):
        done, _, states = spied(served(simulation("fedpac", plan=plan(rounds=1)), server))
        ends.append((trees.sub(done.params, states[0][0]), done.server))
    (step, plain), (half, kept) = ends
    assert_equal({name: 0.5 * value for name, value in step.items()}, half)
    assert_equal({"method.centroids": plain["centroids"]}, kept, 0)
    assert plain["centroids"].any()


@pytest.mark.parametrize(
    ("method", "values"), [("dp_fedsim", {"similarity": "updates"}), ("fedglp_adp", {})]
)
def test_what_a_server_keeps_of_releases_is_what_was_released(method, values):
    world, heard = simulation(method, values), []
    told = simulations.overheard(world, lambda *given: heard.append(given), "aggregate")
    _, seen, _ = spied(served(told, SERVERS["momentum"]))
    names = set(rounds.start(world).server)
    assert names
    for (_, released, server, _), (_, _, outcome) in zip(heard, seen, strict=True):
        assert released is outcome.sum
        assert set(server) == names


@pytest.mark.parametrize("name", SERVERS)
def test_backends_agree_and_a_run_goes_on_with_the_same_bits(name):
    ends = []
    for backend in ("loop", "vmap"):
        world = served(simulation("dp_fedsim", backend=backend), SERVERS[name])
        half = []
        done = rounds.run(world, rounds.start(world), lambda at, to=half: to.append(snapshot(at)))
        again = rounds.run(world, half[0])
        assert_equal(again.params, done.params, 0)
        assert_equal(again.server, done.server, 0)
        ends.append(done)
    assert_equal(ends[0].params, ends[1].params)


@pytest.mark.parametrize("name", SERVERS)
def test_the_server_depends_on_data_through_releases_alone(name):
    one, other = ends_of_other_data(served(simulation("fedaddp", local_epochs=1), SERVERS[name]))
    assert_equal(one.params, other.params, 0)
    assert_equal(one.server, other.server, 0)


def test_a_server_whose_moments_are_of_raw_updates_is_caught():
    """Planted: the optimizer is fed by the clients' own mean, kept aside before noise is on it."""
    world, raw = simulation("dp_fedavg"), []
    hooks, fed = world.method, with_optimizer(world.method, SERVERS["momentum"])

    def local_update(params, server, state, batches, task):
        upload, new = hooks.local_update(params, state=state, batches=batches, task=task, server={})
        raw.append(upload.update)
        return upload, new

    def aggregate(params, released, server, task):
        mean = {name: sum(row[name] for row in raw) / len(raw) for name in released}
        raw.clear()
        _, state = fed.aggregate(params, mean, server, task)
        return trees.add(params, released), ServerState(state)

    leaky = replace(fed, local_update=local_update, aggregate=aggregate)
    one, other = ends_of_other_data(replace(world, method=leaky))
    assert_equal(one.params, other.params, 0)
    assert any(not torch.equal(one.server[name], other.server[name]) for name in one.server)


def test_options_of_one_optimizer_are_refused_for_another():
    for wrong in (Server(momentum=0.5), Server("momentum", beta1=0.5), Server("sgd", tau=0.1)):
        with pytest.raises(PflpipeError, match="server"):
            options.check(wrong, "server")
    for right in SERVERS.values():
        options.check(right, "server")


def test_a_search_tries_server_options_and_a_method_that_sends_nothing_has_none():
    problems = Problems()
    outline = read("test_server", Path(__file__).parent / "cases", problems)
    problems.stop()
    tried = {}
    for line in outline.lines:
        tried[line.entry["name"]] = {one.rows[0].cell.server for one in line.candidates}
    grid = itertools.product((0.01, 0.1), (0.001, 0.1))
    assert tried["dp_fedavg"] == {Server("adam", lr=lr, tau=tau) for lr, tau in grid}
    assert tried["local_only"] == {Server()}


def test_only_what_is_sent_has_moments_and_a_federation_has_the_server_that_is_asked_for():
    shards = [(np.ones((3, 5)), np.array([0, 1, 2])) for _ in range(3)]
    asked = {"model": cells.Model("mlp", (4,)), "training": cells.Training(2, 1, 0, "sgd", 0.1)}
    asked["privacy"] = cells.Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=1.0)
    server = SERVERS["adam"]
    world = federation("fedper", shards, **asked, server=server, classes=3, secret="told")
    sent = {name for name in world.network.shapes if not name.startswith("head.")}
    moments = {f"{kind}.{name}" for kind in ("first", "second") for name in sent}
    assert set(rounds.start(world).server) == moments


def test_the_server_of_a_cell_is_that_of_its_run():
    """Built as the pipeline builds it, of arrays in memory."""
    images, labels = np.zeros((6, 8, 8, 1), dtype=np.uint8), np.arange(6) % 3
    split = Split([np.array([0, 1]), np.array([2, 3])], [[], []], [[], []], np.arange(2))
    two = cells.Partition("iid", 2)
    cell = registry.resolve(replace(BASE, partition=two, server=SERVERS["yogi"]))
    arrays, rule = Arrays(images, labels, images, labels, 3), plan(2, rounds=BASE.training.rounds)
    world = runs.of_data(cell, arrays, split, rule, device="cpu", backend="loop")
    assert "second.fc1.weight" in rounds.start(world).server
