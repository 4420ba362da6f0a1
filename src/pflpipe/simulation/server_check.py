"""A check of methods from outside the package: a process without client data computes the server's
hooks again.

``scale`` and ``aggregate`` may depend on releases only. A hook that keeps values between calls,
such as raw updates that ``local_update`` stored in a global variable, would publish them without
noise. So in every round a second process, which imports the method's file and receives only public
values, computes both hooks again, and all bits must agree.

For the methods of the package a test does this instead (tests/test_released.py), because a second
process costs a few seconds per run.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from multiprocessing import Pipe
from typing import Any

import torch

from pflpipe import trees
from pflpipe.cells import Cell
from pflpipe.data.datasets import Arrays
from pflpipe.errors import PrivacyError
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Params, ServerState, Tree, Update

SECOND = "pflpipe.simulation.second_process"


class ServerCheck:
    """A second process that computes the server's hooks. It starts with the first round.

    Args:
        cell: cell of a method from outside the package.
        arrays: the data set; only the shape of an example and the number of classes are used.
        plan: the privacy plan.
        device, backend, dtype: those of the run.
    """

    def __init__(
        self, cell: Cell, arrays: Arrays, plan: Plan, device: str, backend: str, dtype: torch.dtype
    ) -> None:
        images = arrays.train_images
        self._about = {
            "cell": cell.to_dict(),
            "shape": list(images.shape[1:]),
            "kind": str(images.dtype),
            "classes": arrays.classes,
            "labels": str(arrays.train_labels.dtype),
            "plan": asdict(plan),
            "device": device,
            "backend": backend,
            "dtype": str(dtype).removeprefix("torch."),
        }
        self._name = cell.method
        self._process: subprocess.Popen[bytes] | None = None

    def compare(
        self,
        round: int,
        bound: float | None,
        inputs: tuple[Params, Update, ServerState],
        results: tuple[Tree, Params, ServerState],
    ) -> None:
        """Raise PrivacyError unless the second process has the same results of a round.

        Args:
            round: counted from 0.
            bound: C_t of an adaptive plan.
            inputs: model before the round, release, server state before the round.
            results: scale, model after the round, server state after the round.

        Raises:
            PrivacyError: the second process has another result, or no result.
        """
        if self._process is None:
            self._start()
        params, released, server = inputs
        public = {"params": params, "released": released, "server": server}
        request = {"round": round, "bound": bound, **public}
        try:
            self._connection.send_bytes(packed(request))
            again = unpacked(self._connection.recv_bytes())
        except (OSError, EOFError):
            raise PrivacyError(
                f"method {self._name}: hooks scale and aggregate",
                got="no answer from the process that computes them again",
                expected="functions that run wherever the method's file is imported",
                do="read its message above",
            ) from None
        for hook, part, tree in zip(
            ("scale", "aggregate", "aggregate"), ("scale", "params", "server"), results, strict=True
        ):
            other = again[part]
            differing = [
                name
                for name in sorted(tree | other)
                if name not in tree
                or name not in other
                or tree[name].shape != other[name].shape
                or not trees.same_bits(tree[name].cpu(), other[name].cpu())
            ]
            if differing:
                raise PrivacyError(
                    f"method {self._name}: hook {hook}: {differing[0]}",
                    got="another result than in a process without client data",
                    expected="a function of what was released",
                    do="keep nothing between calls but the server's state",
                )

    def __enter__(self) -> None:
        """Do nothing; the process starts with the first round."""

    def __exit__(self, *_: object) -> None:
        """End the second process."""
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        # A connection of its own: the method's code may print to stdout.
        self._connection, theirs = Pipe()
        with theirs:  # closed here: with it open, the end of the other process is not noticed
            command = [sys.executable, "-m", SECOND, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._connection.send_bytes(json.dumps(self._about).encode())


def packed(message: dict[str, Any]) -> bytes:
    """Return a message of numbers and trees of tensors as bytes."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def unpacked(message: bytes) -> dict[str, Any]:
    """Return the message from the bytes of ``packed``."""
    content: dict[str, Any] = torch.load(io.BytesIO(message), weights_only=True)
    return content
