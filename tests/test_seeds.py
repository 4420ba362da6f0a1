"""Seeds: streams of one name are the same again, streams of different names never meet."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fake_results import BASE
from pflpipe import seeds
from pflpipe.methods import registry
from pflpipe.privacy.cohorts import sample_clients
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key, release_rng
from residual_runs import RAREST


def keyed_by(generator):
    """The 128 bits that a Philox generator is keyed by, as 0 and 1."""
    words = generator.bit_generator.state["state"]["key"]
    return np.unpackbits(np.asarray(words, dtype=np.uint64).view(np.uint8))


def test_all_128_bits_of_a_stream_follow_from_its_key_and_its_name():
    of_runs = [release_rng(derived_key("run", run), "noise", 0) for run in range(1500)]
    of_rounds = [release_rng("one key", "noise", round) for round in range(1500)]
    for streams in (of_runs, of_rounds):
        bits = np.stack([keyed_by(stream) for stream in streams])
        assert bits.shape == (1500, 128)
        signs = 2.0 * bits - 1
        # Hoeffding: no sum of signs has heavier tails.
        far = stats.norm.isf(RAREST / 128**2) * np.sqrt(len(signs))
        assert np.abs(signs.sum(axis=0)).max() < far, "each bit is set half of the time"
        together = np.abs(signs.T @ signs)[np.triu_indices(128, 1)]
        assert together.max() < far, "and none follows from another one"


def test_one_letter_of_a_key_or_one_more_word_makes_another_stream():
    names = [("key", "noise", 3), ("kez", "noise", 3), ("key", "sample", 3)]
    names += [("key", "noise", 4), ("key", "noise", 3, 0), ("key",)]
    draws = np.stack([release_rng(*name).standard_normal(4000) for name in names])
    apart = np.corrcoef(draws)[np.triu_indices(len(names), 1)]
    assert np.abs(apart).max() < stats.norm.isf(RAREST) / np.sqrt(4000)


def test_a_derived_key_is_another_key_and_as_long():
    key = registry.key(BASE)
    names = (("one_run",), ("members",), ("members", 1))
    found = {key, *(derived_key(key, *name) for name in names)}
    assert len(found) == 4
    assert {len(one) for one in found} == {64}
    assert derived_key(key, "one_run") in found
    assert derived_key(key[::-1], "one_run") not in found
    raw = [release_rng(one, "noise", 0).bit_generator.random_raw(1000) for one in found]
    assert not any(np.isin(one, other).any() for one, other in itertools.combinations(raw, 2))


@pytest.mark.parametrize("rates", [(0.1, 0.3), (0.1, 0.10001), (0.5, 0.9)], ids=str)
def test_cohorts_of_two_rates_are_not_nested(rates):
    """If they were, the difference of two runs' models would tell who is in one cohort and not in
    the other."""
    clients, drawn = 20_000, []
    for rate in rates:
        cell = replace(BASE, training=replace(BASE.training, sample_rate=rate))
        rule = Plan("gaussian", 2, 1.0, 1.0, rate, 3, 1e-3, clients)
        drawn.append(sample_clients(release_rng(registry.key(cell), "sample", 0), rule))
    both = int((drawn[0] & drawn[1]).sum())
    assert stats.binomtest(both, clients, rates[0] * rates[1]).pvalue > RAREST
    for rate, cohort in zip(rates, drawn, strict=True):
        assert stats.binomtest(int(cohort.sum()), clients, rate).pvalue > RAREST


def test_the_version_of_the_streams_is_part_of_keys_and_of_runs_ids(monkeypatch):
    before = registry.key(BASE), registry.run_id(BASE)
    monkeypatch.setattr(seeds, "STREAMS", seeds.STREAMS + 1)
    other = replace(BASE)
    assert other.id == BASE.id, "a cell's settings mean what they meant"
    after = registry.key(other), registry.run_id(other)
    assert all(old != new for old, new in zip(before, after, strict=True))
