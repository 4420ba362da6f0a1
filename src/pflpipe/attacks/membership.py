"""Client-level membership inference: was this client among those that trained the released model?

The adversary holds a candidate's training examples and what the world sees: the noisy sum of each
round and the models made from it. Clients of the same population that it knows to be no members
calibrate it; it trains no shadow federations. (Shadow models would cost it hundreds of runs: Shokri
et al., "Membership Inference Attacks", S&P 2017; Carlini et al., "Membership Inference Attacks From
First Principles", S&P 2022, whose test is a likelihood ratio and whose measure, taken over here, is
the true positive rate at a low false positive rate.)

**The game.** A quarter of the cell's clients, drawn at random, calibrate. Each of the others tosses
a fair coin: heads is a member. The run is the cell's, with noise and cohorts of its own, in which
clients that are no members hold no examples, so that what they send is zero. In and out of the game
are therefore exactly the neighbours of the plan (``zero_out``), whatever the other coins say, and
the plan's guarantee is a bound on any such attack: TPR <= e^epsilon FPR + delta, and for Gaussian
noise without sampling, which is mu-GDP, TPR <= Phi(Phi^-1(FPR) + mu) (Dong, Roth, Su, "Gaussian
Differential Privacy", 2022). These bound expected rates; measured ones scatter. (With a fixed
number of members, or a run of the members alone, taking one client out would put another one in or
change the divisor: other neighbours, for which the same plan promises far less.)

**Four scores**, all larger for members:

- ``loss``: minus the mean loss of the final model on the candidate's examples, in standard
  deviations of the clients that calibrate (Yeom et al., "Privacy Risk in Machine Learning", CSF
  2018). One number of one release.
- ``likelihood``: the likelihood ratio of all releases. At the released model of round t the
  adversary computes what the candidate would send, clipped; c is this of all rounds, one long
  vector, divided by M, and r the releases. Without the candidate r is noise, s^2 in each
  coordinate, and the sum of the other members' vectors, of which only the population is known: m
  fair coins, and vectors like those of the n clients that calibrate, of mean a and covariance V. So
  r has the mean b = m a / 2 and the covariance S = s^2 I + m V / 2 + m a a' / 4, and with the
  candidate c is added. If both are Gaussian,

      log ratio = <c, r - b> - |c|^2 / 2        in the inner product <x, y> = x' S^-1 y,

  a matched filter against noise and background. V has rank n - 1 at most; outside of its span the
  background has unknown variance, for which its mean over all coordinates stands. A client that
  calibrates is itself left out of a and V. S is a model, and the clients that calibrate correct it:
  among them x = <c, r - b> / |c| has some mean u and deviation v instead of 0 and 1, hence the
  score z k - k^2 / 2 with z = (x - u) / v and k = |c| / v. (Nasr, Shokri, Houmansadr, S&P 2019,
  take a candidate's gradients at released models; Li, Li, Ribeiro, "Effective Passive Membership
  Inference Attacks in Federated Learning against Overparameterized Models", ICLR 2023, their cosine
  with an update. Without a and V, and for vectors of one length, the test above is such a cosine.)
- ``informed``: the same for an adversary who knows the data of everybody who tosses a coin, though
  not the coins. The background is then half the sum of the m others' vectors, and S = s^2 I + the
  sum of c_j c_j' / 4. A sum without noise hides nothing from it as long as there are more
  coordinates than clients. Such adversaries are what differential privacy is for.
- ``strongest``: the likelihood ratio for who knows what everybody else really sent, coins and draws
  included (strongest.py). Noise alone hides the candidate, and the score reaches what the plan
  allows.

The scores of one run share its noise, which moves them together as far as clients send similar
messages. Members and held-out clients of one run are compared as if that shift were known, so that
a few runs can seem to separate better than the plan allows a test of one client; over many runs the
shift is noise like any other.

Client states, where a method has them, are those of a client that takes part in every round from
the first. At q < 1 no adversary knows the candidate's draw, even where the departure
``public_sampling`` gives it away, and all but the strongest add up all rounds. They also treat
methods with weights of clients (FedAvg's numbers of examples) as if they had none. All treat noise
that comes with the messages as if it came with their sum, and ``divide_by_counts`` as if nobody
divided. What these attacks miss another one may find; the plan bounds all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflpipe.attacks.strongest import Heard, in_units, log_ratios, noise_variance, released_alone
from pflpipe.cells import Cell
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches, Task
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.seeds import derived_key, numpy_rng, seed_for
from pflpipe.simulation import rounds
from pflpipe.simulation.runs import Inputs, simulate
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

SCORES = {
    "loss": "loss of the final model",
    "likelihood": "likelihood ratio of all releases",
    "informed": "likelihood ratio, others' data known",
    "strongest": "likelihood ratio, others' messages known",
}


def attack(cell: Cell, inputs: Inputs, device: str, backend: str) -> dict[str, np.ndarray]:
    """Play the game once: one run of the cell, and four scores for every client.

    Returns:
        ``member`` and ``calibration`` bool ``[M]``; ``loss``, ``likelihood``, ``informed`` and
            ``strongest`` float64 ``[M]``.
    """
    return infer(simulate(cell, inputs, device=device, backend=backend))


def infer(simulation: Simulation) -> dict[str, np.ndarray]:
    """Do what ``attack`` does with a simulation of the whole cell.

    A run that diverged, or calibrators who all have no examples, tell nothing: scores are 0.
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
    """Return who is a member and who calibrates, bool ``[M]`` each: a random quarter, and fair
    coins for the others."""
    rng = numpy_rng(seed, "members")
    calibration = np.zeros(clients, dtype=bool)
    calibration[rng.permutation(clients)[: clients // 4]] = True
    return ~calibration & (rng.random(clients) < 0.5), calibration


def of_members(simulation: Simulation, member: np.ndarray) -> Simulation:
    """Return the run in which only members hold training examples; every other client sends
    zero."""
    kept = [
        rows if here else rows[:0]
        for rows, here in zip(simulation.split.train, member, strict=True)
    ]
    return dataclasses.replace(simulation, split=dataclasses.replace(simulation.split, train=kept))


def _watch(
    simulation: Simulation, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, rounds.Progress]:
    """Run the members' federation and compute along what every client would send.

    The adversary shuffles a candidate's examples by a stream of its own: it does not know the
    client's.

    Returns:
        inner products ``[M + 1, M + 1]``, summed over rounds and coordinates, of the M clients'
            vectors c and, last, the
        releases r, both in units of the public scale; the score ``strongest`` ``[M]``; and the end
            of the run.
    """
    heard: list[Heard] = []

    def listen(
        generator: np.random.Generator, uploads: Uploads, present: Tensor, *others: Any
    ) -> Released:
        released = mechanism.release(generator, uploads, present, *others)
        heard.append(Heard(uploads, present, released.sum))
        return released

    # The game's run may be published beside the cell's own: other clients send, so its noise must
    # be another one.
    key = derived_key(simulation.key, "members")
    run = dataclasses.replace(of_members(simulation, member), release=listen, key=key)
    adversary = dataclasses.replace(
        simulation, seed=seed_for(simulation.seed, "members", "adversary")
    )
    method, clients = simulation.method, range(simulation.plan.clients)
    progress = rounds.start(run)
    states, products, ratios = progress.states, np.zeros(()), np.zeros(len(clients))
    while progress.round < run.plan.rounds:
        params, server = progress.params, progress.server
        task = simulation.task_in(progress.round)

        def hook(
            state: ClientState,
            batches: Batches,
            others: Mapping[str, Schedule],
            params: Params = params,
            server: ServerState = server,
            task: Task = task,
        ) -> tuple[Update, Tree, ClientState]:
            upload, new = method.local_update(params, server, state, batches, task)
            return upload.update, upload.extras, new

        work = [adversary.work(client, progress.round) for client in clients]
        update, extras, new = adversary.run_clients(hook, states, clients, work)
        states = states.replaced(clients, new)
        scale = method.scale(params, server, task)
        expected = released_alone(simulation, Uploads(update, extras), scale)
        drawn = rounds.cohort(run, progress.round)
        rounds.one_round(run, progress)
        message = heard.pop()
        products = products + _products(expected, message.sum, scale, len(clients))
        ratios = ratios + log_ratios(simulation, drawn, expected, extras, message, scale)
    return products, ratios, progress


def _products(alone: Tree, released: Tree, scale: Tree, clients: int) -> np.ndarray:
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
        coordinates: how many a model has, times rounds.
        informed: whether the vectors of those who toss coins are known.
    """
    if not np.isfinite(products).all() or not np.diag(products)[:-1][calibration].any():
        return np.zeros(len(calibration))
    vectors = np.eye(
        len(products)
    )  # every vector is a combination of the M + 1 whose products are known
    clients = np.arange(len(calibration))
    inner, squared = np.zeros(len(clients)), np.zeros(len(clients))
    for client in clients:
        tossed, known = (
            vectors[clients[group & (clients != client)]] for group in (~calibration, calibration)
        )
        if informed:
            mean, background = tossed.sum(axis=0) / 2, tossed / 2
        else:
            average = known.mean(axis=0)
            spread = (known - average) / np.sqrt(len(known) - 1)
            mean = len(tossed) / 2 * average
            background = np.concatenate(
                [np.sqrt(len(tossed) / 2) * spread, np.sqrt(len(tossed) / 4) * average[None]]
            )
        gram = background @ products @ background.T
        floor = variance + max(np.trace(gram) / coordinates, np.finfo(float).tiny)
        # S^-1 x = (x - B' (floor I + B B')^-1 B x) / floor for S = floor I + B' B, B the rows of
        # `background`.
        candidate, rest = products @ vectors[client], vectors[-1] - mean
        explained = np.linalg.solve(floor * np.eye(len(gram)) + gram, background @ candidate)
        inner[client] = (candidate @ rest - explained @ (background @ products @ rest)) / floor
        squared[client] = (candidate[client] - explained @ (background @ candidate)) / floor
    length = np.sqrt(np.maximum(squared, np.finfo(float).tiny))
    average_of_null, deviation = _null(inner / length, calibration)
    z, k = (inner / length - average_of_null) / deviation, length / deviation
    scores: np.ndarray = z * k - k**2 / 2
    return scores


def _losses(
    simulation: Simulation, progress: rounds.Progress, calibration: np.ndarray
) -> np.ndarray:
    """Return the mean loss of the released model on each client's training examples ``[M]``.

    A candidate without examples (a natural user may have none) leaves nothing to try, which speaks
    neither for a member nor against: it gets the mean of the clients that calibrate, NaN if these
    have none either.
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

    losses: np.ndarray = (
        simulation.run_clients(hook, progress.states, clients, work).double().cpu().numpy()
    )
    held = np.array([len(rows) > 0 for rows in simulation.split.train])
    known = losses[held & calibration]
    return np.where(held, losses, known.mean() if len(known) else np.nan)


def _null(values: np.ndarray, calibration: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation, above 0, of the clients that calibrate."""
    known = values[calibration]
    return float(known.mean()), max(float(known.std(ddof=1)), np.finfo(float).tiny)
