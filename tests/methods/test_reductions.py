"""Every method has a setting in which it is DP-FedAvg exactly, or another method that it is built
from; and personal models that are known without training them again."""

from typing import Any, NamedTuple

import pytest
import torch

from pflpipe import cells
from pflpipe.methods import registry
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from simulations import (
    assert_equal,
    next_states,
    open_plan,
    params_after,
    personal_models,
    plan,
    simulation,
)

LINEAR = cells.Model("mlp", ())
DECAY = {"weight_decay": 0.01}
HEAD = {"head_epochs": 2, "head_lr": 0.3, "head_momentum": 0.5, "head_weight_decay": 0.1}
PAPER = {
    name: registry.departures(name, "paper", False)
    for name in ("appfl", "appfl_steps", "dp_fedsam_topk", "dp_fedsim")
}


class Reduction(NamedTuple):
    """What two methods share: the global model always, and more if it is named; all their bits, or
    what rounding leaves."""

    method: str
    values: dict[str, Any]
    other: str = "dp_fedavg"
    of_other: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    settings: dict[str, Any] = {}  # noqa: RUF012
    departures: tuple[str, ...] = ()
    of_others: tuple[str, ...] = ()
    more: str = ""
    bits: bool = False


TIGHT = {"plan": plan(clip_norm=0.15)}
GLP = {"beta": 0.0, "gamma": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
DSU = {"model": cells.Model("mlp", (6, 5, 4))}
SIM = {"threshold": 1.5, "agc": False}
FREE = {"plan": plan(clip_norm=1e9, noise_multiplier=0.0)}
# Two epochs of two steps each are four steps on the same minibatches in the same order.
STEPS = {"sizes": (8, 7, 5), "plan": plan(3, clip_norm=1e9, noise_multiplier=1e-10)}
LAYERS = {"": "dp_fedavg", "head": "fedper", "fc1": "lg_fedavg"}
REDUCTIONS = [
    Reduction("apfl", {}, settings=DECAY),
    Reduction("apfl", {"alpha": 0.9, "adaptive": False}, settings=DECAY),
    *(Reduction("appfl", {"personal_layers": one}, LAYERS[one], more="states") for one in LAYERS),
    Reduction(
        "appfl",
        {"personal_layers": ""},
        settings=FREE,
        departures=PAPER["appfl"],
        more="states",
    ),
    *(
        Reduction(
            "appfl_steps",
            {"personal_layers": one, "local_steps": 4},
            LAYERS[one],
            settings=STEPS,
            departures=PAPER["appfl_steps"],
            more="states",
        )
        for one in LAYERS
    ),
    *(
        Reduction("blur_lus", {"weight": 0.0, "keep_ratio": 1.0, "score": one}, settings=DECAY)
        for one in ("gradient", "magnitude")
    ),
    Reduction("ditto", {"weight": 0.0}, settings=DECAY, bits=True),
    Reduction("ditto", {"weight": 1.0}, settings=DECAY, bits=True),
    Reduction("dp_fedavg_fb", {}, bits=True),
    Reduction("dp_fedavg_global", {}, bits=True),
    Reduction("dp_fedpgn", {"gamma": 1.0}, settings=DECAY, bits=True),
    Reduction("dp_fedsam", {"rho": 0.0}, settings=DECAY, bits=True),
    Reduction("dp_fedsam_topk", {"rho": 0.0, "keep_ratio": 1.0}, settings=DECAY, bits=True),
    Reduction("dp_fedsam_topk", {"keep_ratio": 1.0}, "dp_fedsam", settings=DECAY, bits=True),
    Reduction(
        "dp_fedsam_topk",
        {"keep_ratio": 1.0},
        "dp_fedsam",
        departures=PAPER["dp_fedsam_topk"],
        of_others=("noise_per_participant",),
        bits=True,
    ),
    *(Reduction("dp_fedsim", SIM | {"fisher_norm": one}) for one in ("minmax", "sum")),
    Reduction(
        "dp_fedsim",
        SIM | {"msa": False},
        settings={"plan": plan(clip_norm=0.05)},
        departures=PAPER["dp_fedsim"],
        of_others=("per_layer_clip_unscaled", "noise_per_participant"),
    ),
    *(
        Reduction(
            "dp_fedsim",
            SIM | {"agc": agc, "msa": False},
            settings={"plan": open_plan()},
            departures=departures,
        )
        for agc in (True, False)
        for departures in ((), PAPER["dp_fedsim"])
    ),
    *(
        Reduction(
            "dp_fedsofim", {"beta": 0.0, "rho": 1e30, "direction": one}, settings=DECAY, bits=True
        )
        for one in ("moment", "release")
    ),
    *(
        Reduction("dp_pfeddsu", values, "centaur", settings=DSU, more="states")
        for values in (
            {"keep_ratio": 1.0, "weight": 0.0},
            {"rt": False, "dan": False},
            {"rt": False, "weight": 0.0},
        )
    ),
    Reduction("dp_scaffold", {"weight": 0.0}, bits=True),
    Reduction("fedaddp", {"tau": 1.5, "lambda_1": 0.0, "lambda_2": 0.0, "beta": 0.0, "r_min": 1.0}),
    Reduction("fedala", {"p": 0}, settings=DECAY, more="personal", bits=True),
    Reduction("fedbn", {}),
    *(
        Reduction("feddpa", values | {"schedule": schedule})
        for values in (
            {"tau": 1.5, "lambda_1": 0.0, "lambda_2": 0.0},
            {"dfp": False, "ac": False},
            {"tau": 1.5, "ac": False},
        )
        for schedule in ("alternate", "two_phase")
    ),
    # One layer: its clip is the joint one, whatever gamma is.
    Reduction("fedglp_adp", GLP, settings=TIGHT | {"model": LINEAR}),
    Reduction("fedglp_adp", GLP | {"gamma": 0.4}, settings=TIGHT | {"model": LINEAR}),
    Reduction("fedglp_adp", GLP | {"beta": 0.3, "glp": False, "acndp": False}, settings=TIGHT),
    Reduction("fedglp_adp", GLP | {"acndp": False}, settings=TIGHT),
    Reduction("fedpac", HEAD | {"weight": 0.0}, "fedrep", HEAD, more="personal", bits=True),
    Reduction("fedper", {}, "local_only", settings={"model": LINEAR}, more="states"),
    Reduction("fedprox", {"weight": 0.0}, settings=DECAY, bits=True),
    Reduction("fedprox", {"weight": 0.6}, "pmtl_ft", {"weight": 0.3}),  # a penalty without half
    Reduction("lg_fedavg", {}, settings={"model": LINEAR}),
    Reduction("mr_mtl", {"weight": 0.0}, settings={"plan": plan(rounds=1)}, bits=True),
    *(
        Reduction("per_fedavg", {"alpha": 0.0, "variant": one}, settings=DECAY)
        for one in ("fo", "hf")
    ),
    *(
        Reduction("pmtl_ft", HEAD | values, "dp_fedavg_fb", HEAD, DECAY, more="personal")
        for values in ({"weight": 0.0}, {"weight": 3.0, "detached": True})
    ),
    Reduction("ppsgd", {"head_lr": 0.0}, settings=DECAY),
]


_ENDS: dict[str, tuple[Simulation, Any]] = {}


def trained(method: str, values: dict[str, Any], **settings: Any) -> tuple[Simulation, Any]:
    """Return a run and its end, trained once for all questions."""
    asked = {"method": method, "hyperparameters": values, "backend": "vmap", **settings}
    if repr(asked) not in _ENDS:
        world = simulation(**asked)
        _ENDS[repr(asked)] = world, rounds.run(world, rounds.start(world))
    return _ENDS[repr(asked)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: f"{case.method} {case.values}")
def test_a_method_without_its_own_parts_is_the_one_that_it_is_built_from(case, optimizer):
    settings = {"optimizer": optimizer, "lr": 0.05} | case.settings
    ours = trained(case.method, case.values, departures=case.departures, **settings)
    theirs = trained(case.other, case.of_other, departures=case.of_others, **settings)
    shared = ["states" if case.other == "local_only" else "params", case.more]
    tolerance = 0 if case.bits else 1e-13
    for what in filter(None, shared):
        ends = (
            personal_models(*one) if what == "personal" else dict(getattr(one[1], what))
            for one in (ours, theirs)
        )
        assert_equal(*ends, tolerance)


def test_fedavg_with_equal_sizes_is_dp_fedavg_without_clip_and_noise():
    plain = simulation("fedavg", sizes=(5, 5, 5), plan=open_plan(3))
    quiet = plan(3, clip_norm=1e9, noise_multiplier=0.0)
    private = simulation("dp_fedavg", sizes=(5, 5, 5), plan=quiet)
    assert_equal(params_after(plain), params_after(private))


def test_local_only_is_fedavg_with_one_client():
    _, alone = trained("local_only", {}, sizes=(7,), plan=open_plan(1))
    _, federation = trained("fedavg", {}, sizes=(7,), plan=open_plan(1))
    assert_equal({name: value[0] for name, value in alone.states.items()}, federation.params)


# Personal models


@pytest.mark.parametrize(
    ("method", "values"),
    [("dp_fedavg_global", {}), ("per_fedavg", {"alpha": 0.0}), ("ppsgd", {"head_lr": 0.0})],
)
def test_the_personal_model_is_the_released_one_to_the_bit(method, values):
    world, done = trained(method, values)
    for name, value in personal_models(world, done).items():
        assert torch.equal(value, done.params[name].expand_as(value))


@pytest.mark.parametrize(
    ("method", "values"), [("dp_fedpgn", {}), ("dp_fedsofim", {}), ("fedprox", {"weight": 3.0})]
)
def test_the_personal_model_is_trained_by_the_steps_of_dp_fedavg(method, values):
    world, done = trained(method, values)
    plain = simulation("dp_fedavg", backend="vmap")
    assert_equal(personal_models(world, done), personal_models(plain, done), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "values", "kept"),
    [
        ("dp_fedsim", {"threshold": 0.3}, ""),
        ("fedaddp", {"tau": 0.3}, "local."),
        ("fedala", {"p": 2}, "local."),
        ("feddpa", {"tau": 0.3}, ""),
        ("fedglp_adp", {"dynamic": False}, "local."),
    ],
)
def test_the_personal_model_is_what_one_more_local_pass_would_keep(method, values, kept):
    world, done = trained(method, values)
    ends = next_states(world, done)
    for name, value in personal_models(world, done).items():
        assert torch.equal(value, ends[f"{kept}{name}"])
        assert not torch.equal(value, done.states[f"{kept}{name}"])


@pytest.mark.parametrize(
    ("method", "values"),
    [("appfl", {}), ("appfl_steps", {"local_steps": 5}), ("dp_fedsam", {"rho": 0.5})],
)
def test_the_personal_model_is_the_end_of_one_more_local_pass(method, values):
    """A pass that is not clipped; of APPFL the published one."""
    world, done = trained(method, values, departures=PAPER.get(method, ()))

    def local_pass(state, batches, others):
        given = done.params, done.server, state, batches, world.task
        upload, kept = world.method.local_update(*given)
        return {name: done.params[name] + value for name, value in upload.update.items()} | kept

    work = [world.work(client, done.round) for client in range(4)]
    ends = world.run_clients(local_pass, done.states, range(4), work)
    for name, value in personal_models(world, done).items():
        torch.testing.assert_close(value, ends[name], rtol=1e-12, atol=1e-14)
        assert not torch.equal(value[0], done.params[name])
