"""Sampled Laplace noise under replace-one: the pair of worlds that is counted is the worst one, its
curve is the integral of its densities, and rounds add up to no less than they cost."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate

from pflpipe.privacy.accounting import calibrate, epsilon_replace_one
from pflpipe.privacy.mechanisms.laplace import delta_of_round, largest_loss
from pflpipe.privacy.plan import Plan

ROUNDS = [(0.3, 0.5), (0.1, 0.3), (0.7, 1.5), (0.02, 0.4), (1.0, 2.0)]
"""Sampling rates and scales."""


def laplace(rate, scale, rounds, delta=0.0):
    return Plan("laplace", 1, 1.0, scale, rate, rounds, delta, 10)


def fractions_of_the_largest_loss(rate, scale):
    return largest_loss(rate, 1 / scale) * np.array([0.0, 0.01, 0.2, 0.5, 0.9, 0.999])


def density(move, scale):
    return lambda y: np.exp(-np.abs(y - move) / scale) / (2 * scale)


def world(rate, scale, move):
    return lambda y: (1 - rate) * density(0, scale)(y) + rate * density(move, scale)(y)


# ---------------------------------------------------------------- one round


@pytest.mark.parametrize(("rate", "scale"), ROUNDS)
def test_the_curve_of_a_round_is_the_integral_of_the_two_densities(rate, scale):
    one, other = world(rate, scale, 1), world(rate, scale, -1)

    def beyond(y, factor):
        return max(0.0, one(y) - factor * other(y))

    epsilons = fractions_of_the_largest_loss(rate, scale)
    for epsilon, found in zip(epsilons, delta_of_round(rate, 1 / scale, epsilons), strict=True):
        ends, how = (-40 * scale, 1 + 40 * scale), {"points": np.linspace(-1, 1, 41), "limit": 500}
        whole, _ = integrate.quad(beyond, *ends, args=(math.exp(epsilon),), **how)
        assert found == pytest.approx(whole, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(("rate", "scale"), ROUNDS)
def test_a_round_loses_at_most_the_largest_loss(rate, scale):
    y = np.linspace(-3, 3, 601)
    losses = np.log(world(rate, scale, 1)(y) / world(rate, scale, -1)(y))
    assert losses.max() == pytest.approx(largest_loss(rate, 1 / scale), rel=1e-12)
    beyond = largest_loss(rate, 1 / scale) * np.array([1.0, 1.1, 3.0])
    assert delta_of_round(rate, 1 / scale, beyond) == pytest.approx(np.zeros(3), abs=1e-15)


QUANTILES = (np.arange(501) + 0.5) / 501


def ratios(scale, moves):
    """Densities of a moved Laplace number over those of one that is not, ``[501, 501]`` over equal
    parts of two independent numbers; exact but for the width of the parts."""
    above = -np.log(2 * np.minimum(1 - QUANTILES, 0.5))
    y = scale * np.where(QUANTILES < 0.5, np.log(2 * QUANTILES), above)
    first, second = (np.exp((np.abs(y) - np.abs(y - move)) / scale) for move in moves)
    return first[:, None] * second


@pytest.mark.parametrize(("rate", "scale"), [(0.3, 0.5), (0.1, 0.4), (0.7, 1.5), (0.02, 0.6)])
def test_no_two_messages_are_told_apart_better_than_opposite_moves_of_one_coordinate(rate, scale):
    """In two dimensions: other coordinates, moves along both, shorter moves, the client's message
    against none; at epsilons of both signs."""
    draw = np.random.default_rng(7)
    pairs = [((1, 0), (-1, 0)), ((1, 0), (0, 1)), ((1, 0), (0, -1)), ((1, 0), (0, 0))]
    for _ in range(40):
        shares = draw.dirichlet([0.5, 0.5, 0.2], 2)[:, :2] * draw.choice([-1, 1], (2, 2))
        pairs.append(tuple(map(tuple, shares)))
    epsilons = fractions_of_the_largest_loss(rate, scale)[:-1]
    above = dict(zip(epsilons, delta_of_round(rate, 1 / scale, epsilons), strict=True))
    curve = above | {-at: 1 - math.exp(-at) * (1 - delta) for at, delta in above.items()}
    for place, (one, other) in enumerate(pairs):
        left, right = (1 - rate + rate * ratios(scale, moves) for moves in (one, other))
        for epsilon, most in curve.items():
            found = np.maximum(0, left - math.exp(epsilon) * right).mean()
            assert found <= most + 2e-4
            if place == 0:
                assert found == pytest.approx(most, abs=2e-4), "and these reach it"


# ---------------------------------------------------------------- several rounds


@functools.cache
def cells(rate, scale, count):
    """Probabilities of so many intervals of [-1, 1], and of what is beyond, in the two worlds. Who
    is told the interval alone knows less, so that all of this is below the true delta."""
    from scipy.stats import laplace

    edges = np.concatenate([[-np.inf], np.linspace(-1, 1, count + 1), [np.inf]])

    def mass(move):
        still, moved = (np.diff(laplace.cdf(edges, loc, scale)) for loc in (0, move))
        return (1 - rate) * still + rate * moved

    return mass(1), mass(-1)


@pytest.mark.parametrize(("rate", "scale"), ROUNDS)
@pytest.mark.parametrize(("rounds", "count"), [(1, 4000), (2, 1000), (3, 120)])
def test_a_few_rounds_cost_what_all_their_outcomes_together_show(rate, scale, rounds, count):
    """Brute force: every sequence of intervals, its probability in both worlds."""

    def whole(part):
        return functools.reduce(np.multiply.outer, [part] * rounds).ravel()

    left, right = map(whole, cells(rate, scale, count))
    for delta in (1e-2, 1e-3):
        found = epsilon_replace_one(laplace(rate, scale, rounds), delta)
        shown = np.maximum(0, left - math.exp(found) * right).sum()
        assert shown <= delta, "the epsilon is an upper bound"
        less = found * 0.97 - 1e-3
        assert np.maximum(0, left - math.exp(less) * right).sum() > delta, "and no loose one"


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "scale"), [(0.1, 0.5), (0.3, 1.0), (0.05, 0.3)])
@pytest.mark.parametrize("rounds", [20, 100])
def test_many_rounds_cost_what_dp_accounting_makes_of_intervals(rate, scale, rounds):
    """Its count of two probability functions, rounded down: below the truth by the width of the
    intervals and the rounding."""
    one, other = (dict(enumerate(np.log(part))) for part in cells(rate, scale, 20_000))
    how = {"pessimistic_estimate": False, "value_discretization_interval": 1e-4}
    counted = privacy_loss_distribution.from_two_probability_mass_functions(other, one, **how)
    counted = counted.self_compose(rounds)
    for delta in (1e-3, 1e-5):
        least = counted.get_epsilon_for_delta(delta)
        found = epsilon_replace_one(laplace(rate, scale, rounds), delta)
        assert least <= found <= 1.01 * least + 1e-4 * rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "target", "found"), [(0.1, 8, 9.583), (0.2, 8, 11.155), (0.1, 2, 3.104)]
)
def test_plans_of_twenty_rounds_cost_what_an_attack_from_outside_counted(rate, target, found):
    plan = calibrate(laplace(rate, 1.0, 20, 1e-5), target)
    assert epsilon_replace_one(plan, 1e-5) == pytest.approx(found, abs=5e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_the_pure_bound_is_that_of_every_round_and_no_curve_is_above_it(rate):
    plan = laplace(rate, 0.8, 7)
    pure = epsilon_replace_one(plan, 0.0)
    assert pure == pytest.approx(7 * largest_loss(rate, 1 / 0.8), rel=1e-12)
    curve = [epsilon_replace_one(plan, delta) for delta in (1e-15, 1e-9, 1e-3, 0.2)]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] <= pure


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 5e-3, 0.02, 50.0, 1e6])
@pytest.mark.parametrize("rate", [1e-6, 0.3, 1.0])
def test_any_noise_has_a_number(rate, scale):
    found = epsilon_replace_one(laplace(rate, scale, 5), 1e-5)
    assert 0 <= found <= 10 / scale * (1 + 1e-9)
