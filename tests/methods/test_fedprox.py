"""FedProx: a round against an independent NumPy program, its reductions and what it pulls."""

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import linear, plan, simulation

MU, LR, CLIP = 0.6, 0.2, 0.2


def test_golden_round():
    world = linear("fedprox", {"weight": MU}, CLIP, LR)

    def update(begin, client, round):
        def pulled(w, x, y):
            slope = numpy_mlp.gradient(w, x, y)
            return {name: slope[name] + MU * (w[name] - begin[name]) for name in w}

        steps = numpy_mlp.steps(world, client, round, "train")
        return numpy_mlp.less(numpy_mlp.descend(begin, steps, pulled, lr=LR), begin)

    numpy_mlp.assert_golden(world, update)


def test_the_more_weight_the_shorter_are_the_updates():
    def length(weight):
        rule = plan(rounds=1)
        world = simulation("fedprox", {"weight": weight}, plan=rule)
        return rounds.run(world, rounds.start(world)).rows[0]["update_norm_mean"]

    lengths = [length(weight) for weight in (0.0, 0.1, 1.0, 3.0)]
    assert lengths == sorted(set(lengths), reverse=True)
