"""The ledger: what each departure costs, by hand and by the numbers of the literature."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tabled
from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import DEPARTURES, WITHOUT_BOUND
from pflpipe.privacy import cohorts
from pflpipe.privacy import ledger as module
from pflpipe.privacy.accounting import epsilon, epsilon_local, epsilon_rdp, make_plan
from pflpipe.privacy.ledger import effective_plan, ledger
from pflpipe.privacy.plan import Plan
from releases import FEDSIM, FEMNIST, published

TABLES = tabled.table("test_ledger")

FEDSAM = replace(
    FEMNIST, noise_multiplier=0.95, sample_rate=0.1, rounds=200, delta=5e-3, clients=500
)
LAPLACE = replace(FEMNIST, mechanism="laplace", norm=1, delta=1e-3)
TENSORS = [f"layer{layer}.{kind}" for layer in range(31) for kind in ("weight", "bias")]
EPSILONS = [f"epsilon_{name}" for name in ("central", "central_1e5", "local", "rdp")]


def entry(plan, departures, sizes=None):
    asked = Privacy(plan.mechanism, None, plan.noise_multiplier, plan.delta, clip_norm=1.0)
    return ledger(plan, asked, departures, sizes, TENSORS)


@functools.cache
def certified_epsilon(plan):
    return epsilon(plan, plan.delta)


# ---------------------------------------------------------------- the numbers of the literature


# Independent prototype; 62 tensors are a ResNet-18 without buffers.
@pytest.mark.slow
def test_dp_fedsam_code(monkeypatch):
    """Which draws by ``np.random.seed(round)`` and ``np.random.choice(range(M), q M,
    replace=False)``."""

    def cohort(round, plan):
        count = int(plan.sample_rate * plan.clients)
        drawn = np.random.RandomState(round).choice(range(plan.clients), count, replace=False)
        return np.isin(np.arange(plan.clients), drawn)

    monkeypatch.setattr(module, "public_cohort", cohort)
    certified = certified_epsilon(FEDSAM)
    assert certified == pytest.approx(6.5, abs=0.051)
    assert epsilon_rdp(FEDSAM, FEDSAM.delta) == pytest.approx(7.8, abs=0.051)
    drawn = replace(FEDSAM, sample_rate=1.0, rounds=34)
    assert effective_plan(FEDSAM, ["public_sampling"]) == drawn
    known = entry(FEDSAM, ["public_sampling"])
    assert known.epsilon_central == pytest.approx(33.8, abs=0.051)
    both = entry(FEDSAM, ["public_sampling", "per_tensor_clip"])
    assert both.epsilon_central == pytest.approx(1291, abs=0.51)
    assert "in 34 of 200 rounds" in " ".join(both.warnings)


def test_dp_fedsim_without_its_data_dependent_part():
    # The multiplier is that of epsilon 2 (test_accounting.py).
    plan = replace(FEDSIM, noise_multiplier=2.248)
    eight_layers = [f"conv{layer}.{kind}" for layer in range(8) for kind in ("weight", "bias")]
    weaker = effective_plan(plan, ["per_layer_clip_unscaled"], parameters=eight_layers)
    assert weaker == replace(plan, noise_multiplier=2.248 / math.sqrt(8))
    assert epsilon(weaker, FEDSIM.delta) == pytest.approx(11.1, abs=0.051)


# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize("departures", TABLES["departures of a claim"])
def test_claim_follows_from_mechanism_and_departures(departures):
    sizes = np.arange(1, 51)
    asked = Privacy("gaussian", epsilon=8.0, delta=1e-3, clip_norm=1.0)
    shape = {"rounds": 30, "sample_rate": 1.0, "clients": 50, "local_epochs": 3, "batch_size": 16}
    plan = make_plan(asked, departures=departures, sizes=sizes, **shape)
    found = ledger(plan, asked, departures, sizes)
    assert found.claim == ("nominal" if departures else "certified")
    assert found.epsilon_nominal == (8.0 if departures else None)
    assert found.epsilon_target == 8.0
    assert found.departures == tuple(sorted(departures))
    assert found.adjacency == "zero_out"
    costly = {"data_size_weights", "sample_level_calibration"}
    assert (found.epsilon_central > 8) == (not costly.isdisjoint(departures))
    assert found.epsilon_central_1e5 > found.epsilon_central
    assert found.epsilon_rdp >= found.epsilon_central
    assert found.epsilon_local > found.epsilon_central


@pytest.mark.parametrize("departure", sorted(DEPARTURES))
def test_no_departure_is_certified_and_one_that_moves_a_number_says_why(departure):
    found = entry(FEMNIST, [departure], np.full(50, 7))
    assert (found.claim, found.departures) == ("nominal", (departure,))
    assert found.epsilon_nominal is None, "a fixed multiplier claims no epsilon"
    said = " ".join(found.warnings)
    is_told = departure in said or "examples" in said
    assert is_told or departure in ("update_against_global", "noise_per_participant")


def test_appfl_has_no_bound_for_its_clipping_and_the_composed_one_without_it():
    asked = Privacy("laplace", epsilon=1.0, clip_norm=1.0)
    plan = make_plan(asked, rounds=12, sample_rate=1.0, clients=10, departures=["no_composition"])
    found = ledger(plan, asked, ["no_composition"])
    assert found.epsilon_nominal == 1.0
    assert found.epsilon_central == pytest.approx(12.0)
    assert "12 rounds" in " ".join(found.warnings)
    assert ledger(plan, asked, ["no_composition", "clip_in_training"]).epsilon_central == math.inf


@pytest.mark.parametrize("departure", sorted(WITHOUT_BOUND))
def test_nothing_added_to_an_unbounded_departure_makes_it_bounded(departure):
    for other in DEPARTURES:
        found = effective_plan(FEMNIST, [departure, other], np.arange(1, 51), TENSORS)
        assert found == replace(FEMNIST, noise_multiplier=0.0)


def test_clipping_in_parts_counts_tensors_or_layers_whichever_are_more():
    tensors, layers = "per_tensor_clip", "per_layer_clip_unscaled"
    of_tensors, of_layers = (62, "62 tensors"), (31, "31 layers")
    cases = ([tensors], of_tensors), ([layers], of_layers), ([tensors, layers], of_tensors)
    for departures, (parts, words) in cases:
        found = entry(FEMNIST, departures)
        message = replace(FEMNIST, noise_multiplier=1 / math.sqrt(parts))
        assert found.noise_multiplier_effective == pytest.approx(message.noise_multiplier)
        assert found.epsilon_local == pytest.approx(epsilon_local(message, 0.02))
        assert words in " ".join(found.warnings)


def test_parts_clipped_in_l2_give_a_laplace_plan_no_guarantee():
    # Each part has an L2 length of at most C, which allows an L1 length of sqrt(d) C.
    assert entry(LAPLACE, ["per_tensor_clip"]).epsilon_central == math.inf


@pytest.mark.parametrize(("clients", "rate"), [(10, 0.1), (4, 0.5), (4, 0.75), (4, 0.99)])
def test_noise_of_messages_protects_nobody_whose_cohort_is_secret(clients, rate):
    """At any rate below 1 a client drawn alone is the difference between noise and nothing."""
    plan = replace(FEMNIST, clients=clients, sample_rate=rate, noise_multiplier=8.0)
    sizes, alone = np.arange(1, clients + 1), rate * (1 - rate) ** (clients - 1)
    for departure in ("noise_per_participant", "noise_not_divided", "data_size_weights"):
        found = entry(plan, [departure], sizes)
        assert {getattr(found, name) for name in EPSILONS} == {math.inf}
        assert any(f"{alone:.2g} a round" in warning for warning in found.warnings)
        everybody = replace(plan, sample_rate=1.0)
        assert entry(everybody, [departure], sizes).epsilon_central < math.inf


def test_a_public_draw_in_which_nobody_holds_examples_releases_nothing():
    plan = replace(FEMNIST, clients=40, sample_rate=0.05, rounds=1)
    absent = int(np.flatnonzero(~cohorts.public_cohort(0, plan))[0])
    found = effective_plan(plan, ["public_sampling", "data_size_weights"], np.eye(40)[absent])
    assert found.noise_multiplier == 1.0


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    departures=st.sets(
        st.sampled_from(sorted(DEPARTURES.keys() - {"noise_not_divided", "public_sampling"})),
        max_size=4,
    ),
    multiplier=st.floats(0.3, 30),
    rounds=st.integers(1, 60),
    sample_rate=st.sampled_from([1.0, 1.0, 0.3]),
    sizes=st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any),
)
def test_a_departure_never_lowers_the_honest_epsilon(
    departures, multiplier, rounds, sample_rate, sizes
):
    # Left out: noise_not_divided adds noise, and a public schedule can call a client less often
    # than chance might.
    # The time of an accountant that counts sampling grows with what one round may lose.
    multiplier = round(multiplier + (3.0 if sample_rate < 1 else 0.0), 1)
    plan = Plan("gaussian", 2, 1.0, multiplier, sample_rate, rounds, 1e-3, 6)
    found = entry(plan, departures, np.array(sizes))
    certified = certified_epsilon(plan)
    assert found.epsilon_central >= certified * (1 - 1e-9)
    assert found.epsilon_rdp >= found.epsilon_central * (1 - 1e-9)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    departures=st.sets(
        st.sampled_from(sorted(DEPARTURES.keys() - WITHOUT_BOUND.keys())), max_size=5
    ),
    multiplier=st.floats(0.5, 30),
    sizes=st.lists(st.integers(0, 1000), min_size=8, max_size=8).filter(any),
    sample_rate=st.sampled_from([1.0, 0.25]),
)
def test_who_sees_single_messages_learns_no_less_than_who_sees_the_sum(
    departures, multiplier, sizes, sample_rate
):
    plan = Plan("gaussian", 2, 1.0, multiplier, sample_rate, 12, 1e-3, 8)
    departures |= {"public_sampling"} if sample_rate < 1 else set()
    found = entry(plan, departures, np.array(sizes))
    assert found.epsilon_local >= found.epsilon_central * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("departures", published())
def test_the_order_of_departures_does_not_matter(departures):
    kind = LAPLACE if "clip_in_training" in departures else FEMNIST
    plan, sizes = replace(kind, sample_rate=0.3, noise_multiplier=10.0), np.arange(1, 51)
    first, *others = (entry(plan, order, sizes) for order in itertools.permutations(departures))
    assert all(other == first for other in others)


# ---------------------------------------------------------------- the edges


def test_no_privacy_asked_claims_nothing():
    plan = make_plan(Privacy(), rounds=5, sample_rate=0.5, clients=4)
    assert plan == Plan("none", 2, None, None, 0.5, 5, None, 4)
    found = ledger(plan, Privacy(), ["data_size_weights", "noise_on_support", "per_tensor_clip"])
    assert (found.claim, found.sampling, found.trust) == ("none", "poisson", None)
    numbers = ("epsilon", "noise", "clip", "delta", "releases")
    assert {vars(found)[name] for name in vars(found) if name.startswith(numbers)} == {None}


@pytest.mark.parametrize(("delta", "words"), TABLES["loose deltas"])
def test_a_delta_above_a_tenth_of_one_over_the_number_of_clients_is_a_warning(delta, words):
    found = entry(replace(FEMNIST, delta=delta), []).warnings
    assert len(found) == (words is not None)
    assert not words or words in found[0]


@pytest.mark.parametrize(("plan", "departure", "sizes", "words"), TABLES["refused"])
def test_departures_that_cannot_be_counted_say_why(plan, departure, sizes, words):
    given = sizes and np.ones(sizes)
    with pytest.raises(PrivacyError, match=words):
        effective_plan({"FEMNIST": FEMNIST, "LAPLACE": LAPLACE}[plan], [departure], given)
