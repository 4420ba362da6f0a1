"""Trees: what masks choose, and the mask of the largest scores."""

import pytest
import torch
from torch.func import vmap

from pflpipe import trees

SCORES = {
    "a.weight": torch.tensor([[5.0, 1.0], [3.0, 2.0]]),
    "a.bias": torch.tensor([4.0]),
    "b.weight": torch.tensor([0.5, 0.1]),
}


def test_largest_compares_within_each_group():
    of_layers, of_tensors = trees.layers(SCORES).values(), [(name,) for name in SCORES]
    for groups, ratio, last in ((of_layers, 0.6, [1, 1]), (of_tensors, 0.5, [1, 0])):
        found = trees.largest(SCORES, groups, ratio)
        kept = {name: mask.int().tolist() for name, mask in found.items()}
        assert kept == {"a.weight": [[1, 0], [1, 0]], "a.bias": [1], "b.weight": last}


@pytest.mark.parametrize(
    ("ratio", "size", "count"),
    [(0.0, 7, 0), (0.07, 100, 7), (0.071, 100, 8), (0.5, 3, 2), (1.0, 7, 7)],
)
def test_largest_keeps_the_rounded_up_share_whatever_the_ties(ratio, size, count):
    assert trees.largest({"a": torch.zeros(size)}, [("a",)], ratio)["a"].sum() == count


def test_largest_does_the_same_for_many_trees_at_once():
    many = {name: torch.stack([value, -value, value.square()]) for name, value in SCORES.items()}
    found = vmap(lambda tree: trees.largest(tree, [tuple(tree)], 0.5))(many)
    for place in range(3):
        one = {name: value[place] for name, value in many.items()}
        alone = trees.largest(one, [tuple(many)], 0.5)
        assert all(torch.equal(found[name][place], alone[name]) for name in alone)


def test_where_takes_the_first_tree_where_the_mask_holds():
    mask = {"a": torch.tensor([True, False])}
    found = trees.where(mask, {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 4.0])})
    assert found["a"].tolist() == [1.0, 4.0]
