"""One-shot canaries: an estimate of the mu of a real run, from random directions that train along
(audit level L2).

After Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar, "One-shot Empirical Privacy Estimation for
Federated Learning", ICLR
2024. k clients are added to a run, and sit behind ``Simulation.release``: in every round canary i
  sends C v_i, with v_i a
random unit vector. The releases are added up, which for a message that never changes keeps all that
they say about it (and is the change of the model where the server adds up what it gets), and x_i =
sqrt(d) cos(v_i, sum) for the d coordinates. A direction that took no part has x ~ N(0, 1) but for
terms in 1/d, and one that did has a mean of mu, so

    mu_hat = mean(x) / ((1 + s) / 2),    s = standard deviation of x,    standard error sqrt((1 +
    mu_hat^2 / 8) / k),

to be compared with mu = sqrt(T) / sigma, which the plan claims at q = 1.

Read it as an estimate: no confidence bound on mu follows from it. It errs downwards when the
clients' own messages are long beside the noise (they lengthen the sum, not its part along v_i) and
when canaries get into each other's way, hence k T <= 0.1 sigma^2 d where that leaves 10 canaries.
It sees what happens to an average direction, so it misses leaks that only special messages have. It
is an alarm that the noise is too small: mu_hat - 3 standard errors > mu. The canaries alter the
training: M + k is the public divisor, and their sum is one more noise, of length C sqrt(k).

Under a public scale s (mechanism.py) a canary is C s v_i over the coordinates that are sent, and
the releases are added up in units of s. Where only some are sent, v_i is lengthened to a unit
vector there, and the number of canaries follows from how many these are in the first round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.attacks import injected_clients
from pflpipe.cells import Cell
from pflpipe.errors import ConfigError
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import derived_key, seed_for
from pflpipe.simulation import rounds
from pflpipe.simulation.runs import Inputs, simulate
from pflpipe.simulation.simulation import Simulation
from pflpipe.trees import Tree

FEWEST, MOST = 10, 200


def attack(cell: Cell, inputs: Inputs, device: str, backend: str) -> dict[str, np.ndarray]:
    """Run the cell with canaries.

    Returns:
        ``x`` float64 ``[k]``, sqrt(d) times the cosine of each canary with the sum of the releases;
            ``coordinates``, how many
        are sent in a round.

    Raises:
        ConfigError: clients are sampled, so that the sum of the releases is not what an adversary
            would look at.
    """
    return listen(simulate(cell, inputs, device=device, backend=backend))


def listen(simulation: Simulation) -> dict[str, np.ndarray]:
    """Do what ``attack`` does with a simulation of the cell."""
    if simulation.plan.sample_rate < 1:
        raise ConfigError(
            "canaries: training.sample_rate", got=simulation.plan.sample_rate, expected="1"
        )
    flock = Flock(seed_for(simulation.seed, "canaries"))
    run = dataclasses.replace(
        simulation, release=flock.release, key=derived_key(simulation.key, "canaries")
    )
    rounds.run(run, rounds.start(run))
    return {"x": flock.standings(), "coordinates": np.array(flock.sent)}


def number(plan: Plan, coordinates: int) -> int:
    """Return how many canaries a run bears: k T <= 0.1 sigma^2 d, from ``FEWEST`` to ``MOST`` or
    ``injected_clients.FLOATS``."""
    bearable = 0.1 * (plan.noise_multiplier or 0.0) ** 2 * coordinates / plan.rounds
    fitting = injected_clients.FLOATS // coordinates
    return int(min(max(FEWEST, bearable), MOST, max(FEWEST, fitting)))


class Flock:
    """The canaries of one run: they are drawn in the first round, when the shapes of what is sent
    are known.

    ``directions`` name -> ``[k, *shape]``, of joint length 1 each; ``total`` name -> ``[*shape]``,
    the releases in units of the public scale, added up; ``sent`` how many coordinates the first
    round sends.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.directions: Tree = {}
        self.total: Tree = {}
        self.sent = 0

    def release(
        self,
        generator: np.random.Generator,
        uploads: Uploads,
        present: Tensor,
        plan: Plan,
        scale: Mapping[str, Tensor],
        departures: frozenset[str],
    ) -> Released:
        """Release the clients' uploads and the canaries' together (injected_clients.py)."""
        units = injected_clients.units(uploads, scale)
        sent = sum(int((unit > 0).sum()) for unit in units.values())
        if not self.directions:
            self._hatch(units, plan, sent)
        rows = _of_length_one(
            {name: value * (units[name] > 0) for name, value in self.directions.items()}
        )
        messages = {
            name: value * units[name] * (plan.clip_norm or 0.0) for name, value in rows.items()
        }
        drawn = torch.ones(len(next(iter(messages.values()))), dtype=torch.bool)
        released = injected_clients.release(
            generator, uploads, present, plan, scale, departures, Uploads(messages), drawn
        )
        for name, unit in units.items():
            self.total[name] = self.total[name] + torch.where(
                unit > 0, released.sum[name] / unit, 0
            )
        return released

    def standings(self) -> np.ndarray:
        """Return sqrt(d) times the cosine of every direction with the sum of the releases, float64
        ``[k]``."""
        along = sum(
            (row.double() * self.total[name]).flatten(1).sum(1)
            for name, row in self.directions.items()
        )
        cosines = torch.as_tensor(along) / trees.norm(self.total).clamp(
            min=torch.finfo(torch.float64).tiny
        )
        result: np.ndarray = math.sqrt(trees.size(self.total)) * cosines.cpu().numpy()
        return result

    def _hatch(self, like: Tree, plan: Plan, sent: int) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        count, self.sent = number(plan, sent), sent
        rows = {
            name: torch.randn(count, *value.shape, generator=draw).to(value.device)
            for name, value in like.items()
        }
        self.directions = _of_length_one(rows)
        self.total = {
            name: torch.zeros_like(value, dtype=torch.float64) for name, value in like.items()
        }


def _of_length_one(rows: Tree) -> Tree:
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
