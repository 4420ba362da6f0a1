"""FedGLP-ADP (Xiao, Jiang, Li, "Federated Learning with Gradient-Based Layer-Wise Personalization
and Adaptive Differential Privacy", Computers, Materials & Continua 87(3), 2026), section 4.

GLP, gradient-based layer-wise personalization: in each layer the shared coordinates with the
largest updates become personal, a few more in every round, until a fraction beta of the layer stays
on the client. ACNDP, adaptive clipping and noising: layer l is clipped to C sqrt(tw_l), where the
tw_l sum to 1. The log-odds of tw_l follow the sign of the change of the layer's update norm.

    minimises: ``f(w) + lambda_1 / 2 |v - v^0|_2`` over the personal coordinates v, ``f(w) +
        lambda_2 / 2 | |u - u^0|_2 - C |`` over the shared u, from the client's last model in v and
        ``w^t`` in u
    sends: the change of u, layer l clipped to ``C sqrt(tw_l)``
    keeps: its last trained model and the mask of v, which grows from round to round
    tests: the model after one more such local pass

    beta: initial threshold beta_0; the one used is beta_0 exp(a (sigma - sigma_0)) for the plan's
        sigma, at most 1 (Eq. 11) [paper]
    a: of Eq. 11 [paper]
    sigma_0: of Eq. 11, the public multiplier at epsilon 6 with the study's T, q, delta and
        accountant: 1.705 at T = 20, q = 1, delta = 0.1, 2.412 at T = 40; by the papers' Renyi
        accounting 1.964 and 2.777 [paper, computed]
    dynamic: if false, beta is used unchanged (the paper's Table 3) [paper]
    gamma: step of the log-odds; 0 keeps tw_l at d_l / d, the layers' shares of the parameters
        (Table 4) [ours: the paper prints none]
    lambda_1: pull of the personal coordinates (Eq. 9) [FedDPA's]
    lambda_2: pull of the shared coordinates (Eq. 10) [FedDPA's]
    glp: layer-wise personalization, for the paper's ablation (Table 5) [paper]
    by_layer: coordinates are compared with those of their layer; if false, with all of the network:
        section 4.1 says "the top p% largest values", and not of what [ours]
    acndp: adaptive clipping and noising, for the same ablation [paper]

Reading of the paper, whose Algorithms 1 and 2 are images: every minibatch is used for both losses
in turn, as in FedDPA. A layer is a module, weight and bias together. After t of T rounds round(t
beta d_l / T) of its d_l coordinates are personal, where t counts the rounds in which the client has
trained; without ``by_layer`` d_l is the size of the network. tw is clamped to [1e-4, 1 - 1e-4]
before the log-odds are taken.

The paper's version chooses new personal coordinates from the client's noised message, sends the
mask, noises shared coordinates only, and divides by the number of clients that share a coordinate.
Every client has its own tw, from norms of its raw updates. These are three departures. Without
ACNDP ("DP-FedAvg+GLP" in Table 5) clip and noise are those of DP-FedAvg, Eq. 6, with one bound C
over all layers, and the last of the three departures does not apply.

In the certified version masks stay on the device and only zero the signal; all coordinates carry
noise and the sum is divided by q M. The mask is chosen after perturbation, as in the paper (section
4.1): the device clips a copy of its update, adds device noise of C_l sigma sqrt(L / (q M)), and
takes the largest entries. The copy stays on the device. Its noise is not the noise of the release,
and the claim does not depend on it. tw is one public vector, moved by the layer norms of the
releases. Each client clips its layers to C sqrt(tw_l); with the public scale sqrt(L tw_l) the joint
clip then shortens by rounding only, and the noise is that of Eq. 15. Without ACNDP clip and noise
are those of DP-FedAvg.
"""

import math

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.learning import counter_rng
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import About, Fraction, Method, NonNegative, Upload, tested
from pflpipe.methods.feddpa import split_objectives
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(
    title="FedGLP-ADP",
    paper="Xiao et al., CMC 2026",
    paper_departures=("noise_on_support", "divide_by_counts", "client_clip_weights"),
    only_with={"acndp": ("client_clip_weights",)},
    cost=2.1,
    public_scale=True,
)


def personal_fraction(beta: float, a: float, sigma: float, sigma_0: float) -> float:
    """Return beta_0 exp(a (sigma - sigma_0)), at most 1 (Eq. 11)."""
    return min(1.0, beta * math.exp(min(a * (sigma - sigma_0), 700.0)))


def initial_weights(params: Params) -> Tree:
    """Return ``clip_weights [L]``, the layers' shares of the parameters, and ``norms [L]`` of -1,
    which means that no norm has been seen yet."""
    sizes = [trees.size(layer) for layer in trees.by_layer(params).values()]
    weights = next(iter(params.values())).new_tensor(sizes) / sum(sizes)
    return {"clip_weights": weights, "norms": torch.full_like(weights, -1)}


def next_weights(clip: Tree, norms: Tensor, gamma: float) -> Tree:
    """Return the clip weights that follow from the layers' new norms ``[L]``, and the norms
    (Algorithm 1).

    A layer whose norm rose gains log-odds ``gamma``; one whose norm fell loses as much. The weights
    are then divided by their sum. The first norms, and a NaN, change nothing.
    """
    # Not only a shortcut: the clamp below would move weights under 1e-4 even at gamma = 0.
    if gamma == 0:
        return {**clip, "norms": norms}
    # A comparison with NaN is false, so a norm that is not a number counts as not seen.
    seen = clip["norms"] >= 0
    rose, fell = seen & (norms > clip["norms"]), seen & (norms < clip["norms"])
    # A step of the log-odds, said in the odds: gain / rest. torch.sigmoid rounds the last numbers
    # of a tensor in another way, and a client's weights would depend on its place in a group.
    step, weights = math.exp(-gamma), clip["clip_weights"].clamp(1e-4, 1 - 1e-4)
    gain = torch.where(fell, step * weights, weights)
    rest = torch.where(rose, step * (1 - weights), 1 - weights)
    raised = gain / (gain + rest)
    return {
        "clip_weights": torch.where(seen.any(), raised / raised.sum(), clip["clip_weights"]),
        "norms": norms,
    }


def layer_norms(update: Tree) -> Tensor:
    """Return the L2 norm of each layer, ``[L]``."""
    return torch.stack([trees.norm(layer) for layer in trees.by_layer(update).values()])


def by_tensor(values: Tensor, like: Tree) -> Tree:
    """Return, for each tensor of ``like``, its layer's entry of ``values [L]``."""
    layers = trees.layers(like).values()
    return {name: values[place] for place, names in enumerate(layers) for name in names}


def units(like: Tree, server: ServerState) -> Tree:
    """Return the scale sqrt(L tw_l) for each tensor of layer l; empty without clip weights.

    Noise of standard deviation C sigma times this scale is that of the bound sqrt(L) C_l (Eq. 15).
    """
    # With |u_l| <= C sqrt(tw_l) the scaled update has norm <= C: the L squares sum to at most C^2.
    if not server:
        return {}
    return by_tensor((len(server["clip_weights"]) * server["clip_weights"]).sqrt(), like)


def grow(mask: Tree, update: Tree, progress: Tensor, beta: float, by_layer: bool) -> Tree:
    """Return masks with ``round(progress beta d)`` true coordinates in each layer of d coordinates,
    or in the whole network. No coordinate that was true becomes false.

    Args:
        mask: bool, the personal coordinates so far.
        update: the noised update. Coordinates with the largest entries are added first; of equal
            entries, the first in order.
        progress: float64 in [0, 1], the fraction of the run's rounds in which the client trained.
        beta: fraction that is personal at the end.
        by_layer: whether this is said of every layer.
    """
    # The number of new coordinates is private (it follows from how often the client was drawn) and
    # differs under vmap, so coordinates are taken by rank: topk would need one Python number.
    grown: Tree = {}
    for names in trees.layers(mask).values() if by_layer else [tuple(mask)]:
        of_group = {name: mask[name] for name in names}
        taken = trees.flat(of_group)
        # Personal coordinates rank first, as infinite; nan_to_num makes all other entries finite.
        size = trees.flat({name: update[name] for name in names}).abs().nan_to_num(0)
        order = torch.where(taken, math.inf, size).argsort(descending=True, stable=True)
        places = torch.arange(len(taken), device=order.device)
        rank = torch.zeros_like(order).scatter(0, order, places)
        kept = taken | (rank < (progress * (beta * len(taken))).round())
        grown |= trees.parted(kept, trees.shapes(of_group))
    return grown


def fedglp_adp(
    *,
    beta: Fraction = 0.3,
    a: NonNegative = 0.2,
    sigma_0: NonNegative = 1.705,
    dynamic: bool = True,
    gamma: NonNegative = 0.4,
    lambda_1: NonNegative = 0.05,
    lambda_2: NonNegative = 0.1,
    glp: bool = True,
    by_layer: bool = True,
    acndp: bool = True,
) -> Method:
    """Return the method."""

    def published(task: Task) -> bool:
        return "noise_on_support" in task.departures

    def next_masks(mask: Tree, update: Tree, count: Tensor, task: Task) -> Tree:
        sigma, fraction = task.plan.noise_multiplier or 0.0, beta if glp else 0.0
        if dynamic and glp:
            fraction = personal_fraction(beta, a, sigma, sigma_0)
        grown = grow(mask, update, count / task.plan.rounds, fraction, by_layer)
        return trees.prefixed("mask.", grown)

    def init_client(params: Params, task: Task) -> ClientState:
        mask = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in params.items()}
        # float64 in every run, because ``grow`` rounds a product with the count.
        count = {"count": next(iter(params.values())).new_zeros((), dtype=torch.float64)}
        clip = initial_weights(params) if acndp and published(task) else {}
        kept = trees.prefixed("local.", params) | trees.prefixed("mask.", mask)
        return ClientState(kept | count | clip)

    def init_server(params: Params, task: Task) -> ServerState:
        return ServerState(initial_weights(params) if acndp and not published(task) else {})

    def train(
        params: Params, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Tree, Params, Params, Tensor]:
        """Return the mask of personal coordinates, where the client starts and ends, and its mean
        training loss."""
        personal = trees.within("mask.", state)
        start = trees.where(personal, trees.within("local.", state), params)  # Eq. 7

        objectives = split_objectives(
            personal, start, task.clip_norm, lambda_1, lambda_2, task.loss
        )  # Eqs. 9-10
        return personal, start, *task.minimize(start, batches.train, *objectives[0 if glp else 1 :])

    def clipped(update: Update, server: ServerState, task: Task) -> Update:
        """Return the update with each layer clipped to C sqrt(tw_l) (Eqs. 13-14), or without ACNDP
        the whole update clipped to C (Eq. 6)."""
        # A norm of 0 gives an infinite factor, which the clamp turns into 1.
        if acndp:
            bounds = task.clip_norm * server["clip_weights"].sqrt()
            factors = by_tensor((bounds / layer_norms(update)).clamp(max=1), update)
        else:
            factors = dict.fromkeys(update, (task.clip_norm / trees.norm(update)).clamp(max=1))
        return trees.mul(update, factors)

    def perturbed(message: Update, server: ServerState, batches: Batches, task: Task) -> Tree:
        """Return a copy of a clipped update with device noise (Eqs. 15-16), which is not the noise
        of the release."""
        sigma, unit = task.plan.noise_multiplier, units(message, server)
        if not sigma:
            return message
        share = task.clip_norm * sigma / math.sqrt(task.plan.expected_cohort)
        return {
            name: value
            + share
            * unit.get(name, 1.0)
            * counter_rng.normal(batches.key, counter_rng.OWN + place, value)
            for place, (name, value) in enumerate(message.items())
        }

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        personal, start, end, loss = train(params, state, batches, task)
        # Only shared coordinates are sent; the others are zero before clip and noise.
        shared = {name: ~mask for name, mask in personal.items()}
        change = trees.sub(end, start).items()
        update = Update({name: torch.where(shared[name], value, 0.0) for name, value in change})
        count = state["count"] + (batches.n > 0)
        state = ClientState(state | trees.prefixed("local.", end) | {"count": count})
        if not published(task):
            message = clipped(update, server, task)
            masks = next_masks(personal, perturbed(message, server, batches, task), count, task)
            return Upload(message if acndp else update, {}, loss), ClientState(state | masks)
        # Published: the next mask is chosen from the noised message, in ``absorb``.
        extras = trees.prefixed("mask.", shared)
        if not acndp:
            return Upload(update, extras, loss), state
        extras["clip_weights"] = state["clip_weights"]
        old = {name: state[name] for name in ("clip_weights", "norms")}
        new = next_weights(old, layer_norms(update), gamma)
        # A client without examples has no norms of its own and keeps its weights.
        weights = {name: torch.where(batches.n > 0, new[name], old[name]) for name in old}
        return Upload(update, extras, loss), ClientState(state | weights)

    def scale(params: Params, server: ServerState, task: Task) -> Tree:
        return units(params, server)

    def absorb(state: ClientState, message: Update, task: Task) -> ClientState:
        # Published version only: the certified mask was chosen on the device, in local_update.
        masks = next_masks(trees.within("mask.", state), message, state["count"], task)
        return ClientState(state | masks)

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        # Norms of the release, not of single updates: the server sees nothing else.
        if server:
            server = ServerState(next_weights(server, layer_norms(released), gamma))
        return trees.add(params, released), server

    return Method(
        local_update,
        aggregate,
        tested(train),
        init_server,
        init_client,
        scale,
        absorb=absorb,
        draws=True,
    )
