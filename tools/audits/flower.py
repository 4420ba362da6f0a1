"""Flower (flwr, PyPI): its wrappers for central differential privacy and its mod for local.

What Flower claims, in the pages of its documentation (framework/docs/source):

- explanation-differential-privacy.rst, "Central Differential Privacy": user-level privacy by
  Gaussian noise of standard deviation noise_scale S / (number of sampled clients) on the average of
  updates of length at most S; the sensitivity is that of including or removing a record.
- The same page, "Local Differential Privacy": (epsilon, delta) by noise of standard deviation
  Delta sqrt(2 ln(1.25 / delta)) / epsilon, where Delta is the sensitivity of the local model.
- how-to-use-differential-privacy.rst wraps FedAvg, says nothing of its weights, and calls all of it
  a preview.
- Since 1.42 a wrapper takes an accountant, which counts epsilon with dp-accounting, for neighbours
  that add or remove a client. With it, unequal weights are refused.

Every call runs Flower's own configure_train, its mods if clients clip, and aggregate_train, with
the messages as its clients would reply. File names below are those of the package flwr.
"""

from __future__ import annotations

import logging
import math
import types
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.differential_privacy import compute_adaptive_noise_params
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from scipy.optimize import brentq
from scipy.stats import norm

from audits import Entry, finite
from pflpipe import Claim

logging.getLogger("flwr").setLevel(logging.CRITICAL)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # of the server's messages

PROGRAM, VERSION = "Flower", version("flwr")
MANY, FEW, MULTIPLIER, CLIP, DELTA, COUNT_NOISE = 10, 2, 1.0, 1.0, 1e-5, 1.0
QUANTILE, LEARNING_RATE = 0.5, 0.2
"""Flower's defaults for the bound."""
SECONDS = 0.1
ORDERS = (4.0, 5.0, 6.0, 7.0, 8.0)
"""Of the accountant: those around the best one, because it is made for every call."""
NEIGHBOURS = PrivacyConfig(
    DELTA, FEW, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
)
Strategy = Callable[[], Any]
Mod = Callable[[Message, Any, Callable[..., Message]], Message]


def record(update: np.ndarray) -> ArrayRecord:
    """Return an update as a model of one array."""
    return ArrayRecord({"layer": Array(update)})


def flat(arrays: ArrayRecord) -> np.ndarray:
    """Return the numbers of a model."""
    return arrays["layer"].numpy()


def replies(
    asked: Iterable[Message], updates: np.ndarray, rows: np.ndarray, mod: Mod | None
) -> list[Message]:
    """Return the clients' replies, through the mod on their side if there is one.

    An update of length 0 divides by 0 (supercore/differential_privacy.py:56), so 1e-12 is sent
    for it.
    """
    sent = []
    for message, update, count in zip(asked, updates, rows, strict=True):
        update = update if update.any() else np.full_like(update, 1e-12)

        def trained(
            message: Message, _: Any = None, update: Any = update, count: Any = count
        ) -> Message:
            metrics = MetricRecord({"num-examples": float(count)})
            content = RecordDict({"arrays": record(update), "metrics": metrics})
            return Message(content, reply_to=message)

        sent.append(mod(message, None, trained) if mod else trained(message))
    return sent


class Rounds:
    """Rounds of a wrapped FedAvg from the model 0. ``step`` releases the average of a round and,
    if the clip bound adapts, the logarithm of the next bound, which follows from the noisy count.

    Attributes:
        wrapped: makes the strategy of a run.
        mod: on the clients' side, if they clip.
        equal: whether all clients report equally many rows, whatever they have.
        finite: whether NaN and infinity are replaced by 0 before Flower sees them.
    """

    def __init__(
        self, wrapped: Strategy, mod: Mod | None = None, equal: bool = False, finite: bool = True
    ) -> None:
        self.wrapped, self.mod, self.equal, self.finite = wrapped, mod, equal, finite

    def start(self, clients: int, dimension: int) -> None:
        """Begin a run."""
        self.strategy, self.round = self.wrapped(), 0

    def step(self, messages: np.ndarray, weights: np.ndarray, _: np.random.Generator) -> np.ndarray:
        """Return what a round releases."""
        self.round += 1
        strategy, count = self.strategy, len(messages)
        model = record(np.zeros(messages.shape[1], np.float32))
        grid: Any = types.SimpleNamespace(get_node_ids=lambda: list(range(1, count + 1)))
        asked = list(strategy.configure_train(self.round, model, ConfigRecord(), grid))
        rows = np.ones(count) if self.equal else weights
        updates = finite(messages) if self.finite else messages
        arrays, _ = strategy.aggregate_train(self.round, replies(asked, updates, rows, self.mod))
        if not hasattr(strategy, "clip_norm_lr"):
            return flat(arrays)
        return np.append(flat(arrays), math.log(strategy.clipping_norm))


def local(sensitivity: float, epsilon: float) -> Callable[..., np.ndarray]:
    """Return the release of replies through LocalDpMod."""
    mod = LocalDpMod(CLIP, sensitivity, epsilon, DELTA)

    def local_dp_mod(messages: np.ndarray, weights: np.ndarray, _: Any) -> np.ndarray:
        model = RecordDict({"arrays": record(np.zeros(messages.shape[1], np.float32))})
        asked = [Message(model, place + 1, "train") for place in range(len(messages))]
        sent = replies(asked, finite(messages), weights, mod)
        return np.stack([flat(one.content["arrays"]) for one in sent])

    return local_dp_mod


def locally(epsilon: float) -> Claim:
    """Return the claim of LocalDpMod, with the noise of its formula for a sensitivity of 2 C."""
    return Claim(
        clients=2,
        noise_multiplier=2 * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon,
        epsilon=epsilon,
        delta=DELTA,
        clip_norm=CLIP,
        adjacency="replace_one",
        trust="local",
        dimension=6,
    )


def fedavg() -> FedAvg:
    """Return FedAvg of all clients."""
    return FedAvg(min_train_nodes=1, min_available_nodes=1)


def fixed(kind: type, clients: int = FEW, accounted: bool = False) -> Strategy:
    """Return what makes a wrapper with a fixed clip bound, with Flower's accountant or without."""

    def wrapped() -> Any:
        accountant = RdpAccountant(NEIGHBOURS, ORDERS) if accounted else None
        return kind(fedavg(), MULTIPLIER, CLIP, clients, accountant=accountant)

    return wrapped


def adaptive(kind: type) -> Strategy:
    """Return what makes a wrapper with an adaptive clip bound."""
    options = {"initial_clipping_norm": CLIP, "clipped_count_stddev": COUNT_NOISE}
    return lambda: kind(fedavg(), MULTIPLIER, FEW, **options)


def epsilon_of_the_accountant() -> float:
    """Return the epsilon that Flower's accountant counts for one round."""
    accountant = RdpAccountant(NEIGHBOURS, ORDERS)
    accountant.compose(GaussianPrivacyEvent(MULTIPLIER, FEW, FEW))
    return accountant.get_epsilon(DELTA)


def epsilon_by_hand(apart: float) -> float:
    """Return the epsilon of a round of two clients with adaptive clipping at DELTA, by integration.

    In one world both bits are 1, in the other one of them; an update moves by ``apart`` clip
    bounds. The order of the worlds is the one with the larger epsilon. Given the noisy count, the
    noise on updates is Gaussian and has the size of the next bound. So delta is the mean, over the
    count, of the delta of that noise, at epsilon minus the logarithm of the count's likelihood
    ratio.
    """
    _, multiplier = compute_adaptive_noise_params(MULTIPLIER, FEW, COUNT_NOISE)
    steps = np.linspace(-12, 12, 100_001)
    count = FEW + COUNT_NOISE * steps
    moved = apart / (multiplier * np.exp(-LEARNING_RATE * (count / FEW - QUANTILE)))
    ratio = ((count - FEW + 1) ** 2 - (count - FEW) ** 2) / (2 * COUNT_NOISE**2)

    def excess(epsilon: float) -> float:
        left = epsilon - ratio
        there = norm.cdf(moved / 2 - left / moved)
        absent = np.exp(left + norm.logcdf(-moved / 2 - left / moved))
        return float(np.trapezoid((there - absent) * norm.pdf(steps), steps)) - DELTA

    return float(brentq(excess, 0, 50))


def central(clients: int = FEW, **fields: Any) -> Claim:
    """Return the claim of a noise multiplier. Short messages, because a call takes 10 ms."""
    claim = {"noise_multiplier": MULTIPLIER, "delta": DELTA, "clip_norm": CLIP, "dimension": 6}
    return Claim(clients=clients, **claim, **fields)


FIXED = "serverapp/strategy/dp_fixed_clipping.py"
ADAPTIVE = "serverapp/strategy/dp_adaptive_clipping.py"
SAID = (
    "explanation-differential-privacy.rst: user-level privacy by the Gaussian mechanism, with "
    "standard deviation noise_scale S / (number of sampled clients)."
)
WEIGHTS = (
    "FedAvg weights clients by num-examples, which the page does not mention; the wrappers without "
    "an accountant accept any weights."
)
EQUAL = "Clients report equally many examples, whatever they have."
ADAPTS = (
    "dp_adaptive_clipping.py:17 follows Andrew et al. (2021), and compute_adaptive_noise_params "
    "(supercore/differential_privacy.py:129-169) spends a part of the multiplier on the count."
)
COUNTED = (
    "The noise of the updates is increased by Theorem 1 of that paper, which takes the count's "
    "sensitivity as 1/2, for bits that are shifted to -1/2 and 1/2. The bits here are 0 and 1: a "
    "client that sends nothing changes the count by 1."
)
AFTERWARDS = (
    "Updates are clipped to the present bound, but the noise has the size of the next one, which "
    "is computed before it is added (lines 216 and 223; on the clients' side 319 and 322). So the "
    "size of the noise follows the clients' bits. If all updates are clipped, it is exp(-.1) = .90 "
    "of the size for the present bound, with Flower's default quantile and learning rate."
)
REPLACED = (
    "By hand, for an update that is clipped and the opposite one of length C, which is not: "
    f"epsilon is {epsilon_by_hand(2):.3g} and not 10."
)
LOCALLY = (
    "explanation-differential-privacy.rst, Local Differential Privacy: noise of standard deviation "
    "Delta sqrt(2 ln(1.25 / delta)) / epsilon achieves (epsilon, delta), where Delta is the "
    "sensitivity of the local model."
)

AUDITS = [
    Entry(
        title="ServerSideFixedClipping(FedAvg), clients report their numbers of rows",
        release=Rounds(fixed(DifferentialPrivacyServerSideFixedClipping, MANY)),
        claim=central(MANY),
        source=f"{FIXED}:216-245, 348-402",
        said=SAID,
        remark=f"{WEIGHTS} By hand: noise z C / 10, movement .91 C.",
        farther=9.1,
        seconds=SECONDS,
    ),
    Entry(
        title="ServerSideFixedClipping(FedAvg), equal numbers of rows, finite updates",
        release=Rounds(fixed(DifferentialPrivacyServerSideFixedClipping), equal=True),
        claim=central(),
        source=f"{FIXED}:216-245, 348-402",
        said=SAID,
        remark=EQUAL,
        seconds=SECONDS,
    ),
    Entry(
        title="ServerSideFixedClipping(FedAvg), equal numbers of rows, any updates",
        release=Rounds(fixed(DifferentialPrivacyServerSideFixedClipping), equal=True, finite=False),
        claim=central(),
        source="supercore/differential_privacy.py:50-58",
        said=SAID,
        remark=(
            f"{EQUAL} The clip factor of an update with NaN is min(1, NaN), which is 1 in Python. "
            "An update of exact zeros raises ZeroDivisionError (line 56), so the adapter sends "
            "1e-12 for it."
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="ServerSideFixedClipping(FedAvg) with RdpAccountant, finite updates",
        release=Rounds(
            fixed(DifferentialPrivacyServerSideFixedClipping, accounted=True), equal=True
        ),
        claim=central(epsilon=epsilon_of_the_accountant()),
        source=f"{FIXED}:176-206, 348-402",
        said=(
            "The accountant (supercore/privacy_accounting/rdp_accountant.py) counts this epsilon "
            "for one round, for neighbours that add or remove a client."
        ),
        remark=(
            "With an accountant the wrapper refuses unequal weights and any other number of "
            "replies than it was told, so the client sends nothing instead of being left out."
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="ClientSideFixedClipping(FedAvg) with fixedclipping_mod, equal numbers of rows",
        release=Rounds(
            fixed(DifferentialPrivacyClientSideFixedClipping), fixedclipping_mod, equal=True
        ),
        claim=central(),
        source=f"{FIXED}:468-494, clientapp/mod/centraldp_mods.py:44-119",
        said=SAID,
        remark=f"{EQUAL} Updates are finite. Clients are trusted to clip.",
        seconds=SECONDS,
    ),
    Entry(
        title="ServerSideAdaptiveClipping(FedAvg), equal numbers of rows, a client sends nothing",
        release=Rounds(adaptive(DifferentialPrivacyServerSideAdaptiveClipping), equal=True),
        claim=central(),
        source=f"{ADAPTIVE}:91-111, 175-225",
        said=ADAPTS,
        remark=(
            f"{EQUAL} Updates are finite; the count's noise is {COUNT_NOISE:g}. {AFTERWARDS} "
            f"{COUNTED} By hand, for an update that is clipped: epsilon is "
            f"{epsilon_by_hand(1):.3g} and not 4.38."
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="ServerSideAdaptiveClipping(FedAvg), equal numbers of rows, a client is replaced",
        release=Rounds(adaptive(DifferentialPrivacyServerSideAdaptiveClipping), equal=True),
        claim=central(adjacency="replace_one"),
        source=f"{ADAPTIVE}:91-111, 175-225",
        said=ADAPTS,
        remark=(
            f"{EQUAL} Updates are finite; the count's noise is {COUNT_NOISE:g}. Two updates are up "
            "to 2 C apart and two bits 1, so that the theorem's sensitivities are in proportion. "
            f"{AFTERWARDS} {REPLACED}"
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="ClientSideAdaptiveClipping(FedAvg) with adaptiveclipping_mod, a client is replaced",
        release=Rounds(
            adaptive(DifferentialPrivacyClientSideAdaptiveClipping),
            adaptiveclipping_mod,
            equal=True,
        ),
        claim=central(adjacency="replace_one"),
        source=f"{ADAPTIVE}:297-344, clientapp/mod/centraldp_mods.py:122-211",
        said=ADAPTS,
        remark=(
            f"{EQUAL} Updates are finite. Clients are trusted to clip and to report the bit. "
            f"{AFTERWARDS} {REPLACED}"
        ),
        seconds=SECONDS,
    ),
    Entry(
        title="LocalDpMod, sensitivity 2 C, epsilon 1",
        release=local(2 * CLIP, 1.0),
        claim=locally(1.0),
        source="clientapp/mod/localdp_mod.py:128-149",
        said=LOCALLY,
        remark="Two updates of length C are up to 2 C apart, so 2 C is their sensitivity.",
        seconds=SECONDS,
    ),
    Entry(
        title="LocalDpMod, sensitivity 2 C, epsilon 20",
        release=local(2 * CLIP, 20.0),
        claim=locally(20.0),
        source="clientapp/mod/localdp_mod.py:128-149",
        said=LOCALLY,
        remark=(
            "The formula's proof (Dwork and Roth, Theorem A.1) needs epsilon below 1. Neither the "
            "page nor the constructor says so."
        ),
        seconds=SECONDS,
    ),
]
