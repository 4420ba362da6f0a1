"""DP-FedSAM-top-k: a round against an independent NumPy program, what is kept, and where the noise
lies in each profile."""

import math

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe.methods import registry
from simulations import linear, simulation, spied

RHO, KEEP, LR, CLIP = 0.3, 0.4, 0.3, 0.2
PAPER = registry.departures("dp_fedsam_topk", "paper", official_code=False)


def largest(update):
    """The update, each tensor without all but its ceil(keep d) largest entries."""
    kept = {}
    for name, value in update.items():
        flat = value.reshape(-1).copy()
        flat[np.argsort(-np.abs(flat))[math.ceil(KEEP * flat.size) :]] = 0
        kept[name] = flat.reshape(value.shape)
    return kept


@pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
def test_golden_round(departures):
    """Top-k, then the joint clip: what is kept is as long as C allows. Without noise both profiles
    release the same."""
    world = linear(
        "dp_fedsam_topk", {"rho": RHO, "keep_ratio": KEEP}, CLIP, LR, departures=departures
    )

    def update(w, client, round):
        steps = numpy_mlp.steps(world, client, round, "train")
        return largest(numpy_mlp.less(numpy_mlp.descend(w, steps, numpy_mlp.sharp(RHO), lr=LR), w))

    numpy_mlp.assert_golden(world, update)


def test_after_the_noise_the_server_keeps_the_largest_entries_of_the_sum():
    values = {"keep_ratio": KEEP, "before_noise": False}
    _, rounds, models = spied(simulation("dp_fedsam_topk", values, backend="vmap"))
    for (uploads, _, released), (before, _), (after, _) in zip(
        rounds, models[:-1], models[1:], strict=True
    ):
        assert uploads.extras == {}
        assert all((value != 0).all() for value in released.sum.values())
        kept = largest({name: value.numpy() for name, value in released.sum.items()})
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
