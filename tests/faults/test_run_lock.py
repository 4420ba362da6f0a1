"""A worker that outlives its snakemake, and the one that the same command starts beside it."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import test_runs
from pflpipe.cells import Cell
from pflpipe.simulation import run_lock, runs
from pflpipe.simulation.processes import ALONE
from reliability import record

pytestmark = pytest.mark.faults


def _train(place: Path, cell: Cell, handed: object, stops: bool) -> None:
    show, told = runs.Report.show, handed.detach()

    def stop(self: runs.Report, progress: object) -> None:
        show(self, progress)
        if stops and progress.round == 4:
            os.write(told, b"stopped\n")
            os.kill(os.getpid(), signal.SIGSTOP)

    runs.Report.show = stop
    with open(told, "w", encoding="utf-8", closefd=False) as sys.stderr:
        test_runs.train_here(place, cell, checkpoint_seconds=0)


def start(place: Path, cell: Cell, stops: bool) -> tuple[multiprocessing.Process, int]:
    """Start to train; return the process and where its messages come."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pflpipe.simulation.scores", "pytest"])
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as file:
        handed = multiprocessing.reduction.DupFd(file.fileno())
        process = context.Process(target=_train, args=(place, cell, handed, stops))
        process.start()
    return process, reading


def test_a_run_that_an_old_worker_still_trains_is_waited_for_and_has_the_same_bits(tmp_path):
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    cell = test_runs.make_place(whole)
    test_runs.make_place(shared)
    assert test_runs.train_there(whole, cell) == 0
    old, of_old = start(shared, cell, stops=True)
    with open(of_old, encoding="utf-8") as messages:
        assert any(line == "stopped\n" for line in messages)
        new, of_new = start(shared, cell, stops=False)
        with open(of_new, encoding="utf-8") as answers:
            first = answers.readline()
            os.kill(old.pid, signal.SIGCONT)
            later = answers.read()
    new.join()
    old.join()
    whom = f"process {old.pid} of {os.uname().nodename}"
    assert first == f"waiting: this run is trained by {whom} already\n"
    assert later == "", "it is not trained again"
    assert (old.exitcode, new.exitcode) == (0, 0)
    for name in ("rounds.csv", "run.json", "states.bin"):
        assert (shared / "run" / name).read_bytes() == (whole / "run" / name).read_bytes()
    assert not list((shared / "checkpoints").iterdir())
    whose = "the worker of a killed snakemake, or of another pipeline in the folder,"
    goes_on = "takes over the result and ends with the same bits"
    outcome = f"the new worker says for whom it waits, {goes_on}"
    record(f"{whose} is still at work when the same command starts", outcome)


@pytest.mark.parametrize(("fingerprint", "done"), [("mine", True), ("another", False)])
def test_only_the_same_run_is_taken_over(fingerprint, done, tmp_path, monkeypatch):
    path, waits, found = tmp_path / "x.lock", threading.Event(), []
    flock = run_lock.fcntl.flock

    def noting(file: int, how: int) -> None:
        if how == run_lock.fcntl.LOCK_EX:
            waits.set()
        flock(file, how)

    def second() -> None:
        with run_lock.exclusive(path, "mine", ALONE) as is_done:
            found.append(is_done)

    monkeypatch.setattr(run_lock.fcntl, "flock", noting)
    with run_lock.exclusive(path, fingerprint, ALONE) as is_done:
        assert not is_done
        thread = threading.Thread(target=second)
        thread.start()
        waits.wait()
    thread.join()
    assert found == [done]
    assert not path.exists()


def test_a_run_that_failed_is_not_taken_over_and_one_without_locks_is_trained(
    tmp_path, monkeypatch
):
    path = tmp_path / "x.lock"
    with pytest.raises(ZeroDivisionError), run_lock.exclusive(path, "mine", ALONE):
        raise ZeroDivisionError
    assert not path.exists()
    path.write_text("process 1 of a machine that lost its power")

    def refuse(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    for flock in (run_lock.fcntl.flock, refuse):
        monkeypatch.setattr(run_lock.fcntl, "flock", flock)
        with run_lock.exclusive(path, "mine", ALONE) as is_done:
            assert not is_done
