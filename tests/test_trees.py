"""Trees: the mask of the largest scores."""

import pytest
import torch

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
