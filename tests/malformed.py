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
CONFIG: dict[str, Any] = {"studies": ["good"], "datasets": {"mine": "mine.npz"}}
STUDY: dict[str, Any] = {
    "title": "A good study",
    "description": "Everything in it can be run.",
    "dataset": "digits",
    "partition": {"kind": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 2, "local_epochs": 1, "batch_size": 0, "optimizer": "sgd", "lr": 0.5},
    "privacy": {"epsilon": 8, "delta": 0.001, "clip_norm": 0.5},
    "seeds": [0, 1],
    "methods": [
        {"name": "fedavg"},
        {"name": "dp_fedavg"},
        {"name": "feddpa", "hyperparameters": {"tau": 0.3}},
    ],
}
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
    np.savez(
        folder / "mine.npz",
        **{key: value for key, value in (good | changes).items() if value is not None},
    )


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


SEARCH = {"seeds": [100, 101], "validation_fraction": 0.2}


def searched(search: Any = SEARCH, grid: Any = None) -> Damage:
    """Let the study search, feddpa with this grid."""
    return both(
        put("search", search), put("methods.2.search", grid or {"hyperparameters.tau": [0.1, 0.4]})
    )


def drawing(given: Any, path: str = "training.lr", candidates: int = 4) -> Damage:
    """Let the study draw a value of feddpa from this range."""
    return searched(SEARCH | {"candidates": candidates}, {path: given})


# Nine lists of ten aliases each to the one before: 10^10 values.
BOMB = (
    "[&a0 [x, x], "
    + ", ".join(f"&a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))
    + "]"
)
PAPER = {
    "paper": "FedDPA",
    "table": "Table 2",
    "metric": "personal_common",
    "match": {"partition.kind": "partition", "partition.alpha": "partition_alpha"},
    "methods": {"feddpa": "FedDPA"},
}
IN_STUDY = "studies/good.yaml"
STEPS: dict[str, Callable[..., Damage]] = {
    "put": put,
    "drop": drop,
    "text": text,
    "raw": raw,
    "own_data": own_data,
    "remove": remove,
}
CASES: dict[str, Case] = {
    name: Case(
        both(*(STEPS[step](*given) for step, *given in case["damage"])), tuple(case["words"])
    )
    for name, case in table("malformed").items()
}
CASES |= {
    "aliases to aliases to aliases": Case(
        text("title: A good study", f"title: {BOMB}"), (IN_STUDY, "more than 100000 values")
    ),
    "nesting without end": Case(
        text("title: A good study", f"title: {'[' * 5000}"), (IN_STUDY, "nested too deep")
    ),
    "delta 1/M of all users": Case(
        both(
            own_data(train_users=np.arange(60) % 5),
            put("partition", {"kind": "natural"}),
            put("privacy.delta", 0.2),
        ),
        (IN_STUDY, "privacy.delta; got 0.2; expected below 1/M = 0.2"),
    ),
    "transforms of features": Case(
        both(
            own_data(train_images=np.zeros((60, 5), np.float32)),
            put("training.augment", ["crop", "flip"]),
        ),
        (
            IN_STUDY,
            "training.augment",
            "got 'crop, flip for examples of shape (5,)'",
            "expected images",
            "remove it",
        ),
    ),
    "shapes": Case(
        own_data(train_images=np.zeros((60, 4, 4, 4, 1), np.uint8)),
        ("mine.npz", "train_images", "[60, 4, 4, 4, 1]"),
    ),
    "dtype": Case(
        own_data(train_images=np.zeros((60, 4, 4), np.int64)), ("mine.npz", "train_images", "int64")
    ),
    "lengths": Case(
        own_data(train_labels=np.arange(59) % 3), ("mine.npz", "train_labels", "(59,)", "(60,)")
    ),
    "missing array": Case(own_data(train_labels=None), ("mine.npz", "train_labels is missing")),
    "pickled array": Case(
        own_data(train_labels=np.array([object()] * 60)), ("mine.npz", "train_labels", "objects")
    ),
}
