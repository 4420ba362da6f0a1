"""Departures: named steps of published mechanisms that the certified mechanism lacks.

facts/departures.py lists them. A cell names its departures; mechanism.py executes them with the
functions here. Departures in ``OF_MESSAGES`` change single messages. The noise is then drawn for
every message, as in the papers, instead of once for the sum. Most departures read private values of
the clients, the extras, so none of them is certified:

======================  ==========================================================================
departure               extras it reads, each with the leading axes ``[..., M]``
======================  ==========================================================================
data_size_weights       ``size`` ``[]``: number of examples
raw_similarity_weights  ``similarity`` ``[]``: similarity of the client's model to the global one
noise_on_support        ``mask.<name>`` (bool, the tensor's shape): coordinates sent and noised
divide_by_counts        the same masks
client_clip_weights     ``clip_weights`` ``[L]``: shares of C^2 for the L layers, in forward order
data_dependent_clip     ``bounds`` ``[G]``: clip bound per layer (per_tensor_clip: per tensor)
private_clamp           ``centre.<name>``, ``radius.<name>``: clamp to centre +- radius
data_dependent_noise    the same radii; they set the size of the noise
======================  ==========================================================================

The docstring of each method names the paper or the official code behind its departures.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import EXTRAS, OF_MESSAGES, SPLIT_CLIP
from pflpipe.privacy.clipping import clip_groups
from pflpipe.privacy.plan import Plan, message_share
from pflpipe.trees import Tensors, Tree


def check_extras(
    update: Tensors, extras: Tensors, present: Tensor, plan: Plan, departures: frozenset[str]
) -> None:
    """Raise PrivacyError unless the extras are exactly those that the departures read, with
    fitting shapes."""
    if not plan.law.stable and departures & OF_MESSAGES:
        what = f"departure {min(departures & OF_MESSAGES)}: mechanism"
        raise PrivacyError(what, got=plan.mechanism, expected="gaussian or none")
    parts = {
        "clip_weights": (len(trees.layers(update)),),
        "bounds": (len(groups(update, departures)),),
    }
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    for departure in sorted(departures & EXTRAS.keys()):
        for entry in EXTRAS[departure]:
            if entry.endswith("."):
                shapes = {entry + name: tuple(value.shape) for name, value in update.items()}
            else:
                shapes = {entry: (*present.shape, *parts.get(entry, ()))}
            wanted |= {name: (departure, shape) for name, shape in shapes.items()}
    what = "release: private extra that no departure reads"
    for name in extras:
        PrivacyError.unless(name in wanted, what, name, "a departure named in the cell")
    for name, (departure, shape) in wanted.items():
        got = list(extras[name].shape) if name in extras else "nothing"
        what, expected = f"departure {departure}: extra {name!r}", f"shape {list(shape)}"
        PrivacyError.unless(got == list(shape), what, got, expected)
    if (size := extras.get("size")) is not None:
        finite = bool((torch.isfinite(size) & (size >= 0) | ~present).all())
        what = "departure data_size_weights: extra 'size'"
        PrivacyError.unless(finite, what, expected="finite counts >= 0")


def groups(names: Iterable[str], departures: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the groups of names that are clipped separately: tensors under ``per_tensor_clip``,
    otherwise layers."""
    if "per_tensor_clip" in departures:
        return [(name,) for name in names]
    return list(trees.layers(names).values())


def bounded(
    update: Tensors, extras: Tensors, plan: Plan, departures: frozenset[str], lead: int
) -> tuple[Tree, Tensor]:
    """Return the updates after the departures' bounds, which replace the joint clip, and bool
    ``[..., M]``: whose update changed.

    Args:
        update: name -> ``[..., M, *shape]``, finite.
        extras: the extras. A clip bound of NaN counts as 0; an infinite one never shortens. A
            coordinate without finite bounds of the clamp becomes 0.
    """
    first = next(iter(update.values()))
    changed = torch.zeros(first.shape[:lead], dtype=torch.bool, device=first.device)
    result = dict(update)
    if "private_clamp" in departures:
        for name, value in result.items():
            centre, radius = extras[f"centre.{name}"], extras[f"radius.{name}"]
            # Private bounds may be NaN or infinite; a message must stay finite.
            inside = value.clamp(centre - radius, centre + radius).nan_to_num(0, 0, 0)
            changed |= (inside != value).reshape(*changed.shape, -1).any(-1)
            result[name] = inside
    parts = groups(update, departures)
    bounds = torch.full(
        (*changed.shape, len(parts)),
        plan.clip_norm or math.inf,
        dtype=torch.float64,
        device=first.device,
    )
    if "data_dependent_clip" in departures:
        bounds = extras["bounds"].nan_to_num(0, posinf=math.inf).clamp(min=0)
    elif "client_clip_weights" in departures:
        bounds = bounds * extras["clip_weights"].nan_to_num(0).clamp(min=0).sqrt()
    elif departures.isdisjoint(SPLIT_CLIP):
        return result, changed
    result, shortened = clip_groups(result, parts, bounds, lead)
    return result, changed | shortened


def weights(extras: Tensors, present: Tensor, plan: Plan, departures: frozenset[str]) -> Tensor:
    """Return the weight of each message in the average, float64 ``[..., M]``; all zero if the
    present clients have no weight."""
    if departures.isdisjoint({"data_size_weights", "raw_similarity_weights"}):
        return present.double() / plan.expected_cohort
    raw = (
        extras["size"]
        if "data_size_weights" in departures
        else extras["similarity"].nan_to_num(0, 0, 0).clamp(min=0)
    )
    present_weights = torch.where(present, raw.to(present.device), 0).double()
    # The weights of a cohort sum to 1, as in FedAvg; the public divisor q M plays no part.
    total = present_weights.sum(dim=-1, keepdim=True)
    return present_weights / total.clamp(min=torch.finfo(torch.float64).tiny)


def deviation(
    name: str, update: Tensors, extras: Tensors, plan: Plan, departures: frozenset[str], lead: int
) -> Tensor:
    """Return the standard deviation of the noise in tensor ``name`` of each message, float64,
    broadcastable to ``[..., M, *shape]``."""
    sigma = plan.multiplier * message_share(plan, departures)
    value = update[name]
    ones = [1] * (value.ndim - lead)
    if "data_dependent_noise" in departures:
        # FedADDP's official code: sqrt(K) sigma 2 r for K tensors.
        radius = extras[f"radius.{name}"].nan_to_num(0, 0, 0).clamp(min=0)
        spread = math.sqrt(len(update)) * sigma * 2 * radius.to(value.device, torch.float64)
    else:
        shape, whole = (*value.shape[:lead], *ones), sigma * (plan.clip_norm or 0.0)
        spread = value.new_full(shape, whole, dtype=torch.float64)
    # FedGLP-ADP, Eq. 15: the noise of layer l is that of the bound C sqrt(L tw_l).
    if "client_clip_weights" in departures:
        layers = list(trees.layers(update))
        weights_of_layer = extras["clip_weights"][..., layers.index(name.rpartition(".")[0])]
        share = weights_of_layer.nan_to_num(0).clamp(min=0)
        bound = (len(layers) * share).sqrt().to(spread)
        spread = spread * bound.reshape(*share.shape, *ones)
    return spread * extras[f"mask.{name}"] if "noise_on_support" in departures else spread
