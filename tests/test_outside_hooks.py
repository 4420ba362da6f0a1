"""Hooks from outside that reach for what they were not given, and the run that stops there."""

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import pflpipe
import tabled
from pflpipe.data.datasets import Arrays
from pflpipe.data.split import Split
from pflpipe.errors import PrivacyError
from pflpipe.methods import registry
from pflpipe.methods.base import Method, Upload
from pflpipe.simulation import evaluation, rounds, runs
from pflpipe.simulation.simulation import Simulation
from pflpipe.study.load import load_study
from pflpipe.study.plans import plan_of
from pflpipe.trees import Update
from simulations import finished, overheard, simulation, with_rows

TABLES = tabled.table("test_outside_hooks")

START = TABLES["START"]
HONEST = START + TABLES["HONEST"]
IN_PLACE = START + TABLES["IN_PLACE"]
DATA = IN_PLACE.replace("value.add_(100)", "value.data.add_(100)")
ROWS = IN_PLACE.replace("value.add_(100)", "batches.train.x.mul_(2)")
STASH = START + TABLES["STASH"]
LOUD = START + TABLES["LOUD"]
OTHERS = START + TABLES["OTHERS"]
STUDY: dict[str, Any] = TABLES["STUDY"]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A function that builds the simulation of a method's text on six clients of invented rows."""
    monkeypatch.chdir(tmp_path)
    Path("studies").mkdir()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 5)).astype(np.float32), draw.integers(0, 3, 60)
    rows = [np.arange(10 * client, 10 * client + 3 + client) for client in range(6)]
    nothing = [np.arange(0)] * 6
    split = Split(rows, nothing, nothing, np.arange(10))

    def build(text: str, backend: str, **changes: Any) -> Simulation:
        Path("studies/mine.py").write_text(text)
        Path("studies/mine.yaml").write_text(yaml.safe_dump(STUDY))
        (cell,) = load_study("mine").cells
        plan = plan_of(cell, None).plan
        arrays, how = Arrays(x, y, x, y, 3), {"device": "cpu", "backend": backend}
        found = runs.of_data(registry.resolve(cell), arrays, split, plan, **how)
        return replace(found, **changes)

    return build


def assert_stopped(world: Simulation, words: str) -> None:
    with pytest.raises(PrivacyError, match=words) as error:
        finished(world)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_hooks_that_use_nothing_but_their_arguments_finish_with_the_same_bits(built, backend):
    """The second process has the same floating point numbers: of the scale, of the model and of
    what the server keeps."""
    world = built(HONEST, backend)
    checked, unchecked = finished(world), finished(replace(world, recipe=None))
    assert torch.equal(checked.params["fc1.weight"], unchecked.params["fc1.weight"])
    assert checked.server["norm"] > 0


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("text", "what"), [(IN_PLACE, "fc1.weight"), (DATA, "fc1.weight"), (ROWS, "x")], ids=str.split
)
def test_a_hook_that_changes_what_it_is_given_stops_the_run(built, backend, text, what):
    line = f"method mine: hook local_update: {what}; got 'changed in place'"
    assert_stopped(built(text, backend), f"^{re.escape(line)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "hook"), [(STASH, "aggregate: fc1.bias"), (LOUD, "scale: fc1.bias")], ids=str.split
)
def test_server_hooks_that_know_more_than_the_releases_stop_the_run(built, text, hook):
    line = f"method mine: hook {hook}; got 'another result "
    assert_stopped(built(text, "loop"), f"^{re.escape(line)}")


@pytest.mark.parametrize("text", [STASH, LOUD, OTHERS], ids=["stash", "loud", "others"])
def test_under_vmap_what_a_hook_kept_cannot_be_used(built, text):
    with pytest.raises((PrivacyError, RuntimeError)):
        finished(built(text, "vmap"))


def test_a_client_that_sends_what_another_one_computed_stops_the_run(built):
    words = "other bits than the same client computes by itself"
    assert_stopped(built(OTHERS, "loop", recipe=None), words)


def test_a_second_process_that_fails_stops_the_run_in_one_line(built, capfd):
    text = HONEST + '\nimport os, sys\nif "second_process" in sys.argv[0]:\n    os._exit(3)\n'
    assert_stopped(built(text, "loop"), "no answer from the fresh process: it has ended")


@pytest.mark.parametrize("place", ["personalize", "aggregate", "scale"])
def test_other_hooks_may_not_change_what_they_are_given_either(place):

    def slip(params, *rest):
        params["head.bias"].add_(1)

    slipping = replace(overheard(simulation("dp_fedavg"), slip, place), name="mine")
    with pytest.raises(PrivacyError, match=rf"hook {place}: head\.bias; got 'changed in place'"):
        evaluation.accuracies(slipping, finished(slipping))


def tensors_of(value: Any, seen: set[int]) -> list[torch.Tensor]:
    """All tensors that can be reached from a value: fields, items, closures and attributes."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value, *tensors_of(getattr(value, "_base", None), seen)]
    holds = isinstance(value, (dict, list, tuple, set, frozenset)) or callable(value)
    is_plain = type(value).__module__ in ("builtins", "types") and not holds
    if is_plain or isinstance(value, type) or type(value).__name__ == "module":
        return []
    found = []
    for part in gc.get_referents(value):
        if isinstance(part, dict) and "__builtins__" in part:  # the globals of a module
            continue
        found += tensors_of(part, seen)
    return found


def test_a_hook_reaches_its_own_clients_rows_alone():
    """In a loop, where tensors are as they are. Client k's rows hold the number k."""
    world = simulation("dp_fedavg_fb", {"head_epochs": 1}, sizes=(9, 4, 1, 6))
    x = world.train.x.clone()
    for client, rows in enumerate(world.split.train):
        x[rows] = 1000.0 + client
    x[sum(len(rows) for rows in world.split.train) :] = 5000.0
    test = replace(world.test, x=torch.full_like(world.test.x, 6000.0))
    met = []

    def look(params, server, state, batches, task):
        reached = tensors_of((params, server, state, batches, task), set())
        values = {v for t in reached if t.is_floating_point() for v in t.flatten().tolist()}
        met.append((int(batches.n), sorted(v for v in values if v >= 1000)))

    world = overheard(world, look, "local_update", "personalize")
    world = replace(with_rows(world, x), test=test)
    done = rounds.start(world)
    rounds.one_round(world, done)
    evaluation.accuracies(world, done)
    assert met == [(9, [1000.0]), (4, [1001.0]), (1, [1002.0]), (6, [1003.0])] * 2


def test_hooks_given_to_the_api_are_compared_too():
    def local_update(params, server, state, batches, task):
        params["head.bias"].add_(1)
        return Upload(Update({k: v - v for k, v in params.items()}), {}, batches.n * 0.0), state

    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(5, 3, generator=draw), torch.arange(5) % 2) for _ in range(4)]
    once = pflpipe.Training(rounds=1, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.1)
    budget = pflpipe.Privacy(epsilon=8, delta=1e-2, clip_norm=1.0)
    settings = {"model": pflpipe.Model("mlp", (4,)), "classes": 2, "privacy": budget}
    settings["method_name"] = "sums"
    with pytest.raises(PrivacyError, match=r"method sums: hook local_update: head\.bias; got"):
        pflpipe.train(Method(local_update), clients, training=once, **settings)
