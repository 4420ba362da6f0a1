"""Processes that share a run's clients: real ones, started by torchrun, get the numbers of one
process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shared_run
import test_runs
import warm
from called import called
from pflpipe import cells, files
from pflpipe.simulation import processes, rounds
from pflpipe.simulation.processes import Processes
from test_runs import ADAPTIVE, SERVER, inputs_of, make_place, train_here

ROOT = Path(__file__).resolve().parent.parent
FORKED = {"PYTHON_EXEC": warm.interpreter()}
"""What torchrun starts."""


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | more


@pytest.mark.slow
def test_every_method_has_the_bits_of_one_process_and_each_of_three_has_one_thread(tmp_path):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    words += [str(ROOT / "tests/shared_run.py"), str(tmp_path)]
    # Snakemake gives a job of three processes three threads.
    called(sys.executable, *words, **environment(OMP_NUM_THREADS="3", **FORKED))
    for method, backend in shared_run.RUNS:
        found = torch.load(tmp_path / f"{method}-{backend}.pt", weights_only=True)
        expected = shared_run.outcome(method, backend)
        assert (found.pop("size"), found.pop("threads")) == (3, 1)
        for part, tree in expected.items():
            assert found[part].keys() == tree.keys()
            for key, value in tree.items():
                torch.testing.assert_close(found[part][key], value, rtol=0, atol=0, equal_nan=True)


def test_cohorts_are_larger_and_smaller_than_the_number_of_processes():
    world = shared_run.world("feddpa", "loop")
    sizes = [int(rounds.cohort(world, round).sum()) for round in range(world.plan.rounds)]
    assert sizes == [3, 3, 1]


def train_shared(place: Path, cell: cells.Cell, out: str) -> list[str]:
    """The command that trains with two processes, as the rule does, with a checkpoint after every
    round."""
    inputs = inputs_of(place)
    words = ["--cell", files.canonical_json(cell.to_dict())]
    words += ["--inputs", inputs.plan, inputs.partition, inputs.data]
    words += ["--out", place / out, "--checkpoints", place / "checkpoints", "--device", "cpu"]
    words += ["--backend", "loop", "--processes", "2", "--checkpoint-seconds", "0"]
    return [sys.executable, *map(str, [ROOT / "workflow/scripts/train.py", *words])]


@pytest.mark.faults
def test_kill_9_ends_all_processes_and_what_they_write_in_the_end_is_what_one_process_writes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(test_runs, "ROUNDS", 40)
    cell = make_place(tmp_path, "feddpa", rounds=40, adaptive=ADAPTIVE)
    cell = replace(cell, server=SERVER)
    command = train_shared(tmp_path, cell, "shared")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert any("round 4/40" in line for line in process.stderr)
        process.kill()  # torchrun alone; its processes have its stderr open as long as they live
        assert "round 40/40" not in process.stderr.read()
    assert not (tmp_path / "shared").exists()
    done = called(*command, **environment(**FORKED))
    assert done.stderr.count("resuming after round") == 1
    assert done.stderr.count("round 40/40") == 1
    assert files.read_json(tmp_path / "shared/run.json")["program"]["processes"] == 2
    train_here(tmp_path, cell, backend="loop")
    for name in ("rounds.csv", "states.bin"):
        assert (tmp_path / "shared" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_the_dearest_client_is_given_away_first():
    assert Processes(0, 2).shares([1, 1, 1, 1, 4]) == [[4], [0, 1, 2, 3]]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_every_client_has_one_process_and_none_has_much_more_than_its_share(costs, size):
    shares = Processes(0, size).shares(costs)
    assert sorted(place for share in shares for place in share) == list(range(len(costs)))
    assert len(shares) == size
    loads = [sum(costs[place] for place in share) for share in shares]
    assert max(loads) <= sum(costs) / size + max(costs, default=0)


def test_runs_side_by_side_take_gpus_of_their_own_as_long_as_they_last(monkeypatch):
    monkeypatch.setattr(processes, "_held", [])
    seen = []
    for device, count in (("cuda", 2), ("auto", 1), ("cuda", 2), ("cuda:0", 1), ("cuda", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "40,41,42,43")
        processes.take_gpus(device, count)
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    every = "40,41,42,43"
    assert seen == ["40,41", "42", every, every, "43"]  # third: two were not free
    processes._held.pop(0).close()  # as the kernel does when a run ends
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", every)
    processes.take_gpus("cuda", 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "40,41"
    # A run that sees no more than it needs takes none.
    monkeypatch.setattr(processes, "_held", [])
    for shown in ("", "7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        processes.take_gpus("cuda", 1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == shown
    assert processes._held == []
