"""A lower bound on the epsilon of a real training run, from this run alone: canaries with random
coins.

After Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. k canary
clients are added inside ``Simulation.release`` and count in M; the engine trains only the clients
of the study. Each tosses a fair coin. Tails sends zero. Heads sends the longest clipped message
whenever it is drawn. (It sends ``LENGTH`` times C, so that the run's clip is tested too.) Heads and
tails are exactly the neighbours of the plan (``zero_out``), so an (epsilon, delta)-private run
hides each of k coins. The auditor guesses heads for the r / 2 canaries of the highest scores and
tails for the r / 2 of the lowest, and abstains on the others. Every epsilon for which this number
of right guesses is too unlikely is refuted.

**Canaries.** Those of Maddock, Sablayrolles, Stock, "CANIFE", ICLR 2023, are orthogonal to each
other and to the clients' updates, so that only noise covers them. Here each has one coordinate,
which gives the longest message in both the L1 and the L2 norm, and the clients' part is subtracted.
The auditor knows everything but coins and noise: the uploads of clients follow from their data and
earlier releases (and from their draws, which reveal nothing about a canary), so their clipped mean
is computed again without canaries. If a public scale sends only some of the coordinates, the
canaries use these. Under ``data_size_weights`` a canary has the mean size of the clients. Under
clipping in parts it has the largest length of one part.

**Score.** The log likelihood ratio of all rounds by the noise of the plan, sum_t log(1 - q + q
e^(L_t)). With y the rest in the canary's coordinate, in units of its message, Gaussian noise has
L = (y - 1/2) / sigma^2, Laplace noise L = (|y| - |y - 1|) / b. A wrong score makes the bound
weaker, but not wrong.

**Bound.** Let N of the r guesses be right and p_n = P[N = n]. Fix a canary, the other coins, and a
set A of counts. Given the canary's coin, "this guess is right and N in A" means that the release
lies in some set. Given the other coin, the same set means "this guess is wrong and N + 1 in A", and
privacy compares the two probabilities. Summed over the k canaries (if N = n, n guesses are right
and r - n wrong):

    sum over n in A of (n p_n - e^epsilon (r - n + 1) p_(n-1))  <=  k delta    for every A of {1,
    ..., r}.

Let B be the number of right guesses out of r that are each right with probability e^epsilon / (1 +
e^epsilon). For it every term is 0. So p_n / P[B = n] may increase with n only as far as delta
allows, and the worst case for P[N >= v] is one step at v:

    P[N >= v]  <=  beta + (1 - beta) min(1, k delta beta / (v P[B = v])),    beta = P[B >= v].

At delta = 0 this is the paper's bound. At any delta some run reaches it: one that draws N by that
p, and then draws uniformly which guesses are right. The second term of the paper's Theorem 5.2 is 2
k delta max_i P[v > B >= v - i] / i, which is many times larger where it matters: if all of 1,000
guesses are right, the paper refutes 3.5 at delta = 0.001, and this bound 5.8. Counting over sets is
the idea of Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run", ICML 2025.

**Choices, made before any result is seen.** The largest possible bound, that of r right guesses,
grows with r, so a run has as many canaries as fit. Fewer guesses are more certain, but delta has k
/ r times the weight in them. So r is each of several fractions of k (``SHARES``), as many as delta
allows (``shares``), and their bounds hold together with 95 % (Bonferroni). Seeds are independent
runs, so the canaries of all seeds form one game.

The bound holds for the executed run: M + k clients, whose model moves M / (M + k) as far in a
round. It concerns an adversary that sees sums, and zero_out neighbours.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor

from pflpipe import trees
from pflpipe.facts.departures import OF_MESSAGES
from pflpipe.privacy import cohorts, mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key, release_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tensors, Tree

FLOATS = 2**26
"""Most scalars in the messages of all canaries together (256 MB in float32)."""
MOST = 1000
"""Largest number of canaries of one run; each takes the memory of an upload."""
LENGTH = 1000.0
"""Length of a canary's upload, in clip bounds."""
SHARES = (3 / 4, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Fractions of the canaries that the auditor may guess. Not all of them, because hardly ever are
exactly half of the coins heads."""
ERROR = 0.05
"""Probability that one of a game's bounds does not hold."""
ROOM = 4
"""A fraction of the canaries is guessed if delta over the fraction is this many times below the
error of its bound."""


def attack(simulation: Simulation) -> dict[str, np.ndarray]:
    """Return coins and scores of a run of the cell with canaries.

    Returns:
        ``heads`` bool ``[k]``, the coins; ``scores`` float64 ``[k]``, larger for heads.
    """
    key = derived_key(simulation.key, "one_run")
    game = Game(key)
    run = dataclasses.replace(simulation, release=game.release, key=key)
    rounds.run(run, rounds.start(run))
    return {"heads": game.heads, "scores": game.scores}


class Round(NamedTuple):
    """The arguments of ``mechanism.release`` for the M clients of a round."""

    generator: np.random.Generator
    uploads: Uploads
    present: Tensor
    plan: Plan
    scale: Tensors
    departures: frozenset[str]


class Game:
    """The canaries of one run. They are drawn in the first round, when the shapes of the uploads
    are known.

    Attributes:
        heads: bool ``[k]``, the coins.
        scores: float64 ``[k]``, of the releases so far.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.heads, self.scores = np.zeros(0, dtype=bool), np.zeros(0)
        self._order = np.zeros(0, dtype=int)
        self._round = 0

    def release(self, *arguments: Any) -> Released:
        """Release the clients' uploads and the canaries' together, and score every coin by the
        release; takes the arguments of ``mechanism.release``."""
        of_clients = Round(*arguments)
        plan, units = of_clients.plan, _units(of_clients)
        unit, shapes = trees.flat(units).double(), trees.shapes(units)
        if not self._round:
            self._toss(int((unit > 0).sum()), len(unit))
        places = self._places(unit)
        rows = self._rows(unit, places, plan)
        extras, drawn = self._extras(of_clients), self._drawn(plan)
        messages, zeros = (
            Uploads(trees.parted(value, shapes), extras) for value in (rows, torch.zeros_like(rows))
        )
        released = _release(of_clients, messages, drawn)
        # The clients' part, which the auditor knows: the same release without noise, and with
        # canaries of zeros, so that divisor and weights stay the same.
        quiet = dataclasses.replace(plan, noise_multiplier=0.0)
        noiseless = of_clients._replace(generator=np.random.default_rng(), plan=quiet)
        clients_part = _release(noiseless, zeros, drawn)
        rest = trees.flat(released.sum).double() - trees.flat(clients_part.sum).double()
        rest_of_canaries = (rest[places] / unit[places]).cpu().numpy()
        enlarged = _enlarged(plan, len(self.heads))
        message = (plan.clip_norm or 1.0) / enlarged.expected_cohort
        self.scores[: len(places)] += _log_ratio(rest_of_canaries / message, plan)
        self._round += 1
        return released

    def _toss(self, sent: int, coordinates: int) -> None:
        count = number(sent, coordinates)
        self.heads = release_rng(self.key, "coins").random(count) < 0.5
        self.scores = np.zeros(count)
        self._order = release_rng(self.key, "places").permutation(coordinates)

    def _places(self, unit: Tensor) -> Tensor:
        """Return the coordinate of each canary. If fewer coordinates are sent than there are
        canaries, only the first canaries have one."""
        # One order for all rounds: a canary keeps its place while the scale sends it.
        order = torch.from_numpy(self._order).to(unit.device)
        return order[unit[order] > 0][: len(self.heads)]

    def _rows(self, unit: Tensor, places: Tensor, plan: Plan) -> Tensor:
        """Return the canaries' messages ``[k, d]``."""
        rows = unit.new_zeros(len(self.heads), len(unit), dtype=torch.float32)
        heads = torch.from_numpy(self.heads[: len(places)]).to(unit.device)
        # Far above the clip bound, so that a clip that fails shows in the scores.
        length = LENGTH * (plan.clip_norm or 0.0)
        sent = (length * unit[places] * heads).float()
        rows[torch.arange(len(places), device=unit.device), places] = sent
        return rows

    def _extras(self, of_clients: Round) -> Tree:
        """Return the canaries' private extras, the mean of the clients'. Only numbers of examples
        occur here (registry.py)."""
        means = {
            name: value[of_clients.present.to(value.device)].double().mean()
            for name, value in of_clients.uploads.extras.items()
        }
        return {name: mean.expand(len(self.heads)) for name, mean in means.items()}

    def _drawn(self, plan: Plan) -> Tensor:
        rng = release_rng(self.key, "canaries", self._round)
        alone = dataclasses.replace(plan, clients=len(self.heads))
        return torch.from_numpy(cohorts.sample_clients(rng, alone))


def _units(of_clients: Round) -> Tree:
    """Return the public unit of each coordinate of a message, name -> ``[*shape]``; 0 where it is
    not sent."""
    units = {}
    for name, value in of_clients.uploads.update.items():
        unit = of_clients.scale.get(name, torch.ones((), dtype=value.dtype))
        units[name] = unit.to(value.device).expand(value.shape[1:])
    return units


def _enlarged(plan: Plan, injected: int) -> Plan:
    """Return the plan of a run with ``injected`` more clients."""
    return dataclasses.replace(plan, clients=plan.clients + injected)


def _release(of_clients: Round, injected: Uploads, drawn: Tensor) -> Released:
    """Release the uploads of M clients and of k injected clients as one release of M + k clients.

    Args:
        of_clients: the release without the injected clients.
        injected: uploads of the injected clients, ``[k, *shape]``.
        drawn: bool ``[k]``, which injected clients take part.

    Returns:
        The release. Its fields about single clients have M rows, without the injected clients.
    """
    uploads, present, plan = of_clients.uploads, of_clients.present, of_clients.plan
    clients = present.shape[-1]
    update, extras = (
        {name: torch.cat([value, more[name].to(value.device)]) for name, value in tree.items()}
        for tree, more in ((uploads.update, injected.update), (uploads.extras, injected.extras))
    )
    everyone = torch.cat([present, drawn.to(present.device)])
    both, enlarged = Uploads(update, extras), _enlarged(plan, len(drawn))
    joint = of_clients._replace(uploads=both, present=everyone, plan=enlarged)
    released = mechanism.release(*joint)
    # The engine reads these fields by the rows of the clients that it trained.
    rows = {name: getattr(released, name)[:clients] for name in ("norms", "clipped", "nonfinite")}
    if of_clients.departures & OF_MESSAGES:
        for name in ("messages", "clean"):
            rows[name] = {part: value[:clients] for part, value in getattr(released, name).items()}
    return dataclasses.replace(released, **rows)


def number(sent: int, coordinates: int) -> int:
    """Return the number of canaries of a run: one for each coordinate sent, at most ``MOST``, and
    as many as ``FLOATS`` allows."""
    return min(sent, MOST, max(1, FLOATS // coordinates))


def _log_ratio(rest: np.ndarray, plan: Plan) -> np.ndarray:
    """Return log p(rest | heads) / p(rest | tails) of one round; ``rest`` is in units of a canary's
    part of the sum."""
    ratio = plan.law.log_ratio(rest, 1.0, plan.multiplier)
    if plan.sample_rate < 1:
        ratio = np.logaddexp(math.log1p(-plan.sample_rate), math.log(plan.sample_rate) + ratio)
    return np.asarray(ratio)


# ---------------------------------------------------------------- the bound


def chance(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return an upper bound of the probability that at least ``correct`` guesses about an (epsilon,
    delta)-private run are right."""
    if correct == 0:
        return 1.0
    beta = float(binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon))))
    # beta / P[B = v], as a sum of quotients of neighbouring probabilities, because both may be 0 in
    # float64.
    more = np.arange(correct + 1, guesses + 1)
    with np.errstate(over="ignore"):
        ratio = 1 + float(np.cumprod((guesses - more + 1) / more * math.exp(epsilon)).sum())
    return beta + (1 - beta) * (min(1.0, canaries * delta / correct * ratio) if delta else 0.0)


def lower_bound(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Return the largest epsilon for which at least ``correct`` right guesses have a probability of
    at most ``error``, or 0.

    Args:
        correct, guesses, canaries: right guesses, guesses, fair coins.
        delta: of the (epsilon, delta) statement.
        error: probability that the bound fails.
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
    """Return the fractions of the canaries to guess, largest first: as many as delta allows, at
    least one."""
    prefixes = [SHARES[:count] for count in range(1, len(SHARES) + 1)]
    return max(
        (parts for parts in prefixes if parts[-1] * ERROR / len(parts) >= ROOM * delta),
        key=len,
        default=SHARES[:1],
    )


def guess(heads: np.ndarray, scores: np.ndarray, guesses: int) -> int:
    """Return the number of right guesses: heads for the ``guesses`` / 2 canaries of the highest
    scores, tails for as many of the lowest."""
    # A stable sort: equal scores keep their order, which is independent of the coins.
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: guesses // 2], order[len(order) - guesses // 2 :]
    return int(heads[highest].sum() + (~heads[lowest]).sum())


def judged(heads: np.ndarray, scores: np.ndarray, delta: float) -> dict[str, float]:
    """Return the result of a game.

    Returns:
        ``canaries``; ``guesses``, ``correct`` and ``epsilon_lower`` for the number of guesses with
        the largest bound; ``epsilon_highest``, the largest bound if all guesses were right.
    """
    canaries, results, parts = len(heads), [], shares(delta)
    # Bonferroni: the largest of several bounds is taken, so each fails with a part of ERROR.
    error = ERROR / len(parts)
    for share in parts:
        guesses = 2 * int(share * canaries / 2)
        correct = guess(heads, scores, guesses)
        bound, highest = (
            lower_bound(right, guesses, canaries, delta, error) for right in (correct, guesses)
        )
        results.append((bound, highest, guesses, correct))
    largest, _, guesses, correct = max(results, key=lambda result: result[0])
    return {
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "epsilon_lower": largest,
        "epsilon_highest": max(highest for _, highest, _, _ in results),
    }
