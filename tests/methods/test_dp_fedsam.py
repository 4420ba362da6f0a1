"""DP-FedSAM and DP-FedSAM-top-k: rounds against independent NumPy programs, what is kept, and where
the noise lies in each profile."""

import itertools
import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe.methods import registry
from simulations import linear, simulation, spied

RHO, LR, MOMENTUM, DECAY, CLIP = 0.5, 0.2, 0.5, 0.1, 0.3
DECAY_OF_LR = 0.6
OFFICIAL = registry.departures("dp_fedsam", "paper", official_code=True)
TOPK_RHO, KEEP = 0.3, 0.4
PAPER = registry.departures("dp_fedsam_topk", "paper", official_code=False)


@pytest.mark.parametrize("departures", [(), OFFICIAL], ids=["strict", "official"])
def test_two_golden_rounds_at_a_falling_learning_rate(departures):
    values = {"rho": RHO, "adaptive": bool(departures)}
    training = {"lr_decay": DECAY_OF_LR, "momentum": MOMENTUM, "weight_decay": DECAY}
    settings = {"rounds": 2, "departures": departures} | training
    world = linear("dp_fedsam", values, CLIP, LR, **settings)
    slope = numpy_mlp.sharp(RHO, adaptive=bool(departures))

    def update(w, client, round):
        how = {"lr": LR * DECAY_OF_LR**round, "momentum": MOMENTUM, "decay": DECAY}
        return numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, slope, **how), w)

    def each_clipped(message, bound):
        return {n: numpy_mlp.clipped({n: value}, bound)[n] for n, value in message.items()}

    shares = numpy_mlp.weights(world, by_size=bool(departures))
    clip = each_clipped if departures else numpy_mlp.clipped
    numpy_mlp.assert_golden(world, update, shares=shares, clip=clip)


def largest(update):
    """The update, each tensor without all but its ceil(keep d) largest entries."""
    kept = {}
    for name, value in update.items():
        flat = value.reshape(-1).copy()
        flat[np.argsort(-np.abs(flat))[math.ceil(KEEP * flat.size) :]] = 0
        kept[name] = flat.reshape(value.shape)
    return kept


@pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
def test_golden_round_of_the_largest_entries(departures):
    """Top-k, then the joint clip: what is kept is as long as C allows. Without noise both profiles
    release the same."""
    values = {"rho": TOPK_RHO, "keep_ratio": KEEP}
    world = linear("dp_fedsam_topk", values, 0.2, 0.3, departures=departures)

    def update(w, client, round):
        end = numpy_mlp.local_pass(world, client, round, w, numpy_mlp.sharp(TOPK_RHO), lr=0.3)
        return largest(numpy_mlp.less(end, w))

    numpy_mlp.assert_golden(world, update)


def test_after_the_noise_the_server_keeps_the_largest_entries_of_the_sum():
    values = {"keep_ratio": KEEP, "before_noise": False}
    _, rounds, states = spied(simulation("dp_fedsam_topk", values, backend="vmap"))
    pairs = itertools.pairwise(params for params, _ in states)
    for (uploads, _, released), (before, after) in zip(rounds, pairs, strict=True):
        assert uploads.extras == {}
        assert all((value != 0).all() for value in released.sum.values())
        kept = largest(numpy_mlp.arrays(released.sum))
        numpy_mlp.assert_close(after, {name: before[name].numpy() + kept[name] for name in kept})


def test_the_papers_messages_are_silent_where_the_private_mask_is_false():
    world = simulation("dp_fedsam_topk", {"keep_ratio": KEEP}, backend="vmap", departures=PAPER)
    done, rounds, _ = spied(world)
    for uploads, _, released in rounds:
        assert set(uploads.extras) == {f"mask.{name}" for name in uploads.update}
        for name, value in uploads.update.items():
            mask = uploads.extras[f"mask.{name}"]
            assert mask.flatten(1).sum(1).tolist() == [math.ceil(KEEP * value[0].numel())] * 4
            assert torch.equal(released.messages[name] != 0, mask)
    kept = sum(math.ceil(KEEP * value.numel()) for value in done.params.values())
    assert done.uploaded_bits == 3 * (32 * kept + world.network.parameters)
