"""Methods whose clients keep a model or a head of their own beside the shared one (Ditto, APFL,
MR-MTL, PPSGD) or make one of it (pFedMe): rounds against NumPy programs, and what they share with
others."""

import numpy as np
import pytest
import torch

import numpy_mlp
import simulations
from pflpipe.simulation import rounds
from pflpipe.trees import within
from simulations import LINEAR, assert_equal, finished, linear, personal_models, plan, simulation

LR, CLIP, WEIGHT = 0.2, 0.2, 0.6
ALPHA = 0.3


def test_golden_rounds_of_ditto_whose_own_models_begin_as_the_first_model_received():
    """Under a draw in which one client comes late and one never."""
    rule = plan(noise_multiplier=0.0, clip_norm=CLIP, sample_rate=0.5, rounds=3)
    settings = {"plan": rule, "backend": "vmap", "model": LINEAR, "lr": LR, "seed": 3}
    world = simulation("ditto", {"weight": WEIGHT}, **settings)
    own = {}

    def trained(begin, shared, client, round, weight=WEIGHT):
        slope = numpy_mlp.pulled(weight, shared)
        return numpy_mlp.local_pass(world, client, round, begin, slope, lr=LR)

    def update(shared, client, round):
        own[client] = trained(own.get(client, shared), shared, client, round)
        return numpy_mlp.less(trained(shared, shared, client, round, 0.0), shared)

    done, shared = numpy_mlp.assert_golden(world, update)
    assert set(own) < set(range(4)), "one is never drawn"
    assert set(own) - set(np.flatnonzero(rounds.cohort(world, 0))), "one comes late"
    personal = [trained(own.get(client, shared), shared, client, 3) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_without_weight_every_own_model_of_ditto_is_trained_alone():
    def states(name, **values):
        world = simulation(name, values, backend="vmap")
        return finished(world).states

    alone = dict(states("local_only"))
    assert_equal(within("own.", states("ditto", weight=0.0)), alone, 0)
    pulled = within("own.", states("ditto", weight=1.0))
    assert max(float((pulled[name] - alone[name]).abs().max()) for name in alone) > 1e-3


@pytest.mark.parametrize("adaptive", [False, True])
def test_golden_rounds_of_apfl(adaptive):
    world = linear("apfl", {"alpha": ALPHA, "adaptive": adaptive}, CLIP, LR, rounds=2)
    own, shares = {}, [ALPHA] * 4

    def mixed(share, v, w):
        return {name: share * v[name] + (1 - share) * w[name] for name in w}

    def trained(client, round, share, v, w):
        if adaptive:
            slope = numpy_mlp.gradient(mixed(share, v, w), *numpy_mlp.rows(world, client))
            rise = sum(((v[name] - w[name]) * slope[name]).sum() for name in w)
            share = min(max(share - LR * rise, 0.0), 1.0)
        for x, y in numpy_mlp.steps(world, client, round, "train"):
            of_w = numpy_mlp.gradient(w, x, y)
            of_mixture = numpy_mlp.gradient(mixed(share, v, w), x, y)
            w = {name: w[name] - LR * of_w[name] for name in w}
            v = {name: v[name] - LR * share * of_mixture[name] for name in v}
        return share, v, w

    def update(w, client, round):
        begin = shares[client], own.get(client, w), w
        shares[client], own[client], end = trained(client, round, *begin)
        return numpy_mlp.less(end, w)

    done, shared = numpy_mlp.assert_golden(world, update)
    numpy_mlp.assert_close({"": dict(done.states)["alpha"]}, {"": shares})
    assert (np.ptp(shares) > 1e-4) == adaptive
    ends = [trained(client, 2, shares[client], own[client], shared) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), [mixed(*end) for end in ends])


@pytest.mark.parametrize("seed", [0, 1])
def test_an_adapted_share_of_apfl_ends_nowhere_but_between_0_and_1(seed):
    world = simulation("apfl", seed=seed, lr=3.0)
    shares = dict(finished(world).states)["alpha"].tolist()
    assert {0.0, 1.0} & set(shares), "a step went over an end"
    assert all(0 <= share <= 1 for share in shares)


def test_a_client_of_apfl_that_was_never_in_training_begins_with_the_released_model():
    """Its two models see the same batches: with alpha 1 its own one is that of DP-FedAvg's
    client."""
    world, plain = simulation("apfl", {"alpha": 1.0}), simulation("dp_fedavg")
    done, new = rounds.run(plain, rounds.start(plain)), rounds.start(world)
    new.params, new.round = done.params, done.round
    assert_equal(personal_models(world, new), personal_models(plain, done))


def test_two_golden_rounds_of_pfedme():
    values = {"weight": 2.0, "steps": 3, "inner_lr": 0.1, "beta": 0.7}
    world = linear("pfedme", values, 0.1, 0.3, rounds=2, momentum=0.5)

    def stepped(theta, w, x, y):
        steps = [(x, y)] * 3
        return numpy_mlp.descend(theta, steps, numpy_mlp.pulled(2.0, w), lr=0.1)

    def envelope(w, x, y):
        theta = stepped(w, w, x, y)
        return {name: 2.0 * (w[name] - theta[name]) for name in w}

    def update(w, client, round):
        end = numpy_mlp.local_pass(world, client, round, w, envelope, lr=0.3, momentum=0.5)
        return numpy_mlp.less(end, w)

    done, shared = numpy_mlp.assert_golden(world, update, shares=[0.7 / 4] * 4)
    personal = [shared] * 4
    for client in range(4):
        for x, y in numpy_mlp.steps(world, client, 2, "train"):
            personal[client] = stepped(personal[client], shared, x, y)
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_one_step_of_pfedme_on_h_followed_to_its_end_is_dp_fedavg():
    """eta lambda = 1 and K = 1: w moves onto theta, which is one gradient step from w."""
    values = {"weight": 5.0, "steps": 1, "inner_lr": 0.3}
    world = simulation("pfedme", values, backend="vmap", lr=1 / 5.0)
    plain = simulation("dp_fedavg", backend="vmap", lr=0.3)
    found, expected = (rounds.run(each, rounds.start(each)) for each in (world, plain))
    assert_equal(found.params, expected.params, 1e-12)
    losses = [[row["loss"] for row in each.rows] for each in (found, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


@pytest.mark.parametrize("anchor", ["own", "server"])
def test_golden_rounds_and_personal_models_of_mr_mtl(anchor):
    """From the second round on a client starts away from the mean."""
    world = linear("mr_mtl", {"weight": WEIGHT, "anchor": anchor}, CLIP, LR, rounds=2)
    own = {}

    def trained(mean, client, round):
        begin, slope = own.get(client, mean), numpy_mlp.pulled(WEIGHT, mean)
        return numpy_mlp.local_pass(world, client, round, begin, slope, lr=LR)

    def update(mean, client, round):
        before = own.get(client, mean)
        own[client] = trained(mean, client, round)
        return numpy_mlp.less(own[client], before if anchor == "own" else mean)

    done, mean = numpy_mlp.assert_golden(world, update)
    numpy_mlp.assert_close(done.states, [own[client] for client in range(4)])
    expected = [trained(mean, client, 2) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), expected)


def test_who_takes_no_step_in_mr_mtl_sends_zeros_however_far_the_mean_is():
    """One client has no rows, and one fewer than a batch."""
    settings = {"sizes": (5, 0, 3), "drop_last": True, "backend": "vmap"}
    world = simulation("mr_mtl", {"anchor": "server"}, **settings)
    _, seen, states = simulations.spied(world)
    params, own = states[-2]
    assert all((own[name][1] != params[name]).any() for name in params)
    for uploads, _, _ in seen:
        for value in uploads.update.values():
            assert value[0].any()
            assert not value[1:].any()


def test_without_clip_and_noise_the_server_of_mr_mtl_has_the_mean_of_all_models():
    """Of all clients, of whom half are drawn in each round."""
    quiet = plan(sample_rate=0.5, rounds=4, clip_norm=1e9, noise_multiplier=0.0)
    world = simulation("mr_mtl", {"weight": 0.5}, plan=quiet)
    done = finished(world)
    means = {name: value.mean(0) for name, value in done.states.items()}
    assert max(float((done.states[name] - means[name]).abs().max()) for name in means) > 0.1
    assert_equal(done.params, means)


HEAD_PHASE = {"head_epochs": 2, "head_lr": 0.3, "head_momentum": 0.5, "head_weight_decay": 0.1}
OF_HEAD = {"lr": 0.3, "momentum": 0.5, "decay": 0.1}


def summed(w, own):
    return w | {name: w[name] + own[name] for name in numpy_mlp.HEAD}


def test_golden_round_and_personal_models_of_ppsgd():
    world = simulations.quiet("ppsgd", HEAD_PHASE, clip_norm=CLIP, rounds=1, lr=LR)
    begun = simulations.shaken(rounds.start(world), np.random.default_rng(3))
    own = [numpy_mlp.arrays(begun.states, client) for client in range(4)]

    def own_head(w, client, round):
        def slope(v, x, y):
            return numpy_mlp.gradient(summed(w, v), x, y)

        head = own[client]
        return numpy_mlp.local_pass(world, client, round, head, slope, "head", **OF_HEAD)

    def update(w, client, round):
        own[client] = own_head(w, client, round)

        def slope(v, x, y):
            return numpy_mlp.gradient(summed(v, own[client]), x, y)

        return numpy_mlp.less(numpy_mlp.local_pass(world, client, round, w, slope, lr=LR), w)

    done, w = numpy_mlp.assert_golden(world, update, begun=begun)
    numpy_mlp.assert_close(done.states, own)
    models = [summed(w, own_head(w, client, 1)) for client in range(4)]
    numpy_mlp.assert_close(personal_models(world, done), models)


def test_the_own_head_of_ppsgd_is_trained_by_the_optimizer_that_is_named():
    values = {"head_optimizer": "adam", "head_lr": 0.01}
    world = simulation("ppsgd", values, sizes=(3,), plan=plan(1, rounds=1))
    own = finished(world).states["head.bias"][0]
    # Adam's first step has size lr.
    torch.testing.assert_close(own.abs(), torch.full_like(own, 0.01), rtol=1e-6, atol=0)
