"""A cell as plain values and its ids."""

import dataclasses
import hashlib
import json

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.files import canonical_json

DEALT, TRAINING = Partition("dirichlet", 10, alpha=0.5), Training(3, 1, 4, "sgd", 0.1)
FLIPPED = dataclasses.replace(TRAINING, augment=("flip",))
NOISE = Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0)
CELL = Cell("digits", DEALT, Model("mlp", (8, 4)), FLIPPED, NOISE, "feddpa", {"tau": 0.3})
CELL = dataclasses.replace(CELL, departures=("data_size_weights",))


def test_plain_values_are_those_of_every_field_and_make_the_same_cell_again():
    assert CELL.id, "asked for before, which leaves no trace in the values"
    outside = dataclasses.replace(CELL, source="studies/easgd.py")
    assert outside.to_dict() == dataclasses.asdict(outside)
    for cell in (CELL, outside):
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell


def test_a_change_of_the_plain_values_does_not_reach_the_cell():
    values, before = CELL.to_dict(), CELL.id
    values["training"]["rounds"] = values["hyperparameters"]["tau"] = 7
    assert CELL.training.rounds == 3
    assert CELL.hyperparameters == {"tau": 0.3}
    assert dataclasses.replace(CELL).id == before


def test_an_id_stays_when_cells_get_new_fields():
    """Golden: a name that changes trains again whatever is finished. Only what differs from a
    field's default counts, so a new field with its default renames nothing."""
    assert CELL.id == "digits-dirichlet0.5x10-feddpa-eps2-seed0-b8f7653a4e"
    assert CELL.partition_id == "digits-dirichlet0.5x10-seed0-db1e402670"
    assert CELL.plan_id == "gaussian-M10-q1-T3-3e482c0658"


def test_a_digest_of_the_identity_ends_the_id():
    """A certificate has the identity, from which others find the id. Hyper-parameters that are
    younger than stored runs are no part of it at their defaults."""
    older = dataclasses.replace(CELL, method="fedrep", hyperparameters={"head_lr": 0.1})
    newer = dataclasses.replace(older, hyperparameters={"head_lr": 0.1, "head_solver": "sgd"})
    digest = hashlib.sha256(canonical_json(newer.identity).encode()).hexdigest()
    assert newer.id.endswith(f"-{digest[:10]}")
    assert newer.id == older.id
    other = dataclasses.replace(older, hyperparameters={"head_lr": 0.1, "head_solver": "ridge"})
    assert other.id != older.id


def test_a_changed_cell_has_ids_of_its_own():
    names = "id", "partition_id", "plan_id"  # a plan that counts examples follows the partition
    before = [getattr(CELL, name) for name in names]
    other = dataclasses.replace(CELL, seed=1, partition=Partition("iid", 10))
    assert all(getattr(other, name) != one for name, one in zip(names, before, strict=True))
