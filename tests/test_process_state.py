"""A user's own code leaves the process as it was, and its exit is one line of the user's file."""

import dataclasses
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tabled
from pflpipe import cells
from pflpipe.code import guard, user_files
from pflpipe.data import datasets
from pflpipe.errors import PflpipeError, Problems
from pflpipe.learning import networks
from pflpipe.simulation import evaluation, rounds
from pflpipe.study import metric_columns
from simulations import CLASSES, overheard, simulation

TEXTS = tabled.table("test_process_state")


def state() -> list[Any]:
    """What is to stay as it was."""
    backends = torch.backends
    of_process = [os.getcwd(), signal.getsignal(signal.SIGTERM), list(warnings.filters)]
    kinds = [torch.get_default_dtype(), torch.get_default_device()]
    products = [torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32]
    of_cudnn = [getattr(backends.cudnn, n) for n in ("allow_tf32", "benchmark", "deterministic")]
    return [of_process, kinds, products, of_cudnn, torch.are_deterministic_algorithms_enabled()]


def imported() -> None:
    Path("imported.py").write_text(TEXTS["CHANGES"] + "change()\n")
    user_files.module("imported.py")


def loaded() -> None:
    datasets.prepare("mine", Path("own.py:load"), Path(), Path("data/mine.npz"))
    assert Path("data/mine.npz").exists()


def called() -> None:
    networks.build(cells.Model("own.py:Net"), (5,), CLASSES)


def measured() -> None:
    problems = Problems()
    metric_columns.read({"metrics": ["own.py:measured"]}, "study.yaml", [], problems)
    problems.stop()


def hooked() -> None:
    change = user_files.load("own.py:change")
    world = overheard(simulation("dp_fedavg"), lambda *given: change(), "aggregate")
    changing = dataclasses.replace(world, name="mine")
    rounds.one_round(changing, rounds.start(changing))


PLACES = [loaded, called, measured, hooked]


@pytest.fixture
def own(tmp_path, monkeypatch) -> Iterator[Any]:
    """A function that writes own.py, in a process that is afterwards as it was."""
    monkeypatch.chdir(tmp_path)
    with guard.restored():
        yield lambda change: Path("own.py").write_text(TEXTS["CHANGES"] + change + TEXTS["OWN"])


@pytest.mark.parametrize("place", [imported, *PLACES], ids=lambda place: place.__name__)
def test_what_a_file_changes_in_the_process_ends_with_its_call(own, place):
    own("")
    # As a study without TF32 sets them.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    before = state()
    place()
    assert state() == before


def test_precision_of_torchs_newer_interface_is_restored_too(own):
    own("")
    before = state()
    with guard.restored():
        torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "tf32"
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert state() == before


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_network_does_not_choose_the_precision_of_its_training(own, backend):
    own("def change():\n    torch.set_float32_matmul_precision('medium')\n")
    world = simulation("dp_fedavg", backend=backend, model=cells.Model("own.py:Net"))
    world = world.isolated("auto")
    done = rounds.start(world)
    rounds.one_round(world, done)
    evaluation.accuracies(world, done)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_file_that_ends_the_program_is_told_in_one_line(own, place):
    own(TEXTS["EXIT"])
    with pytest.raises(PflpipeError, match=r"(own\.py|method mine: hook aggregate).*SystemExit: 0"):
        place()
