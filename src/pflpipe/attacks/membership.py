"""Client-level membership inference: was this client among those that trained the released model?

The adversary holds a candidate's training examples and all public outputs: the noisy sum of each
round and the models made from it. It is calibrated on clients of the same population that are known
not to be members; it trains no shadow federations. (Shadow models would need hundreds of runs:
Shokri et al., "Membership Inference Attacks", S&P 2017; Carlini et al., "Membership Inference
Attacks From First Principles", S&P 2022. The latter's test is a likelihood ratio; its measure, the
true positive rate at a low false positive rate, is used here.)

**The game.** A random quarter of the cell's clients calibrates. Each of the others tosses a fair
coin: heads is a member. The run is that of the cell with other noise and cohorts. Clients that are
not members hold no examples in it, so that they send zero. Being in and out of the game are
therefore exactly the neighbours of the plan (``zero_out``), for any outcome of the other coins, and
the plan's guarantee bounds any such attack: TPR <= e^epsilon FPR + delta, and for Gaussian noise
without sampling, which is mu-GDP, TPR <= Phi(Phi^-1(FPR) + mu) (Dong, Roth, Su, "Gaussian
Differential Privacy", 2022). These bounds hold for expected rates; measured ones scatter. (With a
fixed number of members, or a run of the members alone, removing one client would add another one or
change the divisor. For such neighbours the same plan guarantees far less.)

**Four scores**, all larger for members:

- ``loss``: minus the mean loss of the final model on the candidate's examples, in standard
  deviations of the clients that calibrate (Yeom et al., "Privacy Risk in Machine Learning", CSF
  2018). It is one number of one release.
- ``likelihood``: the likelihood ratio of all releases. At the released model of round t the
  adversary computes the clipped message of the candidate. Let c be these messages of all rounds as
  one long vector, divided by M, and r the releases. Without the candidate r is noise, s^2 in each
  coordinate, plus the sum of the other members' vectors. Of these only the population is known: m
  fair coins, and vectors like those of the n clients that calibrate, with mean a and covariance V.
  So r has the mean b = m a / 2 and the covariance S = s^2 I + m V / 2 + m a a' / 4. With the
  candidate, c is added. If both are Gaussian,

      log ratio = <c, r - b> - |c|^2 / 2        in the inner product <x, y> = x' S^-1 y,

  a matched filter against noise and background. V has rank n - 1 at most. Outside of its span the
  variance of the background is unknown, and its mean over all coordinates is used. A client that
  calibrates is left out of its own a and V. S is a model, which the clients that calibrate correct:
  among them x = <c, r - b> / |c| has some mean u and deviation v instead of 0 and 1. The score is
  therefore z k - k^2 / 2 with z = (x - u) / v and k = |c| / v. (Nasr, Shokri, Houmansadr, S&P 2019,
  use a candidate's gradients at released models; Li, Li, Ribeiro, "Effective Passive Membership
  Inference Attacks in Federated Learning against Overparameterized Models", ICLR 2023, their cosine
  with an update. Without a and V, and for vectors of equal length, this test is such a cosine.)
- ``informed``: the same for an adversary that knows the data of all clients that toss a coin, but
  not the coins. The background is then half the sum of the m others' vectors, and S = s^2 I + the
  sum of c_j c_j' / 4. A sum without noise hides nothing from it if there are more coordinates than
  clients. Differential privacy is meant for such adversaries.
- ``strongest``: the likelihood ratio for an adversary that knows the messages of all other clients,
  coins and draws included (strongest.py). Only noise hides the candidate, and the score reaches the
  limit of the plan.

The scores of one run share its noise, which shifts them together if clients send similar messages.
Members and held-out clients of one run are compared as if that shift were known, so a few runs can
seem to separate better than the plan allows for a test of one client. Over many runs the shift is
noise like any other.

Client states, if a method has them, are those of a client that takes part in every round from the
first. At q < 1 no adversary uses the candidate's draw, even if the departure ``public_sampling``
makes it public, and all but the strongest sum over all rounds. They also ignore weights of clients
(FedAvg's numbers of examples). All treat noise of single messages as noise of the sum, and ignore
``divide_by_counts``. Another attack may find what these miss; the plan bounds all attacks.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflpipe.attacks.strongest import (
    ObservedRound,
    in_units,
    log_ratios,
    noise_variance,
    released_alone,
)
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.seeds import derived_key, numpy_rng, seed_for
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

SCORES = {
    "loss": "loss of the final model",
    "likelihood": "likelihood ratio of all releases",
    "informed": "likelihood ratio, others' data known",
    "strongest": "likelihood ratio, others' messages known",
}


def attack(simulation: Simulation) -> dict[str, np.ndarray]:
    """Return the result of one game: one run of the cell, and four scores for every client.

    If the run diverged, or if no client that calibrates has examples, all scores are 0.

    Returns:
        ``member`` and ``calibration`` bool ``[M]``; ``loss``, ``likelihood``, ``informed`` and
            ``strongest`` float64 ``[M]``.
    """
    plan = simulation.plan
    member, calibration = roles(simulation.seed, plan.clients)
    products, ratios, progress = _watch(simulation, member)
    variance = noise_variance(plan)
    sent = simulation.method.upload(simulation.task).values()
    coordinates = plan.rounds * sum(map(math.prod, sent))
    losses = _losses(simulation, progress, calibration)
    gains = -losses if np.isfinite(losses).all() else np.zeros_like(losses)
    mean, deviation = _null(gains, calibration)
    return {
        "member": member,
        "calibration": calibration,
        "loss": (gains - mean) / deviation,
        "likelihood": likelihood_ratios(
            products, calibration, variance, coordinates, informed=False
        ),
        "informed": likelihood_ratios(products, calibration, variance, coordinates, informed=True),
        "strongest": ratios if np.isfinite(ratios).all() else np.zeros_like(ratios),
    }


def roles(seed: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the members and of the clients that calibrate, bool ``[M]`` each: a random
    quarter calibrates, fair coins decide about the others."""
    rng = numpy_rng(seed, "members")
    calibration = np.zeros(clients, dtype=bool)
    calibration[rng.permutation(clients)[: clients // 4]] = True
    return ~calibration & (rng.random(clients) < 0.5), calibration


def of_members(simulation: Simulation, member: np.ndarray) -> Simulation:
    """Return the run in which only members hold training examples, so that every other client sends
    zero."""
    kept = [
        rows if here else rows[:0]
        for rows, here in zip(simulation.split.train, member, strict=True)
    ]
    return dataclasses.replace(simulation, split=dataclasses.replace(simulation.split, train=kept))


def _watch(
    simulation: Simulation, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, rounds.Progress]:
    """Run the federation of the members, and compute in each round the messages of all clients.

    The adversary shuffles a candidate's examples with another stream, because it does not know the
    client's order.

    Returns:
        Inner products ``[M + 1, M + 1]``, summed over rounds and coordinates, of the M clients'
            vectors c and, last, the releases r, both in units of the public scale.
        The score ``strongest`` ``[M]``.
        The progress at the end of the run.
    """
    observed: list[ObservedRound] = []

    def release(
        generator: np.random.Generator, uploads: Uploads, present: Tensor, *others: Any
    ) -> Released:
        released = mechanism.release(generator, uploads, present, *others)
        observed.append(ObservedRound(uploads, present, released.sum))
        return released

    # The game's run may be published next to the cell's run. Other clients send in it, so with
    # equal noise the difference of the two would show their messages.
    key = derived_key(simulation.key, "members")
    run = dataclasses.replace(of_members(simulation, member), release=release, key=key)
    seed = seed_for(simulation.seed, "members", "adversary")
    adversary = dataclasses.replace(simulation, seed=seed)
    clients, progress = range(simulation.plan.clients), rounds.start(run)
    states, products, ratios = progress.states, np.zeros(()), np.zeros(len(clients))
    while progress.round < run.plan.rounds:
        before = dataclasses.replace(progress, states=states)
        computed = rounds.local_updates(adversary, before, clients)
        states = states.replaced(clients, computed.states)
        task = simulation.task_in(progress.round)
        scale = simulation.method.scale(progress.params, progress.server, task)
        uploads = Uploads(computed.update, computed.extras)
        expected = released_alone(simulation, uploads, scale)
        drawn = rounds.cohort(run, progress.round)
        # The messages above are computed at the model that the round starts from, before it moves
        # ``progress`` on.
        rounds.one_round(run, progress)
        message = observed.pop()
        products = products + _products(expected, message.sum, scale, len(clients))
        ratios = ratios + log_ratios(simulation, drawn, expected, computed.extras, message, scale)
    return products, ratios, progress


def _products(alone: Tree, released: Tree, scale: Tree, clients: int) -> np.ndarray:
    # All that the Gaussian tests need of vectors with rounds x parameters coordinates: their
    # inner products, which fit in memory.
    total = torch.zeros(clients + 1, clients + 1, dtype=torch.float64)
    for name, rows in alone.items():
        vectors = torch.cat([rows / clients, released[name].unsqueeze(0)])
        flat = in_units(vectors, scale.get(name))
        total += (flat @ flat.T).cpu()
    return total.numpy()


def likelihood_ratios(
    products: np.ndarray, calibration: np.ndarray, variance: float, coordinates: int, informed: bool
) -> np.ndarray:
    """Return the score ``likelihood`` or, for the informed adversary, ``informed`` of every client;
    see the top of this file.

    Args:
        products: inner products of the M clients' vectors and the releases ``[M + 1, M + 1]``.
        calibration: bool ``[M]``.
        variance: s^2 of the noise in each coordinate.
        coordinates: number of coordinates of a message, times rounds.
        informed: whether the vectors of the clients that toss coins are known.
    """
    if not np.isfinite(products).all() or not np.diag(products)[:-1][calibration].any():
        return np.zeros(len(calibration))
    # Every vector below is a row of coefficients: a combination of the M + 1 vectors whose inner
    # products are known.
    vectors = np.eye(len(products))
    clients = np.arange(len(calibration))
    inner, squared = np.zeros(len(clients)), np.zeros(len(clients))
    for client in clients:
        tossed, calibrating = (
            vectors[clients[group & (clients != client)]] for group in (~calibration, calibration)
        )
        if informed:
            mean, background = tossed.sum(axis=0) / 2, tossed / 2
        else:
            average = calibrating.mean(axis=0)
            spread = (calibrating - average) / np.sqrt(len(calibrating) - 1)
            mean = len(tossed) / 2 * average
            background = np.concatenate(
                [np.sqrt(len(tossed) / 2) * spread, np.sqrt(len(tossed) / 4) * average[None]]
            )
        gram = background @ products @ background.T
        # Noise plus, outside of the span of the known vectors, the mean variance of the background.
        floor = variance + max(np.trace(gram) / coordinates, np.finfo(float).tiny)
        # Woodbury's identity: S^-1 x = (x - B' (floor I + B B')^-1 B x) / floor for S = floor I +
        # B' B, where B has the rows of ``background``.
        candidate, rest = products @ vectors[client], vectors[-1] - mean
        explained = np.linalg.solve(floor * np.eye(len(gram)) + gram, background @ candidate)
        inner[client] = (candidate @ rest - explained @ (background @ products @ rest)) / floor
        squared[client] = (candidate[client] - explained @ (background @ candidate)) / floor
    length = np.sqrt(np.maximum(squared, np.finfo(float).tiny))
    average_of_null, deviation = _null(inner / length, calibration)
    z, k = (inner / length - average_of_null) / deviation, length / deviation
    return np.asarray(z * k - k**2 / 2)


def _losses(
    simulation: Simulation, progress: rounds.Progress, calibration: np.ndarray
) -> np.ndarray:
    """Return the mean loss of the released model on each client's training examples ``[M]``.

    A candidate without examples (a natural user may have none) gets the mean of the clients that
    calibrate, which is neutral, or NaN if these have no examples either.
    """
    clients = range(simulation.plan.clients)
    probes = map(simulation.in_order, simulation.split.train)
    work = [
        simulation.work(client, progress.round) | {"probe": probe}
        for client, probe in zip(clients, probes, strict=True)
    ]

    def hook(state: Tree, batches: Batches, others: Mapping[str, Schedule]) -> Tensor:
        total = batches.n.new_zeros((), dtype=simulation.dtype)
        for batch in others["probe"]:
            count = len(batch.y) if batch.valid is None else batch.valid.sum()
            total = total + simulation.task.loss(progress.params, batch) * count
        return total / batches.n.clamp(min=1)

    found: Tensor = simulation.run_clients(hook, progress.states, clients, work)
    losses = found.double().cpu().numpy()
    held = np.array([len(rows) > 0 for rows in simulation.split.train])
    reference = losses[held & calibration]
    return np.where(held, losses, reference.mean() if len(reference) else np.nan)


def _null(values: np.ndarray, calibration: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation, above 0, of the clients that calibrate."""
    reference = values[calibration]
    return float(reference.mean()), max(float(reference.std(ddof=1)), np.finfo(float).tiny)
