"""Processes that share the clients of one run: one for each core or GPU, started by torchrun.

Every process has the whole run and draws the same cohort, noise and schedules. Only the clients of
a round are divided. Each process computes its share, all results are gathered on every process in
the order of the clients, and then all processes do the same. A client's bits do not depend on the
other clients (clients.py), so a run has the same bits for any number of processes.
"""

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
    """This process of a run: its ``rank`` and the number of processes. The first one writes the
    files."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and prints."""
        return self.rank == 0

    def shares(self, costs: Sequence[float]) -> list[list[int]]:
        """Return for every process its indices into ``costs``, sorted.

        The most expensive items are assigned first, each to the process with the smallest load so
        far (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
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
            shares: the result of ``shares``.
        """
        # all_gather needs equal shapes, so shares are padded to the longest. bool is sent as bytes.
        sent = own.view(torch.uint8) if own.dtype == torch.bool else own
        padded = sent.new_zeros(max(map(len, shares)), *sent.shape[1:])
        padded[: len(sent)] = sent
        parts = [torch.empty_like(padded) for _ in shares]
        dist.all_gather(parts, padded)
        rows = sent.new_empty(sum(map(len, shares)), *sent.shape[1:])
        for share, part in zip(shares, parts, strict=True):
            rows[share] = part[: len(share)]
        return rows.view(own.dtype)

    def from_first(self, values: Tensor) -> Tensor:
        """Return the first process's values on every process. All processes wait for the first one;
        shapes must be equal."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values


ALONE = Processes()

_held: list[ExitStack] = []


def take_gpus(device: str, count: int = 1) -> None:
    """Reserve ``count`` free GPUs of this machine for this run and hide the others.

    Without this, simultaneous runs would all use the first GPU. A GPU is reserved by binding an
    abstract socket (unix(7)): the kernel gives a name to one process at a time and frees it when
    the process ends in any way. If fewer GPUs are free, or if there are no more than ``count``, as
    in a cluster job, nothing is hidden.

    Args:
        device: as for ``joined``; a GPU that is requested by number is not reserved.
        count: number of GPUs.
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
    """Join the process group of this run, and leave it at the end. A process of several has one
    thread from then on.

    Args:
        device: ``cpu``, ``cuda`` or ``auto`` (a GPU if there is one).
        count: number of processes. A program outside torchrun is restarted by torchrun if it is
            above 1.

    Yields:
        This process and its device: process i of a run uses the run's GPU i.
    """
    # torchrun sets WORLD_SIZE: without it this is the program's first start.
    if "WORLD_SIZE" not in os.environ:
        take_gpus(device, count)
        if count > 1:
            module = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            os.execv(sys.executable, [sys.executable, *module, *sys.argv])
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE, device
        return
    # The processes have the cores of the job between them. Snakemake's OMP_NUM_THREADS is the
    # number of these cores, and each process would start as many threads.
    torch.set_num_threads(1)
    # If torchrun is killed, its processes would survive and continue to write.
    if sys.platform == "linux":
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
