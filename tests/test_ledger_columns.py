"""The ledger's columns: by dp-accounting over a hundred plans, by the tables of the literature, by
what release() does."""

import functools
import json
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import releases
import tabled
from pflpipe.cells import Privacy
from pflpipe.facts.departures import OF_MESSAGES, WITHOUT_BOUND
from pflpipe.json_records import from_json, to_json
from pflpipe.privacy import cohorts
from pflpipe.privacy.accounting import calibrate, epsilon, epsilon_replace_one, make_plan
from pflpipe.privacy.ledger import Ledger, effective_plan, ledger
from pflpipe.privacy.plan import Plan
from releases import DSU, FEDSIM, FEMNIST, PARAMETERS, flat, published, released_often

TABLES = tabled.table("test_ledger_columns")
SAMPLED = replace(FEMNIST, rounds=6, delta=1e-3, sample_rate=0.3, noise_multiplier=9.0)
LAPLACE = replace(FEMNIST, mechanism="laplace", norm=1, delta=1e-3, rounds=4, noise_multiplier=8.0)
MULTIPLIERS = [f"noise_multiplier_{name}" for name in ("effective", "message", "weighted", "group")]
OF = ("central", "replace_one", "local", "local_replace_one", "rdp")
EPSILONS = [f"epsilon_{name}{at}" for name in OF for at in ("", "_1e5")]


def entry(plan, departures=(), sizes=None, target=None):
    multiplier = plan.noise_multiplier if target is None else None
    asked = Privacy(plan.mechanism, target, multiplier, plan.delta, clip_norm=1.0)
    sizes = np.arange(1, plan.clients + 1) if sizes is None else sizes
    return ledger(plan, asked, departures, sizes, PARAMETERS)


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
    found, alike = [], np.ones(10, dtype=int)
    for departures in map(tuple, 9 * TABLES["departures of the hundred plans"]):
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
    rows = sizes if "data_size_weights" in departures else [1] * plan.clients
    totals = [0.0] * plan.clients
    for round in range(plan.rounds):
        drawn = range(plan.clients)
        if "public_sampling" in departures:
            size = max(1, int(np.rint(plan.sample_rate * plan.clients)))
            drawn = np.random.default_rng(round).choice(plan.clients, size, replace=False).tolist()
        counts = {client: float(rows[client]) for client in drawn}
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

    def note(name, epsilon_at):
        found[f"epsilon_{name}"] = epsilon_at(plan.delta)
        found[f"epsilon_{name}_1e5"] = epsilon_at(1e-5)

    def sampled(event):
        rate = plan.sample_rate
        return event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)

    def laplace(scale):
        pld = PLDAccountant().compose(sampled(dp_accounting.LaplaceDpEvent(scale)), plan.rounds)
        pure = plan.rounds * math.log1p(plan.sample_rate * math.expm1(1 / scale))
        return lambda delta: pure if delta == 0 else min(pure, pld.get_epsilon(delta))

    def gaussian(mu):
        return lambda delta: dp_accounting.get_epsilon_gaussian(1 / mu, delta)

    if plan.mechanism == "laplace":
        note("central", laplace(plan.noise_multiplier))
        if plan.sample_rate == 1:  # else dp-accounting has no such pair; test_laplace.py
            note("replace_one", laplace(plan.noise_multiplier / 2))
        return found
    from opacus.accountants import RDPAccountant

    rdp = RdpAccountant(RDPAccountant.DEFAULT_ALPHAS)
    if plan.sample_rate < 1 and "public_sampling" not in departures:
        multiplier = plan.noise_multiplier / math.sqrt(3 if "per_tensor_clip" in departures else 1)
        event = sampled(dp_accounting.GaussianDpEvent(multiplier))
        rdp.compose(event, plan.rounds)
        kinds = {"central": relation.ADD_OR_REMOVE_ONE, "replace_one": relation.REPLACE_ONE}
        for name, kind in kinds.items():
            note(name, PLDAccountant(kind).compose(event, plan.rounds).get_epsilon)
    else:
        mu = mu_of(plan, departures, sizes)
        rdp.compose(dp_accounting.GaussianDpEvent(1 / mu))
        note("central", gaussian(mu))
        note("replace_one", gaussian(2 * mu))
    alone = departures if "noise_not_divided" in departures else ()
    share = 1.0 if alone else 1 / math.sqrt(plan.sample_rate * plan.clients)
    # A message by itself: nobody else's noise, the same clipping and schedule, and a server that
    # knows who takes part.
    clipping = tuple(name for name in departures if "clip" in name or name == "public_sampling")
    known = plan if "public_sampling" in departures else replace(plan, sample_rate=1.0)
    mu = mu_of(replace(known, noise_multiplier=plan.noise_multiplier * share), clipping, sizes)
    note("local", gaussian(mu))
    note("local_replace_one", gaussian(2 * mu))
    note("rdp", rdp.get_epsilon)
    return found


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
    if plan.mechanism == "gaussian" and plan.sample_rate == 1:  # the multipliers beside them
        mu = math.sqrt(plan.rounds) / found.noise_multiplier_effective
        assert mu == pytest.approx(mu_of(plan, departures, sizes))
        alone = replace(plan, noise_multiplier=found.noise_multiplier_message)
        for at, delta in (("", plan.delta), ("_1e5", 1e-5)):
            replaced = pytest.approx(epsilon_replace_one(alone, delta))
            assert getattr(found, f"epsilon_local{at}") == pytest.approx(epsilon(alone, delta))
            assert getattr(found, f"epsilon_local_replace_one{at}") == replaced


@pytest.mark.parametrize("departures", TABLES["departures of known cohorts"])
def test_known_cohorts_are_composed_client_by_client(departures):
    plan = replace(FEMNIST, clients=7, sample_rate=0.4, rounds=25, noise_multiplier=3.0)
    names, sizes = (*departures, "public_sampling"), np.array([3, 1, 4, 1, 5, 9, 2])
    most = sum(cohorts.public_cohort(round, plan).astype(int) for round in range(25)).max()
    found = effective_plan(plan, names, sizes, PARAMETERS)
    assert (found.sample_rate, found.rounds) == (1, most)
    mu = mu_of(plan, names, sizes)
    assert math.sqrt(found.rounds) / found.noise_multiplier == pytest.approx(mu)


# ---------------------------------------------------------------- the tables of the literature


@pytest.mark.slow
@pytest.mark.parametrize(("sample_rate", "target", "exact", "rdp"), TABLES["sampled plans"])
def test_the_known_multipliers_of_sampled_plans_have_their_epsilon(sample_rate, target, exact, rdp):
    # At these epsilons a last digit is 0.03 to 0.13 %.
    for printed, name, slack in ((exact, "epsilon_central", 1.5e-3), (rdp, "epsilon_rdp", 2.5e-3)):
        plan = replace(DSU, sample_rate=sample_rate, noise_multiplier=float(printed))
        assert getattr(entry(plan), name) == pytest.approx(target, rel=slack)


@pytest.mark.parametrize("setting", TABLES["replace-one of the known settings"])
def test_replace_one_of_the_known_settings(setting):
    for target, printed in TABLES["replace-one of the known settings"][setting].items():
        found = entry(calibrate(getattr(releases, setting), target)).epsilon_replace_one
        assert found == pytest.approx(float(printed), abs=half_unit(printed)), target


@pytest.mark.slow
@pytest.mark.parametrize(("multiplier", "known", "everybody", "clients"), TABLES["readings"])
def test_other_readings_of_the_dp_fedsim_setting(multiplier, known, everybody, clients):
    plan = replace(FEDSIM, noise_multiplier=float(multiplier))
    # A schedule that everybody knows, ten rounds a client; nobody left out; noise divided by all
    # clients, not by the cohort.
    whole = replace(plan, sample_rate=1.0)
    less = replace(plan, noise_multiplier=float(multiplier) * math.sqrt(0.1))
    readings = (known, replace(whole, rounds=10)), (everybody, whole), (clients, less)
    for printed, reading in readings:
        near = pytest.approx(float(printed), abs=half_unit(printed), rel=2e-3)
        assert epsilon(reading, 1e-5) == near


# ---------------------------------------------------------------- replace-one


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [SAMPLED, replace(SAMPLED, sample_rate=0.9), replace(LAPLACE, sample_rate=0.3)]
)
def test_with_sampling_replacing_lies_between_zeroing_and_two_steps_of_zeroing(plan):
    zeroed, replaced = epsilon(plan, 1e-3), epsilon_replace_one(plan, 1e-3)
    everybody = replace(plan, noise_multiplier=plan.noise_multiplier / 2, sample_rate=1.0)
    assert zeroed < replaced <= epsilon(everybody, 1e-3)
    # From one client to none and on to the other: 2 epsilon at (1 + e^epsilon) delta.
    assert epsilon_replace_one(plan, (1 + math.exp(zeroed)) * 1e-3) <= 2 * zeroed


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("row", TABLES["messages"])
def test_who_takes_part_and_how_many_messages_leave(row):
    of, changes, departures, sampling, messages = row
    plan = {"FEMNIST": FEMNIST, "SAMPLED": SAMPLED, "LAPLACE": LAPLACE}[of]
    found = entry(replace(plan, **changes), departures)
    assert (found.trust, found.sampling) == ("central", sampling)
    assert found.releases_per_round == pytest.approx(messages)


# ---------------------------------------------------------------- multipliers, against what
# release() does


@pytest.mark.parametrize("departures", TABLES["departures of a release that is measured"])
def test_multipliers_are_the_noise_of_a_release_and_of_a_message_over_what_a_client_moves(
    departures,
):
    public = "public_sampling" in departures
    plan = Plan("gaussian", 2, 1.0, 2.0, 0.5 if public else 1.0, 1, 1e-3, 6)
    sizes = np.array([2, 7, 1, 8, 2, 8])
    present = cohorts.public_cohort(0, plan) if public else np.ones(6, dtype=bool)
    heaviest = int(np.where(present, sizes, 0).argmax())
    given = plan, departures, sizes, 0
    absent = released_often(*given, present=present)
    there = released_often(*given, present=present, moving=heaviest)
    found = entry(plan, departures, sizes)
    moved = flat(there.sum) - flat(absent.sum)
    assert moved.std(dim=0).max() < 1e-9
    # 24,000 draws: 0.5 % standard error
    measured = float(flat(absent.sum).std() / moved[0].norm())
    assert found.noise_multiplier_effective == pytest.approx(measured, rel=0.01)
    if absent.messages:
        messages = flat(absent.messages)
        sent = (flat(there.messages) - messages)[0, heaviest].norm()
        own = float(messages.std(dim=0).mean() / sent)
        assert found.noise_multiplier_message == pytest.approx(own, rel=0.01)
    of_weights = found.noise_multiplier_effective if "data_size_weights" in departures else None
    assert found.noise_multiplier_weighted == of_weights
    assert found.noise_multiplier_group is None


@pytest.mark.parametrize(
    "departures", [("noise_on_support",), ("noise_on_support", "divide_by_counts")]
)
def test_a_groups_multiplier_is_that_of_coordinates_which_one_client_alone_keeps(departures):
    plan = replace(FEMNIST, clients=4, noise_multiplier=3.0)
    keep = torch.ones(4, 6, dtype=torch.bool)
    keep[1:, 0] = False
    total = flat(released_often(plan, departures, np.ones(4), 1, keep=keep).sum).std(dim=0)
    # By the client that keeps coordinate 0, when it sends C = 1 there.
    moved = 1.0 if "divide_by_counts" in departures else 0.25
    found = entry(plan, departures)
    measured = float(total[0]) / moved  # one coordinate: 4000 draws
    assert found.noise_multiplier_group == pytest.approx(measured, rel=0.03)
    assert found.noise_multiplier_group == pytest.approx(3.0 / 2)
    assert found.noise_multiplier_effective == found.noise_multiplier_message == 0


def test_a_step_that_bounds_nothing_leaves_the_cost_of_the_weights_visible():
    plan, sizes = replace(FEMNIST, clients=3, noise_multiplier=5.0), np.array([10, 10, 20])
    found = entry(plan, ["data_size_weights", "private_clamp"], sizes)
    whole = entry(plan, ["data_size_weights", "private_clamp", "noise_not_divided"], sizes)
    # Sizes 1, 1, 2: p = (1/4, 1/4, 1/2), |p| = sqrt(6)/4, so the multiplier falls by sqrt(6)/4 /
    # (sqrt(3)/2) = 1/sqrt(2).
    assert found.noise_multiplier_weighted == pytest.approx(5.0 / math.sqrt(2))
    assert whole.noise_multiplier_weighted == pytest.approx(5.0 * math.sqrt(6) / 2)
    assert found.noise_multiplier_effective == 0


# ---------------------------------------------------------------- what does not exist, and what is
# infinite


OF_MESSAGES_OR_RENYI = {name for name in EPSILONS if "local" in name or "rdp" in name}


@pytest.mark.parametrize("sample_rate", [1.0, 0.2])
@pytest.mark.parametrize(
    "departures", [names for names in published() if {*names} & WITHOUT_BOUND.keys()]
)
def test_where_nothing_holds_every_epsilon_is_infinite_and_every_multiplier_that_counts_is_zero(
    departures, sample_rate
):
    laplace = "clip_in_training" in departures
    plan = replace(LAPLACE if laplace else FEMNIST, sample_rate=sample_rate)
    found = entry(plan, departures, target=2.0)
    assert found.epsilon_nominal == 2.0
    without = OF_MESSAGES_OR_RENYI if laplace else set()
    infinite = [name for name in EPSILONS if name not in without]
    assert {getattr(found, name) for name in infinite} == {math.inf}
    assert {getattr(found, name) for name in without} <= {None}
    assert found.noise_multiplier_effective == 0
    assert found.noise_multiplier_message == (None if laplace else 0)
    assert (found.noise_multiplier_group is not None) == ("noise_on_support" in departures)
    assert (found.noise_multiplier_weighted is not None) == ("data_size_weights" in departures)
    assert any("no finite epsilon" in warning for warning in found.warnings)
    written = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert {written[name] for name in infinite} == {"inf"}
    assert from_json(Ledger, written, "plan") == found


def test_laplace_noise_has_no_single_messages_and_no_renyi_number():
    asked = Privacy("laplace", epsilon=3.0, clip_norm=1.0)
    found = ledger(make_plan(asked, rounds=6, sample_rate=1.0, clients=10), asked)
    assert found.claim == "certified"
    assert found.epsilon_central == pytest.approx(3.0)
    assert found.noise_multiplier == found.noise_multiplier_effective == pytest.approx(2.0)
    nothing = OF_MESSAGES_OR_RENYI.union(MULTIPLIERS) - {"noise_multiplier_effective"}
    assert {getattr(found, name) for name in nothing} == {None}
    assert found.epsilon_replace_one_1e5 > found.epsilon_central_1e5 > 0
