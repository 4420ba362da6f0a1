"""FedGLP-ADP: whole runs against an independent NumPy program, its masks, its clip weights, and
what leaves the client."""

import dataclasses

import numpy as np
import pytest
import torch

import counter_rng_by_hand
import numpy_mlp
from pflpipe import cells, seeds, trees
from pflpipe.learning import counter_rng
from pflpipe.methods import fedglp_adp as module
from pflpipe.methods import registry
from pflpipe.methods.base import Method, Upload
from pflpipe.privacy import cohorts
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, plan, quiet, simulation, spied, with_states

BETA, GAMMA, LAMBDA_1, LAMBDA_2, LR, CLIP, SIGMA = 0.5, 0.7, 0.3, 0.4, 0.3, 0.15, 0.6
PAPER = registry.departures("fedglp_adp", "paper", official_code=False)
GLP_ALONE = registry.departures("fedglp_adp", "paper", False, hyperparameters={"acndp": False})
PROFILES = pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
LINEAR = cells.Model("mlp", ())
PLAIN = {"beta": 0.0, "gamma": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}


def numpy_run(w_global, clients, rounds, published, trend, acndp, by_layer):
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
    states = [{"w": w_global, "m": nothing, "tw": shares, "rho": None, "t": 0} for _ in clients]
    server = {"tw": shares, "rho": None}

    def length(tree, names):
        return np.sqrt(sum((tree[k] ** 2).sum() for k in names))

    def moved(tw, old, new):
        b = np.zeros(2) if old is None else np.sign(new - old)
        h = np.log(tw / (1 - tw)) + GAMMA * b
        raised = 1 / (1 + np.exp(-h))
        return raised / raised.sum()

    for turn in range(rounds):
        total = {k: np.zeros_like(v) for k, v in w_global.items()}
        count = {k: np.zeros_like(v) for k, v in w_global.items()}
        for (x, y, steps), state in zip(clients, states, strict=True):
            m = state["m"]
            start = {k: np.where(m[k], state["w"][k], w_global[k]) for k in m}
            w = {k: v.copy() for k, v in start.items()}
            rest = {k: ~v for k, v in m.items()}
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
                    copy[k] = copy[k] + share * counter_rng_by_hand.normal(
                        key, counter_rng.OWN + place, copy[k].shape
                    )
            for k in sent:
                total[k] += sent[k]
                count[k] += rest[k]
            state["t"] += 1
            grown = {}
            for names in layers if by_layer else [tuple(m)]:
                flat = np.concatenate([np.abs(copy[k]).ravel() for k in names])
                mask = np.concatenate([m[k].ravel() for k in names])
                more = round(state["t"] * BETA * mask.size / rounds) - mask.sum()
                flat[mask] = -1
                mask[np.argsort(-flat)[:more]] = True
                ends = np.cumsum([m[k].size for k in names])
                parts = np.split(mask, ends[:-1])
                grown |= {k: part.reshape(m[k].shape) for k, part in zip(names, parts, strict=True)}
            if published:
                if trend == "rms":
                    norms = norms / np.sqrt([sum(rest[k].sum() for k in names) for names in layers])
                state |= {"tw": moved(state["tw"], state["rho"], norms), "rho": norms}
            state |= {"w": w, "m": grown}
        divisors = {k: np.maximum(count[k], 1) if published else len(clients) for k in count}
        change = {k: total[k] / divisors[k] for k in total}
        w_global = {k: w_global[k] + change[k] for k in total}
        norms = np.array([length(change, names) for names in layers])
        server = {"tw": moved(server["tw"], server["rho"], norms), "rho": norms}
    return w_global, states, server["tw"]


def silent(world):
    """The same simulation, whose releases have no noise; what devices draw for themselves stays."""

    def release(generator, uploads, present, plan, scale, departures):
        quiet = dataclasses.replace(plan, noise_multiplier=0.0)
        return world.release(generator, uploads, present, quiet, scale, departures)

    return dataclasses.replace(world, release=release)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("departures", "trend", "acndp", "by_layer"),
    [
        *(((), "raw", True, True), ((), "raw", False, True), ((), "raw", True, False)),
        *((PAPER, "raw", True, True), (PAPER, "raw", True, False), (PAPER, "rms", True, True)),
        (GLP_ALONE, "raw", False, True),
    ],
)
def test_golden_run(departures, trend, acndp, by_layer):
    values = {"beta": BETA, "dynamic": False, "gamma": GAMMA, "trend": trend, "acndp": acndp}
    values |= {"lambda_1": LAMBDA_1, "lambda_2": LAMBDA_2, "by_layer": by_layer}
    rule = plan(noise_multiplier=SIGMA, clip_norm=CLIP, rounds=4)
    settings = {"plan": rule, "departures": departures, "backend": "vmap", "lr": LR}
    world = silent(simulation("fedglp_adp", values, **settings))
    begun = rounds.start(world)
    clients = []
    for client, rows in enumerate(world.split.train):
        cuts = [world.work(client, round)["train"] for round in range(4)]
        pairs = [zip(cut.index, cut.count, strict=True) for cut in cuts]
        minibatches = [[index[:n] for index, n in pair] for pair in pairs]
        steps = list(zip(minibatches, (int(cut.keys[0]) for cut in cuts), strict=True))
        clients.append((world.train.x[rows].numpy(), world.train.y[rows].numpy(), steps))
    w_global = {name: value.numpy() for name, value in begun.params.items()}
    program = (bool(departures), trend, acndp, by_layer)
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
    """Epsilon 2, 4, 6, 8, 16 at T = 20, delta = 0.1; and CIFAR-10's fixed multiplier at T = 40."""
    assert module.personal_fraction(0.3, 0.2, sigma, 1.964) == pytest.approx(expected, abs=6e-4)
    assert module.personal_fraction(0.3, 0.2, 0.3, 2.777) == pytest.approx(0.183, abs=6e-4)


def test_the_threshold_is_at_most_one_whatever_the_noise():
    assert module.personal_fraction(0.3, 0.2, 1e9, 1.964) == 1
    assert module.personal_fraction(0.0, 0.2, 1e9, 1.964) == 0


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
    done = rounds.run(world, rounds.start(world))
    streams = [seeds.release_rng(world.key, "sample", round) for round in range(6)]
    drawn = sum(cohorts.sample_clients(stream, rule).astype(int) for stream in streams)
    assert len(set(drawn)) > 1
    masks = [done.states[f"mask.head.{part}"] for part in ("weight", "bias")]
    held = sum(mask.reshape(4, -1).sum(1) for mask in masks)
    assert held.tolist() == [round(count * 15 / 6) for count in drawn]


def test_in_the_paper_new_personal_coordinates_are_those_of_the_largest_noised_entries():
    rule, values = plan(noise_multiplier=20.0), {"dynamic": False, "beta": 0.8}
    _, seen, models = spied(simulation("fedglp_adp", values, plan=rule, departures=PAPER))
    for (uploads, _, released), (_, before), (_, state) in zip(
        seen, models[:-1], models[1:], strict=True
    ):
        for names in trees.layers(released.messages).values():
            for client in range(4):

                def rows(tree, prefix="", names=names, client=client):
                    return torch.cat([tree[prefix + name][client].reshape(-1) for name in names])

                old, new = (rows(tree, "mask.") for tree in (before, state))
                sent = rows(released.messages).abs()
                assert torch.equal(rows(uploads.extras, "mask."), ~old), "of this round"
                assert sent[new & ~old].min() > sent[~new].max()
                assert not sent[old].any()


def masks_of(world):
    """The masks of all clients after the run."""
    done = rounds.run(world, rounds.start(world))
    return {name: value for name, value in done.states.items() if name.startswith("mask.")}


def one_round(noise, **changes):
    settings, rule = {"dynamic": False, "acndp": False}, plan(noise_multiplier=noise, rounds=1)
    return simulation("fedglp_adp", settings, plan=rule, **changes)


def test_the_certified_masks_follow_the_devices_own_noise_and_not_that_of_the_release():
    world = one_round(1e3, backend="vmap")
    masks = masks_of(world)
    quiet = masks_of(one_round(0.0, backend="vmap"))
    assert not all(torch.equal(masks[name], quiet[name]) for name in masks)
    other_release = dataclasses.replace(world, key="another run")
    assert_equal(masks_of(other_release), masks, 0)
    assert_equal(masks_of(silent(world)), masks, 0)
    other_seed = dataclasses.replace(world, seed=1)
    assert not all(torch.equal(masks_of(other_seed)[name], masks[name]) for name in masks)
    assert not torch.equal(masks["mask.fc1.weight"][0], masks["mask.fc1.weight"][1])


def test_what_a_device_draws_for_itself_changes_no_message():
    """The masks of a round are chosen after its uploads, which are those of a run whose devices
    draw nothing."""
    loud, quiet = (spied(one_round(noise))[1][0][0].update for noise in (1e3, 0.0))
    assert_equal(loud, quiet, 0)


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


def numpy_weights(weights, old, new, gamma):
    """Algorithm 1 in log-odds, without torch."""
    inside = np.clip(weights, 1e-4, 1 - 1e-4)
    odds = np.log(inside / (1 - inside)) + gamma * (np.sign(new - old) * (old >= 0))
    raised = 1 / (1 + np.exp(-odds))
    return raised / raised.sum()


@pytest.mark.parametrize(
    "weights",
    [[0.2, 0.5, 0.3], [1e-6, 0.999, 1e-3 - 1e-6], [1.0, 0.0, 0.0]],
    ids=["inside", "small", "degenerate"],
)
def test_clip_weights_follow_the_sign_of_the_norms_change_in_log_odds(weights):
    old, new = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 0.1])
    clip = {
        "clip_weights": torch.tensor(weights, dtype=torch.float64),
        "norms": torch.from_numpy(old),
    }
    found = module.next_weights(clip, torch.from_numpy(new), 0.4)
    np.testing.assert_allclose(
        found["clip_weights"].numpy(), numpy_weights(np.array(weights), old, new, 0.4), rtol=1e-12
    )
    assert found["norms"].tolist() == new.tolist()
    assert found["clip_weights"].sum().item() == pytest.approx(1, rel=1e-14)
    same = module.next_weights(clip, torch.from_numpy(new), 0.0)
    assert same["clip_weights"].tolist() == weights, "gamma = 0 keeps them to the bit"


@pytest.mark.parametrize("old", [[-1.0, -1.0], [float("nan"), float("nan")]])
def test_the_first_norms_change_no_clip_weight(old):
    clip = {"clip_weights": torch.tensor([1e-6, 1 - 1e-6]), "norms": torch.tensor(old)}
    assert torch.equal(
        module.next_weights(clip, torch.tensor([5.0, 0.1]), 0.4)["clip_weights"],
        clip["clip_weights"],
    )
    later = {"clip_weights": torch.tensor([0.3, 0.7]), "norms": torch.tensor([1.0, 1.0])}
    broken = module.next_weights(later, torch.tensor([float("nan"), float("nan")]), 0.4)[
        "clip_weights"
    ]
    torch.testing.assert_close(broken, later["clip_weights"])


@PROFILES
def test_the_layers_bounds_always_add_up_to_the_joint_bound(departures):
    world = simulation(
        "fedglp_adp", {"gamma": 1.6}, plan=plan(rounds=6, clip_norm=CLIP), departures=departures
    )
    done, seen, _ = spied(world)
    shares = []
    for uploads, scale, released in seen:
        if departures:
            assert not scale
            shares.append(uploads.extras["clip_weights"])
        else:
            assert scale.keys() == uploads.update.keys()
            assert scale["fc1.weight"] == scale["fc1.bias"]
            shares.append(
                torch.stack([scale[f"{layer}.weight"] ** 2 / 2 for layer in ("fc1", "head")])
            )
            assert released.norms.max() <= CLIP * (1 + 1e-12), (
                "the joint clip has nothing left to shorten"
            )
    for share in shares:
        torch.testing.assert_close(
            share.sum(-1), torch.ones_like(share.sum(-1)), rtol=1e-12, atol=0
        )
    assert shares[0].reshape(-1, 2)[0].tolist() == pytest.approx([24 / 39, 15 / 39])
    assert not torch.equal(shares[0], shares[-1])
    assert done.diverged_round is None


def test_in_the_paper_a_client_without_examples_keeps_its_mask_and_clip_weights():
    world = simulation(
        "fedglp_adp", {"dynamic": False}, plan=plan(3), sizes=(5, 0, 3), departures=PAPER
    )
    begun = rounds.start(world)
    before = begun.states
    done = rounds.run(world, begun)
    assert done.diverged_round is None
    for name in ("mask.head.weight", "clip_weights", "norms", "count"):
        assert torch.equal(done.states[name][1], before[name][1])
        assert not torch.equal(done.states[name][0], before[name][0])


def test_a_layer_without_shared_coordinates_is_no_division_by_zero():
    world = simulation("fedglp_adp", {"trend": "rms"}, plan=plan(rounds=1), departures=PAPER)
    begun = rounds.start(world)
    with_states(
        begun, lambda name, value: torch.ones_like(value) if name.startswith("mask.head") else value
    )
    done = rounds.run(world, begun)
    assert done.diverged_round is None
    assert done.states["norms"][:, 1].tolist() == [0] * 4


@PROFILES
def test_nothing_personal_is_uploaded(departures):
    world = simulation(
        "fedglp_adp", {"dynamic": False, "beta": 0.6}, backend="vmap", departures=departures
    )
    _, seen, models = spied(world)
    names = set(world.network.shapes)
    for round, ((uploads, _, _), (_, states)) in enumerate(zip(seen, models[:-1], strict=True)):
        assert set(uploads.update) == names
        assert set(uploads.extras) == (
            {f"mask.{name}" for name in names} | {"clip_weights"} if departures else set()
        )
        for name in names if round else ():
            personal = states[f"mask.{name}"]
            assert personal.any()
            assert not uploads.update[name][personal].any()
    assert any((uploads.update["fc1.weight"] != 0).any() for uploads, _, _ in seen)


def by_layers(params, task):
    """The layers' shares d_l / d of the parameters, for every tensor and as a vector."""
    layers = trees.layers(params)
    shares = {
        layer: sum(params[name].numel() for name in names) / trees.size(params)
        for layer, names in layers.items()
    }
    return {name: shares[layer] for layer, names in layers.items() for name in names}, torch.tensor(
        list(shares.values()), dtype=torch.float64
    )


def clipped_by_layer(published):
    """DP-FedAvg whose layers are clipped to C sqrt(d_l / d) each."""

    def local_update(params, server, state, batches, task):
        trained, loss = task.minimize(params, batches.train, task.loss)
        update, (share, vector) = trees.sub(trained, params), by_layers(params, task)
        if published:
            return Upload(update, {"clip_weights": vector}, loss), state
        norms = {
            layer: trees.norm({k: update[k] for k in names})
            for layer, names in trees.layers(update).items()
        }
        factor = {k: task.clip_norm * share[k] ** 0.5 / norms[k.rpartition(".")[0]] for k in update}
        return Upload({k: update[k] * factor[k].clamp(max=1) for k in update}, {}, loss), state

    def scale(params, server, task):
        share = by_layers(params, task)[0]
        return (
            {}
            if published
            else {k: value.new_tensor((2 * share[k]) ** 0.5) for k, value in params.items()}
        )

    return Method(local_update, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@PROFILES
def test_without_personal_part_pulls_and_step_it_is_dp_fedavg_clipped_by_layer(
    optimizer, departures
):
    settings = {"backend": "vmap", "optimizer": optimizer, "lr": 0.05, "plan": plan(clip_norm=CLIP)}
    departed = ("client_clip_weights",) if departures else ()
    reference = simulation("dp_fedavg", departures=departed, **settings)
    reference = dataclasses.replace(reference, method=clipped_by_layer(bool(departures)))
    found = params_after(simulation("fedglp_adp", PLAIN, departures=departures, **settings))
    assert_equal(found, params_after(reference))


def test_without_adaptive_clipping_the_papers_version_has_the_clip_and_noise_of_dp_fedavg():
    """One bound over all layers, one noise on every coordinate in the first round; no client
    chooses how its bound is divided, and the departure of that name is none."""
    assert set(PAPER) - set(GLP_ALONE) == {"client_clip_weights"}
    settings = {"plan": plan(rounds=1, noise_multiplier=1e3), "lr": 3.0}
    world = simulation("fedglp_adp", {"acndp": False}, departures=GLP_ALONE, **settings)
    done, seen, _ = spied(world)
    uploads, _, released = seen[0]
    assert set(uploads.extras) == {f"mask.{name}" for name in uploads.update}
    assert (released.norms > world.plan.clip_norm).any()
    noise = torch.cat([value.reshape(-1) for value in released.messages.values()])
    claimed = world.plan.clip_norm * 1e3 / 2  # sqrt(q M) = 2 clients share the noise of the sum
    assert abs(noise.std().item() / claimed - 1) < 4 / np.sqrt(2 * noise.numel())
    plain = {**PLAIN, "acndp": False}
    quiet = {"plan": plan(noise_multiplier=0.0, clip_norm=CLIP), "lr": 0.05}
    assert_equal(
        params_after(simulation("fedglp_adp", plain, departures=GLP_ALONE, **quiet)),
        params_after(simulation("dp_fedavg", **quiet)),
    )
    assert "clip_weights" not in done.states


@pytest.mark.slow
def test_both_pulls_have_a_gradient():
    """The shared coordinates' change is pulled towards the clip bound, the personal ones back to
    their start."""

    def change(lambda_1, lambda_2, clip_norm):
        settings = {
            "beta": 0.5,
            "dynamic": False,
            "lambda_1": lambda_1,
            "lambda_2": lambda_2,
            "acndp": False,
        }
        world = quiet("fedglp_adp", settings, clip_norm=clip_norm, rounds=2)
        begun = rounds.start(world)
        rounds.one_round(world, begun)
        old = begun.states
        rounds.one_round(world, begun)
        gaps = {
            k: (begun.states[f"local.{k}"] - old[f"local.{k}"]) * old[f"mask.{k}"]
            for k in begun.params
        }
        return trees.norm(gaps).item(), begun.rows[0]["update_norm_mean"]

    free = change(0.0, 0.0, 0.01)
    assert change(0.0, 2.0, 0.01)[1] < 0.7 * free[1]
    assert change(0.0, 2.0, 100.0)[1] > 1.3 * free[1]
    assert change(2.0, 0.0, 0.01)[0] < 0.7 * free[0]
