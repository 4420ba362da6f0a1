"""The strongest adversary against one client's membership: it knows the messages of all other
clients, their coins and draws included.

This is the adversary of the plan's guarantee. It subtracts the known messages from the release of
round t. The rest y is the noise plus, if the candidate is a member and drawn, the candidate's
message c over q M. With s^2 the variance of Gaussian noise in each coordinate, or b the scale of
Laplace noise,

    L = (<c, y> - |c|^2 / 2) / s^2        or        L = (|y|_1 - |y - c|_1) / b.

The candidate's draw stays secret: the score is the sum of log(1 - q + q e^L) over the rounds. If
the candidate's weight changes the weights of others, y is the release minus their messages without
the candidate, and c includes the change. A release without noise counts its rounding as noise.

No step is a model. By Neyman and Pearson's lemma no other test of one client with this knowledge is
better. At q = 1, for a client that is clipped in every round and has full batches (nothing to
shuffle), the score is normal with mean -mu^2 / 2 or mu^2 / 2 and variance mu^2: the plan's curve
itself (Dong, Roth, Su, "Gaussian Differential Privacy", 2022). The score is not calibrated on
clients, and must not be: the rest of a release for *them* shows the candidate's coin.
"""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from pflpipe.privacy import mechanism
from pflpipe.privacy.departures import weights
from pflpipe.privacy.mechanism import Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree


@dataclasses.dataclass(frozen=True)
class ObservedRound:
    """Input and output of one release: the uploads of K clients, which of them are present, and the
    released sum."""

    uploads: Uploads
    present: Tensor
    sum: Tree


def noise_variance(plan: Plan) -> float:
    """Return s^2, the variance of the noise in each coordinate of a release, in units of the public
    scale."""
    spread = (plan.clip_norm or 0.0) * plan.multiplier / plan.expected_cohort
    return spread**2 * plan.law.variance


def released_alone(simulation: Simulation, uploads: Uploads, scale: Tree) -> Tree:
    """Return the message of each of K clients after the mechanism's clip and departures, ``[K,
    *shape]``: its release alone, without noise."""
    # Every client is a repeat with one client, so one call gives K separate releases.
    plan = simulation.plan
    quiet = None if plan.noise_multiplier is None else 0.0
    single = dataclasses.replace(plan, noise_multiplier=quiet, clients=1, sample_rate=1.0)
    rows = uploads.mapped(lambda value: value.unsqueeze(1))
    present = torch.ones(len(next(iter(rows.update.values()))), 1, dtype=torch.bool)
    scales = {name: value.expand(uploads.update[name].shape) for name, value in scale.items()}
    return mechanism.release(
        np.random.default_rng(), rows, present, single, scales, simulation.departures
    ).sum


def in_units(rows: Tensor, scale: Tensor | None) -> Tensor:
    """Return rows ``[K, *shape]`` as float64 ``[K, d]`` in units of the public scale; 0 where the
    scale is 0."""
    rows = rows.double()
    if scale is not None:
        rows = torch.where(scale > 0, rows / scale, 0)
    return rows.reshape(len(rows), -1)


def log_ratios(
    simulation: Simulation,
    drawn: np.ndarray,
    expected: Tree,
    extras: Tree,
    observed: ObservedRound,
    scale: Tree,
) -> np.ndarray:
    """Return the term of one round in the score ``strongest`` of every client ``[M]``; see the top
    of this file.

    Args:
        simulation: the whole cell.
        drawn: the cohort, bool ``[M]``.
        expected: every client's message after the mechanism's clip, ``[M, *shape]``.
        extras: the extras of these messages, ``[M, ...]``.
        observed: this round's uploads and release.
        scale: this round's public scale.
    """
    plan = simulation.plan
    sent = released_alone(simulation, observed.uploads, scale)
    without, with_candidate = _weights(simulation, drawn, extras, observed)
    candidate = with_candidate.diagonal()
    # How the candidate's presence changes the weights of the others.
    change = with_candidate - candidate.diag() - without
    ratios = torch.zeros(plan.clients, dtype=torch.float64)
    for name, rows in expected.items():
        total = observed.sum[name].unsqueeze(0)
        parts_of_sum = (total, _of_all(sent[name], drawn, observed.present), rows)
        released, messages, updates = (in_units(value, scale.get(name)) for value in parts_of_sum)
        rest = released - without.to(messages) @ messages
        shift = change.to(messages) @ messages + candidate.to(messages).unsqueeze(1) * updates
        # A plan without noise still has rounding, which keeps the ratios finite.
        size = max(float(value.square().mean()) for value in (released, shift))
        rounding = (torch.finfo(observed.sum[name].dtype).eps / 2) ** 2 * size
        variance = max(noise_variance(plan), rounding, np.finfo(float).tiny)
        spread = math.sqrt(variance / plan.law.variance)
        ratios += plan.law.log_ratio(rest, shift, spread).sum(dim=1).cpu()
    if plan.sample_rate < 1:
        # log(1 - q + q e^L), without computing e^L.
        absent = ratios.new_tensor(math.log1p(-plan.sample_rate))
        ratios = torch.logaddexp(absent, ratios + math.log(plan.sample_rate))
    return ratios.numpy()


def _weights(
    simulation: Simulation, drawn: np.ndarray, extras: Tree, observed: ObservedRound
) -> tuple[Tensor, Tensor]:
    """Return the weights of a round's messages, two matrices float64 ``[M, M]``: row i without
    client i, and row i if client i takes part.

    Args:
        simulation, drawn, extras, observed: see ``log_ratios``.
    """
    here, candidate = torch.from_numpy(drawn), torch.eye(len(drawn), dtype=torch.bool)
    extras_of_all = {}
    for name in extras.keys() & {"size", "similarity"}:
        sent = _of_all(observed.uploads.extras[name], drawn, observed.present)
        extras_of_all[name] = torch.where(candidate, extras[name].cpu(), sent.cpu())
    without, with_candidate = (
        weights(extras_of_all, present, simulation.plan, simulation.departures)
        for present in (here & ~candidate, here | candidate)
    )
    return without, with_candidate


def _of_all(rows: Tensor, drawn: np.ndarray, present: Tensor) -> Tensor:
    """Return rows ``[K, ...]`` of a round's clients as rows of all clients ``[M, ...]``, with zeros
    for clients not drawn."""
    all_rows = rows.new_zeros(len(drawn), *rows.shape[1:])
    all_rows[torch.from_numpy(drawn).to(rows.device)] = rows[present.to(rows.device)]
    return all_rows
