"""Keys and ids of training runs: equal for cells whose training is the same to the bit, different
for all others.

Two different runs of one key share their noise, and their models' difference shows the clients'
part without any; a key that changes without need trains again what is there.
"""

import dataclasses
import functools
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import pflpipe
import tabled
from pflpipe import cells
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.options import Declared, Option
from pflpipe.simulation import rounds
from pflpipe.study.load import load_outline, load_study
from simulations import personal_models, plan, simulation

TABLES = tabled.table("test_keys")

ROOT = Path(__file__).resolve().parent.parent
NOISE = cells.Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0)
DEALT, MLP = cells.Partition("dirichlet", 10, alpha=0.5), cells.Model("mlp", (8,))
DEFAULTS = registry.check_hyperparameters("pmtl_ft", {})
TRAINING = cells.Training(3, 1, 4, "sgd", 0.1)
CELL = cells.Cell("digits", DEALT, MLP, TRAINING, NOISE, "pmtl_ft", DEFAULTS)
OTHER = TABLES["OTHER"]
"""Another value of every field that training reads; how it is tested along the way is nothing that
it does."""
WHOLE = TABLES["WHOLE"]
PUBLISHED = sorted((ROOT / "docs/results").glob("*/runs.parquet"))
CHANGED = {"people_wisdm"}
"""Studies that ask another question now than their committed runs, as their pages say."""


def changed(block, **values):
    return replace(CELL, **{block: replace(getattr(CELL, block), **values)})


def named(cell):
    return registry.key(cell), registry.run_id(cell)


def with_hyperparameters(cell, **values):
    return replace(cell, hyperparameters=cell.hyperparameters | values)


def test_the_changes_below_are_of_every_field_there_is():

    def names(block):
        return {field.name for field in dataclasses.fields(block)}

    fields = {name: names(getattr(CELL, name)) for name in OTHER}
    fields["training"] -= {"evaluate_every", "evaluate_clients", "evaluate_personal"}
    assert fields == {name: set(values) for name, values in OTHER.items()}
    after = {"profile", "official_code", "hyperparameters"}
    elsewhere = {"source"}  # tests/methods/test_outside.py
    assert names(CELL) == {*OTHER, *WHOLE, *after, *elsewhere}


def test_every_setting_that_training_reads_changes_key_and_id():
    pairs = [(block, name) for block, values in OTHER.items() for name in values]
    others = [changed(block, **{name: OTHER[block][name]}) for block, name in pairs]
    names = WHOLE.keys() - {"method"}
    others += [replace(CELL, **{name: WHOLE[name]}) for name in names]
    others += [replace(CELL, method="dp_fedavg", hyperparameters={})]
    others += [with_hyperparameters(CELL, weight=0.9), with_hyperparameters(CELL, detached=True)]
    found = [CELL, *others]
    for different in zip(*map(named, found), strict=True):
        assert len(set(different)) == len(found)


def test_no_method_has_the_key_of_another_one_but_those_that_train_alike():
    plain = {name: replace(CELL, method=name, hyperparameters={}) for name in NAMES}
    keys = {name: registry.key(cell) for name, cell in plain.items()}
    assert keys["dp_fedavg_fb"] == keys["dp_fedavg_global"] == keys["dp_fedavg"]
    assert len(set(keys.values())) == len(NAMES) - 2


@pytest.mark.parametrize("changes", TABLES["SAME"].values(), ids=TABLES["SAME"])
def test_what_training_does_not_read_changes_neither_key_nor_id(changes):
    assert named(replace(CELL, **changes)) == named(CELL)


@pytest.mark.parametrize("method", NAMES)
def test_a_default_is_the_same_whether_it_is_written_down_or_not(method):
    short = replace(CELL, method=method, hyperparameters={})
    full = replace(short, hyperparameters=registry.check_hyperparameters(method, {}))
    assert named(short) == named(full)
    assert registry.trained(short) == registry.trained(full)


@pytest.mark.parametrize(("method", "values", "key", "cell"), TABLES["TRAINED_BEFORE"])
def test_other_defaults_rename_no_run_that_was_trained_before(method, values, key, cell):
    # Recorded when the defaults were the values that are written here, and studies wrote out
    # rho 0.05 and weight 0.1.
    hyperparameters = registry.check_hyperparameters(method, values)
    found = replace(CELL, method=method, hyperparameters=hyperparameters)
    assert (registry.key(found)[:10], found.id[-10:]) == (key, cell)


def test_runs_of_the_packages_own_code_keep_the_keys_that_they_had():
    """Recorded at 8459ec17: of the quickstart's cells, and of calls from Python with a secret."""
    study = load_study("quickstart", ROOT / "studies")
    text = "".join(map(registry.key, study.cells))
    digest_of_keys, digest_of_ids = TABLES["DIGESTS"]
    assert hashlib.sha256(text.encode()).hexdigest() == digest_of_keys
    names = [(c.id, registry.run_id(c), c.plan_id, c.partition_id, c.data_id) for c in study.cells]
    ids = "".join("".join(one) for one in names)
    assert hashlib.sha256(ids.encode()).hexdigest() == digest_of_ids
    training = cells.Training(rounds=2, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.1)
    asked = {"training": training, "classes": 2, "secret": "golden", "device": "cpu"}
    asked["privacy"] = cells.Privacy(epsilon=8.0, delta=1e-3, clip_norm=0.5)
    clients = [(np.zeros((6, 3), np.float32), np.arange(6) % 2)] * 3
    mlp, adam = cells.Model("mlp", (2,)), cells.Server("adam", lr=0.03)
    moved = {"model": mlp, "server": adam, "test_fraction": 0.5}
    for method, changes, key in (
        ("dp_fedavg", {"model": "linear"}, "43bda22ce86a7381e7857c7ba4b8213f82980f15"),
        ("feddpa", {"model": mlp}, "074b0c712ac70ec90a5823e6add98613e66d924e"),
        ("ppsgd", moved, "6deefba4134345e274a4db1d5f9fb25ef5a42b3a"),
    ):
        assert pflpipe.federation(method, clients, **asked | changes).key[:40] == key


def test_accuracies_along_the_way_need_a_folder_of_their_own_and_are_of_the_same_release():
    every = changed("training", evaluate_every=2)
    assert registry.key(every) == registry.key(CELL)
    assert registry.run_id(every) != registry.run_id(CELL)
    tested = [changed("training", **values) for values in TABLES["TESTED"]]
    tested += [every, with_hyperparameters(every, head_epochs=3)]
    assert {registry.key(cell) for cell in tested} == {registry.key(CELL)}
    for nothing in ({"evaluate_clients": 3}, {"evaluate_personal": False}):
        assert registry.run_id(changed("training", **nothing)) == registry.run_id(CELL)
    assert len({registry.run_id(cell) for cell in tested}) == 5, "what is measured differs"
    assert registry.run_cell(every) == every
    assert registry.run_cell(CELL) == registry.trained(CELL) != CELL


def test_the_trained_cell_is_its_own_and_a_method_that_trains_as_another_one_takes_its_name():
    values = registry.check_hyperparameters("dp_fedavg_fb", {})
    fb = replace(CELL, method="dp_fedavg_fb", hyperparameters=values)
    plain = replace(CELL, method="dp_fedavg", hyperparameters={})
    assert registry.trained(fb) == registry.trained(plain) == plain
    assert named(fb) == named(plain)
    for name in NAMES:
        once = registry.trained(replace(CELL, method=name, hyperparameters={}))
        assert registry.trained(once) == once


def test_a_new_option_with_its_default_renames_nothing():
    for block in OTHER:
        kind = type(getattr(CELL, block))
        fields = [("option", float, 0.5)]
        newer = dataclasses.make_dataclass("Newer", fields, bases=(kind,), frozen=True)
        for option, same in ((0.5, True), (0.6, False)):
            value = newer(**vars(getattr(CELL, block)), option=option)
            other = replace(CELL, **{block: value})
            for one, wanted in zip((*named(other), other.id), (*named(CELL), CELL.id), strict=True):
                assert (one == wanted) == same, block


@pytest.mark.parametrize("every", [0, 2])
def test_a_new_hyperparameter_with_its_default_renames_no_run(every, monkeypatch):
    cell = changed("training", evaluate_every=every)
    before, info = named(cell), registry.info
    option = Declared("option", Option(), float, 0.5)

    def newer(name, source=""):
        entry = info(name, source)
        return replace(entry, hyperparameters=entry.hyperparameters | {"option": option})

    monkeypatch.setattr(registry, "info", newer)
    same, other = (with_hyperparameters(cell, option=value) for value in (0.5, 0.6))
    assert named(cell) == named(same) == before
    assert set(before).isdisjoint(named(other))


def test_keys_are_256_bits_and_ids_are_names_of_files():
    assert len(bytes.fromhex(registry.key(CELL))) == 32
    assert registry.run_id(CELL).startswith("digits-dirichlet0.5x10-pmtl_ft-eps2-seed0-")
    # A key names the noise, and an id is printed everywhere.
    assert registry.key(CELL) not in registry.run_id(CELL)


def alternative(name, parameter):
    """Another value of a hyper-parameter, far enough away to show."""
    kind, default, option = parameter.type, parameter.default, parameter.option
    if kind is int:
        return max(1, int(option.least)) if default > 1 else 3
    if kind is float:
        return (default + 0.5) % 1 if 1 in (option.most, option.below) else default * 4 + 0.7
    if option.choices:
        return next(choice for choice in option.choices if choice != default)
    return not default if kind is bool else {"personal_layers": "fc1"}[name]


def marked(parameter):
    return not parameter.option.trained


KNOWN = {method: registry.info(method).hyperparameters for method in NAMES}
HYPERPARAMETERS = {(m, name): one for m, known in KNOWN.items() for name, one in known.items()}
MARKED = [place for place, parameter in HYPERPARAMETERS.items() if marked(parameter)]
READ = [place for place, parameter in HYPERPARAMETERS.items() if not marked(parameter)]
OF_THE_PAPER = {("dp_fedsim", "msa")}
"""Read by training under departures alone, as their files say; the strict profile trains the same
whatever they are."""
OF_NUMBERS = {("item_effects", "bound"), ("private_prior", "noise")}
"""Read where labels are numbers."""
OF_LENGTH = {("one_shot_ridge", "sums")}
"""What changes the length of a message alone, which the clip takes away here."""


def outcome(method, values, backend="loop"):
    """Everything that two rounds of training leave, and the run."""
    # So tight that all kinds of clipping shorten something.
    rule = plan(4, rounds=2, clip_norm=0.01)
    world = simulation(method, values, plan=rule, backend=backend, model=cells.Model("mlp", (6, 5)))
    done = rounds.run(world, rounds.start(world))
    return {"params": done.params, "server": done.server, "states": dict(done.states)}, world, done


@functools.cache
def plain(method):
    return outcome(method, {})


def equal(left, right):
    return all(
        left[part].keys() == right[part].keys()
        and all(torch.equal(value, right[part][name]) for name, value in tree.items())
        for part, tree in left.items()
    )


def others(method, *, after_training):
    """Another value of every hyper-parameter of a method that is, or is not, read by
    ``personalize`` alone."""
    known = {n: one for n, one in KNOWN[method].items() if marked(one) == after_training}
    return {name: alternative(name, parameter) for name, parameter in known.items()}


@pytest.mark.parametrize("method", sorted({method for method, _ in MARKED}))
def test_training_is_the_same_whatever_is_read_after_it(method):
    assert equal(plain(method)[0], outcome(method, others(method, after_training=True))[0])


@pytest.mark.parametrize(("method", "name"), MARKED)
def test_what_is_read_after_training_changes_the_personal_models(method, name):
    _, world, done = plain(method)
    other = outcome(method, {name: alternative(name, HYPERPARAMETERS[method, name])})[1]
    models = personal_models(world, done), personal_models(other, done)
    assert any(not torch.equal(value, models[1][part]) for part, value in models[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("method", [name for name in NAMES if registry.info(name).about.trains])
def test_a_method_that_trains_as_another_one_does_so_to_the_bit(method, backend):
    for values in ({}, others(method, after_training=False)):
        cell = replace(CELL, method=method, hyperparameters=values)
        same = registry.trained(cell)
        assert same.method == registry.info(method).about.trains
        theirs = outcome(same.method, same.hyperparameters, backend)[0]
        assert equal(outcome(method, values, backend)[0], theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), READ)
def test_every_other_hyperparameter_is_read_by_training(method, name):
    parameter = HYPERPARAMETERS[method, name]
    values = {name: alternative(name, parameter)}
    assert registry.check_hyperparameters(method, values)[name] != parameter.default
    same = equal(plain(method)[0], outcome(method, values)[0])
    assert same == ((method, name) in OF_THE_PAPER | OF_NUMBERS | OF_LENGTH)


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.parent.name)
def test_committed_runs_have_the_ids_that_their_study_gives_them_now(file):
    """A younger option leaves ids as they are (``cells.LATER``)."""
    name = file.parent.name
    known = {row.cell.id for row in load_outline(name, ROOT / "studies").everything.rows}
    ran = set(pd.read_parquet(file, columns=["cell"])["cell"])
    assert ran
    assert known.isdisjoint(ran) if name in CHANGED else ran <= known
