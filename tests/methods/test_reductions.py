"""Every method has a setting in which it is DP-FedAvg exactly, or another method that it is built
from; and personal models that are known without training them again."""

from typing import Any, NamedTuple

import pytest
import torch

import simulations
import tabled
from pflpipe import cells
from pflpipe.methods import registry
from pflpipe.simulation.simulation import Simulation
from simulations import assert_equal, open_plan, params_after, personal_models, plan, simulation

TABLES = tabled.table("test_reductions")

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
    paper: bool = False
    of_others: tuple[str, ...] = ()
    more: str = ""
    bits: bool = False


REDUCTIONS = [Reduction(**case) for case in TABLES["REDUCTIONS"]]


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a row: its plan, and its network of these hidden layers."""
    settings = dict(given)
    if "open_plan" in given:
        settings["plan"] = open_plan(**settings.pop("open_plan"))
    elif "plan" in given:
        settings["plan"] = plan(**given["plan"])
    if "model" in given:
        settings["model"] = cells.Model("mlp", tuple(given["model"]))
    return settings


_ENDS: dict[str, tuple[Simulation, Any]] = {}


def trained(method: str, values: dict[str, Any], **settings: Any) -> tuple[Simulation, Any]:
    """Return a run and its end, trained once for all questions."""
    asked = {"method": method, "hyperparameters": values, "backend": "vmap", **settings}
    if repr(asked) not in _ENDS:
        world = simulation(**asked)
        _ENDS[repr(asked)] = world, simulations.finished(world)
    return _ENDS[repr(asked)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: f"{case.method} {case.values}")
def test_a_method_without_its_own_parts_is_the_one_that_it_is_built_from(case, optimizer):
    settings = {"optimizer": optimizer, "lr": 0.05} | settings_of(case.settings)
    departures = PAPER[case.method] if case.paper else ()
    ours = trained(case.method, case.values, departures=departures, **settings)
    theirs = trained(case.other, case.of_other, departures=tuple(case.of_others), **settings)
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


@pytest.mark.parametrize(("method", "values"), TABLES["RELEASED"])
def test_the_personal_model_is_the_released_one_to_the_bit(method, values):
    world, done = trained(method, values)
    for name, value in personal_models(world, done).items():
        assert torch.equal(value, done.params[name].expand_as(value))


@pytest.mark.parametrize(("method", "values"), TABLES["TRAINED"])
def test_the_personal_model_is_trained_by_the_steps_of_dp_fedavg(method, values):
    world, done = trained(method, values)
    plain = simulation("dp_fedavg", backend="vmap")
    assert_equal(personal_models(world, done), personal_models(plain, done), 0)


@pytest.mark.parametrize(("method", "values"), TABLES["OWN"])
def test_at_threshold_zero_the_local_model_never_takes_a_global_value(method, values):
    rules = [plan(noise_multiplier=noise) for noise in (100.0, 0.0)]
    noisy, quiet = (trained(method, values, plan=rule)[1] for rule in rules)
    assert_equal(dict(noisy.states), dict(quiet.states), 0)
    assert not torch.equal(noisy.params["head.weight"], quiet.params["head.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "values", "kept"), TABLES["KEPT"])
def test_the_personal_model_is_what_one_more_local_pass_would_keep(method, values, kept):
    world, done = trained(method, values)
    ends = simulations.next_states(world, done)
    for name, value in personal_models(world, done).items():
        assert torch.equal(value, ends[f"{kept}{name}"])
        assert not torch.equal(value, done.states[f"{kept}{name}"])


@pytest.mark.parametrize(("method", "values"), TABLES["ENDS"])
def test_the_personal_model_is_the_end_of_one_more_local_pass(method, values):
    """A pass that is not clipped; of APPFL the published one."""
    world, done = trained(method, values, departures=PAPER.get(method, ()))

    def local_pass(params, *given):
        upload, kept = world.method.local_update(params, *given)
        return {name: params[name] + value for name, value in upload.update.items()} | kept

    ends = simulations.of_everybody(world, done, local_pass)
    for name, value in personal_models(world, done).items():
        torch.testing.assert_close(value, ends[name], rtol=1e-12, atol=1e-14)
        assert not torch.equal(value[0], done.params[name])
