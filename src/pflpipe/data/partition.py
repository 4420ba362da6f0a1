"""Partitions: a data set divided over M clients, and each client's examples over train, validation
and test.

Training examples (train and validation together) are divided by one of four kinds:

- ``dirichlet``: class by class, in proportions drawn from Dirichlet(alpha) over the clients that
  hold less than N/M so far (size balancing as in FedLab's hetero-dir partition);
- ``pathological``: s distinct classes per client, a class is divided evenly over its clients
  (FedRep, CENTAUR; they use shards, this module class slots, so that s M / K need not be an
  integer);
- ``iid``: a uniform permutation in M equal parts;
- ``natural``: the data set's users, the first M ids in sorted order, or all. Ids are public and
  sizes are not, so sizes never decide who takes part. A user with fewer than ``min_size`` training
  examples is a client without any.

A client's own test rows are a random part of its examples (``test_fraction``), or a part of the
data set's test set, divided disjointly with the class proportions of the clients' shares. The first
suits clients with a handful of examples: it also tests classes that the client has not trained on.
``natural`` users have their own test rows, or with ``test_fraction`` a part of their training rows.
The common test set is all test rows (``natural``: those of the clients, with training examples or
without). Every draw derives from the seed by name; clients keep the order in which they were drawn,
rows within a client ascend.

Rows of a data set with users are dealt (by any kind but ``natural``) only with ``users: ignored``:
the rows of one user then lie with many clients, and a client is no user. ``max_clients_per_user`` k
bounds with how many. For each user k clients are drawn by the user's name, whatever anybody holds,
and each of its rows goes to one of these k, with a chance in proportion to what the kind deals each
of them of the row's class (``iid``: with equal chances). So sizes and classes are those of the kind
on average only: rows of a class that none of the k is dealt go to nobody, and a client with fewer
than ``min_size`` training examples is one without any, as with ``natural``.

With ``new_clients`` N the examples are divided over N further clients. A separate stream chooses
the new ones among all, whatever they hold. New clients take no part in training, and the test rows
of ``natural`` ones are in no common test set.
"""

import heapq
import itertools
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from pflpipe import cells, options
from pflpipe.data.apportion import apportion, set_aside
from pflpipe.data.datasets import Arrays
from pflpipe.data.split import PARTS, Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.seeds import numpy_rng

DRAWS = 20  # Dirichlet draws before the best one is repaired


def check(
    partition: cells.Partition,
    classes: int,
    train_size: int,
    users: int | None,
    location: str = "partition",
) -> None:
    """Refuse a request that cannot be met, given only the header of the data set (data.describe).

    Args:
        partition: the request.
        classes: number of classes K of the data set; 0 if its labels are real numbers.
        train_size: number of training examples N.
        users: number of user ids, or None.
        location: names the study in messages.

    Raises:
        ConfigError: a value is out of range, missing, or of another kind, or see ``check_users``.
        DataError: the data set is too small, or has too few users or classes.
    """
    p, everyone = partition, partition.clients + partition.new_clients
    options.check(p, location)

    def refuse(key: str, got: object, expected: str, do: str = "") -> NoReturn:
        raise DataError(f"{location}.{key}", got=got, expected=expected, do=do)

    def require(fits: bool, key: str, got: object, expected: str) -> None:
        ConfigError.unless(fits, f"{location}.{key}", got, expected)

    got = f"{p.kind}, with labels that are real numbers"
    fits = classes > 0 or p.kind in ("natural", "iid")
    require(fits, "kind", got, "natural or iid, which need no classes")
    require(classes > 0 or not p.shifted, "shifted", p.shifted, "0, as labels are real numbers")
    held, expected = p.classes_per_client, f"1 to {classes}, the data set's classes"
    require(held is None or held <= classes, "classes_per_client", held, expected)
    check_users(p, users is not None, location)
    if p.kind != "natural":
        got = f"{_count(p)} clients with min_size {p.min_size}"
        expected = f"at most {train_size} training examples in all"
        do = "take fewer clients or a lower min_size"
        DataError.unless(train_size >= everyone * p.min_size, location, got, expected, do)
    elif users is None:
        do = "choose dirichlet, pathological or iid"
        refuse("kind", "natural", "a data set with user ids", do)
    elif users < 2:
        refuse("kind", f"natural, with {users} user id", "a data set with at least 2 user ids")
    elif not p.clients and p.new_clients > users - 2:
        left = f"at most {users - 2}, so that 2 of {users} user ids are left to train"
        refuse("new_clients", p.new_clients, left)
    elif p.clients and everyone > users:
        refuse("clients", _count(p), f"at most {users}, the data set's user ids")


def check_users(partition: cells.Partition, declared: bool, location: str = "partition") -> None:
    """Raise ConfigError if rows are dealt without regard to the users whom the data set declares
    and the request does not say so, or if it says so of data without users."""
    kind, ignored = partition.kind, partition.users is not None
    got = f"{kind}, which deals the rows of one user to many clients"
    expected = "natural, as the data set has user ids"
    do = (
        "write partition: {kind: natural}, so that a client is a user, or "
        f"partition: {{kind: {kind}, users: ignored, ...}}, so that it is a dealt client"
    )
    fits = not declared or kind == "natural" or ignored
    ConfigError.unless(fits, f"{location}.kind", got, expected, do)
    expected, do = "a data set with user ids", "remove it: such rows are dealt anyway"
    fits = declared or not ignored
    ConfigError.unless(fits, f"{location}.users", partition.users, expected, do)


def _count(partition: cells.Partition) -> int | str:
    new = partition.new_clients
    return f"{partition.clients} and {new} new" if new else partition.clients


def make(arrays: Arrays, partition: cells.Partition, seed: int) -> Split:
    """Divide a data set over clients.

    Every training example belongs to exactly one client, with exceptions that belong to none:
    ``natural`` examples of users beyond the first M + N or with fewer than ``min_size``,
    ``pathological`` examples of a class that no client drew (s M < K), and with
    ``max_clients_per_user`` those that none of a user's clients may have.

    Args:
        arrays: the data set.
        partition: kind and sizes.
        seed: the cell's seed; equal seeds give equal bits.

    Raises:
        ConfigError, DataError: see ``check``; DataError also when pathological classes are too
            small, or all natural users.
    """
    labels, test_labels, classes = arrays.train_labels, arrays.test_labels, arrays.classes
    users, known = arrays.users, 0 if arrays.numbers else classes
    check(partition, known, len(labels), None if users is None else len(users))
    most = partition.max_clients_per_user
    if arrays.numbers:  # own tests are drawn as if all rows had one class
        labels, test_labels = (np.zeros(len(rows), np.int64) for rows in (labels, test_labels))
        classes = 1
    rng = numpy_rng(seed, "partition", "train")
    common = np.arange(len(arrays.test_labels))
    if partition.kind == "natural":
        assert users is not None  # for mypy: check() refused
        assert arrays.train_users is not None
        assert arrays.test_users is not None
        chosen = users[: partition.clients + partition.new_clients if partition.clients else None]
        new = _draw_new(len(chosen), partition.new_clients, seed)
        shares = _rows_of(arrays.train_users, chosen)
        shares = _of_min_size(shares, partition.min_size, new, "user ids")
        test = _rows_of(arrays.test_users, chosen)
        common = np.flatnonzero(np.isin(arrays.test_users, chosen[~new]))
    else:
        everyone = replace(partition, clients=partition.clients + partition.new_clients)
        new = _draw_new(everyone.clients, partition.new_clients, seed)
        if partition.kind == "dirichlet":
            counts = _dirichlet(labels, classes, everyone, rng)
        elif partition.kind == "pathological":
            counts = _pathological(labels, classes, everyone, rng)
        else:
            counts = np.ones((everyone.clients, classes), dtype=np.int64)
        if most is not None:
            assert arrays.train_users is not None  # for mypy: check() refused
            assert arrays.test_users is not None
            shares = _deal_by_user(labels, arrays.train_users, counts, most, seed, "train")
            test = _deal_by_user(test_labels, arrays.test_users, counts, most, seed, "test")
            shares = _of_min_size(shares, partition.min_size, new, "clients")
        elif partition.kind == "iid":
            shares = np.array_split(rng.permutation(len(labels)), everyone.clients)
        else:
            shares = _deal(labels, counts, rng)
        if most is None and partition.test_fraction is None:
            held = np.stack([np.bincount(labels[rows], minlength=classes) for rows in shares])
            test = _own_tests(test_labels, held, numpy_rng(seed, "partition", "test"))
    if 0 < partition.common_test < len(common):
        stream = numpy_rng(seed, "partition", "common")
        common = np.sort(stream.choice(common, partition.common_test, replace=False))
    if partition.test_fraction is not None:
        # Not stratified: a small client would then never be tested on a class that it has seen
        # once, and its validation and test would be easier than its next example.
        test, shares = set_aside(shares, partition.test_fraction, seed, "partition", "test")
    fraction = partition.validation_fraction
    validation, train = set_aside(shares, fraction, seed, "partition", "validation")
    own_from_train = partition.test_fraction is not None
    everybody = Split(train, validation, [np.sort(rows) for rows in test], common, own_from_train)
    return replace(_only(everybody, ~new), new=_only(everybody, new)) if new.any() else everybody


def shifted_labels(labels: np.ndarray, split: Split, share: float, classes: int) -> np.ndarray:
    """Return the training labels ``[N]`` with those of the first ``share`` of the clients, and of
    the new ones, moved on by one class, their own test rows included: a concept shift by swapped
    labels (Sattler, Mueller, Samek, "Clustered Federated Learning", IEEE TNNLS 2021)."""
    moved = labels.copy()
    for clients in (split, split.new) if split.new else (split,):
        for client in range(round(share * len(clients.train))):
            for part in PARTS:
                rows = getattr(clients, part)[client]
                moved[rows] = (labels[rows] + 1) % classes
    return moved


def _only(split: Split, chosen: np.ndarray) -> Split:
    """Return the split of the clients ``chosen``, bool [clients]."""
    parts: dict[str, Any] = {
        part: list(itertools.compress(getattr(split, part), chosen)) for part in PARTS
    }
    return replace(split, **parts)


def _draw_new(clients: int, count: int, seed: int) -> np.ndarray:
    """Return which clients are new, bool [clients], whatever their data."""
    new = np.zeros(clients, dtype=bool)
    new[numpy_rng(seed, "partition", "new").choice(clients, count, replace=False)] = True
    return new


def _of_min_size(
    shares: list[np.ndarray], min_size: int, new: np.ndarray, whose: str
) -> list[np.ndarray]:
    """Leave out the rows of clients with fewer than ``min_size``, a public rule that each device
    can apply to itself; ``whose`` names the clients in messages."""
    kept = [rows if len(rows) >= min_size else rows[:0] for rows in shares]
    besides = f", {new.sum()} new ones aside" if new.any() else ""
    some = f"at least one of the first {len(shares)} {whose}{besides}"
    expected, do = f"so many training examples of {some}", "take a lower min_size or more clients"
    fits = any(map(len, itertools.compress(kept, ~new)))
    DataError.unless(fits, "partition.min_size", min_size, expected, do)
    return kept


def _rows_of(users: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Rows of each chosen user, in the users' order."""
    order = np.argsort(users, kind="stable")
    ends = [np.searchsorted(users[order], chosen, side=side) for side in ("left", "right")]
    return [order[start:stop] for start, stop in zip(*ends, strict=True)]


def _dirichlet(
    labels: np.ndarray, classes: int, partition: cells.Partition, rng: np.random.Generator
) -> np.ndarray:
    """Return how many examples of each class each client gets, int64 [M, K]. Draw up to DRAWS
    times. If every draw leaves a client below min_size, repair the draw that lacks the fewest
    examples."""
    assert partition.alpha is not None  # for mypy: check() refused
    best, shortage = np.empty(0), np.inf
    totals = np.bincount(labels, minlength=classes)
    for _ in range(DRAWS):
        counts = _draw_dirichlet(totals, partition.clients, partition.alpha, rng)
        missing = np.maximum(partition.min_size - counts.sum(axis=1), 0).sum()
        if missing < shortage:
            best, shortage = counts, missing
        if missing == 0:
            break
    return _repair(best, partition.min_size, keep_classes=False)


def _draw_dirichlet(
    totals: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Return how many examples of each class each client gets, int64 [M, K].

    Classes come in random order, because fewer clients have room for the last ones. A Dirichlet
    vector restricted to some entries and renormalised is again Dirichlet, so drawing over the
    clients with room equals zeroing the others.
    """
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    for label in rng.permutation(np.flatnonzero(totals)):
        room = np.flatnonzero(counts.sum(axis=1) * clients < totals.sum())
        shares = np.cumsum(rng.dirichlet(np.full(len(room), alpha)))
        ends = np.floor(shares * totals[label]).astype(np.int64)
        ends[-1] = totals[label]
        counts[room, label] = np.diff(np.minimum(ends, totals[label]), prepend=0)
    return counts


def _repair(counts: np.ndarray, min_size: int, *, keep_classes: bool) -> np.ndarray:
    """Move examples, one at a time, to clients below ``min_size`` from the largest client that can
    spare one.

    An example of the receiver's most frequent class is moved where any client above ``min_size``
    has one; otherwise (``keep_classes``: never) one of the largest client's most frequent class.
    No client falls below ``min_size``, and every move lowers the shortage by one, so the loop ends.
    With ``keep_classes`` no client loses or gains a class.

    Args:
        counts: int64 [M, K]; changed in place.
    """
    sizes = counts.sum(axis=1)
    donors = _Donors(counts, sizes, min_size, int(keep_classes))
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            donor = None
            for label in np.argsort(-counts[client], kind="stable").tolist():
                if counts[client, label] > 0:
                    donor = donors.largest(label)
                if donor is not None:
                    break
            else:
                if keep_classes:
                    expected = f"at most {sizes[client]} with these classes"
                    do = "take a lower min_size, fewer clients or other classes_per_client"
                    raise DataError("partition.min_size", got=min_size, expected=expected, do=do)
                donor = donors.largest()
                assert donor is not None  # for mypy: check() refused too few examples
                label = int(np.argmax(counts[donor]))
            counts[client, label] += 1
            sizes[client] += 1
            counts[donor, label] -= 1
            sizes[donor] -= 1
    return counts


class _Donors:
    """The clients above ``least``, from which examples are taken one at a time, down to ``kept`` of
    a class. For a million clients, a look at all of them for each example would take hours.

    Args:
        counts, sizes: int64 [M, K] and [M], of which only clients at or below ``least`` may gain.
    """

    def __init__(self, counts: np.ndarray, sizes: np.ndarray, least: int, kept: int) -> None:
        self._counts, self._sizes, self._least, self._kept = counts, sizes, least, kept
        self._heaps: dict[int | None, list[tuple[int, int]]] = {}

    def largest(self, label: int | None = None) -> int | None:
        """Return the largest client that can spare an example of a class, or of any; of equal ones
        the first, None if there is none."""
        if label not in self._heaps:
            able = np.flatnonzero(self._spares(slice(None), label))
            pairs = zip((-self._sizes[able]).tolist(), able.tolist(), strict=True)
            self._heaps[label] = sorted(pairs)  # a sorted list is a heap
        heap = self._heaps[label]
        # Donors only shrink, so an entry whose size is old stands too early, never too late.
        while heap:
            size, client = heap[0]
            if not self._spares(client, label):
                heapq.heappop(heap)
            elif -size == self._sizes[client]:
                return client
            else:
                heapq.heapreplace(heap, (-int(self._sizes[client]), client))
        return None

    def _spares(self, client: Any, label: int | None) -> Any:
        spare = label is None or self._counts[client, label] > self._kept
        return (self._sizes[client] > self._least) & spare


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client ``counts[client, label]`` examples of each class, drawn uniformly without
    replacement."""
    hands: list[list[np.ndarray]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = np.split(rows, np.cumsum(counts[:, label]))[:-1]
        for hand, share in zip(hands, shares, strict=True):
            hand.append(share)
    return [np.concatenate(hand) for hand in hands]


def _deal_by_user(
    labels: np.ndarray, users: np.ndarray, counts: np.ndarray, most: int, seed: int, part: str
) -> list[np.ndarray]:
    """Give the rows of each user to at most ``most`` clients, the same ones for every ``part``,
    with chances in proportion to ``counts[client, label]``; a row that none of them may have is
    left out."""
    hands: list[list[np.ndarray]] = [[] for _ in counts]
    ids = np.unique(users)
    for user, rows in zip(ids.tolist(), _rows_of(users, ids), strict=True):
        drawn = numpy_rng(seed, "partition", "user", user)
        clients = drawn.choice(len(counts), min(most, len(counts)), replace=False)
        ends = np.cumsum(counts[clients][:, labels[rows]], axis=0)  # [k, rows]
        rng = numpy_rng(seed, "partition", "user", user, part)
        place = (rng.integers(np.maximum(ends[-1], 1)) >= ends).sum(axis=0)
        for index, client in enumerate(clients.tolist()):
            hands[client].append(rows[place == index])
    return [np.sort(np.concatenate([np.empty(0, np.int64), *hand])) for hand in hands]


def _pathological(
    labels: np.ndarray, classes: int, partition: cells.Partition, rng: np.random.Generator
) -> np.ndarray:
    """Return how many examples of each class each client gets, int64 [M, K]: deal class slots so
    that every client has exactly s distinct classes, then divide each class over its slots."""
    assert partition.classes_per_client is not None  # for mypy: check() refused
    clients, wanted = partition.clients, partition.classes_per_client
    totals, even = np.bincount(labels, minlength=classes), np.ones(classes, dtype=np.int64)
    slots = apportion(even, wanted * clients, rng, room=np.minimum(totals, clients))
    fits, what = slots.sum() >= wanted * clients, "partition.classes_per_client"
    got, do = f"{clients} clients with {wanted} classes each", "take fewer clients or classes"
    expected = f"at most {slots.sum()} (client, class) pairs, each with an example of its own"
    DataError.unless(fits, what, got, expected, do)
    counts = np.zeros((clients, classes), dtype=np.int64)
    left = slots.copy()
    for client in range(clients):
        # A class with as many slots as clients are left must be taken now. The others are drawn in
        # proportion to their slots.
        due = left == clients - client
        free = np.where(due, 0, left)
        drawn = np.flatnonzero(due)
        if len(drawn) < wanted:
            chances = free / free.sum()
            others = rng.choice(classes, wanted - len(drawn), replace=False, p=chances)
            drawn = np.append(drawn, others)
        counts[client, drawn] = 1
        left[drawn] -= 1
    for label in range(classes):
        holders = np.flatnonzero(counts[:, label])
        even = np.ones(len(holders), dtype=np.int64)
        counts[holders, label] = apportion(even, int(totals[label]), rng)
    return _repair(counts, partition.min_size, keep_classes=True)


def _own_tests(labels: np.ndarray, held: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Divide the test set disjointly in the class proportions of the clients' shares.

    Args:
        labels: int64 [n_test].
        held: int64 [M, K], the share of each client by class. A client that would get nothing draws
            one row of its own classes, which it may then share with others.
    """
    rows = [np.flatnonzero(labels == label) for label in range(held.shape[1])]
    available = np.array([len(of_class) for of_class in rows])
    shares = [apportion(held[:, k], len(rows[k]), rng) for k in range(len(rows))]
    tests = _deal(labels, np.stack(shares, axis=1), rng)
    for client, classes in enumerate(held):
        if len(tests[client]) == 0:
            counts = apportion(classes, 1, rng, room=available)
            tests[client] = np.concatenate(
                [rng.choice(r, n, replace=False) for r, n in zip(rows, counts, strict=True)]
            )
    return tests
