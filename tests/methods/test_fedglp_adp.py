"""FedGLP-ADP: whole runs against an independent NumPy program, its masks, its clip weights, and
what leaves the client."""

import dataclasses

import numpy as np
import pytest
import torch

import counter_rng_by_hand
import numpy_mlp
from pflpipe import seeds, trees
from pflpipe.learning import counter_rng
from pflpipe.methods import fedglp_adp as module
from pflpipe.methods import registry
from pflpipe.privacy import cohorts
from pflpipe.simulation import rounds
from simulations import assert_equal, finished, plan, simulation, spied, with_states

BETA, GAMMA, LAMBDA_1, LAMBDA_2, LR, CLIP, SIGMA = 0.5, 0.7, 0.3, 0.4, 0.3, 0.15, 0.6
PAPER = registry.departures("fedglp_adp", "paper", official_code=False)
GLP_ALONE = registry.departures("fedglp_adp", "paper", False, hyperparameters={"acndp": False})
PROFILES = pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])


def moved(weights, old, new, gamma):
    """Clip weights after Algorithm 1 in log-odds, without torch; the first norms are negative."""
    inside = np.clip(weights, 1e-4, 1 - 1e-4)
    odds = np.log(inside / (1 - inside)) + gamma * (np.sign(new - old) * (old >= 0))
    raised = 1 / (1 + np.exp(-odds))
    return raised / raised.sum()


def numpy_run(w_global, clients, rounds, published, acndp, by_layer):
    """All rounds of FedGLP-ADP on a network with one hidden layer of ReLUs, written from the paper
    without torch. Releases have no noise; the copies by which devices choose have theirs, unless
    ``published``.

    Args:
        w_global: {"fc1.weight": [H, D], "fc1.bias": [H], "head.weight": [K, H], "head.bias": [K]}.
        clients: for each client x [n, D], y [n], and for each round the rows of its steps and the
            key of its own draws.

    Returns the global weights and for each client its local weights, mask and clip weights (in the
    published version).
    """
    layers = (("fc1.weight", "fc1.bias"), ("head.weight", "head.bias"))
    sizes = [sum(w_global[k].size for k in names) for names in layers]
    shares = np.array(sizes) / sum(sizes)
    nothing = {k: np.zeros(v.shape, bool) for k, v in w_global.items()}
    states = [{"w": w_global, "m": nothing, "tw": shares, "rho": -shares} for _ in clients]
    server = {"tw": shares, "rho": -shares}

    def length(tree, names):
        return np.sqrt(sum((tree[k] ** 2).sum() for k in names))

    for turn in range(rounds):
        total, count = dict.fromkeys(w_global, 0.0), dict.fromkeys(w_global, 0.0)
        for (x, y, steps), state in zip(clients, states, strict=True):
            m = state["m"]
            start = {k: np.where(m[k], state["w"][k], w_global[k]) for k in m}
            w, rest = start, {k: ~v for k, v in m.items()}
            minibatches, key = steps[turn]
            for rows in minibatches:
                for side, weight in ((m, LAMBDA_1), (rest, LAMBDA_2)):
                    g = numpy_mlp.gradient(w, x[rows], y[rows])
                    gap = {k: (w[k] - start[k]) * side[k] for k in w}
                    far = length(gap, gap)
                    sign = 1.0 if side is m else np.sign(far - CLIP)
                    pull = {k: weight / 2 * sign * gap[k] / far if far else 0.0 for k in w}
                    w = {k: w[k] - LR * side[k] * (g[k] + pull[k]) for k in w}
            update = {k: (w[k] - start[k]) * rest[k] for k in w}
            norms = np.array([length(update, names) for names in layers])
            bounds = CLIP * np.sqrt(state["tw"] if published else server["tw"])
            if not acndp:
                bounds = norms * min(1, CLIP / length(update, update))
            sent = {
                k: update[k] * min(1, bound / norm)
                for names, bound, norm in zip(layers, bounds, norms, strict=True)
                for k in names
            }
            copy = dict(sent)
            if not published:
                for place, k in enumerate(copy):
                    share = SIGMA * CLIP / np.sqrt(len(clients))
                    if acndp:
                        share *= np.sqrt(2 * server["tw"][int(k in layers[1])])
                    drawn = counter_rng_by_hand.normal(key, counter_rng.OWN + place, copy[k].shape)
                    copy[k] = copy[k] + share * drawn
            total = {k: total[k] + sent[k] for k in sent}
            count = {k: count[k] + rest[k] for k in sent}
            grown = {}
            for names in layers if by_layer else [tuple(m)]:
                flat = np.concatenate([np.abs(copy[k]).ravel() for k in names])
                mask = np.concatenate([m[k].ravel() for k in names])
                more = round((turn + 1) * BETA * mask.size / rounds) - mask.sum()
                flat[mask] = -1
                mask[np.argsort(-flat)[:more]] = True
                ends = np.cumsum([m[k].size for k in names])
                parts = np.split(mask, ends[:-1])
                grown |= {k: part.reshape(m[k].shape) for k, part in zip(names, parts, strict=True)}
            if published:
                state |= {"tw": moved(state["tw"], state["rho"], norms, GAMMA), "rho": norms}
            state |= {"w": w, "m": grown}
        divisors = {k: np.maximum(count[k], 1) if published else len(clients) for k in count}
        change = {k: total[k] / divisors[k] for k in total}
        w_global = {k: w_global[k] + change[k] for k in total}
        norms = np.array([length(change, names) for names in layers])
        server = {"tw": moved(server["tw"], server["rho"], norms, GAMMA), "rho": norms}
    return w_global, states, server["tw"]


def silent(world):
    """The same simulation, whose releases have no noise; what devices draw for themselves stays."""

    def release(generator, uploads, present, plan, scale, departures):
        quiet = dataclasses.replace(plan, noise_multiplier=0.0)
        return world.release(generator, uploads, present, quiet, scale, departures)

    return dataclasses.replace(world, release=release)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("departures", "acndp", "by_layer"),
    [
        *(((), True, True), ((), False, True), ((), True, False)),
        *((PAPER, True, True), (PAPER, True, False), (GLP_ALONE, False, True)),
    ],
)
def test_golden_run(departures, acndp, by_layer):
    values = {"beta": BETA, "dynamic": False, "gamma": GAMMA, "acndp": acndp}
    values |= {"lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2, "by_layer": by_layer}
    rule = plan(noise_multiplier=SIGMA, clip_norm=CLIP, rounds=4)
    settings = {"plan": rule, "departures": departures, "backend": "vmap", "lr": LR}
    world = silent(simulation("fedglp_adp", values, **settings))
    begun, w_global = numpy_mlp.start(world)
    clients = []
    for client in range(4):
        cuts = [world.work(client, round)["train"] for round in range(4)]
        pairs = [zip(cut.index, cut.count, strict=True) for cut in cuts]
        minibatches = [[index[:n] for index, n in pair] for pair in pairs]
        steps = list(zip(minibatches, (int(cut.keys[0]) for cut in cuts), strict=True))
        clients.append((*numpy_mlp.rows(world, client), steps))
    program = (bool(departures), acndp, by_layer)
    expected, states, public = numpy_run(w_global, clients, 4, *program)
    done = rounds.run(world, begun)
    numpy_mlp.assert_close(done.params, expected)
    kept = dict(done.states)
    numpy_mlp.assert_close(trees.within("mask.", kept), [state["m"] for state in states])
    numpy_mlp.assert_close(trees.within("local.", kept), [state["w"] for state in states])
    if not acndp:
        assert not done.server
        assert "clip_weights" not in done.states
        return
    if departures:
        found, weights = done.states["clip_weights"], np.stack([state["tw"] for state in states])
        assert not done.server
    else:
        found, weights = done.server["clip_weights"], public
        assert "clip_weights" not in done.states
    np.testing.assert_allclose(found.numpy(), weights, rtol=1e-9)
    assert np.ptp(weights - np.array([24, 15]) / 39) > 0.01


@pytest.mark.parametrize(
    ("sigma", "expected"),
    [(3.969, 0.448), (2.547, 0.337), (1.964, 0.300), (1.635, 0.281), (1.062, 0.250)],
)
def test_the_threshold_follows_the_noise_as_the_paper_says(sigma, expected):
    """Epsilon 2, 4, 6, 8, 16 at T = 20, delta = 0.1; and CIFAR-10's fixed multiplier at T = 40. At
    most it is 1, and of 0 it is 0."""
    assert [module.personal_fraction(tau, 0.2, 1e9, 1.964) for tau in (0.3, 0.0)] == [1, 0]
    assert module.personal_fraction(0.3, 0.2, sigma, 1.964) == pytest.approx(expected, abs=6e-4)
    assert module.personal_fraction(0.3, 0.2, 0.3, 2.777) == pytest.approx(0.183, abs=6e-4)


@pytest.mark.slow
@PROFILES
@pytest.mark.parametrize(("fraction", "rounds"), [(0.3, 7), (0.5, 3), (1.0, 2)])
def test_after_all_rounds_exactly_beta_of_each_layer_is_personal(departures, fraction, rounds):
    """Masks only grow, by counts that follow from the round alone: round(t beta d_l / T) after t
    rounds."""
    values = {"beta": fraction, "dynamic": False}
    settings = {"plan": plan(rounds=rounds), "backend": "vmap", "dtype": torch.float32}
    world = simulation("fedglp_adp", values, departures=departures, **settings)
    states = [own for _, own in spied(world)[2]]
    before = {name: value for name, value in states[0].items() if name.startswith("mask.")}
    for done, state in enumerate(states[1:], start=1):
        for layer, size in (("fc1", 24), ("head", 15)):
            masks = [state[f"mask.{layer}.{part}"] for part in ("weight", "bias")]
            held = sum(mask.reshape(4, -1).sum(1) for mask in masks)
            exact = fraction * size if done == rounds else done * fraction * size / rounds
            assert held.tolist() == [round(exact)] * 4
        assert all((state[name] | ~before[name]).all() for name in before)
        before = {name: state[name] for name in before}


def test_a_client_that_is_drawn_less_often_keeps_fewer_personal_coordinates():
    rule = plan(sample_rate=0.5, rounds=6)
    world = simulation("fedglp_adp", {"dynamic": False, "beta": 1.0}, plan=rule)
    done = finished(world)
    streams = [seeds.release_rng(world.key, "sample", round) for round in range(6)]
    drawn = sum(cohorts.sample_clients(stream, rule).astype(int) for stream in streams)
    assert len(set(drawn)) > 1
    masks = [done.states[f"mask.head.{part}"] for part in ("weight", "bias")]
    held = sum(mask.reshape(4, -1).sum(1) for mask in masks)
    assert held.tolist() == [round(count * 15 / 6) for count in drawn]


def test_in_the_paper_new_personal_coordinates_are_those_of_the_largest_noised_entries():
    rule, values = plan(noise_multiplier=20.0), {"dynamic": False, "beta": 0.8}
    _, seen, models = spied(simulation("fedglp_adp", values, plan=rule, departures=PAPER))
    states = [own for _, own in models]

    def rows(tree, names, prefix=""):
        return torch.cat([tree[prefix + name].reshape(4, -1) for name in names], 1)

    for (uploads, _, released), before, state in zip(seen, states[:-1], states[1:], strict=True):
        masks = {f"mask.{name}" for name in uploads.update}
        assert uploads.extras.keys() == masks | {"clip_weights"}
        for names in trees.layers(released.messages).values():
            olds, news = (rows(tree, names, "mask.") for tree in (before, state))
            assert torch.equal(rows(uploads.extras, names, "mask."), ~olds), "of this round"
            assert not rows(uploads.update, names)[olds].any(), "nothing personal is sent"
            for sent, old, new in zip(
                rows(released.messages, names).abs(), olds, news, strict=True
            ):
                assert sent[new & ~old].min() > sent[~new].max()
                assert not sent[old].any()


def test_the_certified_masks_follow_the_devices_own_noise_and_not_that_of_the_release():
    """That of their seed, whatever the run's key is."""

    def masks_of(world):
        return trees.within("mask.", finished(world).states)

    rule, values = plan(noise_multiplier=1e3, rounds=1), {"dynamic": False, "acndp": False}
    world = simulation("fedglp_adp", values, plan=rule, backend="vmap")
    masks = masks_of(world)
    assert_equal(masks_of(dataclasses.replace(world, key="another run")), masks, 0)
    assert_equal(masks_of(silent(world)), masks, 0)
    other = masks_of(dataclasses.replace(world, seed=1))
    assert not all(torch.equal(other[name], masks[name]) for name in masks)


def test_equal_entries_and_numbers_that_are_none_still_give_exactly_the_promised_count():
    masks, updates = [[0, 1], [0, 0]], [[1.0, 0.0], [torch.inf, 1.0]]
    mask = {"a.weight": torch.tensor(masks).bool(), "a.bias": torch.tensor([False, False])}
    update = {"a.weight": torch.tensor(updates), "a.bias": torch.tensor([torch.nan, 1.0])}
    sizes = []
    for progress in (0.0, 0.2, 0.5, 0.7, 0.9, 1.0):
        done = torch.tensor(progress, dtype=torch.float64)
        grown = module.grow(mask, update, done, 1.0, by_layer=True)
        assert grown["a.weight"][0, 1]
        sizes.append(sum(int(value.sum()) for value in grown.values()))
        if sizes[-1] == 3:  # the personal one, the infinite one, and the first of those that tie
            assert grown["a.weight"].tolist() == [[True, True], [True, False]]
        if sizes[-1] == 5:
            assert grown["a.bias"].tolist() == [False, True]
    assert sizes == [1, 1, 3, 4, 5, 6]


def test_clip_weights_have_the_same_bits_alone_and_at_every_place_of_a_group():
    generator = torch.Generator().manual_seed(0)
    weights, old, new = torch.rand(3, 500, 3, generator=generator, dtype=torch.float64)

    def moved(weights, old, new):
        return module.next_weights({"clip_weights": weights, "norms": old}, new, 0.7)

    together = torch.func.vmap(moved)(weights, old, new)["clip_weights"]
    for place, given in enumerate(zip(weights, old, new, strict=True)):
        assert torch.equal(moved(*given)["clip_weights"], together[place])


@pytest.mark.parametrize(
    "weights",
    [[0.2, 0.5, 0.3], [1e-6, 0.999, 1e-3 - 1e-6], [1.0, 0.0, 0.0]],
    ids=["inside", "small", "degenerate"],
)
def test_clip_weights_follow_the_sign_of_the_norms_change_in_log_odds(weights):
    weights, old, new = (torch.tensor(row).double() for row in (weights, [1, 2, 3], [1.5, 2, 0.1]))
    clip = {"clip_weights": weights, "norms": old}
    found = module.next_weights(clip, new, 0.4)
    expected = moved(weights.numpy(), old.numpy(), new.numpy(), 0.4)
    np.testing.assert_allclose(found["clip_weights"], expected, rtol=1e-12)
    assert torch.equal(found["norms"], new)
    assert found["clip_weights"].sum().item() == pytest.approx(1, rel=1e-14)
    same = module.next_weights(clip, new, 0.0)["clip_weights"]
    assert torch.equal(same, weights), "gamma = 0 keeps them to the bit"


@pytest.mark.parametrize("old", [[-1.0, -1.0], [float("nan"), float("nan")]])
def test_the_first_norms_change_no_clip_weight(old):
    def after(weights, norms, new):
        clip = {"clip_weights": weights, "norms": torch.tensor(norms)}
        return module.next_weights(clip, torch.tensor(new), 0.4)["clip_weights"]

    small, plain = torch.tensor([1e-6, 1 - 1e-6]), torch.tensor([0.3, 0.7])
    assert torch.equal(after(small, old, [5.0, 0.1]), small)
    torch.testing.assert_close(after(plain, [1.0, 1.0], [torch.nan, torch.nan]), plain)


def test_in_the_paper_a_client_without_examples_keeps_its_mask_and_clip_weights():
    settings = {"plan": plan(3), "sizes": (5, 0, 3), "departures": PAPER}
    world = simulation("fedglp_adp", {"dynamic": False}, **settings)
    before, done = rounds.start(world).states, rounds.run(world, rounds.start(world))
    assert done.diverged_round is None
    for name in ("mask.head.weight", "clip_weights", "norms", "count"):
        assert torch.equal(done.states[name][1], before[name][1])
        assert not torch.equal(done.states[name][0], before[name][0])


def test_a_layer_without_shared_coordinates_is_no_division_by_zero():
    world = simulation("fedglp_adp", {}, plan=plan(rounds=1), departures=PAPER)

    def personal(name, value):
        return torch.ones_like(value) if name.startswith("mask.head") else value

    done = rounds.run(world, with_states(rounds.start(world), personal))
    assert done.diverged_round is None
    assert done.states["norms"][:, 1].tolist() == [0] * 4


def test_without_adaptive_clipping_the_papers_version_has_the_clip_and_noise_of_dp_fedavg():
    """One bound over all layers, one noise on every coordinate in the first round; no client
    chooses how its bound is divided, and the departure of that name is none."""
    settings = {"plan": plan(rounds=1, noise_multiplier=1e3), "lr": 3.0}
    world = simulation("fedglp_adp", {"acndp": False}, departures=GLP_ALONE, **settings)
    _, ((uploads, _, released),), _ = spied(world)
    assert set(uploads.extras) == {f"mask.{name}" for name in uploads.update}
    noise = torch.cat([value.reshape(-1) for value in released.messages.values()])
    claimed = world.plan.clip_norm * 1e3 / 2  # sqrt(q M) = 2 clients share the noise of the sum
    assert abs(noise.std().item() / claimed - 1) < 4 / np.sqrt(2 * noise.numel())
