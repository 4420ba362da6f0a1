"""A run on disk: killed at any moment it ends with the same bits; what belongs to another run is
not taken for its own."""

import csv
import math
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflpipe
from pflpipe import cells, files
from pflpipe.data import datasets, partition
from pflpipe.errors import DataError
from pflpipe.learning.metrics import CURVES
from pflpipe.methods import registry
from pflpipe.privacy.plan import Plan
from pflpipe.seeds import numpy_rng
from pflpipe.simulation import checkout, evaluation, rounds, runs
from pflpipe.simulation.clients import Examples
from pflpipe.simulation.simulation import Simulation
from simulations import assert_equal

ROUNDS = 8
ADAPTIVE = {"quantile": 0.5, "lr": 0.2, "bit_noise": 1.0}
SERVER = cells.Server("adam", lr=0.05)


def make_place(place: Path, method: str = "feddpa", **changes) -> cells.Cell:
    """Lay out the inputs of a small run on the digits; ``changes`` are of its plan."""
    cell = cells.Cell(
        "digits",
        cells.Partition("dirichlet", 6, alpha=0.5, min_size=2),
        cells.Model("mlp", (8,)),
        cells.Training(ROUNDS, 1, 16, "sgd", 0.1, sample_rate=0.7),
        cells.Privacy("gaussian", None, 1.0, 1e-3, 0.5),
        method,
        registry.check_hyperparameters(method, {}),
        departures=registry.info(method).about.departures,
    )
    datasets.prepare("digits", None, place, place / "digits.npz")
    divide(place, cell.partition)
    plan = asdict(Plan("gaussian", 2, 0.5, 1.0, 0.7, ROUNDS, 1e-3, 6))
    files.write_json(place / "plan.json", {"plan": plan | changes})
    files.write_json(place / "cell.json", cell.to_dict())
    return cell


def divide(place: Path, wish: cells.Partition, seed: int = 0) -> None:
    """Lay out another partition of the digits."""
    arrays = datasets.load_arrays(place / "digits.npz")
    partition.make(arrays, wish, seed).save(place / "partition.npz")


def simulated(place: Path, cell: cells.Cell, backend: str = "loop") -> Simulation:
    return runs.simulate(cell, inputs_of(place), device="cpu", backend=backend)


def state_of(place: Path) -> dict[str, Any]:
    """What a run has left."""
    return torch.load(place / "run/state.pt", weights_only=True)


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def with_training(cell: cells.Cell, **changes: Any) -> cells.Cell:
    return replace(cell, training=replace(cell.training, **changes))


def inputs_of(place: Path) -> runs.Inputs:
    return runs.Inputs(place / "plan.json", place / "partition.npz", place / "digits.npz")


def train_here(place: Path, cell: cells.Cell, **changes) -> None:
    settings = {"device": "cpu", "backend": "auto", "checkpoint_seconds": 3600, "code": "this"}
    runs.train(cell, inputs_of(place), place / "run", place / "checkpoints", **(settings | changes))


def _train_and_die(place: Path, cell: cells.Cell, kill_after: int) -> None:
    original = runs.Report.show

    def show(self: runs.Report, progress: rounds.Progress) -> None:
        original(self, progress)
        if progress.round == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    runs.Report.show = show
    with open(place / "stderr", "a", encoding="utf-8") as sys.stderr:
        train_here(place, cell, checkpoint_seconds=0)


def train_there(place: Path, cell: cells.Cell, kill_after: int = 0) -> int | None:
    """Train in a process of its own, ended by kill -9 after a round and before its checkpoint;
    return the exit code.

    Its messages go to ``place / "stderr"``. Processes are forked from a server that has imported
    everything and computed nothing: a process that has used autograd cannot be forked.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pflpipe.simulation.scores", "pytest"])
    process = context.Process(target=_train_and_die, args=(place, cell, kill_after))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.faults
def test_kill_9_at_random_rounds_ends_with_the_same_bytes_and_bits(tmp_path):
    cell = make_place(tmp_path / "whole", adaptive=ADAPTIVE)
    make_place(tmp_path / "killed", adaptive=ADAPTIVE)
    cell = replace(cell, server=SERVER)
    assert train_there(tmp_path / "whole", cell) == 0
    for kill_after in sorted(random.Random(0).sample(range(2, ROUNDS + 1), 3)):
        assert train_there(tmp_path / "killed", cell, kill_after) == -signal.SIGKILL
        assert not (tmp_path / "killed/run").exists()
    half = tmp_path / f"killed/checkpoints/.{registry.run_id(cell)}.half.pt"
    half.write_bytes(b"killed while writing")
    assert train_there(tmp_path / "killed", cell) == 0
    told = (tmp_path / "killed/stderr").read_text(encoding="utf-8")
    assert told.count("resuming after round") == 3
    whole, killed = (tmp_path / name / "run" for name in ("whole", "killed"))
    for file in ("rounds.csv", "run.json", "states.bin"):
        assert (whole / file).read_bytes() == (killed / file).read_bytes() != b""
    left, right = state_of(tmp_path / "whole"), state_of(tmp_path / "killed")
    assert left.keys() == right.keys() == {"params", "server", "bound", "states"}
    assert left["bound"] == right["bound"] != 0.5
    assert any(name.startswith("second.") for name in left["server"])
    assert_equal(left["params"], right["params"], 0)
    assert_equal(left["server"], right["server"], 0)
    assert_equal(left["states"]["initial"], right["states"]["initial"], 0)
    assert left["states"]["trained"].tolist() == right["states"]["trained"].tolist()
    told_rounds = [row["round"] for row in rows_of(killed / "timing.csv")]
    assert told_rounds == [str(r + 1) for r in range(ROUNDS)]
    assert not list((tmp_path / "killed/checkpoints").glob("*"))


OF_BUFFERS = {"band": ROUNDS, "buffers": {"decays": [0.9, 0.4], "scales": [0.3, 0.2]}}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("asked", "planned"), [({"band": 3}, {"band": 3}), ({"buffers": 2}, OF_BUFFERS)]
)
def test_a_killed_run_of_correlated_noise_ends_with_the_same_bits(tmp_path, asked, planned):
    """No noise is in a checkpoint: that of the rounds before it comes from their keys again."""
    places = tmp_path / "whole", tmp_path / "killed"
    for place in places:
        cell = make_place(place, "dp_fedavg", sample_rate=1.0, groups=2, **planned)
    cell = replace(cell, privacy=replace(cell.privacy, **asked))
    cell = with_training(cell, sample_rate=1.0, groups=2)
    assert train_there(places[0], cell) == 0
    assert train_there(places[1], cell, 5) == -signal.SIGKILL
    assert train_there(places[1], cell) == 0
    assert "resuming after round" in (places[1] / "stderr").read_text(encoding="utf-8")
    assert_equal(*(state_of(place)["params"] for place in places), 0)
    records = [files.read_json(place / "run/run.json") for place in places]
    assert records[0] == records[1]
    assert records[1]["diagnostics"]["residuals"]["mismatches"] == 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, cells.Cell]:
    """A folder with the checkpoint of a run of this cell that was killed."""
    place = tmp_path_factory.mktemp("killed")
    cell = make_place(place)
    assert train_there(place, cell, 3) == -signal.SIGKILL
    assert (place / "checkpoints" / f"{registry.run_id(cell)}.pt").exists()
    return place, cell


@pytest.fixture
def resumable(killed: tuple[Path, cells.Cell], tmp_path: Path) -> cells.Cell:
    """The cell of a run that was killed, of which this test has a copy."""
    shutil.copytree(killed[0], tmp_path, dirs_exist_ok=True)
    return killed[1]


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["other plan", "truncated", "states lost", "other program"])
def test_a_checkpoint_of_another_run_is_not_used(resumable, tmp_path, damage, capsys):
    path = tmp_path / "checkpoints" / f"{registry.run_id(resumable)}.pt"
    if damage == "other plan":
        make_place(tmp_path, noise_multiplier=2.0)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:500])
    elif damage == "states lost":
        path.with_suffix(".states").write_bytes(b"")
    code = "another" if damage == "other program" else "this"
    train_here(tmp_path, resumable, code=code)
    told = capsys.readouterr().err
    assert "starting from round 1" in told
    assert "resuming" not in told
    assert f"round {ROUNDS}/{ROUNDS}" in told


def test_the_fingerprint_covers_everything_that_decides_the_bits(tmp_path):
    cell, inputs = make_place(tmp_path), inputs_of(tmp_path)
    world = simulated(tmp_path, cell)

    def of(cell=cell, code="this program", **changes):
        return runs._fingerprint(cell, inputs, replace(world, **changes), code)

    before = of()
    assert before == of()
    x, y = world.train.x.clone(), world.train.y.clone()
    x[-1] += 1
    y[-1] += 1
    found = {
        "cell": of(cell=replace(cell, seed=1)),
        "plan": of(plan=replace(world.plan, noise_multiplier=2.0)),
        "backend": of(backend="vmap"),
        "examples": of(train=Examples(x, world.train.y)),
        "labels": of(train=Examples(world.train.x, y)),
        "program": of(code="another program"),
    }
    divide(tmp_path, cell.partition, seed=1)
    found["partition"] = of()
    assert [part for part, fingerprint in found.items() if fingerprint == before] == []


@pytest.mark.faults
def test_an_extra_import_in_the_process_keeps_the_checkpoint(
    resumable, tmp_path, capsys, monkeypatch
):
    extra = types.ModuleType("pflpipe.extra")
    extra.__file__ = str(tmp_path / "extra.py")
    (tmp_path / "extra.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, "pflpipe.extra", extra)
    train_here(tmp_path, resumable)
    assert "resuming after round" in capsys.readouterr().err


@pytest.mark.faults
def test_a_full_disk_costs_the_checkpoint_not_the_run(tmp_path, monkeypatch, capsys):
    cell = make_place(tmp_path)
    original = torch.save

    def full(content, path):
        if "fingerprint" in content:
            raise OSError(28, "No space left on device")
        original(content, path)

    monkeypatch.setattr(torch, "save", full)
    train_here(tmp_path, cell, checkpoint_seconds=0)
    log = capsys.readouterr().err
    assert "warning: no checkpoint after round 1: " in log
    assert "cannot be written; got 'No space left on device'; make room" in log
    assert (tmp_path / "run/state.pt").exists()


@pytest.mark.slow
def test_a_terminal_gets_one_live_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train_here(tmp_path, make_place(tmp_path, "dp_fedavg"))
    told = capsys.readouterr().err
    assert told.count("\r") == ROUNDS
    assert told.count("\n") == 1


@pytest.mark.slow
def test_run_json_says_what_ran_and_what_it_sent(tmp_path):
    cell = make_place(tmp_path, "dp_fedavg")
    train_here(tmp_path, cell)
    found = files.read_json(tmp_path / "run/run.json")
    assert cells.Cell.from_dict(found["cell"]) == cell
    released = found["released"]
    assert released["parameters"] == released["uploaded_parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    plan = files.read_json(inputs_of(tmp_path).plan)["plan"]
    expected = plan["sample_rate"] * plan["clients"] * 4 * released["parameters"]
    # Of the cohort that is expected, whoever was drawn.
    assert released["upload_bytes_per_round"] == pytest.approx(expected)
    assert released["releases"] == ROUNDS
    participants = [int(row["participants"]) for row in rows_of(tmp_path / "run/rounds.csv")]
    diagnostics = found["diagnostics"]
    assert diagnostics["participants"] == sum(participants)
    assert diagnostics["diverged_round"] is None
    assert diagnostics["residuals"]["coordinates"] == ROUNDS * released["parameters"]
    program = found["program"]
    assert (program["backend"], program["device"], program["gpu"]) == ("vmap", "cpu", "")
    assert (program["processor"], program["cores"]) == (checkout.processor(), os.cpu_count())
    assert program["versions"]["python"] == platform.python_version()
    assert program["commit"] == "", "nobody said"
    assert os.uname().nodename not in program["processor"].split()


def test_a_run_on_a_gpu_says_which(tmp_path, monkeypatch):
    cell = make_place(tmp_path, "dp_fedavg")
    world = simulated(tmp_path, cell)
    on_gpu = types.SimpleNamespace(device=torch.device("cuda", 1))
    elsewhere = replace(world, train=types.SimpleNamespace(x=on_gpu))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    progress = rounds.start(world, tmp_path / "states.bin")
    progress.round = 1
    program = runs._record(cell, elsewhere, progress, "1234abc").program
    assert (program.device, program.gpu, program.commit) == ("cuda:1", "GPU 1", "1234abc")


def test_a_gpu_rounds_factors_only_when_a_study_asks_for_it(tmp_path):
    cell = make_place(tmp_path, "dp_fedavg")
    for precision in ("tf32", "bf16", "tf32", "float32"):
        world = simulated(tmp_path, with_training(cell, precision=precision))
        allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        assert allowed == (precision == "tf32", precision == "tf32")
        assert world.task.precision == precision


def test_a_run_trains_and_tests_on_the_labels_of_a_shifted_partition(tmp_path):
    cell, inputs = make_place(tmp_path, "dp_fedavg"), inputs_of(tmp_path)
    wish = replace(cell.partition, test_fraction=0.3, shifted=0.5)
    arrays = datasets.load_arrays(inputs.data)
    split = partition.make(arrays, wish, 0)
    split.save(inputs.partition)
    labels = simulated(tmp_path, replace(cell, partition=wish)).train.y.numpy()
    for i in range(6):
        rows = np.concatenate([split.train[i], split.test[i]])
        assert (labels[rows] == (arrays.train_labels[rows] + (i < 3)) % 10).all()


def test_a_plan_or_a_partition_of_another_cell_is_refused(tmp_path):
    for change in ({"clients": 5}, {"rounds": 3}, {"sample_rate": 1.0}):
        cell = make_place(tmp_path, **change)
        with pytest.raises(DataError, match="clients, rounds, sample rate; got"):
            train_here(tmp_path, cell)
    cell = make_place(tmp_path)
    divide(tmp_path, cells.Partition("iid", 3))
    with pytest.raises(DataError, match="clients; got 3; expected 6"):
        train_here(tmp_path, cell)


@pytest.mark.slow
def test_accuracy_on_digits_lies_in_its_window(tmp_path):
    """Too good fails as well: it means that the noise got lost (the idea of a two-sided window is
    Opacus')."""
    cell = make_place(tmp_path, "dp_fedavg", rounds=12, clients=100, sample_rate=1.0)
    division = cells.Partition("dirichlet", 100, alpha=0.3, min_size=6)
    training = cells.Training(12, 5, 0, "sgd", 0.5)
    cell = replace(cell, partition=division, training=training, model=cells.Model("mlp", (32,)))
    divide(tmp_path, division)
    simulation = simulated(tmp_path, cell, "vmap")
    found = []
    for noise in (0.0, 1.7, 50.0):
        noisy = replace(simulation, plan=replace(simulation.plan, noise_multiplier=noise))
        progress = rounds.run(noisy, rounds.start(noisy))
        found.append(evaluation.accuracies(noisy, progress)[0]["global_common"])
    assert 72 < found[0] < 84, found
    assert 70 < found[1] < 84, found
    assert found[2] < 40, found


@pytest.mark.slow
def test_accuracies_by_round_are_those_of_the_evaluation_and_change_nothing(tmp_path):
    rows = {}
    for every in (0, 3):
        place = tmp_path / str(every)
        cell = with_training(make_place(place, "dp_fedavg"), evaluate_every=every)
        train_here(place, cell)
        rows[every] = rows_of(place / "run/rounds.csv")
    assert [row["round"] for row in rows[3] if row["global_common"]] == ["3", "6", str(ROUNDS)]
    for plain, row in zip(rows[0], rows[3], strict=True):
        assert plain == row | dict.fromkeys(CURVES, "")
    world = simulated(place, cell, "auto")
    final = runs.load_final(place / "run", world)
    of_clients = evaluation.accuracies(world, final)
    for name in CURVES:
        mean = np.nanmean([row[name] for row in of_clients])
        assert float(rows[3][-1][name]) == pytest.approx(mean)

    some = replace(world, training=replace(cell.training, evaluate_clients=3))
    three = sorted(numpy_rng(cell.seed, "curves").choice(range(6), 3, replace=False))
    found = evaluation.means(some, final)
    for name in CURVES:
        assert found[name] == pytest.approx(np.nanmean([of_clients[i][name] for i in three]))

    released = replace(world, training=replace(cell.training, evaluate_personal=False))
    common = pytest.approx(of_clients[0]["global_common"], rel=1e-12)
    assert evaluation.means(released, final) == {"global_common": common}
    without = replace(released, has_global_model=False)
    assert math.isnan(evaluation.means(without, final)["global_common"])


def test_a_cell_is_resolved_once_before_its_first_round(tmp_path, monkeypatch):
    """Calls from other modules into those that look up what a cell names."""
    cell = make_place(tmp_path)
    package = Path(pflpipe.__file__).parent
    names = ("methods/registry.py", "learning/architectures.py", "code/user_files.py")
    entered = dict.fromkeys([str(package / name) for name in names], 0)

    class BegunError(Exception):
        pass

    def begin(*_):
        sys.setprofile(None)
        raise BegunError

    def note(frame, event, _):
        file, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename
        if event == "call" and file in entered and caller != file:
            entered[file] += 1

    monkeypatch.setattr(rounds, "one_round", begin)
    sys.setprofile(note)
    with pytest.raises(BegunError):
        train_here(tmp_path, cell)
    assert list(entered.values()) == [1, 1, 0]
