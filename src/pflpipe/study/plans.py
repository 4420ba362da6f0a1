"""The privacy plan of a cell, and the ledger that goes with it."""

from __future__ import annotations

import numpy as np

from pflpipe.cells import Cell
from pflpipe.learning import networks
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import Planned, ledger


def plan_of(cell: Cell, sizes: np.ndarray | None = None) -> Planned:
    """Return a cell's plan and its ledger.

    Args:
        cell: its privacy, training, clients, departures and source are used.
        sizes: training examples per client ``[M]``; for departures that count them, and where all
            users of the data set take part.
    """
    everybody = 0 if sizes is None else len(sizes)
    plan = make_plan(
        cell.privacy,
        rounds=cell.training.rounds,
        sample_rate=cell.training.sample_rate,
        clients=cell.partition.clients or everybody,
        departures=cell.departures,
        sizes=sizes,
        local_epochs=cell.training.local_epochs,
        batch_size=cell.training.batch_size,
        lr=cell.training.lr,
    )
    parameters = networks.parameter_names(cell.model) if cell.plan_needs_model else ()
    entry = ledger(plan, cell.privacy, cell.departures, sizes, parameters, cell.source)
    return Planned(plan, entry)
