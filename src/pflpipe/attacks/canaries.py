"""One-shot canaries: an estimate of the mu of a real run, from random directions that are trained
in the same run (audit level L2).

After Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar, "One-shot Empirical Privacy Estimation for
Federated Learning", ICLR 2024. k clients are added to a run inside ``Simulation.release``. In every
round canary i sends C v_i, where v_i is a random unit vector. The releases are summed over the
rounds; for a constant message the sum keeps all information about it (and it is the change of the
model if the server adds the releases). The statistic is x_i = sqrt(d) cos(v_i, sum) for d
coordinates. A direction that took no part has x ~ N(0, 1) up to terms in 1/d; a direction that took
part has mean mu. So

    mu_hat = mean(x) / ((1 + s) / 2),    s = standard deviation of x,    standard error sqrt((1 +
    mu_hat^2 / 8) / k),

which is compared with mu = sqrt(T) / sigma, the claim of the plan at q = 1.

mu_hat is an estimate: it gives no confidence bound on mu. It is too small if the clients' messages
are long compared with the noise (they lengthen the sum, not its part along v_i), and if canaries
disturb each other. Hence k T <= 0.1 sigma^2 d, as long as this allows 10 canaries. It measures an
average direction, so it misses leaks of special messages. It raises an alarm about too little noise
if mu_hat - 3 standard errors > mu. The canaries alter the training: the public divisor counts M + k
clients, and the sum of the canaries acts as noise of length C sqrt(k).

Under a public scale s (mechanism.py) a canary is C s v_i over the coordinates that are sent, and
the releases are summed in units of s. If only some coordinates are sent, v_i is rescaled to a unit
vector there, and the number of canaries follows from their number in the first round.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from pflpipe import trees
from pflpipe.attacks import injected_clients
from pflpipe.errors import ConfigError
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key, seed_for
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

FEWEST, MOST = 10, 200


def attack(simulation: Simulation) -> dict[str, np.ndarray]:
    """Return the statistics of a run of the cell with canaries.

    Returns:
        ``x`` float64 ``[k]``, sqrt(d) times the cosine of each canary with the sum of the releases;
        ``coordinates``, the number of coordinates sent in a round.

    Raises:
        ConfigError: clients are sampled; the sum of the releases is then not the best statistic.
    """
    if simulation.plan.sample_rate < 1:
        raise ConfigError(
            "canaries: training.sample_rate", got=simulation.plan.sample_rate, expected="1"
        )
    canaries = Canaries(seed_for(simulation.seed, "canaries"))
    # A key derived for this run: with the cell's key both runs would have the same noise, and the
    # difference of their releases would show the clients' messages.
    run = dataclasses.replace(
        simulation, release=canaries.release, key=derived_key(simulation.key, "canaries")
    )
    rounds.run(run, rounds.start(run))
    return {"x": canaries.statistics(), "coordinates": np.array(canaries.sent)}


def number(plan: Plan, coordinates: int) -> int:
    """Return the number of canaries of a run: k T <= 0.1 sigma^2 d, at least ``FEWEST``, at most
    ``MOST`` and as many as ``injected_clients.FLOATS`` allows."""
    undisturbed = 0.1 * plan.multiplier**2 * coordinates / plan.rounds
    fitting = injected_clients.FLOATS // coordinates
    return int(min(max(FEWEST, undisturbed), MOST, max(FEWEST, fitting)))


class Canaries:
    """The canaries of one run. They are drawn in the first round, when the shapes of the uploads
    are known.

    Attributes:
        directions: name -> ``[k, *shape]``, each of joint length 1.
        total: name -> ``[*shape]``, the sum of the releases in units of the public scale.
        sent: number of coordinates sent in the first round.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.directions: Tree = {}
        self.total: Tree = {}
        self.sent = 0

    def release(self, *arguments: Any) -> Released:
        """Release the clients' uploads and the canaries' together (injected_clients.py); takes the
        arguments of ``mechanism.release``."""
        of_clients = injected_clients.Round(*arguments)
        plan, units = of_clients.plan, injected_clients.units(of_clients)
        sent = sum(int((unit > 0).sum()) for unit in units.values())
        if not self.directions:
            self._draw(units, plan, sent)
        # A public scale may send other coordinates in each round, so the length is set again.
        rows = _of_length_one(
            {name: value * (units[name] > 0) for name, value in self.directions.items()}
        )
        messages = {
            name: value * units[name] * (plan.clip_norm or 0.0) for name, value in rows.items()
        }
        drawn = torch.ones(len(next(iter(messages.values()))), dtype=torch.bool)
        released = injected_clients.release(of_clients, Uploads(messages), drawn)
        # Summed in float64: a canary's part is small in a long sum.
        for name, unit in units.items():
            self.total[name] = self.total[name] + torch.where(
                unit > 0, released.sum[name] / unit, 0
            )
        return released

    def statistics(self) -> np.ndarray:
        """Return sqrt(d) times the cosine of every direction with the sum of the releases, float64
        ``[k]``."""
        products = sum(
            (row.double() * self.total[name]).flatten(1).sum(1)
            for name, row in self.directions.items()
        )
        cosines = torch.as_tensor(products) / trees.norm(self.total).clamp(
            min=torch.finfo(torch.float64).tiny
        )
        result: np.ndarray = math.sqrt(trees.size(self.total)) * cosines.cpu().numpy()
        return result

    def _draw(self, like: Tree, plan: Plan, sent: int) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        count, self.sent = number(plan, sent), sent
        rows = {
            name: torch.randn(count, *value.shape, generator=generator).to(value.device)
            for name, value in like.items()
        }
        self.directions = _of_length_one(rows)
        self.total = {
            name: torch.zeros_like(value, dtype=torch.float64) for name, value in like.items()
        }


def _of_length_one(rows: Tree) -> Tree:
    # In float64: float32 squares of millions of coordinates lose digits of the length.
    squares = torch.stack(
        [value.flatten(1).double().square().sum(1) for value in rows.values()]
    ).sum(0)
    lengths = squares.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return {
        name: value / lengths.to(value).reshape(-1, *[1] * (value.ndim - 1))
        for name, value in rows.items()
    }


def estimate(x: np.ndarray) -> tuple[float, float]:
    """Return mu_hat and its standard error."""
    mu = float(x.mean() / ((1 + x.std(ddof=1)) / 2))
    return mu, math.sqrt((1 + mu**2 / 8) / len(x))
