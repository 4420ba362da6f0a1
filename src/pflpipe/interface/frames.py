"""Clients from a table, and what a trained model keeps of the table's columns."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pflpipe.data import contract, texts
from pflpipe.data.contract import Columns
from pflpipe.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Encoder:
    """How the columns of a table become examples and labels. All of it is declared: nothing follows
    from a row.

    Attributes:
        user, label, target: as in ``clients_of``.
        classes: all labels or tokens, in the order of their numbers; none for a target.
        layout: the other arguments of ``clients_of``, with the columns of features.
    """

    user: str
    label: str | None
    target: str | None
    classes: tuple[Any, ...]
    layout: dict[str, Any]

    def examples(self, table: Any) -> np.ndarray:
        """Return the examples of a table with the columns of features, in any order.

        Raises:
            DataError: columns are missing, or as ``tables.arrays``; or examples are no rows.
        """
        from pflpipe.data import tables  # late: other models need no pandas

        name = self.target or self.label
        what, do = "predict of a table whose labels are next tokens", "give rows of tokens"
        DataError.unless(name is not None, what, do=do)
        assert name is not None  # for mypy
        frame = tables.frame(table, self.label, dict(self.layout))
        text = self.layout.get("text")
        wanted = [text] if text else self.layout["features"]
        missing = [column for column in wanted if column not in frame]
        expected = f"all of {', '.join(wanted)}"
        DataError.unless(not missing, "columns are missing", ", ".join(missing), expected)
        # Any label: only the examples are taken.
        given = self.layout.get("ranges", {}).get(name, [0])[0] if self.target else self.classes[0]
        part = tables.arrays(
            frame[wanted].assign(**{name: given}),
            label=self.label,
            target=self.target,
            classes=self.classes or None,
            **self.layout,
        )
        return part.examples

    def clients(self, table: Any) -> Clients:
        """Return ``clients_of`` a table with the same columns, those of people and labels too."""
        layout = self.layout | ({"classes": self.classes} if self.classes else {})
        return clients_of(table, user=self.user, label=self.label, target=self.target, **layout)

    def labels(self, answers: Tensor) -> np.ndarray:
        """Return the labels of class numbers ``[n]``, None for -1; or targets of outputs ``[n,
        1]``, as the column has them."""
        found = answers.numpy()
        if self.target:
            low, high = self.layout.get("ranges", {}).get(self.target, (-1, 1))
            scaled: np.ndarray = (found.squeeze(-1) * (high - low) + high + low) / 2
            return scaled
        alike = len({type(word) for word in self.classes}) == 1
        words = np.array(self.classes, dtype=None if alike else object)
        chosen: np.ndarray = words[found]
        if (found < 0).any():
            chosen = chosen.astype(object)
            chosen[found < 0] = None
        return chosen


class Clients(list[tuple[np.ndarray, np.ndarray]]):
    """The examples of each client, as a list, with what the table says of them.

    Attributes:
        names: the id of each client, as text.
        encoder: of tables with the same columns.
    """

    def __init__(
        self,
        shards: Sequence[tuple[np.ndarray, np.ndarray]],
        names: Sequence[str],
        encoder: Encoder,
    ) -> None:
        super().__init__(shards)
        self.names, self.encoder = tuple(names), encoder

    def __getitem__(self, place: Any) -> Any:
        """Return the examples of a client, or some clients."""
        found = super().__getitem__(place)
        is_part = isinstance(place, slice)
        return Clients(found, self.names[place], self.encoder) if is_part else found

    def tests_of(self, tests: Clients) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the test rows of each client, by its id; who has none has no rows.

        Raises:
            DataError: other columns, or people who are not among the clients.
        """
        fits, do = tests.encoder == self.encoder, "give clients_of the same columns and arguments"
        DataError.unless(fits, "tests", "other columns, classes or words", "those of clients", do)
        given = dict(zip(tests.names, tests, strict=True))
        others = sorted(given.keys() - set(self.names))
        got = f"{len(others)} people who are not in training, such as {others[:1]}"
        do = "result.scores_of tests people who were not in training"
        DataError.unless(not others, "tests", got, "people of clients", do)
        x, y = self[0]
        return [given.get(name, (x[:0], y[:0])) for name in self.names]


def clients_of(
    table: Any,
    *,
    user: str,
    label: str | None = None,
    target: str | None = None,
    ids: str = "",
    **layout: Any,
) -> Clients:
    """Return the examples of each client from a pandas DataFrame with a row for each, the clients
    in the order of their ids as text.

    A model that is trained on them knows the people by their ids, predicts labels by their names,
    and takes tables with the same columns.

    Args:
        table: the DataFrame, or a table with ``to_pandas()``: of Hugging Face's datasets, Arrow,
            polars.
        user, label: the columns of client ids and of labels that are classes.
        target: instead of ``label``, the column of numbers to predict.
        ids: ``merge`` if ids that differ only in case, blanks or the form of a number are one
            person, ``exact`` if they are several; otherwise such ids are refused.
        layout: ``classes``, all labels or how many there are, which labels need, ``features``,
            ``vocabularies``, ``ranges`` ... as in a block of config.yaml (docs/own_files.md).

    Raises:
        DataError: as ``tables.arrays``; or an id is nobody's, or several could be one person's.
        ConfigError: the layout is none of a block.

    Warns:
        RowsWarning: something that makes an accuracy false, such as a feature that is the label.
    """
    from pflpipe.data import tables  # late: other clients need no pandas

    # Names of columns may be numbers.
    label, target = (None if name is None else str(name) for name in (label, target))
    user = str(user)
    layout = _declared(layout)
    frame = tables.frame(table, label, layout)
    part = tables.arrays(frame, user=user, label=label, target=target, **layout)
    do = "write a value or indicator: here nobody knows which rows are test rows"
    DataError.unless(part.fill is None, "missing", layout.get("missing"), do=do)
    x, y = part.examples, part.labels
    key = f"column {user!r}"
    users = contract.people({key: np.asarray(part.users)}, ids)[key]
    sides = (x, y, users), (x[:0], y[:0], users[:0])
    columns = Columns.of(sides[:1], [part.columns] if part.columns else [])
    for said in contract.of_rows(*sides, columns).warnings:
        warnings.warn(said, contract.RowsWarning, stacklevel=2)
    names, client, sizes = np.unique(users, return_inverse=True, return_counts=True)
    order, ends = np.argsort(client, kind="stable"), np.cumsum(sizes)[:-1]
    shards = list(zip(np.split(x[order], ends), np.split(y[order], ends), strict=True))
    return Clients(shards, names.tolist(), _encoder(frame, user, label, target, **layout))


def _encoder(
    frame: pd.DataFrame,
    user: str,
    label: str | None,
    target: str | None,
    classes: int | Sequence[Any] | None = None,
    exclude: Sequence[str] = (),
    **layout: Any,
) -> Encoder:
    """Return the encoder of a table whose columns fit."""
    from pflpipe.data import columns  # late: other models need no pandas

    kept, labels = dict(layout), () if classes is None else classes
    if vocabulary := kept.get("vocabulary"):
        tokens = texts.Tokens(vocabulary, kept["length"])
        kept["vocabulary"] = tokens.declared()
        labels = labels if label or target else tokens.names
    elif not kept.get("features"):
        kept["features"] = columns.of_features(frame, (user, label, target, *exclude))
    if declared := kept.get("vocabularies"):
        named = kept["features"]
        kept["vocabularies"] = {name: declared[name] for name in declared if name in named}
    # The words of files, which may be elsewhere when the model is.
    for name, words in kept.get("texts", {}).items():
        if isinstance(words, str):
            kept["texts"] = kept["texts"] | {name: texts.Tokens(words, 1).declared()}
    labels = range(labels) if isinstance(labels, int) else labels
    return Encoder(user, label, target, tuple(labels), kept)


def _declared(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout as JSON has it, for the model's file, with names of columns as text.

    Raises:
        ConfigError: it would be none of a block of config.yaml.
    """
    from pflpipe.study import config  # late: other clients need no schema

    named: dict[str, Any] = {}
    for key, given in layout.items():
        named[key] = given
        if isinstance(given, Mapping):
            named[key] = {str(name): value for name, value in given.items()}
        elif key in ("features", "exclude") and not isinstance(given, str):
            named[key] = list(map(str, given))

    def plain(value: Any) -> Any:
        listed = list(value) if isinstance(value, Sequence) else str(value)
        return value.tolist() if hasattr(value, "tolist") else listed

    found: dict[str, Any] = json.loads(json.dumps(named, default=plain))
    config.check_block(found)
    return found


def is_table(values: Any) -> bool:
    """Return whether values are a table and no tensor."""
    return hasattr(values, "to_pandas") or hasattr(values, "columns")
