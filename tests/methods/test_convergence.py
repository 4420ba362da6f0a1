"""Every method solves a problem whose answer is known: separable classes, where the least
cross-entropy is 0."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import rounds
from pflpipe.simulation.clients import Examples
from simulations import hooked, of_everybody, open_plan, plan, simulation

CLIENTS, ROUNDS = 4, 20
# A bound in the units of the method that hardly shortens anything.
CLIP = {"fedaddp": 1000.0, "appfl": 50.0, "appfl_steps": 50.0}
HEAD = {"head_lr": 0.05}
SETTINGS = {
    "centaur": HEAD,
    "dp_fedavg_fb": HEAD,
    "dp_fedsam": {"rho": 0.05},
    "dp_fedsam_topk": {"rho": 0.05},
    "dp_pfeddsu": {**HEAD, "keep_ratio": 0.5},
    "fedbabu": {"head_lr": 0.1},
    "fedpac": {"head_epochs": 5, "weight": 0.1},
    "fedrep": HEAD,
    "pmtl_ft": {**HEAD, "weight": 0.1},
    "private_fedrep": {"loss": "logistic", "penalty": 1e-6},
}
# The algorithm of FedBN is that of FedPer and LG-FedAvg; a network with normalisation is too slow
# for this. The others train nothing; their tests have the answer in closed form.
UNTRAINED = {"one_shot_ridge", "own_constant", "item_effects", "one_release_factors"}
UNTRAINED |= {"private_prior", "dpals"}
NAMES = [
    name for name in NAMES if registry.info(name).about.needs != ("norm",) and name not in UNTRAINED
]


def separable(method):
    """Four clients whose examples are three times the unit vector of their class, under a plan
    without noise."""
    rule = open_plan(CLIENTS, rounds=ROUNDS)
    if registry.info(method).about.private:
        bound = CLIP.get(method, 10.0)
        rule = plan(CLIENTS, rounds=ROUNDS, noise_multiplier=0.0, clip_norm=bound)
    settings = {"plan": rule, "sizes": (6,) * CLIENTS, "backend": "vmap", "lr": 0.5}
    world = simulation(method, SETTINGS.get(method), **settings)
    x = 3 * F.one_hot(world.train.y, world.train.x.shape[1]).to(world.train.x)
    return dataclasses.replace(world, train=Examples(x, world.train.y))


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_personal_models_reach_the_least_loss_on_separable_classes(method):
    world = separable(method)
    world = hooked(world, full_pass=True)

    def loss(params, server, state, batches, task):
        personal = world.method.personalize(params, server, state, batches, task)
        return torch.stack([task.loss(personal, batch) for batch in batches.all]).mean()

    before = of_everybody(world, rounds.start(world), loss)
    after = of_everybody(world, rounds.run(world, rounds.start(world)), loss)
    assert after.max() < 0.05
    assert (after < 0.5 * before).all()
