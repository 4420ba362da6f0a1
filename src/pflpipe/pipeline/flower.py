"""A Flower app of one run of a study (``pflpipe flower``), and the certificate of its run.

The app's files are in flower_app/. Everything that they compute is in simulation/remote.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pflpipe._version import __version__
from pflpipe.cells import Cell
from pflpipe.data import datasets
from pflpipe.data.contract import UNKNOWN
from pflpipe.data.datasets import Arrays
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError, check_known
from pflpipe.files import write_json, write_text
from pflpipe.methods import registry
from pflpipe.pipeline import certificate
from pflpipe.privacy.plan import read as read_plan
from pflpipe.simulation import remote, runs
from pflpipe.study.config import Config
from pflpipe.study.load import load_study
from pflpipe.study.study_spec import Study

MOST_BITS = 31
"""What Flower's secure aggregation carries: it rounds to int32 (secagg.py)."""
_APP = Path(__file__).with_name("flower_app")


def lines(study: str, run: str, nodes: int, out: Path | None, settings: Config) -> Iterator[str]:
    """Write the app of a run, by default into ``flower/RUN``, and yield what is said of it."""
    target = out or Path("flower", run)
    results, data = settings.results_dir, settings.data_dir
    write(load_study(study, results=results), run, nodes, results, data, target)
    yield f"{target}: written"
    yield "next: start a SuperLink and the nodes (docs/deploy.md)"


def write(study: Study, run: str, nodes: int, results: Path, data: Path, target: Path) -> None:
    """Write ``app/``, ``server/`` and ``nodes/<i>/``, the clients of a run in equal shares.

    Args:
        study: with the run.
        run: its id, a folder in ``results/runs``.
        nodes: their number, from 1 to the number of clients.
        results, data: with the plan and the partition of the run, and its data set.
        target: the folder; it appears once it is complete, and an existing one is never changed.

    Raises:
        ConfigError: the run is unknown, or its clients cannot be elsewhere (``remote.refused``).
        DataError: a file is missing or damaged, or the target exists.
    """
    cells = {row.run: row.cell for row in reversed(study.rows)}
    check_known(run, cells, f"study {study.name}: unknown run")
    cell = cells[run]
    plan = results / "plans" / f"{cell.plan_id}.json"
    partition = results / "partitions" / f"{cell.partition_id}.npz"
    examples = data / f"{cell.data_id}.npz"
    for file in (plan, partition, examples):
        do = f"pflpipe run {study.name}"
        DataError.unless(file.is_file(), f"{file}", "no file", "a file", do)
    DataError.unless(not target.exists(), f"{target}", "something", "no such folder", "move it")
    arrays, split = datasets.load_arrays(examples), Split.load(partition)
    count = len(split.train)
    ConfigError.unless(1 <= nodes <= count, "--nodes", nodes, f"1 to {count}, the clients")
    if bits := read_plan(plan).bits:
        what = "secure aggregation in Flower"
        ConfigError.unless(nodes == count, f"{what}: --nodes", nodes, f"{count}, one a client")
        ConfigError.unless(bits <= MOST_BITS, f"{what}: bits", bits, f"at most {MOST_BITS}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as parent:
        folder = Path(parent) / target.name
        shares = dict(enumerate(map(np.ndarray.tolist, np.array_split(np.arange(count), nodes))))
        places = {folder / "server": []} | {folder / f"nodes/{i}": s for i, s in shares.items()}
        for place, clients in places.items():
            rows, division = _share(arrays, split, clients)
            datasets.write(cell.dataset, rows, place / "examples.npz")
            division.save(place / "partition.npz")
            write_json(place / "cell.json", cell.to_dict())
            shutil.copyfile(plan, place / "plan.json")
        server = folder / "server"
        remote.Server(remote.read(server)[1])  # or it is refused
        write_text(server / remote.KEY, secrets.token_hex(32))
        (server / remote.KEY).chmod(0o600)
        if (pin := data / f"{cell.dataset}.pin").is_file():
            (server / "pins").mkdir()
            shutil.copyfile(pin, server / "pins" / pin.name)
        words = {"RUN": run, "VERSION": __version__, "NODES": str(nodes)}
        words |= {"FOLDER": str(target.resolve() / "server")}
        about = (_APP / "app.toml").read_text(encoding="utf-8")
        for word, value in words.items():
            about = about.replace(word, value)
        write_text(folder / "app" / "pyproject.toml", about)
        for name in ("server_app.py", "client_app.py"):
            shutil.copyfile(_APP / name, folder / "app" / name)
        folder.rename(target)


def _share(arrays: Arrays, split: Split, clients: list[int]) -> tuple[Arrays, Split]:
    """Return the training rows of some clients, and their split; the other clients have no rows."""
    nothing = np.zeros(0, np.int64)
    rows = [one if i in clients else nothing for i, one in enumerate(split.train)]
    # A file of a data set has at least one example on either side: a blank one, of nobody.
    ends = np.cumsum([1, *map(len, rows)])
    train = [np.arange(*pair) for pair in itertools.pairwise(ends)]
    empty = [nothing] * len(train)

    def held(values: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(values[:1]), values[index]])

    index = np.concatenate(rows)
    alone = dataclasses.replace(
        arrays,
        train_images=held(arrays.train_images, index),
        train_labels=held(arrays.train_labels, index),
        test_images=held(arrays.test_images, nothing),
        test_labels=held(arrays.test_labels, nothing),
        train_users=None,
        test_users=None,
        contract=UNKNOWN,
    )
    return alone, Split(train, empty, empty, nothing)


def finish(cell: Cell, server: remote.Server, folder: Path) -> Path:
    """Write ``results/`` into the server's folder after the last round: the plan with its ledger,
    the files of the run, and the certificate, which is returned.

    Raises:
        DataError: the run deviated from its plan.
    """
    results, run = folder / "results", registry.run_id(cell)
    runs.write(registry.run_cell(cell), server.simulation, server.progress, results / "runs" / run)
    plans = results / "plans"
    plans.mkdir(exist_ok=True)
    shutil.copyfile(folder / "plan.json", plans / f"{cell.plan_id}.json")
    # A certificate names the diagnostics of every table, also where nobody has computed them.
    measured, metric = sorted(certificate.MEASURED), server.simulation.loss_function.metric
    row = certificate.row(cell, run, measured, {}, results, folder / "pins")
    row["code"] = certificate.code(cell, run, [metric], results)
    return certificate.save(re.sub(r"\W", "_", run), [row], results)
