"""A lower bound on the epsilon of a real training run, from that run alone: canaries that toss
coins.

After Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. k canary
clients train along, behind ``Simulation.release`` (injected_clients.py); they count in M. Each
tosses a fair coin: tails sends zero, and heads sends, whenever it is drawn, as much as the clip
lets through. (It sends ``LENGTH`` times that, so that the run's own clip is on trial as well.)
Heads and tails are exactly the neighbours of the plan (``zero_out``), so a run that is (epsilon,
delta)-private hides each of k coins. The auditor guesses heads for the r / 2 canaries of the
highest scores and tails for the r / 2 of the lowest, and abstains on the others. Every epsilon
under which so many right guesses are too unlikely is refuted.

**Canaries.** Those of Maddock, Sablayrolles, Stock, "CANIFE", ICLR 2023, are orthogonal to each
other and to the clients' updates, so that nothing but noise covers them. Here each has a coordinate
of its own, which is the longest message in the L1 norm as in the L2 norm, and the clients' part is
taken away. For the auditor knows everything but coins and noise: what clients upload follows from
their data and from earlier releases (and from who of them is drawn, which tells nothing of a
canary), so their clipped mean is computed once more without canaries, and subtracted. Where a
public scale sends only some of the coordinates, the canaries move to such. Under
``data_size_weights`` a canary is as large as the clients are on average. Under clipping in parts it
is as long as one part may be.

**Score.** The log likelihood ratio of all rounds by the noise of the plan, sum_t log(1 - q + q
e^(L_t)). With y what is left of the canary's coordinate in units of its message, Gaussian noise has
L = (y - 1/2) / sigma^2, Laplace noise L = (|y| - |y - 1|) / b. A wrong score makes the bound
weaker, never wrong.

**Bound.** Let N of the r guesses be right and p_n = P[N = n]. Fix a canary, the other coins, and a
set A of counts. "This guess is right and N in A" says of the release, given the canary's coin, that
it lies in some set; given the other coin, the same set means "this guess is wrong and N + 1 in A",
and privacy compares the two. Added up over the k canaries (when N = n, n guesses are right, and r -
n wrong):

    sum over n in A of (n p_n - e^epsilon (r - n + 1) p_(n-1))  <=  k delta    for every A of {1,
    ..., r}.

Let B be the number right of r guesses that are so with probability e^epsilon / (1 + e^epsilon)
each, for which every term is 0. So p_n / P[B = n] may rise with n only as far as delta pays for it,
and the best use of that for P[N >= v] is one step at v:

    P[N >= v]  <=  beta + (1 - beta) min(1, k delta beta / (v P[B = v])),    beta = P[B >= v].

At delta = 0 this is the paper's bound. At any delta some run reaches it: one that draws N by that
p, and then with equal chances which of its guesses are right. The paper's Theorem 5.2 has, for the
second term, 2 k delta max_i P[v > B >= v - i] / i, many times as much where it matters: when all of
1,000 guesses are right that refutes 3.5 at delta = 0.001, and this 5.8. To count over sets is the
idea of Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run", ICML 2025.

**Choices, made before anything is seen.** The largest bound that can come out, of r guesses that
are all right, grows with r, so there are as many canaries as there is room for. Fewer guesses are
surer ones, but delta weighs k / r times as much in them. So r is each of several parts of k
(``SHARES``), as many as delta leaves room for (``shares``), and their bounds hold together with 95
% (Bonferroni). Seeds are independent runs, so all their canaries play one game.

A bound holds for what ran: M + k clients, whose model moves M / (M + k) as far in a round. It is
about an adversary who sees sums, and about zero_out neighbours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor

from pflpipe.attacks import injected_clients
from pflpipe.cells import Cell
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key, release_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.runs import Inputs, simulate
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

MOST = 1000
"""Canaries of one run; each takes the memory of an upload."""
LENGTH = 1000.0
"""A canary sends so many times the clip bound."""
SHARES = (3 / 4, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Parts of the canaries about which the auditor may guess. Not all: hardly ever are exactly half
heads."""
ERROR = 0.05
"""Probability with which one of a game's bounds does not hold."""
ROOM = 4
"""A part of the canaries is guessed if delta over it is so many times below the error of its
bound."""


def attack(cell: Cell, inputs: Inputs, device: str, backend: str) -> dict[str, np.ndarray]:
    """Run the cell with canaries.

    Returns:
        ``heads`` bool ``[k]``, the coins; ``scores`` float64 ``[k]``, larger for heads.
    """
    return play(simulate(cell, inputs, device=device, backend=backend))


def play(simulation: Simulation) -> dict[str, np.ndarray]:
    """Do what ``attack`` does with a simulation of the cell."""
    key = derived_key(simulation.key, "one_run")
    game = Game(key)
    run = dataclasses.replace(simulation, release=game.release, key=key)
    rounds.run(run, rounds.start(run))
    return {"heads": game.heads, "scores": game.scores}


class Game:
    """The canaries of one run, which begin with its first release, when the shapes of what is sent
    are known.

    ``heads`` bool ``[k]``, the coins; ``scores`` float64 ``[k]``, of the releases so far.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.heads, self.scores = np.zeros(0, dtype=bool), np.zeros(0)
        self._order = np.zeros(0, dtype=int)
        self._round = 0

    def release(
        self,
        generator: np.random.Generator,
        uploads: Uploads,
        present: Tensor,
        plan: Plan,
        scale: Mapping[str, Tensor],
        departures: frozenset[str],
    ) -> Released:
        """Release the clients' uploads and the canaries' together (injected_clients.py), and score
        every coin by the release."""
        units = injected_clients.units(uploads, scale)
        unit = _flat(units)
        if not self._round:
            self._toss(int((unit > 0).sum()), len(unit))
        places = self._places(unit)
        messages = Uploads(
            _split(self._rows(unit, places, plan), units), self._extras(uploads, present)
        )
        silence = Uploads(
            {name: torch.zeros_like(rows) for name, rows in messages.update.items()},
            messages.extras,
        )
        drawn = self._drawn(plan)
        released = injected_clients.release(
            generator, uploads, present, plan, scale, departures, messages, drawn
        )
        quiet = dataclasses.replace(plan, noise_multiplier=0.0)
        known = injected_clients.release(
            np.random.default_rng(), uploads, present, quiet, scale, departures, silence, drawn
        )
        left = ((_flat(released.sum) - _flat(known.sum))[places] / unit[places]).cpu().numpy()
        enlarged = injected_clients.enlarged(plan, len(self.heads))
        message = (plan.clip_norm or 1.0) / enlarged.expected_cohort
        self.scores[: len(places)] += _log_ratio(left / message, plan)
        self._round += 1
        return released

    def _toss(self, sent: int, coordinates: int) -> None:
        count = number(sent, coordinates)
        self.heads = release_rng(self.key, "coins").random(count) < 0.5
        self.scores = np.zeros(count)
        self._order = release_rng(self.key, "places").permutation(coordinates)

    def _places(self, unit: Tensor) -> Tensor:
        """Return the coordinates of the canaries, of the first ones if fewer are sent than there
        are canaries."""
        order = torch.from_numpy(self._order).to(unit.device)
        return order[unit[order] > 0][: len(self.heads)]

    def _rows(self, unit: Tensor, places: Tensor, plan: Plan) -> Tensor:
        """Return the canaries' messages ``[k, d]``."""
        rows = unit.new_zeros(len(self.heads), len(unit), dtype=torch.float32)
        heads = torch.from_numpy(self.heads[: len(places)]).to(unit.device)
        length = LENGTH * (plan.clip_norm or 0.0)
        rows[torch.arange(len(places), device=unit.device), places] = (
            length * unit[places] * heads
        ).float()
        return rows

    def _extras(self, uploads: Uploads, present: Tensor) -> Tree:
        """Return the canaries' private extras, which are numbers of examples
        (``attacks.EXTRAS``)."""
        means = {
            name: value[present.to(value.device)].double().mean()
            for name, value in uploads.extras.items()
        }
        return {name: mean.expand(len(self.heads)) for name, mean in means.items()}

    def _drawn(self, plan: Plan) -> Tensor:
        rng = release_rng(self.key, "canaries", self._round)
        alone = dataclasses.replace(plan, clients=len(self.heads))
        return torch.from_numpy(mechanism.sample_clients(rng, alone))


def number(sent: int, coordinates: int) -> int:
    """Return how many canaries a run has: one for each coordinate sent, at most ``MOST``, and
    ``injected_clients.FLOATS`` together."""
    return min(sent, MOST, max(1, injected_clients.FLOATS // coordinates))


def _log_ratio(left: np.ndarray, plan: Plan) -> np.ndarray:
    """Return log p(left | heads) / p(left | tails) of one round, ``left`` in units of what a canary
    adds to the sum."""
    assert plan.noise_multiplier is not None
    if plan.mechanism == "laplace":
        ratio = (np.abs(left) - np.abs(left - 1)) / plan.noise_multiplier
    else:
        ratio = (left - 0.5) / plan.noise_multiplier**2
    if plan.sample_rate < 1:
        ratio = np.logaddexp(math.log1p(-plan.sample_rate), math.log(plan.sample_rate) + ratio)
    return np.asarray(ratio)


def _flat(tree: Tree) -> Tensor:
    return torch.cat([value.reshape(-1) for value in tree.values()]).double()


def _split(rows: Tensor, like: Tree) -> Tree:
    parts = torch.split(rows, [value.numel() for value in like.values()], dim=1)
    return {
        name: part.reshape(-1, *like[name].shape) for name, part in zip(like, parts, strict=True)
    }


# ---------------------------------------------------------------- the bound


def chance(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return with which probability at most so many guesses or more are right about an (epsilon,
    delta)-private run."""
    if correct == 0:
        return 1.0
    beta = float(binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon))))
    # beta / P[B = v], as a sum of quotients of neighbouring probabilities, since both may be 0 in
    # float64
    more = np.arange(correct + 1, guesses + 1)
    with np.errstate(over="ignore"):
        ratio = 1 + float(np.cumprod((guesses - more + 1) / more * math.exp(epsilon)).sum())
    return beta + (1 - beta) * (min(1.0, canaries * delta / correct * ratio) if delta else 0.0)


def lower_bound(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Return the largest epsilon at which so many right guesses have a probability of at most
    ``error``, or 0.

    Args:
        correct: right guesses, of ``guesses``, about some of ``canaries`` fair coins.
        delta: of the statement.
        error: probability with which the bound may fail.
    """

    def excess(epsilon: float) -> float:
        return chance(correct, guesses, canaries, epsilon, delta) - error

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-9))


def shares(delta: float) -> tuple[float, ...]:
    """Return the parts of the canaries about which to guess, largest first: at least one, and no
    smaller ones than pay."""
    some = [SHARES[:count] for count in range(1, len(SHARES) + 1)]
    return max(
        (parts for parts in some if parts[-1] * ERROR / len(parts) >= ROOM * delta),
        key=len,
        default=SHARES[:1],
    )


def guess(heads: np.ndarray, scores: np.ndarray, guesses: int) -> int:
    """Return how many guesses are right: heads for the canaries of the highest scores, tails for as
    many of the lowest."""
    order = np.argsort(scores, kind="stable")
    return int(
        heads[order[len(order) - guesses // 2 :]].sum() + (~heads[order[: guesses // 2]]).sum()
    )


def judged(heads: np.ndarray, scores: np.ndarray, delta: float) -> dict[str, float]:
    """Return ``canaries``, and of the number of guesses that gives the largest bound: ``guesses``,
    ``correct`` and ``epsilon_lower``; and ``epsilon_highest``, the largest bound that could have
    come out, all guesses right.
    """
    canaries, found, parts = len(heads), [], shares(delta)
    error = ERROR / len(parts)
    for share in parts:
        guesses = 2 * int(share * canaries / 2)
        correct = guess(heads, scores, guesses)
        bound, highest = (
            lower_bound(right, guesses, canaries, delta, error) for right in (correct, guesses)
        )
        found.append(
            {
                "guesses": guesses,
                "correct": correct,
                "epsilon_lower": bound,
                "epsilon_highest": highest,
            }
        )
    best = max(found, key=lambda entry: entry["epsilon_lower"])
    return {
        "canaries": canaries,
        **best,
        "epsilon_highest": max(entry["epsilon_highest"] for entry in found),
    }
