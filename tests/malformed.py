"""A good project folder and ways to spoil it: each must give one clear line and exit code 2 (used
by several test files)."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tabled import table

ROOT = Path(__file__).resolve().parents[1]
GOOD = table("good")
CONFIG: dict[str, Any] = GOOD["CONFIG"]
STUDY: dict[str, Any] = GOOD["STUDY"]
PAPER: dict[str, Any] = GOOD["PAPER"]
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """How to spoil the good folder, and the words that the one line of the error must contain."""

    damage: Damage
    words: tuple[str, ...]


def write_good(folder: Path) -> None:
    """Write config.yaml, studies/ and a file with the user's own arrays, all in order."""
    (folder / "studies").mkdir(parents=True)
    write(folder / "config.yaml", CONFIG)
    write(folder / "studies/good.yaml", STUDY)
    shutil.copy(ROOT / "studies/paper_results.yaml", folder / "studies")
    arrays(folder)


def write(path: Path, document: Any) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def arrays(folder: Path, **changes: Any) -> None:
    """Write mine.npz: 60 images 4x4 of 3 classes, with changed, further or (None) without some
    arrays."""
    good = {
        "train_images": np.zeros((60, 4, 4), np.uint8),
        "train_labels": np.arange(60) % 3,
        "classes": np.int64(3),
    }
    given = {key: value for key, value in (good | changes).items() if value is not None}
    np.savez(folder / "mine.npz", **given)


def arrays_of(given: dict[str, Any]) -> dict[str, np.ndarray | None]:
    """Return the arrays of a table: zeros of a shape, or values; null stays None."""

    def array(item: dict[str, Any]) -> np.ndarray:
        if "zeros" in item:
            return np.zeros(item["zeros"], item["dtype"])
        return np.array(item["values"], item["dtype"])

    return {key: item and array(item) for key, item in given.items()}


def edit(file: str, change: Callable[[Any], None]) -> Damage:
    """Change the plain values of a YAML file in place."""

    def damage(folder: Path) -> None:
        document = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
        change(document)
        write(folder / file, document)

    return damage


def put(path: str, value: Any, file: str = "studies/good.yaml") -> Damage:
    """Set a dotted path; digits are list indices."""

    def change(document: Any) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
        for key in parents:
            document = document[key] if isinstance(document, list) else document.setdefault(key, {})
        document[last] = value

    return edit(file, change)


def drop(path: str, file: str = "studies/good.yaml") -> Damage:
    """Remove a dotted path."""

    def change(document: Any) -> None:
        *parents, last = path.split(".")
        for key in parents:
            document = document[key]
        del document[last]

    return edit(file, change)


def text(old: str, new: str, file: str = "studies/good.yaml") -> Damage:
    """Replace characters of a file."""

    def damage(folder: Path) -> None:
        before = (folder / file).read_text(encoding="utf-8")
        assert old in before
        (folder / file).write_text(before.replace(old, new, 1), encoding="utf-8")

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def own_data(**changes: Any) -> Damage:
    """Use mine.npz with changed arrays in the study."""
    return both(put("dataset", "mine"), lambda folder: arrays(folder, **changes))


def raw(file: str, content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return damage


def remove(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


STEPS: dict[str, Callable[..., Damage]] = {
    "put": put,
    "drop": drop,
    "text": text,
    "raw": raw,
    "own_data": lambda given=(): own_data(**arrays_of(dict(given))),
    "remove": remove,
}
CASES: dict[str, Case] = {
    name: Case(
        both(*(STEPS[step](*given) for step, *given in case["damage"])), tuple(case["words"])
    )
    for name, case in table("malformed").items()
}
