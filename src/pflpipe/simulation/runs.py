"""A run on disk: reads the input files, trains with checkpoints, writes the output files.

A checkpoint is stored outside the outputs, so a workflow manager that removes the outputs of a
failed job keeps it. It contains a fingerprint of everything that the run depends on, the program
included. A checkpoint with another fingerprint is not used.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import torch

from pflpipe._version import __version__
from pflpipe.cells import Cell
from pflpipe.code import guard
from pflpipe.data import datasets
from pflpipe.data.datasets import Arrays
from pflpipe.data.partition import shifted_labels
from pflpipe.data.split import Split, check_new
from pflpipe.errors import DataError
from pflpipe.files import AGAIN, atomic, canonical_json, intact, write_json, write_text
from pflpipe.json_records import to_json
from pflpipe.learning import losses, networks
from pflpipe.learning.augment import Augment
from pflpipe.learning.metrics import BUILT_IN, CURVES, Metric
from pflpipe.methods import registry, row_code
from pflpipe.methods.registry import Resolved
from pflpipe.privacy import secure, secure_sum
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.plan import read as read_plan
from pflpipe.privacy.run_check import Residuals
from pflpipe.simulation import checkout, evaluation, run_lock
from pflpipe.simulation.build import build
from pflpipe.simulation.clients import Examples, device_of
from pflpipe.simulation.processes import ALONE, Processes
from pflpipe.simulation.rounds import COLUMNS, Progress, run, start
from pflpipe.simulation.run_record import Diagnostics, Program, Record, Sizes
from pflpipe.simulation.simulation import Recipe, Simulation
from pflpipe.simulation.states import States

SILENCE = 30.0
"""Seconds after which the next round prints a line in the log even if it is not its turn."""
NOTED = 2.0
"""Least seconds between two writings of a run's progress."""
TIMING_COLUMNS = ("round", "seconds", "images", "images_per_second")


@dataclass(frozen=True)
class Inputs:
    """The files a run reads: the privacy plan, the partition and the data set."""

    plan: Path
    partition: Path
    data: Path


class Machine(TypedDict):
    """What a simulation is computed with.

    Attributes:
        device: ``cpu``, ``cuda``, ``cuda:<number>`` or ``auto`` (a GPU if there is one).
        backend: ``loop``, ``vmap`` or ``auto``.
        dtype: of parameters and examples, by default float32.
        processes: the processes that share the clients of every round, by default this one alone.
    """

    device: str
    backend: str
    dtype: NotRequired[torch.dtype]
    processes: NotRequired[Processes]


def simulate(cell: Cell, inputs: Inputs, **machine: Unpack[Machine]) -> Simulation:
    """Return the simulation of a cell; see ``of_files``."""
    return of_files(registry.resolve(cell), inputs, **machine)


def of_files(resolved: Resolved, inputs: Inputs, **machine: Unpack[Machine]) -> Simulation:
    """Return the simulation of a cell from its files, with its data on the device.

    Args:
        resolved: the cell to run.
        inputs: its files.
        machine: see ``Machine``.

    Raises:
        DataError: the partition or the plan is that of another cell.
    """
    cell, arrays = resolved.cell, datasets.load_arrays(inputs.data)
    split = Split.load(inputs.partition)
    if cell.partition.clients not in (0, len(split.train)):  # 0: as many as the data set has
        what, clients = f"{inputs.partition}: clients", cell.partition.clients
        raise DataError(what, got=len(split.train), expected=str(clients))
    check_new(split, cell.partition, arrays, str(inputs.partition))
    plan = read_plan(inputs.plan)
    training = cell.training
    planned = plan.groups, plan.clients, plan.rounds, plan.sample_rate
    expected = training.groups, len(split.train), training.rounds, training.sample_rate
    what = f"{inputs.plan}: groups, clients, rounds, sample rate"
    DataError.unless(planned == expected, what, planned, str(expected))
    return of_data(resolved, arrays, split, plan, **machine)


def of_data(
    resolved: Resolved,
    arrays: Arrays,
    split: Split,
    plan: Plan,
    *,
    device: str,
    backend: str,
    dtype: torch.dtype = torch.float32,
    processes: Processes = ALONE,
) -> Simulation:
    """Return the simulation of a cell from its data, which are put on the device.

    Args:
        resolved: the cell to run.
        arrays, split, plan: its data set, the rows of each client, and its privacy plan.
        device, backend, dtype, processes: see ``Machine``.
    """
    cell, target = resolved.cell, device_of(device)
    row_code.check(cell)
    if plan.grid:
        secure.sampler(plan.grid.scale)
    scale = arrays.mean, arrays.std

    def examples(images: np.ndarray, labels: np.ndarray) -> Examples:
        x = torch.from_numpy(datasets.normalise(images, *scale)).to(target, dtype)
        kind = dtype if arrays.numbers else torch.int64
        return Examples(x, torch.from_numpy(labels).to(target, kind))

    labels, shifted = arrays.train_labels, cell.partition.shifted
    if shifted:
        labels = shifted_labels(labels, split, shifted, arrays.classes)
    examples_of_training = examples(arrays.train_images, labels)
    transform = None
    if cell.training.augment:
        # Transforms fill with black as the network sees it, not with 0.
        black = datasets.normalise(np.zeros_like(arrays.train_images[:1]), *scale)[0, 0, 0]
        transform = Augment(cell.training.augment, torch.from_numpy(black).to(target, dtype))
    width = losses.outputs(cell.training.loss, arrays.classes, arrays.numbers)
    shape = tuple(examples_of_training.x.shape[1:])
    network = networks.build(cell.model, shape, width, vocabulary=arrays.vocabulary)
    with guard.in_one_line(f"method {cell.method}"):
        method = resolved.factory(**cell.hyperparameters)
    simulation = Simulation(
        method=method,
        network=network,
        plan=plan,
        training=cell.training,
        departures=frozenset(cell.departures),
        split=split,
        train=examples_of_training,
        test=examples(arrays.test_images, arrays.test_labels),
        seed=cell.seed,
        key=resolved.key,
        code=row_code.of_training(cell, arrays.loader),
        recipe=Recipe(cell.server, cell.method, cell.source, cell.hyperparameters, cell.model),
        backend="loop",
        dtype=dtype,
        augment=transform,
        processes=processes,
        name=cell.method,
        scale=scale,
        loss=losses.find(cell.training.loss),
        has_global_model=resolved.about.has_global_model,
    )
    if plan.bits:
        shapes = simulation.method.upload(simulation.task).values()
        secure_sum.rule(plan, sum(map(math.prod, shapes)))
    return build(simulation, cell.server, backend)


def train(
    cell: Cell,
    inputs: Inputs,
    out: Path,
    checkpoints: Path,
    *,
    device: str,
    backend: str,
    checkpoint_seconds: float,
    code: str = "",
    commit: str = "",
    processes: Processes = ALONE,
) -> None:
    """Train one cell and write ``rounds.csv``, ``timing.csv``, ``state.pt``, ``states.bin`` and
    ``run.json`` into ``out``.

    A run that is killed at any moment continues from its last checkpoint and ends with the same
    bits (CPU). While another process trains the same run, this process waits (run_lock.py).

    Args:
        cell: the cell to train, ``registry.run_cell``.
        inputs: its files.
        out: folder of the five files.
        checkpoints: folder for ``<run id>.pt`` and ``<run id>.states``, removed when the run is
            complete.
        device: ``cpu``, ``cuda`` or ``auto``.
        backend: ``loop``, ``vmap`` or ``auto``.
        checkpoint_seconds: least time between checkpoints; 0 writes one after every round.
        code: digest of the program, such as ``code_version.digest``; a checkpoint with another
            digest is not used.
        commit: commit of the program, for ``run.json``.
        processes: the processes that share the clients; the first one writes the files.
    """
    resolved = registry.resolve(cell)
    name = resolved.run_id
    metric = BUILT_IN[losses.find(cell.training.loss).metric]
    report = Report(name, cell.training.rounds, checkpoints / f"{name}.json", metric)
    try:
        simulation = of_files(resolved, inputs, device=device, backend=backend, processes=processes)
        fingerprint = _fingerprint(cell, inputs, simulation, code)
        file, states = checkpoints / f"{name}.pt", checkpoints / f"{name}.states"
        with run_lock.exclusive(checkpoints / f"{name}.lock", fingerprint, processes) as done:
            if not done:
                once = simulation.plan.noise == "secure"
                checkpoint = Checkpoint(file, states, fingerprint, checkpoint_seconds, once)
                _train(simulation, cell, out, checkpoint, commit, report)
    except BaseException:
        report.note(failed=True)
        raise


def _train(
    simulation: Simulation,
    cell: Cell,
    out: Path,
    checkpoint: Checkpoint,
    commit: str,
    report: Report,
) -> None:
    """Train the run while holding its lock; see ``train``."""
    processes, every = simulation.processes, cell.training.evaluate_every
    progress = checkpoint.load(simulation) or start(simulation, checkpoint.states)
    if processes.is_first:
        report.begin(progress.round)

    def on_round(progress: Progress) -> None:
        # Before the checkpoint, so that a resumed run has the accuracies of this round.
        if every and (progress.round % every == 0 or progress.round == simulation.plan.rounds):
            progress.rows[-1] |= evaluation.means(simulation, progress)
        if not processes.is_first:
            return
        report.show(progress)
        if checkpoint.once or progress.round < simulation.plan.rounds:
            checkpoint.save_when_due(progress)

    progress = run(simulation, progress, on_round)
    if not processes.is_first:
        return
    write(cell, simulation, progress, out, commit)
    checkpoint.remove()
    report.file.unlink(missing_ok=True)


def write(
    cell: Cell, simulation: Simulation, progress: Progress, out: Path, commit: str = ""
) -> None:
    """Write the files of a run after its last round; see ``train``."""
    write_rows(out / "rounds.csv", COLUMNS, progress.rows)
    write_rows(out / "timing.csv", TIMING_COLUMNS, progress.timing)
    states = progress.states.save(out / "states.bin")
    with atomic(out / "state.pt") as path:
        content = {"params": progress.params, "server": progress.server, "bound": progress.bound}
        torch.save(content | {"states": states}, path)
    write_json(out / "run.json", to_json(_record(cell, simulation, progress, commit)))


def _record(cell: Cell, simulation: Simulation, progress: Progress, commit: str) -> Record:
    bits, device = progress.uploaded_bits / progress.round, simulation.train.x.device
    return Record(
        cell=cell.to_dict(),
        released=Sizes(
            releases=progress.releases,
            parameters=simulation.network.parameters,
            uploaded_parameters=bits / 32,
            upload_bytes_per_round=simulation.plan.expected_cohort * bits / 8,
        ),
        diagnostics=Diagnostics(
            participants=sum(int(row["participants"]) for row in progress.rows),
            diverged_round=progress.diverged_round,
            # NaN: nothing was sent.
            nonfinite_uploads=int(np.nansum([row["nonfinite_uploads"] for row in progress.rows])),
            residuals=progress.residuals,
        ),
        program=Program(
            device=str(device),
            gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else "",
            processor=checkout.processor(),
            cores=os.cpu_count() or 1,
            backend=simulation.backend,
            processes=simulation.processes.size,
            threads=torch.get_num_threads(),
            versions={
                "pflpipe": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
            commit=commit,
        ),
        code=tuple(to_json(part) for part in simulation.code),
    )


def load_final(folder: Path, simulation: Simulation) -> Progress:
    """Return the progress after the last round of a finished run.

    Raises:
        DataError: its files are damaged.
    """
    saved = _saved(folder / "state.pt", simulation.train.x.device)
    states = States.load(saved["states"], folder / "states.bin")
    return Progress(**saved | {"round": simulation.plan.rounds, "states": states})


def _saved(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the content of a file of ``torch.save``; raise DataError if it is damaged."""
    try:
        content: dict[str, Any] = torch.load(intact(path), map_location=device, weights_only=True)
    except DataError:
        raise
    except Exception as error:  # a truncated file can raise anything
        raise DataError(f"{path} is damaged", got=type(error).__name__, do=AGAIN) from error
    return content


@dataclass
class Checkpoint:
    """A run's latest checkpoint, replaced atomically, at most every ``seconds`` seconds.

    The clients' states stay in the run's file ``states``; ``path`` has the row of each client.

    With ``once``, of secure noise, there is one after every round, the last included: nothing of a
    round has left the process before, so that no round is released twice.
    """

    path: Path
    states: Path
    fingerprint: str
    seconds: float
    once: bool = False

    def __post_init__(self) -> None:
        self._saved = time.monotonic()
        self._noted: States | None = None

    def load(self, simulation: Simulation) -> Progress | None:
        """Return the saved progress, or None if there is no checkpoint of exactly this run."""
        if not self.path.exists():
            return None
        try:
            saved = _saved(self.path, simulation.train.x.device)
            if saved["fingerprint"] != self.fingerprint:
                raise DataError("it belongs to other inputs or another program")
            notes = saved["progress"]["states"]
            self._noted = States.restored(notes, self.states, simulation.processes)
            residuals = Residuals(**saved["progress"]["residuals"])
            restored = {"states": self._noted, "residuals": residuals}
            progress, problem = Progress(**saved["progress"] | restored), ""
        except DataError as error:
            progress, problem = None, str(error)
        except (KeyError, TypeError) as error:  # of another version
            progress, problem = None, f"it cannot be read ({type(error).__name__})"
        do = "remove it for a new run, which costs its epsilon again"
        DataError.unless(not (self.once and problem), f"checkpoint {self.path}: {problem}", do=do)
        if simulation.processes.is_first:
            message = f"checkpoint {self.path}: {problem}; starting from round 1"
            if progress:
                message = f"resuming after round {progress.round}"
            print(message, file=sys.stderr)
        return progress

    def save_when_due(self, progress: Progress) -> None:
        """Write the checkpoint if enough time has passed. A full disk loses the checkpoint, not the
        run."""
        due = self.once or time.monotonic() - self._saved >= self.seconds
        if not due or not progress.checked:
            return
        try:
            with atomic(self.path) as path:
                content = vars(progress) | {"states": progress.states.notes()}
                content["residuals"] = asdict(progress.residuals)
                torch.save({"fingerprint": self.fingerprint, "progress": content}, path)
            self._noted = progress.states  # keeps its rows in the file from being overwritten
        except (OSError, DataError) as error:
            if self.once:
                raise
            print(f"warning: no checkpoint after round {progress.round}: {error}", file=sys.stderr)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove the checkpoint, and temporary files of a write that was killed."""
        partial = self.path.parent.glob(f".{self.path.stem}.*{self.path.suffix}")
        for path in (self.path, self.states, *partial):
            path.unlink(missing_ok=True)


def _fingerprint(cell: Cell, inputs: Inputs, simulation: Simulation, code: str) -> str:
    """Return a digest of everything that determines the bits of a run.

    The caller gives the digest of the program, ``code``: the set of loaded modules is not the
    program.
    """
    digest = hashlib.sha256(canonical_json([cell.to_dict(), simulation.key, code]).encode())
    # Kind of device, processes, threads and library versions can change rounding.
    device, threads = simulation.train.x.device.type, torch.get_num_threads()
    machine = f"{device} {simulation.processes.size} {threads} {torch.__version__} {np.__version__}"
    digest.update(f"{asdict(simulation.plan)} {simulation.backend} {machine}".encode())
    digest.update(canonical_json(to_json(simulation.code)).encode())
    digest.update(inputs.partition.read_bytes())
    for values in (simulation.train.x, simulation.train.y):
        digest.update(values.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Report:
    """How far a run is. For people one line that lives on a terminal; in a log a plain line every
    tenth of the rounds, and when nothing was printed for half a minute. For pipeline/progress.py a
    JSON file, replaced every few seconds, whose ``round`` is 0 at the start."""

    def __init__(self, name: str, rounds: int, file: Path, metric: Metric) -> None:
        self.name, self.rounds, self.file, self.live = name, rounds, file, sys.stderr.isatty()
        self.digits, self.unit = metric.digits, metric.unit
        self.every = 1 if self.live else max(1, math.ceil(rounds / 10))
        self.measured = ""

    def begin(self, round: int) -> None:
        """Note that the run begins, or goes on after a round."""
        self.first = round
        self.began = self.printed = self.noted = time.monotonic()
        self.note(round=0)

    def note(self, **state: float) -> None:
        """Replace the file; a disk that refuses it costs the file and not the run."""
        content = {"rounds": self.rounds, "measured": self.measured, **state}
        with contextlib.suppress(OSError, DataError):
            write_text(self.file, json.dumps(content))

    def show(self, progress: Progress) -> None:
        """Print and note the latest round, and the latest accuracy of a study that asks for it by
        round."""
        row, timing, now = progress.rows[-1], progress.timing[-1], time.monotonic()
        for metric in CURVES:
            if row[metric] == row[metric]:
                self.measured = f"{metric} {row[metric]:.{self.digits}f} {self.unit}".rstrip()
                break
        left = (now - self.began) / (progress.round - self.first) * (self.rounds - progress.round)
        if now - self.noted > NOTED:
            self.noted = now
            self.note(round=progress.round, seconds_left=left)
        last = progress.round == self.rounds
        if progress.round % self.every and not last and now - self.printed < SILENCE:
            return
        self.printed = now
        words = f"{self.name}  round {progress.round}/{self.rounds}  loss {row['loss']:.4f}"
        words += f"  {self.measured}" if self.measured else ""
        words += f"  {timing['images_per_second']:.0f} images/s"
        if progress.diverged_round is not None:
            words += f"  diverged in round {progress.diverged_round}"
        words += f"  {left:.0f} s left"
        if self.live:
            words = f"\r{words}\x1b[K"
        print(words, end="\n" if last or not self.live else "", file=sys.stderr, flush=True)


def write_rows(target: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV atomically; see ``text_of``."""
    write_text(target, text_of(columns, rows))


def text_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV text; NaN becomes an empty field, floats keep all digits."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if row[name] != row[name] else row[name] for name in columns} for row in rows
    )
    return text.getvalue()
