"""FedBABU: a round with a frozen head against a NumPy program, and a head trained from its initial
values at the end."""

import numpy as np

import numpy_mlp
from pflpipe.simulation import rounds, scores
from simulations import personal_models, quiet, simulation

LR, CLIP = 0.2, 0.3
HEAD_PHASE = {"head_epochs": 3, "head_lr": 0.1, "head_momentum": 0.6, "head_weight_decay": 0.05}
BODY = ("fc1.weight", "fc1.bias")


def test_golden_rounds():
    settings = {"lr": LR, "momentum": 0.9, "weight_decay": 0.1}
    world = quiet("fedbabu", HEAD_PHASE, clip_norm=CLIP, rounds=2, **settings)

    def update(w, client, round):
        steps = numpy_mlp.steps(world, client, round, "train")
        words = {"lr": LR, "momentum": 0.9, "decay": 0.1, "names": BODY}
        end = numpy_mlp.descend(w, steps, numpy_mlp.gradient, **words)
        return {key: end[key] - w[key] for key in BODY}

    done, w = numpy_mlp.assert_golden(world, update)
    words = {"lr": 0.1, "momentum": 0.6, "decay": 0.05, "names": numpy_mlp.HEAD}
    steps = [numpy_mlp.steps(world, client, 2, "head") for client in range(4)]
    personal = [numpy_mlp.descend(w, one, numpy_mlp.gradient, **words) for one in steps]
    numpy_mlp.assert_close(personal_models(world, done), personal)


def test_the_global_model_with_its_initial_head_is_tested():
    world = simulation("fedbabu")
    done = rounds.run(world, rounds.start(world))
    rows = scores.accuracies(world, done)
    assert all(np.isfinite(row["global_common"]) for row in rows)
