"""Training transforms: those of torchvision, per example, the same bits in a loop and under
vmap."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch.func import vmap

import malformed
from pflpipe.errors import ConfigError
from pflpipe.learning import counter_rng
from pflpipe.learning.augment import Augment
from pflpipe.study import settings
from pflpipe.study.check import check_augment
from pflpipe.study.load import load_study

KEY = torch.tensor(2024)
BLACK = torch.tensor([-2.0, -3.0, -4.0])
EACH = (("crop",), ("flip",), ("rotate",), ("crop", "flip", "rotate"))


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (9, 12)])
def test_rotation_is_torchvisions_rotation_by_up_to_20_degrees(size):
    # Four seconds, which no other test needs.
    from torchvision.transforms import functional as vision

    x = images(64, *size, 3)
    angles = 20 * (2 * counter_rng.uniform(KEY, counter_rng.ROTATE, (64,)).double() - 1)
    assert angles.min() < -18
    assert angles.max() > 18
    turned = Augment(("rotate",), BLACK)(x, KEY)
    for ours, image, angle in zip(turned, x, angles.tolist(), strict=True):
        theirs = vision.rotate(image.permute(2, 0, 1), angle, fill=BLACK.tolist()).permute(1, 2, 0)
        assert torch.equal(ours, theirs)


def test_crop_is_a_window_of_the_picture_padded_with_black_and_every_window_is_as_likely():
    """Chi-square over the 81 windows; fails by chance once in 100,000 keys."""
    x = images(2430, 6, 5, 3)
    padded = F.pad((x - BLACK).permute(0, 3, 1, 2), (4, 4, 4, 4)).permute(0, 2, 3, 1) + BLACK
    corners = itertools.product(range(9), range(9))
    windows = torch.stack([padded[:, top : top + 6, left : left + 5] for top, left in corners])
    found = (Augment(("crop",), BLACK)(x, KEY) - windows).abs().amax((2, 3, 4)) < 1e-5
    assert (found.sum(0) >= 1).all(), "each image shows one of its windows"
    # A window without any of the image is black, wherever it lies.
    seen = found[:, found.sum(0) == 1].sum(1)
    assert seen.sum() > 2400
    assert stats.chisquare(seen.numpy()).pvalue > 1e-5


def test_flip_mirrors_every_second_picture_left_to_right():
    x = images(4000, 3, 4, 1)
    y = Augment(("flip",), BLACK[:1])(x, KEY)
    turned = (y == x.flip(2)).all(-1).all(-1).all(-1)
    assert torch.equal(y[~turned], x[~turned])
    assert abs(turned.float().mean() - 0.5) < 5 * 0.5 * 4000**-0.5


def test_transforms_are_applied_in_the_order_of_the_study():
    x = images(32, 8, 8, 3)
    one = {name: Augment((name,), BLACK) for name in ("crop", "flip", "rotate")}
    for first, then in (("crop", "flip"), ("rotate", "crop")):
        expected = one[then](one[first](x, KEY), KEY)
        assert torch.equal(Augment((first, then), BLACK)(x, KEY), expected)
    assert torch.equal(Augment((), BLACK)(x, KEY), x)


@pytest.mark.parametrize("names", EACH)
def test_vmap_over_clients_gives_the_bits_of_a_loop(names):
    transform, keys, x = Augment(names, BLACK), torch.arange(6) + 2**40, images(6, 5, 28, 28, 3)
    before = x.clone()
    batched = vmap(transform)(x, keys)
    assert torch.equal(batched, torch.stack(list(map(transform, x, keys))))
    assert torch.equal(x, before), "the data set is shared and stays as it is"
    assert batched.dtype == x.dtype


@pytest.mark.parametrize("names", EACH)
def test_padding_rows_other_rows_and_the_same_key_change_nothing_and_another_key_does(names):
    transform, x = Augment(names, BLACK), images(40, 10, 10, 3)
    alone = transform(x[:5], KEY)
    for others in (x, torch.cat([x[:5], images(4, 10, 10, 3)])):
        assert torch.equal(transform(others, KEY)[:5], alone)
    assert torch.equal(transform(x, KEY), transform(x, KEY))
    assert not torch.equal(transform(x, KEY), transform(x, KEY + 1))


def test_features_have_no_transforms():
    check_augment((), (5,))
    check_augment(("crop",), (28, 28, 1))
    words = r"augment; got 'crop, flip for examples of shape \(5,\)'; expected images.*; rem"
    with pytest.raises(ConfigError, match=f"training.{words}"):
        check_augment(("crop", "flip"), (5,))


def test_the_transforms_of_a_study_reach_its_runs(tmp_path):
    malformed.write_good(tmp_path)
    malformed.put("axes", {"training.augment": [[], ["crop", "flip"], ["flip", "crop"]]})(tmp_path)
    found = {cell.training.augment: cell for cell in load_study("good", tmp_path / "studies").cells}
    assert set(found) == {(), ("crop", "flip"), ("flip", "crop")}
    assert len({cell.id for cell in found.values()}) == 3
    for cell in found.values():
        plain = dataclasses.replace(cell, training=dataclasses.replace(cell.training, augment=()))
        assert (plain.plan_id, plain.partition_id) == (cell.plan_id, cell.partition_id)


def test_transforms_have_words_in_captions_and_labels():
    assert settings.phrase("training.augment", ("crop", "flip")) == "training transforms crop+flip"
    assert settings.condition_text((), "training.augment") == "none"
