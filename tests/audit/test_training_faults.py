"""Faults of the training path, planted one by one as such mistakes are written, each caught by the
check that is there for it (residual_runs.py): ``findings`` of a run, ``differences`` of two worlds,
``strangers`` of a client, or files of two worlds. Without them these find nothing:
test_residuals.py."""

import dataclasses
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import residual_runs
from pflpipe import seeds
from pflpipe.errors import PrivacyError
from pflpipe.privacy import mechanism, noise
from pflpipe.simulation import isolation, rounds, runs
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States
from residual_runs import certified_run, differences, final_model, findings, lay_out, watch, world
from simulations import hooked


def short(key, *name):
    """A noise seed of 8 bits."""
    text = "/".join(map(str, (key, *name)))
    return np.random.default_rng(hashlib.sha256(text.encode()).digest()[0])


STREAMS = {
    "without the run's key": lambda key, *name: seeds.release_rng("noise", *name),
    "a noise seed of 8 bits": short,
    "the same in every round": lambda key, name, *_: seeds.release_rng(key, name),
    "cohorts of one stream for all runs": lambda key, name, *of: seeds.release_rng(
        key if name == "noise" else "cohorts", name, *of
    ),
}


@pytest.mark.parametrize("fault", STREAMS)
def test_random_numbers_of_another_stream(fault, monkeypatch):
    base = world(rate=0.5)
    monkeypatch.setattr(rounds, "release_rng", STREAMS[fault])
    found = findings(watch(base))
    assert found <= {"noise", "cohorts"}
    assert found
    assert ("noise" in found) == ("cohorts of" not in fault)


def repeated(again):
    """Fill the second half of every tensor with what is made of the first one."""

    def spoiled(values):
        flat = values.reshape(-1)
        half = flat.size // 2
        flat[flat.size - half :] = again(flat[:half])
        return values

    return spoiled


LAWS = {
    "clamped at three standard deviations": lambda values: values.clip(-2, 2),
    "the second half repeats the first": repeated(lambda first: first),
    "the second half mirrors the first": repeated(lambda first: -first[::-1]),
    "a part of it is taken back": lambda values: (values - values[::-1]) / np.sqrt(2),
}


@pytest.mark.parametrize("method", ["dp_fedavg", "lg_fedavg", "dp_pfeddsu", "appfl"])
@pytest.mark.parametrize("fault", LAWS)
def test_noise_of_another_law(fault, method, monkeypatch):
    base = world(method)
    for name in ("normal", "laplace"):
        draw = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda *rest, draw=draw: LAWS[fault](draw(*rest)))
    assert findings(watch(base)) == {"noise"}


def by_the_cohort(plan, present):
    return plan.expected_cohort / max(1, int(present.sum()))


SIZES = {
    "divided by the realised cohort": by_the_cohort,
    "a tenth too small": lambda plan, present: 0.9,
    "a tenth too large": lambda plan, present: 1.1,
}


@pytest.mark.parametrize("method", ["dp_fedavg", "fedaddp", "appfl"])
@pytest.mark.parametrize("fault", SIZES)
def test_noise_of_another_size(fault, method):
    base = half_drawn(method)

    def release(generator, uploads, present, plan, *rest):
        released = mechanism.release(generator, uploads, present, plan, *rest)
        factor = SIZES[fault](plan, present)
        sums = {name: value * factor for name, value in released.sum.items()}
        return dataclasses.replace(released, sum=sums)

    assert findings(watch(dataclasses.replace(base, release=release))) == {"noise"}


def half_drawn(method):
    """A run at q = 1/2 in which someone but not everybody takes part."""
    run = certified_run(method, 0.5, torch.float64)
    assert any(0 < len(round.clients) != run.world.plan.expected_cohort for round in run.rounds)
    return run.world


def test_division_by_the_realised_cohort_in_the_server_step():
    base, counts = half_drawn("dp_fedavg"), []

    def release(generator, uploads, present, *rest):
        counts.append(max(1, int(present.sum())))
        return mechanism.release(generator, uploads, present, *rest)

    def aggregate(params, released, server, task):
        factor = task.plan.expected_cohort / counts[-1]
        scaled = {name: value * factor for name, value in released.items()}
        return base.method.aggregate(params, scaled, server, task)

    spoiled = hooked(dataclasses.replace(base, release=release), aggregate=aggregate)
    assert findings(watch(spoiled)) == {"change", "noise"}


def biased(start):
    """Start with the logarithms of all clients' label frequencies in the head's bias."""

    def biased_start(simulation, *arguments):
        progress = start(simulation, *arguments)
        counts = torch.bincount(simulation.train.y, minlength=len(progress.params["head.bias"])) + 1
        progress.params["head.bias"] = (counts / counts.sum()).log().to(simulation.dtype)
        return progress

    return biased_start


def two_worlds(base):
    return watch(base), watch(residual_runs.other_data(base))


@pytest.mark.parametrize("method", ["dp_fedavg", "fedper"])
def test_an_initial_head_bias_from_all_clients_labels(method, monkeypatch):
    monkeypatch.setattr(rounds, "start", biased(rounds.start))
    assert differences(*two_worlds(world(method))) == ["initial parameters"]


def test_an_initial_head_bias_from_all_clients_labels_in_the_files_of_two_worlds(
    tmp_path, monkeypatch
):
    """Which are equal without it: test_residuals.py."""
    places = [lay_out(tmp_path / str(changed), changed) for changed in (False, True)]
    monkeypatch.setattr(runs, "start", biased(runs.start))
    one, other = (final_model(place, lr=0.0, noise=1.0)[0] for place in places)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("method", ["dp_fedavg", "appfl"])
def test_a_noise_seed_that_follows_the_private_loss(method, monkeypatch):
    original, losses = Simulation.run_clients, []

    def run_clients(self, *arguments):
        outcome = original(self, *arguments)
        losses.append(float(outcome[2].mean()))
        return outcome

    monkeypatch.setattr(Simulation, "run_clients", run_clients)

    def following(key, name, round):
        return seeds.release_rng(key, name, round, *(str(losses[-1]) if name == "noise" else ""))

    monkeypatch.setattr(rounds, "release_rng", following)
    assert differences(*two_worlds(world(method))) == ["noise"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedala", "fedper"])
def test_a_client_that_is_given_the_state_of_another_one(method, monkeypatch):
    base, original = world(method, rounds=2), Simulation.run_clients

    def run_clients(self, hook, states, clients, work, *what):
        def of(chosen):
            other = [(client + 1) % self.plan.clients for client in chosen]
            return states.of(other if isinstance(states, States) else chosen)

        return original(self, hook, SimpleNamespace(of=of), clients, work, *what)

    monkeypatch.setattr(Simulation, "run_clients", run_clients)
    with pytest.raises(PrivacyError, match="other bits than the same client computes by itself"):
        rounds.run(base, rounds.start(base))
    monkeypatch.setattr(isolation.Sample, "check", lambda *_: None)
    assert residual_runs.strangers(base, 1) != []
