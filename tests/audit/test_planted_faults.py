"""Fifteen faults, planted one by one; each is caught by the check that is there for it."""

import dataclasses

import pytest
import torch

from pflpipe import cells, executed, federated, privacy
from pflpipe.audit.coupled import sensitivity
from pflpipe.audit.distinguish import distinguish
from pflpipe.audit.worlds import Mechanism
from pflpipe.errors import DataError, PrivacyError
from pflpipe.privacy import Plan, Released
from simulations import plan, simulation

torch.set_num_threads(1)
REFERENCE = Plan("gaussian", 2, clip_norm=1.0, noise_multiplier=2.105, sample_rate=1.0, rounds=30, delta=0.02, clients=10)
DRAWN = dataclasses.replace(REFERENCE, noise_multiplier=2.248, sample_rate=0.1, rounds=100, delta=1e-5)


def less_noise(factor):
    def release(generator, uploads, present, plan, scale, departures):
        less = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * factor)
        return privacy.release(generator, uploads, present, less, scale, departures)

    return release


def without_clip(generator, uploads, present, plan, scale, departures):
    open_plan = dataclasses.replace(plan, clip_norm=plan.clip_norm * 1e9, noise_multiplier=plan.noise_multiplier / 1e9)
    return privacy.release(generator, uploads, present, open_plan, scale, departures)


def masked_after_the_noise(generator, uploads, present, plan, scale, departures):
    released = privacy.release(generator, uploads, present, plan, scale, departures)
    axis = present.ndim - 1
    kept = {name: (value != 0).any(dim=axis) for name, value in uploads.update.items()}
    return dataclasses.replace(released, sum={name: value * kept[name] for name, value in released.sum.items()})


RELEASES = {
    "noise x 0.9": less_noise(0.9),
    "noise / 10": less_noise(0.1),
    "clip forgotten": without_clip,
    "dense noise, then a private mask": masked_after_the_noise,
}
DEPARTURES = {
    "per-tensor clip": "per_tensor_clip",
    "data-size weights": "data_size_weights",
    "noise on the support": "noise_on_support",
    "division by counts": "divide_by_counts",
    "data-dependent thresholds": "data_dependent_clip",
    "raw similarity weights": "raw_similarity_weights",
}


@pytest.mark.parametrize("fault", RELEASES)
def test_coupled_worlds_catch_a_patched_release(fault):
    assert not sensitivity(Mechanism(REFERENCE, REFERENCE)).flagged
    assert sensitivity(Mechanism(REFERENCE, REFERENCE, release=RELEASES[fault])).flagged


@pytest.mark.parametrize("fault", DEPARTURES)
def test_coupled_worlds_catch_a_departure(fault):
    assert sensitivity(Mechanism(REFERENCE, REFERENCE, frozenset({DEPARTURES[fault]}))).flagged


def test_whole_runs_catch_a_wrong_sampling_rate():
    def sample(rng, plan, repeats):
        return privacy.sample_clients(rng, dataclasses.replace(plan, sample_rate=0.3), repeats)

    wrong = Mechanism(DRAWN, DRAWN, sample=sample)
    assert not sensitivity(wrong).flagged  # nothing is wrong with a single release
    assert distinguish(wrong, "dirac", 4000).flagged


def test_whole_runs_catch_a_schedule_that_everybody_knows():
    assert distinguish(Mechanism(DRAWN, DRAWN, frozenset({"public_sampling"})), "dirac", 1000).flagged


def run_json(world, done):
    return {"releases": done.releases, "participants": sum(row["participants"] for row in done.rows)}


def test_the_count_of_releases_catches_one_round_too_many():
    world = simulation("dp_fedavg", plan=plan(rounds=3))
    done = federated.run(world, federated.start(world))
    executed.check(run_json(world, done), world.plan, (), "run")
    federated.one_round(world, done)
    with pytest.raises(DataError, match="4"):
        executed.check(run_json(world, done), world.plan, (), "run")


@pytest.mark.parametrize(("method", "part"), [("fedbn", "norm1.weight"), ("fedper", "head.bias")])
def test_the_names_a_method_says_it_sends_catch_a_private_part(method, part):
    network = cells.Model("resnet20") if method == "fedbn" else None
    world = simulation(method, model=network, shape=(8, 8, 3) if network else (5,), dtype=torch.float32)

    def leaking(params, server, state, batches, task):
        upload, state = world.method.local_update(params, server, state, batches, task)
        return dataclasses.replace(upload, update=upload.update | {part: state[part]}), state

    spoiled = dataclasses.replace(world, method=dataclasses.replace(world.method, local_update=leaking))
    with pytest.raises(PrivacyError, match=part):
        federated.run(spoiled, federated.start(spoiled))


def test_a_patched_release_is_the_only_difference():
    """The faults above are caught for what they do: the same wrapper without a fault passes."""

    def same(generator, uploads, present, plan, scale, departures) -> Released:
        return privacy.release(generator, uploads, present, plan, scale, departures)

    assert sensitivity(Mechanism(REFERENCE, REFERENCE, release=same)) == sensitivity(Mechanism(REFERENCE, REFERENCE))
