"""The only place where privacy noise is drawn: sampling, clipping and one noisy release, all
derived from one frozen Plan.

Neighbours (``zero_out``): two runs are neighbours when one client's upload is replaced by zero; M,
q, T and every field of the Plan are public. The clipped sum then has sensitivity C in the plan's
norm, so the noise multiplier is noise scale over C.

What a round gives for unusual inputs (all are normal results, none is an exception):

===========================  ======================================================================
input                        result
===========================  ======================================================================
nobody was drawn             the sum is the noise alone, drawn as in any other round
an upload of zeros           stays exactly zero; its norm is 0
NaN or infinity anywhere     counts as a zero upload; its norm is inf and ``nonfinite`` is set
norm beyond float64          as above (so does an entry that overflows when divided by its scale)
huge or tiny finite norm     clipped to at most C (1 + 1e-6), or left: no square overflows, vanishes
rows of clients not drawn    ignored whatever they hold, NaN included
NaN where the scale is 0     ignored: that coordinate is not sent
===========================  ======================================================================

Sums, noise and their total are float64 whatever the updates are; what is released is rounded once,
at the end. The noise has no largest value (noise.py): one that ends somewhere would show that a
client is there whenever a release lies beyond.

The generators are those of a simulator: reproducible and not cryptographic; floating-point attacks
on the noise are outside the scope. After jax_privacy's execution plan and DP-FedAvg (McMahan et
al., ICLR 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pflpipe.errors import PrivacyError, nearest
from pflpipe.named import OF_MESSAGES, WITHOUT_JOINT_CLIP, check_departures
from pflpipe.privacy.clipping import clip, for_clients, squares
from pflpipe.privacy.departures import bounded, check_extras, deviation, weights
from pflpipe.privacy.noise import laplace, normal
from pflpipe.privacy.plan import Plan


@dataclass(frozen=True)
class Uploads:
    """What clients want to send in one round. Leading axes ``...`` are independent repeats (the
    audit uses them), M is clients.

    Attributes:
        update: name -> ``[..., M, *shape]``, float32 or float64; clipped jointly and noised.
        extras: name -> ``[..., M, ...]``, private extras that a named departure reads; empty
            without departures.
    """

    update: Mapping[str, Tensor]
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """One round's message to the world, and the experimenter's diagnostics of it.

    Attributes:
        sum: name -> ``[..., *shape]``. The message; the only field that the server and the world
            see.
        messages: name -> ``[..., M, *shape]``, what each client sent, under departures of messages;
            else empty.
        clean: what of ``sum`` is not noise, in float64; under departures of messages, what of each
            message. A diagnostic.
        noise_norm, signal_norm: ``[...]``, L2 norms of the two parts that make up ``sum``. A
            diagnostic.
        norms: ``[..., M]``, norm of each drawn client's scaled update before clipping, 0 where not
            drawn. A diagnostic.
        clipped: ``[..., M]`` bool, drawn and longer than C (and finite). A diagnostic.
        nonfinite: ``[..., M]`` bool, drawn and counted as zero. A diagnostic.
    """

    sum: dict[str, Tensor]
    messages: dict[str, Tensor]
    clean: dict[str, Tensor]
    noise_norm: Tensor
    signal_norm: Tensor
    norms: Tensor
    clipped: Tensor
    nonfinite: Tensor


def sample_clients(
    generator: np.random.Generator, plan: Plan, repeats: tuple[int, ...] = ()
) -> np.ndarray:
    """Draw a round's cohort: each of the M clients independently with probability q (Poisson
    sampling).

    Returns a bool array ``[*repeats, M]``, one independent cohort for each repeat. At q = 1
    everybody takes part and nothing is drawn from the generator.
    """
    shape = (*repeats, plan.clients)
    if plan.sample_rate == 1:
        return np.ones(shape, dtype=bool)
    return generator.random(shape) < plan.sample_rate


def public_cohort(round: int, plan: Plan) -> np.ndarray:
    """Return the cohort of a round (counted from 0) under the departure ``public_sampling``: bool
    ``[M]``.

    A fixed number q M of clients, rounded and at least 1, is drawn by a generator that everybody
    can seed with the round's number, as DP-FedSAM's official code does.
    """
    cohort = np.zeros(plan.clients, dtype=bool)
    size = max(1, int(np.rint(plan.expected_cohort)))
    cohort[np.random.default_rng(round).choice(plan.clients, size=size, replace=False)] = True
    return cohort


@torch.no_grad()
def release(
    generator: np.random.Generator,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor] | None = None,
    departures: Iterable[str] = frozenset(),
) -> Released:
    """Clip, sum, add ONE noise draw, divide by the expected cohort: the only message of a round.

    ``sum = (sum over present of clip(update) + C sigma s Z) / (q M)`` with Z standard normal (or
    standard Laplace). Z is drawn in the order of the update's names, in float64, on the CPU, with
    shapes that follow from the model and the repeats alone: never from who is present, what they
    sent or where a scale is 0. Mechanism ``none`` neither clips nor adds noise, but non-finite
    uploads count as zero there too, and the divisor is the same.

    Args:
        generator: of this round's noise, ``seeds.release_rng``.
        uploads: see Uploads; inputs are not modified.
        present: bool ``[..., M]``, who was drawn. M may be smaller than the plan's when rows of
            clients not drawn are left out.
        plan: the frozen plan.
        scale: public tensors, see ``clip``; must be functions of earlier releases only.
        departures: names of steps that the certified mechanism lacks (departures.py). Those of
            messages release ``sum p_i (bounded(update_i) + noise_i)`` with a draw for every row of
            the uploads; an empty cohort then releases 0.

    Raises:
        PrivacyError: shapes or dtypes do not fit, the scale is negative or not finite or stands
            beside a departure that has none, a departure is unknown, or the extras are not
            exactly those that the departures read.
    """
    departures = check_departures(departures)
    scale = scale or {}
    if uploads.update:
        present = present.to(next(iter(uploads.update.values())).device)
    _check(generator, uploads, present, plan, scale, departures)
    lead = present.ndim
    bound = math.inf if plan.clip_norm is None else plan.clip_norm
    if departures.isdisjoint(WITHOUT_JOINT_CLIP):
        clipped, norms = clip(uploads.update, bound, scale, plan.norm, lead)
        shortened = norms > bound
    else:
        clipped, norms = clip(uploads.update, math.inf, scale, plan.norm, lead)
        clipped, shortened = bounded(clipped, uploads.extras, plan, departures, lead)
    if departures & OF_MESSAGES:
        signal, noise, messages, clean = _noise_of_messages(
            generator, clipped, uploads.extras, present, plan, scale, departures
        )
    else:
        signal, noise = _noise_of_sum(generator, clipped, present, plan, scale)
        messages, clean = {}, signal
    nonfinite = present & torch.isinf(norms)
    return Released(
        sum={
            name: (value + noise.get(name, 0.0)).to(clipped[name].dtype)
            for name, value in signal.items()
        },
        messages=messages,
        clean=clean,
        noise_norm=_length(noise, present),
        signal_norm=_length(signal, present),
        norms=torch.where(present, norms, 0),
        clipped=present & ~nonfinite & shortened,
        nonfinite=nonfinite,
    )


def upload_bits(uploads: Uploads, present: Tensor, scale: Mapping[str, Tensor]) -> float:
    """Return how many bits one client sends in a round: 32 for a coordinate, and one for each place
    of a mask sent along.

    A public number, whoever was drawn; but private masks differ, so that with them it is the mean
    over the present clients.
    """
    bits, clients = 0.0, max(int(present.sum()), 1)
    for name, value in uploads.update.items():
        places, mask = value[0].numel(), uploads.extras.get(f"mask.{name}")
        if mask is not None:
            bits += 32 * int(mask[present.to(mask.device)].sum()) / clients + places
        else:
            bits += 32 * (
                int((scale[name] > 0).expand(value[0].shape).sum()) if name in scale else places
            )
    return bits


def _noise_of_sum(
    generator: np.random.Generator,
    clipped: Mapping[str, Tensor],
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the clipped sum and its one noise draw, both divided by q M, in float64."""
    signal, noise = {}, {}
    for name, rows in clipped.items():
        total = _sum_over_clients(rows, present.double())
        signal[name] = total / plan.expected_cohort
        if plan.clip_norm is not None and plan.noise_multiplier is not None:
            spread = plan.clip_norm * plan.noise_multiplier / plan.expected_cohort
            noise[name] = _drawn(generator, total, plan.mechanism) * spread
            if name in scale:
                noise[name] = noise[name] * scale[name].to(total)
    return signal, noise


def _noise_of_messages(
    generator: np.random.Generator,
    clipped: Mapping[str, Tensor],
    extras: Mapping[str, Tensor],
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor],
    departures: frozenset[str],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return the weighted averages, in float64, of the clipped updates and of the noise that each
    message carries; and, as the updates are, the messages and what of each message is not noise."""
    average = weights(extras, present, plan, departures)
    signal, noise, messages, clean = {}, {}, {}, {}
    for name, rows in clipped.items():
        if "noise_on_support" in departures:
            rows = torch.where(extras[f"mask.{name}"], rows, 0)
        clean[name], drawn = rows, torch.zeros_like(rows, dtype=torch.float64)
        if plan.noise_multiplier is not None:
            spread = deviation(name, clipped, extras, plan, departures, present.ndim)
            drawn = _drawn(generator, rows, plan.mechanism) * spread
            if name in scale:
                drawn = drawn * for_clients(scale[name].to(drawn), rows.ndim - present.ndim)
        messages[name] = (rows + drawn).to(rows.dtype)
        signal[name], noise[name] = (_sum_over_clients(part, average) for part in (rows, drawn))
        if "divide_by_counts" in departures:
            held = _sum_over_clients(extras[f"mask.{name}"], average)
            for part in (signal, noise):
                part[name] = torch.where(held > 0, part[name] / held, 0)
    return signal, noise, messages, clean


def _sum_over_clients(rows: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of rows ``[..., M, *shape]``, each times its count ``[..., M]``, in float64
    ``[..., *shape]``."""
    axis = counts.ndim - 1
    wide = counts.double().reshape(*counts.shape, *[1] * (rows.ndim - counts.ndim))
    total = rows.new_zeros((*rows.shape[:axis], *rows.shape[axis + 1 :]), dtype=torch.float64)
    # One client after the other: all rows in float64 at once would double the memory of a round and
    # take four times as long.
    for row, count in zip(rows.unbind(axis), wide.unbind(axis), strict=True):
        total.addcmul_(row.double(), count)
    return total


def _length(tree: Mapping[str, Tensor], present: Tensor) -> Tensor:
    """Return the joint L2 norm ``[...]`` in float64; 0 for an empty tree."""
    total = torch.zeros(present.shape[:-1], dtype=torch.float64, device=present.device)
    for value in tree.values():
        total += squares(value, present.ndim - 1)
    return total.sqrt()


def _drawn(generator: np.random.Generator, like: Tensor, mechanism: str) -> Tensor:
    """Draw standard normal or standard Laplace noise in float64, with the shape and (in the end)
    the device of ``like``."""
    standard = laplace if mechanism == "laplace" else normal
    return torch.as_tensor(standard(generator, tuple(like.shape))).to(like.device)


def _check(
    generator: np.random.Generator,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor],
    departures: frozenset[str],
) -> None:
    if not isinstance(generator, np.random.Generator):
        expected = "one of NumPy, whose noise is float64 and the same on every device"
        raise PrivacyError("release: generator", got=type(generator).__name__, expected=expected)
    if present.dtype != torch.bool or present.ndim < 1 or present.shape[-1] > plan.clients:
        got = f"{present.dtype} {list(present.shape)}"
        raise PrivacyError(
            "release: present",
            got=got,
            expected=f"bool [..., M] with M at most the plan's {plan.clients}",
        )
    if not uploads.update:
        raise PrivacyError("release: update", got="no tensors", expected="at least one tensor")
    for name, tensor in uploads.update.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise PrivacyError(
                f"release: update {name!r}: dtype",
                got=str(tensor.dtype),
                expected="float32 or float64",
            )
        if tensor.shape[: present.ndim] != present.shape:
            expected = f"the leading axes of present, {list(present.shape)}"
            raise PrivacyError(
                f"release: update {name!r}: shape", got=list(tensor.shape), expected=expected
            )
    for name, tensor in scale.items():
        if name not in uploads.update:
            raise PrivacyError(
                "release: scale",
                got=name,
                expected="names of the update",
                do=nearest(name, uploads.update),
            )
        if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
            raise PrivacyError(
                f"release: scale {name!r}",
                got="a negative or non-finite entry",
                expected="entries >= 0",
            )
    unscaled = departures & (OF_MESSAGES | WITHOUT_JOINT_CLIP) - {"noise_per_participant"}
    if scale and unscaled:
        raise PrivacyError(
            f"departure {min(unscaled)}: scale", got="a public scale", expected="none"
        )
    check_extras(uploads.update, uploads.extras, present, plan, departures)
