"""What a study costs on this machine, or on a SLURM cluster by the way in which it is submitted,
before it starts (``pflpipe cost``).

Training is the estimate of ``runtime_estimate``, and the states of clients are those that its
methods start with. All else are rates that bench_slurm.py and bench_scale.py of tools/benchmarks
measured on an AMD EPYC (docs/scale.md).
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

from pflpipe.cells import Cell
from pflpipe.data.datasets import Header
from pflpipe.errors import ConfigError
from pflpipe.files import canonical_json
from pflpipe.privacy.plan import Plan
from pflpipe.study import catalog, forecast, runtime_estimate
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline

INODES_PER_RUN = 23.1
"""Files and folders of a run, with its part of the figures and its MLflow run."""
MEGABYTES_PER_RUN = 0.32
"""On disk, without the states of clients."""


def ways(runs: int, methods: int) -> dict[str, tuple[int, float]]:
    """Return, for each way to submit a study, its jobs and their CPU seconds besides training."""
    return {
        "one job": (1, 0.4 * runs),
        "a job for each method": (methods, 0.4 * runs + 12 * methods),
        "20 runs a job": (math.ceil(runs / 20) + methods, 11 * runs),
        "a job for each run": (runs + methods, 16 * runs),
    }


def lines(name: str, settings: Config, cluster: bool) -> Iterator[str]:
    """Yield what a study costs as text.

    Args:
        name: of the study.
        settings: of config.yaml.
        cluster: for each way to submit it to SLURM.

    Raises:
        PflpipeError: the study has errors, or the size of a data set is not known yet.
    """
    cells, often = catalog.expected(load_outline(name))
    header = catalog.headers(settings)
    training = runtime_estimate.total(cells, header, often=often)
    if training is None:
        do = f"make its data: snakemake --cores 1 {settings.data_dir}/NAME.npz"
        raise ConfigError(f"study {name}: the size of its data is not known yet", do=do)
    number, methods = round(sum(often)), len({cell.method for cell in cells})
    of_states = 1e-6 * state_bytes(cells, header, often)
    yield (
        f"{name}: {number:,} runs; {INODES_PER_RUN * number:,.0f} files and folders, "
        f"{MEGABYTES_PER_RUN * number:,.0f} MB and {of_states:,.0f} MB of clients' states"
    )
    costs = ways(number, methods)
    if not cluster:
        yield f"{(training + costs['one job'][1]) / 3600:.3g} CPU-hours"
        return
    for way, (jobs, seconds) in costs.items():
        yield f"{way}: {jobs:,} submitted, {(training + seconds) / 3600:.3g} CPU-hours"
    files = {settings.data_dir / f"{cell.data_id}.npz" for cell in cells}
    made = [str(file) for file in files if file.exists()]
    memory = settings.processes * megabytes_of_process(made)
    least = "" if len(made) == len(files) else "at least "
    yield f"memory of a job that trains or tests: {least}{memory:,} MB"
    if settings.device.startswith("cuda"):
        on_gpu = runtime_estimate.total(cells, header, runtime_estimate.GPU_SPEED, often) or 0.0
        others = {cell.model.name for cell in cells} - runtime_estimate.GPU_SPEED.keys()
        spent = f"about {on_gpu / 3600:.3g} GPU-hours of training on an NVIDIA H100"
        if others:
            spent = f"GPU-hours unknown: {', '.join(sorted(others))} not measured on a GPU"
        yield f"GPUs: {settings.processes} for each job that trains or tests; {spent}"


def megabytes_of_process(files: str | Iterable[str]) -> int:
    """Return the memory in MB that a process which trains or tests requests at the first attempt.

    Args:
        files: its data; only the largest counts.
    """
    # Snakemake passes the file of the choice, not a list, where a search has to choose again.
    files = [files] if isinstance(files, str) else files
    return max(2000, int(20e-6 * max(map(os.path.getsize, files), default=0)))


def state_bytes(
    cells: Iterable[Cell],
    header: Callable[[str], Header | None],
    often: Iterable[float] = repeat(1.0),
) -> float:
    """Return the expected bytes of the clients' states that these runs leave on the disk: one state
    for each client that is drawn at least once.

    Args:
        header: returns the header of a data set, which is known.
        often: how often each run is expected.
    """
    import torch

    from pflpipe.trees import Params

    sizes: dict[str, int] = {}
    total = 0.0
    for cell, times in zip(cells, often, strict=False):
        known = header(cell.dataset)
        assert known is not None
        training, clients = cell.training, forecast.clients_of(cell, known)
        rounds = training.rounds / training.groups
        drawn = clients * (1 - (1 - training.sample_rate) ** rounds)
        of_network = forecast.shape_of(cell, known, header), forecast.outputs_of(cell, known)
        parts = [cell.method, cell.source, cell.hyperparameters, vars(cell.model), of_network]
        key = canonical_json(parts)
        if key not in sizes:
            # No round is computed, so any plan will do.
            plan = Plan("none", 2, None, None, 1.0, 1, None, clients)
            method, task = forecast.before_training(cell, *of_network, plan)
            params = Params(task.network.init(torch.Generator().manual_seed(0)))
            sizes[key] = sum(value.nbytes for value in method.init_client(params, task).values())
        total += times * drawn * sizes[key]
    return total
