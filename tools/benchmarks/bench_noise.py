"""Numbers of privacy noise a second, of every mechanism, beside torch's normal ones.

    python tools/benchmarks/bench_noise.py [--count 100000]

One thread. Each kind is drawn until a second has passed; the median call counts. ``secure`` needs
``pip install 'pflpipe[secure]'``. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from pflpipe.privacy import mechanisms, secure
from pflpipe.privacy.plan import Plan


def rate(draw: Callable[[], object], count: int) -> float:
    """Return numbers a second."""
    draw()  # the first call imports and caches
    seconds: list[float] = []
    while sum(seconds) < 1:
        began = time.perf_counter()
        draw()
        seconds.append(time.perf_counter() - began)
    return count / statistics.median(seconds)


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="numbers of a call")
    count = parser.parse_args().count
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    laws = [mechanisms.of(name) for name in ("gaussian", "laplace", "discrete_gaussian", "skellam")]
    plan = Plan("discrete_gaussian", 2, 1.0, 5.0, 1.0, 10, 1e-5, 1000, noise="secure")
    assert plan.grid is not None
    scale = plan.grid.scale
    draws: dict[str, Callable[[], object]] = {"torch": lambda: torch.randn(count)}
    draws |= {law.name: lambda law=law: law.draw(rng, (count,)) for law in laws}  # type: ignore[misc]
    draws["secure"] = lambda: secure.draw(scale, count)
    print(json.dumps({name: round(rate(draw, count)) for name, draw in draws.items()}, indent=1))


if __name__ == "__main__":
    main()
