"""The forecast's numbers follow from plan and message."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import malformed
import pflpipe
import tabled
from pflpipe.errors import ConfigError
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan
from pflpipe.study import forecast

TABLES = tabled.table("test_forecast")

SMALL = TABLES["SMALL"]


@pytest.fixture
def study(here):
    """Return a function that writes a study with some of its keys replaced, in an own folder."""
    malformed.write(Path("config.yaml"), {"studies": ["small"]})

    def written(**keys) -> str:
        Path("studies").mkdir(exist_ok=True)
        malformed.write(Path("studies/small.yaml"), SMALL | keys)
        return "small"

    return written


def rows(study: str, **given) -> dict[str, dict]:
    return {row["entry"]: row for row in pflpipe.forecast(study, **given)}


def test_noise_and_cost_follow_from_plan_and_message(study):
    found = rows(study())
    assert list(found) == ["dp_fedavg", "fedper"], "learning alone has no noise"
    whole, body = found["dp_fedavg"], found["fedper"]
    assert (whole["sent"], body["sent"]) == (64 * 16 + 16 + 170, 64 * 16 + 16)
    mu_plan = Plan("gaussian", 2, 1.0, whole["noise_multiplier"], 1.0, 20, 1e-3, 100)
    assert accounting.epsilon(mu_plan, 1e-3) == pytest.approx(2, rel=1e-3)
    assert whole["noise_length"] == pytest.approx(whole["noise_multiplier"] * math.sqrt(1210) / 100)
    assert whole["megabytes"] == pytest.approx(20 * 1210 * 4 / 1e6)


def test_with_the_clients_or_the_budget_for_1_the_noise_is_as_long_as_a_message_may_be(study):
    (before, _) = pflpipe.forecast(study())
    more = study(partition={"kind": "iid", "clients": before["clients_for_1"]})
    assert pflpipe.forecast(more)[0]["noise_length"] == pytest.approx(1, abs=0.01)
    budget = SMALL["privacy"] | {"epsilon": before["epsilon_for_1"]}
    assert pflpipe.forecast(study(privacy=budget))[0]["noise_length"] == pytest.approx(1, abs=0.01)


def test_a_budget_that_promises_nothing_is_not_counted(study):
    few = study(partition={"kind": "iid", "clients": 2}, allow_large_delta=True)
    assert pflpipe.forecast(few)[0]["epsilon_for_1"] == math.inf


def test_noise_has_the_length_that_is_planned(study):
    plan = Plan("laplace", 1, 1.0, 3.0, 0.5, 10, 0.0, 40)
    drawn = np.random.default_rng(0).laplace(scale=3.0, size=(4000, 50)) / 20
    mean_square = np.mean(np.sum(drawn**2, axis=1))
    assert forecast.noise_length(plan, 50) == pytest.approx(math.sqrt(mean_square), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rate", "rounds", "sent", "length"), TABLES["LENGTHS"])
def test_noise_at_epsilon_2_is_far_too_long_for_ten_clients_and_short_for_320(
    clients, rate, rounds, sent, length
):
    once = Plan("gaussian", 2, 1.0, 1.0, rate, rounds, 1e-5, clients)
    found = forecast.noise_length(accounting.calibrate(once, 2), sent)
    assert found == pytest.approx(length, rel=0.01)


@pytest.mark.slow
def test_the_forecast_says_of_the_studies_of_people_what_their_runs_sent():
    found = pflpipe.forecast("people_mnist")
    runs = pd.read_parquet("docs/results/people_mnist/runs.parquet").drop_duplicates("line")
    sent = runs.set_index("line")["upload_bytes_per_round"] / 4 / (0.2 * 669)
    of_entry = {row["entry"]: row for row in found}
    for entry in ("dp_fedavg", "fedper", "lg_fedavg", "fedpac", "ditto", "fedbabu"):
        assert of_entry[entry]["sent"] == pytest.approx(sent[entry]), entry
    lengths = [row["noise_length"] for row in found if row["entry"] == "dp_fedavg"]
    assert lengths == pytest.approx([3.63, 1.515], abs=0.01)  # at epsilon 2 and 8
    assert not any("official code" in row["entry"] for row in found), "their noise is another"


def test_a_method_that_would_send_nothing_of_this_network_is_refused_in_one_line(study):
    linear = {"model": {"name": "linear"}, "methods": [{"name": "fedrep"}]}
    with pytest.raises(ConfigError, match="method fedrep: model; got 'linear'; expected a network"):
        pflpipe.forecast(study(**linear))


@pytest.mark.parametrize("rate", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_multiplier_of_the_warning_is_about_that_of_the_accountant(epsilon, rate):
    plan = Plan("gaussian", 2, 1.0, 1.0, rate, 30, 1e-5, 100)
    exact = accounting.calibrate(plan, epsilon).multiplier
    rough = forecast.rough_multiplier(epsilon, 1e-5, rate, 30)
    assert rough == pytest.approx(exact, rel=0.25 if rate < 1 else 1e-4)


def test_validate_warns_in_one_line_where_noise_hides_everything(study, ran):
    study()
    assert ran("validate").out.count("\n") == 1
    study(partition={"kind": "iid", "clients": 2}, allow_large_delta=True)
    checked, warning = ran("validate").out.splitlines()
    assert checked.endswith("ok")
    length = pflpipe.forecast("small")[0]["noise_length"]
    said = f"warning: small: dp_fedavg at ε = 2: the noise is about {length:,.0f} "
    assert warning.startswith(said)


def test_the_table_has_a_line_for_every_entry_and_says_what_its_columns_are(study, ran):
    study()
    heading, *entries, foot = ran("plan", "small").out.splitlines()
    assert [line.split()[0] for line in entries] == ["dp_fedavg", "fedper"]
    assert heading.split("  ")[-1].strip() == "min"
    assert "noise/C:" in foot
