"""A check of every release: the release minus the clients' part and the noise of the plan must be
zero, to the bit.

A run's key fixes its cohorts and its noise (seeds.py). After every release both are drawn again, as
the plan on file prescribes, and compared with what the engine did. A program that keeps its plan
never differs, for any data of the clients. A refusal therefore depends on the program only and
costs no delta (run_check.py). Correlated noise is written out again from the keys of all rounds so
far. From the code under test this file uses the laws of the noise (mechanisms/) and z_Delta of an
adaptive plan; for published mechanisms also the size of the noise in a message (departures.py) and
the public schedule.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from pflpipe.facts.departures import OF_MESSAGES
from pflpipe.privacy import secure_sum
from pflpipe.privacy.adaptive import HALF, multiplier_of_updates
from pflpipe.privacy.clip_bits import BITS
from pflpipe.privacy.cohorts import public_cohort
from pflpipe.privacy.correlated import Drawn
from pflpipe.privacy.departures import deviation
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.noise import normal
from pflpipe.privacy.noise_laws.buffers import Buffers
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.run_check import Residuals
from pflpipe.seeds import public_name, release_rng
from pflpipe.trees import Tensors


@torch.no_grad()
def of_release(
    residuals: Residuals,
    plan: Plan,
    departures: frozenset[str],
    key: str,
    clients: Sequence[int],
    uploads: Uploads,
    present: Tensor,
    scale: Tensors,
    released: Released,
    secure: Drawn | None = None,
    shared: bool = False,
) -> Residuals:
    """Return the residuals after one more release.

    Args:
        residuals: before the release.
        plan, departures, key: of the run; the plan is the one on file.
        clients: the client of each row of the uploads.
        uploads, present, scale: arguments of the release, without repeats.
        released: the sum is compared; under departures of messages, every message of a client that
            is present.
        secure: the noise of the round, if it is secure. Nobody can draw it again, so the check is
            that the release has this noise, once and in the step of the plan on file.
        shared: whether the clients have added the noise, on other machines. Nobody knows it; the
            check is that the release follows from the sum that the server saw.
    """
    took_part = {client for client, here in zip(clients, present.tolist(), strict=True) if here}
    # Both directions: present without being drawn, and drawn without being present.
    strangers = took_part ^ _cohort(plan, departures, key, residuals.releases)
    coordinates = mismatches = 0
    if plan.bits and plan.noise_multiplier:
        of_round = plan, key, residuals.releases, uploads, released
        coordinates, mismatches = _of_secure_sum(*of_round, shared=shared)
    elif plan.noise_multiplier and plan.clip_norm:
        messages = bool(departures & OF_MESSAGES)
        clip_norm = plan.clip_norm if residuals.bound is None else residuals.bound
        multiplier = plan.noise_multiplier if plan.adaptive is None else multiplier_of_updates(plan)
        sent = released.messages if messages else released.sum
        mismatches = len(sent.keys() ^ uploads.update.keys())
        shapes = [
            tuple(value.shape if messages else value.shape[1:]) for value in uploads.update.values()
        ]
        drawn = secure(shapes) if secure else _standard(plan, key, residuals.releases, shapes)
        for (name, value), shape, standard in zip(
            uploads.update.items(), shapes, drawn, strict=True
        ):
            noise = torch.as_tensor(standard).to(value.device)
            spread = (
                deviation(name, uploads.update, uploads.extras, plan, departures, 1)
                if messages
                else noise.new_tensor(
                    plan.grid.step
                    if plan.grid
                    else plan.law.spread(clip_norm * multiplier / plan.expected_cohort)
                )
            )
            # The same products in the same order as in mechanism.py: other orders round otherwise.
            noise, noisy = noise * spread, spread > 0
            if name in scale:
                noise, noisy = noise * scale[name].to(noise), noisy & (scale[name] > 0)
            expected, actual = (released.clean[name] + noise).to(value.dtype), sent[name]
            noisy = noisy.expand(shape)
            if messages:
                here = present.to(value.device)
                expected, actual, noisy = expected[here], actual[here], noisy[here]
            coordinates += int(noisy.sum())
            mismatches += _differing(actual, expected)
    return dataclasses.replace(
        residuals,
        releases=residuals.releases + 1,
        strangers=residuals.strangers + len(strangers),
        coordinates=residuals.coordinates + coordinates,
        mismatches=residuals.mismatches + mismatches,
    )


@torch.no_grad()
def of_bits(
    residuals: Residuals, plan: Plan, key: str, released: Released, bound: float
) -> Residuals:
    """Return the residuals after a movement of an adaptive clip bound.

    Args:
        residuals: before the movement.
        plan, key: of the run; the plan is the one on file.
        released: the release of the round's bits.
        bound: the bound that the engine uses in the next round.
    """
    assert plan.adaptive is not None
    assert plan.clip_norm is not None
    rule, sent = plan.adaptive, released.sum[BITS]
    before = plan.clip_norm if residuals.bound is None else residuals.bound
    noise = torch.as_tensor(normal(release_rng(key, "bits", residuals.moves), ())).to(sent.device)
    expected = released.clean[BITS] + noise * (rule.bit_noise / plan.expected_cohort)
    # The rule of adaptive.py, written out again: this is the second opinion on it.
    following = (before * torch.exp(-rule.lr * (sent + HALF - rule.quantile))).item()
    return dataclasses.replace(
        residuals,
        coordinates=residuals.coordinates + 1,
        mismatches=residuals.mismatches + _differing(sent, expected) + (bound != following),
        moves=residuals.moves + 1,
        bound=following,
    )


def _cohort(plan: Plan, departures: frozenset[str], key: str, round: int) -> set[int]:
    """Return the clients drawn in a round, which is counted from 0."""
    if "public_sampling" in departures:
        return set(public_cohort(round, plan).nonzero()[0].tolist())
    if plan.groups > 1:
        turns = release_rng(key, "groups").permutation(plan.clients) - round
        return set((turns % plan.groups == 0).nonzero()[0].tolist())
    if plan.sample_rate == 1:
        return set(range(plan.clients))
    chances = release_rng(key, "sample", round).random(plan.clients)
    return set((chances < plan.sample_rate).nonzero()[0].tolist())


def _standard(
    plan: Plan, key: str, round: int, shapes: Sequence[tuple[int, ...]]
) -> Sequence[np.ndarray]:
    """Return the standard noise of a round, which is counted from 0, in these shapes."""
    if plan.band == 1:
        generator = release_rng(key, "noise", round)
        return [plan.law.draw(generator, shape) for shape in shapes]
    while True:
        for place, noise in _correlated(key, plan.band, plan.buffers, tuple(shapes)):
            if place == round:
                return noise
            if place > round:  # another run of this key, or this one once more
                break
        _correlated.cache_clear()


@functools.lru_cache(maxsize=1)
def _correlated(
    key: str, band: int, buffers: Buffers | None, shapes: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Return the rounds, from 0, with their correlated noise: the recurrence of correlated.py,
    written out again as a second opinion on it."""

    def independent() -> Iterator[list[np.ndarray]]:
        for round in itertools.count():
            generator = release_rng(key, "noise", round)
            yield [normal(generator, shape) for shape in shapes]

    def banded() -> Iterator[list[np.ndarray]]:
        weights = [Fraction(1)]
        while len(weights) < band:
            weights.append(weights[-1] * Fraction(2 * len(weights) - 1, 2 * len(weights)))
        past: collections.deque[list[np.ndarray]] = collections.deque(maxlen=band - 1)
        for noise in independent():
            # The latest first, because another order of the differences rounds otherwise.
            for lag, before in enumerate(past, start=1):
                weight = float(weights[lag])
                noise = [new - weight * old for new, old in zip(noise, before, strict=True)]
            past.appendleft(noise)
            yield noise

    def buffered(decays: Sequence[float], scales: Sequence[float]) -> Iterator[list[np.ndarray]]:
        kept = [[np.zeros(shape) for shape in shapes] for _ in decays]
        for noise in independent():
            for scale, old in zip(scales, kept, strict=True):
                noise = [new - scale * one for new, one in zip(noise, old, strict=True)]
            kept = [
                [decay * one + new for one, new in zip(old, noise, strict=True)]
                for decay, old in zip(decays, kept, strict=True)
            ]
            yield noise

    return enumerate(buffered(buffers.decays, buffers.scales) if buffers else banded())


def _of_secure_sum(
    plan: Plan, key: str, round: int, uploads: Uploads, released: Released, *, shared: bool
) -> tuple[int, int]:
    """Return how many numbers a secure sum released, and how many are not the clients' whole
    numbers plus the noise of the plan, which is in them if it is ``shared``."""
    shapes = {name: rows.shape[1:] for name, rows in uploads.update.items()}
    numbers = sum(map(math.prod, shapes.values()))
    of = secure_sum.rule(plan, numbers)
    if shared:
        sums = released.clean[""]
        signs = secure_sum.signs(release_rng(public_name(key), "signs", round), of)
    else:
        noise, signs = secure_sum.noise_and_signs(release_rng(key, "noise", round), of, ())
        sums = released.clean[""] + noise
    expected, _ = secure_sum.opened(sums, signs, of, plan.clients, shapes)
    differing = len(released.sum.keys() ^ shapes.keys())
    for name, value in released.sum.items():
        differing += _differing(value, expected[name].to(value)) if name in expected else 0
    return numbers, differing


def _differing(actual: Tensor, expected: Tensor) -> int:
    """Return how many numbers have different bits; all of them if shape or dtype differ."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return max(1, expected.numel())
    # As integers: NaN differs from itself, and -0 equals 0, which has other bits.
    bits = torch.int32 if expected.dtype == torch.float32 else torch.int64
    return int((actual.view(bits) != expected.view(bits)).sum())
