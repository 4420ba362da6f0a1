"""Every method solves a problem whose answer is known: separable classes, where the least
cross-entropy is 0."""

import pytest
import torch
import torch.nn.functional as F

import tabled
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.simulation import rounds
from simulations import hooked, of_everybody, open_plan, plan, simulation, with_rows

CLIENTS, ROUNDS = 4, 20
# A bound in the units of the method that hardly shortens anything.
CLIP = {"fedaddp": 1000.0, "appfl": 50.0, "appfl_steps": 50.0}
SETTINGS = tabled.table("test_convergence")
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
    return with_rows(world, x)


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_personal_models_reach_the_least_loss_on_separable_classes(method):
    world = hooked(separable(method), full_pass=True)

    def loss(params, server, state, batches, task):
        personal = world.method.personalize(params, server, state, batches, task)
        return torch.stack([task.loss(personal, batch) for batch in batches.all]).mean()

    before = of_everybody(world, rounds.start(world), loss)
    after = of_everybody(world, rounds.run(world, rounds.start(world)), loss)
    assert after.max() < 0.05
    assert (after < 0.5 * before).all()
