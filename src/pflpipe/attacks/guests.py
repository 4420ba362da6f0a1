"""An attacker's own clients in a run: behind ``Simulation.release`` they join in and count in M,
the engine knows none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pflpipe.named import OF_MESSAGES
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Tree

FLOATS = 2**26
"""Numbers that all guests' messages together may have (a quarter of a gigabyte)."""


def units(uploads: Uploads, scale: Mapping[str, Tensor]) -> Tree:
    """Return the public unit of each coordinate of a message, name -> ``[*shape]``; 0 where it is
    not sent."""
    return {
        name: scale.get(name, torch.ones((), dtype=value.dtype))
        .to(value.device)
        .expand(value.shape[1:])
        for name, value in uploads.update.items()
    }


def enlarged(plan: Plan, guests: int) -> Plan:
    """Return the plan of a run that has so many guests."""
    return dataclasses.replace(plan, clients=plan.clients + guests)


def release(
    generator: np.random.Generator,
    uploads: Uploads,
    present: Tensor,
    plan: Plan,
    scale: Mapping[str, Tensor],
    departures: frozenset[str],
    guests: Uploads,
    drawn: Tensor,
) -> Released:
    """Release the clients' uploads and the guests' together, as ``mechanism.release`` does for M +
    k clients.

    Args:
        generator, uploads, present, plan, scale, departures: see ``mechanism.release``, of a run
            without guests.
        guests: what the guests send, as the uploads are, ``[k, *shape]``.
        drawn: bool ``[k]``, which of them take part.

    Returns:
        the release; what is in it about single clients is about the M clients alone.
    """
    clients = present.shape[-1]
    together = Uploads(
        {
            name: torch.cat([value, guests.update[name].to(value)])
            for name, value in uploads.update.items()
        },
        {
            name: torch.cat([value, guests.extras[name].to(value.device)])
            for name, value in uploads.extras.items()
        },
    )
    everyone = torch.cat([present, drawn.to(present.device)])
    released = mechanism.release(
        generator, together, everyone, enlarged(plan, len(drawn)), scale, departures
    )
    own = {name: getattr(released, name)[:clients] for name in ("norms", "clipped", "nonfinite")}
    if departures & OF_MESSAGES:
        own |= {name: _first(clients, getattr(released, name)) for name in ("messages", "clean")}
    return dataclasses.replace(released, **own)


def _first(clients: int, tree: Tree) -> Tree:
    return {name: rows[:clients] for name, rows in tree.items()}
