"""Faults of the training path, planted one by one as such mistakes are written, each caught by the
check that is there for it.

============================================  ======================  =============================
fault                                         where it is planted     check (residual_runs.py)
============================================  ======================  =============================
noise without the run's key                   the engine's generator  shared: streams, repeats
noise named by the seed alone                 the key of a run        shared, and files
a noise seed of 8 bits                        the engine's generator  shared: streams, repeats
division by the realised cohort               the release             findings: size
the same, afterwards                          the server step         findings: change, size
initial head bias from all clients' labels    the first model         differences: first parameters
initial head bias from all clients' labels    the job that trains     files of two worlds
a noise seed that follows the private loss    the engine's generator  differences: noise
noise clamped at 3, 4.5 standard deviations   the noise               findings: tails
second half of a tensor's noise is the first  the noise               findings: halves
every client is given its neighbour's state   the engine's states     strangers; the run's proof
============================================  ======================  =============================

Beyond those: noise that repeats itself mirrored, from round to round, or in Laplace runs; cohorts
of one stream for all runs.
"""

import dataclasses
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import residual_runs
from pflpipe import seeds
from pflpipe.errors import PrivacyError
from pflpipe.methods import registry
from pflpipe.privacy import mechanism, noise
from pflpipe.simulation import rounds, runs
from pflpipe.simulation.isolation import Sample
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States
from residual_runs import (
    RAREST,
    certified_run,
    differences,
    final_model,
    findings,
    lay_out,
    pairs,
    shared,
    tails,
    watch,
    world,
)

torch.set_num_threads(1)


def few_runs():
    """Two runs of three rounds that differ in their learning rate."""
    return [watch(world(lr=lr)) for lr in (0.3, 0.2)]


def many_rounds():
    """Two runs of thirty rounds that differ in their learning rate: two of sixty streams meet in 8
    bits for certain."""
    return [
        watch(world(lr=lr, rounds=30, sizes=(2,), hidden=(), shape=(100,))) for lr in (0.3, 0.2)
    ]


def test_noise_that_does_not_depend_on_the_key(monkeypatch):
    assert shared(few_runs()) == {}
    monkeypatch.setattr(rounds, "release_rng", lambda key, *name: seeds.release_rng("noise", *name))
    assert shared(few_runs()).keys() == {"streams", "repeats"}


def named_by_the_seed_alone(cell):
    return seeds.derived_key(str(cell.seed))


def test_noise_named_by_the_seed_alone(monkeypatch):
    assert shared(few_runs()) == {}
    monkeypatch.setattr(registry, "key", named_by_the_seed_alone)
    assert shared(few_runs()).keys() == {"streams", "repeats"}


def test_noise_named_by_the_seed_alone_in_the_files_of_two_runs(tmp_path, monkeypatch):
    place = lay_out(tmp_path)
    assert pairs([final_model(place, lr=lr) for lr in (0.1, 0.2)]) > RAREST
    monkeypatch.setattr(registry, "key", named_by_the_seed_alone)
    assert pairs([final_model(place, lr=lr) for lr in (0.1, 0.2)]) < RAREST


@pytest.mark.slow
def test_a_noise_seed_of_8_bits(monkeypatch):
    assert shared(many_rounds()) == {}

    def short(key, *name):
        return np.random.default_rng(
            hashlib.sha256("/".join(map(str, (key, *name))).encode()).digest()[0]
        )

    monkeypatch.setattr(rounds, "release_rng", short)
    assert shared(many_rounds()).keys() == {"streams", "repeats"}


def half_drawn(method):
    """A run at q = 1/2 in which someone but not everybody takes part."""
    run = certified_run(method, 0.5, torch.float64)
    assert any(0 < len(round.clients) != run.world.plan.expected_cohort for round in run.rounds)
    return run.world


@pytest.mark.parametrize("method", ["dp_fedavg", "fedaddp", "appfl"])
def test_division_by_the_realised_cohort(method):
    base = half_drawn(method)
    assert findings(watch(base)) == {}

    def release(generator, uploads, present, plan, scale, departures):
        released = mechanism.release(generator, uploads, present, plan, scale, departures)
        factor = plan.expected_cohort / max(1, int(present.sum()))
        return dataclasses.replace(
            released, sum={name: value * factor for name, value in released.sum.items()}
        )

    assert "size" in findings(watch(dataclasses.replace(base, release=release)))


def test_division_by_the_realised_cohort_in_the_server_step():
    base, counts = half_drawn("dp_fedavg"), []

    def release(generator, uploads, present, plan, scale, departures):
        counts.append(max(1, int(present.sum())))
        return mechanism.release(generator, uploads, present, plan, scale, departures)

    def aggregate(params, released, server, task):
        factor = task.plan.expected_cohort / counts[-1]
        return base.method.aggregate(
            params, {name: value * factor for name, value in released.items()}, server, task
        )

    method = dataclasses.replace(base.method, aggregate=aggregate)
    assert findings(watch(dataclasses.replace(base, release=release, method=method))).keys() >= {
        "change",
        "size",
    }


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
    assert differences(*two_worlds(world(method))) == []
    monkeypatch.setattr(rounds, "start", biased(rounds.start))
    assert differences(*two_worlds(world(method))) == ["initial parameters"]


def test_an_initial_head_bias_from_all_clients_labels_in_the_files_of_two_worlds(
    tmp_path, monkeypatch
):
    places = [lay_out(tmp_path / str(changed), changed) for changed in (False, True)]
    one, other = (final_model(place, lr=0.0, noise=1.0) for place in places)
    assert np.array_equal(one, other)
    monkeypatch.setattr(runs, "start", biased(runs.start))
    one, other = (final_model(place, lr=0.0, noise=1.0) for place in places)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("method", ["dp_fedavg", "appfl"])
def test_a_noise_seed_that_follows_the_private_loss(method, monkeypatch):
    assert differences(*two_worlds(world(method))) == []
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
    assert residual_runs.strangers(base, 1) == []

    def run_clients(self, hook, states, clients, work, what):
        def of(chosen):
            other = [(client + 1) % self.plan.clients for client in chosen]
            return states.of(other if isinstance(states, States) else chosen)

        return original(self, hook, SimpleNamespace(of=of), clients, work, what)

    monkeypatch.setattr(Simulation, "run_clients", run_clients)
    with pytest.raises(PrivacyError, match="other bits than the same client computes by itself"):
        rounds.run(base, rounds.start(base))
    monkeypatch.setattr(Sample, "check", lambda *_: None)
    assert residual_runs.strangers(base, 1) != []


def clamp(bound, monkeypatch):
    """Let the noise end at a number of standard deviations, and Laplace noise where it is as
    rare."""
    monkeypatch.setattr(
        mechanism,
        "normal",
        lambda generator, shape: noise.normal(generator, shape).clip(-bound, bound),
    )
    rare = -np.log(2 * stats.norm.sf(bound))
    monkeypatch.setattr(
        mechanism,
        "laplace",
        lambda generator, shape: noise.laplace(generator, shape).clip(-rare, rare),
    )


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_clamped_at_three_standard_deviations(mechanism, monkeypatch):
    base = world(mechanism=mechanism, sizes=(1,), shape=(10_000,), hidden=())
    assert findings(watch(base)) == {}
    clamp(3.0, monkeypatch)
    assert "tails" in findings(watch(base))


@pytest.mark.slow
def test_noise_clamped_at_four_and_a_half_standard_deviations(monkeypatch):
    assert tails(residual_runs.wide_run("gaussian").scores) > RAREST
    clamp(4.5, monkeypatch)
    assert tails(residual_runs.wide_run.__wrapped__("gaussian").scores) < RAREST


def repeated(draw, again):
    """Fill the second half of every tensor with what is made of the first one."""

    def half_drawn(generator, shape):
        values = draw(generator, shape)
        flat = values.reshape(-1)
        half = flat.size // 2
        flat[flat.size - half :] = again(flat[:half])
        return values

    return half_drawn


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "lg_fedavg", "dp_pfeddsu", "appfl"])
def test_half_of_each_tensors_noise_repeats_the_other_half(method, monkeypatch):
    base = world(method, rounds=6)
    assert findings(watch(base)) == {}
    for name in ("normal", "laplace"):
        monkeypatch.setattr(mechanism, name, repeated(getattr(noise, name), lambda first: first))
    assert "halves" in findings(watch(base))


def test_noise_that_is_mirrored_is_found_by_its_repeats(monkeypatch):
    monkeypatch.setattr(mechanism, "normal", repeated(noise.normal, lambda first: -first[::-1]))
    assert shared(few_runs()).keys() == {"repeats"}


def test_noise_that_is_the_same_in_every_round(monkeypatch):
    monkeypatch.setattr(
        rounds, "release_rng", lambda key, name, round: seeds.release_rng(key, name)
    )
    assert shared(few_runs()).keys() == {"streams", "repeats"}


def test_noise_that_a_later_round_takes_back_in_part(monkeypatch):
    """The noise of a round as the difference of two draws, so that sums of rounds carry less."""

    def normal(generator, shape):
        return (
            noise.normal(generator, shape) - noise.normal(seeds.release_rng("before"), shape)
        ) / np.sqrt(2)

    monkeypatch.setattr(mechanism, "normal", normal)
    assert shared(few_runs()).keys() == {"streams"}


def test_cohorts_of_one_stream_for_all_runs(monkeypatch):
    assert shared(residual_runs.sampled_runs()) == {}

    def one_stream(key, name, round):
        return seeds.release_rng(key if name == "noise" else "cohorts", name, round)

    monkeypatch.setattr(rounds, "release_rng", one_stream)
    assert shared(residual_runs.sampled_runs.__wrapped__()).keys() == {"joint cohorts"}


@pytest.mark.parametrize(
    ("factor", "method"), [(0.85, "dp_fedavg"), (1.15, "dp_fedavg"), (0.8, "appfl")]
)
def test_noise_of_another_size(factor, method):
    def release(generator, uploads, present, plan, scale, departures):
        other = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * factor)
        return mechanism.release(generator, uploads, present, other, scale, departures)

    assert "size" in findings(watch(dataclasses.replace(world(method, rounds=6), release=release)))
