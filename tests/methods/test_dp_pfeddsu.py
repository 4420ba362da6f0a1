"""DP-pFedDSU: its masks, a golden round in both profiles, and what is sent on the network of the
paper."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe import cells, trees
from pflpipe.learning import networks
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Uploads
from pflpipe.simulation import rounds
from simulations import finished, personal_models, plan, shaken, simulation, spied

PROFILES = [(), ("noise_on_support",)]
MODEL = cells.Model("mlp", (6, 5, 4))  # weights of the body: 6 x 5, 5 x 6, 4 x 5
BODY = tuple(f"fc{layer}.{part}" for layer in (1, 2, 3) for part in ("weight", "bias"))
MASKED = ("fc2.weight", "fc3.weight")
KEEP, LAYERS, WEIGHT, LR, CLIP = 0.3, 2, 0.4, 0.2, 0.1
SPARSE = {"keep_ratio": KEEP, "masked_layers": LAYERS, "weight": WEIGHT}
OF_HEAD = {"lr": 0.1, "momentum": 0.6, "decay": 0.05, "names": numpy_mlp.HEAD}
HEAD_PHASE = {"head_epochs": 3, "head_lr": 0.1, "head_momentum": 0.6, "head_weight_decay": 0.05}


def world_of(hyperparameters, departures=(), **changes):
    settings = {"model": MODEL, "lr": LR, "departures": departures}
    return simulation("dp_pfeddsu", hyperparameters, **(settings | changes))


# A round by hand


def numpy_masks(w):
    """The ceil(S d) largest weights of each of the last two layers of the body, by sorting."""
    masks = {}
    for name in MASKED:
        order = np.argsort(-np.abs(w[name]).ravel())
        masks[name] = np.zeros(w[name].size, bool)
        masks[name][order[: math.ceil(KEEP * w[name].size)]] = True
        masks[name] = masks[name].reshape(w[name].shape)
    return masks


def numpy_sparse(w, masks):
    return w | {name: w[name] * mask for name, mask in masks.items()}


def numpy_client(w_global, head, head_steps, train_steps, private):
    """One client of DP-pFedDSU, written from the paper without torch: its head, the change it sends
    and its last mask."""
    masks = numpy_masks(w_global)
    w = numpy_sparse(w_global | head, masks)
    head = numpy_mlp.descend(w, head_steps, numpy_mlp.gradient, **OF_HEAD)
    head = {name: head[name] for name in numpy_mlp.HEAD}

    def slope(w, x, y):
        kept = numpy_masks(w) if private else masks
        slopes = numpy_sparse(numpy_mlp.gradient(numpy_sparse(w, kept), x, y), kept)
        gap = numpy_sparse({name: w[name] - w_global[name] for name in BODY}, kept)
        length = np.linalg.norm(numpy_mlp.flat(gap))
        if length:
            pull = WEIGHT / 2 * np.sign(length - CLIP) / length
            slopes |= {name: slopes[name] + pull * gap[name] for name in BODY}
        return slopes

    how = {"lr": LR, "momentum": 0.5, "decay": 0.01, "names": BODY}
    w = numpy_mlp.descend(w_global | head, train_steps, slope, **how)
    last = numpy_masks(w) if private else masks
    return head, numpy_sparse({name: w[name] - w_global[name] for name in BODY}, last), last


@pytest.mark.parametrize("departures", PROFILES, ids=["strict", "paper"])
def test_golden_round(departures):
    quiet = plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1)
    settings = {"plan": quiet, "momentum": 0.5, "weight_decay": 0.01, "local_epochs": 4}
    world = world_of(SPARSE | HEAD_PHASE, departures, backend="vmap", **settings)
    begun = shaken(rounds.start(world), np.random.default_rng(3))
    own, moved = [numpy_mlp.arrays(begun.states, client) for client in range(4)], []

    def update(w, client, round):
        steps = [numpy_mlp.steps(world, client, round, name) for name in ("head", "train")]
        found = numpy_client(w, own[client], *steps, private=bool(departures))
        own[client], change, last = found
        moved.extend((last[name] != mask).any() for name, mask in numpy_masks(w).items())
        return change

    done, _ = numpy_mlp.assert_golden(world, update, begun=begun)
    # In the paper's profile the example has masks that change on the way.
    assert any(moved) == bool(departures)
    numpy_mlp.assert_close(done.states, own)


def test_the_personal_model_is_the_masked_extractor_with_the_head_trained_on_its_features():
    world = world_of(SPARSE | HEAD_PHASE, backend="vmap")
    done, expected = finished(world), []
    released = numpy_mlp.arrays(done.params)
    for client in range(4):
        head = numpy_mlp.arrays(done.states, client)
        start = numpy_sparse(released | head, numpy_masks(released))
        end = numpy_mlp.local_pass(world, client, 3, start, schedule="head", **OF_HEAD)
        expected.append(end)
    numpy_mlp.assert_close(personal_models(world, done), expected)


# What is sent


@pytest.mark.parametrize("keep_ratio", [0.07, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("departures", PROFILES, ids=["strict", "paper"])
def test_exactly_the_promised_number_of_weights_is_sent(departures, keep_ratio):
    """ceil(S d) of each masked layer, also where weights tie (fc3), and every coordinate of the
    rest."""
    settings = {"backend": "vmap", "plan": plan(rounds=1)}
    world = world_of(SPARSE | {"keep_ratio": keep_ratio}, departures, **settings)
    begun = rounds.start(world)
    begun.params["fc3.weight"] = torch.full_like(begun.params["fc3.weight"], 0.5)
    done, ((uploads, scale, _),), _ = spied(world, begun)
    assert set(uploads.update) == set(BODY)
    assert set(scale) == (set() if departures else set(MASKED))
    bits = 0
    for name, value in uploads.update.items():
        size = value[0].numel()
        kept = math.ceil(round(keep_ratio * size, 6)) if name in MASKED else size
        assert all((row != 0).sum() <= kept for row in value)
        if departures:
            assert all(row.sum() == kept for row in uploads.extras[f"mask.{name}"])
        elif name in MASKED:
            assert scale[name].sum() == (scale[name] == 1).sum() == kept
        bits += 32 * kept + (size if departures else 0)
    assert done.uploaded_bits == bits


def test_the_public_mask_follows_the_released_weights():
    world = world_of(SPARSE, plan=plan(noise_multiplier=50.0, rounds=2))
    begun = rounds.start(world)
    first = world.method.scale(begun.params, begun.server, world.task)
    done = rounds.run(world, begun)
    second = world.method.scale(done.params, done.server, world.task)
    for name in MASKED:
        expected = numpy_masks(numpy_mlp.arrays(done.params))[name]
        np.testing.assert_array_equal(second[name].numpy() > 0, expected)
    assert any(not torch.equal(first[name], second[name]) for name in MASKED)


def test_on_resnet20_131744_of_271824_coordinates_are_released():
    """The last four weight layers are the 64 to 64 convolutions of blocks 2 and 3 of the last
    stage, 36,864 weights each."""
    network = networks.build(cells.Model("resnet20"), (32, 32, 3), 10)
    world = dataclasses.replace(simulation("dp_pfeddsu"), network=network)
    params = network.init(torch.Generator().manual_seed(0))
    scale = world.method.scale(params, {}, world.task)
    last = [f"stage3.block{block}.conv{conv}.weight" for block in (2, 3) for conv in (1, 2)]
    assert list(scale) == last
    assert all(mask.sum() == 1844 and mask.numel() == 36_864 for mask in scale.values())
    body = {name: params[name] for name in world.task.body_names}
    assert trees.size(body) == 271_824
    uploads = Uploads({name: value[None] for name, value in body.items()})
    bits = mechanism.upload_bits(uploads, torch.ones(1, dtype=torch.bool), scale, plan(1))
    assert bits == 32 * 131_744
