"""The record of a run, ``run.json``: public facts, private diagnostics, and the program and machine
that computed it.

``json_records.load`` reads it and ``json_records.to_json`` gives the JSON that is written.
"""

from dataclasses import dataclass
from typing import Any

from pflpipe.code.dependencies import Dependency
from pflpipe.json_records import from_json
from pflpipe.privacy.run_check import Residuals


@dataclass(frozen=True)
class Sizes:
    """The sizes of the releases. They follow from the settings and the releases alone.

    Attributes:
        releases: number of rounds with a release.
        parameters: scalars of the model.
        uploaded_parameters: scalars that a client sends in a round, the mean over the rounds.
        upload_bytes_per_round: bytes that the expected number of participants sends.
    """

    releases: int
    parameters: int
    uploaded_parameters: float
    upload_bytes_per_round: float


@dataclass(frozen=True)
class Diagnostics:
    """Private diagnostics: no epsilon covers cohorts or whether a client's numbers were finite.

    Attributes:
        participants: number of clients that took part, summed over the rounds.
        diverged_round: the first round (from 1) with a number that is not finite, or None.
        nonfinite_uploads: number of uploads of all rounds that were not finite and counted as zero.
        residuals: differences of the releases from the plan.
    """

    participants: int
    diverged_round: int | None
    nonfinite_uploads: int
    residuals: Residuals


@dataclass(frozen=True)
class Program:
    """Program and machine of a run, as seen by the process that wrote the record.

    Attributes:
        device: device of the examples and parameters, such as ``cpu`` or ``cuda:0``.
        gpu: name of the GPU; empty on a CPU.
        processor: name of the machine's processor.
        cores: number of cores of the machine.
        backend: ``loop``, ``vmap``, or ``devices`` for clients on other machines (remote.py).
        processes: number of processes that shared the clients.
        threads: number of torch's threads.
        versions: versions of pflpipe, Python, torch and numpy, by name.
        commit: ``checkout.commit`` of the code; empty if unknown.
    """

    device: str
    gpu: str
    processor: str
    cores: int
    backend: str
    processes: int
    threads: int
    versions: dict[str, str]
    commit: str


@dataclass(frozen=True)
class Record:
    """The content of ``run.json``.

    Attributes:
        cell: all settings, from ``Cell.to_dict``.
        released, diagnostics, program: see these classes.
        code: the dependencies from outside the package that it was trained with (``Dependency``).
    """

    cell: dict[str, Any]
    released: Sizes
    diagnostics: Diagnostics
    program: Program
    code: tuple[dict[str, Any], ...]

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The dependencies of ``code``."""
        return tuple(from_json(Dependency, value, "run.json: code") for value in self.code)
