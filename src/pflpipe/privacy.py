"""The only place where privacy noise is drawn: sampling, clipping and one noisy release, all derived from one frozen Plan.

Neighbours (``zero_out``): two runs are neighbours when one client's upload is replaced by zero; M, q, T and every field of
the Plan are public. The clipped sum then has sensitivity C in the plan's norm, so the noise multiplier is noise scale over C.

What a round gives for unusual inputs (all are normal results, none is an exception):

===========================  ==============================================================================================
input                        result
===========================  ==============================================================================================
nobody was drawn             the sum is the noise alone, drawn as in any other round
an upload of zeros           stays exactly zero; its norm is 0
NaN or infinity anywhere     the client counts as a zero upload, its norm is reported as inf and ``nonfinite`` is set
norm beyond float64          as above (so does an entry that overflows when divided by its scale)
huge or tiny finite norm     clipped to at most C (1 + 1e-6), respectively left as it is: squares neither overflow nor vanish
rows of clients not drawn    ignored whatever they hold, NaN included
NaN where the scale is 0     ignored: that coordinate is not sent
===========================  ==============================================================================================

The generators are those of a simulator: reproducible and not cryptographic; floating-point attacks on the noise are outside
the scope. Imports torch and NumPy only. After jax_privacy's execution plan and DP-FedAvg (McMahan et al., ICLR 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pflpipe.errors import PrivacyError, nearest

MECHANISMS = ("gaussian", "laplace", "none")

DEPARTURES: dict[str, str] = {
    "client_clip_weights": "each client chooses how its clip bound is divided over the layers",
    "clip_in_training": "gradients are clipped inside local training, the message itself is not",
    "data_dependent_clip": "clip thresholds are computed from the client's own update",
    "data_dependent_noise": "the noise scale is computed from private values",
    "data_size_weights": "messages are averaged with weights proportional to the clients' numbers of examples",
    "divide_by_counts": "each coordinate is divided by the number of clients that sent it",
    "no_composition": "the budget of one round is quoted as the budget of the whole run",
    "noise_not_divided": "noise is added to the average as if it were the sum",
    "noise_on_support": "noise only on the coordinates that a client's private mask keeps",
    "noise_per_participant": "each drawn client adds a share of the noise, so its size follows the drawn count",
    "per_layer_clip_unscaled": "each layer is clipped to C but the noise is scaled for one joint bound C",
    "per_tensor_clip": "each tensor is clipped to C but the noise is scaled for one joint bound C",
    "private_clamp": "the released sum is clamped to bounds computed from private values",
    "public_sampling": "which clients take part can be predicted, so sampling amplifies nothing",
    "raw_similarity_weights": "messages are weighted by similarities of models that carry no noise",
    "sample_level_calibration": "the noise multiplier is calibrated for single examples of DP-SGD, not for clients",
    "update_against_global": "the update is taken against the global model instead of the start of local work",
}
"""Steps of published methods that the certified mechanism lacks. A cell names them; its claim is then at most ``nominal``."""

EXECUTED = frozenset({"data_size_weights", "sample_level_calibration", "update_against_global"})
"""The departures this version carries out; the second acts in accounting.py and the third in the method."""


@dataclass(frozen=True)
class Plan:
    """Everything that sampling, clipping, noise and accounting need; public values only.

    Attributes:
        mechanism: ``gaussian``, ``laplace`` or ``none``.
        norm: 2 (gaussian) or 1 (laplace), the norm of the joint clip.
        clip_norm: bound C > 0 on a client's whole (scaled) update in that norm; ``None`` without a mechanism.
        noise_multiplier: Gaussian standard deviation, or Laplace scale b, of the noise on the sum, divided by C;
            0 is allowed (clip only, epsilon infinite); ``None`` without a mechanism.
        sample_rate: Poisson probability q in (0, 1] that a client takes part in a round.
        rounds: T, each with one release.
        delta: in (0, 1); 0 is allowed for laplace; ``None`` without a mechanism.
        clients: M.

    Raises:
        PrivacyError: a value is missing, superfluous or out of its range.
    """

    mechanism: str
    norm: int
    clip_norm: float | None
    noise_multiplier: float | None
    sample_rate: float
    rounds: int
    delta: float | None
    clients: int

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise PrivacyError("privacy plan: mechanism", got=self.mechanism, expected=f"one of {', '.join(MECHANISMS)}")
        wanted_norm = 1 if self.mechanism == "laplace" else 2
        if self.norm != wanted_norm:
            raise PrivacyError(f"privacy plan: norm of {self.mechanism}", got=self.norm, expected=str(wanted_norm))
        for name in ("rounds", "clients"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PrivacyError(f"privacy plan: {name}", got=count, expected="a whole number of at least 1")
        _number("sample_rate", self.sample_rate, lambda value: 0 < value <= 1, "a number in (0, 1]")
        if self.mechanism == "none":
            for name in ("clip_norm", "noise_multiplier", "delta"):
                if getattr(self, name) is not None:
                    raise PrivacyError(f"privacy plan: {name} of mechanism none", got=getattr(self, name), expected="nothing")
            return
        _number("clip_norm", self.clip_norm, lambda value: value > 0, "a finite number above 0")
        _number("noise_multiplier", self.noise_multiplier, lambda value: value >= 0, "a finite number, 0 or above")
        if self.mechanism == "laplace":
            _number("delta", self.delta, lambda value: 0 <= value < 1, "a number in [0, 1)")
        else:
            _number("delta", self.delta, lambda value: 0 < value < 1, "a number in (0, 1)")

    @property
    def expected_cohort(self) -> float:
        """Return q M, the public divisor of every released sum."""
        return self.sample_rate * self.clients


@dataclass(frozen=True)
class Uploads:
    """What clients want to send in one round. Leading axes ``...`` are independent repeats (the audit uses them), M is clients.

    Attributes:
        update: name -> ``[..., M, *shape]``, float32 or float64; clipped jointly and noised.
        side: name -> ``[..., M, ...]``, private extras that a named departure reads; empty without departures.
    """

    update: Mapping[str, Tensor]
    side: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """One round's message to the world, and the simulator's diary about it.

    Attributes:
        sum: name -> ``[..., *shape]``. The message; the only field that the server and the world see.
        noise_norm, signal_norm: ``[...]``, L2 norms of the two parts that make up ``sum``. Diary, private.
        norms: ``[..., M]``, norm of each drawn client's scaled update before clipping, 0 where not drawn. Diary, private.
        clipped: ``[..., M]`` bool, drawn and longer than C (and finite). Diary, private.
        nonfinite: ``[..., M]`` bool, drawn and counted as zero. Diary, private.
    """

    sum: dict[str, Tensor]
    noise_norm: Tensor
    signal_norm: Tensor
    norms: Tensor
    clipped: Tensor
    nonfinite: Tensor


def sample_clients(generator: np.random.Generator, plan: Plan) -> np.ndarray:
    """Draw a round's cohort: each of the M clients independently with probability q (Poisson sampling).

    Returns a bool array ``[M]``. At q = 1 everybody takes part and nothing is drawn from the generator.
    """
    if plan.sample_rate == 1:
        return np.ones(plan.clients, dtype=bool)
    return generator.random(plan.clients) < plan.sample_rate


@torch.no_grad()
def clip(
    tree: Mapping[str, Tensor], bound: float, scale: Mapping[str, Tensor] | None = None, norm: int = 2, lead: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """Shorten each client's update, all tensors taken together, to a scaled norm of at most ``bound``.

    Args:
        tree: name -> ``[..., M, *shape]``, float32 or float64; not modified.
        bound: C > 0; infinity never shortens.
        scale: name -> s >= 0, broadcastable to ``[*shape]`` or, with repeats, ``[..., *shape]``; a missing name means 1. The
            norm is that of update / s, and a coordinate with s = 0 is not sent: it becomes 0 and does not count.
        norm: 2 or 1.
        lead: number of leading axes, repeats and clients together (1 for ``[M, *shape]``).

    Returns:
        The clipped tree (same shapes), its scaled norm at most C (1 + 1e-6), an update within the bound unchanged to the bit;
        and float64 norms ``[..., M]`` before clipping. A non-finite update becomes zero and has norm inf.
    """
    scale = scale or {}
    flat: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    for name, tensor in tree.items():
        shape = tensor.shape[lead:]
        if name in scale:
            s = scale[name].to(tensor)
            # With repeat axes the scale lacks the client axis, which goes just before the tensor's own axes.
            scales[name] = s.unsqueeze(-len(shape) - 1) if s.ndim > len(shape) else s
            tensor = torch.where(scales[name] > 0, tensor / scales[name], 0)
        flat[name] = tensor.reshape(*tensor.shape[:lead], math.prod(shape))

    # The length is taken relative to the largest entry: x / peak lies in [-1, 1], so no square overflows or vanishes.
    first = next(iter(flat.values()))
    peak = torch.zeros(first.shape[:lead], dtype=first.dtype, device=first.device)
    for rows in flat.values():
        peak = torch.maximum(peak, torch.linalg.vector_norm(rows, ord=math.inf, dim=-1))
    divisor = torch.where((peak > 0) & torch.isfinite(peak), peak, 1).unsqueeze(-1)
    units = {name: rows / divisor for name, rows in flat.items()}
    power = torch.zeros(peak.shape, dtype=torch.float64, device=peak.device)
    for rows in units.values():
        power += _power_sum(rows, norm)
    length = power ** (1 / norm)
    norms = peak.double() * length
    finite = torch.isfinite(norms)
    norms = torch.where(finite, norms, math.inf)

    shorten = finite & (norms > bound)
    factor = bound / length
    clipped = {}
    for name, tensor in tree.items():
        per_client = (*peak.shape, *[1] * (tensor.ndim - lead))
        short = units[name].reshape(tensor.shape) * factor.to(tensor).reshape(per_client)
        kept = tensor
        if name in scales:
            short = short * scales[name]
            kept = torch.where(scales[name] > 0, tensor, 0)
        kept = torch.where(shorten.reshape(per_client), short, kept)
        clipped[name] = torch.where(finite.reshape(per_client), kept, 0)
    return clipped, norms


@torch.no_grad()
def release(
    generator: torch.Generator,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor] | None = None,
    departures: Iterable[str] = frozenset(),
) -> Released:
    """Clip, sum, add ONE noise draw, divide by the expected cohort: the only message of a round.

    ``sum = (sum over present of clip(update) + C sigma s Z) / (q M)`` with Z standard normal (or standard Laplace). Z is drawn
    in the order of the update's names, in the update's dtype, on the CPU, with shapes that follow from the model and the
    repeats alone: never from who is present, what they sent or where a scale is 0. Mechanism ``none`` neither clips nor adds
    noise, but non-finite uploads count as zero there too, and the divisor is the same.

    Args:
        generator: a CPU generator for this round's noise.
        uploads: see Uploads; inputs are not modified.
        present: bool ``[..., M]``, who was drawn. M may be smaller than the plan's when rows of clients not drawn are left out.
        plan: the frozen plan.
        scale: public tensors, see ``clip``; must be functions of earlier releases only.
        departures: names out of ``EXECUTED``. ``data_size_weights`` reads ``side["size"]`` ``[..., M]`` (numbers of examples n)
            and releases ``sum p_i clip(update_i) + C sigma s Z |p|_2 / sqrt(M)``, p_i = n_i / (sum of n over present clients),
            as FedDPA's official code does when each message carries N(0, C^2 sigma^2 / M). An empty cohort then releases zero.

    Raises:
        PrivacyError: shapes or dtypes do not fit, the scale is negative or not finite, a departure is unknown or not carried
            out, or a side entry is one that no departure reads.
    """
    departures = check_departures(departures)
    scale = scale or {}
    if uploads.update:
        present = present.to(next(iter(uploads.update.values())).device)
    _check(generator, uploads, present, plan, scale, departures)
    lead = present.ndim
    repeats = present.shape[:-1]
    clipped, norms = clip(uploads.update, math.inf if plan.clip_norm is None else plan.clip_norm, scale, plan.norm, lead)
    device = norms.device

    if "data_size_weights" in departures:
        weights, noise_share = _data_size_weights(uploads.side["size"].to(device), present, plan)
    else:
        weights = present.double() / plan.expected_cohort
        noise_share = torch.full(repeats, 1 / plan.expected_cohort, dtype=torch.float64, device=device)

    total: dict[str, Tensor] = {}
    signal_power = torch.zeros(repeats, dtype=torch.float64, device=device)
    noise_power = torch.zeros_like(signal_power)
    for name, rows in clipped.items():
        own_axes = [1] * (rows.ndim - lead)
        signal = (rows * weights.to(rows.dtype).reshape((*present.shape, *own_axes))).sum(dim=lead - 1)
        signal_power += _squares(signal, lead - 1)
        total[name] = signal
        if plan.clip_norm is not None and plan.noise_multiplier is not None:
            deviation = plan.clip_norm * plan.noise_multiplier * noise_share
            noise = _standard_noise(generator, signal, plan.mechanism) * deviation.to(rows.dtype).reshape((*repeats, *own_axes))
            if name in scale:
                noise = noise * scale[name].to(noise)
            noise_power += _squares(noise, lead - 1)
            total[name] = signal + noise

    nonfinite = present & torch.isinf(norms)
    return Released(
        sum=total,
        noise_norm=noise_power.sqrt(),
        signal_norm=signal_power.sqrt(),
        norms=torch.where(present, norms, 0),
        clipped=present & ~nonfinite & (norms > (math.inf if plan.clip_norm is None else plan.clip_norm)),
        nonfinite=nonfinite,
    )


def check_departures(departures: Iterable[str]) -> frozenset[str]:
    """Return the departures as a set; raise PrivacyError for one that is unknown or that this version does not carry out."""
    names = frozenset(departures)
    for name in sorted(names):
        if name not in DEPARTURES:
            raise PrivacyError("departure", got=name, expected="a known one", do=nearest(name, DEPARTURES))
        if name not in EXECUTED:
            raise PrivacyError("departure is not executed yet", got=name, expected=f"one of {', '.join(sorted(EXECUTED))}")
    return names


def _standard_noise(generator: torch.Generator, like: Tensor, mechanism: str) -> Tensor:
    """Draw standard normal or standard Laplace noise with the shape, dtype and (in the end) device of ``like``."""
    if mechanism == "gaussian":
        noise = torch.empty(like.shape, dtype=like.dtype).normal_(generator=generator)
    else:  # the difference of two standard exponentials is standard Laplace
        noise = torch.empty(like.shape, dtype=like.dtype).exponential_(generator=generator)
        noise = noise - torch.empty_like(noise).exponential_(generator=generator)
    return noise.to(like.device)


def _data_size_weights(size: Tensor, present: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return the weights p ``[..., M]`` and the noise's share of C sigma, ``[...]``; both zero when nobody has examples."""
    held = torch.where(present, size, 0).double()
    weights = held / held.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return weights, torch.linalg.vector_norm(weights, dim=-1) / math.sqrt(plan.clients)


def _squares(tensor: Tensor, repeats: int) -> Tensor:
    """Return the sum of squares over all axes but the first ``repeats``, in float64."""
    return _power_sum(tensor.reshape(*tensor.shape[:repeats], math.prod(tensor.shape[repeats:])), 2)


def _power_sum(rows: Tensor, norm: int) -> Tensor:
    """Return ``sum |x|^norm`` over the last axis in float64.

    Blocks of 32 are summed in the rows' own dtype: one rounding error per block of about 1e-7, where a long float32 sum would
    lose the promised 1e-6, at an eighth of the time of float64 throughout.
    """
    blocks = rows.shape[-1] // 32
    whole = rows[..., : 32 * blocks].reshape(*rows.shape[:-1], blocks, 32)
    rest = rows[..., 32 * blocks :]
    lengths: Tensor = torch.linalg.vector_norm(whole, ord=norm, dim=-1).double()
    last: Tensor = torch.linalg.vector_norm(rest, ord=norm, dim=-1).double()
    return lengths.pow(norm).sum(dim=-1) + last.pow(norm)


def _check(
    generator: torch.Generator,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor],
    departures: frozenset[str],
) -> None:
    if generator.device.type != "cpu":
        raise PrivacyError(
            "release: generator's device", got=str(generator.device), expected="cpu, so that noise is the same everywhere"
        )
    if present.dtype != torch.bool or present.ndim < 1 or present.shape[-1] > plan.clients:
        got = f"{present.dtype} {list(present.shape)}"
        raise PrivacyError("release: present", got=got, expected=f"bool [..., M] with M at most the plan's {plan.clients}")
    if not uploads.update:
        raise PrivacyError("release: update", got="no tensors", expected="at least one tensor")
    for name, tensor in uploads.update.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise PrivacyError(f"release: update {name!r}: dtype", got=str(tensor.dtype), expected="float32 or float64")
        if tensor.shape[: present.ndim] != present.shape:
            expected = f"the leading axes of present, {list(present.shape)}"
            raise PrivacyError(f"release: update {name!r}: shape", got=list(tensor.shape), expected=expected)
    for name, tensor in scale.items():
        if name not in uploads.update:
            raise PrivacyError("release: scale", got=name, expected="names of the update", do=nearest(name, uploads.update))
        if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
            raise PrivacyError(f"release: scale {name!r}", got="a negative or non-finite entry", expected="entries >= 0")
    readable = {"size"} & set(uploads.side) if "data_size_weights" in departures else set()
    for name in uploads.side:
        if name not in readable:
            raise PrivacyError(
                "release: private side entry that no departure reads", got=name, expected="a departure named in the cell"
            )
    if "data_size_weights" in departures:
        if plan.mechanism == "laplace":
            raise PrivacyError("departure data_size_weights: mechanism", got="laplace", expected="gaussian or none")
        size = uploads.side.get("size")
        if size is None or size.shape != present.shape or not bool((torch.isfinite(size) & (size >= 0) | ~present).all()):
            raise PrivacyError(
                "departure data_size_weights: side entry 'size'", expected=f"counts >= 0 of shape {list(present.shape)}"
            )


def _number(name: str, value: float | None, accept: Callable[[float], bool], expected: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is None or not number or not accept(value):
        raise PrivacyError(f"privacy plan: {name}", got=value, expected=expected)
