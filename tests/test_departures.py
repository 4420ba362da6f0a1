"""Departures: what each does to a release, in numbers worked out by hand, by a slow second program,
and in its noise."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tabled
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import DEPARTURES, EXTRAS, OF_MESSAGES, WITHOUT_JOINT_CLIP
from pflpipe.privacy import departures as module
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Uploads
from releases import GAUSSIAN, LAPLACE, NOTHING, everybody, published, tensors, torch_generator

TABLES = tabled.table("test_departures")

SHAPES = {"conv.weight": (2, 3), "conv.bias": (2,), "head.weight": (4,)}  # two layers
PLAN = dataclasses.replace(GAUSSIAN, sample_rate=0.5)  # C = 0.7, sigma = 1.3, q M = 3
QUIET = dataclasses.replace(PLAN, noise_multiplier=0.0)
SETS = [(), *((name,) for name in sorted(OF_MESSAGES | WITHOUT_JOINT_CLIP)), *published()]
SETS += [("data_dependent_clip", "per_tensor_clip"), ("data_dependent_noise", "noise_on_support")]
each_set = pytest.mark.parametrize("names", SETS, ids=" ".join)


def uploads(names, lead=(), clients=6, seed=0, size=0.6):
    """Random updates of two layers in float64, and every extra that the departures read."""
    draw = torch_generator(seed)

    def numbers(*shape):
        return torch.rand(*lead, clients, *shape, generator=draw, dtype=torch.float64)

    update = {name: (2 * numbers(*shape) - 1) * size for name, shape in SHAPES.items()}
    layers = torch.stack([numbers() for _ in range(2)], dim=-1)
    entries = {
        "size": (50 * numbers()).round(),
        "similarity": 2 * numbers() - 0.7,
        "clip_weights": layers / layers.sum(-1, keepdim=True),
        "bounds": numbers(3 if "per_tensor_clip" in names else 2),
        **{f"mask.{name}": numbers(*shape) < 0.6 for name, shape in SHAPES.items()},
        **{f"centre.{name}": numbers(*shape) - 0.5 for name, shape in SHAPES.items()},
        **{f"radius.{name}": 0.3 * numbers(*shape) for name, shape in SHAPES.items()},
    }
    read = {entry for name in names for entry in EXTRAS.get(name, ())}
    own = {key for key in entries if {key, key.partition(".")[0] + "."} & read}
    return Uploads(update, {key: value for key, value in entries.items() if key in own})


def release(sent, present, plan, names, seed=0, scale=None):
    return mechanism.release(np.random.default_rng(seed), sent, present, plan, scale, names)


def changed(tree, change):
    return {name: change(value) for name, value in tree.items()}


def by_hand(sent, present, plan, names, draws):
    """The release of messages, one client and one coordinate after the other, in NumPy.

    ``draws`` are the standard normal numbers of each tensor; returns the average and the messages.
    """
    update = {name: value.numpy() for name, value in sent.update.items()}
    extras = {name: value.numpy() for name, value in sent.extras.items()}
    clients, layers = len(present), [("conv.weight", "conv.bias"), ("head.weight",)]
    parts = [(name,) for name in SHAPES] if "per_tensor_clip" in names else layers
    share = 1 if "noise_not_divided" in names else 1 / math.sqrt(plan.sample_rate * plan.clients)
    spread = plan.noise_multiplier * share
    messages = {name: np.zeros_like(value) for name, value in update.items()}
    whole = {f"mask.{name}": np.ones(value.shape, bool) for name, value in update.items()}
    masks = {name: (whole | extras)[f"mask.{name}"] for name in SHAPES}
    for i in range(clients):
        own = {name: value[i].copy() for name, value in update.items()}
        deviations = {n: np.full(shape, plan.clip_norm * spread) for n, shape in SHAPES.items()}
        if "private_clamp" in names:
            for name in SHAPES:
                centre, radius = extras[f"centre.{name}"][i], extras[f"radius.{name}"][i]
                own[name] = np.minimum(np.maximum(own[name], centre - radius), centre + radius)
        if "data_dependent_noise" in names:
            for name in SHAPES:
                deviations[name] = math.sqrt(3) * spread * 2 * extras[f"radius.{name}"][i]
        if "data_dependent_clip" in names:
            bounds = extras["bounds"][i]
        elif "client_clip_weights" in names:
            bounds = plan.clip_norm * np.sqrt(extras["clip_weights"][i])
        elif {"per_tensor_clip", "per_layer_clip_unscaled"} & set(names):
            bounds = [plan.clip_norm] * len(parts)
        elif WITHOUT_JOINT_CLIP & set(names):
            bounds = [math.inf] * len(parts)
        else:
            parts, bounds = [tuple(SHAPES)], [plan.clip_norm]
        for part, bound in zip(parts, bounds, strict=True):
            length = math.sqrt(sum((own[name] ** 2).sum() for name in part))
            for name in part:
                own[name] = own[name] * (bound / length if length > bound else 1.0)
        if "client_clip_weights" in names:
            for layer, weight in zip(layers, extras["clip_weights"][i], strict=True):
                for name in layer:
                    deviations[name] = deviations[name] * math.sqrt(2 * weight)
        for name in SHAPES:
            noise = deviations[name] * draws[name][i]
            if "noise_on_support" in names:
                own[name], noise = own[name] * masks[name][i], noise * masks[name][i]
            messages[name][i] = own[name] + noise
    weights = present / (plan.sample_rate * plan.clients)
    if "data_size_weights" in names:
        weights = extras["size"] * present / (extras["size"] * present).sum()
    elif "raw_similarity_weights" in names:
        weights = np.maximum(extras["similarity"], 0) * present
        weights = weights / weights.sum()
    average = {}
    for name in SHAPES:
        average[name] = np.tensordot(weights, messages[name], 1)
        if "divide_by_counts" in names:
            held = np.tensordot(present.astype(float), masks[name].astype(float), 1)
            total = np.tensordot(present.astype(float), messages[name], 1)
            average[name] = np.divide(total, held, out=np.zeros_like(total), where=held > 0)
    return average, messages


def same(found, expected):
    """Equal up to the rounding of float64."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-12, atol=1e-14)


@each_set
def test_a_release_equals_the_slow_second_program(names):
    sent = uploads(names)
    present = np.array([True, True, False, True, True, False])
    released = release(sent, torch.from_numpy(present), PLAN, names, seed=3)
    draw = np.random.default_rng(3)
    if OF_MESSAGES & set(names):
        draws = {n: draw.standard_normal((6, *s)) for n, s in SHAPES.items()}
        average, messages = by_hand(sent, present, PLAN, names, draws)
        for name in SHAPES:
            same(released.messages[name], messages[name])
    else:  # one draw for the sum, as in the certified mechanism
        zero = {name: np.zeros((6, *shape)) for name, shape in SHAPES.items()}
        average, _ = by_hand(sent, present, PLAN, names, zero)
        for name, shape in SHAPES.items():
            average[name] = average[name] + draw.standard_normal(shape) * 0.7 * 1.3 / 3
        assert released.messages == {}
    for name in SHAPES:
        same(released.sum[name], average[name])


def one_layer(rows, extras, names, plan=QUIET, present=None):
    """Release one tensor and return its sum."""
    update = {"w": torch.tensor(rows, dtype=torch.float64)}
    present = everybody(len(rows)) if present is None else torch.tensor(present)
    sent = Uploads(update, changed(extras, torch.tensor))
    return release(sent, present, plan, names).sum["w"].tolist()


def test_raw_similarity_weights_count_negative_and_undefined_similarities_as_zero():
    rows, drawn = [[0.1], [0.2], [0.3], [0.4]], [True, True, True, False]
    for worthless in (-2.0, math.nan, math.inf):
        extras = {"similarity": [1.0, worthless, 3.0, 5.0]}
        found = one_layer(rows, extras, ["raw_similarity_weights"], present=drawn)
        assert found == pytest.approx([0.025 + 0.225])


@pytest.mark.parametrize(("names", "extras", "expected"), TABLES["clips"])
def test_clips_of_single_layers_and_tensors(names, extras, expected):
    """Layer a = (3, 4) of length 5 with its bias, layer b of length 0.5; C = 0.7."""
    values = {"a.weight": 3.0, "a.bias": 4.0, "b.weight": 0.5}
    update = {name: torch.tensor([[value]]) for name, value in values.items()}
    plan = dataclasses.replace(QUIET, clients=1, sample_rate=1.0)
    private = {name: torch.tensor([value]) for name, value in extras.items()}
    released = release(Uploads(update, private), everybody(1), plan, names)
    assert [value.item() for value in released.sum.values()] == pytest.approx(expected)
    assert released.clipped.tolist() == [names != ["clip_in_training"]]


def test_private_clamp_and_what_is_not_a_number():
    inf, nan = math.inf, math.nan
    extras = {"centre.w": [[0.0, 1.0, -1.0, inf, nan, 2.0]]}
    extras |= {"radius.w": [[0.5, 0.5, inf, 1.0, 1.0, 0.0]]}
    plan = dataclasses.replace(QUIET, clients=1, sample_rate=1.0)
    found = one_layer([[0.7] * 6], extras, ["private_clamp"], plan)
    assert found == [0.5, 0.7, 0.7, 0, 0, 2]


def test_masks_hide_the_signal_and_counts_divide_it():
    rows = [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.1, 0.1, 0.1]]
    extras = {"mask.w": [[True, True, False], [True, False, False], [True, True, True]]}
    drawn = [True, True, False]
    hidden = one_layer(rows, extras, ["noise_on_support"], present=drawn)
    assert hidden == pytest.approx([0.4 / 3, 0.2 / 3, 0])
    both = one_layer(rows, extras, ["noise_on_support", "divide_by_counts"], present=drawn)
    assert both == pytest.approx([0.2, 0.2, 0])


@each_set
def test_repeats_are_separate_releases(names):
    sent = uploads(names, lead=(2, 3))
    present = torch.rand(2, 3, 6, generator=torch_generator(1)) < 0.6
    whole, trees = release(sent, present, QUIET, names), (sent.update, sent.extras)
    for place in np.ndindex(2, 3):
        own = Uploads(*({n: v[place] for n, v in tree.items()} for tree in trees))
        single = release(own, present[place], QUIET, names)
        for name in SHAPES:
            same(whole.sum[name][place], single.sum[name])
            if whole.messages:
                same(whole.messages[name][place], single.messages[name])
        assert torch.equal(whole.clipped[place], single.clipped)
    assert (whole.sum["head.weight"].reshape(6, -1).unique(dim=0).shape[0]) == 6


@each_set
def test_an_upload_that_is_not_finite_counts_as_zero_and_touches_no_other(names):
    sent = uploads(names)
    broken, zero = (changed(sent.update, torch.clone) for _ in range(2))
    broken["conv.bias"][1, 0], broken["head.weight"][4] = math.nan, -math.inf
    for value in zero.values():
        value[[1, 4]] = 0
    worlds = (Uploads(update, sent.extras) for update in (broken, zero))
    found, same = (release(world, everybody(), PLAN, names) for world in worlds)
    assert found.nonfinite.tolist() == [False, True, False, False, True, False]
    for name in SHAPES:
        assert torch.equal(found.sum[name], same.sum[name])
        assert torch.isfinite(found.sum[name]).all()


@each_set
def test_nobody_releases_zero_messages_and_the_noise_of_a_sum(names):
    empty = release(uploads(names), ~everybody(), PLAN, names)
    assert empty.signal_norm == 0
    assert not empty.nonfinite.any()
    assert not empty.clipped.any()
    for value in empty.sum.values():
        assert not value.any() if OF_MESSAGES & set(names) else value.all()


def public_scale(names, **options):
    """A scale, which few departures allow, where there are none."""
    return {} if names else {name: torch.rand(shape, **options) for name, shape in SHAPES.items()}


@each_set
def test_no_release_modifies_its_inputs(names):
    sent, present = uploads(names, size=5.0), torch.tensor([True, False, True, True, True, True])
    sent.update["conv.bias"][0] = math.nan
    trees = sent.update, sent.extras, public_scale(names)
    copies = [changed(tree, torch.clone) for tree in trees]
    release(sent, present, PLAN, names, scale=trees[-1])
    for tree, copy in zip(trees, copies, strict=True):
        assert all(torch.equal(tree[name].nan_to_num(), copy[name].nan_to_num()) for name in copy)
    assert present.tolist() == [True, False, True, True, True, True]


@each_set
def test_without_a_mechanism_there_is_no_noise_and_no_bound_from_the_plan(names):
    sent = uploads(names, size=50.0)
    if "bounds" in sent.extras:
        sent.extras["bounds"][:] = math.inf  # multiples of a bound that the plan does not have
    released = release(sent, everybody(), NOTHING, names)
    assert released.noise_norm == 0
    if "private_clamp" not in names:
        assert not released.clipped.any()
    if not set(names) & {"private_clamp", "noise_on_support", "divide_by_counts"}:
        share = module.weights(sent.extras, everybody(), NOTHING, frozenset(names))
        for name, value in sent.update.items():
            expected = torch.einsum("m,m...->...", share, value)
            torch.testing.assert_close(released.sum[name], expected)


@pytest.mark.parametrize("name", sorted(OF_MESSAGES))
def test_laplace_has_no_departure_of_messages(name):
    with pytest.raises(PrivacyError, match=f"departure {name}: mechanism; got 'laplace'"):
        release(uploads((name,)), everybody(), LAPLACE, (name,))


@pytest.mark.parametrize(("names", "change", "words"), TABLES["side entries"])
def test_side_entries_are_those_that_the_departures_read(names, change, words):
    sent = uploads(names)
    given = sent.extras | tensors(change)
    extras = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(PrivacyError, match=words):
        release(Uploads(sent.update, extras), everybody(), PLAN, names)


def test_every_departure_has_a_meaning_in_one_line():
    assert set(DEPARTURES) >= OF_MESSAGES | WITHOUT_JOINT_CLIP | set(EXTRAS)
    assert all(meaning and "\n" not in meaning for meaning in DEPARTURES.values())
    assert {name for names in SETS for name in names} >= OF_MESSAGES | WITHOUT_JOINT_CLIP


@pytest.mark.slow
@each_set
def test_departures_compute_where_the_uploads_lie(names, monkeypatch):
    """Fake CUDA tensors have a device and no numbers: mixing devices fails without a GPU as it does
    with one."""
    present, here = everybody(), uploads(names)
    with FakeTensorMode(allow_non_fake_inputs=True):
        # The checks on values pass.
        monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: True)

        def on_gpu(tree):
            return changed(tree, lambda v: torch.ones(v.shape, dtype=v.dtype, device="cuda"))

        scale = public_scale(names, device="cuda")
        sent = Uploads(on_gpu(here.update), on_gpu(here.extras))
        released = release(sent, present, PLAN, names, scale=scale)
    for tree in (released.sum, released.messages):
        assert all(value.device.type == "cuda" for value in tree.values())
