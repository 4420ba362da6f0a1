"""Noise that may be deployed: whole numbers from the message to the release, one draw of a round,
and the curve that brute force finds."""

import itertools
import math
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

import tabled
from pflpipe.cells import Privacy
from pflpipe.errors import ConfigError, DataError, PrivacyError
from pflpipe.methods import registry
from pflpipe.privacy import accounting, mechanisms, secure
from pflpipe.privacy.clipping import clip, in_steps
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.mechanisms.base import Releases
from pflpipe.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds, runs
from releases import chance_of
from simulations import held, plan, simulation
from test_runs import ROUNDS, make_place, train_here, with_training

SECURE = {"mechanism": "discrete_gaussian", "noise": "secure"}
PLAN = Plan("discrete_gaussian", 2, 2.5, 1.3, 1.0, 5, 1e-3, 4, noise="secure")


@pytest.fixture
def draws(monkeypatch):
    """A sampler of this process instead of OpenDP's, and all that it drew."""
    rng, seen = np.random.default_rng(0), []

    def draw(scale, count):
        seen.append(np.rint(rng.normal(0, scale, count)).astype(np.int64))
        return seen[-1]

    monkeypatch.setattr(secure, "draw", draw)
    monkeypatch.setattr(secure, "sampler", lambda scale: None)
    return seen


def released(rows, numbers, rule=PLAN, dtype=torch.float64):
    sent = Uploads({"a": torch.as_tensor(rows, dtype=dtype)})
    present = torch.ones(len(rows), dtype=torch.bool)
    return release(secure.drawn(numbers), sent, present, rule).sum["a"]


# ---------------------------------------------------------------- sensitivity and curve


@pytest.mark.parametrize("multiplier", [0.37, 1.0, 3.3])
@pytest.mark.parametrize("clip_norm", [1.0, 0.7])
def test_no_message_moves_the_sum_farther_than_the_noise_covers(clip_norm, multiplier, monkeypatch):
    """Every message on a fine mesh and the numbers next to it, on a small grid."""
    monkeypatch.setattr(secure, "DIGITS", 3)
    monkeypatch.setattr(secure, "STEPS", 1)
    grid = secure.grid(clip_norm, multiplier, 3)
    mesh = np.linspace(-1.2, 1.2, 61) * clip_norm
    edges = grid.message * np.arange(-8, 9)
    values = np.unique(np.r_[mesh, edges, np.nextafter(edges, 9), np.nextafter(edges, -9)])
    rows = torch.tensor(list(itertools.product(values, values)))
    clipped = (clip({"a": sent}, clip_norm)[0]["a"] for sent in (rows, rows.float()))
    for sent in (rows, *clipped):
        whole = in_steps({"a": sent}, grid.message, grid.length, 1)["a"]
        assert torch.equal(whole, whole.round())
        longest = int(whole.square().sum(-1).max())
        assert Fraction(grid.scale) ** 2 >= longest * Fraction(multiplier) ** 2
        assert longest >= 0.8 * grid.length, "and not far below"
    kept = (torch.trunc(rows / grid.message) ** 2).sum(-1) <= grid.length
    whole = in_steps({"a": rows}, grid.message, grid.length, 1)["a"]
    assert torch.equal(whole[kept], torch.trunc(rows[kept] / grid.message))
    assert not whole[~kept].any(), "a longer one counts as zero"


@pytest.mark.parametrize("seed", range(3))
def test_no_clipped_message_counts_as_zero_and_little_of_it_is_lost(seed):
    grid = secure.grid(0.7, 1.3, 1000)
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(20, 5000)))
    for dtype in (torch.float32, torch.float64):
        clipped = clip({"a": rows.to(dtype)}, 0.7)[0]["a"]
        whole = in_steps({"a": clipped}, grid.message, grid.length, 1)["a"]
        assert (whole * grid.message - clipped).norm(dim=-1).max() < 1e-5


def test_sums_of_squares_are_compared_exactly():
    for most in (2**52, 2**52 - 1):
        rows = [[2.0**26, 0.0, 0.0], [2.0**26 - 1, 11585.0, 0.0], [2.0**40, 1.0, 1.0]]
        exact = [sum(int(value) ** 2 for value in row) <= most for row in rows]
        sent = torch.tensor([*rows, [math.nan, 0.0, 0.0]], dtype=torch.float64)
        whole = in_steps({"a": sent}, 1.0, most, 1)["a"]
        assert whole.any(-1).tolist() == [*exact, False]


def lattice(scale, reach):
    """The logarithms of the masses of discrete Gaussian numbers on the whole numbers in reach."""
    values = np.arange(-math.ceil(reach * scale), math.ceil(reach * scale) + 1)
    logs = -(values**2) / (2 * scale**2)
    return logs - np.log(np.exp(logs).sum())


@pytest.mark.parametrize("multiplier", [0.9, 1.7])
def test_no_move_of_a_small_grid_is_told_apart_better_than_the_curve_says(multiplier, monkeypatch):
    monkeypatch.setattr(secure, "DIGITS", 4)
    monkeypatch.setattr(secure, "STEPS", 1)
    grid = secure.grid(1.0, multiplier, 1)
    monkeypatch.setattr(mechanisms.discrete_gaussian, "STEPS", grid.scale)
    law, worst = DiscreteGaussian(), 0.0
    of = Releases(law.counted(multiplier), 1.0, 1)
    mass = lattice(grid.scale, reach=7)
    here, side = mass[:, None] + mass[None, :], len(mass)
    reach = math.isqrt(grid.length)
    steps = itertools.product(range(reach + 1), repeat=2)
    # By symmetry 0 <= y <= x stands for all.
    for x, y in ((x, y) for x, y in steps if y <= x and 0 < x * x + y * y <= grid.length):
        there = np.full_like(here, -np.inf)
        there[x:, y:] = here[: side - x, : side - y]
        for at in (0.2, 1.0, 2.5):
            for one, other in ((here, there), (there, here)):
                exact = np.maximum(np.exp(one) - np.exp(at) * np.exp(other), 0).sum()
                worst = max(worst, exact / law.delta(of, at))
                assert exact <= law.delta(of, at) + 1e-9
    assert worst > 0.8, "and the bound is no loose one"


def test_the_longest_message_has_the_multiplier_of_the_plan():
    for clip_norm, multiplier, clients in ((0.7, 1.3, 3200), (1e-9, 0.01, 7), (3.0, 500.0, 10**6)):
        grid = secure.grid(clip_norm, multiplier, clients)
        assert math.frexp(grid.step)[0] == 0.5, "a power of two"
        assert Fraction(grid.scale) ** 2 >= grid.length * Fraction(multiplier) ** 2
        assert grid.scale**2 / grid.length == pytest.approx(multiplier**2, rel=1e-12)
        assert 2**50 - 1 <= grid.length <= 2**52
        # The longest message that the clip lets through is below the longest of the grid.
        assert (clip_norm * (1 + 1e-6) / grid.message) ** 2 < grid.length


# ---------------------------------------------------------------- a release


def test_a_release_follows_from_one_whole_number_alone():
    grid = PLAN.grid
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((4, 300)) * rng.choice([1e-9, 1.0, 100.0], (4, 1))
    numbers = np.rint(rng.normal(0, grid.scale, 300)).astype(np.int64)
    sum_of_steps = released(rows, numbers) / grid.step
    assert torch.equal(sum_of_steps, sum_of_steps.round())
    clean = released(rows, np.zeros(300, np.int64)) / grid.step
    assert torch.equal(sum_of_steps - clean, torch.from_numpy(numbers).double())
    as_floats = released(rows, numbers, dtype=torch.float32)
    clipped = clip({"a": torch.as_tensor(rows).float()}, 2.5)[0]
    whole = in_steps(clipped, grid.message, grid.length, 1)["a"]
    assert torch.equal(as_floats, ((whole.sum(0) + torch.from_numpy(numbers)) * grid.step).float())


def test_two_worlds_differ_by_one_message_of_whole_steps_whatever_it_is():
    rng, numbers = np.random.default_rng(2), np.arange(50) * 10**6
    rows = rng.standard_normal((4, 50))
    first, others = rows[0], rows[1:]
    without = released(np.vstack([first * 0, others]), numbers)
    for client in (first * 1e30, first * 1e-9, first * math.nan, np.r_[math.inf, first[1:]]):
        moved = (released(np.vstack([client, others]), numbers) - without) / PLAN.grid.step
        assert torch.equal(moved, moved.round())
        assert int(moved.square().sum()) <= PLAN.grid.length
    # A client's steps are the same bits among the others and alone.
    among = in_steps({"a": torch.from_numpy(rows)}, 1e-7, 2**52, 1)["a"]
    for place in range(4):
        alone = in_steps({"a": torch.from_numpy(rows[[place]])}, 1e-7, 2**52, 1)["a"]
        assert torch.equal(among[[place]], alone)


def test_what_the_proof_does_not_cover_is_refused():
    for words, change in tabled.table("test_secure_noise"):
        with pytest.raises(PrivacyError, match=words):
            replace(PLAN, **change)
    rows = Uploads({"a": torch.ones(4, 3)})
    with pytest.raises(PrivacyError, match="secure noise, which no generator draws"):
        release(np.random.default_rng(0), rows, torch.ones(4, dtype=torch.bool), PLAN)
    request = Privacy("discrete_gaussian", 2.0, delta=1e-3, clip_norm=1.0, noise="secure")
    asked = {"rounds": 2, "sample_rate": 1.0, "clients": 5}
    with pytest.raises(PrivacyError, match="noise secure: departures; got 'no_composition'"):
        accounting.make_plan(request, **asked, departures=["no_composition"])
    made = accounting.make_plan(request, **asked)
    assert any(one.startswith("secure noise") for one in ledger(made, request).warnings)


def test_without_its_sampler_a_run_ends_in_one_line_before_anybody_computes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp", None)
    secure.sampler.cache_clear()
    cell = place_of(tmp_path)
    with pytest.raises(ConfigError, match=r"no opendp here'; pip install 'pflpipe\[secure\]'"):
        train_here(tmp_path, cell)


def test_the_sampler_draws_every_whole_number_with_its_probability():
    pytest.importorskip("opendp", reason="opendp is not installed: pip install 'pflpipe[secure]'")
    for scale in (0.8, 2.5):
        assert chance_of(secure.draw(scale, 20_000), np.exp(lattice(scale, reach=25))) > 1e-6
    large = secure.draw(2.0**26 * 1.3, 4_000) / (2.0**26 * 1.3)
    assert stats.kstest(large, "norm").pvalue > 1e-6
    assert not np.array_equal(secure.draw(9.0, 50), secure.draw(9.0, 50))


# ---------------------------------------------------------------- a run


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_run_has_one_draw_of_a_round_passes_its_check_and_draws_no_round_again(backend, draws):
    world = simulation("dp_fedavg", plan=plan(4, **SECURE), backend=backend)
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    assert len(draws) == world.plan.rounds
    assert done.residuals.coordinates == sum(map(len, draws))
    with pytest.raises(PrivacyError, match="round 1: secure noise; got 'drawn before'"):
        rounds.run(world, rounds.start(world))


def test_a_release_without_exactly_the_noise_that_was_drawn_is_found(draws):
    world = simulation("dp_fedavg", plan=plan(4, **SECURE))

    def a_step_more(*given):
        found = release(*given)
        sums = {name: value.clone() for name, value in found.sum.items()}
        sums[min(sums)].view(-1)[0] += world.plan.grid.step
        return replace(found, sum=sums)

    faulty = replace(world, release=a_step_more)
    done = rounds.run(faulty, rounds.start(faulty))
    with pytest.raises(DataError, match=r"without exactly the noise of its plan; got [1-9]"):
        held(faulty, done)


def place_of(folder):
    """The inputs of a small run on the digits."""
    cell = make_place(folder, "dp_fedavg", sample_rate=1.0, **SECURE)
    cell = replace(cell, privacy=replace(cell.privacy, **SECURE))
    return with_training(cell, sample_rate=1.0)


def ended(monkeypatch, place, cell, where, name, when=lambda *given: True):
    """Train until this function of ``where`` has been called, and the process ends."""
    function = getattr(where, name)

    def and_end(*given):
        function(*given)
        if when(*given):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(where, name, and_end)
        with pytest.raises(KeyboardInterrupt):
            train_here(place, cell)


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, ROUNDS])
def test_a_resumed_run_draws_no_noise_of_a_round_that_has_left_it(
    after, draws, tmp_path, monkeypatch
):
    cell = place_of(tmp_path)
    saving = runs.Checkpoint, "save_when_due", lambda _, progress: progress.round == after
    ended(monkeypatch, tmp_path, cell, *saving)
    first = torch.load(tmp_path / f"checkpoints/{registry.run_id(cell)}.pt", weights_only=True)
    assert first["progress"]["round"] == len(draws) == after, "a checkpoint after every round"
    with pytest.raises(DataError, match="another program; remove it for a new run"):
        train_here(tmp_path, cell, code="another")
    # Between two of its outputs.
    ended(monkeypatch, tmp_path, cell, runs, "write_rows")
    assert len(draws) == ROUNDS
    train_here(tmp_path, cell)
    assert len(draws) == ROUNDS, "each round once"
    assert torch.load(tmp_path / "run/state.pt", weights_only=True)["params"].keys()
    assert not list((tmp_path / "checkpoints").glob("*.pt"))


@pytest.mark.slow
def test_a_full_disk_ends_a_run_that_could_not_be_continued(draws, tmp_path, monkeypatch):
    cell = place_of(tmp_path)

    def full(*rest):
        raise OSError("No space left on device")

    monkeypatch.setattr(runs, "atomic", full)
    with pytest.raises(OSError, match="No space left"):
        train_here(tmp_path, cell)
    assert len(draws) == 1
