"""What the methods share that send sums over a person's rows and no parameters."""

import dataclasses

import pytest
import torch

import pflpipe
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.methods import registry
from pflpipe.simulation import evaluation, rounds
from simulations import LINEAR, TABLE, assert_equal, params_after, plan, simulation

SETTINGS = {
    "dpals": {"answers": 3, "rank": 2},
    "item_effects": {"answers": 3},
    "one_release_factors": {"answers": 3, "equal": True},
    "private_prior": {"spread": 0.8, "length": 1.0, "noise": 0.7},
}


def world(method, **changes):
    rule = plan(**({"noise_multiplier": 0.1, "clip_norm": 9.0} | changes))
    model = {"model": LINEAR} if method == "private_prior" else {}
    return simulation(method, SETTINGS[method], plan=rule, backend="vmap", **model)


@pytest.mark.parametrize("method", [name for name in SETTINGS if name != "dpals"])
def test_rounds_at_their_budget_are_worth_one(method):
    """Each round of ``dpals`` starts from the last, so that more rounds find more."""
    one, two = (params_after(world(method, noise_multiplier=0.0, rounds=n)) for n in (1, 2))
    assert_equal(one, two, 1e-9)


@pytest.mark.parametrize("method", SETTINGS)
def test_new_people_cost_nothing(method):
    found = world(method)
    done = rounds.run(found, rounds.start(found))
    new = dataclasses.replace(found, split=dataclasses.replace(found.split, new=found.split))
    known, stranger = evaluation.accuracies(found, done), evaluation.accuracies_of_new(new, done)
    pairs = zip(known, stranger, strict=True)
    assert all(old["personal_own"] == fresh["personal_new"] for old, fresh in pairs)


@pytest.mark.parametrize("method", ["dpals", "one_release_factors"])
def test_what_is_no_table_of_two_classes_is_refused_in_one_line(method):
    check = registry.check_model
    with pytest.raises(ConfigError, match=rf"method {method}: model; got 'mlp'.*people"):
        check(method, cells.Model("mlp", (6,)))
    with pytest.raises(ConfigError, match=rf"{method}: classes; got 3; expected 2"):
        check(method, TABLE, outputs=3)
    check(method, TABLE, outputs=2)
    people = [(torch.tensor([[0.0], [1.0], [2.0]]), torch.arange(3)) for _ in range(3)]
    privacy = cells.Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
    settings = {"training": cells.Training(1, 1, 0, "sgd", 0.1), "privacy": privacy, "secret": "a"}
    with pytest.raises(ConfigError, match=r"outputs of the network; got 3; expected 2"):
        pflpipe.train(method, people, model=TABLE, classes=3, **settings)
    with pytest.raises(ConfigError, match=r"loss.*expected cross_entropy"):
        registry.check_loss(method, "binary", {})
