"""Users without training examples, from the file of a data set to the table: they take part, send
zero and are tested."""

import csv
import functools
import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

import warm
from pflpipe import files
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.data import datasets, partition
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.pipeline.project import partition_request, plan_request
from pflpipe.report import summary, tidy
from pflpipe.report.figures import kinds as figures
from pflpipe.report.figures import style
from pflpipe.simulation import runs, scores
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Drawing, Row, Study

TRAIN, TEST = (9, 0, 1, 6, 0, 3), (2, 3, 0, 1, 4, 0)
"""Rows of each user. With ``min_size`` 2 user 2 has one too few, and nothing at all."""
HOLD = [9, 0, 0, 6, 0, 3]
NATURAL = Partition("natural", clients=6, min_size=2, validation_fraction=0.3)
TRAINING = Training(8, 2, 2, "sgd", 0.3, sample_rate=0.2, evaluate_every=4)
NOISE = Privacy("gaussian", noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
# In some rounds of this seed only clients without examples are drawn.
CERTIFIED = Cell("mine", NATURAL, Model("mlp", (4,)), TRAINING, NOISE, "dp_fedavg", seed=1)
BUDGET = replace(NOISE, epsilon=4.0, noise_multiplier=None)
DEPARTURES = ("data_size_weights", "sample_level_calibration", "update_against_global")
AS_PUBLISHED = {"profile": "paper", "official_code": True, "departures": DEPARTURES}
OFFICIAL = replace(CERTIFIED, method="feddpa", privacy=BUDGET, **AS_PUBLISHED)
OFFICIAL = replace(OFFICIAL, training=replace(TRAINING, sample_rate=1.0))
STUDY = Study("tiny", "Tiny", "Made up.", (Row(CERTIFIED), Row(OFFICIAL)))
CELLS = {cell.method: cell for cell in STUDY.cells}


@pytest.fixture(scope="module", params=["loop", "vmap"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the jobs of a study write, from the user's own file on."""
    place: Path = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(0)
    raw = {}
    for part, sizes in (("train", TRAIN), ("test", TEST)):
        users = rng.permutation(np.repeat(np.arange(6), sizes))
        # Not everybody's largest class is the first one.
        labels = (users % 2) ^ (rng.random(len(users)) < 0.2)
        raw |= {f"{part}_users": np.array([f"user {i}" for i in users]), f"{part}_labels": labels}
        raw[f"{part}_images"] = rng.normal(size=(len(users), 3)) + labels[:, None]
    np.savez(place / "own.npz", **raw)
    datasets.prepare("mine", place / "own.npz", place, place / "data/mine.npz")
    results = place / "results"
    for cell in STUDY.cells:
        ((_, inputs, _),) = scores.places_of([cell], [cell.id], results, place / "data")
        split = partition.make(datasets.load_arrays(inputs.data), cell.partition, cell.seed)
        split.save(inputs.partition)
        files.write_json(inputs.plan, planned(cell.method, tuple(map(len, split.train))))
        run = results / f"runs/{registry.run_id(cell)}"
        how = {"device": "cpu", "backend": request.param}
        job = registry.run_cell(cell), inputs, run, place / "checkpoints"
        runs.train(*job, checkpoint_seconds=3600, code="", **how)
        target = results / f"scores/tiny/{cell.method}.csv"
        scores.evaluate_cells([(cell, inputs, run)], target, **how)
    return place


@functools.cache
def planned(method: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The contents of a plan file; counting a sampled mechanism takes seconds."""
    plan: dict[str, Any] = to_json(plan_of(CELLS[method], np.array(sizes)))
    return plan


def records(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rounds(folder: Path, cell: Cell) -> list[dict[str, str]]:
    return records(folder / f"results/runs/{registry.run_id(cell)}/rounds.csv")


WHATEVER_TRAINED = pytest.mark.parametrize("folder", ["loop"], indirect=True)


@pytest.mark.slow
@WHATEVER_TRAINED
def test_a_plan_for_all_users_learns_their_number_from_the_partition(folder, tmp_path):
    """Left out, ``clients`` is all of them: the same clients, the same noise multiplier, and a name
    that says so."""
    everyone = replace(CERTIFIED, partition=replace(CERTIFIED.partition, clients=0))
    assert everyone.plan_needs_partition
    assert (everyone.id.split("-")[1], everyone.plan_id.split("-")[1]) == ("naturalxall", "Mall")
    assert everyone.id != CERTIFIED.id
    inputs = runs.Inputs(tmp_path / "plan.json", tmp_path / "split.npz", folder / "data/mine.npz")
    for script, asked, *words in (
        ("partition", partition_request, "--data", inputs.data, "--target", inputs.partition),
        ("plan", plan_request, "--partition", inputs.partition, "--out", inputs.plan),
    ):
        program = [warm.interpreter(), f"workflow/scripts/{script}.py"]
        subprocess.run([*program, "--cell", asked(everyone), *words], check=True)
    assert files.read_json(inputs.plan) == planned("dp_fedavg", tuple(HOLD))
    world = runs.simulate(everyone, inputs, device="cpu", backend="vmap")
    assert world.plan.clients == len(world.split.train) == 6


@pytest.mark.slow
def test_a_round_of_nobody_with_examples_is_a_round_like_any_other(folder):
    drawn = [row for row in rounds(folder, CERTIFIED) if int(row["participants"])]
    silent = [row for row in drawn if not row["loss"]]
    assert silent
    assert len(silent) < len(drawn)
    for row in silent:
        assert float(row["update_norm_max"]) == float(row["signal_norm"]) == 0
        assert row["nonfinite_uploads"] == "0"
        assert float(row["noise_norm"]) > 0
    for cell in STUDY.cells:
        run = files.read_json(folder / f"results/runs/{registry.run_id(cell)}/run.json")
        assert run["diagnostics"]["diverged_round"] is None


@pytest.mark.slow
@pytest.mark.parametrize("cell", STUDY.cells, ids=lambda cell: cell.method)
def test_accuracies_over_no_examples_are_empty_and_all_others_are_there(cell, folder):
    rows = records(folder / f"results/scores/tiny/{cell.method}.csv")
    sizes = [int(row["train_size"]) for row in rows]
    validated = [bool(row["personal_validation"]) for row in rows]
    assert [size > 0 for size in sizes] == validated == [size > 0 for size in HOLD]
    held = [(size > 0, tests > 0) for size, tests in zip(HOLD, TEST, strict=True)]
    for kind in ("personal", "global"):
        own, new = ([bool(row[f"{kind}_{name}"]) for row in rows] for name in ("own", "new"))
        assert own == [trained and tested for trained, tested in held]
        assert new == [tested and not trained for trained, tested in held]
    assert [bool(row["personal_common"]) for row in rows] == [trained for trained, _ in held]
    assert all(row["global_common"] for row in rows)


def test_a_user_without_examples_has_the_released_model_of_a_method_without_a_state(folder):
    rows = records(folder / "results/scores/tiny/dp_fedavg.csv")
    for row, size in zip(rows, HOLD, strict=True):
        if not size:
            assert row["personal_new"] == row["global_new"]


@WHATEVER_TRAINED
def test_people_with_test_rows_alone_are_new_and_every_mean_says_over_how_many_it_is(folder):
    frame = tidy.tidy(STUDY, folder / "results")
    counts = {"personal_own": 2, "global_own": 2, "personal_new": 2, "global_new": 2}
    counts |= {"personal_common": 3, "global_common": 6}
    for _, line in frame.iterrows():
        rows = records(folder / f"results/scores/tiny/{line['method']}.csv")
        names = ("personal_own", "personal_new")
        own, new = ([float(row[name]) for row in rows if row[name]] for name in names)
        assert (len(own), len(new)) == (2, 2)
        assert json.loads(line["clients_evaluated"]) == counts
        assert line["personal_own"] == pytest.approx(np.mean(own))
        assert line["personal_new"] == pytest.approx(np.mean(new))
        assert line["personal_own_worst_decile"] == pytest.approx(min(own))
        assert math.isfinite(line["epsilon_central"])
        assert math.isfinite(line["epsilon_published"]) or line["method"] == "dp_fedavg"
        assert math.isfinite(float(rounds(folder, CELLS[line["method"]])[-1]["personal_own"]))


@WHATEVER_TRAINED
def test_the_notes_of_a_table_say_whom_its_means_leave_out(folder):
    table = summary.summarise(STUDY, tidy.tidy(STUDY, folder / "results"))
    (note,) = [note for note in table.notes if note.startswith("Means over own test rows")]
    assert "over 2 of 6 clients and 2 new ones: " in note


@pytest.mark.slow
@WHATEVER_TRAINED
def test_every_figure_is_drawn(folder):
    tidy.write(tidy.tidy(STUDY, folder / "results"), folder / "results/tables/tiny.csv")
    for kind in ("privacy_utility", "convergence", "cost", "partition"):
        with matplotlib.rc_context(fname=style.SHEET):
            figure = figures.draw(STUDY, Drawing(kind, kind), folder / "results", folder / "data")
            figure.draw_without_rendering()
        assert figure.axes[0].has_data()


@WHATEVER_TRAINED
def test_the_partition_figure_has_the_users_without_examples_last(folder):
    tidy.write(tidy.tidy(STUDY, folder / "results"), folder / "results/tables/tiny.csv")
    drawing = Drawing("partition", "partition")
    above, below = figures.draw(STUDY, drawing, folder / "results", folder / "data").axes[:2]
    held = np.asarray(above.images[0].get_array()).sum(axis=0)
    assert sorted(held[:3]) == sorted(size for size in HOLD if size)
    assert held[3:].tolist() == [0, 0, 0]
    assert sum(patch.get_height() for patch in below.patches) == sum(HOLD) + sum(TEST)
