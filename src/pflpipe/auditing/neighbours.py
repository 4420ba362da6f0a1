"""Uploads of two neighbouring runs, which differ in one client: the canary is present or absent.

The canary's update and its private extras are the worst that the departures allow. The other
clients are harmless, and none of them keeps the coordinates that are reserved for the canary
(``exclusive``). Absent means zeroed out: the client takes part with an update of zeros and empty
extras. Under a secret draw an absent client is never drawn. As in training, the release gets only
the rows of clients that were drawn.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pflpipe import cells, trees
from pflpipe.facts.departures import OF_MESSAGES
from pflpipe.learning import networks
from pflpipe.learning.architectures import Shapes
from pflpipe.learning.networks import Network
from pflpipe.learning.solvers import Solver
from pflpipe.learning.task import Task
from pflpipe.methods import registry
from pflpipe.methods.base import Method, unscaled
from pflpipe.privacy import adaptive, clip_bits, cohorts, mechanism
from pflpipe.privacy.correlated import Correlated, Drawn
from pflpipe.privacy.departures import groups
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import release_rng
from pflpipe.simulation.clients import minimizer
from pflpipe.trees import Params, ServerState, Tensors, Tree, Update

Trust = Literal["central", "local"]

GROUPED = "audit"
"""Key of the groups. They are public, so any will do."""
CANARIES = ("dirac", "layer", "exclusive", "zero_mean", "aligned", "long", "huge")
"""Canaries: one coordinate; one layer; coordinates that no other client keeps; mean 0 in every
tensor; along the public model; every tensor of length C; a length of a million C. A method that
sends more than parameters has the canary ``parts`` too: these other parts alone."""


@dataclass(frozen=True)
class Audited:
    """The mechanism under audit and its claim.

    Attributes:
        plan: the plan that the release executes.
        claimed: the certified plan whose curve is claimed for the release, as seen by ``trust``.
        departures: steps in which the release departs from its plan.
        trust: what the attacker sees: ``central``, the noisy sums; ``local``, the canary's single
            messages.
        method: method with the public scale, parts and server step; by default one whose uploads
            are parameters without a scale.
        release, sample, rng: code of the mechanism, and of the generators of a round. Planted
            faults replace them.
        items: whether the method is one for people and items, so that the network looks them up.
    """

    plan: Plan
    claimed: Plan
    departures: frozenset[str] = frozenset()
    trust: Trust = "central"
    method: Method = field(default_factory=lambda: registry.info("dp_fedavg").factory())
    release: Callable[..., Released] = mechanism.release
    sample: Callable[..., np.ndarray] = cohorts.sample_clients
    rng: Callable[..., np.random.Generator] = release_rng
    items: bool = False

    @property
    def secret(self) -> bool:
        """Whether only the server knows the cohorts. An absent canary is then not drawn; otherwise
        it takes part and sends nothing."""
        return self.plan.sample_rate < 1 and "public_sampling" not in self.departures

    @property
    def release_departures(self) -> frozenset[str]:
        """The departures of the release. Local trust adds ``noise_per_participant``, because single
        messages exist only if each carries a share of the noise."""
        if self.trust == "central" or self.departures & OF_MESSAGES:
            return self.departures
        return self.departures | {"noise_per_participant"}

    @cached_property
    def canary(self) -> int:
        """Index of the canary: 0, or under a public schedule the client that takes part most
        often, with groups one of the first."""
        if self.plan.groups > 1:
            return int(cohorts.group_cohort(GROUPED, 0, self.plan).argmax())
        if "public_sampling" not in self.departures:
            return 0
        schedule = [cohorts.public_cohort(round, self.plan) for round in range(self.plan.rounds)]
        return int(np.sum(schedule, axis=0).argmax())

    @cached_property
    def task(self) -> Task:
        """The task of the method's public hooks: a network of 46 parameters in three layers, of 8
        parameters in one layer under a secret draw, or of 30 for five items.

        Amplification by sampling concerns one coordinate and takes many more runs to test, so the
        smaller network saves time.
        """
        if self.items:
            network = networks.build(cells.Model("embedding", (4,), items=5), (1,), 2)
        else:
            network = networks.build(cells.Model("mlp", () if self.secret else (4, 4)), (3,), 2)
        return Task(network, self.plan, Solver("sgd", 0.1), 1, self.departures, minimizer("vmap"))

    @property
    def network(self) -> Network:
        """The network whose parameters are sent."""
        return self.task.network

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """The clip bounds to test, first the plan's."""
        bound = self.plan.clip_norm
        assert bound is not None
        return (bound,) if self.departures else (bound, 1 / bound)

    @property
    def shapes(self) -> Shapes:
        """Name -> shape of everything sent: the network's parameters, then the method's parts."""
        return self.network.shapes | self.method.parts(self.task)

    @property
    def scaled(self) -> bool:
        """Whether uploads are clipped and noised in public units."""
        return self.method.scale is not unscaled

    @property
    def shares(self) -> tuple[float, float]:
        """Largest movements by one client of the updates' part and of the bits' part of a release,
        where the plan covers a length of 1; the squares sum to 1."""
        plan = self.plan
        if plan.adaptive is None:
            return 1.0, 0.0
        bit = plan.multiplier / (2 * plan.adaptive.bit_noise)
        return math.sqrt(1 - bit**2), bit

    def start(self, key: str) -> Tree:
        """Return public initial parameters ``[*shape]``, drawn from a key."""
        seed = int(release_rng(key, "model").integers(2**63))
        return self.network.init(torch.Generator().manual_seed(seed))

    def with_known_noise(self, scale: Tree) -> Tensor | None:
        """Return the mask of the coordinates of a view whose noise has the law of the plan, bool
        ``[d]``; None with departures, whose noise has no known law.

        Coordinates with scale 0 are not sent and carry no noise; the bit of adaptive clipping comes
        last.
        """
        if self.departures:
            return None
        masks = [
            (scale[name] > 0 if name in scale else torch.ones(shape)).reshape(-1)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(masks + [torch.ones(1)] * (self.plan.adaptive is not None)) > 0

    def movement(self, direction: Tree) -> Tensor:
        """Return the canary's movement of the attacker's view, ``[d]``, up to a factor: along its
        update, and by its bit, which says that it is clipped."""
        flat = trees.flat(direction).double()
        if self.plan.adaptive is None:
            return flat
        whole, bit = self.shares
        return torch.cat([whole * flat / torch.linalg.vector_norm(flat), -flat.new_tensor([bit])])

    def places(self, direction: Tree, length: int) -> list[Tensor]:
        """Return for each layer the mask of its parameters in a view of length d, bool ``[d]``."""
        layers = trees.layers(direction)
        sizes = {layer: sum(direction[n].numel() for n in names) for layer, names in layers.items()}
        owner = [layer for layer, size in sizes.items() for _ in range(size)]
        owner += [""] * (length - len(owner))  # the bit
        return [torch.tensor([name == layer for name in owner]) for layer in layers]

    def init_server(self, params: Params) -> ServerState:
        """Return the method's first public server state."""
        return self.method.init_server(params, self.task)

    def scale(self, params: Params, server: ServerState) -> Tree:
        """Return the method's public scale, each tensor in the shape of the tensor that it
        scales."""
        scale, shapes = self.method.scale(params, server, self.task), self.shapes
        return {name: value.expand(shapes[name]) for name, value in scale.items()}

    def aggregate(
        self, params: Params, released: Update, server: ServerState
    ) -> tuple[Params, ServerState]:
        """Return the method's next public model and server state."""
        return self.method.aggregate(params, released, server, self.task)

    def noises(self, key: str) -> Callable[[int], np.random.Generator | Drawn]:
        """Return what draws the noise of each round of runs with a key."""
        generator_of = functools.partial(self.rng, key, "noise")
        plan = self.plan
        return Correlated(generator_of, plan.noise_law).at if plan.band > 1 else generator_of

    def cohort(self, round: int, rng: np.random.Generator, repeats: int) -> Tensor:
        """Return a cohort for each of R repeats, bool ``[R, M]``."""
        if self.plan.groups > 1:
            cohort = cohorts.group_cohort(GROUPED, round, self.plan)
            return torch.from_numpy(cohort).expand(repeats, -1)
        if "public_sampling" in self.departures:
            return torch.from_numpy(cohorts.public_cohort(round, self.plan)).expand(repeats, -1)
        return torch.from_numpy(self.sample(rng, self.plan, (repeats,)))

    def seen(
        self,
        generator: np.random.Generator | Drawn,
        sent: Uploads,
        present: Tensor,
        scale: Tree,
        others: int = 0,
        bits: np.random.Generator | None = None,
    ) -> tuple[Tensor, Tree]:
        """Return the attacker's view of one release, ``[R, d]``, and the released sums.

        The view is in units of the largest change by one client: 1 is a whole clip bound. With
        adaptive clipping a client changes two parts, the updates and the bit; each is in units in
        which its noise should be that of the claim (``shares``).

        Args:
            generator: of the round's noise, from ``noises``.
            sent: uploads of all clients, ``[R, M, *shape]``; rows of clients not drawn are left
                out.
            present: the cohorts, bool ``[R, M]``; under ``local`` trust the same in all repeats.
            scale: the public scale, ``[R, *shape]`` or ``[*shape]``.
            others: under ``local`` trust, the number of other clients whose messages the attacker
                sees too; each makes d longer.
            bits: generator of the noise on the bits, for adaptive clipping.
        """
        sent, present, clients = drawn_rows(sent, present)
        plan, departures = adaptive.of_updates(self.plan, None), self.release_departures
        released = self.release(generator, sent, present, plan, scale, departures)
        sums, messages = dict(released.sum), dict(released.messages)
        whole, bit = self.shares
        sizes = dict.fromkeys(sums, (plan.clip_norm or 1.0) / whole)
        if self.plan.adaptive is not None:
            below, rule = clip_bits.bits(released), adaptive.of_bits(self.plan)
            second = self.release(bits, below, present, rule, {}, departures)
            sums, messages = sums | second.sum, messages | second.messages
            sizes |= dict.fromkeys(second.sum, adaptive.HALF / bit)
        views, divisor = [sums], plan.expected_cohort
        if self.trust == "local":
            rows = sorted(
                range(clients.shape[1]), key=lambda row: int(clients[0, row]) != self.canary
            )
            views = [
                {name: value[:, row] for name, value in messages.items()}
                for row in rows[: 1 + others]
            ]
            divisor = 1.0
        parts = []
        for view in views:
            for name, value in view.items():
                # Where the scale is 0 nothing should be sent, so values there stay visible.
                unit = scale[name].to(value) if name in scale else value.new_ones(())
                size = sizes[name] / divisor
                shown = torch.where(unit > 0, value / unit, value).reshape(len(value), -1)
                parts.append(shown / size)
        return torch.cat(parts, dim=1).double(), sums


def drawn_rows(sent: Uploads, present: Tensor) -> tuple[Uploads, Tensor, Tensor]:
    """Return the rows of the clients that were drawn, as training passes them on.

    All repeats have as many rows as the largest cohort. Further rows belong to clients that are not
    present. If all cohorts are empty, client 0 is kept, so that shapes stay defined.

    Args:
        sent: ``[R, M, ...]``.
        present: bool ``[R, M]``.

    Returns:
        The uploads ``[R, k, ...]``, their presence ``[R, k]`` and their clients ``[R, k]``.
    """
    count = max(1, int(present.sum(dim=1).max()))
    # A stable sort puts present clients first and keeps the order of the clients, in which training
    # has its rows.
    clients = (~present).byte().argsort(dim=1, stable=True)[:, :count]
    if count == present.shape[1]:
        return sent, present, torch.arange(count).expand(len(present), -1)

    def rows(value: Tensor) -> Tensor:
        index = clients.reshape(*clients.shape, *[1] * (value.ndim - 2))
        return value.gather(1, index.expand(*clients.shape, *value.shape[2:]))

    return sent.mapped(rows), rows(present), clients


def directions(audited: Audited, params: Tree) -> dict[str, Tree]:
    """Return the canaries' updates in public units, name -> tensors ``[*shape]``.

    Args:
        params: the public model ``[*shape]``.
    """
    plan = audited.plan
    ones = {name: torch.ones(shape) for name, shape in audited.shapes.items()}
    zeros = {name: torch.zeros_like(value) for name, value in ones.items()}
    alone, first = exclusive(ones), next(iter(ones))
    point = zeros[first].clone()
    point.view(-1)[0] = 1
    first_layer = next(iter(trees.by_layer(ones).values()))
    signs = {
        name: 1 - 2.0 * (torch.arange(value.numel()) % 2).view(value.shape)
        for name, value in ones.items()
    }
    shapes = {
        "dirac": zeros | {first: point},
        "layer": zeros | first_layer,
        "exclusive": {name: mask.float() for name, mask in alone.items()},
        "zero_mean": signs,
        "aligned": zeros | params,
        "long": {name: value / torch.linalg.vector_norm(value) for name, value in ones.items()},
        "huge": ones,
    }
    parts = {name: ones[name] for name in ones if name not in params}
    if parts:
        shapes |= {"parts": zeros | parts}
    lengths = {"long": math.sqrt(len(ones)), "huge": 1e6}
    # Adaptive: twice the bound, so that rounding cannot decide whether the canary is clipped, and
    # its bit is the same in every repeat.
    least = 1.0 if plan.adaptive is None else 2.0
    canaries = {}
    for name, tree in shapes.items():
        whole = torch.linalg.vector_norm(trees.flat(tree), ord=plan.norm)
        factor = max(least, lengths.get(name, 1.0)) * (plan.clip_norm or 1.0) / float(whole)
        canaries[name] = {key: value * factor for key, value in tree.items()}
    return canaries


def exclusive(like: Tree) -> Tree:
    """Return the mask of the coordinates reserved for the canary, the last quarter of each tensor
    ``[*shape]``."""
    sizes = {name: value.numel() for name, value in like.items()}
    last = {name: torch.arange(n) >= n - math.ceil(n / 4) for name, n in sizes.items()}
    return {name: last[name].view(value.shape) for name, value in like.items()}


def uploads(
    audited: Audited, direction: Tree, there: bool, scale: Tensors, repeats: int
) -> Uploads:
    """Return the uploads of all clients with or without the canary, ``[R, M, *shape]``.

    Args:
        direction: the canary's update in public units, ``[*shape]``.
        there: whether the canary is present.
        scale: the public scale, ``[R, *shape]`` or ``[*shape]``; empty without one.
        repeats: R.
    """
    clients, bound = audited.plan.clients, audited.plan.clip_norm or 1.0
    alone = exclusive(direction)
    signs = torch.where(torch.arange(clients) % 2 == 0, 0.5, -0.5) * bound
    signs = signs / math.sqrt(trees.size(direction))
    # With adaptive clipping an update of zeros still sends a bit, +1/2. A NaN counts as absent in
    # both parts.
    absent = 0.0 if audited.plan.adaptive is None else math.nan
    update = {}
    for name, value in direction.items():
        others = signs.view(-1, *[1] * value.ndim).expand(clients, *value.shape)
        rows = torch.where(alone[name], 0, others).clone()
        rows[audited.canary] = value if there else absent
        rows = rows.expand(repeats, *rows.shape)
        if name in scale:
            unit = scale[name].to(rows)
            rows = rows * (unit.unsqueeze(1) if unit.ndim > value.ndim else unit)
        update[name] = rows
    extras = _extras(audited, direction, there)
    repeated = {name: value.expand(repeats, *value.shape) for name, value in extras.items()}
    return Uploads(update, repeated)


def _extras(audited: Audited, direction: Tree, there: bool) -> Tree:
    """Return the private extras that the departures read, ``[M, ...]``: the worst ones for the
    canary, harmless ones for the others."""
    departures, plan, canary = audited.departures, audited.plan, audited.canary
    bound, clients = plan.clip_norm or 1.0, plan.clients
    extras: Tree = {}

    def add(name: str, harmless: Tensor, worst: Tensor, nothing: Tensor) -> None:
        rows = harmless.expand(clients, *harmless.shape).clone()
        rows[canary] = worst if there else nothing
        extras[name] = rows

    one = torch.ones(())
    if "data_size_weights" in departures:  # public, so the same with and without the canary
        extras["size"] = torch.from_numpy(sizes(clients, canary)).float()
    if "raw_similarity_weights" in departures:
        add("similarity", 0.1 * one, one, 0 * one)
    if "client_clip_weights" in departures:
        # The canary spends its bound where its update is.
        parts = trees.by_layer(direction).values()
        energy = torch.stack([trees.norm(layer).square() for layer in parts])
        equal = torch.full_like(energy, 1 / len(energy))
        add("clip_weights", equal, energy / energy.sum(), equal)
    if "data_dependent_clip" in departures:
        whole = torch.full((len(groups(direction, departures)),), bound)
        add("bounds", whole, whole * math.inf, whole)
    for name, value in direction.items():
        nothing = torch.zeros_like(value)
        if departures & {"noise_on_support", "divide_by_counts"}:
            add(f"mask.{name}", ~exclusive(direction)[name], value != 0, nothing.bool())
        if departures & {"private_clamp", "data_dependent_noise"}:
            add(f"radius.{name}", torch.full_like(value, bound / 10), value.abs() / 2, nothing)
        if "private_clamp" in departures:
            add(f"centre.{name}", nothing, value, nothing)
    return extras


def sizes(clients: int, canary: int = 0) -> np.ndarray:
    """Return numbers of examples ``[M]``; the canary has as many as all others together."""
    counts = np.full(clients, 198)
    counts[canary] *= clients - 1
    return counts
