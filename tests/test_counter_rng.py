"""Keyed random numbers: a pure function of key, place and position, uniform, and independent of
whatever stands beside them."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import vmap

import counter_rng_by_hand
from pflpipe.learning import counter_rng

KEYS = torch.tensor([0, 1, 2, 12345, 2**31, 2**32 + 1, 2**63 - 1])
IN_PICTURES = counter_rng.CROP, counter_rng.FLIP, counter_rng.ROTATE
PLACES = (*IN_PICTURES, counter_rng.DROPOUT, counter_rng.DROPOUT + 1, counter_rng.OWN)


def test_numbers_are_those_of_the_hash_written_with_unbounded_integers():
    for key, place in itertools.product(KEYS, PLACES):
        numbers = counter_rng.uniform(key, place, (3, 7)).flatten().tolist()
        by_hand = [counter_rng_by_hand.uniform(int(key), place, position) for position in range(21)]
        assert numbers == by_hand


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_those_of_the_hash_and_normal(dtype):
    few = torch.zeros(3, 7, dtype=torch.float64)
    found = counter_rng.normal(torch.tensor(5), counter_rng.OWN, few)
    by_hand = counter_rng_by_hand.normal(5, counter_rng.OWN, (3, 7))
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)
    many = counter_rng.normal(torch.tensor(7), counter_rng.OWN, torch.zeros(100_000, dtype=dtype))
    assert many.dtype == dtype
    assert many.abs().max() < 5.8
    assert stats.kstest(many.double().numpy(), "norm").pvalue > 1e-5


def test_the_type_and_range_are_those_promised_and_the_key_is_left_alone():
    key = torch.tensor(7)
    numbers = counter_rng.uniform(key, 0, (1000, 1000))
    assert numbers.dtype == torch.float32
    assert 0 <= numbers.min() < 1e-5
    assert 1 - 1e-5 < numbers.max() < 1
    assert key == 7
    assert counter_rng.uniform(key, 0, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("key", [0, 1, 2**40 + 3])
def test_a_million_numbers_are_uniform_in_their_high_and_low_bits(key):
    """Chi-square over 1,024 bins; 6 tests at 1e-5 each fail by chance once in 16,000."""
    numbers = counter_rng.uniform(torch.tensor(key), counter_rng.DROPOUT, (1_000_000,))
    bits = (numbers * 2**24).to(torch.int64)
    for bins in (bits >> 14, bits & 1023):
        assert stats.chisquare(torch.bincount(bins, minlength=1024).numpy()).pvalue > 1e-5


def test_neighbouring_keys_places_and_positions_are_uncorrelated():
    """Correlations of n = 100,000 numbers are normal with deviation n**-0.5: one of 1,237 passes
    5.5 of it once in 20,000."""
    n = 100_000
    keyed = itertools.product(map(torch.tensor, range(10)), PLACES)
    streams = [counter_rng.uniform(key, place, (n,)) for key, place in keyed]
    correlations = torch.corrcoef(torch.stack(streams)) - torch.eye(len(streams))
    assert correlations.abs().max() < 5.5 * n**-0.5
    centred = streams[0] - 0.5
    for lag in (1, 2, 3, 4, 8, 16, 32, 64, 128, 1024, 9216, 12544):
        assert (centred[lag:] * centred[:-lag]).mean().abs() * 12 < 5.5 * (n - lag) ** -0.5


def test_no_two_keys_or_places_share_a_stream():
    def firsts(key):
        return torch.stack([counter_rng.uniform(key, place, (8,)) for place in PLACES])

    keys = torch.cat([torch.arange(50), torch.arange(50) << 32])
    found = vmap(firsts)(keys).reshape(-1, 8)
    assert len(torch.unique(found, dim=0)) == 99 * len(PLACES), "key 0 is in both halves"


@pytest.mark.parametrize("place", PLACES)
def test_vmap_over_keys_gives_the_bits_of_a_loop(place):
    def one(key):
        return counter_rng.uniform(key, place, (5, 3, 2))

    assert torch.equal(vmap(one)(KEYS), torch.stack(list(map(one, KEYS))))


def test_padding_a_batch_leaves_the_numbers_of_its_real_rows():
    for key in KEYS:
        padded, real = (counter_rng.uniform(key, 16, (rows, 4, 3)) for rows in (9, 5))
        assert torch.equal(padded[:5], real)
