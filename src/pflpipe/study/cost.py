"""What a study costs on this machine, or on a SLURM cluster by the way in which it is submitted,
before it starts (``pflpipe cost``).

Training is the estimate of ``runtime_estimate``. All else are rates that benchmarks/bench_slurm.py
and benchmarks/bench_scale.py measured on an AMD EPYC (docs/scale.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pflpipe.errors import ConfigError
from pflpipe.study import catalog, runtime_estimate
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline

INODES_PER_RUN = 23.1
"""Files and folders of a run, with its part of the figures and its MLflow run."""
MEGABYTES_PER_RUN = 0.32
"""On disk, without the states of clients."""


@dataclass(frozen=True)
class Way:
    """A way to compute a study; ``seconds`` are the CPU time of a run besides its training."""

    name: str
    runs_per_job: float
    seconds: float


ONE_JOB = Way("one job", math.inf, 0.4)
WAYS = (ONE_JOB, Way("20 runs a job", 20, 11.0), Way("a job for each run", 1, 16.0))


def lines(name: str, settings: Config, cluster: bool) -> Iterator[str]:
    """Yield what a study costs as text.

    Args:
        name: of the study.
        settings: of config.yaml.
        cluster: for each way to submit it to SLURM.

    Raises:
        PflpipeError: the study has errors, or the size of a data set is not known yet.
    """
    cells = catalog.runs(load_outline(name)).values()
    training = runtime_estimate.total(cells, catalog.headers(settings))
    if training is None:
        do = f"make its data: snakemake --cores 1 {settings.data_dir}/NAME.npz"
        raise ConfigError(f"study {name}: the size of its data is not known yet", do=do)
    number, methods = len(cells), len({cell.method for cell in cells})
    yield (
        f"{name}: {number:,} runs; {INODES_PER_RUN * number:,.0f} files and folders, "
        f"{MEGABYTES_PER_RUN * number:,.0f} MB without the states of clients"
    )
    for way in WAYS if cluster else (ONE_JOB,):
        hours = (training + number * way.seconds) / 3600
        jobs = 1 if way is ONE_JOB else math.ceil(number / way.runs_per_job) + methods
        where = f"{way.name}: {jobs:,} submitted, " if cluster else ""
        yield f"{where}{hours:.3g} CPU-hours"
    if cluster and settings.device.startswith("cuda"):
        yield f"GPUs: {settings.processes} for each job that trains or tests, as long as it takes"
