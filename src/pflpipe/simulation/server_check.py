"""The server's hooks of a method from outside, computed a second time by a process that has seen no
client.

``scale`` and ``aggregate`` may follow from releases alone. A hook that keeps something between
calls, such as raw updates that an earlier ``local_update`` left in a global, would publish it
without noise. So in every round a process of its own, which imports the method's file anew and is
given what is public, computes both again, and every bit must agree.

The package's own methods are read by its tests instead (tests/test_released.py): a second process
costs a few seconds a run.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

import torch

from pflpipe import trees
from pflpipe.cells import Cell
from pflpipe.data.datasets import Arrays
from pflpipe.errors import PrivacyError
from pflpipe.privacy.plan import Plan
from pflpipe.trees import Params, ServerState, Tree, Update

SECOND = "pflpipe.simulation.second_process"
_LENGTH = struct.Struct("<Q")


class ServerCheck:
    """A second process that computes the server's hooks; it starts with the first round.

    Args:
        cell: whose method is from outside.
        arrays: of the data set; the shape of an example and the number of classes are used.
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
        given: tuple[Params, Update, ServerState],
        found: tuple[Tree, Params, ServerState],
    ) -> None:
        """Compare what the hooks returned in a round.

        Args:
            round: counted from 0.
            bound: C_t of an adaptive plan.
            given: model and server state before the round, and what was released: model, release,
                server state.
            found: scale, and model and server state after the round.

        Raises:
            PrivacyError: the second process has another result, or cannot compute one.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        params, released, server = given
        public = {"params": params, "released": released, "server": server}
        request = {"round": round, "bound": bound, **public}
        try:
            send(self._to, packed(request))
            again = unpacked(received(self._from))
        except (OSError, EOFError):
            raise PrivacyError(
                f"method {self._name}: hooks scale and aggregate",
                got="no answer of the process that computes them again",
                expected="functions that run wherever the method's file is imported",
                do="read its message above",
            ) from None
        for hook, part, tree in zip(
            ("scale", "aggregate", "aggregate"), ("scale", "params", "server"), found, strict=True
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
                    got="another result than in a process that has seen no client",
                    expected="a function of what was released",
                    do="keep nothing between calls but the server's state",
                )

    def __enter__(self) -> None:
        """Start nothing yet."""

    def __exit__(self, *_: object) -> None:
        """End the second process."""
        if self._process is not None:
            self._to.close()
            self._from.close()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        theirs, ours = os.pipe(), os.pipe()
        words = [sys.executable, "-m", SECOND, str(theirs[0]), str(ours[1])]
        self._process = subprocess.Popen(words, pass_fds=(theirs[0], ours[1]))
        os.close(theirs[0])
        os.close(ours[1])
        self._to: BinaryIO = os.fdopen(theirs[1], "wb")
        self._from: BinaryIO = os.fdopen(ours[0], "rb")
        send(self._to, json.dumps(self._about).encode())


def send(stream: BinaryIO, message: bytes) -> None:
    """Write a message, its length in front."""
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def received(stream: BinaryIO) -> bytes:
    """Return the next message; EOFError when there is none."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    return stream.read(length)


def packed(message: dict[str, Any]) -> bytes:
    """Return numbers and trees of tensors as bytes."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def unpacked(message: bytes) -> dict[str, Any]:
    """Return what ``packed`` made bytes of."""
    found: dict[str, Any] = torch.load(io.BytesIO(message), weights_only=True)
    return found
