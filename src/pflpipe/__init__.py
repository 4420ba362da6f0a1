"""pflpipe: honest comparison of user-level differentially private personalized federated learning
methods.

The names below are the public Python interface; each is imported when it is first used, so that
``import pflpipe`` costs nothing. ``train`` runs a method on your own tensors (docs/notebook.ipynb),
``run`` a cell of a study.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from pflpipe._version import __version__

# MKL, which reads this when it is first used: products of matrices whose bits follow neither from
# where the matrices lie in memory nor from the number of threads ("conditional numerical
# reproducibility"). Without it a client's rounding follows from its place among others
# (simulation/clients.py).
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from pflpipe.auditing.audit import Audited as Audited
    from pflpipe.auditing.audit import audit as audit
    from pflpipe.auditing.claim import Claim as Claim
    from pflpipe.cells import Cell as Cell
    from pflpipe.cells import Features as Features
    from pflpipe.cells import Model as Model
    from pflpipe.cells import Partition as Partition
    from pflpipe.cells import Privacy as Privacy
    from pflpipe.cells import Server as Server
    from pflpipe.cells import Training as Training
    from pflpipe.interface.estimator import FederatedClassifier as FederatedClassifier
    from pflpipe.interface.frames import clients_of as clients_of
    from pflpipe.interface.trained import Predictor as Predictor
    from pflpipe.interface.trained import Result as Result
    from pflpipe.interface.trained import Trained as Trained
    from pflpipe.interface.trained import load as load
    from pflpipe.interface.training import federation as federation
    from pflpipe.interface.training import run as run
    from pflpipe.interface.training import train as train
    from pflpipe.learning.losses import Loss as Loss
    from pflpipe.learning.metrics import Metric as Metric
    from pflpipe.learning.networks import Network as Network
    from pflpipe.learning.task import Batches as Batches
    from pflpipe.learning.task import Task as Task
    from pflpipe.methods.base import About as About
    from pflpipe.methods.base import Method as Method
    from pflpipe.methods.base import Option as Option
    from pflpipe.methods.base import Upload as Upload
    from pflpipe.privacy.accounting import calibrate as calibrate
    from pflpipe.privacy.accounting import epsilon as epsilon
    from pflpipe.privacy.accounting import make_plan as make_plan
    from pflpipe.privacy.ledger import Ledger as Ledger
    from pflpipe.privacy.ledger import ledger as ledger
    from pflpipe.privacy.mechanism import Uploads as Uploads
    from pflpipe.privacy.mechanism import release as release
    from pflpipe.privacy.plan import Plan as Plan
    from pflpipe.study.forecast import forecast as forecast
    from pflpipe.study.load import load_study as load_study

_HOMES = {
    "auditing.audit": ("Audited", "audit"),
    "auditing.claim": ("Claim",),
    "interface.estimator": ("FederatedClassifier",),
    "interface.frames": ("clients_of",),
    "interface.training": ("federation", "run", "train"),
    "cells": ("Cell", "Features", "Model", "Partition", "Privacy", "Server", "Training"),
    "learning.networks": ("Network",),
    "learning.task": ("Batches", "Task"),
    "methods.base": ("About", "Method", "Option", "Upload"),
    "privacy.accounting": ("calibrate", "epsilon", "make_plan"),
    "privacy.ledger": ("Ledger", "ledger"),
    "privacy.mechanism": ("Uploads", "release"),
    "privacy.plan": ("Plan",),
    "study.forecast": ("forecast",),
    "study.load": ("load_study",),
    "interface.trained": ("Predictor", "Result", "Trained", "load"),
    "learning.losses": ("Loss",),
    "learning.metrics": ("Metric",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'pflpipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pflpipe.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
