"""What is left of a run's releases when the clients' part and the noise of the plan are taken away:
nothing, to the bit.

A run's key fixes its cohorts and its noise (seeds.py). So both are drawn once more after every
release, as the plan on file prescribes them, and compared with what the engine did. A program that
keeps its plan never differs, whatever its clients hold. So a refusal depends on the program alone,
and costs no delta (executed.py). Of the code that is looked at this file uses the laws of the noise
(noise.py) and z_Delta of an adaptive plan; for mechanisms as published, the size of the noise in a
message (departures.py) and the public schedule as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pflpipe.named import OF_MESSAGES
from pflpipe.privacy.adaptive import BITS, HALF, multiplier_of_updates
from pflpipe.privacy.departures import deviation
from pflpipe.privacy.mechanism import Released, Uploads, public_cohort
from pflpipe.privacy.noise import laplace, normal
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import release_rng


@dataclass(frozen=True)
class Residuals:
    """What was compared in a run so far, and how much of it differs.

    Attributes:
        releases: so many rounds; the next release is that of the round with this number.
        strangers: clients that took part and were not drawn, or were drawn and did not, summed over
            the rounds.
        coordinates: numbers that were sent with noise.
        mismatches: numbers sent that are not the clients' part plus the plan's noise, rounded once;
            and movements of the clip bound that do not follow from the bits as they were sent.
        moves: of an adaptive clip bound.
        bound: the next round's, from the released bits alone; None for that of the plan.
    """

    releases: int = 0
    strangers: int = 0
    coordinates: int = 0
    mismatches: int = 0
    moves: int = 0
    bound: float | None = None


@torch.no_grad()
def of_release(
    found: Residuals,
    plan: Plan,
    departures: frozenset[str],
    key: str,
    clients: Sequence[int],
    uploads: Uploads,
    present: Tensor,
    scale: Mapping[str, Tensor],
    released: Released,
) -> Residuals:
    """Return what is found after one more release.

    Args:
        found: before it.
        plan, departures, key: of the run; the plan is the one on file.
        clients: whose rows the uploads are.
        uploads, present, scale: what the release was made of, without repeats.
        released: the sum is looked at; under departures of messages, every message of a client that
            is present.
    """
    took_part = {client for client, here in zip(clients, present.tolist(), strict=True) if here}
    strangers = took_part ^ _cohort(plan, departures, key, found.releases)
    coordinates = mismatches = 0
    if plan.noise_multiplier and plan.clip_norm:
        messages = bool(departures & OF_MESSAGES)
        clip_norm = plan.clip_norm if found.bound is None else found.bound
        multiplier = plan.noise_multiplier if plan.adaptive is None else multiplier_of_updates(plan)
        drawn = laplace if plan.mechanism == "laplace" else normal
        generator = release_rng(key, "noise", found.releases)
        sent = released.messages if messages else released.sum
        mismatches = len(sent.keys() ^ uploads.update.keys())
        for name, value in uploads.update.items():
            shape = value.shape if messages else value.shape[1:]
            noise = torch.as_tensor(drawn(generator, tuple(shape))).to(value.device)
            spread = (
                deviation(name, uploads.update, uploads.extras, plan, departures, 1)
                if messages
                else noise.new_tensor(clip_norm * multiplier / plan.expected_cohort)
            )
            noise, noisy = noise * spread, spread > 0
            if name in scale:
                noise, noisy = noise * scale[name].to(noise), noisy & (scale[name] > 0)
            whole, held = (released.clean[name] + noise).to(value.dtype), sent[name]
            noisy = noisy.expand(shape)
            if messages:
                here = present.to(value.device)
                whole, held, noisy = whole[here], held[here], noisy[here]
            coordinates += int(noisy.sum())
            mismatches += _differing(held, whole)
    return dataclasses.replace(
        found,
        releases=found.releases + 1,
        strangers=found.strangers + len(strangers),
        coordinates=found.coordinates + coordinates,
        mismatches=found.mismatches + mismatches,
    )


@torch.no_grad()
def of_bits(found: Residuals, plan: Plan, key: str, told: Released, bound: float) -> Residuals:
    """Return what is found after a movement of an adaptive clip bound.

    Args:
        found: before it.
        plan, key: of the run; the plan is the one on file.
        told: what was released of the round's bits.
        bound: the next round's.
    """
    assert plan.adaptive is not None
    assert plan.clip_norm is not None
    rule, sent = plan.adaptive, told.sum[BITS]
    before = plan.clip_norm if found.bound is None else found.bound
    noise = torch.as_tensor(normal(release_rng(key, "bits", found.moves), ())).to(sent.device)
    whole = told.clean[BITS] + noise * (rule.bit_noise / plan.expected_cohort)
    following = (before * torch.exp(-rule.lr * (sent + HALF - rule.quantile))).item()
    return dataclasses.replace(
        found,
        coordinates=found.coordinates + 1,
        mismatches=found.mismatches + _differing(sent, whole) + (bound != following),
        moves=found.moves + 1,
        bound=following,
    )


def _cohort(plan: Plan, departures: frozenset[str], key: str, round: int) -> set[int]:
    """Return who is drawn in a round, counted from 0."""
    if "public_sampling" in departures:
        return set(public_cohort(round, plan).nonzero()[0].tolist())
    if plan.sample_rate == 1:
        return set(range(plan.clients))
    chances = release_rng(key, "sample", round).random(plan.clients)
    return {client for client, chance in enumerate(chances) if chance < plan.sample_rate}


def _differing(sent: Tensor, whole: Tensor) -> int:
    """Return how many numbers do not have the same bits; all where shape or dtype differ."""
    if (sent.dtype, sent.shape) != (whole.dtype, whole.shape):
        return max(1, whole.numel())
    bits = torch.int32 if whole.dtype == torch.float32 else torch.int64
    return int((sent.view(bits) != whole.view(bits)).sum())
