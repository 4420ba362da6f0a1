"""The ledger's columns: by dp-accounting over a hundred plans, by the tables of the literature, by
what release() does."""

import dataclasses
import functools
import json
import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pflpipe.cells import Privacy
from pflpipe.facts.departures import OF_MESSAGES, WITHOUT_BOUND
from pflpipe.json_records import from_json, to_json
from pflpipe.privacy import cohorts, mechanism
from pflpipe.privacy.accounting import (
    calibrate,
    epsilon,
    epsilon_local,
    epsilon_replace_one,
    make_plan,
)
from pflpipe.privacy.ledger import Ledger, ledger
from pflpipe.privacy.mechanism import Uploads
from pflpipe.privacy.plan import Plan
from releases import DSU, FEDSIM, FEMNIST, SVHN, published

SAMPLED = dataclasses.replace(FEMNIST, rounds=6, delta=1e-3, sample_rate=0.3, noise_multiplier=9.0)
LAPLACE = dataclasses.replace(
    FEMNIST, mechanism="laplace", norm=1, delta=1e-3, rounds=4, noise_multiplier=8.0
)
PARAMETERS = ("a.weight", "a.bias", "b.weight")
MULTIPLIERS = [f"noise_multiplier_{name}" for name in ("effective", "message", "weighted", "group")]
EPSILONS = [
    f"epsilon_{name}{at}"
    for name in ("central", "replace_one", "local", "local_replace_one", "rdp")
    for at in ("", "_1e5")
]


def entry(plan, departures=(), sizes=None, parameters=PARAMETERS):
    asked = Privacy(
        plan.mechanism, noise_multiplier=plan.noise_multiplier, delta=plan.delta, clip_norm=1.0
    )
    return ledger(
        plan,
        asked,
        departures,
        np.arange(1, plan.clients + 1) if sizes is None else sizes,
        parameters,
    )


def half_unit(printed):
    """Half a unit of the last printed digit."""
    return 0.5000001 * 10.0 ** -len(printed.partition(".")[2])


# ---------------------------------------------------------------- a hundred plans, counted a second
# time by dp-accounting


@functools.cache
def hundred_plans():
    """A fixed grid of a hundred: (plan, departures, sizes). Known cohorts with every finite
    departure, secret ones, and Laplace noise."""
    draw = np.random.default_rng(20240501)
    finite = [(), ("update_against_global",), ("noise_per_participant",), ("data_size_weights",)]
    finite += [("noise_not_divided",), ("per_tensor_clip",)]
    finite += [("per_layer_clip_unscaled", "data_size_weights")]
    finite += [("per_tensor_clip", "data_size_weights", "public_sampling"), ("public_sampling",)]
    found, alike = [], np.ones(10, dtype=int)
    for departures in 9 * finite:
        clients, rounds = int(draw.integers(2, 12)), int(draw.integers(1, 40))
        rate = float(draw.choice([0.3, 0.6])) if "public_sampling" in departures else 1.0
        multiplier, delta = float(10 ** draw.uniform(-0.5, 1.5)), float(10 ** draw.uniform(-6, -1))
        plan = Plan("gaussian", 2, 1.0, multiplier, rate, rounds, delta, clients)
        found.append((plan, departures, draw.integers(1, 50, clients)))
    # Few: from q = 0.3 on dp-accounting's RDP of broken orders does not converge.
    for number in range(6):
        rate, rounds = float(draw.uniform(0.02, 0.2)), int(draw.integers(1, 8))
        multiplier, delta = float(draw.uniform(8, 20)), float(10 ** draw.uniform(-6, -2))
        plan = Plan("gaussian", 2, 1.0, multiplier, rate, rounds, delta, 10)
        found.append((plan, ("per_tensor_clip",) if number % 5 == 0 else (), alike))
    for number in range(13):
        delta = 0.0 if number % 4 == 0 else float(10 ** draw.uniform(-6, -2))
        rate = float(draw.uniform(0.1, 0.9)) if number % 4 == 1 else 1.0
        rounds, multiplier = int(draw.integers(1, 6)), float(draw.uniform(6, 20))
        found.append((Plan("laplace", 1, 1.0, multiplier, rate, rounds, delta, 10), (), alike))
    return found


def mu_of(plan, departures, sizes):
    """sqrt of the largest sum over a client's rounds of (how far it moves the average / standard
    deviation of the noise)^2."""
    parts = {"per_tensor_clip": 3, "per_layer_clip_unscaled": 2}
    length = math.sqrt(max([1, *(parts[name] for name in parts if name in departures)]))
    cohort = 1.0 if "noise_not_divided" in departures else plan.sample_rate * plan.clients
    each = plan.noise_multiplier / math.sqrt(cohort)  # deviation of a message's noise, for C = 1
    totals = [0.0] * plan.clients
    for round in range(plan.rounds):
        drawn = range(plan.clients)
        if "public_sampling" in departures:
            size = max(1, int(np.rint(plan.sample_rate * plan.clients)))
            drawn = np.random.default_rng(round).choice(plan.clients, size, replace=False).tolist()
        counts = {
            client: float(sizes[client]) if "data_size_weights" in departures else 1.0
            for client in drawn
        }
        weights = {client: count / sum(counts.values()) for client, count in counts.items()}
        spread = math.sqrt(sum((weight * each) ** 2 for weight in weights.values()))
        for client, weight in weights.items():
            if OF_MESSAGES.isdisjoint(departures):
                totals[client] += (length / plan.noise_multiplier) ** 2  # one draw for the sum
            else:
                totals[client] += (weight * length / spread) ** 2
    return math.sqrt(max(totals))


def by_dp_accounting(plan, departures, sizes):
    """Every epsilon of the ledger, from dp-accounting's own descriptions and formulas; nothing of
    pflpipe."""
    relation, found = dp_accounting.NeighboringRelation, {}
    deltas = {"": plan.delta, "_1e5": 1e-5}
    if plan.mechanism == "laplace":
        for name, scale in (
            ("central", plan.noise_multiplier),
            ("replace_one", plan.noise_multiplier / 2),
        ):
            rate = plan.sample_rate
            if name == "replace_one" and rate < 1:
                continue  # dp-accounting has no such pair; test_laplace.py
            event = dp_accounting.LaplaceDpEvent(scale)
            pld = PLDAccountant().compose(
                event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event),
                plan.rounds,
            )
            pure = plan.rounds * math.log1p(plan.sample_rate * math.expm1(1 / scale))
            for at, delta in deltas.items():
                found[f"epsilon_{name}{at}"] = (
                    pure if delta == 0 else min(pure, pld.get_epsilon(delta))
                )
        return found
    from opacus.accountants import RDPAccountant

    rdp = RdpAccountant(RDPAccountant.DEFAULT_ALPHAS)
    if plan.sample_rate < 1 and "public_sampling" not in departures:
        multiplier = plan.noise_multiplier / math.sqrt(3 if "per_tensor_clip" in departures else 1)
        event = dp_accounting.PoissonSampledDpEvent(
            plan.sample_rate, dp_accounting.GaussianDpEvent(multiplier)
        )
        rdp.compose(event, plan.rounds)
        central, replaced = (
            PLDAccountant(kind).compose(event, plan.rounds)
            for kind in (relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE)
        )
        for at, delta in deltas.items():
            found |= {
                f"epsilon_central{at}": central.get_epsilon(delta),
                f"epsilon_replace_one{at}": replaced.get_epsilon(delta),
            }
    else:
        mu = mu_of(plan, departures, sizes)
        rdp.compose(dp_accounting.GaussianDpEvent(1 / mu))
        for at, delta in deltas.items():
            found[f"epsilon_central{at}"] = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
            found[f"epsilon_replace_one{at}"] = dp_accounting.get_epsilon_gaussian(
                1 / (2 * mu), delta
            )
    alone = departures if "noise_not_divided" in departures else ()
    share = 1.0 if alone else 1 / math.sqrt(plan.sample_rate * plan.clients)
    # A message by itself: nobody else's noise, the same clipping and schedule, and a server that
    # knows who takes part.
    clipping = tuple(name for name in departures if "clip" in name or name == "public_sampling")
    known = plan if "public_sampling" in departures else dataclasses.replace(plan, sample_rate=1.0)
    mu = mu_of(
        dataclasses.replace(known, noise_multiplier=plan.noise_multiplier * share), clipping, sizes
    )
    for at, delta in deltas.items():
        found[f"epsilon_local{at}"] = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
        found[f"epsilon_local_replace_one{at}"] = dp_accounting.get_epsilon_gaussian(
            1 / (2 * mu), delta
        )
        found[f"epsilon_rdp{at}"] = rdp.get_epsilon(delta)
    return found


def test_the_grid_has_a_hundred_plans_with_every_kind_of_sampling():
    plans = hundred_plans()
    assert len(plans) == len({plan for plan, *_ in plans}) == 100
    assert {
        (plan.mechanism, plan.sample_rate < 1, "public_sampling" in departures)
        for plan, departures, _ in plans
    } == {
        ("gaussian", False, False),
        ("gaussian", True, True),
        ("gaussian", True, False),
        ("laplace", False, False),
        ("laplace", True, False),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_the_ledgers_epsilons_are_those_of_dp_accounting(number):
    plan, departures, sizes = hundred_plans()[number]
    found, wanted = entry(plan, departures, sizes), by_dp_accounting(plan, departures, sizes)
    known = {name for name in EPSILONS if getattr(found, name) is not None}
    if plan.mechanism == "laplace" and plan.sample_rate < 1:
        known -= {"epsilon_replace_one", "epsilon_replace_one_1e5"}
    assert wanted.keys() == known
    for name, value in wanted.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name


# ---------------------------------------------------------------- the tables of the literature


# Multipliers of DP-pFedDSU with sampling (delta 1e-5, T 100): exact by PLD, and by Renyi
# accounting.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample_rate", "target", "exact", "rdp"),
    [(0.5, 0.5, "35.27", "38.44"), (0.5, 1, "18.76", "20.34"), (0.2, 1, "7.63", "8.28")],
)
def test_the_known_multipliers_of_sampled_plans_have_their_epsilon(sample_rate, target, exact, rdp):
    for printed, name, slack in ((exact, "epsilon_central", 1.5e-3), (rdp, "epsilon_rdp", 2.5e-3)):
        plan = dataclasses.replace(DSU, sample_rate=sample_rate, noise_multiplier=float(printed))
        assert getattr(entry(plan), name) == pytest.approx(
            target, rel=slack
        )  # at these epsilons a last digit is 0.03 to 0.13 %


@pytest.mark.parametrize(
    ("plan", "target", "printed"),
    [
        (FEMNIST, 2, "5.4"),
        (FEMNIST, 4, "11.1"),
        (FEMNIST, 8, "23.4"),
        (FEMNIST, 16, "49.5"),
        (SVHN, 2, "6.4"),
        (SVHN, 4, "12.9"),
        (SVHN, 6, "19.6"),
        (SVHN, 8, "26.4"),
        (DSU, 0.5, "1.07"),
        (DSU, 1, "2.15"),
        (DSU, 2, "4.39"),
    ],
)
def test_replace_one_of_the_known_settings(plan, target, printed):
    assert entry(calibrate(plan, target)).epsilon_replace_one == pytest.approx(
        float(printed), abs=half_unit(printed)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multiplier", "known", "everybody", "clients"),
    [("2.248", "6.5", "28", "14.1"), ("1.386", "11.8", "56", "42.9")],
)
def test_other_readings_of_the_dp_fedsim_setting(multiplier, known, everybody, clients):
    plan = dataclasses.replace(FEDSIM, noise_multiplier=float(multiplier))
    # A schedule that everybody knows, ten rounds a client; nobody left out; noise divided by all
    # clients, not by the cohort.
    readings = {
        known: dataclasses.replace(plan, sample_rate=1.0, rounds=10),
        everybody: dataclasses.replace(plan, sample_rate=1.0),
        clients: dataclasses.replace(plan, noise_multiplier=float(multiplier) * math.sqrt(0.1)),
    }
    for printed, reading in readings.items():
        assert epsilon(reading, 1e-5) == pytest.approx(
            float(printed), abs=half_unit(printed), rel=2e-3
        )


@pytest.mark.parametrize(
    ("target", "central", "tight", "local"),
    [(2, 48.9, 75.2, 420), (4, 58.8, 87.9, 511), (6, 65.8, 96.8, 576), (8, 71.3, 104, 627)],
)
def test_official_feddpa_calibration_on_svhn_in_the_ledger(target, central, tight, local):
    asked, names = (
        Privacy("gaussian", epsilon=float(target), delta=0.1, clip_norm=1.0),
        ["sample_level_calibration"],
    )
    sizes = np.array([73257 - 9, *[1] * 9])
    shape = {"rounds": 15, "sample_rate": 1.0, "clients": 10, "local_epochs": 2, "batch_size": 16}
    found = ledger(make_plan(asked, departures=names, sizes=sizes, **shape), asked, names, sizes)
    for name, printed in (
        ("epsilon_central", central),
        ("epsilon_central_1e5", tight),
        ("epsilon_local", local),
    ):
        assert getattr(found, name) == pytest.approx(
            printed, rel=5e-3
        )  # the multiplier was printed with three digits


# ---------------------------------------------------------------- replace-one


def test_without_sampling_replacing_a_client_costs_what_half_the_noise_costs():
    for plan in (FEMNIST, LAPLACE, dataclasses.replace(LAPLACE, delta=0.0)):
        halved = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / 2)
        assert epsilon_replace_one(plan, plan.delta) == pytest.approx(epsilon(halved, plan.delta))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        SAMPLED,
        dataclasses.replace(SAMPLED, sample_rate=0.9),
        dataclasses.replace(LAPLACE, sample_rate=0.3),
    ],
)
def test_with_sampling_replacing_lies_between_zeroing_and_two_steps_of_zeroing(plan):
    zeroed, replaced = epsilon(plan, 1e-3), epsilon_replace_one(plan, 1e-3)
    assert replaced > zeroed
    assert replaced <= epsilon(
        dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / 2, sample_rate=1.0), 1e-3
    )
    # From one client to none and on to the other: 2 epsilon at (1 + e^epsilon) delta.
    assert epsilon_replace_one(plan, (1 + math.exp(zeroed)) * 1e-3) <= 2 * zeroed


def test_no_noise_protects_from_no_replacement():
    for plan in (FEMNIST, SAMPLED, LAPLACE):
        assert (
            epsilon_replace_one(dataclasses.replace(plan, noise_multiplier=0.0), 1e-3) == math.inf
        )


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("plan", "departures", "sampling", "releases"),
    [
        (FEMNIST, (), "everybody", 1),
        (FEMNIST, ("public_sampling",), "everybody", 1),
        (FEMNIST, ("data_size_weights", "public_sampling"), "everybody", 50),
        (SAMPLED, (), "poisson", 1),
        (SAMPLED, ("noise_on_support",), "poisson", 15),
        (SAMPLED, ("public_sampling", "per_tensor_clip"), "public", 1),
        (
            dataclasses.replace(SAMPLED, clients=12),
            ("public_sampling", "data_size_weights"),
            "public",
            4,
        ),
        (LAPLACE, (), "everybody", 1),
    ],
)
def test_who_takes_part_and_how_many_messages_leave(plan, departures, sampling, releases):
    found = entry(plan, departures)
    assert (found.trust, found.sampling) == ("central", sampling)
    assert found.releases_per_round == pytest.approx(releases)


def test_a_plan_without_privacy_has_words_for_its_sampling_and_no_number():
    found = ledger(make_plan(Privacy(), rounds=5, sample_rate=0.5, clients=4), Privacy())
    assert found.sampling == "poisson"
    assert found.trust is found.releases_per_round is None
    assert {getattr(found, name) for name in (*EPSILONS, *MULTIPLIERS)} == {None}


# ---------------------------------------------------------------- multipliers, against what
# release() does


def spreads(plan, departures, sizes, keep=None):
    """Standard deviation of the noise in one message and in the average, by coordinate, from 4000
    releases of nothing.

    Args:
        keep: bool ``[M, 6]``, the coordinates that each client's mask keeps.
    """
    repeats, clients = 4000, plan.clients
    update = {name: torch.zeros(repeats, clients, 2, dtype=torch.float64) for name in PARAMETERS}
    extras = {}
    if "data_size_weights" in departures:
        extras["size"] = torch.from_numpy(sizes).expand(repeats, clients)
    if keep is not None:
        for place, name in enumerate(PARAMETERS):
            extras[f"mask.{name}"] = keep[:, 2 * place : 2 * place + 2].expand(repeats, clients, 2)
    present = torch.ones(repeats, clients, dtype=torch.bool)
    released = mechanism.release(
        np.random.default_rng(1), Uploads(update, extras), present, plan, departures=departures
    )
    total = torch.cat([released.sum[name] for name in PARAMETERS], dim=-1).std(dim=0)
    if not released.messages:
        return None, total
    return torch.cat([released.messages[name] for name in PARAMETERS], dim=-1).std(dim=0), total


@pytest.mark.parametrize(
    ("departures", "parts"),
    [
        (("noise_per_participant",), 1),
        (("data_size_weights",), 1),
        (("noise_not_divided",), 1),
        (("per_tensor_clip", "data_size_weights"), 3),
        (("per_layer_clip_unscaled", "noise_per_participant"), 2),
    ],
)
def test_a_messages_multiplier_is_its_noise_over_how_long_it_may_be(departures, parts):
    plan, sizes = (
        dataclasses.replace(FEMNIST, clients=6, noise_multiplier=2.0),
        np.array([2, 7, 1, 8, 2, 8]),
    )
    message, total = spreads(plan, departures, sizes)
    found = entry(plan, departures, sizes)
    assert found.noise_multiplier_message == pytest.approx(
        float(message.mean()) / math.sqrt(parts), rel=0.01
    )
    weights = sizes / sizes.sum() if "data_size_weights" in departures else np.full(6, 1 / 6)
    moved = float(weights.max()) * math.sqrt(parts)
    assert found.noise_multiplier_effective == pytest.approx(float(total.mean()) / moved, rel=0.01)
    if "data_size_weights" in departures:
        assert found.noise_multiplier_weighted == found.noise_multiplier_effective
    else:
        assert found.noise_multiplier_weighted is None
    assert found.noise_multiplier_group is None


@pytest.mark.parametrize(
    "departures", [("noise_on_support",), ("noise_on_support", "divide_by_counts")]
)
def test_a_groups_multiplier_is_that_of_coordinates_which_one_client_alone_keeps(departures):
    plan = dataclasses.replace(FEMNIST, clients=4, noise_multiplier=3.0)
    keep = torch.ones(4, 6, dtype=torch.bool)
    keep[1:, 0] = False
    _, total = spreads(plan, departures, np.ones(4), keep)
    moved = (
        1.0 if "divide_by_counts" in departures else 0.25
    )  # by the client that keeps coordinate 0, when it sends C = 1 there
    found = entry(plan, departures)
    assert found.noise_multiplier_group == pytest.approx(
        float(total[0]) / moved, rel=0.03
    )  # one coordinate: 4000 draws
    assert found.noise_multiplier_group == pytest.approx(3.0 / 2)
    assert found.noise_multiplier_effective == found.noise_multiplier_message == 0


def test_a_step_that_bounds_nothing_leaves_the_cost_of_the_weights_visible():
    plan, names = (
        dataclasses.replace(FEMNIST, clients=3, noise_multiplier=5.0),
        ["data_size_weights", "private_clamp"],
    )
    found = entry(plan, names, np.array([10, 10, 20]))
    assert found.noise_multiplier_weighted == pytest.approx(
        5.0 / math.sqrt(2)
    )  # sizes 1, 1, 2: see test_ledger.py
    assert found.noise_multiplier_effective == 0
    assert entry(
        plan, [*names, "noise_not_divided"], np.array([10, 10, 20])
    ).noise_multiplier_weighted == pytest.approx(5.0 * math.sqrt(6) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "departures",
    [(), ("per_tensor_clip",), ("noise_not_divided",), ("data_size_weights", "public_sampling")],
)
@pytest.mark.parametrize("sample_rate", [1.0, 0.4])
def test_epsilons_follow_from_the_multipliers_beside_them(departures, sample_rate):
    plan = dataclasses.replace(SAMPLED, sample_rate=sample_rate, clients=10)
    found = entry(plan, departures)
    if found.noise_multiplier_effective == 0:
        assert found.sampling == "poisson"
        return
    rounds = plan.rounds
    if found.sampling == "public":
        rounds = max(
            sum(bool(cohorts.public_cohort(t, plan)[client]) for t in range(plan.rounds))
            for client in range(10)
        )
    rate = plan.sample_rate if found.sampling == "poisson" else 1.0
    central = dataclasses.replace(
        plan, noise_multiplier=found.noise_multiplier_effective, sample_rate=rate, rounds=rounds
    )
    single = dataclasses.replace(
        plan, noise_multiplier=found.noise_multiplier_message, sample_rate=1.0, rounds=rounds
    )
    for at, delta in (("", plan.delta), ("_1e5", 1e-5)):
        assert getattr(found, f"epsilon_central{at}") == pytest.approx(epsilon(central, delta))
        assert getattr(found, f"epsilon_local{at}") == pytest.approx(epsilon(single, delta))
        assert getattr(found, f"epsilon_local_replace_one{at}") == pytest.approx(
            epsilon_replace_one(single, delta)
        )


def test_a_certified_message_carries_its_share_of_the_noise():
    found = entry(SAMPLED)
    assert found.noise_multiplier_message == pytest.approx(9.0 / math.sqrt(0.3 * 50))
    assert found.epsilon_local_1e5 == pytest.approx(epsilon_local(SAMPLED, 1e-5))


# ---------------------------------------------------------------- what does not exist, and what is
# infinite


@pytest.mark.parametrize(
    "departures", [names for names in published() if {*names} & WITHOUT_BOUND.keys()]
)
def test_where_nothing_holds_every_epsilon_is_infinite_and_every_multiplier_that_counts_is_zero(
    departures,
):
    laplace = "clip_in_training" in departures
    found = entry(LAPLACE if laplace else FEMNIST, departures)
    without = {name for name in EPSILONS if "local" in name or "rdp" in name} if laplace else set()
    assert {getattr(found, name) for name in EPSILONS if name not in without} == {math.inf}
    assert {getattr(found, name) for name in without} <= {None}
    assert found.noise_multiplier_effective == 0
    assert found.noise_multiplier_message == (None if laplace else 0)
    assert (found.noise_multiplier_group is not None) == ("noise_on_support" in departures)
    assert (found.noise_multiplier_weighted is not None) == ("data_size_weights" in departures)
    written = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert from_json(Ledger, written, "plan") == found


def test_laplace_noise_has_no_single_messages_and_no_renyi_number():
    found = entry(LAPLACE)
    nothing = {
        *(name for name in EPSILONS if "local" in name or "rdp" in name),
        *MULTIPLIERS,
    } - {"noise_multiplier_effective"}
    assert {getattr(found, name) for name in nothing} == {None}
    assert found.noise_multiplier_effective == 8.0
    assert found.epsilon_replace_one_1e5 > found.epsilon_central_1e5 > 0
