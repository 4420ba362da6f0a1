"""Clients that an attacker adds to a run.

They are added inside ``Simulation.release``, so the engine trains only the M clients of the study.
The plan of the release counts M + k clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflpipe.facts.departures import OF_MESSAGES
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Tree

FLOATS = 2**26
"""Most scalars in the messages of all injected clients together (256 MB in float32)."""


class Round(NamedTuple):
    """The arguments of ``mechanism.release`` for the M clients of a round."""

    generator: np.random.Generator
    uploads: Uploads
    present: Tensor
    plan: Plan
    scale: Mapping[str, Tensor]
    departures: frozenset[str]


def units(of_clients: Round) -> Tree:
    """Return the public unit of each coordinate of a message, name -> ``[*shape]``; 0 where it is
    not sent."""
    units = {}
    for name, value in of_clients.uploads.update.items():
        unit = of_clients.scale.get(name, torch.ones((), dtype=value.dtype))
        units[name] = unit.to(value.device).expand(value.shape[1:])
    return units


def enlarged(plan: Plan, injected: int) -> Plan:
    """Return the plan of a run with ``injected`` more clients."""
    return dataclasses.replace(plan, clients=plan.clients + injected)


def release(of_clients: Round, injected: Uploads, drawn: Tensor) -> Released:
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
    joint = of_clients._replace(
        uploads=Uploads(update, extras), present=everyone, plan=enlarged(plan, len(drawn))
    )
    released = mechanism.release(*joint)
    # The engine reads these fields by the rows of the clients that it trained.
    rows = {name: getattr(released, name)[:clients] for name in ("norms", "clipped", "nonfinite")}
    if of_clients.departures & OF_MESSAGES:
        for name in ("messages", "clean"):
            rows[name] = {part: value[:clients] for part, value in getattr(released, name).items()}
    return dataclasses.replace(released, **rows)
