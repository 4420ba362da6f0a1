"""The second process of server_check.py: it builds the run's simulation without data and answers
one request per round."""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection

import numpy as np
import torch

from pflpipe import records
from pflpipe.cells import Cell
from pflpipe.data.datasets import Arrays
from pflpipe.data.partition import Split
from pflpipe.privacy.plan import Plan
from pflpipe.simulation import runs
from pflpipe.simulation.server_check import packed, unpacked
from pflpipe.trees import Params, ServerState, Update


def main(descriptor: int) -> None:
    """Answer requests until there are no more.

    Args:
        descriptor: open file descriptor of the connection for requests and answers.
    """
    connection: Connection[bytes, bytes] = Connection(descriptor)
    about = json.loads(connection.recv_bytes())
    # One image of zeros gives the shapes; no client has any rows.
    image = np.zeros((1, *about["shape"]), about["kind"])
    label, none = np.zeros(1, about["labels"]), np.zeros(0, np.int64)
    plan = records.from_json(Plan, about["plan"], "plan")
    no_rows = [none] * plan.clients
    simulation = runs.build(
        Cell.from_dict(about["cell"]),
        Arrays(image, label, image, label, about["classes"]),
        Split(no_rows, no_rows, no_rows, none),
        plan,
        device=about["device"],
        backend=about["backend"],
        dtype=getattr(torch, about["dtype"]),
    )
    method = simulation.method
    while True:
        try:
            request = unpacked(connection.recv_bytes())
        except EOFError:
            return
        task = simulation.task_in(request["round"], request["bound"])
        params, server = Params(request["params"]), ServerState(request["server"])
        scale = method.scale(params, server, task)
        params, server = method.aggregate(params, Update(request["released"]), server, task)
        answer = {"scale": scale, "params": params, "server": server}
        connection.send_bytes(packed(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]))
