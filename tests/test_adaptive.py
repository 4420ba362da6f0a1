"""Adaptive clipping: the path of the bound, what both parts cost, what a run may not do with it."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import tabled
from pflpipe import cells, json_records, seeds
from pflpipe.attacks import jobs as attacks
from pflpipe.auditing import cases
from pflpipe.auditing.coupled import sensitivity
from pflpipe.auditing.distinguish import distinguish
from pflpipe.errors import DataError, PflpipeError, PrivacyError
from pflpipe.facts.departures import OF_MESSAGES, WITHOUT_JOINT_CLIP, check_adaptive
from pflpipe.privacy import adaptive, clip_bits, cohorts, mechanism
from pflpipe.privacy.accounting import composed_epsilon, epsilon, make_plan
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.mechanism import Uploads
from pflpipe.privacy.mechanisms.gaussian import gdp_epsilon
from pflpipe.privacy.plan import Adaptive
from pflpipe.simulation import rounds
from pflpipe.study.epsilon_as_published import as_published
from releases import cell_of_study, generator
from simulations import assert_equal, ends_of_other_data, held, plan, simulation, snapshot, spied

TABLES = tabled.table("test_adaptive")

FIXED = cells.Privacy("gaussian", epsilon=8.0, delta=1e-3, clip_norm=0.1)
ASKED = dataclasses.replace(FIXED, clip_quantile=0.5, clip_bit_noise=10.0)
SHAPE = {"rounds": 30, "sample_rate": 1.0, "clients": 100}


def moving(rounds=3, quantile=0.5, lr=0.2, bit_noise=0.5, **changes):
    """A plan whose bound adapts."""
    return plan(rounds=rounds, adaptive=Adaptive(quantile, lr, bit_noise), **changes)


def whole(base):
    """The end of a run."""
    return rounds.run(base, rounds.start(base))


def world(method="dp_fedavg", rule=None, release=mechanism.release, **options):
    found = simulation(method, plan=rule or moving(), **options)
    return dataclasses.replace(found, release=release)


# ---------------------------------------------------------------- what both parts cost


@pytest.mark.parametrize(("z", "bit_noise"), [(1.0, 0.8), (2.6, 5.0), (0.3, 0.151), (7.9, 5.0)])
def test_both_parts_together_cost_what_the_plan_says(z, bit_noise):
    """Two Gaussian releases of a round are mu-GDP with mu^2 = 1 / z_Delta^2 + (1/2)^2 / sigma_b^2
    (Dong, Roth, Su 2022, Corollary 3.3); the plan counts T rounds of 1 / z."""
    rule = moving(rounds=7, noise_multiplier=z, bit_noise=bit_noise, delta=1e-4)
    z_delta = adaptive.of_updates(rule, None).noise_multiplier
    mu = math.sqrt(7 * (1 / z_delta**2 + 0.25 / bit_noise**2))
    assert gdp_epsilon(mu, 1e-4) == pytest.approx(epsilon(rule, 1e-4), rel=1e-9)
    assert z_delta > z


def test_bits_without_enough_noise_are_an_error_that_says_how_much():
    fixed = dataclasses.replace(ASKED, epsilon=None, noise_multiplier=2.63, clip_bit_noise=1.3)
    with pytest.raises(PrivacyError, match=r"clip_bit_noise.*above 1\.315"):
        make_plan(fixed, **SHAPE)


def test_the_noise_on_the_bits_is_a_twentieth_of_the_cohort_by_default():
    asked = dataclasses.replace(ASKED, epsilon=None, noise_multiplier=1.0, clip_bit_noise=None)
    found = make_plan(asked, rounds=30, sample_rate=0.5, clients=200)
    assert found.adaptive == Adaptive(0.5, 0.2, 5.0)


def test_a_plan_and_its_epsilons_are_those_of_the_fixed_bound():
    rule = make_plan(ASKED, **SHAPE)
    fixed = make_plan(FIXED, **SHAPE)
    assert dataclasses.replace(rule, adaptive=None) == fixed
    entries = [ledger(one, ASKED) for one in (rule, fixed)]
    told = ("clip_quantile", "clip_bit_noise", "noise_multiplier_update")
    assert [getattr(entries[0], name) for name in told[:2]] == [0.5, 10.0]
    update = (fixed.noise_multiplier**-2 - 20.0**-2) ** -0.5
    assert entries[0].noise_multiplier_update == pytest.approx(update)
    assert dataclasses.replace(entries[0], **dict.fromkeys(told)) == entries[1]
    assert composed_epsilon([rule, fixed], 1e-3) == composed_epsilon([fixed, fixed], 1e-3)
    assert json_records.from_json(type(rule), json_records.to_json(rule), "plan") == rule


@pytest.mark.parametrize(
    "changes", [{"quantile": 1.0}, {"quantile": 0}, {"lr": 0.0}, {"bit_noise": math.nan}]
)
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(PrivacyError, match=next(iter(changes))):
        Adaptive(**{"quantile": 0.5, "lr": 0.2, "bit_noise": 1.0} | changes)


def test_laplace_noise_has_no_adaptive_bound():
    with pytest.raises(PrivacyError, match="adaptive clipping of laplace"):
        moving(mechanism="laplace", norm=1)


# ---------------------------------------------------------------- the path of the bound


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_bound_takes_the_path_of_algorithm_1(rate):
    """Golden: norms, bits, noise and steps once more in NumPy, from what the clients sent."""
    base = world(rule=moving(rounds=6, quantile=0.3, lr=0.7, sample_rate=rate))
    done, seen, _ = spied(base)
    bound, path = 0.5, []
    for round, (sent, _, _) in enumerate(seen[::2]):
        path.append(bound)
        drawn = cohorts.sample_clients(seeds.release_rng(base.key, "sample", round), base.plan)
        flat = [value.numpy().reshape(len(value), -1) for value in sent.update.values()]
        rows = np.concatenate(flat, axis=1)[: int(drawn.sum())]
        below = np.linalg.norm(rows, axis=1) <= bound
        noise = 0.5 * seeds.release_rng(base.key, "bits", round).standard_normal()
        share = (np.where(below, 0.5, -0.5).sum() + noise) / (rate * 4) + 0.5
        bound *= math.exp(-0.7 * (share - 0.3))
    assert path[0] == 0.5
    found = [row["clip_norm"] for row in done.rows] + [done.bound]
    np.testing.assert_allclose(found, [*path, bound], rtol=1e-12)


def test_a_client_that_is_not_finite_sends_nothing_and_who_is_not_drawn_is_not_heard():
    rule = moving(clients=4, noise_multiplier=0.0)
    sent = Uploads({"w": torch.tensor([[0.1], [9.0], [torch.nan], [0.2]]).double()})
    present = torch.tensor([True, True, True, False])
    released = mechanism.release(generator(), sent, present, adaptive.of_updates(rule, 1.0))
    bits = clip_bits.bits(released)
    assert bits.update["bits"].tolist()[:3] == [0.5, -0.5, 0.0]
    told = mechanism.release(generator(), bits, present, adaptive.of_bits(rule))
    assert told.clean["bits"].item() == 0.0


def test_the_norm_is_that_of_the_scaled_update():
    rule = moving(noise_multiplier=0.0)
    sent = Uploads({"w": torch.full((4, 1), 3.0)})
    everybody, scale = torch.ones(4, dtype=torch.bool), {"w": torch.tensor([10.0])}
    for given, below in ((scale, 0.5), ({}, -0.5)):
        now = adaptive.of_updates(rule, 1.0)
        released = mechanism.release(generator(), sent, everybody, now, given)
        assert clip_bits.bits(released).update["bits"].tolist() == [below] * 4


# ---------------------------------------------------------------- in a run


def test_methods_clips_and_noise_follow_the_bound_of_the_round():
    base, told, given = world(rule=moving(rounds=4)), [], []
    hooks = base.method

    def local_update(params, server, state, batches, task):
        told.append((task.clip_norm, task.plan.noise_multiplier))
        return hooks.local_update(params, server, state, batches, task)

    def release(generator, uploads, present, plan, scale, departures):
        given.append((plan.clip_norm, plan.noise_multiplier))
        return mechanism.release(generator, uploads, present, plan, scale, departures)

    spying = dataclasses.replace(hooks, local_update=local_update)
    base = dataclasses.replace(base, method=spying, release=release)
    done = whole(base)
    z_delta = (0.3**-2 - 1.0) ** -0.5
    expected = [(row["clip_norm"], pytest.approx(z_delta)) for row in done.rows]
    assert given[::2] == expected
    assert told[:16:4] == expected  # behind them the proof of isolation
    assert given[1::2] == [(0.5, 1.0)] * 4
    assert len({bound for bound, _ in expected}) == 4
    assert done.releases == 4, "both parts are one release"
    assert done.uploaded_bits == 4 * 32 * (base.network.parameters + 1)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_run_goes_on_with_the_same_bits(backend):
    base, half = world(rule=moving(rounds=3), backend=backend), []
    done = rounds.run(base, rounds.start(base), lambda at: half.append(snapshot(at)))
    again = rounds.run(base, half[0])
    assert (again.bound, again.residuals) == (done.bound, done.residuals)
    assert_equal(again.params, done.params, 0)
    held(base, done)


def test_backends_agree_on_the_bound():
    loop, vmap = (whole(world("feddpa", backend=backend)).bound for backend in ("loop", "vmap"))
    assert loop == vmap != 0.5


def test_bounds_that_stay_draw_and_tell_nothing_of_it():
    done, seen, _ = spied(world(rule=plan()))
    assert done.bound is None
    assert (done.residuals.moves, done.residuals.bound) == (0, None)
    assert len(seen) == 3
    assert [row["clip_norm"] for row in done.rows] == [0.5] * 3


# ---------------------------------------------------------------- planted faults


def without_noise(generator, uploads, present, plan, scale, departures):
    quiet = {"noise_multiplier": 0.0} if clip_bits.BITS in uploads.update else {}
    now = dataclasses.replace(plan, **quiet)
    return mechanism.release(generator, uploads, present, now, scale, departures)


def test_the_law_of_the_noise_catches_bits_without_any():
    base = world(rule=moving(rounds=2))
    held(base, whole(base))
    done = whole(dataclasses.replace(base, release=without_noise))
    assert done.residuals.mismatches == 2, "a bit's noise in each round"
    with pytest.raises(DataError, match="without exactly the noise of its plan; got 2"):
        held(base, done)


def exact_quantile(norms):
    """The step of a bound that goes straight to the quantile of the round's norms, which are the
    last but one heard."""
    return lambda plan, bound, told: torch.quantile(norms[-2], plan.adaptive.quantile)


def listening(norms, release=mechanism.release):
    def heard(*arguments):
        released = release(*arguments)
        norms.append(released.norms)
        return released

    return heard


@pytest.mark.parametrize("rounds_of_run", [1, 2])
def test_the_law_of_the_noise_catches_a_bound_of_private_norms(rounds_of_run, monkeypatch):
    norms = []
    base = world(rule=moving(rounds=rounds_of_run), local_epochs=1, release=listening(norms))
    held(base, whole(base))
    monkeypatch.setattr(clip_bits, "next_bound", exact_quantile(norms))
    done = whole(base)
    assert done.residuals.bound != done.bound
    with pytest.raises(DataError, match="without exactly the noise of its plan"):
        held(base, done)


def test_the_bound_depends_on_data_through_what_is_released_alone(monkeypatch):
    one, other = ends_of_other_data(world())
    assert one.bound == other.bound
    assert_equal(one.params, other.params, 0)
    norms = []
    monkeypatch.setattr(clip_bits, "next_bound", exact_quantile(norms))
    one, other = ends_of_other_data(world(), lambda release: listening(norms, release))
    assert one.bound != other.bound, "the fault above is caught however many rounds there are"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["central", "local"])
def test_the_audit_catches_bits_without_noise(name):
    sound = cases.find(f"gaussian-adaptive-{name}").audited()
    assert sensitivity(dataclasses.replace(sound, release=without_noise), "adaptive").flagged


@pytest.mark.slow
def test_the_audit_catches_updates_with_the_noise_of_a_fixed_bound(monkeypatch):
    """z in place of z_Delta: what the bits cost is forgotten."""
    case = cases.find("gaussian-adaptive-central")
    monkeypatch.setattr(adaptive, "multiplier_of_updates", lambda plan: plan.noise_multiplier)
    assert sensitivity(case.audited(), "adaptive").flagged


@pytest.mark.slow
def test_whole_runs_keep_the_claim_while_the_bound_follows_what_was_released():
    mechanism_ = cases.find("gaussian-adaptive-central").audited()
    found = distinguish(mechanism_, "dirac", 1000, "adaptive")
    assert not found.flagged
    assert found.mu_lower > 1.8, "an attacker who reads both parts comes near mu = 2.6"
    quiet = dataclasses.replace(mechanism_, release=without_noise)
    assert distinguish(quiet, "dirac", 1000, "adaptive").flagged


# ---------------------------------------------------------------- where it cannot be


TRAINING, NETWORK = cells.Training(5, 1, 4, "sgd", 0.1), cells.Model("mlp", (8,))
CELL = cells.Cell("digits", cells.Partition("iid", 20), NETWORK, TRAINING, ASKED, "fedaddp")


def test_a_run_stands_on_the_audits_of_both_parts():
    found = {case.id for case in cases.of_cell(CELL)}
    assert {"gaussian-scaled_by_fedaddp-central", "gaussian-adaptive-central"} <= found
    assert found <= cases.cases().keys()


@pytest.mark.parametrize("name", attacks.NAMES)
def test_attacks_that_read_updates_alone_are_not_about_it(name):
    plain = dataclasses.replace(CELL, method="dp_fedavg", privacy=FIXED)
    assert not attacks.lacks(name, plain)
    assert attacks.lacks(name, dataclasses.replace(plain, privacy=ASKED)) == "a fixed clip_norm"


def test_the_method_as_published_has_a_fixed_bound():
    found = as_published(dataclasses.replace(CELL, method="dp_fedsam"))
    assert found.departures
    assert found.privacy.clip_quantile is None


def test_departures_without_one_sum_of_jointly_clipped_updates_are_refused():
    for name in sorted(OF_MESSAGES | WITHOUT_JOINT_CLIP):
        with pytest.raises(PrivacyError, match=rf"{name}: privacy\.clip_quantile"):
            make_plan(ASKED, rounds=3, sample_rate=1.0, clients=100, departures=[name])
    check_adaptive(["public_sampling", "update_against_global"])


@pytest.mark.parametrize(("words", "told"), TABLES["refused studies"])
def test_a_study_that_asks_for_what_cannot_be_is_refused(words, told, tmp_path):
    with pytest.raises(PflpipeError, match=told):
        cell_of_study(TABLES["STUDY"], words, tmp_path)


def test_a_study_that_asks_for_what_can_be_has_cells_of_their_own(tmp_path):
    cell = cell_of_study(TABLES["STUDY"], TABLES["ALL"], tmp_path)
    assert cell.privacy.clip_quantile == 0.5
    fixed = dataclasses.replace(cell.privacy, clip_quantile=None)
    other = dataclasses.replace(cell, privacy=fixed)
    assert len({cell.plan_id, other.plan_id, cell.id, other.id}) == 4
