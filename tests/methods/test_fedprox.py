"""FedProx: a round against an independent NumPy program, its reductions and what it pulls."""

import pytest

import numpy_mlp
from pflpipe import cells
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, personal_models, plan, simulation

MU, LR, CLIP = 0.6, 0.2, 0.2
LINEAR = cells.Model("mlp", ())


def test_golden_round():
    world = simulation(
        "fedprox",
        {"weight": MU},
        plan=plan(noise_multiplier=0.0, clip_norm=CLIP, rounds=1),
        backend="vmap",
        model=LINEAR,
        lr=LR,
    )
    begun = rounds.start(world)
    begin = {name: value.numpy() for name, value in begun.params.items()}

    def pulled(w, x, y):
        slope = numpy_mlp.gradient(w, x, y)
        return {name: slope[name] + MU * (w[name] - begin[name]) for name in w}

    expected = dict(begin)
    for client in range(4):
        steps = numpy_mlp.steps(world, client, 0, "train")
        end = numpy_mlp.descend(begin, steps, pulled, lr=LR)
        sent = numpy_mlp.clipped({name: end[name] - begin[name] for name in begin}, CLIP)
        expected = {name: value + sent[name] / 4 for name, value in expected.items()}
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_weight_it_is_dp_fedavg_to_the_bit(optimizer):
    settings = {"backend": "vmap", "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.01}
    found, expected = (
        params_after(simulation(name, values, **settings))
        for name, values in (("fedprox", {"weight": 0.0}), ("dp_fedavg", {}))
    )
    assert_equal(found, expected, 0)


def test_it_trains_as_pmtl_ft_whose_penalty_has_no_half():
    """From the same model on the same batches; long training of that method ends where the penalty
    balances the loss."""
    found, expected = (
        params_after(simulation(name, {"weight": weight}, backend="vmap"))
        for name, weight in (("fedprox", MU), ("pmtl_ft", MU / 2))
    )
    assert_equal(found, expected)


def test_the_more_weight_the_shorter_are_the_updates():
    def length(weight):
        rule = plan(rounds=1)
        world = simulation("fedprox", {"weight": weight}, plan=rule)
        return rounds.run(world, rounds.start(world)).rows[0]["update_norm_mean"]

    lengths = [length(weight) for weight in (0.0, 0.1, 1.0, 3.0)]
    assert lengths == sorted(set(lengths), reverse=True)


def test_the_personal_model_is_trained_without_the_penalty():
    world, plain = simulation("fedprox", {"weight": 3.0}), simulation("dp_fedavg")
    done = rounds.run(world, rounds.start(world))
    assert_equal(personal_models(world, done), personal_models(plain, done), 0)
