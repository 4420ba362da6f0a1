"""DP-FedAvg-fb: the personal model is the released model with its head trained as the
hyper-parameters say."""

import numpy_mlp
from pflpipe.simulation import rounds
from simulations import personal_models, simulation


def test_the_personal_head_is_trained_by_sgd_on_the_frozen_body():
    """Against an independent NumPy program."""
    settings = {"head_epochs": 3, "head_lr": 0.2, "head_momentum": 0.5, "head_weight_decay": 0.1}
    world = simulation("dp_fedavg_fb", settings, backend="vmap")
    done = rounds.run(world, rounds.start(world))
    w, personal = {name: value.numpy() for name, value in done.params.items()}, []
    words = {"lr": 0.2, "momentum": 0.5, "decay": 0.1, "names": numpy_mlp.HEAD}
    for client in range(4):
        steps = numpy_mlp.steps(world, client, done.round, "head")
        assert len(steps) == 3 * -(-len(world.split.train[client]) // world.training.batch_size)
        personal.append(numpy_mlp.descend(w, steps, numpy_mlp.gradient, **words))
    numpy_mlp.assert_close(personal_models(world, done), personal)
