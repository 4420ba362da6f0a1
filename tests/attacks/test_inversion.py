"""Gradient inversion: exact without noise, at chance under much, blind to everything but the
message."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from pflpipe import trees
from pflpipe.attacks import inversion
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.data import datasets, partition
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import write_json
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Planned, ledger
from pflpipe.records import to_json
from pflpipe.report.attacks import inversion as shown
from pflpipe.simulation import rounds
from pflpipe.simulation.runs import Inputs, simulate
from pflpipe.study.study_spec import Row, Study

CLIENTS = 20
BASE = Cell(
    dataset="digits",
    partition=Partition("iid", clients=CLIENTS, test_fraction=0.1),
    model=Model("mlp", (32,)),
    training=Training(rounds=30, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.25),
    privacy=Privacy("gaussian", epsilon=2.0, delta=0.001, clip_norm=0.5),
    method="dp_fedavg",
)
OPEN = dataclasses.replace(
    BASE, method="fedavg", departures=("data_size_weights",), privacy=Privacy()
)


def noise(multiplier):
    privacy = dataclasses.replace(BASE.privacy, epsilon=None, noise_multiplier=float(multiplier))
    return dataclasses.replace(BASE, privacy=privacy)


def of_epsilon(epsilon):
    return dataclasses.replace(
        BASE, privacy=dataclasses.replace(BASE.privacy, epsilon=float(epsilon))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("inversion")
    (made / "data").mkdir()
    return made


@pytest.fixture(scope="module")
def inputs_of(folder):
    """Make a cell's files as the rules make them: real digits, and coloured noise under the name of
    CIFAR-10."""

    @functools.cache
    def dataset(name):
        target = folder / "data" / f"{name}.npz"
        if name == "digits":
            datasets.prepare(name, None, folder, target)
        else:
            rng = np.random.default_rng(0)
            shapes = {"cifar10": (32, 32, 3), "features": (64,)}
            images = rng.integers(0, 256, (300, *shapes[name])).astype(
                np.uint8 if name == "cifar10" else np.float32
            )
            np.savez(
                target,
                train_images=images,
                train_labels=np.arange(300) % 10,
                test_images=images[:9],
                test_labels=np.arange(9),
                classes=10,
                mean=datasets.info("cifar10").mean,
                std=datasets.info("cifar10").std,
            )
        return target

    def make(cell):
        results, source = folder / "results", dataset(cell.dataset)
        files = Inputs(
            results / "plans" / f"{cell.plan_id}.json",
            results / "partitions" / f"{cell.partition_id}.npz",
            source,
        )
        partition.make(datasets.load_arrays(source), cell.partition, cell.seed).save(
            files.partition
        )
        training = {"rounds": cell.training.rounds, "sample_rate": cell.training.sample_rate}
        plan = accounting.make_plan(
            cell.privacy, **training, clients=cell.partition.clients, departures=cell.departures
        )
        write_json(
            files.plan,
            to_json(Planned(plan, ledger(plan, cell.privacy, cell.departures))),
        )
        return files

    return make


@pytest.fixture(scope="module")
def attacked(inputs_of):
    """What the attack finds for a cell of an mlp, computed once for each cell."""
    found = {}

    def run(cell):
        if cell.id not in found:
            found[cell.id] = inversion.attack(
                simulate(cell, inputs_of(cell), device="cpu", backend="auto")
            )
        return found[cell.id]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("cell", [OPEN, noise(0)], ids=["open", "clipped"])
def test_without_noise_every_picture_and_label_of_an_mlp_is_rebuilt_exactly_clipped_or_not(
    attacked, cell
):
    found = attacked(cell)
    np.testing.assert_allclose(found["rebuilt"], found["originals"], atol=1e-3)
    assert len(found["rows"]) == inversion.CANDIDATES
    assert all(found[name].all() for name in ("label_found", "identified", "matched"))


@pytest.mark.slow
def test_originals_are_training_pictures_of_the_data_set(attacked, inputs_of):
    found, files = attacked(OPEN), inputs_of(OPEN)
    images = datasets.load_arrays(files.data).train_images
    np.testing.assert_allclose(found["originals"][..., 0], images[found["rows"]] / 255, atol=1e-6)
    assert len(set(found["rows"].tolist())) == len(found["rows"])
    assert set(found["rows"].tolist()) <= set(
        np.concatenate(partition.Split.load(files.partition).train).tolist()
    )


@pytest.mark.slow
def test_psnr_and_identification_are_those_of_the_stored_pictures(attacked):
    found = attacked(of_epsilon(100))
    distances = [
        ((found["originals"] - image) ** 2).sum(axis=(1, 2, 3)).argmin()
        for image in found["rebuilt"]
    ]
    np.testing.assert_array_equal(
        found["identified"], np.array(distances) == np.arange(inversion.CANDIDATES)
    )
    assert 0 < found["identified"].mean() < 1
    errors = ((found["originals"] - found["rebuilt"]) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(found["psnr"], 10 * np.log10(1 / errors), rtol=1e-4)


@pytest.mark.slow
def test_noise_of_epsilon_2_leaves_rebuilt_pictures_at_chance(attacked):
    found = attacked(of_epsilon(2))
    count = len(found["identified"])
    assert found["identified"].sum() <= stats.binom.isf(1e-3, count, 1 / inversion.CANDIDATES)
    assert found["psnr"].mean() < found["psnr_without_message"].mean(), "worse than the mean image"
    assert found["rebuilt"].min() >= 0
    assert found["rebuilt"].max() <= 1


@pytest.mark.slow
def test_the_smaller_epsilon_the_less_is_found(attacked):
    steps = [attacked(of_epsilon(epsilon)) for epsilon in (10_000, 1000, 100, 2)]
    for name in ("psnr", "identified", "matched"):
        means = [found[name].mean() for found in steps]
        assert means == sorted(means, reverse=True), name
        assert means[0] > means[-1] + 0.5, name


@pytest.mark.slow
def test_a_server_with_candidates_needs_less_of_a_message_than_one_that_rebuilds(attacked):
    found = attacked(noise(1.5))
    assert found["matched"].sum() > found["identified"].sum() + 20
    assert found["matched"].sum() > stats.binom.isf(
        1e-6, len(found["matched"]), 1 / inversion.CANDIDATES
    )


def listened(cell, inputs, backend="auto", change=lambda message: message):
    """Attack a cell, with ``change`` between every release and the server; return the result and
    what was released."""
    world, seen = simulate(cell, inputs, device="cpu", backend=backend), []

    def spy(generator, uploads, present, plan, scale, departures):
        released = world.release(generator, uploads, present, plan, scale, departures)
        seen.append((uploads, present, plan, departures, released))
        return dataclasses.replace(released, messages=change(released.messages))

    return inversion.attack(dataclasses.replace(world, release=spy)), seen


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_messages_are_single_updates_clipped_and_noised_by_the_mechanism(
    monkeypatch, inputs_of, backend
):
    monkeypatch.setattr(inversion, "CANDIDATES", 12)
    _, seen = listened(noise(3), inputs_of(noise(3)), backend)
    assert len(seen) == 12
    residuals = []
    for uploads, present, plan, departures, released in seen:
        assert present.tolist() == [True]
        assert departures == {"noise_per_participant"}
        assert (plan.clip_norm, plan.noise_multiplier, plan.clients) == (0.5, 3.0, CLIENTS)
        length = trees.norm(dict(uploads.update))
        clipped = {
            name: value * min(1.0, 0.5 / float(length)) for name, value in uploads.update.items()
        }
        residuals.append(
            torch.cat([(released.messages[name] - clipped[name]).flatten() for name in clipped])
        )
    drawn = torch.stack(residuals)
    assert drawn.std().item() == pytest.approx(0.5 * 3 / math.sqrt(CLIENTS), rel=0.02)
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.1, (
        "each message has noise of its own"
    )


def test_an_upload_after_several_epochs_on_one_image_is_inverted_all_the_same(
    monkeypatch, inputs_of
):
    monkeypatch.setattr(inversion, "CANDIDATES", 3)
    cell = dataclasses.replace(
        OPEN, training=dataclasses.replace(OPEN.training, local_epochs=2, momentum=0.9)
    )
    found, seen = listened(cell, inputs_of(cell), "loop")
    np.testing.assert_allclose(found["rebuilt"], found["originals"], atol=1e-3)
    world = simulate(cell, inputs_of(cell), device="cpu", backend="loop")
    begun = rounds.start(world).params
    for (uploads, *_), row in zip(seen, found["rows"], strict=True):
        params = {name: value.clone().requires_grad_() for name, value in begun.items()}
        optimizer = torch.optim.SGD(params.values(), lr=0.25, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                world.network.apply(params, world.train.x[[row]]), world.train.y[[row]]
            ).backward()
            optimizer.step()
        for name, value in uploads.update.items():
            torch.testing.assert_close(
                value[0], (params[name] - begun[name]).detach(), rtol=1e-4, atol=1e-6
            )


def test_the_server_sees_nothing_but_the_message(monkeypatch, inputs_of, attacked):
    monkeypatch.setattr(inversion, "CANDIDATES", 12)
    first = []

    def repeated(message):
        return first[0] if first else first.append(message) or message

    known = []
    rebuild = inversion.reconstruct
    monkeypatch.setattr(
        inversion,
        "reconstruct",
        lambda message, public: known.append(public) or rebuild(message, public),
    )
    found, _ = listened(OPEN, inputs_of(OPEN), change=repeated)
    assert np.ptp(found["originals"], axis=0).max() > 0.5
    assert np.ptp(found["rebuilt"], axis=0).max() == 0, "one message, one image"
    np.testing.assert_allclose(found["rebuilt"][0], found["originals"][0], atol=1e-3)
    assert all(public is known[0] for public in known), "nothing of one client before the next"
    labels = datasets.load_arrays(inputs_of(OPEN).data).train_labels[found["rows"]]
    np.testing.assert_array_equal(found["label_found"], labels == labels[0])
    assert not found["label_found"].all()


@pytest.mark.slow
def test_the_same_cell_gives_the_same_bits_and_changes_none_of_its_files(attacked, inputs_of):
    cell = of_epsilon(100)
    files = inputs_of(cell)
    digest = {
        path: hashlib.sha256(path.read_bytes()).digest()
        for path in (files.plan, files.partition, files.data)
    }
    again = inversion.attack(simulate(cell, files, device="cpu", backend="auto"))
    for name, values in attacked(cell).items():
        np.testing.assert_array_equal(values, again[name])
    assert digest == {path: hashlib.sha256(path.read_bytes()).digest() for path in digest}


@pytest.mark.slow
def test_settings_of_a_seed_attack_the_same_pictures_under_noise_of_their_own(
    monkeypatch, inputs_of, attacked
):
    for name in ("rows", "originals"):
        np.testing.assert_array_equal(attacked(OPEN)[name], attacked(of_epsilon(2))[name])
    monkeypatch.setattr(inversion, "CANDIDATES", 3)
    drawn = []
    for cell in (noise(0), noise(1), noise(4)):
        _, seen = listened(cell, inputs_of(cell))
        drawn.append(
            torch.cat([released.messages["fc1.weight"].flatten() for *_, released in seen])
        )
    noises = torch.stack([drawn[1] - drawn[0], drawn[2] - drawn[0]])
    assert abs(torch.corrcoef(noises)[0, 1]) < 5 / noises.shape[1] ** 0.5


def test_another_seed_attacks_other_pictures(monkeypatch, inputs_of):
    monkeypatch.setattr(inversion, "CANDIDATES", 20)
    places = []
    for cell in (OPEN, dataclasses.replace(OPEN, seed=1)):
        files = inputs_of(cell)
        held = np.concatenate(partition.Split.load(files.partition).train).tolist()
        places.append(
            [
                held.index(row)
                for row in inversion.attack(simulate(cell, files, device="cpu", backend="auto"))[
                    "rows"
                ]
            ]
        )
    assert places[0] != places[1]


# ---------------------------------------------------------------- networks without a linear first
# layer


@pytest.mark.slow
def test_the_search_follows_the_message_of_a_convolutional_network_to_its_picture(
    monkeypatch, inputs_of
):
    monkeypatch.setattr(inversion, "STEPS", 200)
    cell = dataclasses.replace(OPEN, dataset="cifar10", model=Model("cnn_cifar"))
    inputs = inputs_of(cell)
    world = simulate(cell, inputs, device="cpu", backend="loop")
    known = inversion._public(world)
    ramp = torch.linspace(0.2, 0.8, 32)
    image = torch.stack(
        [ramp.expand(32, 32), ramp.flip(0).expand(32, 32), ramp.expand(32, 32).T], dim=-1
    )
    x = (known.low + (known.high - known.low) * image).unsqueeze(0)
    message = inversion._message(world, known, x, torch.tensor([7]), place=0)
    kept, begun = (
        {name: value.clone() for name, value in message.items()},
        {n: v.clone() for n, v in known.params.items()},
    )
    guess, label = inversion.reconstruct(message, known)
    assert label == 7
    pixels = known.image(guess)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert (pixels - image).square().mean() < 0.2 * (image - 0.5).square().mean()
    assert all(
        torch.equal(message[name], kept[name]) and torch.equal(known.params[name], begun[name])
        for name in kept
    )


def test_the_search_imitates_all_local_steps_of_a_client(inputs_of):
    training = dataclasses.replace(OPEN.training, local_epochs=3, momentum=0.9, weight_decay=0.01)
    cell = dataclasses.replace(OPEN, dataset="cifar10", model=Model("cnn_cifar"), training=training)
    inputs = inputs_of(cell)
    world = simulate(cell, inputs, device="cpu", backend="loop")
    known = inversion._public(world)
    message = inversion._message(world, known, world.train.x[:1], world.train.y[:1], place=0)
    imitated = inversion._imitated(world.train.x[:1], world.train.y[:1], known)
    torch.testing.assert_close(imitated.detach(), inversion._flat(message), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_network_without_a_linear_first_layer_is_attacked_on_a_few_pictures_told_from_many(
    monkeypatch, inputs_of
):
    monkeypatch.setattr(inversion, "STEPS", 2)
    cell = dataclasses.replace(OPEN, dataset="cifar10", model=Model("cnn_cifar"))
    found = inversion.attack(simulate(cell, inputs_of(cell), device="cpu", backend="loop"))
    assert found["originals"].shape == found["rebuilt"].shape == (inversion.SEARCHED, 32, 32, 3)
    images = datasets.load_arrays(inputs_of(cell).data).train_images
    np.testing.assert_allclose(found["originals"], images[found["rows"]] / 255, atol=1e-6)
    assert found["matched"].all()


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dataset": "features"}, DataError, "images"),
        ({"training": dataclasses.replace(BASE.training, optimizer="adam")}, ConfigError, "sgd"),
        ({"method": "fedper"}, ConfigError, "whole model"),
    ],
)
def test_what_cannot_be_attacked_is_said(inputs_of, changes, error, words):
    cell = dataclasses.replace(noise(0), **changes)
    with pytest.raises(error, match=words):
        inversion.attack(simulate(cell, inputs_of(cell), device="cpu", backend="auto"))


def test_too_few_examples_to_tell_pictures_from_are_said(monkeypatch, inputs_of):
    monkeypatch.setattr(inversion, "CANDIDATES", 5000)
    with pytest.raises(DataError, match="at least 5000"):
        inversion.attack(simulate(OPEN, inputs_of(OPEN), device="cpu", backend="auto"))


# ---------------------------------------------------------------- figure and table


@pytest.fixture
def results(attacked, inputs_of, folder):
    """A study of four settings, not in the order of privacy, whose attacks have run."""
    cells, target = (
        [of_epsilon(2), OPEN, noise(0), of_epsilon(1000)],
        folder / "results" / "attacks" / "inversion",
    )
    target.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        inputs_of(cell)
        np.savez(target / f"{cell.id}.npz", **attacked(cell))
    return Study("tiny", "A tiny study", "Made up.", tuple(map(Row, cells))), folder / "results"


@pytest.mark.slow
def test_the_table_has_a_row_per_cell_with_its_epsilons_and_rates(results, attacked):
    frame = shown.table(*results).set_index("cell")
    for row in results[0].rows:
        found, line = attacked(row.cell), frame.loc[row.cell.id]
        assert line["psnr_mean"] == pytest.approx(found["psnr"].mean())
        assert line["identified"] == pytest.approx(100 * found["identified"].mean())
        assert line["matched"] == pytest.approx(100 * found["matched"].mean())
        assert line["images"] == len(found["rows"])
        entry = json.loads((results[1] / "plans" / f"{row.cell.plan_id}.json").read_text())[
            "ledger"
        ]
        for name in ("epsilon_central", "epsilon_local"):
            assert pd.isna(line[name]) if entry[name] is None else line[name] == float(entry[name])
    assert len(frame) == 4


def test_the_figure_shows_originals_and_what_was_rebuilt_from_open_to_private(results, attacked):
    drawing = shown.figure(*results, 3.3)
    grid = np.array(drawing.axes).reshape(5, 1 + shown.SHOWN)
    order = [OPEN, noise(0), of_epsilon(1000), of_epsilon(2)]
    words = ["no clipping", "clipping, no noise", "ε = 1,000", "ε = 2"]
    for image in range(shown.SHOWN):
        images = [axes.images[0].get_array() for axes in grid[:, 1 + image]]
        np.testing.assert_array_equal(images[0], attacked(OPEN)["originals"][image, :, :, 0])
        for row, cell in enumerate(order, start=1):
            np.testing.assert_array_equal(images[row], attacked(cell)["rebuilt"][image, :, :, 0])
            assert grid[row, 1 + image].get_title() == f"{attacked(cell)['psnr'][image]:.1f}"
    for axes, word in zip(grid[1:, 0], words, strict=True):
        assert word in axes.texts[0].get_text()
    drawing.canvas.draw()


@pytest.mark.slow
def test_the_figure_leaves_out_settings_that_attack_other_pictures(results, inputs_of, attacked):
    study, folder = results
    other = dataclasses.replace(
        OPEN, partition=dataclasses.replace(OPEN.partition, test_fraction=0.3)
    )
    inputs_of(other)
    np.savez(folder / "attacks" / "inversion" / f"{other.id}.npz", **attacked(OPEN))
    wider = dataclasses.replace(study, rows=(*study.rows, Row(other)))
    assert len(shown.figure(wider, folder, 6.7).axes) == len(shown.figure(study, folder, 6.7).axes)
    assert len(shown.table(wider, folder)) == len(study.rows) + 1
