"""From any source of config.yaml, block, function or file, to ``data/<dataset>.npz``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.data import blocks, datasets, texts
from pflpipe.data.blocks import Part, Source
from pflpipe.data.datasets import Header
from pflpipe.errors import DataError
from pflpipe.facts.datasets import DATASETS
from pflpipe.files import canonical_json


def text(source: Source) -> str:
    """Return a source as one word of a command line; ``parsed`` is the inverse."""
    return canonical_json(source) if isinstance(source, dict) else str(source)


def parsed(word: str) -> Source:
    """Return the source of ``text``."""
    return json.loads(word) if word.startswith("{") else Path(word)


def files(source: Source) -> tuple[list[Path], list[Path]]:
    """Return the files and folders of the arrays of a source, and the file of its function."""
    if isinstance(source, dict):
        return blocks.files(source), []
    file = datasets.source_file(source)
    return ([], [file]) if file != source else ([file], [])


def describe(
    dataset: str, source: Source | None, made: Path, listed: Iterable[str] = ()
) -> Header | None:
    """Return the header of a data set as ``datasets.describe`` does. What a block names is read
    when the data are made, so that its header is unknown before.

    Raises:
        DataError: see ``datasets.describe`` and ``blocks.check``.
    """
    if not isinstance(source, dict):
        return datasets.describe(dataset, source, made, listed)
    _check(dataset, source)
    return datasets.read_header(made, dataset) if made.is_file() else None


def prepare(dataset: str, source: Source | None, downloads: Path, target: Path) -> str:
    """Make ``target`` as ``datasets.prepare`` does, also from a block, and return the line that
    says what the arrays are and what the block was taken for.

    Raises:
        DataError: see ``datasets.prepare``; or the block does not fit what it names.
    """
    if not isinstance(source, dict):
        return datasets.prepare(dataset, source, downloads, target)
    _check(dataset, source)
    raw, note = _arrays(source)
    made = datasets.arrays_from(raw, str(blocks.paths(source)[0]), dataset)
    made = dataclasses.replace(made, unit=source.get("unit", made.unit))
    return f"{datasets.write(dataset, made, target)}; {note}"


def _check(dataset: str, block: Mapping[str, Any]) -> None:
    """Raise DataError unless a block is in order and names no unit of a data set that has one."""
    blocks.check(block)
    if "unit" in block and dataset in DATASETS:
        got, expected = block["unit"], f"none for {dataset}, a name that pflpipe knows"
        raise DataError("unit", got=got, expected=expected, do="give your data another name")


def _arrays(block: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], str]:
    """Return what ``datasets.arrays_from`` takes, and what was taken for what."""
    from pflpipe.data import leaf, pictures, tables, tff  # late: a named data set needs no pandas

    readers: dict[str, Any] = {blocks.LEAF: leaf, blocks.TFF: tff, "folder": pictures}
    read: Callable[..., Part] = readers.get(blocks.kind(block), tables).read
    of_no_reader = ("file", "folder", "test", "unit")
    layout = {key: value for key, value in block.items() if key not in of_no_reader}
    raw: dict[str, np.ndarray] = {}
    notes = set[str]()
    for part, path in zip(("train", "test"), blocks.paths(block), strict=False):
        images, labels, users, note = read(path, **layout)
        raw |= {f"{part}_images": images, f"{part}_labels": labels}
        raw |= {} if users is None else {f"{part}_users": users}
        notes.add(note)
    if len(notes) > 1:
        raise DataError(block["test"], got="other columns than file", do="write features: [...]")
    if words := block.get("vocabulary"):
        raw["vocabulary"] = np.asarray(size := texts.Tokens(words, block["length"]).size)
        raw |= {} if "target" in block else {"classes": np.asarray(size)}
    if classes := block.get("classes"):
        raw["classes"] = np.asarray(classes if isinstance(classes, int) else len(classes))
    return raw, notes.pop()
