"""The release: what leaves a round, its bound, its noise and its refusals."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from pflpipe import privacy
from pflpipe.errors import PrivacyError
from pflpipe.privacy import Plan, Uploads, clip, release, sample_clients

torch.set_num_threads(1)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=100, database=None)
SHAPES = {"matrix": (3, 4), "vector": (5,), "scalar": (), "long": (70,)}
GAUSSIAN = Plan("gaussian", 2, clip_norm=0.7, noise_multiplier=1.3, sample_rate=1.0, rounds=10, delta=1e-3, clients=6)
SAMPLED = dataclasses.replace(GAUSSIAN, sample_rate=0.25)
LAPLACE = dataclasses.replace(GAUSSIAN, mechanism="laplace", norm=1, delta=0.0)
NOTHING = Plan("none", 2, None, None, sample_rate=0.5, rounds=10, delta=None, clients=6)
SPECIAL = [0.0, -0.0, 1.0, 1e30, -1e30, 3e38, 1e-30, 1e-45, math.inf, -math.inf, math.nan]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uploads(seed=0, clients=6, lead=(), dtype=torch.float32, size=1.0):
    draw = generator(seed)
    return {name: torch.randn(*lead, clients, *shape, generator=draw, dtype=dtype) * size for name, shape in SHAPES.items()}


def everybody(clients=6, lead=()):
    return torch.ones(*lead, clients, dtype=torch.bool)


def length(tree, norm=2, lead=1, scale=None):
    """Joint norms of a tree in float64, written out plainly; 0 / 0 counts as 0."""
    rows = []
    for name, tensor in tree.items():
        value = tensor.double()
        if scale is not None and name in scale:
            value = torch.where(scale[name] > 0, value / scale[name].double(), value)
        rows.append(value.reshape(*value.shape[:lead], -1) if value.ndim > lead else value.unsqueeze(-1))
    return torch.linalg.vector_norm(torch.cat(rows, dim=-1), ord=norm, dim=-1)


def noise_of(plan, present, update, scale=None, seed=0):
    """The noise alone: the release of zero uploads with the same shapes and the same cohort."""
    zeros = {name: torch.zeros_like(value) for name, value in update.items()}
    return release(generator(seed), Uploads(zeros), present, plan, scale).sum


@SETTINGS
@given(
    values=st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=12, max_size=12),
    factor=st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e30]),
    bound=st.sampled_from([1e-6, 0.5, 1.0, 1e4]),
    norm=st.sampled_from([1, 2]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    scaled=st.booleans(),
)
def test_clip_has_bounded_norm(values, factor, bound, norm, dtype, scaled):
    entries = torch.tensor(values, dtype=dtype) * factor
    tree = {"matrix": entries[:6].reshape(2, 1, 3), "vector": entries[6:10].reshape(2, 2), "scalar": entries[10:]}
    scale = (
        {"matrix": torch.tensor([1e-3, 0.0, 7.0], dtype=dtype), "scalar": torch.tensor(2.0, dtype=dtype)} if scaled else None
    )
    clipped, norms = clip(tree, bound, scale, norm)
    assert (length(clipped, norm, scale=scale) <= bound * (1 + 1e-6)).all()
    assert all(torch.isfinite(value).all() for value in clipped.values())
    assert not norms.isnan().any()
    assert not norms[length(tree, norm, scale=scale).isfinite() & (entries.abs().max() < 1e30)].isinf().any()


@pytest.mark.parametrize("size", [31, 32, 33, 1_000_001])
@pytest.mark.parametrize("norm", [1, 2])
def test_clip_keeps_its_bound_for_long_vectors(size, norm):
    tree = {"equal": torch.full((1, size), 0.7), "random": torch.rand(1, size, generator=generator())}
    clipped, norms = clip(tree, 1.0, norm=norm)
    assert length(clipped, norm).item() == pytest.approx(1.0, abs=1e-6)
    assert norms.item() == pytest.approx(length(tree, norm).item(), rel=1e-6)


@pytest.mark.parametrize("value", [1e30, 1e-30, 1e200, 1e-200])
def test_clip_neither_overflows_nor_loses_extreme_norms(value):
    dtype = torch.float64 if not 1e-40 < value < 1e40 else torch.float32
    tree = {"vector": torch.full((1, 4), value, dtype=dtype)}
    clipped, norms = clip(tree, value)
    assert norms.item() == pytest.approx(2 * value, rel=1e-6)
    torch.testing.assert_close(clipped["vector"], tree["vector"] / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", [1, 2])
def test_clip_bites_exactly_above_its_bound(norm):
    direction = torch.rand(1, 5, generator=generator(), dtype=torch.float64)
    direction /= torch.linalg.vector_norm(direction, ord=norm)
    for size in (1 - 1e-6, 1 + 1e-6, 1.001, 1.5):
        clipped, _ = clip({"vector": direction * size}, 1.0, norm=norm)
        torch.testing.assert_close(clipped["vector"], direction * min(size, 1.0), rtol=1e-12, atol=0)


def test_clip_leaves_short_and_zero_updates_unchanged_to_the_bit():
    tree = uploads(size=1e-3)
    tree["vector"][2] = 0
    for bound in (10.0, math.inf):
        clipped, _ = clip(tree, bound, {"vector": torch.full((5,), 0.3)})
        assert all(torch.equal(clipped[name], tree[name]) for name in tree)
    zero, norms = clip({"vector": torch.zeros(2, 5)}, 1e-6)
    assert not zero["vector"].any()
    assert not norms.any()


def test_clip_counts_a_nonfinite_update_as_zero_and_touches_no_other():
    tree = uploads()
    alone, _ = clip(tree, 0.7)
    tree["vector"][1, 0] = math.nan
    tree["scalar"][4] = -math.inf
    clipped, norms = clip(tree, 0.7)
    for name in tree:
        assert not clipped[name][[1, 4]].any()
        assert torch.equal(clipped[name][[0, 2, 3, 5]], alone[name][[0, 2, 3, 5]])
    assert norms.isinf().tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("sample_rate", [1.0, 0.25])
def test_release_std_matches_plan(mechanism, sample_rate):
    plan = dataclasses.replace(GAUSSIAN if mechanism == "gaussian" else LAPLACE, sample_rate=sample_rate)
    repeats = 20_000
    scale = {"vector": torch.tensor([0.0, 0.5, 1.0, 2.0, 10.0])}
    update = {"vector": torch.zeros(1, 1, 5).expand(repeats, 6, 5), "scalar": torch.zeros(repeats, 6)}
    noise = release(generator(7), Uploads(update), everybody(lead=(repeats,)), plan, scale).sum
    unit = plan.clip_norm * plan.noise_multiplier / (sample_rate * 6)
    spread = unit * (1.0 if mechanism == "gaussian" else math.sqrt(2))
    kurtosis = 3.0 if mechanism == "gaussian" else 6.0
    columns = torch.cat([noise["vector"][:, 1:] / scale["vector"][1:], noise["scalar"][:, None]], dim=1).double() / spread
    # The mean square of n draws has variance (kurtosis - 1) / n; five standard deviations, seed fixed.
    tolerance = 5 * math.sqrt((kurtosis - 1) / repeats)
    torch.testing.assert_close(columns.square().mean(0), torch.ones(5, dtype=torch.float64), rtol=0, atol=tolerance)
    torch.testing.assert_close(columns.mean(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=5 / math.sqrt(repeats))
    # The mean absolute value tells a Gaussian from a Laplace variable of equal spread.
    absolute = math.sqrt(2 / math.pi) if mechanism == "gaussian" else math.sqrt(1 / 2)
    torch.testing.assert_close(columns.abs().mean(0), torch.full((5,), absolute, dtype=torch.float64), rtol=0, atol=0.025)
    correlation = torch.corrcoef(columns.T) - torch.eye(5, dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(repeats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_dtype_and_resolution_of_the_update(dtype):
    # With a divisor that is a power of two, float32 draws would survive a round trip through float32.
    plan = dataclasses.replace(GAUSSIAN, clip_norm=1.0, noise_multiplier=1.0, clients=4)
    noise = noise_of(plan, everybody(4), uploads(clients=4, dtype=dtype))
    assert {value.dtype for value in noise.values()} == {dtype}
    assert torch.equal(noise["long"], noise["long"].float().to(dtype)) == (dtype == torch.float32)


def test_release_is_the_clipped_sum_plus_noise_over_the_expected_cohort():
    update = uploads(size=2.0)
    present = torch.tensor([True, False, True, True, False, False])
    released = release(generator(), Uploads(update), present, SAMPLED)
    clipped, norms = clip(update, SAMPLED.clip_norm)
    noise = noise_of(SAMPLED, present, update)
    for name in update:
        expected = clipped[name][present].sum(0) / (0.25 * 6) + noise[name]
        torch.testing.assert_close(released.sum[name], expected)
    torch.testing.assert_close(released.norms, torch.where(present, norms, 0))
    assert released.clipped.tolist() == present.tolist()
    assert released.noise_norm.item() == pytest.approx(length({n: v[None] for n, v in noise.items()}).item())
    signal = {name: clipped[name][present].sum(0)[None] / 1.5 for name in update}
    assert released.signal_norm.item() == pytest.approx(length(signal).item())


def test_repeats_are_independent_releases_by_one_code_path():
    update = uploads(lead=(2, 3), size=3.0)
    present = torch.rand(2, 3, 6, generator=generator(1)) < 0.5
    scale = {"vector": torch.rand(2, 3, 5, generator=generator(2)), "matrix": torch.rand(4, generator=generator(3))}
    released = release(generator(), Uploads(update), present, SAMPLED, scale)
    noise = noise_of(SAMPLED, present, update, scale)
    for i, j in np.ndindex(2, 3):
        own_scale = {"vector": scale["vector"][i, j], "matrix": scale["matrix"]}
        own = {name: value[i, j] for name, value in update.items()}
        single = release(generator(), Uploads(own), present[i, j], SAMPLED, own_scale)
        quiet = noise_of(SAMPLED, present[i, j], own, own_scale)
        for name in update:
            torch.testing.assert_close(
                released.sum[name][i, j] - noise[name][i, j], single.sum[name] - quiet[name], rtol=0, atol=1e-5
            )
        torch.testing.assert_close(released.norms[i, j], single.norms)
    assert len({row.item() for row in noise["scalar"].flatten()}) == 6


@pytest.mark.parametrize("plan", [GAUSSIAN, SAMPLED, LAPLACE], ids=["gaussian", "sampled", "laplace"])
def test_noise_is_drawn_for_the_empty_cohort(plan):
    update = {name: value.fill_(math.nan) for name, value in uploads().items()}
    empty = release(generator(), Uploads(update), ~everybody(), plan)
    full = noise_of(plan, everybody(), update)
    assert all(torch.equal(empty.sum[name], full[name]) for name in update)
    assert all(value.all() for value in empty.sum.values())
    assert empty.signal_norm == 0
    assert not empty.norms.any()
    assert not empty.nonfinite.any()


@SETTINGS
@given(
    seed=st.integers(0, 2**31),
    present=st.lists(st.booleans(), min_size=6, max_size=6),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e20, math.nan]),
    mechanism=st.sampled_from(["gaussian", "laplace"]),
)
def test_noise_does_not_depend_on_data_nor_on_who_is_present(seed, present, size, mechanism):
    plan = dataclasses.replace(GAUSSIAN if mechanism == "gaussian" else LAPLACE, sample_rate=0.5)
    here = torch.tensor(present)
    update = uploads(seed, size=size, dtype=torch.float64)
    source = generator(3)
    released = release(source, Uploads(update), here, plan, {"vector": torch.tensor([0.0, 1, 2, 3, 4])})
    reference = generator(3)
    noise = release(
        reference, Uploads({n: torch.zeros_like(v) for n, v in update.items()}), everybody(), plan, {"vector": torch.ones(5)}
    )
    assert torch.equal(source.get_state(), reference.get_state())
    clipped, _ = clip(update, plan.clip_norm, {"vector": torch.tensor([0.0, 1, 2, 3, 4])}, plan.norm)
    for name in ("matrix", "scalar", "long"):
        signal = (clipped[name] * here.reshape(6, *[1] * (clipped[name].ndim - 1))).sum(0) / 3
        torch.testing.assert_close(released.sum[name] - signal, noise.sum[name], rtol=1e-9, atol=1e-12)


@SETTINGS
@given(
    seed=st.integers(0, 2**31),
    client=st.integers(0, 5),
    size=st.sampled_from([1e-2, 1.0, 1e25]),
    sample_rate=st.sampled_from([1.0, 0.3]),
    mechanism=st.sampled_from(["gaussian", "laplace"]),
    scaled=st.booleans(),
)
def test_one_client_moves_the_release_by_at_most_its_sensitivity(seed, client, size, sample_rate, mechanism, scaled):
    plan = dataclasses.replace(GAUSSIAN if mechanism == "gaussian" else LAPLACE, sample_rate=sample_rate)
    scale = {"vector": torch.tensor([0.0, 1e-3, 1.0, 5.0, 80.0]), "scalar": torch.tensor(3.0)} if scaled else None
    update = uploads(seed, dtype=torch.float64)
    for value in update.values():
        value[client] *= size
    present = everybody()
    without = present.clone()
    without[client] = False
    zeroed = {name: value.clone() for name, value in update.items()}
    for value in zeroed.values():
        value[client] = 0
    with_client = release(generator(seed), Uploads(update), present, plan, scale).sum
    absent = release(generator(seed), Uploads(update), without, plan, scale).sum
    silent = release(generator(seed), Uploads(zeroed), present, plan, scale).sum
    assert all(torch.equal(absent[name], silent[name]) for name in update)
    moved = {name: (with_client[name] - absent[name])[None] for name in update}
    assert length(moved, plan.norm, scale=scale).item() <= plan.clip_norm / (sample_rate * 6) * (1 + 1e-9)


def test_scale_zero_means_not_sent():
    update = uploads(size=3.0)
    scale = {"vector": torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0]), "scalar": torch.tensor(0.0)}
    update["vector"][2, 0] = math.nan
    update["scalar"][:] = math.inf
    released = release(generator(), Uploads(update), everybody(), GAUSSIAN, scale)
    assert (released.sum["vector"] == 0).tolist() == [True, False, True, False, False]
    assert released.sum["scalar"] == 0
    assert not released.nonfinite.any()
    hidden = {**update, "scalar": torch.zeros(6), "vector": torch.where(scale["vector"] > 0, update["vector"], 0)}
    _, norms = clip(hidden, GAUSSIAN.clip_norm, {"vector": torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0])})
    torch.testing.assert_close(released.norms, norms)


def test_nonfinite_uploads_count_as_zero_and_are_reported():
    for plan in (GAUSSIAN, LAPLACE, dataclasses.replace(NOTHING, sample_rate=1.0)):
        update = uploads()
        update["matrix"][3, 0, 0] = math.nan
        released = release(generator(), Uploads(update), everybody(), plan)
        silent = {name: value.clone() for name, value in update.items()}
        for value in silent.values():
            value[3] = 0
        same = release(generator(), Uploads(silent), everybody(), plan)
        assert all(torch.equal(released.sum[name], same.sum[name]) for name in update)
        assert released.nonfinite.tolist() == [False, False, False, True, False, False]
        assert released.norms[3] == math.inf
        assert not released.clipped[3]


def test_without_mechanism_there_is_neither_clip_nor_noise():
    update = uploads(size=100.0, dtype=torch.float64)
    present = torch.tensor([True, True, False, False, True, False])
    source = generator()
    released = release(source, Uploads(update), present, NOTHING)
    assert torch.equal(source.get_state(), generator().get_state())
    for name in update:
        torch.testing.assert_close(released.sum[name], update[name][present].sum(0) / 3)
    assert released.noise_norm == 0
    assert not released.clipped.any()


def test_release_does_not_modify_its_inputs():
    update, side = uploads(size=5.0), {"size": torch.arange(6.0)}
    update["long"][1, 1] = math.nan
    present, scale = torch.tensor([True, True, True, False, True, True]), {"vector": torch.rand(5)}
    copies = [{name: value.clone() for name, value in tree.items()} for tree in (update, side, scale)]
    here = present.clone()
    release(generator(), Uploads(update, side), present, GAUSSIAN, scale, {"data_size_weights"})
    for tree, copy in zip((update, side, scale), copies, strict=True):
        assert all(torch.equal(tree[name], copy[name]) or tree[name].isnan().any() for name in copy)
    assert torch.equal(present, here)


def test_rows_of_clients_not_drawn_may_be_left_out():
    update = uploads()
    present = torch.tensor([False, True, True, False, False, True])
    whole = release(generator(), Uploads(update), present, SAMPLED)
    drawn = release(generator(), Uploads({name: value[present] for name, value in update.items()}), everybody(3), SAMPLED)
    nobody = release(generator(), Uploads({name: value[:0] for name, value in update.items()}), everybody(0), SAMPLED)
    noise = noise_of(SAMPLED, present, update)
    for name in update:
        torch.testing.assert_close(whole.sum[name], drawn.sum[name])
        assert torch.equal(nobody.sum[name], noise[name])


def test_data_size_weights_equals_a_hand_computation():
    # Two clients present, sizes 1 and 3: weights 1/4 and 3/4, |p| = sqrt(10)/4; the third (size 100) was not drawn.
    plan = dataclasses.replace(GAUSSIAN, clip_norm=1.0, noise_multiplier=2.0, clients=3, sample_rate=0.5)
    update = {"w": torch.tensor([[3.0, 4.0], [0.0, 0.5], [9.0, 9.0]], dtype=torch.float64)}
    side = {"size": torch.tensor([1, 3, 100])}
    present = torch.tensor([True, True, False])
    released = release(generator(5), Uploads(update, side), present, plan, departures={"data_size_weights"})
    draw = torch.empty(2, dtype=torch.float64).normal_(generator=generator(5))
    weighted = torch.tensor([0.25 * 0.6, 0.25 * 0.8 + 0.75 * 0.5], dtype=torch.float64)
    expected = weighted + draw * 2.0 * 1.0 * math.sqrt(10) / 4 / math.sqrt(3)
    torch.testing.assert_close(released.sum["w"], expected)

    unclipped = dataclasses.replace(NOTHING, clients=3)
    averaged = release(generator(5), Uploads(update, side), present, unclipped, departures={"data_size_weights"})
    torch.testing.assert_close(averaged.sum["w"], torch.tensor([0.75, 1.375], dtype=torch.float64))


def test_data_size_weights_of_equal_sizes_is_the_plain_release_at_full_participation():
    update = uploads(size=2.0)
    side = {"size": torch.full((6,), 17)}
    weighted = release(generator(), Uploads(update, side), everybody(), GAUSSIAN, departures=["data_size_weights"])
    plain = release(generator(), Uploads(update), everybody(), GAUSSIAN)
    for name in update:
        torch.testing.assert_close(weighted.sum[name], plain.sum[name])


def test_data_size_weights_of_nobody_release_zero():
    side = {"size": torch.ones(6)}
    released = release(generator(), Uploads(uploads(), side), ~everybody(), SAMPLED, departures=["data_size_weights"])
    assert not any(value.any() for value in released.sum.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"side": {"mask": torch.ones(6)}}, "private side entry"),
        ({"side": {"size": torch.ones(6)}}, "private side entry"),
        ({"side": {"size": torch.ones(6), "mask": torch.ones(6)}, "departures": ["data_size_weights"]}, "'mask'"),
        ({"departures": ["data_size_weights"]}, "'size'"),
        ({"side": {"size": torch.ones(5)}, "departures": ["data_size_weights"]}, "'size'"),
        ({"side": {"size": torch.full((6,), -1.0)}, "departures": ["data_size_weights"]}, "'size'"),
        ({"side": {"size": torch.ones(6)}, "departures": ["data_size_weights"], "plan": LAPLACE}, "expected gaussian"),
        ({"departures": ["noise_on_support"]}, "not executed yet"),
        ({"departures": ["data_size_weight"]}, "did you mean 'data_size_weights'?"),
        ({"present": torch.ones(6)}, "expected bool"),
        ({"present": torch.ones(7, dtype=torch.bool)}, "at most the plan's 6"),
        ({"present": torch.ones(5, dtype=torch.bool)}, "leading axes of present"),
        ({"update": {}}, "at least one tensor"),
        ({"update": {"w": torch.ones(6, 2, dtype=torch.float16)}}, "float32 or float64"),
        ({"scale": {"other": torch.ones(5)}}, "names of the update"),
        ({"scale": {"vector": torch.tensor(-1.0)}}, "negative or non-finite"),
        ({"scale": {"vector": torch.tensor(math.nan)}}, "negative or non-finite"),
    ],
)
def test_release_refuses_what_it_cannot_honour(change, words):
    arguments = {"update": uploads(), "side": {}, "present": everybody(), "plan": GAUSSIAN, "scale": None, "departures": ()}
    arguments |= change
    sent = Uploads(arguments.pop("update"), arguments.pop("side"))
    with pytest.raises(PrivacyError, match=words.replace("?", r"\?")) as caught:
        release(generator(), sent, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "gauss"},
        {"norm": 1},
        {"clip_norm": None},
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"noise_multiplier": None},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"sample_rate": 0.0},
        {"sample_rate": 1.1},
        {"sample_rate": True},
        {"rounds": 0},
        {"rounds": 2.0},
        {"clients": 0},
        {"delta": None},
        {"delta": 0.0},
        {"delta": 1.0},
        {"mechanism": "none"},
        {"mechanism": "laplace"},
    ],
    ids=str,
)
def test_plan_refuses_values_out_of_range(change):
    with pytest.raises(PrivacyError, match=r"got .*; expected "):
        dataclasses.replace(GAUSSIAN, **change)


def test_plan_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GAUSSIAN.noise_multiplier = 0.1


def test_participation_counts_fit_the_binomial_distribution():
    plan = dataclasses.replace(GAUSSIAN, sample_rate=0.2, clients=50, rounds=40)
    rng = np.random.default_rng(11)
    drawn = np.stack([sample_clients(rng, plan) for _ in range(100 * plan.rounds)]).reshape(100, plan.rounds, 50)
    counts = drawn.sum(axis=1).ravel()  # 5,000 clients, each Binomial(40, 0.2)
    pmf = np.array([math.comb(40, k) * 0.2**k * 0.8 ** (40 - k) for k in range(41)])
    edges = range(3, 15)
    expected = np.array([pmf[:3].sum(), *pmf[3:14], pmf[14:].sum()]) * counts.size
    observed = np.bincount(np.clip(counts, min(edges) - 1, max(edges)) - 2, minlength=13)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 32.9  # the 0.999 quantile at 12 degrees of freedom
    cohorts = drawn.sum(axis=2)
    assert cohorts.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.1)  # Poisson sampling: sizes vary, fixed-size sampling has 0


def test_full_participation_draws_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert sample_clients(rng, GAUSSIAN).all()
    assert rng.bit_generator.state == before
    assert sample_clients(rng, SAMPLED).dtype == bool


def test_executed_departures_are_known():
    assert set(privacy.DEPARTURES) >= privacy.EXECUTED
    assert all(meaning and "\n" not in meaning for meaning in privacy.DEPARTURES.values())


@pytest.mark.parametrize("departures", [frozenset(), frozenset({"data_size_weights"})])
def test_release_computes_where_the_uploads_lie_and_takes_present_from_the_host(departures, monkeypatch):
    """Fake CUDA tensors have a device and no numbers: mixing devices fails without a GPU as it does with one."""
    draw, present = generator(), everybody()
    with FakeTensorMode(allow_non_fake_inputs=True):
        monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: True)  # the checks on values pass
        side = {"size": torch.ones(6, device="cuda")} if departures else {}
        sent = Uploads({"w": torch.ones(6, 4, device="cuda")}, side)
        released = release(draw, sent, present, GAUSSIAN, departures=departures)
    assert released.sum["w"].device.type == "cuda"
