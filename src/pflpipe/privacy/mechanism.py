"""Sampling, clipping and one noisy release, all derived from one frozen Plan. Privacy noise is
drawn here and nowhere else.

Neighbours (``zero_out``): two runs are neighbours when one client's upload is replaced by zero; M,
q, T and every field of the Plan are public. The clipped sum then has sensitivity C in the plan's
norm, so the noise multiplier is noise scale over C.

Results for unusual inputs (none of them raises an exception):

===========================  ======================================================================
input                        result
===========================  ======================================================================
empty cohort                 the sum is the noise alone, drawn as in any other round
an upload of zeros           stays exactly zero; its norm is 0
NaN or infinity anywhere     counts as a zero upload; its norm is inf and ``nonfinite`` is set
norm beyond float64          as above, also if an entry overflows when divided by its scale
huge or tiny finite norm     clipped to at most C (1 + 1e-6), or left: squares cannot overflow
rows of clients not drawn    ignored, NaN included
NaN where the scale is 0     ignored: that coordinate is not sent
===========================  ======================================================================

Sums, noise and their total are float64 for updates of any dtype; the release is rounded once, at
the end. The noise has no largest value (noise.py). Otherwise a release beyond this value would
prove that a client is there.

The generators are those of a simulator: reproducible, not cryptographic, and floating-point attacks
on the noise are out of scope; secure.py is without both limits. After jax_privacy's execution plan
and DP-FedAvg (McMahan et al., ICLR 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pflpipe.errors import PrivacyError, nearest
from pflpipe.facts.departures import OF_MESSAGES, WITHOUT_JOINT_CLIP, check_departures
from pflpipe.privacy import correlated, secure_sum
from pflpipe.privacy.clipping import clip, for_clients, in_steps, squares
from pflpipe.privacy.departures import bounded, check_extras, deviation, weights
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Tensors, Tree


@dataclass(frozen=True)
class Uploads:
    """The clients' messages of one round before clipping and noise. Leading axes ``...`` are
    independent repeats (used by the audit); M is the number of clients.

    Attributes:
        update: name -> ``[..., M, *shape]``, float32 or float64; clipped jointly and noised.
        extras: name -> ``[..., M, ...]``, private values that a named departure reads; empty
            without departures.
    """

    update: Tensors
    extras: Tensors = field(default_factory=dict)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Uploads:
        """Return the uploads with the function applied to every tensor."""
        update, extras = (
            {name: function(value) for name, value in tree.items()}
            for tree in (self.update, self.extras)
        )
        return Uploads(update, extras)


@dataclass(frozen=True)
class Released:
    """The release of one round, and private diagnostics of it.

    Attributes:
        sum: name -> ``[..., *shape]``. The release; the only field that is public and that the
            server reads.
        messages: name -> ``[..., M, *shape]``, each client's noised message under departures of
            messages; otherwise empty.
        clean: ``sum`` without its noise, in float64; under departures of messages, each message
            without its noise; under secure aggregation, the rotated sum in whole numbers, without a
            name. A diagnostic, as all further fields.
        wrapped: ``[...]``, numbers of a secure sum that were beyond its modulus.
        noise_norm, signal_norm: ``[...]``, L2 norms of the two terms of ``sum``.
        norms: ``[..., M]``, norm of each drawn client's scaled update before clipping; 0 if not
            drawn.
        clipped: ``[..., M]`` bool, drawn, finite and longer than C.
        nonfinite: ``[..., M]`` bool, drawn and counted as zero.
    """

    sum: Tree
    messages: Tree
    clean: Tree
    wrapped: Tensor
    noise_norm: Tensor
    signal_norm: Tensor
    norms: Tensor
    clipped: Tensor
    nonfinite: Tensor


@torch.no_grad()
def release(
    generator: np.random.Generator | correlated.Drawn,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Tensors | None = None,
    departures: Iterable[str] = frozenset(),
) -> Released:
    """Return the release of a round: clip, sum, add ONE noise draw, divide by the expected cohort.

    ``sum = (sum over present of clip(update) + C sigma s Z) / (q M)`` with Z standard normal (or
    standard Laplace). Z is drawn in the order of the update's names, in float64, on the CPU. Its
    shapes depend on the model and the repeats only, and not on the cohort, on the uploads or on
    zeros of the scale. Mechanism ``none`` neither clips nor adds noise; non-finite uploads count as
    zero there too, and the divisor is the same.

    Args:
        generator: of this round's noise, ``seeds.release_rng``; of a plan with a band, the noise
            itself, ``correlated.Correlated.at``, and of secure noise ``secure.drawn``.
        uploads: see Uploads; inputs are not modified.
        present: bool ``[..., M]``, the cohort. M may be smaller than the plan's if rows of clients
            not drawn are left out.
        plan: the frozen plan.
        scale: public tensors, see ``clip``; must be functions of earlier releases only.
        departures: names of steps that the certified mechanism lacks (departures.py). Departures of
            messages release ``sum p_i (bounded(update_i) + noise_i)`` with a draw for every row of
            the uploads; an empty cohort then releases 0.

    Raises:
        PrivacyError: shapes or dtypes do not fit; the scale is negative, not finite, or used with
            a departure that has none; a departure is unknown; or the extras are not exactly those
            that the departures read.
    """
    departures = check_departures(departures)
    scale = scale or {}
    if uploads.update:
        present = present.to(next(iter(uploads.update.values())).device)
    _check(generator, uploads, present, plan, scale, departures)
    lead = present.ndim
    bound = math.inf if plan.clip_norm is None else plan.clip_norm
    shapes = {name: rows.shape[lead:] for name, rows in uploads.update.items()}
    whole = None
    if plan.bits and plan.noise_multiplier:
        whole = secure_sum.rule(plan, sum(map(math.prod, shapes.values())))
        bound = whole.room * whole.step
    if departures.isdisjoint(WITHOUT_JOINT_CLIP):
        clipped, norms = clip(uploads.update, bound, scale, plan.norm, lead)
        shortened = norms > bound
    else:
        # An infinite bound shortens nothing; this call only zeroes updates that are not finite.
        clipped, norms = clip(uploads.update, math.inf, scale, plan.norm, lead)
        clipped, shortened = bounded(clipped, uploads.extras, plan, departures, lead)
    if departures & OF_MESSAGES:
        assert isinstance(generator, np.random.Generator)
        signal, noise, messages, clean = _noise_of_messages(
            generator, clipped, uploads.extras, present, plan, scale, departures
        )
    elif whole is not None:
        assert isinstance(generator, np.random.Generator)
        drawn, signs = secure_sum.noise_and_signs(generator, whole, present.shape[:-1])
        steps = secure_sum.rounded(generator, clipped, signs, whole, lead)
        total = _sum_over_clients(steps, present.cpu().double())
        sums, wrapped = secure_sum.opened(total + drawn, signs, whole, plan.clients, shapes)
        unit = whole.step / plan.clients
        signal, noise, messages, clean = {"": total * unit}, {"": drawn * unit}, {}, {"": total}
    else:
        signal, noise = _noise_of_sum(generator, clipped, present, plan, scale)
        messages, clean = {}, signal
    if whole is None:
        sums = {name: value + noise.get(name, 0.0) for name, value in signal.items()}
        wrapped = torch.zeros(present.shape[:-1], dtype=torch.int64)
    # Rows of clients that were not drawn may hold anything, so every diagnostic is masked.
    nonfinite = present & torch.isinf(norms)
    # Signal and noise are added in float64 and rounded once. Noise that is rounded first has gaps,
    # and the sum would show how far the signal has shifted them.
    return Released(
        sum={name: value.to(uploads.update[name]) for name, value in sums.items()},
        messages=messages,
        clean=clean,
        wrapped=wrapped,
        noise_norm=_length(noise, present),
        signal_norm=_length(signal, present),
        norms=torch.where(present, norms, 0),
        clipped=present & ~nonfinite & shortened,
        nonfinite=nonfinite,
    )


def upload_bits(uploads: Uploads, present: Tensor, scale: Tensors, plan: Plan) -> float:
    """Return the number of bits that one client sends in a round: 32 for each coordinate, and 1 for
    each place of a mask that is sent too; under secure aggregation those of its whole numbers.

    The number is public. Private masks differ between clients; with them it is the mean over the
    present clients.
    """
    if plan.bits:
        numbers = sum(rows[0].numel() for rows in uploads.update.values())
        return plan.bits * secure_sum.rule(plan, numbers).width
    bits, clients = 0.0, max(int(present.sum()), 1)
    for name, value in uploads.update.items():
        places, mask = value[0].numel(), uploads.extras.get(f"mask.{name}")
        if mask is not None:
            bits += 32 * int(mask[present.to(mask.device)].sum()) / clients + places
        elif name in scale:
            bits += 32 * int((scale[name] > 0).expand(value[0].shape).sum())
        else:
            bits += 32 * places
    return bits


def _noise_of_sum(
    generator: np.random.Generator | correlated.Drawn,
    clipped: Tensors,
    present: Tensor,
    plan: Plan,
    scale: Tensors,
) -> tuple[Tree, Tree]:
    """Return the clipped sum and its one noise draw, both divided by q M, in float64."""
    signal, noise, spread = {}, {}, 0.0
    if plan.clip_norm is not None and plan.noise_multiplier is not None:
        spread = plan.clip_norm * plan.noise_multiplier / plan.expected_cohort
        spread = plan.law.spread(spread)
    step, grid = plan.law.step(spread), plan.grid
    if grid:  # the draws of secure.py are whole numbers
        spread = step = grid.step
        clipped = in_steps(clipped, grid.message, grid.length, present.ndim)
    for name, rows in clipped.items():
        if step and not grid:  # whole steps, towards zero, which makes no message longer
            rows = torch.trunc(rows.double() / (step * plan.expected_cohort))
        total = _sum_over_clients(rows, present.double())
        # The public q M and not the number of clients drawn, which is private.
        signal[name] = total / plan.expected_cohort
        if step:
            signal[name] = total * step
    if plan.noise_multiplier is not None:
        shapes = [tuple(total.shape) for total in signal.values()]
        drawn = _drawn(generator, shapes, plan)
        for (name, total), standard in zip(signal.items(), drawn, strict=True):
            # On the CPU, then moved: a run has the same noise on every device.
            noise[name] = torch.as_tensor(standard).to(total.device) * spread
            if name in scale:
                noise[name] = noise[name] * scale[name].to(total)
    return signal, noise


def _noise_of_messages(
    generator: np.random.Generator,
    clipped: Tensors,
    extras: Tensors,
    present: Tensor,
    plan: Plan,
    scale: Tensors,
    departures: frozenset[str],
) -> tuple[Tree, Tree, Tree, Tree]:
    """Return the weighted averages, in float64, of the clipped updates and of the noise in each
    message; then, in the shapes of the updates, the messages and the messages without noise."""
    average = weights(extras, present, plan, departures)
    signal, noise, messages, clean = {}, {}, {}, {}
    for name, rows in clipped.items():
        if "noise_on_support" in departures:
            rows = torch.where(extras[f"mask.{name}"], rows, 0)
        clean[name], drawn = rows, torch.zeros_like(rows, dtype=torch.float64)
        if plan.noise_multiplier is not None:
            spread = deviation(name, clipped, extras, plan, departures, present.ndim)
            # One draw for every row of the uploads, with the spread of that client's message.
            (standard,) = _drawn(generator, [tuple(rows.shape)], plan)
            drawn = torch.as_tensor(standard).to(rows.device) * spread
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
    """Return the weighted sum over M, float64 ``[..., *shape]``, of rows ``[..., M, *shape]`` with
    weights ``counts [..., M]``."""
    axis = counts.ndim - 1
    weights_of_rows = counts.double().reshape(*counts.shape, *[1] * (rows.ndim - counts.ndim))
    total = rows.new_zeros((*rows.shape[:axis], *rows.shape[axis + 1 :]), dtype=torch.float64)
    # One client after the other: all rows in float64 at once would double the memory of a round and
    # take four times as long. The order is that of the clients, so the sum has the same bits in
    # every run.
    for row, count in zip(rows.unbind(axis), weights_of_rows.unbind(axis), strict=True):
        total.addcmul_(row.double(), count)
    return total


def _length(tree: Tensors, present: Tensor) -> Tensor:
    """Return the joint L2 norm ``[...]`` in float64; 0 for an empty tree."""
    total = torch.zeros(present.shape[:-1], dtype=torch.float64, device=present.device)
    for value in tree.values():
        total += squares(value, present.ndim - 1).to(total)
    return total.sqrt()


def _drawn(
    generator: np.random.Generator | correlated.Drawn,
    shapes: Sequence[tuple[int, ...]],
    plan: Plan,
) -> Iterable[np.ndarray]:
    """Return the standard noise of a plan, or that of a round of correlated noise, in these
    shapes."""
    if not isinstance(generator, np.random.Generator):
        return generator(shapes)
    return (plan.law.draw(generator, shape) for shape in shapes)


def _check(
    generator: np.random.Generator | correlated.Drawn,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Tensors,
    departures: frozenset[str],
) -> None:
    # Without departures only public facts can raise an error: shapes, dtypes, names and the scale.
    # A value that a client holds must not decide whether a round is released.
    if isinstance(generator, np.random.Generator) == (plan.band > 1 or plan.noise == "secure"):
        expected = "one of NumPy, whose noise is float64 and the same on every device"
        if plan.noise == "secure":
            expected = "secure noise, which no generator draws"
        if plan.band > 1:
            expected = f"the noise of a round that is correlated by a band of {plan.band}"
        raise PrivacyError("release: generator", got=type(generator).__name__, expected=expected)
    plan.check_fixed(departures)
    unless, shape = PrivacyError.unless, list(present.shape)
    fits = present.dtype == torch.bool and present.ndim > 0 and shape[-1] <= plan.clients
    expected = f"bool [..., M] with M at most the plan's {plan.clients}"
    unless(fits, "release: present", f"{present.dtype} {shape}", expected)
    unless(bool(uploads.update), "release: update", "no tensors", "at least one tensor")
    for name, tensor in uploads.update.items():
        what, kind = f"release: update {name!r}", tensor.dtype
        known = kind in (torch.float32, torch.float64)
        unless(known, f"{what}: dtype", str(kind), "float32 or float64")
        expected = f"the leading axes of present, {shape}"
        fits = tensor.shape[: present.ndim] == present.shape
        unless(fits, f"{what}: shape", list(tensor.shape), expected)
    for name, tensor in scale.items():
        do = "" if name in uploads.update else nearest(name, uploads.update)
        unless(name in uploads.update, "release: scale", name, "names of the update", do)
        what, got = f"release: scale {name!r}", "a negative or non-finite entry"
        unless(bool((torch.isfinite(tensor) & (tensor >= 0)).all()), what, got, "entries >= 0")
    what = f"release: mechanism {plan.mechanism} under a public scale"
    unless(not scale or plan.law.scaled, what, sorted(scale), "no scale", "take gaussian")
    unscaled = departures & (OF_MESSAGES | WITHOUT_JOINT_CLIP) - {"noise_per_participant"}
    what = f"departure {min(unscaled, default='')}: scale"
    unless(not (scale and unscaled), what, "a public scale", "none")
    check_extras(uploads.update, uploads.extras, present, plan, departures)
