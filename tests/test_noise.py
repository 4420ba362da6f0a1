"""Noise: the laws it promises, out to where no generator's own numbers reach, and no largest value.

Thresholds are those of chance at RAREST (residual_runs.py); seeds are fixed.
"""

import numpy as np
import pytest
from scipy import stats

from pflpipe.privacy import noise
from pflpipe.privacy.noise import FAR, RESTART, exponential, laplace, normal
from residual_runs import RAREST

DRAWS = {"normal": normal, "laplace": laplace, "exponential": exponential}
LAWS = {"normal": stats.norm, "laplace": stats.laplace, "exponential": stats.expon}
MOMENTS = {
    "normal": [0, 1, 0, 3, 0, 15, 0, 105],
    "laplace": [0, 2, 0, 24, 0, 720, 0, 40320],
    "exponential": [1, 2, 6, 24, 120, 720, 5040, 40320],
}


def generator(seed=0):
    return np.random.Generator(np.random.Philox(key=seed))


def distance_by_chance(values, law):
    """Bound of Massart on the probability of so large a distance from the distribution function."""
    heights, steps = law.cdf(np.sort(values)), np.arange(len(values) + 1) / len(values)
    distance = max((steps[1:] - heights).max(), (heights - steps[:-1]).max())
    return 2 * np.exp(-2 * len(values) * distance**2)


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_have_their_law_and_its_moments(name):
    values = DRAWS[name](generator(), (400_000,))
    assert distance_by_chance(values, LAWS[name]) > RAREST
    assert len(np.unique(np.abs(values))) == len(values), "no number repeats or mirrors another"
    for power in (1, 2, 3, 4):
        moment, square = MOMENTS[name][power - 1], MOMENTS[name][2 * power - 1]
        spread = np.sqrt((square - moment**2) / len(values))
        assert abs((values**power).mean() - moment) < stats.norm.isf(RAREST / 2) * spread, power


def test_three_million_normal_numbers_continue_through_the_seam():
    """Beyond ``FAR`` the numbers come from elsewhere: neither a gap nor a heap around it, and as
    many on both sides."""
    values = normal(generator(1), (3_000_000,))
    edges = np.array([3.0, 3.5, 3.9, FAR, 4.1, 4.3, 4.6, 5.0, np.inf])
    for side in (values, -values):
        counts = np.histogram(side, edges)[0]
        for count, rate in zip(counts, -np.diff(stats.norm.sf(edges)), strict=True):
            assert stats.binomtest(int(count), len(values), rate).pvalue > RAREST


def test_numbers_beyond_the_seam_have_the_law_of_the_normal_tail():
    count = 400_000
    values = noise._beyond(generator(2), count)
    assert values.min() > FAR
    edges = np.array([*np.linspace(FAR, 5.5, 16), 6.0, np.inf])
    expected = -np.diff(stats.norm.sf(edges)) / stats.norm.sf(FAR) * count
    assert expected.min() > 10
    found = np.histogram(values, edges)[0]
    assert stats.chi2.sf(((found - expected) ** 2 / expected).sum(), len(expected) - 1) > RAREST
    beyond = int((values > 6).sum())
    assert stats.binomtest(beyond, count, stats.norm.sf(6) / stats.norm.sf(FAR)).pvalue > RAREST


@pytest.mark.parametrize("restart", [0.1, 1.0, 3.0])
def test_restarts_keep_the_exponential_law(restart, monkeypatch):
    monkeypatch.setattr(noise, "RESTART", restart)
    values = exponential(generator(3), (200_000,))
    assert distance_by_chance(values, stats.expon) > RAREST
    assert (values > 3 * restart).any(), "some were drawn again and again"
    assert distance_by_chance(laplace(generator(4), (100_000,)), stats.laplace) > RAREST
    assert distance_by_chance(normal(generator(5), (100_000,)), stats.norm) > RAREST


class Stub:
    """A generator that gives out prepared numbers, each for a whole array."""

    def __init__(self, normals=(), exponentials=()):
        self.normals, self.exponentials = iter(normals), iter(exponentials)

    def standard_normal(self, shape):
        return np.full(shape, next(self.normals))

    def standard_exponential(self, shape):
        return np.full(shape, next(self.exponentials))


def test_only_numbers_beyond_the_restart_are_drawn_again():
    values = iter([np.array([1.0, 30.0, 2.0, 40.0]), np.array([25.0, 3.0]), np.array([0.5])])

    class Listed:
        def standard_exponential(self, shape):
            found = next(values)
            assert found.shape == ((shape,) if isinstance(shape, int | np.integer) else shape)
            return found

    assert exponential(Listed(), (4,)).tolist() == [1.0, 2 * RESTART + 0.5, 2.0, RESTART + 3.0]


def test_a_normal_number_has_no_largest_value():
    # A tail step of 60 / FAR is accepted when an exponential number is above half its square,
    # 112.5: six restarts.
    step, chance = [RESTART + 1] * 2 + [RESTART], [RESTART + 1] * 6 + [0.0]
    for sign in (1, -1):
        found = normal(Stub([sign * (FAR + 0.1)], [*step, *chance]), (2,))
        assert found.tolist() == [sign * (FAR + 3 * RESTART / FAR)] * 2
        assert abs(found[0]) > 12.3, "beyond the last value of NumPy's own normal numbers"


def test_a_laplace_number_has_no_largest_value_on_either_side():
    large = [RESTART + 1] * 4 + [2.0]
    assert laplace(Stub(exponentials=[*large, 1.0]), (1,)).tolist() == [4 * RESTART + 1.0]
    assert laplace(Stub(exponentials=[1.0, *large]), (1,)).tolist() == [-(4 * RESTART + 1.0)]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (3, 0, 2), (700, 700)], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_come_in_any_shape_in_float64_and_again_from_the_same_generator(name, shape):
    draw = DRAWS[name]
    found = draw(generator(7), shape)
    assert np.shape(found) == shape
    assert found.dtype == np.float64
    assert np.array_equal(found, draw(generator(7), shape))
    assert not found.size or not np.array_equal(found, draw(generator(8), shape))


@pytest.mark.parametrize("name", DRAWS)
def test_a_number_alone_has_the_law_too(name):
    source = generator(10)
    values = np.array([float(DRAWS[name](source, ())) for _ in range(5000)])
    assert distance_by_chance(values, LAWS[name]) > RAREST
