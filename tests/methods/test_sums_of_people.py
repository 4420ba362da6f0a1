"""What the methods share that send sums over a person's rows and no parameters."""

import dataclasses
import itertools

import pytest
import torch
from test_dpals import ITEMS, MOST

import pflpipe
import simulations
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.methods import dpals, registry
from pflpipe.methods.one_release_factors import EQUAL, SHARES
from pflpipe.simulation import evaluation, rounds
from simulations import LINEAR, TABLE, finished, params_after, plan, simulation, spied, with_rows

SETS = [s for n in range(1, ITEMS + 1) for s in itertools.combinations(range(ITEMS), n)]
"""Every set of items that a person may have answered."""
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
    """Each round of ``dpals`` starts from the last, so that more rounds find more. Of the others
    the server keeps the mean over the rounds."""
    one, two = (params_after(world(method, noise_multiplier=0.0, rounds=n)) for n in (1, 2))
    simulations.assert_equal(one, two, 1e-9)
    done, seen, _ = spied(world(method))
    for name in seen[0][2].sum:
        mean = torch.stack([released.sum[name] for _, _, released in seen]).mean(0)
        torch.testing.assert_close(done.server[name], mean)


@pytest.mark.parametrize("method", SETTINGS)
def test_new_people_cost_nothing(method):
    found = world(method)
    done = finished(found)
    new = dataclasses.replace(found, split=dataclasses.replace(found.split, new=found.split))
    known, stranger = evaluation.accuracies(found, done), evaluation.accuracies_of_new(new, done)
    pairs = zip(known, stranger, strict=True)
    assert all(old["personal_own"] == fresh["personal_new"] for old, fresh in pairs)


def shares_of(world, lists, clip_norm, y=None, begun=None):
    """The squared length of each part of what people send who answered these items, in units of the
    clip norm."""
    x = world.train.x.clone()
    given = [float(item) for items in lists for item in items]
    x[: len(given), 0] = torch.tensor(given)
    _, ((uploads, scale, _),), _ = spied(with_rows(world, x, y), begun)
    parts = {name: (value / scale[name]).flatten(1) for name, value in uploads.update.items()}
    return {name: part.square().sum(1) / clip_norm**2 for name, part in parts.items()}


@pytest.mark.parametrize("clip_norm", [0.7, 5.0])
@pytest.mark.parametrize(
    ("method", "values", "shares", "loss"),
    [
        ("item_effects", {"bound": 0.8}, {"totals": 1.0}, "cross_entropy"),
        ("item_effects", {"bound": 0.8}, {"totals": 1.0}, "squared_error"),
        ("one_release_factors", {"equal": False}, SHARES, "cross_entropy"),
        ("one_release_factors", {"equal": True}, EQUAL, "cross_entropy"),
    ],
)
def test_no_person_of_a_small_table_sends_more_than_the_clip_norm(
    method, values, shares, loss, clip_norm
):
    """Each part stays within its share, the whole within C, which lists of ``answers`` or more
    fill, with answers as long as there are any."""
    sizes = tuple(map(len, SETS))
    settings = {"plan": plan(len(sizes), rounds=1, clip_norm=clip_norm), "loss": loss}
    found = simulation(method, values | {"answers": MOST}, sizes=sizes, **settings)
    numbers = torch.full((len(found.train.x), 3), -2.0, dtype=torch.float64)
    squares = shares_of(found, SETS, clip_norm, numbers if loss == "squared_error" else None)
    full = torch.tensor(sizes) >= MOST
    for name, share in shares.items():
        torch.testing.assert_close(squares[name][full], squares[name][full] * 0 + share)
        assert (squares[name][~full] < share).all()
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("clip_norm", [0.7, 5.0])
def test_no_person_of_a_small_table_sends_more_than_the_clip_norm_to_dpals(clip_norm):
    """Brute force over all answers to every set of items, each part within its share."""
    given = [(s, y) for s in SETS for y in itertools.product((0, 1), repeat=len(s))]
    lists = [items for items, _ in given]
    rule = plan(len(lists), rounds=1, clip_norm=clip_norm)
    found = simulation("dpals", SETTINGS["dpals"], plan=rule, sizes=tuple(map(len, lists)))
    y = found.train.y.clone()
    labels = torch.tensor([value for _, answers in given for value in answers])
    y[: len(labels)] = labels
    begun = rounds.start(found)
    surprised = torch.tensor([-1.0, 0.0, 0.0])  # so that factors are cut
    far = 1.4 * begun.server["vectors"] + surprised
    begun.server = type(begun.server)({"vectors": far})
    squares = shares_of(found, lists, clip_norm, y, begun)
    for name, share in dpals.SHARES.items():
        assert squares[name].max().item() == pytest.approx(share, rel=0.05)
        assert (squares[name] <= share * (1 + 1e-12)).all()
    assert sum(dpals.SHARES.values()) == pytest.approx(1)


def refused(words):
    return pytest.raises(ConfigError, match=words)


def trained(method, model, classes):
    people = [(torch.tensor([[0.0], [1.0], [2.0]]), torch.arange(3) % classes) for _ in range(3)]
    privacy = cells.Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
    settings = {"training": cells.Training(1, 1, 0, "sgd", 0.1), "privacy": privacy, "secret": "a"}
    pflpipe.train(method, people, model=model, classes=classes, **settings)


@pytest.mark.parametrize("method", ["dpals", "item_effects", "one_release_factors"])
def test_what_is_no_table_of_people_and_items_is_refused_in_one_line(method):
    for model in (cells.Model("mlp", (6,)), cells.Model("linear")):
        with refused(rf"method {method}: model; got '{model.name}'.*people"):
            registry.check_model(method, model)
    with refused(r"model; got 'mlp'; expected embedding"):
        trained(method, cells.Model("mlp", (6,)), 2)


def test_a_table_of_more_classes_than_a_method_can_have_is_refused_in_one_line():
    with refused(r"model.hidden; got .*4.*expected at least 6"):
        registry.check_model("item_effects", TABLE, outputs=6)
    for method in ("dpals", "one_release_factors"):
        with refused(rf"{method}: classes; got 3; expected 2"):
            registry.check_model(method, TABLE, outputs=3)
        registry.check_model(method, TABLE, outputs=2)
        with refused(r"outputs of the network; got 3; expected 2"):
            trained(method, TABLE, 3)
        with refused(r"loss.*expected cross_entropy"):
            registry.check_loss(method, "binary", {})
