"""Features of images and from files: the numbers, the files, what is known of them before, and what
is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import malformed
import tabled
from pflpipe.cells import Cell, Features, Model, Partition, Privacy, Training
from pflpipe.data import datasets, dead_leaves, extraction, features, partition, pins, scattering
from pflpipe.errors import DataError, PflpipeError
from pflpipe.pipeline import project
from pflpipe.study import check, config, load
from pflpipe.study.plans import CLASSES_FOUND, FILE, REFERENCE, plan_of

TABLES = tabled.table("test_extraction")

SCATTERING = Features("scattering", scales=1)
CELL = Cell(
    *("digits", Partition("iid", 5), Model("mlp", ()), Training(2, 1, 0, "sgd", 1.0)),
    privacy=Privacy("gaussian", epsilon=8, delta=1e-3, clip_norm=1.0),
    method="dp_fedavg",
    features=SCATTERING,
)
OF_ROWS = ("train_labels", "test_labels", "train_users", "test_users")


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def by_hand(image: np.ndarray, scales: int, pool: int) -> np.ndarray:
    """The features of one image [H, W, C], one after the other."""

    def cuts(side: int) -> list[slice]:
        return [slice(i * side // pool, -(-(i + 1) * side // pool)) for i in range(pool)]

    numbers = []
    for channel in np.moveaxis(image, -1, 0):
        pixels = torch.from_numpy(channel[None] / np.float32(255))
        for values in scattering.scatter(pixels, scales)[0].numpy():
            high, wide = map(cuts, values.shape)
            numbers += [np.sqrt(max(values[a, b].mean(), 0)) for a in high for b in wide]
    return np.array(numbers) / np.linalg.norm(numbers)


@pytest.mark.parametrize(
    ("shape", "scales", "pool"), [((12, 12, 1), 2, 2), ((8, 16, 3), 1, 3), ((16, 16, 2), 2, 1)]
)
def test_features_are_roots_of_averages_of_length_one(shape, scales, pool):
    images, block = pictures(3, *shape), Features("scattering", scales, pool)
    made = extraction.extract(block, images)
    assert made.dtype == np.float32
    assert made.shape[1:] == features.shape(block, shape)
    for image, row in zip(images, made, strict=True):
        np.testing.assert_allclose(row, by_hand(image, scales, pool), atol=2e-6)


def test_features_of_an_image_do_not_depend_on_other_images():
    count = extraction.BATCH + 3
    images = pictures(count, 8, 8)
    images[1] = 0
    made = extraction.extract(SCATTERING, images)
    assert not made[1].any(), "a black image has no length to divide by"
    for row in (0, extraction.BATCH, count - 1):
        others = pictures(count, 8, 8, seed=1)
        others[row] = images[row]
        np.testing.assert_array_equal(extraction.extract(SCATTERING, others)[row], made[row])
        alone = extraction.extract(SCATTERING, images[row : row + 1])[0]
        np.testing.assert_allclose(alone, made[row], atol=1e-6)


def test_a_reference_standardises_by_its_own_mean_and_deviation():
    rng = np.random.default_rng(0)
    values, public = rng.normal(0, 2, (30, 4)), rng.normal(1, 0.5, (50, 4))
    public[:, 3] = 7
    made = extraction.standardise(values.astype(np.float32), public.astype(np.float32), 3.0)
    deviation = np.array([*public.std(0)[:3], 1])
    expected = np.clip((values - public.mean(0)) / deviation, -3, 3) / 2
    np.testing.assert_allclose(made, expected, atol=1e-5)
    assert made.dtype == np.float32
    assert abs(made).max() == 1.5, "some are clipped"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A data set of 12 users, whose number of classes is not declared."""
    rows = np.arange(120)
    source = tmp_path / "source.npz"
    x = pictures(120, 8, 8)
    np.savez(source, train_images=x, train_labels=rows % 3, train_users=rows % 12)
    datasets.prepare("mine", source, tmp_path, tmp_path / "mine.npz")
    return tmp_path / "mine.npz"


def test_the_file_of_features_has_the_rows_users_and_classes_of_the_data_set(images):
    target = images.parent / "mine.scattering-0.npz"
    line = extraction.make(SCATTERING, images, target)
    raw, made = datasets.load_arrays(images), datasets.load_arrays(target)
    of_rows = "120 rows of 12 users, 3 classes (from the labels)"
    assert line == f"mine.scattering-0: {of_rows}, 36 features"
    for name in OF_ROWS:
        np.testing.assert_array_equal(getattr(raw, name), getattr(made, name))
    for part in ("train_images", "test_images"):
        found = getattr(made, part)
        expected = [by_hand(image[..., None], 1, 2) for image in getattr(raw, part)]
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert datasets.normalise(found, made.mean, made.std) is found
    header = datasets.read_header(target)
    assert header.image_shape == features.shape(SCATTERING, (8, 8, 1))
    assert not header.declared
    dealt = Partition("dirichlet", 5, alpha=0.5, users="ignored")
    for kind in (Partition("natural", 8, new_clients=4), dealt):
        splits = (partition.make(arrays, kind, 1).train for arrays in (raw, made))
        for left, right in zip(*splits, strict=True):
            np.testing.assert_array_equal(left, right)
    pin = target.with_suffix(".pin").read_bytes()
    with pytest.raises(DataError, match="other values than when it was first used"):
        extraction.make(Features("scattering", 1, pool=1), images, target)
    assert target.with_suffix(".pin").read_bytes() == pin


def test_a_reference_with_other_features_is_refused(images):
    public = images.parent / "public.npz"
    extraction.make(Features("scattering", 1, pool=1), images, public)
    with pytest.raises(DataError, match=r"public.npz: features; got \(9,\); expected \(36,\)"):
        extraction.make(SCATTERING, images, images.parent / "a.npz", public)


def embeddings(images: Path, **changes: object) -> Features:
    """A file of features of a data set's rows, some of its arrays changed or, if None, left out."""
    raw = datasets.load_arrays(images)
    arrays = {
        "train_features": raw.train_images.reshape(len(raw.train_images), -1) / 7.0,
        "test_features": raw.test_images.reshape(len(raw.test_images), -1) / 7.0,
        "pin": images.with_suffix(".pin").read_text(),
    } | changes
    file = images.parent / "embeddings.npz"
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return Features("file", file=str(file), made_by="a network, from Fashion-MNIST")


def test_features_from_a_file_are_those_of_its_rows_under_the_data_sets_users(images):
    block, target = embeddings(images), images.parent / "mine.file-0.npz"
    line = extraction.make(block, images, target)
    assert line == "mine.file-0: 120 rows of 12 users, 3 classes (from the labels), 64 features"
    assert features.shape(block, (8, 8, 1)) == datasets.read_header(target).image_shape == (64,)
    raw, made = datasets.load_arrays(images), datasets.load_arrays(target)
    for name in OF_ROWS:
        np.testing.assert_array_equal(getattr(raw, name), getattr(made, name))
    for name in ("train_images", "test_images"):
        found, pixels = getattr(made, name), getattr(raw, name)
        np.testing.assert_array_equal(found, (pixels.reshape(-1, 64) / 7.0).astype(np.float32))
        assert found.dtype == np.float32


@pytest.mark.parametrize(("name", "array", "message"), TABLES["refused files"])
def test_a_file_that_does_not_fit_the_rows_is_refused(name, array, message, images):
    if isinstance(array, dict):
        array = np.full(array["shape"], array["of"])
    block, target = embeddings(images, **{name: array}), images.parent / "mine.file-0.npz"
    with pytest.raises(DataError, match=message):
        extraction.make(block, images, target)
    assert not target.exists()


def test_features_of_rows_in_another_order_are_refused(images):
    raw = datasets.load_arrays(images)
    names = [f"train_{name}" for name in ("images", "labels", "users")]
    turned = dataclasses.replace(raw, **{name: getattr(raw, name)[::-1] for name in names})
    block = embeddings(images, pin=pins.digest(datasets.values(turned)))
    with pytest.raises(DataError, match="in their order"):
        extraction.make(block, images, images.parent / "mine.file-0.npz")


OF_FILE, OF_OTHERS = (Features("file", file="a.npz", made_by=name) for name in ("a net", "b"))
MNIST, KMNIST = (dataclasses.replace(SCATTERING, reference=name) for name in ("mnist", "kmnist"))
NAMED = {
    FILE.format("a.npz", "a net"): (OF_FILE, Features(), OF_OTHERS),
    REFERENCE.format("mnist"): (MNIST, SCATTERING, KMNIST),
}


@pytest.mark.parametrize("warning", NAMED, ids=["file", "reference"])
def test_the_ledger_of_a_private_run_names_where_its_features_are_from(warning):
    cell, without, _ = (dataclasses.replace(CELL, features=block) for block in NAMED[warning])
    asked = Cell.from_dict(json.loads(project.plan_request(cell)))
    assert plan_of(asked).ledger.warnings == (warning, *plan_of(without).ledger.warnings)
    assert plan_of(asked, declared=False).ledger.warnings[0] == CLASSES_FOUND
    assert plan_of(dataclasses.replace(cell, privacy=Privacy())).ledger.warnings == ()
    cells = (dataclasses.replace(CELL, features=block) for block in NAMED[warning])
    assert len({one.plan_id for one in cells}) == 3


def test_a_study_names_the_file_relative_to_its_own_folder(here):
    block = {"kind": "file", "file": "../made/a.npz", "made_by": "a network"}
    Path("studies").mkdir()
    malformed.write(Path("studies/tiny.yaml"), STUDY | {"features": block})
    assert load.load_outline("tiny").everything.cells[0].features.file == "made/a.npz"


def test_a_cell_with_features_shares_the_partition_and_without_them_every_id():
    plain = dataclasses.replace(CELL, features=Features())
    scaled = dataclasses.replace(SCATTERING, reference="mnist", clip=3.0)
    found = [plain, CELL, dataclasses.replace(CELL, features=scaled)]
    assert len({cell.partition_id for cell in found}) == 1
    assert len({cell.data_id for cell in found}) == len({cell.id for cell in found}) == 3
    assert plain.data_id == "digits"
    assert CELL.data_id.startswith("digits.scattering-")
    assert found[2].reference == dataclasses.replace(CELL, dataset="mnist")
    assert plain.reference is CELL.reference is None


def test_a_reference_that_a_program_draws_needs_no_data_and_no_warning(tmp_path):
    drawn = dataclasses.replace(SCATTERING, reference="dead_leaves")
    cell = dataclasses.replace(CELL, features=drawn)
    assert cell.reference is None
    assert plan_of(cell).ledger.warnings == plan_of(CELL).ledger.warnings
    assert len({c.data_id for c in (cell, CELL)}) == 2
    datasets.prepare("digits", None, tmp_path, tmp_path / "digits.npz")
    extraction.make(drawn, tmp_path / "digits.npz", tmp_path / "made.npz")
    made = datasets.load_arrays(tmp_path / "made.npz").train_images
    batches = range(extraction.DRAWN_BATCHES)
    leaves = [dead_leaves.images(extraction.BATCH, (8, 8, 1), part) for part in batches]
    public = extraction.extract(drawn, np.concatenate(leaves))
    plain = extraction.extract(drawn, datasets.load_arrays(tmp_path / "digits.npz").train_images)
    np.testing.assert_allclose(made, extraction.standardise(plain, public, drawn.clip), rtol=1e-5)


def test_dead_leaves_are_large_and_small_and_no_two_images_are_alike():
    images = dead_leaves.images(64, (16, 20, 3), 0)
    assert images.shape == (64, 16, 20, 3)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, dead_leaves.images(64, (16, 20, 3), 0))
    others = dead_leaves.images(64, (16, 20, 3), 1)
    assert len(np.unique(np.concatenate([images, others]).reshape(128, -1), axis=0)) == 128
    # Some neighbours have one colour, others meet at an edge.
    steps = np.abs(np.diff(images.astype(int), axis=2)).sum(-1)
    assert (steps == 0).mean(axis=(1, 2)).min() > 0.05
    assert (steps > 0).mean(axis=(1, 2)).min() > 0.01


STUDY = TABLES["STUDY"]
REFUSED = tabled.table("no_features")


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_features_is_refused_before_any_job(case, here):
    block, changes, message = REFUSED[case].values()
    labels = np.arange(60) % 3
    np.savez("own.npz", train_images=pictures(60, 10, 12), train_labels=labels)
    np.savez("steps.npz", train_images=np.ones((60, 8, 8), np.float32), train_labels=labels)
    given = {"features": {"kind": "scattering"} | block}
    Path("studies").mkdir()
    malformed.write(Path("studies/tiny.yaml"), STUDY | given | changes)
    files = {name: f"{name}.npz" for name in ("own", "steps")}
    settings = config.parse({"studies": ["tiny"], "datasets": files})
    with pytest.raises(PflpipeError, match=message) as refused:
        check.validate(settings)
    assert len(refused.value.all) == 1
