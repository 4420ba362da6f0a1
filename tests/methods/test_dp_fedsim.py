"""DP-FedSim: one round against an independent NumPy program, its thresholds and its weights."""

import numpy as np
import pytest
import torch

import numpy_mlp
from pflpipe.methods import dp_fedsim as module
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, quiet, shaken, simulation, spied

PAPER = module.ABOUT.paper_departures
LAYERS = {"fc1": ("fc1.weight", "fc1.bias"), "head": ("head.weight", "head.bias")}
THRESHOLD, LR, CLIP = 0.3, 0.3, 0.02
KEPT_FROM = {"sum": 0.15, "minmax": THRESHOLD}  # of a sum, no coordinate here has 0.3


def numpy_client(x, y, w_global, w_local, steps, fisher_norm):
    """Start and end of one client's round, from the paper without torch."""
    fisher = numpy_mlp.fisher(w_local, x, y)
    for names in LAYERS.values():
        total = sum(fisher[name].sum() for name in names)
        for name in names:
            low, high = 0.0, total
            if fisher_norm == "minmax":
                low, high = fisher[name].min(), fisher[name].max()
            fisher[name] = (fisher[name] - low) / (high - low)
    kept = {name: value >= KEPT_FROM[fisher_norm] for name, value in fisher.items()}
    assert 0 < numpy_mlp.flat(kept).mean() < 1
    start = {name: np.where(kept[name], w_local[name], w_global[name]) for name in fisher}
    return start, numpy_mlp.descend(start, steps, numpy_mlp.gradient, lr=LR)


def flat(tree, layer):
    return numpy_mlp.flat({name: tree[name] for name in LAYERS[layer]})


def numpy_bounds(update):
    rows = [flat(update, layer) for layer in LAYERS]
    return [CLIP * (1 + row.std() / (abs(row.mean()) + 1e-8)) for row in rows]


def numpy_shortened(update, bounds, epsilon):
    """Eqs. 10-11; the release has no epsilon in its clips."""
    result = {}
    for (layer, names), bound in zip(LAYERS.items(), bounds, strict=True):
        length = np.linalg.norm(flat(update, layer))
        result |= {name: update[name] * min(1.0, bound / (length + epsilon)) for name in names}
    return result


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize(
    ("published", "similarity", "fisher_norm"),
    [
        *((True, "params", "sum"), (True, "updates", "sum"), (True, "params", "minmax")),
        *((False, "params", "sum"), (False, "params", "minmax")),
    ],
)
def test_golden_round(published, similarity, fisher_norm):
    values = {"threshold": KEPT_FROM[fisher_norm], "fisher_norm": fisher_norm}
    settings = {"departures": PAPER if published else (), "clip_norm": CLIP, "lr": LR}
    world = quiet("dp_fedsim", values | {"similarity": similarity}, rounds=1, **settings)
    rng = np.random.default_rng(5)
    begun = shaken(rounds.start(world), rng, 0.3)
    for name, value in begun.server.items():  # and a last released update
        begun.server[name] = value + torch.from_numpy(rng.normal(size=value.shape))
    w, last = numpy_mlp.arrays(begun.params), numpy_mlp.arrays(begun.server)
    ends, messages, alike, bites = [], [], [], []
    for client in range(4):
        w_local = numpy_mlp.arrays(begun.states, client)
        steps = numpy_mlp.steps(world, client, 0, "train")
        start, end = numpy_client(*numpy_mlp.rows(world, client), w, w_local, steps, fisher_norm)
        update = numpy_mlp.less(end, start)
        bounds = numpy_bounds(update)
        lengths = [np.linalg.norm(flat(update, layer)) for layer in LAYERS]
        bites.extend(np.greater(lengths, bounds))
        message = numpy_shortened(update, bounds, 0.0 if published else 1e-8)
        messages.append(message if published else numpy_mlp.clipped(message, CLIP))
        pair = (update, last) if similarity == "updates" else (end, w)
        alike.append(np.mean([cosine(*(flat(tree, layer) for tree in pair)) for layer in LAYERS]))
        ends.append(end)
    assert 0 < sum(bites) < len(bites)
    alike = np.maximum(alike, 0) if published else np.ones(4)
    assert (similarity == "updates") == (0 in alike)
    done = rounds.run(world, begun)
    for share, message in zip(alike / alike.sum(), messages, strict=True):
        w = {name: value + share * message[name] for name, value in w.items()}
    numpy_mlp.assert_close(done.params, w)
    numpy_mlp.assert_close(done.states, ends)


def test_thresholds_follow_the_spread_of_each_layer():
    one = torch.ones(1, dtype=torch.float64)
    # Means 2 and 2, deviations 1 and 0.
    update = {"a.weight": one, "a.bias": 3 * one, "b.weight": 2 * one, "b.bias": 2 * one}
    assert module.thresholds(update, 0.5).tolist() == pytest.approx([0.75, 0.5])
    # Mean 0: next to no bound, the reason for its departure.
    opposed = {"a.weight": one, "a.bias": -one, "b.weight": 0 * one}
    assert module.thresholds(opposed, 0.5).tolist() == pytest.approx([5e7, 0.5])


def test_mean_cosine_is_by_layer_and_alike_where_there_is_nothing_to_compare_with():
    names = "a.weight", "b.weight", "c.weight"
    for ours, theirs, alike in (
        ([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], [[4.0, 3.0], [0.0, 0.0], [1.0, 1.0]], 0.96 + 1 + 0),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[-2.0, 0.0], [5.0, 5.0], [0.0, 0.0]], -1 + 1 + 1),
    ):
        one, other = (dict(zip(names, torch.tensor(t), strict=True)) for t in (ours, theirs))
        assert module.mean_cosine(one, other).item() == pytest.approx(alike / 3)


def test_a_layer_that_says_nothing_has_no_shares():
    assert not module.layer_shares({"a.weight": torch.zeros(3)})["a.weight"].any()


def test_the_printed_sum_is_the_default():
    assert registry.check_hyperparameters("dp_fedsim", {})["fisher_norm"] == "sum"


@pytest.mark.parametrize("agc", [True, False])
@pytest.mark.parametrize("msa", [True, False])
def test_the_published_version_sends_bounds_and_similarities_as_its_switches_say(agc, msa):
    world = simulation("dp_fedsim", {"agc": agc, "msa": msa}, departures=PAPER)
    for uploads, _, _ in spied(world)[1]:
        assert set(uploads.update) == set(world.network.shapes)
        assert set(uploads.extras) == {"bounds", "similarity"}
        bounds, similarity = uploads.extras["bounds"], uploads.extras["similarity"]
        assert bounds.shape == (4, 2)
        assert bool((bounds > 0.5).all()) if agc else bool((bounds == 0.5).all())
        assert bool((similarity < 1).all()) if msa else bool((similarity == 1).all())


def test_the_certified_version_has_no_private_extras_and_knows_no_similarity():
    done, seen, _ = spied(simulation("dp_fedsim", {"msa": True}))
    assert all(uploads.extras == {} for uploads, _, _ in seen)
    assert_equal(done.params, params_after(simulation("dp_fedsim", {"msa": False})), 0)


def test_updates_are_compared_with_the_last_release_and_nobody_is_preferred_before_it():
    world = simulation("dp_fedsim", {"similarity": "updates"}, departures=PAPER)
    done, seen, models = spied(world)
    sent = [uploads.extras["similarity"] for uploads, _, _ in seen]
    assert sent[0].tolist() == [1, 1, 1, 1]
    assert all(len(set(similarity.tolist())) == 4 for similarity in sent[1:])
    for name, value in done.server.items():
        torch.testing.assert_close(value, models[-1][0][name] - models[-2][0][name])
