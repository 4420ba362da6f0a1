"""The release: what leaves a round, its bound, its noise and its refusals."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import releases
import tabled
from pflpipe.errors import PrivacyError
from pflpipe.privacy.clipping import clip, for_clients
from pflpipe.privacy.cohorts import public_cohort, sample_clients
from pflpipe.privacy.mechanism import Uploads, release, upload_bits
from releases import GAUSSIAN, LAPLACE, NOTHING, SAMPLED, everybody, generator, length, uploads

TABLES = tabled.table("test_privacy")

SETTINGS = settings(derandomize=True, deadline=None, max_examples=100, database=None)
PLANS = {"gaussian": GAUSSIAN, "laplace": LAPLACE}


def noise_of(plan, present, update, scale=None, seed=0):
    """The noise alone: the release of zero uploads with the same shapes and the same cohort."""
    zeros = {name: torch.zeros_like(value) for name, value in update.items()}
    return release(generator(seed), Uploads(zeros), present, plan, scale).sum


def without_rows(update, client):
    """The update of clients of whom one sends zeros."""
    zeroed = {name: value.clone() for name, value in update.items()}
    for value in zeroed.values():
        value[client] = 0
    return zeroed


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("sample_rate", [1.0, 0.25])
def test_release_std_matches_plan(mechanism, sample_rate):
    plan = replace(PLANS[mechanism], sample_rate=sample_rate)
    repeats = 20_000
    scale = {"vector": torch.tensor([0.0, 0.5, 1.0, 2.0, 10.0])}
    update = {"vector": torch.zeros(1).expand(repeats, 6, 5), "scalar": torch.zeros(repeats, 6)}
    noise = release(generator(7), Uploads(update), everybody(lead=(repeats,)), plan, scale).sum
    unit = plan.clip_norm * plan.noise_multiplier / (sample_rate * 6)
    spread = unit * (1.0 if mechanism == "gaussian" else math.sqrt(2))
    kurtosis = 3.0 if mechanism == "gaussian" else 6.0
    scaled = noise["vector"][:, 1:] / scale["vector"][1:]
    columns = torch.cat([scaled, noise["scalar"][:, None]], dim=1).double() / spread
    # The mean square of n draws has variance (kurtosis - 1) / n; five standard deviations, seed
    # fixed.
    tolerance = 5 * math.sqrt((kurtosis - 1) / repeats)
    assert columns.square().mean(0).tolist() == pytest.approx([1] * 5, abs=tolerance)
    assert columns.mean(0).tolist() == pytest.approx([0] * 5, abs=5 / math.sqrt(repeats))
    # The mean absolute value tells a Gaussian from a Laplace variable of equal spread.
    absolute = math.sqrt(2 / math.pi) if mechanism == "gaussian" else math.sqrt(1 / 2)
    assert columns.abs().mean(0).tolist() == pytest.approx([absolute] * 5, abs=0.025)
    correlation = torch.corrcoef(columns.T) - torch.eye(5, dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(repeats)


def test_release_is_the_clipped_sum_plus_noise_over_the_expected_cohort():
    update = uploads(size=2.0)
    present = torch.tensor([True, False, True, True, False, False])
    released = release(generator(), Uploads(update), present, SAMPLED)
    clipped, norms = clip(update, SAMPLED.clip_norm)
    noise = noise_of(SAMPLED, present, update)
    signal = {name: clipped[name][present].sum(0) / (0.25 * 6) for name in update}
    for name in update:
        torch.testing.assert_close(released.sum[name], signal[name] + noise[name])
    torch.testing.assert_close(released.norms, torch.where(present, norms, 0))
    assert released.clipped.tolist() == present.tolist()
    for part, norm in ((noise, released.noise_norm), (signal, released.signal_norm)):
        whole = length({name: value[None] for name, value in part.items()})
        assert norm.item() == pytest.approx(whole.item())


def test_repeats_are_independent_releases_by_one_code_path():
    update = uploads(lead=(2, 3), size=3.0)
    present = torch.rand(2, 3, 6, generator=releases.torch_generator(1)) < 0.5
    shapes = {"vector": (2, 3, 5), "matrix": (4,)}
    seeds = {name: releases.torch_generator(seed) for seed, name in enumerate(shapes, start=2)}
    scale = {name: torch.rand(shape, generator=seeds[name]) for name, shape in shapes.items()}
    released = release(generator(), Uploads(update), present, SAMPLED, scale)
    noise = noise_of(SAMPLED, present, update, scale)
    for i, j in np.ndindex(2, 3):
        own_scale = {"vector": scale["vector"][i, j], "matrix": scale["matrix"]}
        own = {name: value[i, j] for name, value in update.items()}
        single = release(generator(), Uploads(own), present[i, j], SAMPLED, own_scale)
        quiet = noise_of(SAMPLED, present[i, j], own, own_scale)
        for name in update:
            signal = released.sum[name][i, j] - noise[name][i, j]
            expected = single.sum[name] - quiet[name]
            torch.testing.assert_close(signal, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(released.norms[i, j], single.norms)
    assert len({row.item() for row in noise["scalar"].flatten()}) == 6


@pytest.mark.slow
@SETTINGS
@given(
    seed=st.integers(0, 2**31),
    present=st.lists(st.booleans(), min_size=6, max_size=6),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e20, math.nan]),
    mechanism=st.sampled_from(["gaussian", "laplace"]),
)
def test_noise_does_not_depend_on_data_nor_on_who_is_present(seed, present, size, mechanism):
    plan = replace(PLANS[mechanism], sample_rate=0.5)
    here = torch.tensor(present)
    update = uploads(seed, size=size, dtype=torch.float64)
    source, reference = generator(3), generator(3)
    scale, ones = {"vector": torch.tensor([0.0, 1, 2, 3, 4])}, {"vector": torch.ones(5)}
    released = release(source, Uploads(update), here, plan, scale)
    zeros = Uploads({n: torch.zeros_like(v) for n, v in update.items()})
    noise = release(reference, zeros, everybody(), plan, ones)
    assert str(source.bit_generator.state) == str(reference.bit_generator.state)
    clipped, _ = clip(update, plan.clip_norm, scale, plan.norm)
    for name in ("matrix", "scalar", "long"):
        signal = (clipped[name] * here.reshape(6, *[1] * (clipped[name].ndim - 1))).sum(0) / 3
        left = released.sum[name] - signal
        torch.testing.assert_close(left, noise.sum[name], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@SETTINGS
@given(
    seed=st.integers(0, 2**31),
    client=st.integers(0, 5),
    size=st.sampled_from([1e-2, 1.0, 1e25]),
    sample_rate=st.sampled_from([1.0, 0.3]),
    mechanism=st.sampled_from(["gaussian", "laplace"]),
    scaled=st.booleans(),
)
def test_one_client_moves_the_release_by_at_most_its_sensitivity(
    seed, client, size, sample_rate, mechanism, scaled
):
    plan = replace(PLANS[mechanism], sample_rate=sample_rate)
    scale = {"vector": torch.tensor([0.0, 1e-3, 1.0, 5.0, 80.0]), "scalar": torch.tensor(3.0)}
    scale = scale if scaled else None
    update = uploads(seed, dtype=torch.float64)
    for value in update.values():
        value[client] *= size
    present = everybody()
    without = present.clone()
    without[client] = False
    zeroed = without_rows(update, client)
    worlds = ((update, present), (update, without), (zeroed, present))
    given = [(generator(seed), Uploads(sent), here, plan, scale) for sent, here in worlds]
    with_client, absent, silent = (release(*one).sum for one in given)
    assert all(torch.equal(absent[name], silent[name]) for name in update)
    moved = {name: (with_client[name] - absent[name])[None] for name in update}
    most = plan.clip_norm / (sample_rate * 6)
    assert length(moved, plan.norm, scale=scale).item() <= most * (1 + 1e-9)


def test_messages_that_share_the_noise_have_the_scale_of_the_sum():
    scale = {"vector": torch.tensor([0.0, 0.5, 1.0, 2.0, 10.0])}
    scale["matrix"] = torch.rand(400, 3, 4, generator=releases.torch_generator(2))
    update = {name: value.expand(400, *value.shape) for name, value in uploads().items()}
    given = Uploads(update), everybody(lead=(400,)), GAUSSIAN, scale
    whole = release(generator(1), *given)
    shared = release(generator(1), *given, ["noise_per_participant"])
    torch.testing.assert_close(shared.signal_norm, whole.signal_norm)
    clipped, _ = clip(update, GAUSSIAN.clip_norm, scale, lead=2)
    each = GAUSSIAN.clip_norm * GAUSSIAN.noise_multiplier / math.sqrt(6)
    for name, message in shared.messages.items():
        noise, unit = (message - clipped[name]).double(), scale.get(name, torch.ones(())).double()
        spread = for_clients(unit, update[name].ndim - 2).expand(noise.shape)
        assert not noise[spread == 0].any()
        standard = noise[spread > 0] / spread[spread > 0] / each
        tolerance = 6 * math.sqrt(2 / standard.numel())
        assert standard.square().mean().item() == pytest.approx(1, abs=tolerance)


def test_scale_zero_means_not_sent():
    update = uploads(size=3.0)
    scale = {"vector": torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0]), "scalar": torch.tensor(0.0)}
    update["vector"][2, 0] = math.nan
    update["scalar"][:] = math.inf
    released = release(generator(), Uploads(update), everybody(), GAUSSIAN, scale)
    assert (released.sum["vector"] == 0).tolist() == [True, False, True, False, False]
    assert released.sum["scalar"] == 0
    assert not released.nonfinite.any()
    vector = torch.where(scale["vector"] > 0, update["vector"], 0)
    hidden = update | {"scalar": torch.zeros(6), "vector": vector}
    _, norms = clip(hidden, GAUSSIAN.clip_norm, {"vector": torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0])})
    torch.testing.assert_close(released.norms, norms)


def test_nonfinite_uploads_count_as_zero_and_are_reported():
    for plan in (GAUSSIAN, LAPLACE, replace(NOTHING, sample_rate=1.0)):
        update = uploads()
        update["matrix"][3, 0, 0] = math.nan
        released = release(generator(), Uploads(update), everybody(), plan)
        same = release(generator(), Uploads(without_rows(update, 3)), everybody(), plan)
        assert all(torch.equal(released.sum[name], same.sum[name]) for name in update)
        assert released.nonfinite.tolist() == [False, False, False, True, False, False]
        assert released.norms[3] == math.inf
        assert not released.clipped[3]


def test_without_mechanism_there_is_neither_clip_nor_noise():
    update = uploads(size=100.0, dtype=torch.float64)
    present = torch.tensor([True, True, False, False, True, False])
    source = generator()
    released = release(source, Uploads(update), present, NOTHING)
    assert source.bit_generator.state == generator().bit_generator.state
    for name in update:
        torch.testing.assert_close(released.sum[name], update[name][present].sum(0) / 3)
    assert released.noise_norm == 0
    assert not released.clipped.any()


def test_rows_of_clients_not_drawn_may_be_left_out():
    update = uploads()
    present = torch.tensor([False, True, True, False, False, True])
    whole = release(generator(), Uploads(update), present, SAMPLED)
    rows, none = ({name: value[part] for name, value in update.items()} for part in (present, []))
    drawn = release(generator(), Uploads(rows), everybody(3), SAMPLED)
    nobody = release(generator(), Uploads(none), everybody(0), SAMPLED)
    noise = noise_of(SAMPLED, present, update)
    for name in update:
        torch.testing.assert_close(whole.sum[name], drawn.sum[name])
        assert torch.equal(nobody.sum[name], noise[name])


@pytest.mark.parametrize(("change", "words"), TABLES["release refuses what it cannot honour"])
def test_release_refuses_what_it_cannot_honour(change, words):
    given = {"present": everybody(), "plan": "gaussian"} | releases.tensors(change)
    given["plan"] = PLANS[given["plan"]]
    sent = Uploads(given.pop("update", uploads()), given.pop("extras", {}))
    with pytest.raises(PrivacyError, match=words.replace("?", r"\?")):
        release(generator(), sent, **given)


@pytest.mark.parametrize("change", TABLES["plan refuses values out of range"], ids=str)
def test_plan_refuses_values_out_of_range(change):
    with pytest.raises(PrivacyError, match=r"^privacy plan.*; "):
        replace(GAUSSIAN, **change)


def test_plan_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GAUSSIAN.noise_multiplier = 0.1


def test_participation_counts_fit_the_binomial_distribution():
    plan = replace(GAUSSIAN, sample_rate=0.2, clients=50, rounds=40)
    rng = np.random.default_rng(11)
    drawn = np.stack([sample_clients(rng, plan) for _ in range(4000)]).reshape(100, 40, 50)
    counts = drawn.sum(axis=1).ravel()  # 5,000 clients, each Binomial(40, 0.2)
    pmf = np.array([math.comb(40, k) * 0.2**k * 0.8 ** (40 - k) for k in range(41)])
    edges = range(3, 15)
    expected = np.array([pmf[:3].sum(), *pmf[3:14], pmf[14:].sum()]) * counts.size
    observed = np.bincount(np.clip(counts, min(edges) - 1, max(edges)) - 2, minlength=13)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 32.9  # the 0.999 quantile at 12 degrees of freedom
    cohorts = drawn.sum(axis=2)
    # Poisson sampling: sizes vary, fixed-size sampling has 0
    assert cohorts.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.1)


def test_full_participation_draws_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert sample_clients(rng, GAUSSIAN).all()
    assert rng.bit_generator.state == before
    assert sample_clients(rng, SAMPLED).dtype == bool


def test_the_public_cohort_has_a_fixed_size_and_is_the_same_for_everybody():
    plan = replace(GAUSSIAN, sample_rate=0.1, clients=48)
    cohorts = [public_cohort(round, plan) for round in range(30)]
    assert {int(cohort.sum()) for cohort in cohorts} == {5}  # q M = 4.8
    assert all((public_cohort(round, plan) == cohort).all() for round, cohort in enumerate(cohorts))
    other = replace(plan, noise_multiplier=9.0, rounds=99)
    assert (public_cohort(3, other) == cohorts[3]).all()
    assert len({cohort.tobytes() for cohort in cohorts}) > 25
    assert public_cohort(0, replace(plan, sample_rate=1e-6)).sum() == 1
    assert public_cohort(0, replace(plan, sample_rate=1.0)).all()


def test_upload_bits_are_what_one_client_sends_and_public_unless_masks_are_private():
    update = uploads()  # of 12 + 5 + 1 + 70 numbers
    present = torch.tensor([True, False, True, False, False, True])
    assert upload_bits(Uploads(update), present, {}, GAUSSIAN) == 32 * 88
    assert upload_bits(Uploads(update), ~everybody(), {}, GAUSSIAN) == 32 * 88
    scale = {"vector": torch.tensor([0.0, 1, 0, 2, 1]), "matrix": torch.tensor([1.0, 0, 0, 0])}
    assert upload_bits(Uploads(update), present, scale, GAUSSIAN) == 32 * (3 + 3 + 1 + 70)
    assert upload_bits(Uploads(update), present, {"long": torch.tensor(0.0)}, GAUSSIAN) == 32 * 18
    masks = {f"mask.{name}": torch.zeros_like(update[name], dtype=torch.bool) for name in update}
    masks["mask.vector"][0, :2] = masks["mask.scalar"][2] = True
    masks["mask.long"][1] = True  # not present
    # FedGLP-ADP, Eq. 20
    assert upload_bits(Uploads(update, masks), present, {}, GAUSSIAN) == 32 * (2 + 1) / 3 + 88
