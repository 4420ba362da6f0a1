"""Plans in files: who shares one, and what the script that writes them puts in."""

import json
from dataclasses import replace

import numpy as np
import pytest

import warm
from called import called
from pflpipe import trees
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.data.datasets import prepare
from pflpipe.json_records import to_json
from pflpipe.learning import architectures, networks
from pflpipe.pipeline.project import plan_request
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import ledger
from pflpipe.privacy.plan import Plan
from pflpipe.study.plans import CLASSES_FOUND, plan_of

FEDDPA_CODE = ("sample_level_calibration", "data_size_weights", "update_against_global")
FEDSAM_CODE = ("per_tensor_clip", "data_size_weights", "public_sampling")
TRAINING = Training(30, 3, 16, "sgd", 0.1, sample_rate=0.5)
NOISE = Privacy("gaussian", noise_multiplier=8.0, delta=1e-3, clip_norm=1.0)
CELL = Cell("digits", Partition("iid", 4), Model("mlp", (4,)), TRAINING, NOISE, "dp_fedsam")
SIZES = np.array([5, 100, 100, 200])


def with_departures(*departures, **changes):
    return replace(CELL, departures=departures, **changes)


def test_a_plan_is_shared_by_models_unless_its_parts_are_clipped_by_themselves():
    wider, none = Model("mlp", (4, 4)), Privacy()
    by_parts = (("per_tensor_clip",), ("per_layer_clip_unscaled", "data_dependent_clip"))
    for departures in ((), ("public_sampling",), *by_parts):
        shared = departures not in by_parts
        cells = with_departures(*departures), with_departures(*departures, model=wider)
        assert (cells[0].plan_id == cells[1].plan_id) == shared
        assert cells[0].plan_needs_model != shared
        for cell in cells:
            assert Cell.from_dict(json.loads(plan_request(cell))).plan_id == cell.plan_id
        assert not with_departures(*departures, privacy=none).plan_needs_model


OWN_DATA = replace(CELL, dataset="mine")


def test_a_plan_is_shared_by_data_sets_unless_only_the_data_tell_of_what_to_warn():
    other = replace(CELL, dataset="mnist")
    assert CELL.plan_id == other.plan_id
    assert not CELL.plan_needs_data
    mine, yours = OWN_DATA, replace(CELL, dataset="yours")
    assert len({cell.plan_id for cell in (CELL, mine, yours)}) == 3
    for cell in (CELL, mine, yours):
        assert Cell.from_dict(json.loads(plan_request(cell))).plan_id == cell.plan_id
    open_cells = [replace(cell, privacy=Privacy()) for cell in (CELL, mine)]
    assert [cell.plan_needs_data for cell in open_cells] == [False, True]


@pytest.mark.parametrize("departures", [(), FEDSAM_CODE])
def test_the_first_warning_of_a_private_run_says_that_classes_were_read_from_labels(departures):
    cell = replace(OWN_DATA, departures=departures)
    told, found = plan_of(cell, SIZES), plan_of(cell, SIZES, declared=False)
    assert found.ledger.warnings == (CLASSES_FOUND, *told.ledger.warnings)
    assert "read from all labels" in CLASSES_FOUND
    assert replace(found.ledger, warnings=told.ledger.warnings) == told.ledger
    silent = replace(cell, privacy=Privacy(), departures=())
    assert plan_of(silent, SIZES, declared=False).ledger.warnings == (), "nothing is claimed"


def written(cell, folder, name, file):
    """What the script writes for a cell, given one more file."""
    words = ["--cell", plan_request(cell), "--out", folder / "plans/plan.json"]
    script = (warm.interpreter(), "workflow/scripts/plan.py")
    called(*script, *words, f"--{name}", folder / file)
    return json.loads((folder / "plans/plan.json").read_text())


def written_of_sizes(cell, folder):
    """What the script writes for a cell whose clients have ``SIZES`` rows."""
    offsets = np.concatenate([[0], SIZES.cumsum()])
    np.savez(folder / "partition.npz", train_offsets=offsets)
    return written(cell, folder, "partition", "partition.npz")


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_plan_script_reads_from_the_data_whether_classes_are_declared_and_what_is_warned_of(
    declared, tmp_path
):
    arrays = {"train_images": np.zeros((60, 4, 4), np.uint8), "train_labels": np.arange(60) % 3}
    np.savez(tmp_path / "own.npz", **arrays, **({"classes": np.int64(3)} if declared else {}))
    prepare("mine", tmp_path / "own.npz", tmp_path, tmp_path / "mine.npz")
    warnings = written(OWN_DATA, tmp_path, "data", "mine.npz")["ledger"]["warnings"]
    assert (CLASSES_FOUND in warnings[:1]) != declared
    assert "test rows are copies of training rows: leave out copies" in warnings


OF_MODELS = [(Model("mlp", (4, 4)), 6, 3), (Model("cnn_cifar"), 12, 6)]


@pytest.mark.parametrize(("model", "tensors", "layers"), OF_MODELS)
def test_names_of_parameters_depend_on_the_model_alone(model, tensors, layers):
    names = architectures.parameter_names(model)
    assert (len(names), len(trees.layers(names))) == (tensors, layers)
    assert names == tuple(networks.build(model, (32, 32, 3), 7).shapes)


@pytest.mark.slow
def test_plan_script_writes_plan_and_ledger_of_a_cell(tmp_path):
    cell = with_departures(*FEDSAM_CODE)
    found = written_of_sizes(cell, tmp_path)
    plan = Plan(**found["plan"])
    assert plan == Plan("gaussian", 2, 1.0, 8.0, 0.5, 30, 1e-3, 4)
    names = ["fc1.weight", "fc1.bias", "head.weight", "head.bias"]
    assert found["ledger"] == to_json(ledger(plan, cell.privacy, FEDSAM_CODE, SIZES, names))


@pytest.mark.slow
def test_plan_script_calibrates_as_the_official_code_does(tmp_path):
    asked = Privacy("gaussian", epsilon=8.0, delta=1e-3, clip_norm=1.0)
    training = replace(TRAINING, sample_rate=1.0)
    cell = with_departures(*FEDDPA_CODE, privacy=asked, training=training)
    found = written_of_sizes(cell, tmp_path)
    shape = {"rounds": 30, "sample_rate": 1.0, "clients": 4}
    work = {"sizes": SIZES, "local_epochs": 3, "batch_size": 16}
    plan = make_plan(asked, departures=FEDDPA_CODE, **shape, **work)
    assert Plan(**found["plan"]) == plan
    assert found["ledger"] == to_json(ledger(plan, asked, FEDDPA_CODE, SIZES))
