"""Secure aggregation with shares of Skellam noise: the curve that brute force finds, whole numbers
that are never too long, drop-outs, the modulus, and a release that is checked like any other."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import linalg
from scipy.special import ive

from pflpipe.auditing import cases, coupled
from pflpipe.cells import Privacy
from pflpipe.errors import DataError, PrivacyError
from pflpipe.privacy import mechanisms, secure_sum
from pflpipe.privacy.accounting import delta, epsilon, epsilon_replace_one, make_plan
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import rounds
from releases import chance_of, told
from simulations import held, plan, simulation

PLAN = Plan("skellam", 2, 2.5, 1.3, 1.0, 5, 1e-3, 40, bits=20)


def law(variance, reach=25):
    """The logarithms of the probabilities of Skellam numbers."""
    ends = math.ceil(reach * math.sqrt(variance))
    with np.errstate(divide="ignore"):  # below the least float64
        return np.log(ive(np.abs(np.arange(-ends, ends + 1)), variance))


# ---------------------------------------------------------------- noise and curve


@pytest.mark.parametrize("variance", [mechanisms.skellam.LEAST, 400])
def test_no_move_of_whole_numbers_costs_more_than_the_curve_says(variance):
    mass = law(variance)
    here, side = mass[:, None] + mass[None, :], len(mass)
    for x, y in ((1, 0), (0, 5), (3, 4), (7, 7), (12, 1)):
        there = np.full_like(here, -np.inf)
        there[x:, y:] = here[: side - x, : side - y]
        inside = there > -np.inf
        for order in (2, 3, 8):
            for one, other in ((here, there), (there, here)):
                logs = (order * one - (order - 1) * np.where(inside, other, 0))[inside]
                found = np.log(np.exp(logs - logs.max()).sum()) + logs.max()
                gaussian = order * (x * x + y * y) / (2 * variance)
                assert 0.85 * gaussian <= found / (order - 1) <= mechanisms.skellam.WORSE * gaussian


@pytest.mark.parametrize(("clients", "staying"), [(7, 7), (10, 9), (10, 5)])
def test_the_shares_of_those_who_stay_are_the_noise_of_the_curve(clients, staying):
    """Variances of independent Skellam numbers add."""
    made = replace(PLAN, clients=clients, dropout=1 - staying / clients)
    rule = secure_sum.rule(made, 30)
    assert rule.variance / clients * staying == pytest.approx(1.3**2 * rule.length)


def test_every_whole_number_is_drawn_with_its_probability():
    drawn = mechanisms.skellam.skellam(np.random.default_rng(0), 4.0, (40_000,))
    assert chance_of(drawn, np.exp(law(4.0))) > 1e-6


def test_calibration_reaches_its_target_at_a_little_more_noise_than_gaussian():
    def made(mechanism, **options):
        request = Privacy(mechanism, epsilon=2.0, delta=1e-4, clip_norm=1.0, **options)
        return make_plan(request, rounds=10, sample_rate=1.0, clients=20), request

    ours, request = made("skellam", dropout=0.25)
    gaussian, _ = made("gaussian")
    assert 2 * (1 - 1e-6) <= epsilon(ours, 1e-4) <= 2
    assert delta(ours, 2.0) == pytest.approx(1e-4, rel=1e-2)
    assert 1 < ours.multiplier / gaussian.multiplier < 1.2
    halved = replace(ours, noise_multiplier=ours.multiplier / 2)
    assert epsilon_replace_one(ours, 1e-4) == epsilon(halved, 1e-4)
    entry = ledger(ours, request)
    assert (entry.claim, entry.trust) == ("certified", "secure_aggregation")
    assert entry.epsilon_local is None
    assert "15 of 20 clients add their share" in entry.warnings[-1]


# ---------------------------------------------------------------- whole numbers


def test_the_rotation_is_orthonormal_and_its_own_inverse():
    rows = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = secure_sum.hadamard(rows)
    theirs = rows @ torch.from_numpy(linalg.hadamard(16)).double() / 4
    assert torch.allclose(ours, theirs)
    assert torch.allclose(secure_sum.hadamard(ours), rows)


@pytest.mark.parametrize("length", [3, 10, 40])
def test_no_message_is_longer_than_the_length_of_the_rule(length):
    """All messages on a mesh, also such as no clip would let through."""
    mesh = np.linspace(-1.3, 1.3, 27) * math.sqrt(length)
    rows = torch.tensor(list(itertools.product(mesh, mesh)))
    rows = torch.cat([rows, torch.tensor([[math.nan, 0.0], [1e300, 0.0]])])
    given = {"a": rows}, torch.ones(2).double(), secure_sum.Rule(2, length, 1.0, 0.0, 0.0, 256), 1
    squares = {x * x + y * y for x, y in itertools.product(range(9), repeat=2)}
    for seed in range(5):
        whole = secure_sum.rounded(np.random.default_rng(seed), *given)
        assert torch.equal(whole, whole.round())
        assert int(whole.square().sum(dim=-1).max()) == max(n for n in squares if n <= length)
        assert not whole[-2:].any()


def test_rounding_keeps_the_mean_and_one_client_s_is_that_of_no_other():
    rows = torch.randn(6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows *= 20 / rows.norm(dim=-1, keepdim=True)
    signs, wide = torch.ones(16).double(), secure_sum.Rule(16, 3_000, 1.0, 0.0, 0.0, 2**20)

    def whole(seed, rows, length=3_000):
        of = replace(wide, length=length)
        return secure_sum.rounded(np.random.default_rng(seed), {"a": rows}, signs, of, 1)

    mean = sum(whole(seed, rows) for seed in range(2_000)) / 2_000
    assert (mean - secure_sum.hadamard(rows)).abs().max() < 6 * 0.5 / math.sqrt(2_000)
    # Others whose rounding needs more draws, or none.
    other = rows.clone()
    other[1:] = 0
    assert torch.equal(whole(0, rows, 410)[0], whole(0, other, 410)[0])


def test_a_message_moves_a_release_by_at_most_the_bound_over_m():
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(rng.standard_normal((40, 50)))
    present = torch.ones(40, dtype=torch.bool)

    def summed(rows, key=5):
        sent = Uploads({"a": rows[:, :20], "b": rows[:, 20:].reshape(40, 5, 6)})
        found = release(np.random.default_rng(key), sent, present, PLAN)
        assert int(found.wrapped) == 0
        return torch.cat([found.sum["a"], found.sum["b"].reshape(-1)])

    without = rows.clone()
    without[0] = 0
    for client in (rows[0], rows[0] * 1e20, rows[0] * math.inf):
        there = rows.clone()
        there[0] = client
        moved = (summed(there) - summed(without)).norm()
        assert moved <= 2.5 / 40 * (1 + 1e-9)
    of = secure_sum.rule(PLAN, 50)
    # The mean of the clipped messages, but for noise and rounding.
    bounds = (2.5 * of.room / math.sqrt(of.length) / rows.norm(dim=-1, keepdim=True)).clamp(max=1)
    found = torch.stack([summed(rows, key) for key in range(60)])
    size = 1.3 * 2.5 / 40
    assert found.var(dim=0).mean().sqrt() == pytest.approx(size, rel=0.05)
    far = found.mean(dim=0) - (rows * bounds).mean(dim=0)
    assert far.abs().max() < 5 * size / math.sqrt(60)


# ---------------------------------------------------------------- the modulus


def test_more_bits_leave_more_room_and_too_few_are_one_line():
    found = [secure_sum.rule(replace(PLAN, bits=bits), 1_000) for bits in (12, 16, 20)]
    shares = [one.room / math.sqrt(one.length) for one in found]
    assert shares == sorted(shares)
    assert shares[0] > 0.5
    assert shares[-1] > 0.99
    for one in found:
        spread = 40**2 * one.room**2 / one.width + 40 / 4 + one.variance
        assert 4 * math.sqrt(spread) <= one.modulus / 2
    words = r"bits for 3200 clients and 1000 numbers; got 8; exp.* 10"
    with pytest.raises(PrivacyError, match=words):
        secure_sum.rule(replace(PLAN, clients=3200, bits=8), 1_000)


def test_numbers_beyond_the_modulus_wrap_and_are_counted():
    of = secure_sum.Rule(4, 100, 1.0, 9.0, 0.0, 16)
    sums = torch.tensor([[7.0, -8.0, 8.0, 20.0]]).double()
    found, wrapped = secure_sum.opened(sums, torch.ones(4).double(), of, 1, {"a": torch.Size([4])})
    assert wrapped.tolist() == [2]
    seen = torch.tensor([[7.0, -8.0, -8.0, 4.0]]).double()
    assert torch.equal(found["a"], secure_sum.hadamard(seen))


# ---------------------------------------------------------------- a run

SUMMED = {"mechanism": "skellam", "bits": 20}


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_run_passes_its_check_and_counts_what_wraps(backend, monkeypatch):
    world = simulation("dp_fedavg", plan=plan(4, **SUMMED), backend=backend)
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    assert done.residuals.coordinates == 3 * world.network.parameters
    assert [row["wrapped"] for row in done.rows] == [0, 0, 0]
    assert done.uploaded_bits == 3 * 20 * 64, "whole numbers of 20 bits, padded to a power of two"
    monkeypatch.setattr(secure_sum, "DEVIATIONS", 0.1)
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    assert all(row["wrapped"] > 0 for row in done.rows)


def test_a_release_with_other_noise_is_found():
    world = simulation("dp_fedavg", plan=plan(4, **SUMMED))
    less = told(lambda rule: {"noise_multiplier": 0.999 * rule.multiplier})
    faulty = replace(world, release=less)
    done = rounds.run(faulty, rounds.start(faulty))
    with pytest.raises(DataError, match=r"without exactly the noise of its plan; got [1-9]"):
        held(faulty, done)


@pytest.mark.parametrize("name", ["skellam", "discrete_gaussian"])
def test_the_audit_finds_too_little_noise_of_whole_numbers(name):
    case = cases.find(f"{name}-central").audited()
    less = replace(case.plan, noise_multiplier=0.8 * case.plan.multiplier)
    assert coupled.sensitivity(replace(case, plan=less), "key", 600).flagged
