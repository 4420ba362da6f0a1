"""Clipping: a bound on the joint length that holds for whatever numbers an update holds."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pflpipe.privacy.clipping import clip, clip_groups, power_sum
from releases import length, torch_generator, uploads

SPECIAL = [0.0, -0.0, 1.0, 1e30, -1e30, 3e38, 1e-30, 1e-45, math.inf, -math.inf, math.nan]


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=100, database=None)
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
    matrix, vector = entries[:6].reshape(2, 1, 3), entries[6:10].reshape(2, 2)
    tree = {"matrix": matrix, "vector": vector, "scalar": entries[10:]}
    scale = {"matrix": torch.tensor([1e-3, 0.0, 7.0], dtype=dtype)}
    scale["scalar"] = torch.tensor(2.0, dtype=dtype)
    scale = scale if scaled else None
    clipped, norms = clip(tree, bound, scale, norm)
    assert (length(clipped, norm, scale=scale) <= bound * (1 + 1e-6)).all()
    assert all(torch.isfinite(value).all() for value in clipped.values())
    assert not norms.isnan().any()
    moderate = length(tree, norm, scale=scale).isfinite() & (entries.abs().max() < 1e30)
    assert not norms[moderate].isinf().any()


NASTY = [0.0, 1.0, 2.0**-12, 2.0**-24 * (1 - 1e-6), 3e38, 1e19, 1e-19, 1e-30, 1e-38, 3e-45]
NASTY += [1e300, 1e-300, 5e-324]
SCALES = [0.0, 1.0, 0.7, 1e38, 1e-30, 1e-38, 1.4e-45, 1e300, 5e-324]


def power(values, scale, norm):
    """Sum of |x / s|^norm without any rounding; coordinates with s = 0 do not count."""
    pairs = zip(values.tolist(), scale.tolist(), strict=True)
    return sum((abs(Fraction(x) / Fraction(s)) ** norm for x, s in pairs if s > 0), Fraction(0))


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(
    values=st.lists(st.sampled_from(NASTY) | st.floats(-1e300, 1e300), min_size=1, max_size=40),
    scales=st.none() | st.lists(st.sampled_from(SCALES), min_size=1, max_size=4),
    bound=st.sampled_from([0.0, 1e-40, 1e-30, 1e-6, 0.7, 1.0, 3.0, 1e4, 1e38, 1e300])
    | st.just("own norm"),
    norm=st.sampled_from([1, 2]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_clip_keeps_its_promise_to_the_last_digit_for_nasty_numbers(
    values, scales, bound, norm, dtype
):
    largest = torch.finfo(dtype).max
    update = torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype)
    pattern = itertools.islice(itertools.cycle(scales or [1.0]), len(values))
    scale = torch.tensor([*pattern], dtype=torch.float64).clamp(max=largest).to(dtype)
    public = None if scales is None else {"update": scale}
    if bound == "own norm":
        # Decided by the last digits: a little below the length that a first call tells.
        bound = clip({"update": update[None]}, math.inf, public, norm)[1].item() * (1 - 1e-9)
    clipped, norms = clip({"update": update[None]}, bound, public, norm)
    result = clipped["update"][0]
    assert result.isfinite().all()
    if math.isfinite(bound):
        assert power(result, scale, norm) <= (Fraction(bound) * (1 + Fraction(1, 10**6))) ** norm
        is_within = power(update, scale, norm) <= Fraction(bound) ** norm
        if norms.isfinite().all() and bound > 1e-31 and is_within:
            assert torch.equal(result, torch.where(scale > 0, update, 0))


def crafted(norm, block, lanes, dtype):
    """A vector whose blocks lose what they can: next to 1, no other summand reaches half an epsilon
    and each is rounded away.

    In sums that go on in several lanes, added up in the end, it is the sum of each further lane
    that stays below.
    """
    eps = torch.finfo(dtype).eps
    parts = torch.where(torch.arange(block) % lanes == 0, 1.0, lanes / block).double()
    summands = parts * eps / 2 * (1 - 16 * eps)
    summands[0] = 1
    return summands.pow(1 / norm).to(dtype).repeat(1000)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("block", "lanes"), [(8, 8), (16, 8), (16, 16), (32, 4), (32, 8), (32, 16), (32, 32)]
)
def test_clip_keeps_its_bound_where_every_sum_is_rounded_down(block, lanes, norm, scaled, dtype):
    tree = {"update": crafted(norm, block, lanes, dtype)}
    scale = {"update": torch.full((1000 * block,), 0.7, dtype=dtype)} if scaled else None
    for bound in (1.0, 3.3, 41.0, length(tree, norm, scale=scale).item() * (1 - 1e-9)):
        clipped, _ = clip(tree, bound, scale, norm)
        assert length(clipped, norm, scale=scale).item() <= bound * (1 + 1e-6)
        assert (clipped["update"] <= tree["update"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [1, 2])
def test_the_length_that_decides_is_exact(norm, dtype):
    clients, size = 30, 40_007  # enough for more than one part in float64
    draw = torch_generator()
    tree = {"update": torch.randn(2, clients, size, generator=draw, dtype=dtype)}
    scale = {"update": torch.rand(2, size, generator=draw, dtype=dtype) + 0.5}
    update, by = tree["update"].double(), scale["update"].unsqueeze(1).double()
    for public, divided in ((None, update), (scale, update / by)):
        exact = torch.linalg.vector_norm(divided, ord=norm, dim=-1)
        fast = power_sum(divided.to(dtype), norm) ** (1 / norm)
        assert (fast > exact).any()  # some updates are within their bound and seem longer
        assert (fast < exact).any()
        kept, norms = clip(tree, exact, public, norm, lead=2)
        assert torch.equal(kept["update"], tree["update"])
        assert torch.equal(norms, exact)
        clipped, norms = clip(tree, exact * (1 - 1e-9), public, norm, lead=2)
        assert (norms > exact * (1 - 1e-9)).all()
        alike = torch.isclose(clipped["update"], tree["update"], rtol=1e-10, atol=0)
        assert not alike.all(dim=-1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_keeps_its_bound_where_numbers_are_too_small_for_their_digits(dtype):
    # 0.7 of the least number is rounded to 1 of it.
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    tiny = {"update": torch.full((2,), least, dtype=dtype)}
    clipped, _ = clip({"update": tiny["update"][None]}, 1.0, tiny)
    assert length(clipped, scale=tiny).item() <= 1
    clipped, _ = clip({"update": torch.ones(1, 9, dtype=dtype)}, 6 * least, norm=1)
    assert length(clipped, norm=1).item() <= 6 * least


def test_shortening_never_overflows():
    scale = torch.rand(200, 1, generator=torch_generator()) * 1e38 + 1
    largest = torch.full((200, 1, 1), torch.finfo(torch.float32).max)
    norms = largest.double()[..., 0] / scale.double()
    clipped, _ = clip({"update": largest}, norms * (1 - 1e-9), {"update": scale}, lead=2)
    assert (clipped["update"] <= largest).all()
    torch.testing.assert_close(clipped["update"], largest, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [1e30, 1e-30, 1e200, 1e-200])
def test_clip_neither_overflows_nor_loses_extreme_norms(value):
    dtype = torch.float64 if not 1e-40 < value < 1e40 else torch.float32
    tree = {"vector": torch.full((1, 4), value, dtype=dtype)}
    clipped, norms = clip(tree, value)
    assert norms.item() == pytest.approx(2 * value, rel=1e-6)
    torch.testing.assert_close(clipped["vector"], tree["vector"] / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", [1, 2])
def test_clip_bites_exactly_above_its_bound(norm):
    direction = torch.rand(1, 5, generator=torch_generator(), dtype=torch.float64)
    direction /= torch.linalg.vector_norm(direction, ord=norm)
    for size in (1 - 1e-6, 1 + 1e-6, 1.001, 1.5):
        clipped, _ = clip({"vector": direction * size}, 1.0, norm=norm)
        expected = direction * min(size, 1.0)
        torch.testing.assert_close(clipped["vector"], expected, rtol=1e-12, atol=0)


def test_clip_leaves_short_and_zero_updates_unchanged_to_the_bit():
    tree = uploads(size=1e-3)
    tree["vector"][2] = 0
    for bound in (10.0, math.inf):
        clipped, _ = clip(tree, bound, {"vector": torch.full((5,), 0.3)})
        assert all(torch.equal(clipped[name], tree[name]) for name in tree)
    zero, norms = clip({"vector": torch.zeros(2, 5)}, 1e-6)
    assert not zero["vector"].any()
    assert not norms.any()


@pytest.mark.parametrize("lead", [(), (2,)])
def test_groups_are_clipped_by_themselves_each_to_its_own_bound(lead):
    tree = {name: value.double() for name, value in uploads(lead=lead, size=2.0).items()}
    groups = [("matrix", "scalar"), ("vector",), ("long",)]
    bounds = torch.rand(*lead, 6, 3, generator=torch_generator(1), dtype=torch.float64) * 10
    bounds[..., 0, :] = math.inf
    clipped, shortened = clip_groups(tree, groups, bounds, len(lead) + 1)
    assert list(clipped) == list(tree)
    longer = torch.zeros(*lead, 6, dtype=torch.bool)
    for place, names in enumerate(groups):
        norms = length({name: tree[name] for name in names}, lead=len(lead) + 1)
        longer |= norms > bounds[..., place]
        factor = (bounds[..., place] / norms).clamp(max=1)
        for name in names:
            own = factor.reshape(*factor.shape, *[1] * (tree[name].ndim - factor.ndim))
            torch.testing.assert_close(clipped[name], tree[name] * own, rtol=1e-12, atol=0)
    assert torch.equal(shortened, longer)
    assert 0 < shortened.sum() < shortened.numel()
