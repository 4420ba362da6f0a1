"""The privacy plan of a cell, and the ledger that goes with it."""

import dataclasses
from typing import Any

import numpy as np

from pflpipe.cells import Cell
from pflpipe.data.contract import UNKNOWN, Contract
from pflpipe.data.features import MODEL
from pflpipe.learning import architectures
from pflpipe.methods import row_code
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import Planned, effective_plan, ledger, of_dealt

CLASSES_FOUND = (
    "the number of classes was read from all labels: it sets the shape of the released head, so "
    "one client's label can change it, and no epsilon covers that; declare `classes` in the arrays"
)
"""First warning of a private run on data that declare no number of classes."""
REFERENCE = (
    "features were standardised by mean and deviation of the training images of {}, a public data "
    "set, whose people no epsilon covers"
)
"""Warning of a private run on features with a reference."""
FILE = (
    "features are those of {}, made by {}, on public data according to the study: nobody checks "
    "whether what made them has seen a client's rows, and no epsilon covers that"
)
"""Warning of a private run on features from a file."""
START = (
    "the initial weights are those of {} (SHA-256 {}), public according to the study: nobody "
    "checks whether a client's rows have made them, and no epsilon covers that"
)
"""Warning of a private run with initial weights from a file."""


def told(data: Any) -> dict[str, Any]:
    """Return what ``plan_of`` is told of a data set, its arrays or their header."""
    return {name: getattr(data, name) for name in ("declared", "contract", "unit", "loader")}


def plan_of(
    cell: Cell,
    sizes: np.ndarray | None = None,
    *,
    declared: bool = True,
    contract: Contract = UNKNOWN,
    unit: str = "user",
    loader: str = "",
) -> Planned:
    """Return a cell's plan and its ledger.

    Args:
        cell: the run; its privacy, training, clients, departures, source, the reference or the
            file of its features, and the file of its initial weights are used.
        sizes: training examples per client ``[M]``, for departures that count them and if all
            users of the data set take part.
        declared: whether the data set declares its number of classes.
        contract: what is known of its rows; its warnings are those of every run.
        unit: the word for a user of the data set, a client unless rows are dealt.
        loader: the user's function that made its rows (``datasets.Header``).
    """
    everybody = 0 if sizes is None else len(sizes)
    names = "rounds", "sample_rate", "groups", "local_epochs", "batch_size", "lr"
    of_training: Any = {name: getattr(cell.training, name) for name in names}
    plan = make_plan(
        cell.privacy,
        clients=cell.partition.clients or everybody,
        departures=cell.departures,
        sizes=sizes,
        **of_training,
    )
    # Only if needed: for a network of the user this runs the user's file.
    parameters = architectures.parameter_names(cell.model) if cell.plan_needs_model else ()
    code = (*cell.outside, *row_code.of_loader(loader))
    entry = ledger(plan, cell.privacy, cell.departures, sizes, parameters, code)
    if cell.partition.users:
        effective = effective_plan(plan, cell.departures, sizes, parameters)
        entry = of_dealt(entry, effective, cell.partition.max_clients_per_user, unit)
    else:
        entry = dataclasses.replace(entry, unit=unit)
    features, model = cell.features, cell.model
    uncovered = {
        CLASSES_FOUND: not declared,
        START.format(model.init, model.init_digest[:12]): model.init,
        FILE.format(features.file, features.made_by or MODEL): features.file,
        REFERENCE.format(features.public): features.public,
    }
    is_private = plan.mechanism != "none"
    found = (warning for warning, holds in uncovered.items() if holds and is_private)
    entry = dataclasses.replace(entry, warnings=(*found, *contract.warnings, *entry.warnings))
    return Planned(plan, entry)
