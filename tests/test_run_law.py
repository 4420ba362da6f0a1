"""The law of a run's noise: what the engine adds up is what its releases hold beside the clients,
and only a plan's own passes.

residuals.py is held against residual_runs.py, which computes the same from outside; executed.check
against real runs.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from pflpipe.errors import DataError
from pflpipe.methods import registry
from pflpipe.privacy.executed import RAREST, check
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.mechanism import release as mechanism_release
from pflpipe.privacy.residuals import Residuals, of_release
from pflpipe.seeds import release_rng
from pflpipe.simulation import rounds
from releases import GAUSSIAN, LAPLACE, NOTHING, SAMPLED, everybody, published, uploads
from residual_runs import CERTIFIED, NORMS, certified_run, clipped_mean, mechanism_of, watch
from simulations import plan, simulation

torch.set_num_threads(1)
SOME = torch.tensor([True, True, False, True, False, True])


def held(world, done):
    """Hold a run against its plan."""
    check(
        world.plan,
        world.departures,
        "run",
        releases=done.releases,
        participants=sum(row["participants"] for row in done.rows),
        residuals=done.residuals,
    )


def check_residuals(residuals, rule, departures=()):
    """Hold a run of a plan at q = 1 with these residuals against it."""
    check(
        rule,
        departures,
        "run",
        releases=rule.rounds,
        participants=rule.rounds * rule.clients,
        residuals=residuals,
    )


def refused(residuals, rule):
    try:
        check_residuals(residuals, rule)
    except DataError as error:
        return "size of the noise" in str(error)
    return False


def with_noise(world, factor):
    """The same run with another noise multiplier than its plan's."""

    def release(generator, uploads, present, plan, scale, departures):
        other = dataclasses.replace(plan, noise_multiplier=factor * plan.noise_multiplier)
        return mechanism_release(generator, uploads, present, other, scale, departures)

    return dataclasses.replace(world, release=release)


def run_and_check(world):
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    return done


@pytest.mark.parametrize(
    "rule", [GAUSSIAN, SAMPLED, LAPLACE], ids=["gaussian", "sampled", "laplace"]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_residuals_are_what_a_release_holds_beside_the_clipped_mean(rule, dtype):
    update, present = uploads(dtype=dtype, size=2.0), SOME if rule is SAMPLED else everybody()
    scale = {
        "vector": torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0], dtype=dtype),
        "matrix": torch.tensor(0.3, dtype=dtype),
    }
    released = release(release_rng("k", 0), Uploads(update), present, rule, scale)
    found = of_release(released, Uploads(update), present, rule, scale, frozenset())
    scales = {name: value.double().numpy() for name, value in scale.items()}
    mean = clipped_mean(
        {name: value[present].double().numpy() for name, value in update.items()}, scales, rule
    )
    unit, expected, rounding = (
        rule.clip_norm * rule.noise_multiplier / (rule.sample_rate * 6),
        0.0,
        0.0,
    )
    power = 1 if rule is LAPLACE else 2
    for name, value in released.sum.items():
        spread = np.broadcast_to(scales.get(name, 1.0), value.shape) * unit
        sent, clean, spread = (
            part[spread > 0] for part in (value.double().numpy(), mean[name], spread)
        )
        expected += (np.abs((sent - clean) / spread) ** power).sum()
        rounding += (np.abs(sent / spread * torch.finfo(dtype).eps / 2) ** power).sum()
    assert found.coordinates == 12 + 3 + 1 + 70, "those with a scale of 0 are not sent"
    assert found.statistic == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5)
    assert found.rounding == pytest.approx(rounding, rel=1e-9)


def test_without_noise_there_are_no_residuals():
    quiet = dataclasses.replace(GAUSSIAN, noise_multiplier=0.0)
    for rule in (NOTHING, quiet):
        released = release(release_rng("k", 0), Uploads(uploads()), everybody(), rule)
        assert (
            of_release(released, Uploads(uploads()), everybody(), rule, {}, frozenset())
            == Residuals()
        )
    check_residuals(Residuals(), quiet)


def test_residuals_of_releases_add_up():
    assert Residuals(1.0, 2, 3.0) + Residuals(10.0, 20, 30.0) == Residuals(11.0, 22, 33.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", CERTIFIED)
def test_a_run_adds_up_the_residuals_of_all_its_rounds_and_passes(method):
    run = certified_run(method, 0.5, torch.float64)
    found = run.done.residuals
    assert found.coordinates == run.scores.size
    if run.world.plan.mechanism == "gaussian":
        assert found.statistic == pytest.approx((run.scores**2).sum(), rel=1e-6)
    held(run.world, run.done)


def test_a_resumed_run_has_the_residuals_of_the_whole_one():
    world = simulation("dp_fedavg")
    whole, half = rounds.run(world, rounds.start(world)), rounds.start(world)
    rounds.one_round(world, half)
    assert rounds.run(world, dataclasses.replace(half)).residuals == whole.residuals


def profiles():
    """Methods with the departures of their papers and of their official codes, for networks without
    normalisation."""
    for method in CERTIFIED:
        for official in (False, True):
            about = registry.info(method).about
            steps = about.paper_departures + (about.official_departures if official else ())
            if steps and "norm" not in about.needs and (about.official_departures or not official):
                yield method, tuple(sorted(steps))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), profiles())
def test_published_mechanisms_pass_and_less_noise_in_them_does_not(method, steps):
    mechanism = mechanism_of(method)
    rule = plan(4, rounds=8, sample_rate=0.7, mechanism=mechanism, norm=NORMS[mechanism])
    world = simulation(method, plan=rule, departures=steps, shape=(30,), local_epochs=1)
    assert run_and_check(world).residuals.coordinates > 100
    with pytest.raises(DataError, match=r"size of the noise.*0\.\d+ times that of its plan"):
        run_and_check(with_noise(world, 0.5))


def test_every_combination_of_published_departures_is_among_them():
    assert {steps for _, steps in profiles()} == set(published())


@pytest.mark.parametrize("mechanism", NORMS)
def test_noise_of_another_size_is_refused(mechanism):
    rule = plan(4, rounds=5, noise_multiplier=1.0, mechanism=mechanism, norm=NORMS[mechanism])
    world = simulation("dp_fedavg", plan=rule, shape=(240,), local_epochs=1)
    run_and_check(world)
    for factor in (0.0, 0.9, 1.1, 2.0):
        with pytest.raises(DataError, match="size of the noise"):
            run_and_check(with_noise(world, factor))


def test_a_division_by_the_realised_cohort_is_refused():
    world = simulation(
        "dp_fedavg", plan=plan(4, rounds=8, sample_rate=0.5), shape=(60,), local_epochs=1
    )

    def by_the_cohort(generator, uploads, present, plan, scale, departures):
        released = mechanism_release(generator, uploads, present, plan, scale, departures)
        factor = plan.expected_cohort / max(1, int(present.sum()))
        return dataclasses.replace(
            released, sum={name: value * factor for name, value in released.sum.items()}
        )

    with pytest.raises(DataError, match="size of the noise"):
        run_and_check(dataclasses.replace(world, release=by_the_cohort))


@pytest.mark.parametrize("coordinates", [1, 30, 10**4, 10**7])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_run_is_refused_exactly_where_chance_is_rarer_than_it_says(mechanism, coordinates):
    rule = GAUSSIAN if mechanism == "gaussian" else LAPLACE
    law = stats.chi2(coordinates) if mechanism == "gaussian" else stats.gamma(coordinates)
    for quantile in (law.ppf, law.isf):
        assert not refused(Residuals(quantile(RAREST / 2 * 1.1), coordinates), rule)
        assert refused(Residuals(quantile(RAREST / 2 / 1.1), coordinates), rule)
    assert not refused(Residuals(law.mean(), coordinates), rule)


@pytest.mark.parametrize("coordinates", [10**9, 10**12])
def test_the_largest_runs_are_held_to_the_same_law(coordinates):
    """Where SciPy's own lower tail is too small by a factor, which moves the border from 6.1 to 5.4
    standard deviations."""
    for sign in (-1, 1):
        away = sign * math.sqrt(2 * coordinates)
        assert not refused(Residuals(coordinates + 5 * away, coordinates), GAUSSIAN)
        assert refused(Residuals(coordinates + 7 * away, coordinates), GAUSSIAN)


@pytest.mark.parametrize("statistic", [math.nan, math.inf, 0.0])
def test_what_is_no_size_of_noise_is_refused(statistic):
    assert refused(Residuals(statistic, 100), GAUSSIAN)


def test_rounding_of_what_is_released_is_allowed_for_and_no_more():
    """A float32 sum near 1 moves by up to 6e-8 as it is rounded, more than noise of 1e-8 would."""
    update = {"w": torch.ones(6, 4000)}
    for noise, seen in ((1e-8, False), (1e-5, True)):
        rule = dataclasses.replace(GAUSSIAN, clip_norm=100.0, noise_multiplier=noise / 100 * 6)
        left = []
        for factor in (1.0, 2.0):
            drawn = dataclasses.replace(rule, noise_multiplier=factor * rule.noise_multiplier)
            released = release(release_rng("k", 0), Uploads(update), everybody(), drawn)
            left.append(of_release(released, Uploads(update), everybody(), rule, {}, frozenset()))
        assert not refused(left[0], rule)
        assert refused(left[1], rule) == seen


def test_no_coordinates_with_noise_are_believed_only_where_a_mask_may_be_empty():
    check_residuals(Residuals(), GAUSSIAN, ("noise_on_support",))
    with pytest.raises(DataError, match="coordinates with noise; got 0"):
        check_residuals(Residuals(), GAUSSIAN)


def test_only_messages_of_clients_that_are_there_count():
    update = uploads(dtype=torch.float64)
    mask = {
        f"mask.{name}": torch.rand(value.shape, generator=torch.Generator().manual_seed(1)) < 0.5
        for name, value in update.items()
    }
    steps = frozenset({"noise_on_support"})
    released = release(release_rng("k", 0), Uploads(update, mask), SOME, SAMPLED, departures=steps)
    found = of_release(released, Uploads(update, mask), SOME, SAMPLED, {}, steps)
    assert found.coordinates == sum(int(value[SOME].sum()) for value in mask.values())
    spread = SAMPLED.clip_norm * SAMPLED.noise_multiplier / math.sqrt(SAMPLED.expected_cohort)
    left = [(released.messages[name] - released.clean[name])[SOME] / spread for name in update]
    assert found.statistic == pytest.approx(sum(float(part.square().sum()) for part in left))


def test_watching_a_run_is_not_part_of_it():
    world = certified_run("fedaddp", 0.5, torch.float64).world
    plain, watched = rounds.run(world, rounds.start(world)), watch(world).done
    assert plain.residuals == watched.residuals
    assert all(torch.equal(value, watched.params[name]) for name, value in plain.params.items())
