"""The ledger: what each departure costs, by hand, by the numbers of the literature, and by what
release() really does."""

import dataclasses
import functools
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tabled
from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import DEPARTURES, OF_MESSAGES, WITHOUT_BOUND
from pflpipe.json_records import from_json, to_json
from pflpipe.privacy import cohorts, mechanism
from pflpipe.privacy import ledger as module
from pflpipe.privacy.accounting import epsilon, epsilon_local, epsilon_rdp, make_plan
from pflpipe.privacy.ledger import Ledger, effective_plan, ledger
from pflpipe.privacy.mechanism import Uploads
from pflpipe.privacy.plan import Plan
from releases import FEDSIM, FEMNIST, published

TABLES = tabled.table("test_ledger")

FEDSAM = dataclasses.replace(
    FEMNIST, noise_multiplier=0.95, sample_rate=0.1, rounds=200, delta=5e-3, clients=500
)
LAPLACE = dataclasses.replace(FEMNIST, mechanism="laplace", norm=1, delta=1e-3)
FEDDPA_CODE = ("sample_level_calibration", "data_size_weights", "update_against_global")
FEDSAM_CODE = ("per_tensor_clip", "data_size_weights", "public_sampling")
TENSORS = [f"layer{layer}.{kind}" for layer in range(31) for kind in ("weight", "bias")]
EPSILONS = [f"epsilon_{name}" for name in ("central", "central_1e5", "local", "rdp")]


def request(plan, epsilon=None):
    multiplier = plan.noise_multiplier if epsilon is None else None
    return Privacy(plan.mechanism, epsilon, multiplier, plan.delta, clip_norm=1.0)


def entry(plan, departures, sizes=None, parameters=TENSORS):
    return ledger(plan, request(plan), departures, sizes, parameters)


@functools.cache
def certified_epsilon(plan):
    return epsilon(plan, plan.delta)


# ---------------------------------------------------------------- the numbers of the literature


@pytest.fixture
def official_sampling(monkeypatch):
    """DP-FedSAM's official code: ``np.random.seed(round)``, then ``np.random.choice(range(M), q M,
    replace=False)``."""

    def cohort(round, plan):
        drawn = np.random.RandomState(round).choice(
            range(plan.clients), int(plan.sample_rate * plan.clients), replace=False
        )
        return np.isin(np.arange(plan.clients), drawn)

    monkeypatch.setattr(module, "public_cohort", cohort)


# Independent prototype; 62 tensors are a ResNet-18 without buffers.
@pytest.mark.slow
def test_dp_fedsam_code(official_sampling):
    certified = certified_epsilon(FEDSAM)
    assert certified == pytest.approx(6.5, abs=0.051)
    assert epsilon_rdp(FEDSAM, FEDSAM.delta) == pytest.approx(7.8, abs=0.051)
    drawn = dataclasses.replace(FEDSAM, sample_rate=1.0, rounds=34)
    assert effective_plan(FEDSAM, ["public_sampling"]) == drawn
    known = entry(FEDSAM, ["public_sampling"])
    assert known.epsilon_central == pytest.approx(33.8, abs=0.051)
    both = entry(FEDSAM, ["public_sampling", "per_tensor_clip"])
    assert both.epsilon_central == pytest.approx(1291, abs=0.51)
    assert "in 34 of 200 rounds" in " ".join(both.warnings)
    assert "62 tensors" in " ".join(both.warnings)


def test_dp_fedsim_without_its_data_dependent_part():
    # The multiplier is that of epsilon 2 (test_accounting.py).
    plan = dataclasses.replace(FEDSIM, noise_multiplier=2.248)
    eight_layers = [f"conv{layer}.{kind}" for layer in range(8) for kind in ("weight", "bias")]
    weaker = effective_plan(plan, ["per_layer_clip_unscaled"], parameters=eight_layers)
    assert weaker == dataclasses.replace(plan, noise_multiplier=2.248 / math.sqrt(8))
    assert epsilon(weaker, FEDSIM.delta) == pytest.approx(11.1, abs=0.051)


def test_layers_clipped_apart_are_counted_in_a_warning():
    found = entry(FEMNIST, ["per_layer_clip_unscaled"])
    assert "31 layers" in " ".join(found.warnings)


# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize(
    "departures", [(), ("update_against_global",), ("data_size_weights",), FEDDPA_CODE]
)
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
    weighted_or_per_sample = bool(
        {"data_size_weights", "sample_level_calibration"} & set(departures)
    )
    assert (found.epsilon_central > 8) == weighted_or_per_sample
    assert found.epsilon_central_1e5 > found.epsilon_central
    assert found.epsilon_rdp >= found.epsilon_central
    assert found.epsilon_local > found.epsilon_central


@pytest.mark.parametrize("departure", sorted(DEPARTURES))
def test_no_departure_is_certified(departure):
    found = entry(FEMNIST, [departure], np.full(50, 7))
    assert found.claim == "nominal"
    assert found.departures == (departure,)


@pytest.mark.parametrize(
    "departure", sorted(DEPARTURES.keys() - {"update_against_global", "noise_per_participant"})
)
def test_every_departure_that_moves_a_number_says_why(departure):
    assert any(
        words in " ".join(entry(FEMNIST, [departure], np.full(50, 7)).warnings)
        for words in (departure, "examples")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "departures",
    [names for names in published() if {*names} & WITHOUT_BOUND.keys() - {"clip_in_training"}],
)
@pytest.mark.parametrize("sample_rate", [1.0, 0.2])
def test_methods_without_a_bound_have_infinite_epsilons(departures, sample_rate):
    plan = dataclasses.replace(FEMNIST, sample_rate=sample_rate)
    found = ledger(plan, request(plan, 2.0), departures, np.arange(1, 51), TENSORS)
    assert {getattr(found, name) for name in EPSILONS} == {math.inf}
    assert found.noise_multiplier_effective == 0
    assert found.epsilon_nominal == 2.0
    assert any("no finite epsilon" in warning for warning in found.warnings)
    written = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert {written[name] for name in EPSILONS} == {"inf"}
    assert from_json(Ledger, written, "plan") == found


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
        assert found == dataclasses.replace(FEMNIST, noise_multiplier=0.0)


def test_clipping_in_parts_counts_tensors_or_layers_whichever_are_more():
    tensors, layers = "per_tensor_clip", "per_layer_clip_unscaled"
    for departures, parts in (([tensors], 62), ([layers], 31), ([tensors, layers], 62)):
        plan = effective_plan(FEMNIST, departures, parameters=TENSORS)
        assert plan.noise_multiplier == pytest.approx(1 / math.sqrt(parts))
        found = entry(FEMNIST, departures)
        message = dataclasses.replace(FEMNIST, noise_multiplier=1 / math.sqrt(parts))
        assert found.epsilon_local == pytest.approx(epsilon_local(message, 0.02))


def test_parts_clipped_in_l2_give_a_laplace_plan_no_guarantee():
    # Each part has an L2 length of at most C, which allows an L1 length of sqrt(d) C.
    assert entry(LAPLACE, ["per_tensor_clip"]).epsilon_central == math.inf


def test_data_size_weights_reduce_the_multiplier_as_computed_by_hand():
    # Sizes 1, 1, 2: p = (1/4, 1/4, 1/2), |p| = sqrt(6)/4, so the multiplier falls by sqrt(6)/4 /
    # (sqrt(3)/2) = 1/sqrt(2).
    plan = dataclasses.replace(FEMNIST, clients=3, noise_multiplier=5.0)
    found = entry(plan, ["data_size_weights"], np.array([10, 10, 20]))
    assert found.noise_multiplier == 5.0
    assert found.noise_multiplier_effective == pytest.approx(5.0 / math.sqrt(2))
    weaker = dataclasses.replace(plan, noise_multiplier=5.0 / math.sqrt(2))
    assert found.epsilon_central == pytest.approx(epsilon(weaker, 0.02))
    assert found.epsilon_rdp == pytest.approx(epsilon_rdp(weaker, 0.02))
    assert found.epsilon_local == pytest.approx(
        epsilon(dataclasses.replace(plan, noise_multiplier=5.0 / math.sqrt(3)), 0.02)
    )
    assert found.epsilon_nominal is None  # a fixed multiplier claims no epsilon
    equal = entry(plan, ["data_size_weights"], np.full(3, 7))
    assert equal.noise_multiplier_effective == pytest.approx(5.0)


def test_noise_of_messages_protects_nobody_whose_cohort_is_secret():
    plan = dataclasses.replace(FEMNIST, clients=10, sample_rate=0.1, noise_multiplier=8.0)
    for departure in ("noise_per_participant", "noise_not_divided", "data_size_weights"):
        found = entry(plan, [departure], np.arange(1, 11))
        assert {getattr(found, name) for name in EPSILONS} == {math.inf}
        assert any("0.039 a round" in warning for warning in found.warnings)  # 0.1 * 0.9^9
        everybody = dataclasses.replace(plan, sample_rate=1.0)
        assert entry(everybody, [departure], np.arange(1, 11)).epsilon_central < math.inf


@pytest.mark.parametrize("rate", [0.5, 0.75, 0.99])
def test_nor_where_more_than_half_of_the_clients_are_drawn(rate):
    """At any rate below 1 a client drawn alone is the difference between noise and nothing."""
    plan = dataclasses.replace(FEMNIST, clients=4, sample_rate=rate, noise_multiplier=8.0)
    for departure in ("noise_per_participant", "noise_not_divided", "data_size_weights"):
        assert entry(plan, [departure], np.arange(1, 5)).epsilon_central == math.inf


def test_shares_of_the_noise_are_whole_when_everyone_takes_part():
    assert effective_plan(FEMNIST, ["noise_per_participant"]).noise_multiplier == pytest.approx(1.0)
    assert entry(FEMNIST, ["noise_per_participant"]).epsilon_local == pytest.approx(
        epsilon_local(FEMNIST, 0.02)
    )


def test_undivided_noise_adds_up_and_protects_single_messages_as_the_plan_protects_the_sum():
    found = entry(FEMNIST, ["noise_not_divided"])
    assert found.noise_multiplier_effective == pytest.approx(math.sqrt(50))
    assert found.epsilon_local == pytest.approx(epsilon(FEMNIST, 0.02))
    weighted = effective_plan(FEMNIST, ["noise_not_divided", "data_size_weights"], np.arange(1, 51))
    assert weighted.noise_multiplier == pytest.approx(np.linalg.norm(np.arange(1, 51)) / 50)


@pytest.mark.parametrize(
    "departures", [("data_size_weights",), FEDSAM_CODE, ("noise_per_participant",), ()]
)
def test_known_cohorts_are_composed_client_by_client(departures):
    plan = dataclasses.replace(FEMNIST, clients=7, sample_rate=0.4, rounds=25, noise_multiplier=3.0)
    sizes = np.array([3, 1, 4, 1, 5, 9, 2])
    names = {*departures, "public_sampling"}
    weighted = "data_size_weights" in names
    # the largest mu^2 = sum over a client's rounds of (how far it moves the average / std of the
    # noise)^2
    worst = 0.0
    for client in range(7):
        mu_squared = 0.0
        for round in range(25):
            drawn = [other for other in range(7) if cohorts.public_cohort(round, plan)[other]]
            if client in drawn and names & OF_MESSAGES:
                counts = [sizes[other] if weighted else 1 for other in drawn]
                own = sizes[client] if weighted else 1
                share = 1 / math.sqrt(0.4 * 7)
                mu_squared += (
                    own / (3.0 * share * math.sqrt(sum(count**2 for count in counts)))
                ) ** 2
            elif client in drawn:
                mu_squared += 1 / 3.0**2
        worst = max(worst, mu_squared)
    found = effective_plan(plan, names, sizes, TENSORS)
    parts = 62 if "per_tensor_clip" in names else 1
    assert found.sample_rate == 1
    assert found.rounds / found.noise_multiplier**2 == pytest.approx(worst * parts)
    most = max(
        int(sum(cohorts.public_cohort(round, plan)[client] for round in range(25)))
        for client in range(7)
    )
    assert found.rounds == most
    local = entry(plan, names, sizes).epsilon_local
    share = 1 / math.sqrt(0.4 * 7)
    single = dataclasses.replace(
        plan, sample_rate=1.0, rounds=most, noise_multiplier=3.0 * share / math.sqrt(parts)
    )
    assert local == pytest.approx(epsilon(single, 0.02))


def test_a_public_draw_in_which_nobody_holds_examples_releases_nothing():
    plan = dataclasses.replace(FEMNIST, clients=40, sample_rate=0.05, rounds=1)
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
    plan = dataclasses.replace(
        LAPLACE if "clip_in_training" in departures else FEMNIST,
        sample_rate=0.3,
        noise_multiplier=10.0,
    )
    sizes = np.arange(1, 51)
    entries = [
        ledger(plan, request(plan), order, sizes, TENSORS)
        for order in itertools.permutations(departures)
    ]
    assert all(other == entries[0] for other in entries)


# ---------------------------------------------------------------- against the release that is
# accounted


PARAMETERS = ("a.weight", "a.bias", "b.weight")


def spread_of_release(plan, departures, sizes, present, canary):
    """Return how far the canary client moves a release, in standard deviations of its noise, from
    many repeats."""
    repeats, clients = 4000, len(present)
    update = {name: torch.zeros(repeats, clients, 2, dtype=torch.float64) for name in PARAMETERS}
    weighted = "data_size_weights" in departures
    extras = {"size": torch.from_numpy(sizes).expand(repeats, clients)} if weighted else {}
    here = torch.from_numpy(present).expand(repeats, clients)

    def flat(update):
        given = np.random.default_rng(0), Uploads(update, extras), here, plan
        released = mechanism.release(*given, departures=departures)
        return torch.cat([released.sum[name] for name in PARAMETERS], dim=1)

    absent = flat(update)
    full = {name: value.clone() for name, value in update.items()}
    for value in full.values():
        value[:, canary, 0] = 10.0
    moved = flat(full) - absent
    assert moved.std(dim=0).max() < 1e-9
    return float((moved[0].square().sum()).sqrt() / absent.std())


@pytest.mark.parametrize(
    "departures",
    [
        (),
        ("per_tensor_clip",),
        ("per_layer_clip_unscaled",),
        ("data_size_weights",),
        ("noise_per_participant",),
        ("noise_not_divided",),
        ("noise_not_divided", "data_size_weights", "per_tensor_clip"),
        FEDSAM_CODE,
    ],
)
def test_a_client_moves_one_release_by_what_the_ledger_counts(departures):
    public = "public_sampling" in departures
    plan = Plan("gaussian", 2, 1.0, 2.0, 0.5 if public else 1.0, 1, 1e-3, 6)
    sizes = np.array([2, 7, 1, 8, 2, 8])
    present = cohorts.public_cohort(0, plan) if public else np.ones(6, dtype=bool)
    heaviest = int(np.where(present, sizes, 0).argmax())
    found = effective_plan(plan, departures, sizes, PARAMETERS)
    assert found.rounds == 1
    measured = spread_of_release(plan, departures, sizes, present, heaviest)
    # 24,000 draws: 0.5 % standard error
    assert 1 / found.noise_multiplier == pytest.approx(measured, rel=0.02)


def test_a_coordinate_divided_by_the_count_of_those_who_keep_it_is_zero_without_its_only_client():
    masks = {"mask.w": torch.tensor([[True, True], [False, True]])}
    uploads = Uploads({"w": torch.ones(2, 2)}, masks)
    without = Uploads(
        {"w": torch.ones(2, 2)}, {"mask.w": torch.tensor([[False, True], [False, True]])}
    )
    plan = dataclasses.replace(FEMNIST, clients=2, noise_multiplier=100.0)
    here, named = torch.ones(2, dtype=torch.bool), ["divide_by_counts"]
    for each, is_zero in ((uploads, False), (without, True)):
        draw = np.random.default_rng(0)
        released = mechanism.release(draw, each, here, plan, departures=named)
        assert (released.sum["w"][0] == 0) == is_zero


# ---------------------------------------------------------------- the edges


def test_no_privacy_asked_claims_nothing():
    plan = make_plan(Privacy(), rounds=5, sample_rate=0.5, clients=4)
    assert plan == Plan("none", 2, None, None, 0.5, 5, None, 4)
    found = ledger(plan, Privacy(), ["data_size_weights", "noise_on_support", "per_tensor_clip"])
    assert found.claim == "none"
    numbers = ("epsilon", "noise", "clip", "delta")
    assert {vars(found)[name] for name in vars(found) if name.startswith(numbers)} == {None}


def test_infinite_epsilons_are_written_as_words():
    silent = request(dataclasses.replace(FEMNIST, noise_multiplier=0.0))
    found = entry(make_plan(silent, rounds=5, sample_rate=1.0, clients=4), [])
    assert {getattr(found, name) for name in EPSILONS} == {math.inf}
    written = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert {written[name] for name in EPSILONS} == {"inf"}
    assert from_json(Ledger, written, "plan") == found


def test_vacuous_delta_is_a_warning_beside_the_tight_epsilon():
    asked = Privacy("gaussian", epsilon=2.0, delta=0.02, clip_norm=1.0)
    plan = make_plan(asked, rounds=30, sample_rate=1.0, clients=50)
    found = ledger(plan, asked)
    assert any("1/M" in warning for warning in found.warnings)
    assert found.epsilon_central_1e5 == pytest.approx(4.3, abs=0.05)
    assert ledger(dataclasses.replace(plan, delta=1e-3), asked).warnings == ()


@pytest.mark.parametrize(
    ("delta", "words"),
    TABLES["a delta above a tenth of one over the number of clients is a warning"],
)
def test_a_delta_above_a_tenth_of_one_over_the_number_of_clients_is_a_warning(delta, words):
    found = entry(dataclasses.replace(FEMNIST, delta=delta), []).warnings
    assert len(found) == (words is not None)
    assert not words or words in found[0]


def test_laplace_ledger_has_no_number_where_none_is_defined():
    asked = Privacy("laplace", epsilon=3.0, clip_norm=1.0)
    found = ledger(make_plan(asked, rounds=6, sample_rate=1.0, clients=10), asked)
    assert found.claim == "certified"
    assert found.noise_multiplier == pytest.approx(2.0)
    assert found.epsilon_central == pytest.approx(3.0)
    assert found.epsilon_rdp is None
    assert found.epsilon_local is None


@pytest.mark.parametrize(
    ("plan", "departures", "sizes", "words"),
    [
        (FEMNIST, ["data_size_weights"], None, "data_size_weights.*no sizes"),
        (FEMNIST, ["data_size_weights"], np.ones(49), "50 counts"),
        (FEMNIST, ["per_tensor_clip"], None, "names of the model's parameters"),
        (FEMNIST, ["per_layer_clip_unscaled"], None, "names of the model's parameters"),
        (LAPLACE, ["data_size_weights"], np.ones(50), "got 'laplace'"),
        (LAPLACE, ["noise_on_support"], None, "got 'laplace'"),
        (FEMNIST, ["public_samplin"], None, "public_sampling"),
    ],
)
def test_departures_that_cannot_be_counted_say_why(plan, departures, sizes, words):
    with pytest.raises(PrivacyError, match=words) as caught:
        effective_plan(plan, departures, sizes)
    assert "\n" not in str(caught.value)
