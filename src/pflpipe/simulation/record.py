"""The record of a run, ``run.json``: what anybody may know of it, what is measured behind its
noise, and how it was computed.

``records.load`` reads it, and ``records.to_json`` is what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pflpipe.privacy.residuals import Residuals


@dataclass(frozen=True)
class Sizes:
    """How much was released. All of it follows from the settings and the releases alone.

    Attributes:
        releases: rounds in which something was released.
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
    """The experimenter's own: who was drawn, and whether a client's numbers were finite, is covered
    by no epsilon.

    Attributes:
        participants: how many clients took part, summed over the rounds.
        diverged_round: the first round (from 1) with a number that is not finite; None if there is
            none.
        nonfinite_uploads: how many uploads were not finite and counted as zero, of all rounds.
        residuals: what of the releases is not as the plan prescribes.
    """

    participants: int
    diverged_round: int | None
    nonfinite_uploads: int
    residuals: Residuals


@dataclass(frozen=True)
class Program:
    """How a run was computed, by the process that wrote this.

    Attributes:
        device: of the examples and parameters, such as ``cpu`` or ``cuda:0``.
        gpu: its name; empty on a CPU.
        processor: name of the machine's processor.
        cores: of the machine.
        backend: ``loop``, ``vmap`` or ``graphs``.
        processes: how many shared the clients.
        threads: of torch.
        versions: of pflpipe, Python, torch and numpy, by name.
        commit: of the code, ``origin.commit``; empty where nobody said.
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
    """What ``run.json`` holds.

    Attributes:
        cell: all settings, as ``Cell.to_dict`` has them.
        released, diagnostics, program: see there.
    """

    cell: dict[str, Any]
    released: Sizes
    diagnostics: Diagnostics
    program: Program
