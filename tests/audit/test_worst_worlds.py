"""The auditor of arrays finds cheats that only a search meets, refutes nothing that is sound, and
does not import torch."""

import sys

import numpy as np
import pytest
from cheats import CHEATS, CLAIM, clipped, finite, noise
from honest import HONEST

import pflpipe
import tabled
from called import called
from pflpipe.auditing.arrays import Attacked, Program
from pflpipe.auditing.trial import trial
from pflpipe.auditing.worlds import Recipe

TABLES = tabled.table("test_worst_worlds")

ALL = {name: entry for kind in CHEATS.values() for name, entry in kind.items()}


def verdict(entry, seconds, seed=0):
    release, claim = entry
    return pflpipe.audit(release, pflpipe.Claim(**claim), seconds=seconds, seed=seed)


def test_there_are_forty_cheats_in_ten_kinds_with_at_least_four_each():
    assert len(CHEATS) >= 10
    assert len(ALL) >= 40
    assert min(map(len, CHEATS.values())) >= 4
    assert len(HONEST) >= 20


def tried(some, seconds, everything, longer):
    """Parametrise a test with some releases by day and with all, for longer, by night."""
    by_night = [pytest.param(name, longer, marks=pytest.mark.night) for name in everything]
    by_day = [(name, seconds) for name in some]
    return pytest.mark.parametrize(("name", "seconds"), by_day + by_night)


@tried(TABLES["BY_DAY"], 0.5, ALL, 60)
def test_a_cheat_is_found(name, seconds):
    found = verdict(ALL[name], seconds)
    assert found.verdict == "refuted", found


@tried(["rounded_after_noise", "clipped_after_noise"], 0.2, HONEST, 20)
def test_no_honest_release_is_refuted(name, seconds):
    """An audit refutes a true claim with probability 1e-4 at most;
    tools/benchmarks/bench_auditor.py tries ten seeds."""
    found = verdict(HONEST[name], seconds)
    assert found.verdict == "kept", found


def test_an_attacker_who_sees_several_rounds_is_judged_by_the_claim_about_all_of_them():
    """In later rounds of this release the movement depends on the noise of earlier ones."""
    release, fields = HONEST["AdaptiveBound"]
    claim = pflpipe.Claim(**fields)
    attacked = Attacked(Program(release, "AdaptiveBound"), claim, size=claim.dimension, rounds=3)
    recipe = Recipe(count=40, signs="negative", length=6.26, others="same", far=1e3)
    found = trial(attacked, recipe, draws=400, level=1e-6, rng=np.random.default_rng(0))
    assert found.plan.rounds == 3
    assert not found.refutes


def test_noise_that_follows_the_messages_a_little_is_unsound():
    def release(messages, weights, rng):
        rows = clipped(messages)
        factor = 2 + 0.01 * np.abs(rows).max(initial=0)
        return rows.sum(axis=0) + noise(rng, rows.shape[1]) * factor

    assert verdict((release, CLAIM | {"dimension": 4}), seconds=0.2).verdict == "unsound"


def test_an_unsound_release_is_shown_with_the_pair_that_its_noise_follows_and_not_the_longest():
    def release(messages, weights, rng):
        rows = clipped(messages)
        factor = 1.2 - 0.05 * (np.abs(finite(messages)).max(initial=0) > 1.5)
        return rows.sum(axis=0) + noise(rng, rows.shape[1]) * factor

    found = verdict((release, CLAIM | {"adjacency": "replace_one", "dimension": 4}), seconds=0.2)
    assert (found.verdict, found.row["sensitivity"] > 0.8) == ("unsound", True), found
    assert "it sends the opposite" not in found.situation  # which is as long


def test_the_result_says_what_was_tried_what_was_not_and_its_level():
    found = verdict(HONEST["total"], seconds=0.2)
    assert "pairs of worlds" in found.tried
    assert "refuted with probability 0.0001 at most" in found.tried
    assert "cannot find a trigger on one value" in found.tried
    assert found.tried in str(found)


def test_the_command_runs_where_torch_is_not_installed(tmp_path):
    (tmp_path / "mine.py").write_text(TABLES["RELEASE"])
    claim = "--clients 4 --noise-multiplier 1 --delta 1e-5 --dimension 4 --seconds 0.1"
    words = ("audit", "mine.py:release", *claim.split())
    done = called(sys.executable, "-c", TABLES["PROGRAM"], *words, folder=tmp_path, code=1)
    assert "no epsilon holds" in done.stdout.splitlines()[0]
