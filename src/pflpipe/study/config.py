"""The settings of config.yaml: studies, folders, and how to run. No setting changes a result."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from jsonschema import Draft202012Validator, validators

from pflpipe import options
from pflpipe.cells import DATASET_PATTERN, DATASET_WORDS
from pflpipe.errors import ConfigError, Problems
from pflpipe.options import Option
from pflpipe.study import documents

STUDIES = Path("studies")
PAPERS = "papers"
"""Folder in the folder of studies: those of the tables and figures of papers."""
RESULTS = Path("results")
# Snakemake reads braces as wildcards, and no shell expands a tilde here.
FOLDER = "^(?!~)[^{}]+$"


@dataclass(frozen=True)
class Config:
    """config.yaml: studies, folders, and how to run. No setting changes a result.

    ``source`` is not an option but the file's name, for error messages.
    """

    studies: Annotated[tuple[str, ...], Option(non_empty=True, distinct=True)]
    """names of files in studies/, without .yaml"""
    data_dir: Annotated[Path, Option(pattern=FOLDER)] = Path("data")
    """folder of data sets, relative to the working directory, without braces or a first ~"""
    results_dir: Annotated[Path, Option(pattern=FOLDER)] = RESULTS
    """folder of results, without braces or a first ~"""
    store: Annotated[str | None, Option(pattern=r"^\w+://[^{}\s]*[^/{}\s]$")] = None
    """object store of runs, plans and partitions, such as s3://bucket/folder; null = results_dir"""
    tracking_uri: Annotated[str | None, Option()] = None
    """MLflow server or database; null = MLFLOW_TRACKING_URI, or the default of tracking"""
    device: Annotated[str, Option(pattern="^(auto|cpu|cuda(:[0-9]+)?)$")] = "auto"
    """auto, cpu, cuda or cuda:<number>"""
    backend: Annotated[str, Option(choices=("auto", "loop", "vmap"))] = "auto"
    """how clients are computed (simulation/clients.py)"""
    processes: Annotated[int, Option(least=1)] = 1
    """processes that share the clients of one run"""
    checkpoint_seconds: Annotated[float, Option(least=0)] = 60.0
    """least time between two checkpoints of a run"""
    datasets: Annotated[dict[str, Any], Option(keys=(DATASET_PATTERN, DATASET_WORDS))] = field(
        default_factory=dict
    )
    """name of a data set -> your own .npz file, or function my_data.py:load, which is run, or a
    folder with the original files of one that pflpipe knows, or a block (data/blocks.py) that says
    how a table, a folder of pictures or a file of LEAF is read"""
    source: str = field(default="config.yaml", compare=False)


def study_file(name: str, folder: str | os.PathLike[str] = STUDIES) -> Path:
    """Return ``<folder>/<name>.yaml``, or that of ``papers/`` if it is there."""
    of_paper = Path(folder) / PAPERS / f"{name}.yaml"
    return of_paper if of_paper.is_file() else Path(folder) / f"{name}.yaml"


def load(path: str | os.PathLike[str] = "config.yaml") -> Config:
    """Read config.yaml.

    Raises:
        ConfigError: no such file, or all errors of syntax, keys and types.
    """
    return parse(read(path), str(path))


def read(path: str | os.PathLike[str] = "config.yaml") -> Any:
    """Return the plain values of config.yaml.

    Raises:
        ConfigError: no such file, or no YAML.
    """
    if not Path(path).exists():
        do = "go to the project's folder, where config.yaml and studies/ are"
        raise ConfigError(f"{path}: No such file", got=f"the folder {Path.cwd()}", do=do)
    return documents.read_yaml(path)


_INTEGERS = Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: type(value) is int
)
_Strict = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, type_checker=_INTEGERS
)
"""A validator to which 2.0 is no integer, since no list has 2.0 entries."""


def _block() -> dict[str, Any]:
    schema: dict[str, Any] = documents.read_yaml(documents.SCHEMAS / "block.schema.yaml")
    return schema


def check_block(block: Mapping[str, Any]) -> None:
    """Raise ConfigError unless keys and values are those of a block of config.yaml."""
    problems = Problems()
    for violation in documents.violations(block, _Strict(_block())):
        problems.add(violation.error)
    problems.stop()


def parse(values: Any, location: str = "config.yaml") -> Config:
    """Build a Config from plain values (Snakemake's merged ``config``); ``location`` starts error
    messages."""
    problems = Problems()
    schema = options.schema(Config)
    source = _block() | {"type": ["string", "object"], "minLength": 1}
    schema["properties"]["datasets"]["additionalProperties"] = source
    for violation in documents.violations(values, _Strict(schema)):
        problems.add(violation.error, location)
    problems.stop()
    config = options.build(Config, values)
    named = {name: s if isinstance(s, dict) else Path(s) for name, s in config.datasets.items()}
    config = dataclasses.replace(config, datasets=named, source=location)
    # `cuda:1` names one GPU, and each process needs its own.
    if config.processes > 1 and ":" in config.device:
        expected = "cuda, of which each process takes one, or a single process"
        what = f"{location}: device, with processes: {config.processes}"
        raise ConfigError(what, got=config.device, expected=expected)
    return config
