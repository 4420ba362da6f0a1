"""FedProx: a round against an independent NumPy program."""

import numpy_mlp
from simulations import linear

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
