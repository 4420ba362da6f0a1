"""Evaluation: what is counted, for whom, and what is left empty."""

import dataclasses
import itertools
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import fake_results
from pflpipe.errors import ConfigError
from pflpipe.files import intact
from pflpipe.learning.metrics import BUILT_IN
from pflpipe.simulation import evaluation, rounds, runs, scores
from pflpipe.simulation.simulation import Simulation
from simulations import finished, hooked, overheard, simulation


def trained(method="dp_fedavg", **changes):
    world = simulation(method, **changes)
    return world, finished(world)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("method", "own_from_train"), [("dp_fedavg", False), ("dp_fedavg", True), ("local_only", False)]
)
def test_scores_equal_a_count_by_hand(method, own_from_train, backend):
    """A personal model is made of the client's own final state, if it has one."""
    world, progress = trained(method, backend=backend)
    if own_from_train:  # the own tests are rows of the training arrays then
        split = replace(world.split, test=world.split.validation[::-1], own_from_train=True)
        world = replace(world, split=split)
    own = world.train if own_from_train else world.test
    rows = scores.accuracies(world, progress)
    for client, row in enumerate(rows):
        parts = {
            "own": (own, world.split.test[client]),
            "validation": (world.train, world.split.validation[client]),
            "common": (world.test, world.split.common),
        }
        start = {name: value[client] for name, value in progress.states.items()} or progress.params
        train = world.train.schedule(world.work(client, progress.round)["train"])
        models = {"personal": world.task.minimize(start, train, world.task.loss)[0]}
        models["global"] = progress.params
        for (kind, params), (part, on) in itertools.product(models.items(), parts.items()):
            found = row[f"{kind}_{part}"]
            assert found == pytest.approx(percent(world, params, *on), nan_ok=True)
        assert row["train_size"] == len(world.split.train[client])


def percent(world, params, source, chosen):
    """How many of these rows are counted right, in percent."""
    guess = world.network.apply(params, source.x[chosen]).argmax(1)
    return 100 * (guess == source.y[chosen]).double().mean().item()


def test_a_search_learns_validation_accuracies_and_nothing_of_test_data():
    world, progress = trained()
    unreadable = replace(world, test=None)  # any look at it raises
    measures = {name: metric.of for name, metric in BUILT_IN.items()}
    rows = scores.accuracies(world, progress, measures=measures)
    found = scores.accuracies(unreadable, progress, validation_only=True, measures=measures)
    kept = [name for name in rows[0] if name.endswith(("client", "train_size", "_validation"))]
    np.testing.assert_equal(found, [{name: row[name] for name in kept} for row in rows])


def test_a_test_of_no_run_is_refused_and_not_an_empty_table(tmp_path):
    """Snakemake plans it where it does not look at parameters, and the choice is an old one."""
    with pytest.raises(ConfigError, match=r"evaluate: cells; got 'none'.*another search"):
        scores.places_of([], [], tmp_path / "results", tmp_path)


def test_a_method_without_a_global_model_has_no_global_accuracy():
    world, progress = trained("local_only")
    world = replace(world, has_global_model=False)
    for row in scores.accuracies(world, progress):
        assert np.isnan(row["global_own"])
        assert np.isnan(row["global_common"])
        assert np.isfinite(row["personal_own"])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_clients_in_blocks_have_the_same_scores_and_few_schedules_at_once(backend, monkeypatch):
    held = []

    class Watched(Simulation):
        def run_clients(self, hook, states, clients, work, what="hook"):
            held.append((list(clients), len(work)))
            return super().run_clients(hook, states, clients, work, what)

    world, progress = trained("fedper", backend=backend)
    fields = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    world = Watched(**fields | {"split": replace(world.split, new=world.split)})
    measures = {"sum": lambda probabilities, labels: float(probabilities[0].max() + labels.sum())}

    def found():
        every = scores.accuracies(world, progress, measures=measures)
        some = scores.accuracies(world, progress, clients=[3, 1, 0])
        return every, some, scores.accuracies_of_new(world, progress, measures=measures)

    whole = found()
    assert [row["client"] for row in whole[1]] == [3, 1, 0]
    assert [row["client"] for row in whole[2]] == ["new0", "new1", "new2", "new3"]
    held.clear()
    monkeypatch.setattr(evaluation, "BLOCK", 3)
    np.testing.assert_equal(found(), whole)
    blocks = [[0, 1, 2], [3], [3, 1, 0], [0, 1, 2], [3]]
    assert held == [(block, len(block)) for block in blocks]


def test_a_model_that_is_not_finite_is_never_right():
    world, progress = trained("local_only")
    broken = {name: value * torch.nan for name, value in progress.states.of([0]).items()}
    progress.states = progress.states.replaced([0], broken)
    rows = scores.accuracies(world, progress)
    assert rows[0]["personal_own"] == rows[0]["personal_common"] == 0
    assert any(row["personal_common"] > 0 for row in rows[1:])


def test_methods_only_ever_see_the_clients_training_examples():
    seen = []

    def told(params, server, state, batches, task):
        for schedule in (batches.train, batches.all):
            assert set(schedule.index.reshape(-1).tolist()) == set(range(len(schedule.x)))
        assert torch.equal(batches.train.x, batches.all.x)
        seen.append(batches.all.x)
        assert int(batches.n) == len(seen[-1])
        assert len(batches.head.x) == len(batches.head.y) == 0
        assert len(task.features(params, batches).x) == len(seen[-1])

    world = overheard(simulation("dp_fedavg", batch_size=0), told, "local_update", "personalize")
    watched = hooked(world, head_epochs=1, full_pass=True)
    progress = rounds.start(watched)
    for _ in range(2):
        rounds.one_round(watched, progress)
    scores.accuracies(watched, progress)
    own = [world.train.x[rows] for rows in world.split.train] * 3
    assert all(torch.equal(*pair) for pair in zip(seen, own, strict=True))


class Interrupted:
    """Three runs on disk whose rows are made up, and who was computed; the third may fail."""

    def __init__(self, folder, monkeypatch):
        self.out, self.computed, self.places = folder / "scores/s/m.csv", [], []
        files = [folder / name for name in ("plan.json", "partition.npz", "data.npz")]
        for file in files:
            file.write_text(file.name)
        for seed in range(3):
            run = folder / f"runs/{seed}"
            run.mkdir(parents=True)
            (run / "state.pt").write_text("state")
            cell = replace(fake_results.BASE, seed=seed)
            self.places.append((cell, runs.Inputs(*files), run))
        monkeypatch.setattr(scores.runs, "simulate", lambda cell, *_, **__: cell.seed)
        monkeypatch.setattr(scores.runs, "load_final", lambda *_: None)
        monkeypatch.setattr(scores, "accuracies", self.accuracies)
        monkeypatch.setattr(scores, "accuracies_of_new", lambda *_: [])

    def accuracies(self, seed, *_, **__):
        if seed == 2 and self.fails:
            raise KeyboardInterrupt
        self.computed.append(seed)
        return [{"client": client, "personal_own": seed / 3} for client in range(2)]

    def stop(self):
        """Begin, and be interrupted before the last run."""
        self.fails = True
        with pytest.raises(KeyboardInterrupt):
            self.evaluate()
        self.computed.clear()
        self.fails = False

    def evaluate(self, code="program"):
        scores.evaluate_cells(self.places, self.out, device="cpu", backend="loop", code=code)


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    made = Interrupted(tmp_path, monkeypatch)
    made.stop()
    return made


def test_an_interrupted_evaluation_goes_on_with_the_runs_that_are_missing(interrupted):
    assert not interrupted.out.exists()
    interrupted.evaluate()
    assert interrupted.computed == [2]
    found = interrupted.out.read_bytes()
    assert [file.name for file in interrupted.out.parent.iterdir()] == ["m.csv"]
    interrupted.out.unlink()
    interrupted.evaluate()
    assert interrupted.computed == [2, 0, 1, 2]
    assert interrupted.out.read_bytes() == found
    assert intact(interrupted.out)
    ids = [cell.id for cell, _, _ in interrupted.places for _ in range(2)]
    assert list(pd.read_csv(interrupted.out)["cell"]) == ids


def test_scores_of_another_program_or_of_a_run_that_was_trained_again_are_not_taken(interrupted):
    _, _, run = interrupted.places[1]
    os.utime(run / "state.pt", ns=(1, 1))
    interrupted.evaluate()
    assert interrupted.computed == [1, 2]
    interrupted.stop()
    interrupted.evaluate(code="another")
    assert interrupted.computed == [0, 1, 2]
