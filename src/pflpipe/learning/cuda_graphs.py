"""CUDA graphs: a function of tensors is recorded once and then replayed.

A training step on a small batch is more than a hundred kernels, and Python launches them more
slowly than a GPU executes them. A replay launches all of them at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# Calls before the recording. In the first one libraries choose algorithms and allocate working
# memory, and optimizers set up their state. The second one is like all later calls.
WARM_UP = 2
# Number of calls that pays for the recording (an estimate: the recording takes about as long as two
# ordinary calls).
CALLS_TO_PAY = 16

Record = Callable[[Callable[[], None]], Callable[[], None]]


class Replayed:
    """``function(*inputs)`` for inputs of the same shapes in every call, recorded and replayed.

    The first calls run the function and the next one records it. From then on the inputs are copied
    into the buffers that the recording reads. Recording itself changes no tensor, so the recording
    call also replays, and every call has its effect.

    Args:
        function: reads and writes tensors at fixed addresses. Its Python code runs in the first
            calls and during the recording.
        record: takes a function without arguments and returns its replay, without executing it.
    """

    def __init__(self, function: Callable[..., None], record: Record) -> None:
        self.function, self.record = function, record
        self.calls = 0
        self.buffers: Sequence[Tensor] = ()
        self.replay: Callable[[], None] | None = None

    def __call__(self, *inputs: Tensor) -> None:
        """Have the effect of ``function(*inputs)``."""
        self.calls += 1
        if self.calls <= WARM_UP:
            self.function(*inputs)
            return
        if self.replay is None:
            self.buffers = [value.clone() for value in inputs]
            self.replay = self.record(lambda: self.function(*self.buffers))
        for buffer, value in zip(self.buffers, inputs, strict=True):
            buffer.copy_(value)
        self.replay()


class Graphs:
    """Records functions as CUDA graphs of one device.

    A graph cannot be recorded on the default stream. The warm-up calls use the same stream, because
    the graph reuses their working memory. All graphs share one stream and one memory pool. A pool
    lives as long as one of its graphs, so the first graph is kept.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        with self.aside():
            self.first = self._graph(lambda: torch.zeros(1, device=device))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Launch the kernels of this block on the stream of the graphs, after all earlier
        kernels."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outside.wait_stream(self.stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a replay of the kernels of ``function()``. Call this and the replay inside
        ``aside()``.

        Raises:
            RuntimeError: the function waits for the GPU or copies from the host.
        """
        try:
            return self._graph(function).replay
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                "A training step cannot be recorded as a CUDA graph: expected no .item(), no branch"
                " on data and no tensor made from Python numbers; use torch.where, or backend: loop"
            ) from error

    def _graph(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        # Not the context torch.cuda.graph: it waits for the GPU and empties the allocator's cache,
        # which is too slow for frequent recordings. ``thread_local``, because calls of other
        # threads, such as NCCL's watchdog, would otherwise break the recording.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            function()
        finally:
            graph.capture_end()
        return graph


@functools.cache
def graphs(device: torch.device) -> Graphs:
    """Return the recorder of a GPU, one object for all recordings on this device."""
    return Graphs(device)
