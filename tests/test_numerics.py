"""What docs/numerics.md says of numbers at their ends, for every method, in loop and vmap."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch

from pflpipe import trees
from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import accounting, clip_bits, mechanism
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.plan import LARGEST, LEAST, Adaptive, Plan
from pflpipe.seeds import release_rng
from pflpipe.simulation import evaluation
from simulations import assert_equal, finished, held, open_plan, plan, simulation, spied, with_rows

BACKENDS = ("loop", "vmap")


def world(method, backend, sick=(), one_class=(), **changes):
    """Return one round of four clients, of whom one has a single example (SIZES).

    ``sick`` clients hold NaN in all of theirs, those of ``one_class`` examples of class 1 alone.
    """
    private = registry.info(method).about.private
    made = plan(rounds=1, **changes) if private else open_plan(rounds=1)
    found = simulation(method, plan=made, backend=backend, local_epochs=1)
    x, y = found.train.x.clone(), found.train.y.clone()
    for client in sick:
        x[found.split.train[client]] = math.nan
    for client in one_class:
        y[found.split.train[client]] = 1
    return with_rows(found, x, y)


# Some methods read no number of x: own_constant labels alone, and those of people and items look
# x up, where NaN is the index of no item.
OF_LABELS = ("own_constant", *(n for n in NAMES if "items" in registry.info(n).about.needs))
READING = [name for name in NAMES if name not in OF_LABELS]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", READING)
def test_a_client_whose_numbers_are_not_finite_counts_as_zero_and_touches_nobody(method, backend):
    place = world(method, backend, sick=[0])
    done, seen, _ = spied(place)
    assert done.diverged_round == 1
    assert trees.is_finite(done.params)
    for value in done.states.values():
        assert value[1:].isfinite().all()
    for uploads, scale, released in seen:
        assert released.nonfinite.tolist() == [True, False, False, False]
        zero = {name: value.clone() for name, value in uploads.update.items()}
        for value in zero.values():
            value[0] = 0
        draw, everybody = release_rng(place.key, "noise", 0), torch.ones(4, dtype=torch.bool)
        silent, about = replace(uploads, update=zero), (place.plan, scale, place.departures)
        neighbour = mechanism.release(draw, silent, everybody, *about)
        assert_equal(released.sum, neighbour.sum, 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", READING)
def test_a_run_in_which_everybody_diverges_ends_and_says_so(method, backend):
    place = world(method, backend, sick=range(4))
    done = finished(place)
    assert done.diverged_round == 1
    assert trees.is_finite(done.params)
    row = done.rows[0]
    assert row["nonfinite_uploads"] == 4 or (not done.releases and method == "local_only")
    if done.releases:
        assert row["signal_norm"] == 0
    if place.plan.noise_multiplier:
        held(place, done)
    for scores in evaluation.accuracies(place, done):
        # The personal model of these is the released one, in which no client's rows are left.
        released = method in ("dp_fedavg_global", "one_shot_ridge")
        right = scores["global_own"] if released else 0
        assert scores["personal_own"] == right, "a model without an answer is never right"


@pytest.mark.slow
@pytest.mark.parametrize(("clip_norm", "noise"), [(1e-12, 1e6), (1e12, 0.0)])
@pytest.mark.parametrize("method", [name for name in NAMES if registry.info(name).about.private])
def test_any_clip_norm_and_multiplier_give_finite_models_and_the_noise_of_the_plan(
    method, clip_norm, noise
):
    found, rule = [], {"clip_norm": clip_norm, "noise_multiplier": noise}
    for backend in BACKENDS:
        place = world(method, backend, one_class=[1, 2], **rule)
        done = finished(place)
        assert done.diverged_round is None
        held(place, done)
        found.append(done)
    assert found[0].rows[0]["signal_norm"] > 0
    assert found[0].rows[0]["noise_norm"] == found[1].rows[0]["noise_norm"]
    assert_equal(found[0].params, found[1].params, 1e-9)


REFUSED = [{"clip_norm": bound} for bound in (0.0, LEAST / 2, 2 * LARGEST, math.nan)]
REFUSED += [{"noise_multiplier": multiplier} for multiplier in (math.inf, -1.0)]
REFUSED += [{"clip_norm": LEAST, "noise_multiplier": 0.5}]
REFUSED += [{"clip_norm": LARGEST, "noise_multiplier": 1e6}]


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_bounds_and_noise_that_float32_does_not_hold_are_refused_before_anything_runs(changes):
    with pytest.raises(PrivacyError, match=r"privacy plan(\.|: )(clip_norm|noise).*expected"):
        plan(**changes)


@pytest.mark.parametrize("clip_norm", [10 * LEAST, LARGEST / 10])
def test_noise_at_the_ends_of_what_is_allowed_is_that_of_the_plan_in_float32(clip_norm):
    extreme = plan(rounds=2, clip_norm=clip_norm, noise_multiplier=1.0)
    place = simulation("dp_fedavg", plan=extreme, dtype=torch.float32)
    done = finished(place)
    assert trees.is_finite(done.params)
    held(place, done)


@pytest.mark.parametrize("told", [1e6, -1e6])
def test_an_adaptive_bound_that_no_plan_can_have_stops_with_one_line(told):
    rule = plan(adaptive=Adaptive(0.5, 0.2, 1.0))
    with pytest.raises(PrivacyError, match=r"next clip bound; got '(0|inf) after 0.5'"):
        clip_bits.next_bound(rule, 0.5, {clip_bits.BITS: torch.tensor(told).double()})


# Accounting. What a number should be is computed with mpmath, 50 digits, from the definitions.


def hockey_stick(epsilon, multiplier, rate):
    """delta(epsilon) of one Poisson-sampled Gaussian release, in the direction that costs more:
    the client is there. With the change of variables of a likelihood ratio it is q times the
    Gaussian's at epsilon' = log(1 + (e^epsilon - 1) / q)."""
    mu = 1 / mpmath.mpf(multiplier)
    inner = mpmath.log(1 + mpmath.expm1(epsilon) / rate)
    here, away = mpmath.ncdf(mu / 2 - inner / mu), mpmath.ncdf(-mu / 2 - inner / mu)
    return rate * (here - mpmath.exp(inner) * away)


def one(multiplier, rate, **changes):
    return plan(noise_multiplier=multiplier, sample_rate=rate, rounds=1, **changes)


@pytest.mark.parametrize(
    ("multiplier", "rate"),
    [(1.0, 1.0), (1e3, 1.0), (0.01, 1.0), (5.0, 0.2), (20.0, 0.999), (5.0, 1e-3)],
)
def test_one_round_is_counted_as_its_closed_form(multiplier, rate):
    target = 1e-5
    with mpmath.workdps(50):
        found = accounting.epsilon(one(multiplier, rate), target)
        assert hockey_stick(found, multiplier, rate) <= target * (1 + 1e-9)
        lower = found * (1 - 1e-3) - 1e-4
        assert lower <= 0 or hockey_stick(lower, multiplier, rate) > target


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("delta", [1e-300, 1e-15, 0.5, 1 - 1e-9])
def test_epsilon_is_finite_at_every_delta_and_sampling_never_costs(delta, rate):
    found = accounting.epsilon(one(4.0, rate), delta)
    assert 0 <= found <= accounting.epsilon(one(4.0, 1.0), delta) < 10
    assert accounting.epsilon_replace_one(one(4.0, rate), delta) < 20


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("multiplier", [0.0, 1e-12, 1e-5])
def test_no_noise_to_speak_of_has_an_infinite_epsilon_in_every_reading(multiplier, rate):
    found = ledger(one(multiplier, rate), Privacy("gaussian", noise_multiplier=1.0))
    exact = [name for name in vars(found) if name.startswith("epsilon") and "rdp" not in name]
    assert {getattr(found, name) for name in exact} - {None} == {math.inf}
    assert found.epsilon_rdp > 1e8
    assert accounting.delta(one(multiplier, rate), 10.0) == 1


@pytest.mark.parametrize("rate", [1.0, 0.1, 1e-9])
@pytest.mark.parametrize("noise", [1e-4, 0.5, 30.0, 1e12])
def test_pure_epsilon_of_sampled_laplace_noise_loses_no_digits(noise, rate):
    made = Plan("laplace", 1, 1.0, noise, rate, 7, 0.0, 4)
    with mpmath.workdps(50):
        single = 1 / mpmath.mpf(noise)
        wanted = 7 * mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(single))
    assert accounting.epsilon(made, 0.0) == pytest.approx(float(wanted), rel=1e-12, abs=0)


def test_together_runs_without_noise_to_speak_of_have_no_epsilon():
    halves = [one(1.5e-4 + k * 1e-6, 0.5) for k in range(3)]  # mu of 1e4 and more in all
    assert accounting.composed_epsilon(halves, 1e-5) == math.inf
    assert accounting.composed_epsilon([one(1.0, 0.5), one(0.0, 1.0)], 1e-5) == math.inf
