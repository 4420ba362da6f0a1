"""Processes that share a run's clients: real ones, started by torchrun, get the numbers of one
process."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import test_runs
import warm
from pflpipe import cells, files
from pflpipe.methods.registry import NAMES
from pflpipe.simulation.processes import Processes
from shared_run import outcome
from test_runs import ADAPTIVE, SERVER, inputs_of, make_place, train_here

ROOT = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | more


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "count"), [("loop", 2), ("vmap", 3)])
def test_every_method_has_the_numbers_of_one_process(tmp_path, backend, count):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={count}",
    ]
    words = [str(ROOT / "tests/shared_run.py"), str(tmp_path), backend, *NAMES]
    done = subprocess.run(
        [*command, *words],
        env=environment(PYTHON_EXEC=warm.interpreter()),  # what torchrun starts
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in NAMES:
        for rate in (1.0, 0.3):
            found, expected = (
                torch.load(tmp_path / f"{name}-{rate}.pt", weights_only=True),
                outcome(name, backend, rate),
            )
            assert found.pop("size") == count
            for part, tree in expected.items():
                assert found[part].keys() == tree.keys()
                for key, value in tree.items():
                    # Clients alone have the same bits in any process; in groups they are summed in
                    # another order.
                    exact = (
                        {"rtol": 0, "atol": 0}
                        if backend == "loop"
                        else {"rtol": 1e-11, "atol": 1e-13}
                    )
                    torch.testing.assert_close(found[part][key], value, equal_nan=True, **exact)


def train_shared(place: Path, cell: cells.Cell, out: str) -> list[str]:
    """The command that trains with two processes, as the rule does, with a checkpoint after every
    round."""
    inputs = inputs_of(place)
    words = [
        "--cell",
        files.canonical_json(cell.to_dict()),
        "--inputs",
        inputs.plan,
        inputs.partition,
        inputs.data,
    ]
    words += ["--out", place / out, "--checkpoints", place / "checkpoints", "--device", "cpu"]
    words += ["--backend", "loop", "--processes", "2", "--checkpoint-seconds", "0"]
    return [sys.executable, *map(str, [ROOT / "workflow/scripts/train.py", *words])]


@pytest.mark.slow
def test_kill_9_ends_all_processes_and_the_run_ends_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(test_runs, "ROUNDS", 40)
    cell = make_place(tmp_path, "feddpa", rounds=40)
    command = train_shared(tmp_path, cell, "killed")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert any("round 4/40" in line for line in process.stderr)
        process.kill()  # torchrun alone; its processes have its stderr open as long as they live
        assert "round 40/40" not in process.stderr.read()
    assert not (tmp_path / "killed").exists()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("resuming after round") == 1
    train_here(tmp_path, cell, backend="loop")
    for name in ("rounds.csv", "states.bin"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@pytest.mark.slow
def test_the_scripts_of_the_pipeline_share_their_clients_and_write_what_one_process_writes(
    tmp_path,
):
    cell = make_place(tmp_path, "feddpa", adaptive=ADAPTIVE)
    cell = dataclasses.replace(cell, server=SERVER)
    train_here(tmp_path, cell, backend="loop")
    done = subprocess.run(
        train_shared(tmp_path, cell, "shared"),
        env=environment(PYTHON_EXEC=warm.interpreter()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("round 8/8") == 1
    assert files.read_json(tmp_path / "shared/run.json")["program"]["processes"] == 2
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
