"""A good project folder and ways to spoil it: each must give one clear line and exit code 2 (used
by several test files)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

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
NATURAL = {"kind": "natural", "clients": 10}
IN_STUDY, IN_CONFIG = "studies/good.yaml", "config.yaml"
VALUES: dict[str, tuple[str, Any, str]] = {
    "unknown key": ("trainning", {}, "unknown key 'trainning' ... did you mean 'training'?"),
    "number of 400 digits": ("training.lr", 10**400, "training.lr ... expected a finite number"),
    "one client": ("partition.clients", 1, "partition.clients ... got 1 ... >= 2"),
    "no rounds": ("training.rounds", 0, "training.rounds ... got 0 ... >= 1"),
    "negative batch": ("training.batch_size", -1, "training.batch_size ... got -1 ... >= 0"),
    "alpha 0": ("partition.alpha", 0, "partition.alpha ... got 0 ... expected a number > 0"),
    "q above 1": ("training.sample_rate", 1.5, "training.sample_rate ... got 1.5 ... > 0 and <= 1"),
    "q of 0": ("training.sample_rate", 0, "training.sample_rate ... got 0 ... > 0 and <= 1"),
    "delta 1": ("privacy.delta", 1, "privacy.delta ... got 1 ... > 0 and < 1"),
    "delta 0": ("privacy.delta", 0, "privacy.delta ... got 0 ... > 0 and < 1"),
    "epsilon below 0": ("privacy.epsilon", -1, "privacy.epsilon ... got -1 ... > 0"),
    "clip norm 0": ("privacy.clip_norm", 0, "privacy.clip_norm ... got 0 ... > 0"),
    "profile": ("profile", "stirct", "profile ... did you mean 'strict'?"),
    "seed twice": ("seeds", [0, 0], "seeds ... given twice"),
    "no seeds": ("seeds", [], "seeds ... at least one"),
    "negative seed": ("seeds", [-1], "seeds[0] ... got -1"),
    "axis over seeds": ("axes", {"seeds": [1]}, "axes ... 'seeds' ... the beginning"),
    "empty axis": ("axes", {"privacy.epsilon": []}, "axes.privacy.epsilon ... at least one"),
    "axis value": ("axes", {"privacy.epsilon": [2, 0]}, "privacy.epsilon=0 ... got 0 ... > 0"),
    "search that no method has": ("search", SEARCH, "search: no method has values"),
    "unknown method": ("methods.1.name", "dp_fedavgg", "methods[1] ... did you mean 'dp_fedavg'?"),
    "epsilon and noise": ("privacy.noise_multiplier", 1.0, "dp_fedavg ... both are given"),
    "no clip norm": ("privacy.clip_norm", None, "privacy.clip_norm is missing"),
    "users of digits": ("partition", NATURAL, "partition.kind ... 'natural' ... user ids"),
    "too few examples": ("partition.min_size", 500, "min_size 500 ... 1438"),
    "unknown data set": ("dataset", "digit", "'digit' ... did you mean 'digits'?"),
    "unknown model": ("model", {"name": "cnn_cifar1"}, "model ... did you mean 'cnn_cifar'?"),
    "mlp without widths": ("model", {"name": "mlp"}, "model.hidden"),
    "transform twice": ("training.augment", ["crop", "crop"], "training.augment ... given twice"),
    "unknown table": ("paper", PAPER | {"table": "Table 9"}, "paper.table ... 'Table 9'"),
    "no printed row": ("paper", PAPER, "0 printed rows ... partition_alpha=0.5 ... exactly one"),
}
"""Case -> path in the study, impossible value, and the parts of the error between dots."""
VALUES_OF_CONFIG: dict[str, tuple[str, Any, str]] = {
    "unknown key of config.yaml": ("result_dir", "r", "did you mean 'results_dir'?"),
    "study that does not exist": ("studies", ["god"], "'god' ... did you mean 'good'?"),
    "study listed twice": ("studies", ["good", "good"], "studies ... given twice"),
    "no studies": ("studies", [], "studies ... at least one"),
    "device": ("device", "gpu", "device ... 'gpu' ... auto, cpu, cuda"),
}
"""The same in config.yaml."""
CASES: dict[str, Case] = {
    # keys
    "unknown key in a block": Case(
        put("partition.alhpa", 1), (IN_STUDY, "partition", "'alhpa'", "did you mean 'alpha'?")
    ),
    "unknown key of a method": Case(
        put("methods.2.hyperparameter", {}), ("methods[2]", "did you mean 'hyperparameters'?")
    ),
    "missing key": Case(drop("seeds"), (IN_STUDY, "'seeds' is missing")),
    "missing key of a block": Case(drop("training.lr"), (IN_STUDY, "training", "'lr' is missing")),
    "key twice": Case(
        text("clients: 10", "clients: 10\n  clients: 20"),
        (IN_STUDY, "line 7", "'clients' is given twice"),
    ),
    "key that is no text": Case(
        text("title:", "3: x\ntitle:"), (IN_STUDY, "line 1", "key must be text")
    ),
    # documents
    "YAML syntax": Case(
        text("kind: dirichlet", "kind: [dirichlet"), (IN_STUDY, "line 6", "not valid YAML")
    ),
    "tabs": Case(text("  kind", "\tkind"), (IN_STUDY, "line 5", "not valid YAML")),
    "empty study": Case(raw("studies/good.yaml", b"# nothing\n"), (IN_STUDY, "empty")),
    "a study that is a list": Case(
        raw("studies/good.yaml", b"- a\n"), (IN_STUDY, "expected a mapping")
    ),
    "control characters": Case(
        raw("studies/good.yaml", b"title: \x07\n"), (IN_STUDY, "not valid YAML", "not allowed")
    ),
    "not text": Case(raw("studies/good.yaml", b"\xff\xfe\x00"), (IN_STUDY, "not UTF-8")),
    "a circle of aliases": Case(
        raw("studies/good.yaml", b"title: &a [*a]\n"), (IN_STUDY, "more than 100000 values")
    ),
    "a tag": Case(
        text("title: A good study", "title: !!python/name:os.system"),
        (IN_STUDY, "line 1", "not valid YAML: a tag", "python/name:os.system'; remove it"),
    ),
    "aliases to aliases to aliases": Case(
        text("title: A good study", f"title: {BOMB}"), (IN_STUDY, "more than 100000 values")
    ),
    "nesting without end": Case(
        text("title: A good study", f"title: {'[' * 5000}"), (IN_STUDY, "nested too deep")
    ),
    "misspelt methods": Case(
        text("methods:", "methodes:"), (IN_STUDY, "'methodes'", "did you mean 'methods'?")
    ),
    "misspelt name of a method": Case(
        text("- name:", "- nme:"), (IN_STUDY, "'nme'", "did you mean 'name'?")
    ),
    "no config.yaml": Case(
        lambda folder: (folder / "config.yaml").unlink(),
        (IN_CONFIG, "No such file", "go to the project's folder"),
    ),
    "network that does not exist": Case(
        put("model", {"name": "resnet50", "hidden": [32]}),
        (IN_STUDY, "'resnet50'", "did you mean 'resnet20'?"),
    ),
    "data set name": Case(
        put("datasets", {"My Data": "mine.npz"}, "config.yaml"),
        (IN_CONFIG, "datasets", "'My Data'", "small letters"),
    ),
    # types and numbers
    "text for a number": Case(
        put("training.lr", "fast"), (IN_STUDY, "training.lr", "got 'fast'", "expected a number > 0")
    ),
    "true for a number": Case(
        put("training.rounds", True),
        ("training.rounds", "got True", "expected a whole number >= 1"),
    ),
    "fraction of a client": Case(
        put("partition.clients", 10.5),
        ("partition.clients", "got 10.5", "expected a whole number >= 2"),
    ),
    "not a number": Case(
        put("training.lr", float("nan")), ("training.lr", "got nan", "expected a finite number")
    ),
    "infinite epsilon": Case(
        put("privacy.epsilon", float("inf")),
        ("privacy.epsilon", "got inf", "expected a finite number"),
    ),
    "delta 1/M": Case(
        put("privacy.delta", 0.1),
        (IN_STUDY, "privacy.delta; got 0.1; expected below 1/M = 0.1", "allow_large_delta: true"),
    ),
    "no training data": Case(
        put("partition.validation_fraction", 1), ("validation_fraction", "got 1", ">= 0 and < 1")
    ),
    "optimizer": Case(
        put("training.optimizer", "adm"), ("training.optimizer", "'adm'", "did you mean 'adam'?")
    ),
    "momentum of adam": Case(
        both(put("training.optimizer", "adam"), put("training.momentum", 0.9)),
        ("training.momentum", "optimizer sgd only", "got 0.9"),
    ),
    # seeds, axes, labels
    "unknown axis": Case(
        put("axes", {"privacy.epsilom": [1]}),
        ("axes", "'privacy.epsilom'", "did you mean 'privacy.epsilon'?"),
    ),
    "block axis of numbers": Case(
        put("axes", {"partition": [1]}), ("axes.partition[0]", "got 1", "expected a mapping")
    ),
    "method twice": Case(
        put("methods", [{"name": "fedavg"}] * 2),
        ("methods[1]", "'fedavg' is listed twice", "`variant`"),
    ),
    "two labels of one run": Case(
        put("methods", [{"name": "fedavg"}, {"name": "fedavg", "variant": "again"}]),
        ("'again'", "the same run"),
    ),
    # search
    "search on the study's own seeds": Case(
        searched(SEARCH | {"seeds": [100, 1]}),
        (IN_STUDY, "search.seeds", "got [1]", "seeds of their own"),
    ),
    "search without validation data": Case(
        searched(SEARCH | {"validation_fraction": 0}),
        (IN_STUDY, "search.validation_fraction", "got 0", "> 0"),
    ),
    "search without a validation fraction": Case(
        searched({"seeds": [100]}), ("search", "'validation_fraction' is missing")
    ),
    "method that searches alone": Case(
        put("methods.2.search", {"hyperparameters.tau": [0.1]}),
        ("methods[2].search", "the study has no `search`"),
    ),
    "empty grid": Case(
        both(searched(), put("methods.2.search", {})), ("methods[2].search", "at least one")
    ),
    "grid without values": Case(
        searched(grid={"training.lr": []}), ("methods[2].search.training.lr", "at least one")
    ),
    "grid over something unknown": Case(
        searched(grid={"hyperparameters.tua": [0.1]}),
        (IN_STUDY, "feddpa.tua", "did you mean 'tau'?"),
    ),
    "grid over what is asked for": Case(
        searched(grid={"privacy.epsilon": [2, 8]}),
        ("methods[2].search", "unknown key 'privacy.epsilon'"),
    ),
    "grid with an impossible value": Case(
        searched(grid={"hyperparameters.lambda_1": [0.1, -1]}),
        (IN_STUDY, "method feddpa", "feddpa.lambda_1", "got -1"),
    ),
    "misspelt word of a search": Case(
        searched({"sedes": [100], "validation_fraction": 0.2}),
        (IN_STUDY, "search: unknown key 'sedes'", "did you mean 'seeds'?"),
    ),
    "range without a number of candidates": Case(
        searched(grid={"training.lr": {"low": 0.1, "high": 1}}),
        ("methods[2].search.training.lr", "a range is drawn from", "candidates: 16"),
    ),
    "no candidates": Case(drawing({"low": 0.1, "high": 1}, candidates=0), ("candidates", "got 0")),
    "range without an end": Case(
        drawing({"low": 0.1}), ("search.training.lr", "'high' is missing")
    ),
    "misspelt end of a range": Case(
        drawing({"low": 0.1, "hihg": 1}), ("search.training.lr", "did you mean 'high'?")
    ),
    "range to infinity": Case(
        drawing({"low": 0.1, "high": float("inf")}), ("search.training.lr.high", "a finite number")
    ),
    "range that ends where it begins": Case(
        drawing({"low": 1, "high": 1}), (IN_STUDY, "training.lr: low and high", "low < high")
    ),
    "log scale from zero": Case(
        drawing({"low": 0, "high": 1}, "hyperparameters.tau"),
        ("hyperparameters.tau: a log scale", "got 0", "`scale: linear`"),
    ),
    "unknown scale": Case(
        drawing({"low": 0.1, "high": 1, "scale": "lgo"}),
        ("search.training.lr.scale", "got 'lgo'", "log"),
    ),
    "range that is widened to less": Case(
        drawing({"low": 0.1, "high": 1, "wider": [0.2, 10]}),
        ("training.lr.wider", "got [0.2, 10.0]", "around 0.1 and 1"),
    ),
    "range that is widened to one number": Case(
        drawing({"low": 0.1, "high": 1, "wider": [10]}), ("training.lr.wider", "got [10.0]")
    ),
    "some ranges widened": Case(
        both(
            drawing({"low": 0.1, "high": 1, "wider": [0.01, 10]}),
            put("search.values", {"privacy.clip_norm": {"low": 0.1, "high": 1}}),
        ),
        (IN_STUDY, "only some ranges have a `wider`", "search.values.privacy.clip_norm"),
    ),
    "range of whole numbers": Case(
        drawing({"low": 10, "high": 100}, "training.rounds"),
        ("training.rounds: a range is of numbers with fractions", "list its values"),
    ),
    "range of a block": Case(
        drawing({"low": 10, "high": 100}, "training"),
        ("search.training: a range is of numbers with fractions", "list its values"),
    ),
    "range over what a hyper-parameter cannot be": Case(
        drawing({"low": 0.1, "high": 1}, "hyperparameters.ac"), ("feddpa.ac", "true or false")
    ),
    "range beyond an option's bounds": Case(
        drawing({"low": -1, "high": 1, "scale": "linear"}), ("training.lr", "got -1", "> 0")
    ),
    "shared values of one method": Case(
        both(searched(), put("search.values", {"hyperparameters.tau": [0.1, 0.2]})),
        (IN_STUDY, "search.values", "unknown key 'hyperparameters.tau'"),
    ),
    "searched variant that may be another one": Case(
        both(
            put("search", SEARCH),
            put(
                "methods",
                [
                    {"name": "feddpa"},
                    {
                        "name": "feddpa",
                        "variant": "v",
                        "search": {"hyperparameters.tau": [0.1, 0.4]},
                    },
                ],
            ),
        ),
        (IN_STUDY, "'v'", "the same run"),
    ),
    # methods and privacy
    "unknown hyper-parameter": Case(
        put("methods.2.hyperparameters", {"tua": 0.4}),
        (IN_STUDY, "feddpa.tua", "did you mean 'tau'?"),
    ),
    "type of a hyper-parameter": Case(
        put("methods.2.hyperparameters.tau", "high"), (IN_STUDY, "feddpa.tau", "got 'high'")
    ),
    "range of a hyper-parameter": Case(
        put("methods.2.hyperparameters.lambda_1", -1), (IN_STUDY, "feddpa.lambda_1", "got -1")
    ),
    "neither epsilon nor noise": Case(
        drop("privacy.epsilon"), (IN_STUDY, "dp_fedavg", "neither is given")
    ),
    "no privacy block": Case(
        drop("privacy"),
        (IN_STUDY, "dp_fedavg", "privacy is missing", "epsilon or noise_multiplier"),
    ),
    "no delta": Case(drop("privacy.delta"), (IN_STUDY, "privacy.delta is missing")),
    "official calibration without batches": Case(
        put("methods.2", {"name": "feddpa", "profile": "paper", "official_code": True}),
        (IN_STUDY, "training.batch_size", "got 0", ">= 1"),
    ),
    "a declared departure that is none of calibration": Case(
        both(put("profile", "paper"), put("privacy.departures", ["private_clamp"])),
        (IN_STUDY, "privacy.departures", "'private_clamp'", "sample_level_calibration"),
    ),
    "a declared departure of a strict row": Case(
        put("privacy.departures", ["noise_over_all_clients"]),
        (IN_STUDY, "privacy.departures", "noise_over_all_clients", "profile: paper"),
    ),
    "a declared departure of calibration without a calibration": Case(
        both(
            put("profile", "paper"),
            put(
                "privacy",
                {
                    "noise_multiplier": 1,
                    "delta": 0.001,
                    "clip_norm": 0.5,
                    "departures": ["no_composition"],
                },
            ),
        ),
        (IN_STUDY, "privacy.departures is for privacy.epsilon only", "add epsilon"),
    ),
    "a declared calibration to batches without batches": Case(
        both(put("profile", "paper"), put("privacy.departures", ["sample_level_calibration"])),
        (IN_STUDY, "training.batch_size", "got 0", ">= 1"),
    ),
    "rdp of laplace": Case(
        both(put("privacy.mechanism", "laplace"), put("privacy.accountant", "rdp")),
        (IN_STUDY, "privacy.accountant", "'rdp'", "laplace"),
    ),
    "official code of strict": Case(
        put("methods.2.official_code", True), (IN_STUDY, "official_code", "profile: paper")
    ),
    "official code that is not there": Case(
        both(put("profile", "paper"), put("methods.1.official_code", True)),
        (IN_STUDY, "dp_fedavg", "official_code"),
    ),
    # partition, data, model
    "alpha of iid": Case(
        put("partition.kind", "iid"),
        (IN_STUDY, "partition.alpha", "kind dirichlet only", "got 0.5", "iid"),
    ),
    "dirichlet without alpha": Case(
        drop("partition.alpha"), (IN_STUDY, "partition.alpha is missing")
    ),
    "more classes than exist": Case(
        put("partition", {"kind": "pathological", "clients": 10, "classes_per_client": 11}),
        (IN_STUDY, "got 11", "1 to 10"),
    ),
    "more classes than in my file": Case(
        both(
            own_data(),
            put("partition", {"kind": "pathological", "clients": 10, "classes_per_client": 4}),
        ),
        ("got 4", "1 to 3"),
    ),
    "delta 1/M of all users": Case(
        both(
            own_data(train_users=np.arange(60) % 5),
            put("partition", {"kind": "natural"}),
            put("privacy.delta", 0.2),
        ),
        (IN_STUDY, "privacy.delta; got 0.2; expected below 1/M = 0.2"),
    ),
    "no number of clients": Case(
        drop("partition.clients"), (IN_STUDY, "partition.clients is missing", "natural only")
    ),
    "model that does not fit": Case(
        put("model", {"name": "cnn_cifar"}), (IN_STUDY, "cnn_cifar", "(8, 8, 1)", "(32, 32, 3)")
    ),
    "a network without normalisation layers for fedbn": Case(
        put("methods.1", {"name": "fedbn"}),
        (IN_STUDY, "method fedbn", "'mlp'", "a network with normalisation layers"),
    ),
    "a network that is all head for centaur": Case(
        both(put("methods.1", {"name": "centaur"}), put("model.hidden", [])),
        (IN_STUDY, "method centaur", "'mlp'", "a network with layers before the head"),
    ),
    "option of another model": Case(
        put("model.relu_everywhere", True),
        (IN_STUDY, "model.relu_everywhere", "cnn_femnist only", "for mlp"),
    ),
    "unknown transform": Case(
        put("training.augment", ["crp"]), (IN_STUDY, "training.augment[0]", "did you mean 'crop'?")
    ),
    "unknown precision": Case(
        put("training.precision", "tf23"), (IN_STUDY, "training.precision", "did you mean 'tf32'?")
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
    "missing data file": Case(
        both(own_data(), lambda folder: (folder / "mine.npz").unlink()),
        (IN_CONFIG, "datasets.mine", "mine.npz does not exist"),
    ),
    "missing file of a function": Case(
        both(own_data(), put("datasets", {"mine": "my_data.py:load"}, "config.yaml")),
        (IN_CONFIG, "datasets.mine", "my_data.py: no such file"),
    ),
    "file without the function": Case(
        both(
            own_data(),
            raw("my_data.py", b"def loads(): ...\n"),
            put("datasets", {"mine": "my_data.py:load"}, "config.yaml"),
        ),
        (IN_CONFIG, "datasets.mine", "my_data.py has no 'load'", "did you mean 'loads'?"),
    ),
    "data file that would be overwritten": Case(
        both(own_data(), put("data_dir", ".", "config.yaml")),
        (IN_CONFIG, "datasets.mine", "mine.npz is the file that pflpipe writes"),
    ),
    "data file that is no npz": Case(
        both(own_data(), raw("mine.npz", b"hello")), (IN_CONFIG, "mine.npz cannot be read")
    ),
    "shapes": Case(
        own_data(train_images=np.zeros((60, 4, 4, 4, 1), np.uint8)),
        ("mine.npz", "train_images", "[60, 4, 4, 4, 1]"),
    ),
    "dtype": Case(
        own_data(train_images=np.zeros((60, 4, 4), np.int64)),
        ("mine.npz", "train_images", "int64"),
    ),
    "lengths": Case(
        own_data(train_labels=np.arange(59) % 3), ("mine.npz", "train_labels", "(59,)", "(60,)")
    ),
    "missing array": Case(own_data(train_labels=None), ("mine.npz", "train_labels is missing")),
    "pickled array": Case(
        own_data(train_labels=np.array([object()] * 60)), ("mine.npz", "train_labels", "objects")
    ),
    "shape of a known data set": Case(
        both(put("dataset", "cifar10"), put("datasets", {"cifar10": "mine.npz"}, "config.yaml")),
        ("cifar10", "(4, 4, 1)", "(32, 32, 3)"),
    ),
    # printed numbers
    "unknown paper": Case(
        put("paper", PAPER | {"paper": "FedDPB"}),
        (IN_STUDY, "paper.paper", "did you mean 'FedDPA'?"),
    ),
    "unknown field": Case(
        put("paper", PAPER | {"match": {"partition.alpha": "alpha"}}),
        ("paper.match.partition.alpha", "'partition_alpha'"),
    ),
    "unknown path": Case(
        put("paper", PAPER | {"match": {"partition.alfa": "partition_alpha"}}),
        ("paper.match", "'partition.alpha'"),
    ),
    "unknown printed method": Case(
        put("paper", PAPER | {"methods": {"feddpa": "FedDPa"}}),
        ("paper.methods.feddpa", "'FedDPA'"),
    ),
    "method that is not ours": Case(
        put("paper", PAPER | {"methods": {"fedpda": "FedDPA"}}), ("paper.methods", "'feddpa'")
    ),
    "several printed rows": Case(
        put("paper", PAPER | {"match": {"partition.kind": "partition"}}),
        ("3 printed rows", "exactly one", "partition_alpha"),
    ),
}
for table, file in ((VALUES, IN_STUDY), (VALUES_OF_CONFIG, IN_CONFIG)):
    for name, (path, value, words) in table.items():
        CASES[name] = Case(put(path, value, file), (file, *words.split(" ... ")))
