"""The registry: hyper-parameters are checked against the factory's signature, departures follow the
profile."""

import pytest

import tabled
from pflpipe import cells
from pflpipe.errors import ConfigError
from pflpipe.facts.departures import DEPARTURES
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES

TABLES = tabled.table("test_registry")


@pytest.mark.parametrize("name", NAMES)
def test_every_method_states_title_paper_and_known_departures(name):
    about = registry.info(name).about
    assert about.title
    assert about.paper
    known = about.departures + about.paper_departures + about.official_departures
    assert set(known) <= set(DEPARTURES)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_valid_and_complete(name):
    checked = registry.check_hyperparameters(name, {})
    assert list(checked) == list(registry.info(name).hyperparameters)
    assert registry.check_hyperparameters(name, checked) == checked


@pytest.mark.parametrize(
    ("name", "values", "message"), TABLES["wrong hyperparameters are named with what was expected"]
)
def test_wrong_hyperparameters_are_named_with_what_was_expected(name, values, message):
    with pytest.raises(ConfigError, match=message):
        registry.check_hyperparameters(name, values)


def test_the_official_code_has_defaults_of_its_own_that_a_study_may_replace():
    check = registry.check_hyperparameters
    assert check("dp_fedsam", {}) == {"rho": 0.05, "adaptive": False}
    assert check("dp_fedsam", {}, official_code=True) == {"rho": 0.5, "adaptive": True}
    given = {"rho": 0.1, "adaptive": False}
    assert check("dp_fedsam", given, official_code=True) == given
    assert check("feddpa", {}, official_code=True) == check("feddpa", {})


def test_departures_follow_the_hyper_parameters_that_take_a_step_out():
    whole = registry.departures("fedglp_adp", "paper", False)
    part = registry.departures("fedglp_adp", "paper", False, hyperparameters={"acndp": False})
    assert sorted({*part, "client_clip_weights"}) == list(whole)
    assert len(part) == len(whole) - 1
    strict = registry.departures("fedglp_adp", "strict", False, hyperparameters={"acndp": False})
    assert strict == ()


def test_a_choice_after_the_noise_is_certified_in_both_profiles():
    assert registry.departures("dp_fedsam_topk", "paper", False) == ("noise_on_support",)
    after = {"before_noise": False}
    assert registry.departures("dp_fedsam_topk", "paper", False, hyperparameters=after) == ()


def test_departures_follow_the_profile():
    assert registry.departures("feddpa", "strict", False) == ()
    assert registry.departures("feddpa", "paper", False) == ()
    official = ("data_size_weights", "sample_level_calibration", "update_against_global")
    assert registry.departures("feddpa", "paper", True) == official
    assert "public_sampling" in registry.departures("dp_fedsam", "paper", True)
    assert registry.departures("fedavg", "strict", False) == ("data_size_weights",)
    with pytest.raises(ConfigError, match="profile: paper"):
        registry.departures("feddpa", "strict", True)
    with pytest.raises(ConfigError, match="official code departs"):
        registry.departures("dp_fedavg", "paper", True)


@pytest.mark.parametrize(
    ("method", "hidden", "layers"),
    [("fedbn", (8,), "normalisation layers"), ("centaur", (), "layers before the head")],
)
def test_a_network_without_the_layers_that_a_method_is_about_is_refused(method, hidden, layers):
    message = f"{method}: model; got 'mlp'; expected a network with {layers}"
    with pytest.raises(ConfigError, match=message):
        registry.check_model(method, cells.Model("mlp", hidden))
    registry.check_model(method, cells.Model("resnet20"))
