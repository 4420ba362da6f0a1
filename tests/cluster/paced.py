"""DP-FedAvg at the test's pace: it looks in the folder ``paced`` how slow a round shall be and how
much memory it shall take, and tells there which GPUs it was given."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import torch

from pflpipe import trees
from pflpipe.learning.task import Task
from pflpipe.methods.base import About, Method, Option
from pflpipe.methods.dp_fedavg import local_update
from pflpipe.trees import Params, ServerState, Update

ABOUT = About(title="paced", paper="none")
FOLDER = Path("paced")
ballast: dict[str, torch.Tensor] = {}


def _told(what: str, number: int) -> float:
    file = FOLDER / f"{what}{number}"
    return float(file.read_text()) if file.exists() else 0.0


def paced(*, number: Annotated[int, Option(least=0)] = 0) -> Method:
    """Return the method; every number is a run of its own."""

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        if Path(sys.argv[0]).name == "train.py":  # not in the process that computes this again
            (FOLDER / f"gpus{number}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            if not ballast:
                ballast["megabytes"] = torch.ones(int(_told("megabytes", number)), 2**18)
            time.sleep(_told("seconds", number))
        return trees.add(params, released), server

    return Method(local_update, aggregate)
