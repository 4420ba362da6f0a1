"""Who holds what: every promise of partition.py and apportion.py, for every kind, down to extreme
skew."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import data as draws
from hypothesis.strategies import integers, lists, sampled_from

import tabled
import warm
from called import called
from pflpipe.cells import Cell, Model, Privacy, Training
from pflpipe.cells import Partition as Wish
from pflpipe.data import partition
from pflpipe.data.apportion import apportion, hold_out
from pflpipe.data.datasets import Arrays
from pflpipe.data.partition import make
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError

TABLES = tabled.table("test_partition")

exactly = settings(derandomize=True, deadline=None, max_examples=60)
SEEDS, ALPHAS = integers(0, 99), sampled_from([0.01, 0.05, 0.3, 1.0, 100.0])


def arrays(
    train: np.ndarray, test: np.ndarray | None = None, classes: int = 10, users: int | None = None
) -> Arrays:
    """A data set with these labels and blank 1x1 images; users take turns."""
    test = np.arange(20 * classes) % classes if test is None else test
    blank = np.zeros((len(train), 1, 1), dtype=np.uint8)
    ids = [None if users is None else np.arange(len(labels)) % users for labels in (train, test)]
    return Arrays(blank, train, np.zeros((len(test), 1, 1), dtype=np.uint8), test, classes, *ids)


def balanced(per_class: int, classes: int = 10) -> Arrays:
    labels = np.repeat(np.arange(classes), per_class)
    return arrays(np.random.default_rng(0).permutation(labels), classes=classes)


def sizes(split: Split) -> np.ndarray:
    return np.array(list(map(len, held(split))))


def assert_disjoint_and_complete(split: Split, total: int) -> None:
    own = split.test if split.own_from_train else []
    everything = np.concatenate([*split.train, *split.validation, *own])
    assert np.array_equal(np.sort(everything), np.arange(total))


def assert_same_rows(one: Split, other: Split, parts: Sequence[str] = partition.PARTS) -> None:
    for part in parts:
        for rows, same in zip(getattr(one, part), getattr(other, part), strict=True):
            assert rows.dtype == same.dtype == np.int64
            assert np.array_equal(rows, same)


def held(split: Split) -> list[np.ndarray]:
    """The rows of each client that are not set aside for its test."""
    return [np.concatenate(pair) for pair in zip(split.train, split.validation, strict=True)]


def counts(split: Split, labels: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in held(split)])


WISHES = [Wish(**wish) for wish in TABLES["every kind"]]


@pytest.mark.parametrize("wish", WISHES, ids=lambda w: w.kind)
def test_same_seed_same_bits_and_other_seed_other_clients(wish):
    declared = wish.kind == "natural" or wish.users
    data = arrays(np.arange(1000) % 10, users=20 if declared else None)
    first, again, other = make(data, wish, 3), make(data, wish, 3), make(data, wish, 4)
    assert_same_rows(first, again)
    assert any(not np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


@pytest.mark.slow
@exactly
@given(integers(2, 60), ALPHAS, integers(1, 12), integers(2, 12), integers(0, 400), SEEDS)
def test_dirichlet_ends_gives_every_example_once_and_min_size_to_all(
    clients, alpha, min_size, classes, spare, seed
):
    labels = np.random.default_rng(seed).integers(0, classes, clients * min_size + spare)
    wish = Wish("dirichlet", clients, alpha=alpha, min_size=min_size)
    split = make(arrays(labels, classes=classes), wish, seed)
    assert_disjoint_and_complete(split, len(labels))
    assert sizes(split).min() >= min_size


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 0.01])
def test_dirichlet_ends_for_a_thousand_clients_at_extreme_skew(alpha):
    split = make(balanced(2000), Wish("dirichlet", 1000, alpha=alpha, min_size=20), 0)
    assert_disjoint_and_complete(split, 20_000)
    assert (sizes(split) == 20).all()


def test_dirichlet_is_skewed_at_small_alpha_and_even_at_large_alpha():
    data = balanced(1000)
    for alpha, least, most in ((0.05, 0.6, 1), (1000.0, 0, 0.15)):
        held = counts(make(data, Wish("dirichlet", 20, alpha=alpha), 0), data.train_labels, 10)
        assert least < (held.max(axis=1) / held.sum(axis=1)).mean() < most


def test_dirichlet_gives_no_further_class_to_a_client_that_holds_its_share():
    # So whatever a client holds besides its last class is below N/M = 500, and above all besides
    # its largest.
    generator = np.random.default_rng(0)
    for _ in range(5):
        held = partition._draw_dirichlet(np.full(50, 200), 20, 0.3, generator)
        assert (held.sum(axis=1) - held.max(axis=1) < 500).all()
        assert held.sum(axis=0).tolist() == [200] * 50


def test_dirichlet_proportions_follow_the_dirichlet_distribution():
    # Two clients, alpha = 1, first class drawn: its share is uniform on [0, 1]: mean 1/2, variance
    # 1/12.
    rng = np.random.default_rng(0)
    draw, rows = partition._draw_dirichlet, np.array([10_000])
    shares = [draw(rows, 2, 1.0, rng)[0, 0] / 10_000 for _ in range(2000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.var(shares) == pytest.approx(1 / 12, abs=0.01)


def plainly_repaired(counts: np.ndarray, min_size: int, keep_classes: bool) -> np.ndarray:
    """What ``_repair`` promises, by a look at all clients for each example."""
    for client in np.flatnonzero(counts.sum(axis=1) < min_size):
        while counts[client].sum() < min_size:
            sizes = counts.sum(axis=1)
            for label in np.argsort(-counts[client], kind="stable"):
                able = (sizes > min_size) & (counts[:, label] > keep_classes)
                if counts[client, label] and able.any():
                    donor = np.argmax(np.where(able, sizes, -1))
                    break
            else:
                if keep_classes:
                    raise DataError("no donor")
                donor = np.argmax(sizes)
                label = np.argmax(counts[donor])
            counts[donor, label] -= 1
            counts[client, label] += 1
    return counts


@pytest.mark.parametrize("keep_classes", [False, True])
@exactly
@given(seed=integers(0, 2**32 - 1))
def test_repair_takes_each_example_from_the_largest_client_that_can_spare_it(keep_classes, seed):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.uniform(0.1, 2), (rng.integers(2, 30), rng.integers(1, 6)))
    min_size = int(counts.sum() // len(counts))
    try:
        expected = plainly_repaired(counts.copy(), min_size, keep_classes)
    except DataError:
        with pytest.raises(DataError, match="take a lower min_size"):
            partition._repair(counts.copy(), min_size, keep_classes=keep_classes)
    else:
        found = partition._repair(counts.copy(), min_size, keep_classes=keep_classes)
        assert np.array_equal(found, expected)


def test_repair_takes_no_class_from_a_client_that_would_lose_it():
    with pytest.raises(DataError, match="at most 2 with these classes"):
        partition._repair(np.array([[2, 0], [1, 9]]), 3, keep_classes=True)


@pytest.mark.slow
@exactly
@given(integers(2, 12), integers(2, 50), draws())
def test_pathological_gives_exactly_s_distinct_classes_and_every_example_once(
    classes, clients, draw
):
    wanted = draw.draw(integers(1, classes))
    data = balanced(clients * 2, classes)
    wish = Wish("pathological", clients, classes_per_client=wanted)
    split = make(data, wish, draw.draw(SEEDS))
    held = counts(split, data.train_labels, classes)
    assert ((held > 0).sum(axis=1) == wanted).all()
    if wanted * clients >= classes:
        assert (held.sum(axis=0) > 0).all()
        assert_disjoint_and_complete(split, len(data.train_labels))
    for label in range(classes):  # a class is divided evenly over its clients
        of_class = held[held[:, label] > 0, label]
        assert len(of_class) == 0 or of_class.max() - of_class.min() <= 1


def test_pathological_combinations_differ_between_clients_and_seeds():
    data = balanced(100)
    wish = Wish("pathological", 30, classes_per_client=2)
    held = [counts(make(data, wish, seed), data.train_labels, 10) for seed in (0, 1)]
    pairs = [{tuple(np.flatnonzero(row)) for row in rows} for rows in held]
    assert len(pairs[0]) > 10
    assert pairs[0] != pairs[1]


def test_pathological_min_size_is_filled_from_the_clients_own_classes():
    labels = np.repeat([0, 1, 2], [100, 100, 12])  # whoever holds class 2 is short
    wish = Wish("pathological", 6, classes_per_client=2, min_size=30)
    split = make(arrays(labels, classes=3), wish, 0)
    assert sizes(split).min() >= 30
    assert ((counts(split, labels, 3) > 0).sum(axis=1) == 2).all()
    with pytest.raises(DataError, match="min_size"):
        make(arrays(labels, classes=3), replace(wish, classes_per_client=1), 0)


def test_pathological_with_a_class_too_small_for_its_slots_moves_the_slots():
    labels = np.repeat([0, 1, 2], [100, 100, 1])
    wish = Wish("pathological", 5, classes_per_client=2)
    held = counts(make(arrays(labels, classes=3), wish, 0), labels, 3)
    assert ((held > 0).sum(axis=1) == 2).all()
    with pytest.raises(DataError, match="11 \\(client, class\\) pairs"):
        make(arrays(labels, classes=3), Wish("pathological", 5, classes_per_client=3), 0)


def test_iid_sizes_differ_by_one_at_most():
    split = make(balanced(101), Wish("iid", 17), 0)
    assert_disjoint_and_complete(split, 1010)
    assert np.ptp(sizes(split)) <= 1


@pytest.mark.parametrize("kind", ["iid", "natural"])
def test_a_common_test_of_so_many_rows_is_drawn_from_all_of_them(kind):
    data = arrays(np.arange(400) % 10, users=8 if kind == "natural" else None)
    wish = Wish(kind, 4, new_clients=2)
    every = make(data, wish, 0)
    some, other = (make(data, replace(wish, common_test=30), seed) for seed in (0, 1))
    assert len(np.unique(some.common)) == 30
    assert set(some.common) < set(every.common)
    assert np.array_equal(some.common, np.sort(some.common))
    assert_same_rows(some, every)  # nothing else moves
    assert not np.array_equal(some.common, other.common)
    for rows in (0, 100_000):
        whole = make(data, replace(wish, common_test=rows), 0)
        assert np.array_equal(whole.common, every.common)


def of_users(train: list[int], test: list[int]) -> Arrays:
    """Two classes; user i has ``train[i]`` training and ``test[i]`` test examples."""
    users = [np.repeat(np.arange(len(sizes)), sizes) for sizes in (train, test)]
    users = [np.random.default_rng(0).permutation(ids) for ids in users]
    data = arrays(np.arange(sum(train)) % 2, np.arange(sum(test)) % 2, classes=2)
    return replace(data, train_users=users[0], test_users=users[1])


def test_natural_clients_are_the_first_user_ids_whatever_they_hold():
    """Who takes part must not depend on a size: sizes are private, ids are not."""
    first, other = ([7, 1, 0, 4, 9], [2, 0, 3, 1, 2]), ([1, 8, 5, 0, 9], [0, 1, 0, 2, 2])
    for train, test in (first, other):
        data = of_users(train, test)
        split = make(data, Wish("natural", 4), 0)
        assert len(split.train) == 4
        assert np.array_equal(split.common, np.flatnonzero(data.test_users < 4))
        for user, (rows, own) in enumerate(zip(held(split), split.test, strict=True)):
            assert np.array_equal(np.sort(rows), np.flatnonzero(data.train_users == user))
            assert np.array_equal(own, np.flatnonzero(data.test_users == user))


@pytest.mark.parametrize("clients", [0, 3])
def test_natural_users_are_split_inside_each_user(clients):
    data = of_users([10, 2, 1, 6], [0, 3, 0, 2])
    wish = Wish("natural", clients, min_size=2, test_fraction=0.3, validation_fraction=0.2)
    split = make(data, wish, 0)
    assert split.own_from_train
    held = [(6, 1, 3), (1, 0, 1), (0, 0, 0), (3, 1, 2)][: clients or 4]
    for user, expected in enumerate(held):
        parts = [getattr(split, part)[user] for part in ("train", "validation", "test")]
        assert tuple(map(len, parts)) == expected
        rows = np.sort(np.concatenate(parts))
        of_user = np.flatnonzero(data.train_users == user)
        assert np.array_equal(rows, of_user if len(of_user) >= 2 else of_user[:0])
    assert np.array_equal(split.common, np.flatnonzero(data.test_users < (clients or 4)))


OTHERS = TABLES["what a natural user holds decides nothing about others"]


@pytest.mark.parametrize(("wish", "left"), OTHERS.values(), ids=OTHERS)
def test_what_one_natural_user_holds_decides_nothing_about_the_rows_of_others(wish, left):
    """The neighbours of the privacy claim: the same clients, of whom one holds something else."""
    wish, whole = Wish(**wish), of_users([9, 9, 9], [1, 1, 1])
    gone = np.flatnonzero(whole.train_users == 1)[left:]
    kept = np.delete(np.arange(27), gone)
    columns = ("train_images", "train_labels", "train_users")
    fewer = replace(whole, **{key: getattr(whole, key)[kept] for key in columns})
    before, after = make(whole, wish, 0), make(fewer, wish, 0)
    parts = partition.PARTS if wish.test_fraction else ("train", "validation")
    assert sum(len(getattr(after, part)[1]) for part in parts) == left
    for part, user in itertools.product(parts, (0, 2)):
        rows = getattr(after, part)[user]
        assert np.array_equal(getattr(before, part)[user], kept[rows])


def test_a_natural_user_below_min_size_trains_and_validates_on_nothing_and_is_still_tested():
    """Who has many rows is private, so that all ids take part where no number is asked for."""
    data = of_users([4, 5, 0, 6], [3, 0, 2, 1])
    wish = Wish("natural", 4, min_size=5, validation_fraction=0.4)
    split = make(data, wish, 0)
    assert sizes(split).tolist() == [0, 5, 0, 6]
    assert [len(rows) for rows in split.validation] == [0, 2, 0, 2]
    assert [len(rows) for rows in split.test] == [3, 0, 2, 1]
    assert split.common.tolist() == list(range(6))
    assert_same_rows(split, make(data, replace(wish, clients=0), 0))


def test_natural_users_of_whom_nobody_may_train_are_refused():
    words = r"min_size; got 5; .* at least one of the first 2 user ids; take a lower min_size"
    with pytest.raises(DataError, match=words) as caught:
        make(of_users([4, 3, 9], [1, 1, 1]), Wish("natural", 2, min_size=5), 0)
    assert "\n" not in str(caught.value)
    make(of_users([4, 3, 9], [1, 1, 1]), Wish("natural", 3, min_size=5), 0)


@exactly
@given(integers(1, 40), sampled_from([0.0, 0.05, 0.1, 0.5, 0.9]), SEEDS)
def test_hold_out_is_a_stratified_share_and_leaves_something(size, fraction, seed):
    labels = np.random.default_rng(seed).integers(0, 3, size)
    aside = hold_out(labels, fraction, np.random.default_rng(seed))
    assert aside.sum() <= max(size - 1, 0)
    assert abs(aside.sum() - fraction * size) <= 1
    if fraction > 0 and size >= 3:
        assert aside.sum() >= 1
    per_class, total = np.bincount(labels[aside], minlength=3), np.bincount(labels, minlength=3)
    assert (abs(per_class - fraction * total) <= 2).all()
    if aside.sum() <= (np.maximum(total - 1, 0)).sum():
        assert (per_class[total > 0] < total[total > 0]).all()


def test_hold_out_does_not_favour_a_class():
    labels = np.arange(10)  # one of each: the one example held out must not always be class 0
    draws = map(np.random.default_rng, range(30))
    chosen = {int(labels[hold_out(labels, 0.1, draw)][0]) for draw in draws}
    assert len(chosen) > 5


def test_hold_out_leaves_an_example_of_each_class_where_it_can():
    rare = np.array([0] + [1] * 9)
    assert not any(hold_out(rare, 0.5, np.random.default_rng(seed))[0] for seed in range(20))


def test_divided_test_set_is_disjoint_and_in_the_proportions_of_the_training_share():
    data = arrays(np.arange(4000) % 10, np.arange(2000) % 10)
    split = make(data, Wish("dirichlet", 8, alpha=0.5), 0)
    rows = np.concatenate(split.test)
    assert np.array_equal(np.sort(rows), np.arange(2000))
    held = counts(split, data.train_labels, 10)
    own = np.stack([np.bincount(data.test_labels[r], minlength=10) for r in split.test])
    assert abs(own - held / 2).max() <= 1  # the test set is half as large as the training set
    assert np.array_equal(split.common, np.arange(2000))


def test_divided_test_set_gives_everybody_a_picture_of_his_classes():
    data = arrays(np.arange(400) % 10, np.arange(10))
    split = make(data, Wish("pathological", 40, classes_per_client=2), 0)
    for own, held in zip(split.test, counts(split, data.train_labels, 10), strict=True):
        assert len(own) >= 1
        assert (held[data.test_labels[own]] > 0).all()


@exactly
@given(integers(1, 30), sampled_from([0.1, 0.2, 0.5]), sampled_from([0.0, 0.1, 0.3]), SEEDS)
def test_own_tests_are_a_part_of_the_clients_own_examples(size, tested, validated, seed):
    data = arrays(np.arange(6 * size) % 10)
    wish = Wish("iid", 6, validation_fraction=validated, test_fraction=tested)
    split = make(data, wish, seed)
    assert split.own_from_train
    assert_disjoint_and_complete(split, 6 * size)
    for train, own in zip(split.train, split.test, strict=True):
        assert len(train) >= 1
        assert abs(len(own) - tested * size) <= 1
        assert len(own) >= (size >= 3)
    assert np.array_equal(split.common, np.arange(len(data.test_labels)))


@pytest.mark.parametrize("part", ["test", "validation"])
def test_what_is_set_aside_is_drawn_without_regard_to_class(part):
    """A class seen once must be set aside as often as any other example, or small clients look
    better than they are."""
    # iid over 2 clients of 10; example 0 is alone in its class
    data = arrays(np.array([0] + [1] * 9 + [2] * 10), classes=3)
    wish = Wish("iid", 2, test_fraction=0.3, validation_fraction=0.3)
    splits = [make(data, wish, seed) for seed in range(300)]
    rate = np.mean([any(0 in rows for rows in getattr(split, part)) for split in splits])
    expected = 0.3 if part == "test" else 0.2  # 3 of 10, then 2 of the 7 that are left
    assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / 300)


def test_a_class_that_runs_out_is_replaced_by_the_clients_other_classes():
    weights, room = np.array([90, 9, 1, 0]), np.array([5, 100, 100, 100])
    drawn = apportion(weights, 20, np.random.default_rng(0), room=room)
    assert drawn[0] == 5
    assert drawn.sum() == 20
    assert drawn[1] >= 13
    assert drawn[3] == 0


@exactly
@given(lists(integers(0, 50), min_size=1, max_size=8), integers(0, 200), SEEDS, draws())
def test_apportion_gives_all_within_room_and_within_one_of_the_quota(weights, total, seed, draw):
    count = {"min_size": len(weights), "max_size": len(weights)}
    room = np.array(draw.draw(lists(integers(0, 60), **count)))
    weights = np.array(weights)
    given_ = apportion(weights, total, np.random.default_rng(seed), room=room)
    assert (given_ <= room).all()
    assert (given_[weights == 0] == 0).all()
    assert given_.sum() == min(total, room[weights > 0].sum())
    free = apportion(weights, total, np.random.default_rng(seed))
    if weights.sum():
        assert (abs(free - total * weights / weights.sum()) < 1).all()


@pytest.mark.parametrize("wish", TABLES["wishes that are saved"], ids=lambda wish: wish["kind"])
def test_saved_split_is_loaded_with_the_same_bits_in_the_promised_arrays(wish, tmp_path):
    data = of_users([0, 5, 0, 7, 0] + [8] * 7, [1, 0, 1, 2, 3] + [1] * 7)
    split, path = make(data, Wish(**wish), 0), tmp_path / "new" / "split.npz"
    split.save(path)
    loaded = Split.load(path)
    assert_same_rows(split, loaded)
    assert np.array_equal(split.common, loaded.common)
    assert loaded.own_from_train is split.own_from_train is True
    assert loaded.new is None
    with np.load(path) as stored:
        lists = {f"{part}_{key}" for part in partition.PARTS for key in ("index", "offsets")}
        lists |= {"common_index"}
        assert set(stored.files) == lists | {"own_from_train"}
        assert all(stored[key].dtype == np.int64 for key in lists)
        assert len(stored["train_offsets"]) == 13
    assert [file.name for file in path.parent.iterdir()] == ["split.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "split.npz"
    split = make(balanced(20), Wish("iid", 5), 0)
    split.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(partition.np, "savez", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        split.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["split.npz"]


def test_a_damaged_or_missing_partition_file_is_named(tmp_path):
    path = tmp_path / "split.npz"
    names = (f"{part}_{key}" for part in partition.PARTS for key in ("index", "offsets"))
    pickled = {"common_index": np.array([0, 1], dtype=object)}
    for damage in (
        lambda: None,
        lambda: path.write_bytes(b"PK\x03\x04 nothing"),
        lambda: np.savez(path, train_index=np.arange(3)),
        lambda: np.savez(path, **pickled, **dict.fromkeys(names, np.array([0, 1]))),
    ):
        damage()
        with pytest.raises(DataError, match=r"split\.npz"):
            Split.load(path)


@pytest.mark.parametrize(("change", "words"), TABLES["wishes that cannot be met"])
def test_a_wish_that_cannot_be_met_is_refused_with_place_and_remedy(change, words):
    wish = replace(Wish("dirichlet", 5, alpha=1.0), **change)
    with pytest.raises((ConfigError, DataError), match=words) as caught:
        partition.check(wish, 10, 500, None, "studies/a.yaml: partition")
    assert "studies/a.yaml: partition" in str(caught.value)
    with pytest.raises(type(caught.value)):
        make(balanced(50), wish, 0)


NATURAL = TABLES["a natural wish that cannot be met"]


@pytest.mark.parametrize(("wish", "users", "words"), NATURAL)
def test_a_natural_wish_that_cannot_be_met_is_refused(wish, users, words):
    with pytest.raises((ConfigError, DataError), match=words):
        partition.check(Wish("natural", **wish), 10, 500, users)


# ---------------------------------------------------------------- dealt without regard to users


DEALT = [Wish(**wish) for wish in TABLES["every kind that deals"]]
OWNERS = lists(integers(0, 6), min_size=120, max_size=120)
kinds_that_deal = pytest.mark.parametrize("wish", DEALT, ids=lambda wish: wish.kind)


@kinds_that_deal
def test_rows_of_declared_users_are_dealt_only_if_the_study_says_so(wish):
    """Before, a client of other people's rows went by the name of user."""
    data, without = (arrays(np.arange(200) % 10, users=users) for users in (8, None))
    natural = re.escape("partition: {kind: natural}")
    ignored = re.escape(f"partition: {{kind: {wish.kind}, users: ignored, ...}}")
    with pytest.raises(ConfigError, match=f"{natural}.*{ignored}") as caught:
        make(data, wish, 0)
    assert "\n" not in str(caught.value)
    said = replace(wish, users="ignored")
    assert_same_rows(make(data, said, 0), make(without, wish, 0), ["train"])
    with pytest.raises(ConfigError, match=r"users; got 'ignored'; expected a data set with user"):
        make(without, said, 0)


def test_shifted_labels_are_those_of_the_first_clients_and_nothing_else_changes():
    labels = np.arange(200) % 10
    wish = Wish("dirichlet", 8, alpha=0.3, min_size=6, test_fraction=0.3, new_clients=4)
    split = make(arrays(labels), wish, 0)
    assert_same_rows(split, make(arrays(labels), replace(wish, shifted=0.25), 0))
    moved = partition.shifted_labels(labels, split, 0.25, 10)
    sides = ((split, 2), (split.new, 1))
    first = [getattr(side, part)[:n] for side, n in sides for part in partition.PARTS]
    shifted = np.concatenate([rows for part in first for rows in part])
    assert (moved[shifted] == (labels[shifted] + 1) % 10).all()
    assert np.array_equal(np.flatnonzero(moved != labels), np.sort(shifted))
    numbers = arrays(labels.astype(np.float32))
    with pytest.raises(ConfigError, match=r"shifted; got 0\.25; expected 0, as labels are real"):
        make(numbers, Wish("iid", 4, test_fraction=0.3, shifted=0.25), 0)


@kinds_that_deal
@exactly
@given(integers(1, 9), OWNERS, sampled_from([None, 0.3]), integers(0, 3), integers(0, 999))
def test_no_user_has_rows_with_more_clients_than_declared(wish, most, owners, fraction, new, seed):
    ids = np.array(owners)
    rows = arrays(np.arange(120) % 5, np.arange(60) % 5, classes=5)
    data = replace(rows, train_users=ids, test_users=ids[:60])
    said = {"users": "ignored", "max_clients_per_user": most, "min_size": 1}
    split = make(data, replace(wish, **said, test_fraction=fraction, new_clients=new), seed)
    clients: dict[int, set[int]] = {user: set() for user in range(7)}
    sides = [split, *([split.new] if split.new else [])]
    ids_of_test = ids if split.own_from_train else data.test_users
    pairs = [pair for side in sides for pair in zip(held(side), side.test, strict=True)]
    for client, (rows, own) in enumerate(pairs):
        for user in {*ids[rows].tolist(), *ids_of_test[own].tolist()}:
            clients[user].add(client)
    assert max(map(len, clients.values())) <= most
    for side in sides:
        dealt = np.concatenate([*side.train, *side.validation])
        assert len(np.unique(dealt)) == len(dealt)


@kinds_that_deal
def test_which_clients_a_user_may_be_with_follows_from_its_name_alone(wish):
    """All of a user's rows replaced, and those of the others left as they are: who holds the others
    stays the same where every class is dealt to everyone."""
    labels, users = np.arange(300) % 5, np.repeat(np.arange(10), 30)
    bounded = replace(wish, users="ignored", max_clients_per_user=2, min_size=1)
    found = []
    for shuffled in (labels, np.where(users == 3, 0, labels)):
        data = arrays(shuffled, labels, classes=5)
        data = replace(data, train_users=users, test_users=users.copy())
        rows_of = list(enumerate(held(make(data, bounded, 0))))
        found.append([{n for n, rows in rows_of if user in users[rows]} for user in range(10)])
    assert all(len(before | after) <= 2 for before, after in zip(*found, strict=True))


def test_a_class_goes_to_a_users_clients_in_proportion_to_what_they_are_dealt():
    """Two clients and all users with both: shares of each class as without the bound, within five
    standard deviations (two-sided error below 1e-6 for each of ten classes)."""
    data = arrays(np.arange(4000) % 10, users=40)
    free = Wish("dirichlet", 2, alpha=1.0, users="ignored", validation_fraction=0)
    wishes = (free, replace(free, max_clients_per_user=2))
    dealt, bounded = (counts(make(data, one, 0), data.train_labels, 10) for one in wishes)
    shares = dealt / 400
    spread = np.sqrt(400 * shares * (1 - shares))
    assert (np.abs(bounded - dealt) <= 5 * spread).all()
    assert bounded.sum() == 4000


def test_a_dealt_client_below_min_size_takes_part_without_rows():
    data = arrays(np.arange(60) % 2, classes=2, users=2)
    wish = Wish("iid", 6, min_size=5, users="ignored", max_clients_per_user=1)
    split = make(data, wish, 0)
    assert len(split.train) == 6
    assert sum(map(bool, sizes(split))) <= 2


@pytest.mark.slow
def test_script_writes_the_partition_of_a_cell_with_the_bits_of_this_process(tmp_path):
    data = balanced(20)
    path, target = tmp_path / "d.npz", tmp_path / "p.npz"
    np.savez(path, **{key: value for key, value in vars(data).items() if value is not None})
    wish = Wish("dirichlet", 6, alpha=0.5, min_size=4)
    rest = Model("mlp", (4,)), Training(1, 1, 0, "sgd", 0.1), Privacy(), "fedavg"
    cell = json.dumps(Cell("mine", wish, *rest, seed=5).to_dict())
    script = [warm.interpreter(), "workflow/scripts/partition.py", "--cell", cell]
    called(*script, "--data", path, "--target", target)
    assert_same_rows(Split.load(target), make(data, wish, 5))
    failed = called(*script, "--data", tmp_path / "no.npz", "--target", target, code=2)
    assert len(failed.stderr.splitlines()) == 1
