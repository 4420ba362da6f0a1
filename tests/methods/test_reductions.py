"""Every method has a setting in which it is DP-FedAvg exactly (or the plain thing it is built
from), in loop and vmap."""

import pytest

from pflpipe.simulation import rounds
from simulations import assert_equal, open_plan, params_after, plan, simulation


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"tau": 1.5, "lambda_1": 0.0, "lambda_2": 0.0},
        {"dfp": False, "ac": False},
        {"tau": 1.5, "ac": False},
    ],
    ids=str,
)
def test_feddpa_without_personal_coordinates_and_pull_is_dp_fedavg(optimizer, hyperparameters):
    settings = {"backend": "vmap", "optimizer": optimizer, "lr": 0.05}
    expected = params_after(simulation("dp_fedavg", **settings))
    for schedule in ("alternate", "two_phase"):
        found = params_after(
            simulation("feddpa", hyperparameters | {"schedule": schedule}, **settings)
        )
        assert_equal(found, expected)


def test_dp_fedavg_fb_trains_as_dp_fedavg():
    assert_equal(
        params_after(simulation("dp_fedavg_fb", backend="vmap")),
        params_after(simulation("dp_fedavg", backend="vmap")),
        0,
    )


def test_fedavg_with_equal_sizes_is_dp_fedavg_without_clip_and_noise():
    sizes = (5, 5, 5)
    plain = simulation("fedavg", backend="vmap", sizes=sizes, plan=open_plan(3))
    private = simulation(
        "dp_fedavg", backend="vmap", sizes=sizes, plan=plan(3, clip_norm=1e9, noise_multiplier=0.0)
    )
    assert_equal(params_after(plain), params_after(private))


def test_local_only_is_fedavg_with_one_client():
    sizes = (7,)
    alone = simulation("local_only", backend="vmap", sizes=sizes, plan=open_plan(1))
    federation = simulation("fedavg", backend="vmap", sizes=sizes, plan=open_plan(1))
    state = rounds.run(alone, rounds.start(alone)).states
    assert_equal({name: value[0] for name, value in state.items()}, params_after(federation))
