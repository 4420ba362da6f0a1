"""Secure aggregation of an app by Flower's own SecAgg+, for plans with ``bits`` (secure_sum.py).

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, as Flower 1.42 has it: a workflow of the server and a mod of
the client. It carries fractions that it weights, clips and rounds by itself. With weight 1, clip
range (m - 1) / 2 and m - 1 levels, all three leave the whole numbers 0 .. m - 1, less (m - 1) / 2,
exactly as they are, up to m = 2^``flower.MOST_BITS``: its rounding returns int32.

Every node has one client and is a neighbour of all others. Shamir's threshold is the number of
clients that must stay, so that no sum of fewer can be unmasked. A node refuses other settings.

What the protocol hides rests on Flower: its server must follow the protocol, and its masks come
from NumPy's Mersenne twister with a seed of at most 32 bits (``pseudo_rand_gen``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow, constant
from flwr.serverapp import Grid

from pflpipe.errors import PrivacyError
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import remote

WEIGHT = 1


def mod(device: Callable[[Context], remote.Device]) -> Callable[..., Message]:
    """Return the mod of a node: what it trains is sent masked, if its plan has bits."""

    def masked(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        plan = device(context).simulation.plan
        if not plan.bits:
            return call_next(message, context)
        _check(message.content.config_records.get(RECORD_KEY_CONFIGS, {}), plan)

        def shared(message: Message, context: Context) -> Message:
            """Return the one client's share in the form that Flower's mod masks."""
            (record,) = call_next(message, context).content.array_records.values()
            (whole,) = record.to_numpy_ndarrays()
            numbers = ndarrays_to_parameters([whole - _middle(plan)])
            result = FitRes(Status(Code.OK, ""), numbers, WEIGHT, {})
            return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)

        return secaggplus_mod(message, context, shared)

    return masked


class Summed:
    """A grid whose server gets of all training messages their sum modulo m alone, if its plan has
    bits."""

    def __init__(self, grid: Grid, server: remote.Server) -> None:
        self.grid, self.server = grid, server

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies; of training under secure aggregation none, and show the server their
        sum (``remote.Server.see``)."""
        messages = list(messages)
        kinds = {message.metadata.message_type for message in messages}
        if not (self.server.simulation.plan.bits and "train" in kinds):
            replies: Iterable[Message] = self.grid.send_and_receive(messages, timeout=timeout)
            return replies
        contents = {message.metadata.dst_node_id: message.content for message in messages}
        _Round(self.server, contents, timeout).run(self.grid)
        return []


class _Round(SecAggPlusWorkflow):  # type: ignore[misc]
    """One round of the protocol; it is the strategy, too, that the workflow asks."""

    def __init__(
        self, server: remote.Server, contents: dict[int, RecordDict], timeout: float | None
    ) -> None:
        plan = server.simulation.plan
        super().__init__(
            num_shares=1.0,  # of all
            reconstruction_threshold=plan.staying,
            max_weight=float(WEIGHT),
            clipping_range=_middle(plan),
            quantization_range=2**plan.bits - 1,
            modulus_range=2**plan.bits,
            timeout=timeout,
        )
        self.server, self.contents = server, contents

    def run(self, grid: Grid) -> None:
        """Run all stages; the server sees nothing if too few nodes stay."""
        round = ConfigRecord({constant.Key.CURRENT_ROUND: self.server.public.round + 1})
        records = {constant.MAIN_CONFIGS_RECORD: round, constant.MAIN_PARAMS_RECORD: ArrayRecord()}
        self(grid, LegacyContext(Context(0, 0, {}, RecordDict(records), {}), strategy=self))

    def configure_fit(self, *_: object) -> list[tuple[SimpleNamespace, FitIns]]:
        """Return the nodes that are asked."""
        nothing = FitIns(Parameters([], ""), {})
        return [(SimpleNamespace(node_id=node), nothing) for node in self.contents]

    def collect_masked_vectors_stage(self, grid: Grid, context: Any, state: Any) -> bool:
        """Send what the server asks, in place of a list of arrays; who has not shared keys is no
        neighbour, which Flower 1.42 forgets."""
        state.nid_to_fitins, state.sampled_node_ids = self.contents, state.active_node_ids
        for neighbours in state.nid_to_neighbours.values():
            neighbours &= state.active_node_ids
        return bool(super().collect_masked_vectors_stage(grid, context, state))

    def aggregate_fit(self, _: int, results: list[Any], *__: object) -> tuple[None, dict[str, Any]]:
        """Undo the mean that the workflow has made of the sum, and show the sum to the server."""
        plan, count = self.server.simulation.plan, len(results)
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        levels, modulus = 2**plan.bits - 1, 2**plan.bits
        weights = count * levels % modulus
        sums = np.rint(mean * weights / levels + count * _middle(plan))
        self.server.see(torch.from_numpy(sums), count)
        return None, {}


def _middle(plan: Plan) -> float:
    return float(2**plan.bits - 1) / 2


def _check(asked: Any, plan: Plan) -> None:
    """Raise PrivacyError if the server asks for other settings of the protocol than the plan's."""
    if Key.THRESHOLD not in asked:
        return
    wanted = {
        Key.SHARE_NUMBER: asked[Key.SAMPLE_NUMBER],
        Key.THRESHOLD: plan.staying,
        Key.CLIPPING_RANGE: _middle(plan),
        Key.TARGET_RANGE: 2**plan.bits - 1,
        Key.MOD_RANGE: 2**plan.bits,
        Key.MAX_WEIGHT: float(WEIGHT),
    }
    differing = {name: asked[name] for name, value in wanted.items() if asked[name] != value}
    do = "ask who runs the server"
    PrivacyError.unless(not differing, "secure aggregation", differing, f"{wanted}", do)
