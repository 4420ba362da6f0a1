"""Processes that share the clients of one run: one for each core or GPU, started by torchrun.

Every process knows the whole run and draws the same cohort, noise and schedules. Only the clients
of a round are divided: each process computes its share, what they return is gathered everywhere in
the order of one process, and from there on all do the same. A client's bits do not follow from
whom it is computed with (clients.py), so a run has the same bits whatever the number of processes.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """This process among those of a run: its ``rank`` and how many there are. The first one writes
    the files."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    def shares(self, costs: Sequence[float]) -> list[list[int]]:
        """Return for every process the indices in ``costs`` that it works on, in order.

        The dearest are given away first, each to the process that has least to do so far (Graham,
        "Bounds on Multiprocessing Timing Anomalies", 1969).
        """
        shares: list[list[int]] = [[] for _ in range(self.size)]
        loads = [(0.0, rank) for rank in range(self.size)]
        for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
            load, rank = heapq.heappop(loads)
            shares[rank].append(index)
            heapq.heappush(loads, (load + costs[index], rank))
        return [sorted(share) for share in shares]

    def gather(self, own: Tensor, shares: Sequence[list[int]]) -> Tensor:
        """Return all processes' rows ``[N, ...]`` in the order of the indices, on every process.

        Args:
            own: this process's rows, in the order of its share; any dtype.
            shares: what ``shares`` returned.
        """
        sent = own.view(torch.uint8) if own.dtype == torch.bool else own
        padded = sent.new_zeros(max(map(len, shares)), *sent.shape[1:])
        padded[: len(sent)] = sent
        parts = [torch.empty_like(padded) for _ in shares]
        dist.all_gather(parts, padded)
        found = sent.new_empty(sum(map(len, shares)), *sent.shape[1:])
        for share, part in zip(shares, parts, strict=True):
            found[share] = part[: len(share)]
        return found.view(own.dtype)

    def from_first(self, values: Tensor) -> Tensor:
        """Return the first process's values on every process, once the first one got here; the
        shape must be the same."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values


ALONE = Processes()

_held: list[ExitStack] = []


def take_gpus(device: str, count: int = 1) -> None:
    """Keep so many of this machine's GPUs to this run, if they are free, and hide the others.

    Runs side by side would all compute on the first GPU. A GPU is taken by taking a name that the
    kernel gives to one process at a time, and takes back when that process ends, however it ends
    (abstract sockets, unix(7)). Where fewer are free than are asked for nothing is hidden, nor
    where no more are there, as in a job on a cluster.

    Args:
        device: as for ``joined``; one that is asked for by its number is not taken.
        count: of GPUs.
    """
    if device not in ("cuda", "auto"):
        return
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [*map(str, range(torch.cuda.device_count()))] if shown is None else shown.split(",")
    taken: list[str] = []
    with ExitStack() as held:
        for gpu in gpus if len(gpus) > count else ():
            name = held.enter_context(socket.socket(socket.AF_UNIX))
            try:
                name.bind(f"\0pflpipe GPU {gpu}")
            except OSError:
                continue
            name.set_inheritable(True)  # by torchrun, which takes the place of this program
            taken.append(gpu)
            if len(taken) == count:
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
                _held.append(held.pop_all())
                return


@contextmanager
def joined(device: str, count: int = 1) -> Iterator[tuple[Processes, str]]:
    """Join the other processes of this run and leave them at the end.

    Args:
        device: ``cpu``, ``cuda`` or ``auto`` (a GPU when there is one).
        count: a program that is alone is started again by torchrun as so many processes.

    Yields:
        this process and its own device: process i of a run takes the run's GPU i.
    """
    if "WORLD_SIZE" not in os.environ:
        take_gpus(device, count)
    if count > 1 and "WORLD_SIZE" not in os.environ:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={count}",
        ]
        os.execv(sys.executable, [*torchrun, *sys.argv])
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE, device
        return
    if (
        sys.platform == "linux"
    ):  # torchrun that is killed leaves its processes behind, which would go on writing
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    device = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    try:
        yield Processes(dist.get_rank(), size), device
    finally:
        dist.destroy_process_group()
