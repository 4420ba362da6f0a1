"""APPFL's clients that take a number of steps: the bound on what they send, and what their noise is
worth (their golden rounds: test_appfl.py)."""

import dataclasses
import math

import pytest
import torch

from pflpipe import cells
from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.methods import registry
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import ledger
from pflpipe.study.plans import plan_of
from simulations import plan, simulation, spied

PAPER = registry.departures("appfl_steps", "paper", False)
NORMS = {"laplace": 1, "gaussian": 2}


def test_what_is_published_lacks_noise_and_composition_but_no_bound():
    assert PAPER == ("learning_rate_in_noise", "no_composition")
    assert registry.departures("appfl_steps", "strict", False) == ()


@pytest.mark.parametrize("departures", [(), PAPER], ids=["strict", "paper"])
@pytest.mark.parametrize("mechanism", NORMS)
@pytest.mark.parametrize("steps", [1, 7])
def test_whatever_the_data_a_message_is_at_most_the_clip_value_long(steps, mechanism, departures):
    """Learning rates that throw a model about: every step is shortened, none by the joint clip."""
    rule = {"clip_norm": 0.06, "noise_multiplier": 0.0}
    rule = plan(mechanism=mechanism, norm=NORMS[mechanism], **rule)
    values = {"personal_layers": "", "local_steps": steps}
    world = simulation("appfl_steps", values, plan=rule, departures=departures, lr=50.0)
    for uploads, _, _ in spied(world)[1]:
        flat = torch.cat([value.reshape(4, -1) for value in uploads.update.values()], 1)
        lengths = torch.linalg.vector_norm(flat, NORMS[mechanism], dim=1)
        assert (lengths <= 0.06 * (1 + 1e-12)).all()
        assert lengths.max() > 0.03


def cell(lr, profile="strict", **privacy):
    asked = {"mechanism": "laplace", "epsilon": 3.0, "clip_norm": 1.0} | privacy
    return cells.Cell(
        "digits",
        cells.Partition("iid", 10),
        cells.Model("mlp", (8,)),
        cells.Training(12, 1, 4, "sgd", lr),
        cells.Privacy(**asked),
        "appfl_steps",
        registry.check_hyperparameters("appfl_steps", {}),
        profile,
        departures=registry.departures("appfl_steps", profile, False),
    )


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.001, 0.1, 2.0])
def test_published_its_epsilon_is_that_of_all_rounds_over_twice_the_learning_rate(lr):
    planned = plan_of(cell(lr, "paper"), None)
    found, entry = planned.plan, planned.ledger
    assert found.noise_multiplier == pytest.approx(2 * lr / 3)
    assert entry.claim == "nominal"
    assert entry.epsilon_nominal == 3.0
    assert entry.epsilon_central == pytest.approx(12 * 3 / (2 * lr))
    assert "twice the learning rate" in " ".join(entry.warnings)


def test_certified_its_epsilon_is_the_target_of_all_rounds():
    planned = plan_of(cell(0.001), None)
    found, entry = planned.plan, planned.ledger
    assert found.noise_multiplier == pytest.approx(12 / 3)
    assert entry.claim == "certified"
    assert entry.epsilon_central == pytest.approx(3.0)


def test_only_a_plan_with_the_learning_rate_in_it_has_another_name_at_another_one():
    assert cell(0.1).plan_id == cell(0.2).plan_id
    assert cell(0.1, "paper").plan_id != cell(0.2, "paper").plan_id


def test_a_plan_without_the_learning_rate_that_it_needs_is_refused():
    asked = cell(0.1).privacy
    with pytest.raises(PrivacyError, match="learning_rate_in_noise; got None"):
        make_plan(asked, rounds=2, sample_rate=1.0, clients=4, departures=PAPER)


@pytest.mark.slow
def test_a_plan_with_next_to_no_laplace_noise_has_the_pure_epsilon_for_all_deltas():
    """dp_accounting cannot take the exponential of such a loss."""
    for rate in (1.0, 0.3):
        asked = cells.Privacy("laplace", epsilon=10.0, delta=1e-5, clip_norm=1.0)
        shape = {"rounds": 40, "sample_rate": rate, "clients": 10}
        made = make_plan(asked, departures=PAPER, lr=1e-3, **shape)
        pure = dataclasses.replace(made, delta=0.0)
        found = [ledger(each, asked, PAPER).epsilon_central for each in (made, pure)]
        assert math.isfinite(found[0])
        assert found[0] == pytest.approx(found[1])


def test_errors_name_this_method():
    with pytest.raises(ConfigError, match=r"method appfl_steps: personal_layers; got 'hed'"):
        registry.check_model("appfl_steps", cells.Model("cnn_cifar"), {"personal_layers": "hed"})
