"""DP-FedSAM: rounds against an independent NumPy program, and the official code's cohorts."""

import numpy as np
import pytest

import numpy_mlp
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from simulations import linear, plan, simulation

RHO, LR, MOMENTUM, DECAY, CLIP = 0.5, 0.2, 0.5, 0.1, 0.3
DECAY_OF_LR = 0.6
OFFICIAL = registry.departures("dp_fedsam", "paper", official_code=True)


@pytest.mark.parametrize("departures", [(), OFFICIAL], ids=["strict", "official"])
def test_two_golden_rounds_at_a_falling_learning_rate(departures):
    values = {"rho": RHO, "adaptive": bool(departures)}
    training = {"lr_decay": DECAY_OF_LR, "momentum": MOMENTUM, "weight_decay": DECAY}
    settings = {"rounds": 2, "departures": departures} | training
    world = linear("dp_fedsam", values, CLIP, LR, **settings)
    begun = rounds.start(world)
    slope = numpy_mlp.sharp(RHO, adaptive=bool(departures))
    begin = {name: value.numpy() for name, value in begun.params.items()}
    sizes = np.array([len(rows) for rows in world.split.train])
    weights = sizes / sizes.sum() if departures else np.full(len(sizes), 1 / len(sizes))
    expected = dict(begin)
    for round, lr in enumerate((LR, LR * DECAY_OF_LR)):
        begin = dict(expected)
        for client, weight in enumerate(weights):
            steps = numpy_mlp.steps(world, client, round, "train")
            end = numpy_mlp.descend(begin, steps, slope, lr=lr, momentum=MOMENTUM, decay=DECAY)
            update = {name: end[name] - begin[name] for name in begin}
            sent = numpy_mlp.clipped(update, CLIP)
            for name, value in update.items():
                own = numpy_mlp.clipped({name: value}, CLIP)[name]
                expected[name] = expected[name] + weight * (own if departures else sent[name])
    done = rounds.run(world, begun)
    assert done.rows[0]["fraction_clipped"] > 0
    numpy_mlp.assert_close(done.params, expected)


def test_the_official_cohort_is_the_same_in_every_run():
    def participants(seed):
        rule = plan(sample_rate=0.5, rounds=6)
        world = simulation("dp_fedsam", departures=OFFICIAL, seed=seed, plan=rule)
        done = rounds.run(world, rounds.start(world))
        pairs = zip(done.timing, done.rows, strict=True)
        return [(timed["images"], row["participants"]) for timed, row in pairs]

    assert participants(0) == participants(1)
    assert len(set(participants(0))) > 1
