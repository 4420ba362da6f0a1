"""Clients who took no part in training: nothing of theirs is in it, and what they are tested with
is a model of their own making."""

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pflpipe
import tabled
from pflpipe import files
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.data import datasets
from pflpipe.data.partition import make
from pflpipe.data.split import PARTS, Split, check_new
from pflpipe.errors import DataError
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.privacy.plan import Adaptive
from pflpipe.report import tidy
from pflpipe.seeds import seed_for
from pflpipe.simulation import evaluation, rounds, runs, scores
from pflpipe.simulation.simulation import Simulation
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Row, Study
from pflpipe.trees import Tree
from simulations import assert_equal, hooked, open_plan, plan, simulation
from test_partition import assert_same_rows

exactly = settings(derandomize=True, deadline=None, max_examples=20)
TABLES = tabled.table("test_new_clients")
KINDS = [Partition(**wish) for wish in TABLES["kinds"]]
USERS = 16


def data(seed: int = 0, mixed: np.ndarray | None = None) -> datasets.Arrays:
    """16 users with 240 + 80 examples of 4 classes; examples of the users ``mixed`` have other
    labels."""
    rng = np.random.default_rng(seed)
    labels, users = rng.integers(0, 4, 320), rng.integers(0, USERS, 320)
    if mixed is not None:
        labels = np.where(np.isin(users, mixed), 3 - labels, labels)
    images = np.zeros((240, 1, 1), np.uint8), np.zeros((80, 1, 1), np.uint8)
    of_rows = labels[:240], images[1], labels[240:]
    return datasets.Arrays(images[0], *of_rows, 4, users[:240], users[240:])


# ---------------------------------------------------------------- who they are


@pytest.mark.slow
@exactly
@given(st.sampled_from(KINDS), st.integers(1, 6), st.integers(0, 99))
def test_new_clients_are_as_many_as_asked_and_share_nothing_with_the_others(wish, count, seed):
    arrays = data(seed)
    wish = replace(wish, new_clients=count)
    split = make(arrays, wish, seed)
    everybody = USERS if not wish.clients else 9 + count
    assert (len(split.train), len(split.new.train)) == (everybody - count, count)
    train = [np.concatenate([*part.train, *part.validation]) for part in (split, split.new)]
    if split.own_from_train:
        parts = zip(train, (split, split.new), strict=True)
        train = [np.concatenate([rows, *part.test]) for rows, part in parts]
    rows = np.concatenate(train)
    assert len(np.unique(rows)) == len(rows)
    if wish.kind != "natural":
        assert len(rows) == len(arrays.train_labels)
    else:
        trained, held_out = (set(arrays.train_users[part].tolist()) for part in train)
        assert not trained & held_out
        tested = set(arrays.test_users[split.common].tolist())
        assert not tested & held_out
        assert (trained | held_out | tested) <= set(range(everybody))
    check_new(split, wish, arrays)


@exactly
@given(st.integers(1, 5), st.integers(0, 99), st.sampled_from([None, 0.3]))
def test_what_new_users_hold_changes_nothing_for_the_others(count, seed, test_fraction):
    wish = Partition("natural", 9, new_clients=count, test_fraction=test_fraction)
    before, arrays = make(data(), wish, seed), data()
    whose = np.unique(np.concatenate([arrays.train_users[rows] for rows in before.new.train]))
    after = make(data(mixed=whose), wish, seed)
    assert_same_rows(before, after)
    assert_same_rows(before.new, after.new)


def test_who_is_new_follows_from_the_seed_and_is_nobodys_choice():
    wish = Partition("natural", 9, new_clients=3)
    drawn = []
    for seed in range(40):
        split, arrays = make(data(), wish, seed), data()
        drawn.append({int(arrays.train_users[rows[0]]) for rows in split.new.train})
    assert len(set(map(frozenset, drawn))) > 20
    assert set.union(*drawn) == set(range(12))


def test_a_split_with_new_clients_is_loaded_as_it_was_saved(tmp_path):
    split = make(data(), Partition("natural", 9, new_clients=4, test_fraction=0.3), 0)
    split.save(tmp_path / "a.npz")
    found = Split.load(tmp_path / "a.npz")
    assert found.own_from_train
    assert found.new.own_from_train
    for one, other in ((split, found), (split.new, found.new)):
        assert_same_rows(one, other)
        assert np.array_equal(one.common, other.common)


@pytest.mark.parametrize(("wish", "words"), TABLES["refused"].values(), ids=TABLES["refused"])
def test_a_wish_that_cannot_be_met_is_refused_in_one_line(wish, words):
    with pytest.raises(Exception, match=words) as caught:
        make(data(), Partition(**wish), 0)
    assert "\n" not in str(caught.value)


def trained_with(split: Split, part: str, rows: np.ndarray) -> Split:
    """Give a client of training these rows too."""
    held = list(getattr(split, part))
    held[2] = np.append(held[2], rows)
    return replace(split, **{part: held})


def first_has(split: Split, *rows: np.ndarray) -> Split:
    """Give the first new client these rows alone; none: it is no client."""
    return replace(split, new=replace(split.new, train=[*rows, *split.new.train[1:]]))


FAULTS = {
    "a training example": (
        lambda split: trained_with(split, "train", split.new.train[0][:1]),
        "training examples of new clients; got '1 of clients in training",
    ),
    "a validation example": (
        lambda split: trained_with(split, "validation", split.new.validation[0][:1]),
        "training examples of new clients",
    ),
    "another example of the same user": (
        lambda split: first_has(
            trained_with(split, "train", split.new.train[0][:1]), split.new.train[0][1:]
        ),
        "users of new clients; got '1 of",
    ),
    "one client too few": (first_has, "new clients; got 2; expected 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_new_client_that_was_in_training_is_caught(fault):
    arrays = data()
    wish = Partition("natural", 9, new_clients=3, validation_fraction=0.3)
    split = make(arrays, wish, 0)
    check_new(split, wish, arrays)
    plant, words = FAULTS[fault]
    with pytest.raises(DataError, match=words):
        check_new(plant(split), wish, arrays)


# ---------------------------------------------------------------- what they are tested with

SIZES = (9, 4, 1, 6, 7, 0, 5)
SOME, OTHERS = slice(0, 4), slice(4, 7)


def world(method: str, backend: str = "loop") -> Simulation:
    """Four clients in training and three new ones, one of them without training examples."""
    entry = registry.info(method)
    made = (plan if entry.about.private else open_plan)(7, rounds=2)
    short = {"head_epochs": 1} if "head_epochs" in entry.hyperparameters else {}
    found = simulation(method, short, sizes=SIZES, backend=backend, plan=made)
    split = found.split
    old, new = ({part: getattr(split, part)[of] for part in PARTS} for of in (SOME, OTHERS))
    both = replace(split, **old, new=replace(split, **new))
    return replace(found, plan=replace(found.plan, clients=4), split=both)


WITHOUT_NORM = [name for name in registry.NAMES if "norm" not in registry.info(name).about.needs]


@pytest.mark.slow
@pytest.mark.parametrize("method", WITHOUT_NORM)
def test_new_clients_of_every_method_are_tested_alike_in_loop_and_vmap(method):
    worlds = [world(method, backend) for backend in ("loop", "vmap")]
    ends = [rounds.run(found, rounds.start(found)) for found in worlds]
    loop, vmapped = map(evaluation.accuracies_of_new, worlds, ends)
    assert [row["client"] for row in loop] == ["new0", "new1", "new2"]
    assert [row["train_size"] for row in loop] == [7, 0, 5]
    assert all(math.isfinite(row["personal_new"]) for row in loop)
    assert loop == vmapped


def by_hand(found: Simulation, released: Tree) -> list[Tree]:
    """Personal model of each new client of FedPer: a head of its own, trained for two rounds beside
    the released body, and one pass over both."""
    seed = seed_for(found.seed, "new clients")
    others = replace(found, split=found.split.new, seed=seed)
    models = []
    for client in range(3):
        head = {name: released[name] for name in ("head.weight", "head.bias")}
        for round in (0, 1, 2):  # two that a client is drawn in, and the last pass
            params = released | head
            for batch in others.train.schedule(others.work(client, round)["train"]):
                leaves = {name: v.clone().requires_grad_() for name, v in params.items()}
                logits = others.network.apply(leaves, batch.x)
                torch.nn.functional.cross_entropy(logits, batch.y).backward()
                params = {name: (v - 0.3 * v.grad).detach() for name, v in leaves.items()}
            head = {name: params[name] for name in head}
        models.append(params)
    return models


def test_a_new_client_trains_a_head_of_its_own_for_as_long_as_the_others_did():
    found, models = world("fedper"), []

    def spy(*arguments: Any) -> Tree:
        models.append(found.method.personalize(*arguments))
        return models[-1]

    watched = hooked(found, personalize=spy)
    done = rounds.run(watched, rounds.start(watched))
    evaluation.accuracies_of_new(watched, done)
    for model, expected in zip(models, by_hand(found, done.params), strict=True):
        assert_equal(model, expected)


def test_a_new_client_of_a_method_without_a_state_personalizes_the_released_model():
    found = world("dp_fedavg")
    done = rounds.run(found, rounds.start(found))
    rows = evaluation.accuracies_of_new(found, done)
    held = found.split.new
    for client, row in enumerate(rows):
        x, y = found.test.x[held.test[client]], found.test.y[held.test[client]]
        right = (found.network.apply(done.params, x).argmax(1) == y).double().mean().item()
        assert row["global_new"] == pytest.approx(100 * right)
    assert rows[1]["personal_new"] == rows[1]["global_new"], "it has no examples to train on"
    without = replace(found, has_global_model=False)
    assert math.isnan(evaluation.accuracies_of_new(without, done)[0]["global_new"])


def test_a_new_client_is_told_the_clip_bound_that_the_last_round_left():
    found, told = world("feddpa"), []

    def personalize(*arguments):
        told.append(arguments[-1].clip_norm)
        return found.method.personalize(*arguments)

    adapting = replace(found.plan, adaptive=Adaptive(0.5, 0.2, 1.0))
    watched = replace(hooked(found, personalize=personalize), plan=adapting)
    done = rounds.run(watched, rounds.start(watched))
    evaluation.accuracies_of_new(watched, done)
    assert set(told) == {done.bound} != {found.plan.clip_norm}


@pytest.mark.parametrize("method", ["fedper", "feddpa"])
def test_what_new_clients_hold_reaches_no_release_and_no_other_clients_accuracy(method):
    found = world(method)
    poisoned = found.train.x.clone()
    for rows in (*found.split.new.train, *found.split.new.validation):
        poisoned[rows] = math.nan
    other = replace(found, train=replace(found.train, x=poisoned))
    ends = [rounds.run(place, rounds.start(place)) for place in (found, other)]
    assert_equal(ends[0].params, ends[1].params, 0)
    one, two = map(evaluation.accuracies, (found, other), ends)
    np.testing.assert_equal(one, two)
    assert len(one) == 4


# ---------------------------------------------------------------- from files to the table

NATURAL = Partition("natural", clients=9, new_clients=3, test_fraction=0.3)
NOISE = Privacy("gaussian", noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)
TRAINING = Training(2, 1, 4, "sgd", 0.3)
CELL = Cell("mine", NATURAL, Model("mlp", (4,)), TRAINING, NOISE, "fedper")
STUDY = Study("tiny", "Tiny", "Made up.", (Row(CELL),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, arrays = tmp_path_factory.mktemp("new"), data()
    labels = arrays.train_labels, arrays.test_labels
    images = [np.random.default_rng(0).normal(size=(len(y), 3)) + y[:, None] for y in labels]
    raw = datasets.values(arrays) | {"train_images": images[0], "test_images": images[1]}
    np.savez(place / "own.npz", **raw)
    datasets.prepare("mine", place / "own.npz", place, place / "mine.npz")
    _, inputs, run = place_of(place)
    make(datasets.load_arrays(inputs.data), CELL.partition, CELL.seed).save(inputs.partition)
    files.write_json(inputs.plan, to_json(plan_of(CELL)))
    how = {"device": "cpu", "backend": "vmap"}
    runs.train(CELL, inputs, run, place / "checkpoints", checkpoint_seconds=3600, **how)
    scores.evaluate_cells([(CELL, inputs, run)], place / "results/scores/tiny/fedper.csv", **how)
    return place


def place_of(folder: Path) -> tuple[Cell, runs.Inputs, Path]:
    (place,) = scores.places_of([CELL], [CELL.id], folder / "results", folder)
    return place


def scored(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results/scores/tiny/fedper.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_of_new_clients_have_nothing_in_the_columns_of_the_others(folder):
    rows = scored(folder)
    assert [row["client"] for row in rows] == [*map(str, range(9)), "new0", "new1", "new2"]
    for row in rows:
        is_new = row["client"].startswith("new")
        assert bool(row["personal_new"]) == is_new
        assert bool(row["personal_own"]) == bool(row["personal_common"]) == (not is_new)
        assert row["personal_validation"] == "" or not is_new


def test_the_table_has_new_clients_in_columns_of_their_own(folder):
    (line,) = tidy.tidy(STUDY, folder / "results").to_dict("records")
    for name, count in (("personal_own", 9), ("personal_new", 3)):
        values = [float(row[name]) for row in scored(folder) if row[name]]
        assert len(values) == count
        assert line[name] == pytest.approx(np.mean(values))
    assert (line["clients"], line["new_clients"], line["global_new"]) == (9, 3, None)


def test_the_python_door_has_the_rows_of_new_clients_too(folder):
    found = pflpipe.run(CELL, folder, device="cpu", backend="vmap")
    new = [row["personal_new"] for row in scored(folder) if row["client"].startswith("new")]
    assert [str(row["personal_new"]) for row in found.new_clients] == new
    assert len(found.clients) == 9


def test_a_file_in_which_a_new_client_trains_stops_the_run(folder, tmp_path):
    _, inputs, _ = place_of(folder)
    split = Split.load(inputs.partition)
    train = [np.append(split.train[0], split.new.train[1][:1]), *split.train[1:]]
    replace(split, train=train).save(tmp_path / "split.npz")
    faulty = replace(inputs, partition=tmp_path / "split.npz")
    with pytest.raises(DataError, match="of new clients; got '1 of clients in training"):
        runs.simulate(CELL, faulty, device="cpu", backend="loop")


def test_a_plan_that_draws_new_clients_too_is_refused(folder, tmp_path):
    larger = replace(CELL, partition=replace(CELL.partition, clients=12))
    files.write_json(tmp_path / "plan.json", to_json(plan_of(larger)))
    faulty = replace(place_of(folder)[1], plan=tmp_path / "plan.json")
    with pytest.raises(DataError, match=r"groups, clients, rounds, sample rate; got \(1, 12,"):
        runs.simulate(CELL, faulty, device="cpu", backend="loop")
