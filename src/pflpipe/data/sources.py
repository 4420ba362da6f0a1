"""From any source of config.yaml, block, function or file, to ``data/<dataset>.npz``."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.code import meaning
from pflpipe.data import blocks, contract, datasets, texts
from pflpipe.data.blocks import Part, Source
from pflpipe.data.datasets import Header
from pflpipe.errors import DataError
from pflpipe.facts.datasets import DATASETS
from pflpipe.files import canonical_json, write_text

NOTE = ".source"
"""Ending of the file beside the data that says of which files they were made."""


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


def check_made(source: Source, made: Path) -> None:
    """Raise DataError if a file of a source has changed since the data were made of it, and looks
    older than they: ``snakemake --touch`` makes them younger without reading it."""
    note, listed = made.with_suffix(NOTE), _all_files(source)
    if not (made.is_file() and note.is_file()):
        return
    seen, _, read = note.read_text(encoding="utf-8").partition("\n")
    times = [file.stat().st_mtime_ns for file in listed]
    if max(times, default=0) > made.stat().st_mtime_ns or _seen(source) == seen:
        return  # Snakemake makes them again; or nothing has happened
    do = f"write the old file back; or remove {made}, and the same command makes it again"
    what, got = f"{made} was made of another file", ", ".join(map(str, listed))
    DataError.unless(_digest(source) == read.strip(), what, got, do=do)


def _all_files(source: Source) -> list[Path]:
    return [file for part in files(source) for file in part if file.exists()]


def _seen(source: Source) -> str:
    """Return sizes and times of the files of a source, which tell most often that none changed."""
    found = [file.stat() for file in _all_files(source)]
    return " ".join(f"{one.st_size} {one.st_mtime_ns}" for one in found)


def _digest(source: Source) -> str:
    """Return the SHA-256 of the files of a source; folders of pictures are not read."""
    total, (contents, programs) = hashlib.sha256(), files(source)
    for file in filter(Path.is_file, contents):
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    for file in programs:
        total.update(meaning.sha256(file).encode())
    return total.hexdigest()


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
    # Before they are read: what changes while they are is noticed by the next run.
    state = None if source is None else f"{_seen(source)}\n{_digest(source)}\n"
    if not isinstance(source, dict):
        line = datasets.prepare(dataset, source, downloads, target)
    else:
        _check(dataset, source)
        with contract.collected() as warned:
            raw, parts = _arrays(source, downloads)
            file = source.get(blocks.HUB) or str(blocks.paths(source)[0])
            ids, named = source.get("ids", ""), [part.columns for part in parts if part.columns]
            made = datasets.arrays_from(raw, file, dataset, ids, named, parts[0].fill)
        known = dataclasses.replace(made.contract, warnings=(*warned, *made.contract.warnings))
        made = dataclasses.replace(made, unit=source.get("unit", made.unit), contract=known)
        line = f"{datasets.write(dataset, made, target)}; {parts[0].note}"
    if state is not None:
        write_text(target.with_suffix(NOTE), state)
    return line


def _check(dataset: str, block: Mapping[str, Any]) -> None:
    """Raise DataError unless a block is in order and names no unit of a data set that has one."""
    blocks.check(block)
    if "unit" in block and dataset in DATASETS:
        got, expected = block["unit"], f"none for {dataset}, a name that pflpipe knows"
        raise DataError("unit", got=got, expected=expected, do="give your data another name")


def _arrays(block: Mapping[str, Any], downloads: Path) -> tuple[dict[str, np.ndarray], list[Part]]:
    """Return the arrays that ``datasets.arrays_from`` takes, and what was read of each side."""
    # Late: a named data set needs no pandas.
    from pflpipe.data import columns, leaf, pictures, tables, tff

    readers: dict[str, Any] = {blocks.LEAF: leaf, blocks.TFF: tff, "folder": pictures}
    read: Callable[..., Part] = readers.get(blocks.kind(block), tables).read
    of_hub = (blocks.HUB, "revision", "config", "split")
    of_no_reader = ("file", "folder", "test", "unit", "ids", *of_hub)
    layout = {key: value for key, value in block.items() if key not in of_no_reader}
    raw: dict[str, np.ndarray] = {}
    if blocks.HUB in block:
        splits = [block.get("split", "train"), *([block["test"]] if "test" in block else [])]
        found = [tables.of_hub(block, split, downloads / "hub") for split in splits]
        frames = [tables.frame(table, block.get("label"), layout) for table in found]
        parts = [tables.arrays(frame, **layout) for frame in frames]
    else:
        parts = [read(path, **layout) for path in blocks.paths(block)]
    for side, part in zip(("train", "test"), parts, strict=False):
        raw |= {f"{side}_images": part.examples, f"{side}_labels": part.labels}
        raw |= {} if part.users is None else {f"{side}_users": part.users}
    if len({part.note.partition(columns.LEFT_OUT)[0] for part in parts}) > 1:
        raise DataError(block["test"], got="other columns than file", do="write features: [...]")
    if words := block.get("vocabulary"):
        raw["vocabulary"] = np.asarray(size := texts.Tokens(words, block["length"]).size)
        raw |= {} if "target" in block else {"classes": np.asarray(size)}
    if classes := layout.get("classes"):
        raw["classes"] = np.asarray(classes if isinstance(classes, int) else len(classes))
    return raw, parts
