"""Clipping: a bound on the joint length that holds for whatever numbers an update holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pflpipe.clipping import clip, clip_groups
from releases import generator, length, uploads

torch.set_num_threads(1)
SPECIAL = [0.0, -0.0, 1.0, 1e30, -1e30, 3e38, 1e-30, 1e-45, math.inf, -math.inf, math.nan]


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


def test_a_bound_for_each_client_and_repeat():
    tree = {
        "a": torch.tensor([[[3.0, 0.0], [3.0, 0.0]], [[0.3, 0.0], [0.0, 0.0]]]),
        "b": torch.tensor([[4.0, 4.0], [0.4, 5.0]]),
    }
    bounds = torch.tensor([[2.5, math.inf], [0.0, 5.0]], dtype=torch.float64)
    clipped, norms = clip(tree, bounds, lead=2)
    torch.testing.assert_close(norms, torch.tensor([[5.0, 5.0], [0.5, 5.0]], dtype=torch.float64))
    torch.testing.assert_close(clipped["b"], torch.tensor([[2.0, 4.0], [0.0, 5.0]]))
    assert clipped["a"].tolist() == [[[1.5, 0], [3, 0]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize("lead", [(), (2,)])
def test_groups_are_clipped_by_themselves_each_to_its_own_bound(lead):
    tree = {name: value.double() for name, value in uploads(lead=lead, size=2.0).items()}
    groups = [("matrix", "scalar"), ("vector",), ("long",)]
    bounds = torch.rand(*lead, 6, 3, generator=generator(1), dtype=torch.float64) * 10
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
