"""Commands that read declarations answer without torch what they answer with it."""

import importlib
import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import malformed
import tabled
from called import called
from pflpipe import options
from pflpipe.cells import Model
from pflpipe.learning import architectures
from pflpipe.methods import registry

TABLES = tabled.table("test_without_torch")


def _starts_at_a_file(folder: Path) -> None:
    shapes = architectures.shapes(Model("mlp", (8,)), (8, 8, 1), 10)
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(weights, folder / "start.safetensors")
    model = {"name": "mlp", "hidden": [8], "init": "../start.safetensors"}
    malformed.write(folder / "studies/good.yaml", malformed.STUDY | {"model": model})


@pytest.mark.slow
def test_validation_says_without_torch_what_it_says_with_it(tmp_path):
    start = malformed.Case(_starts_at_a_file, ())
    cases = {"good": None, "start": start, **dict(list(malformed.CASES.items())[::4])}
    for name, case in cases.items():
        malformed.write_good(tmp_path / name)
        if case is not None:
            case.damage(tmp_path / name)
    folders = [str(tmp_path / name) for name in cases]
    without, with_torch = (
        json.loads(called(sys.executable, "-c", program, *folders, folder=tmp_path).stdout)
        for program in (TABLES["ANSWERS"], f"import torch\n{TABLES['ANSWERS']}")
    )
    assert without["answers"] == with_torch["answers"]
    assert (without["torch"], with_torch["torch"]) == (False, True)


@pytest.mark.parametrize("name", registry.NAMES)
def test_what_the_syntax_tree_says_of_a_method_is_what_python_says(name):
    module = importlib.import_module(f"pflpipe.methods.{name}")
    signature = inspect.signature(getattr(module, name), eval_str=True)
    entry = registry.info(name)
    assert entry.about == module.ABOUT
    assert entry.hyperparameters == options.of_signature(signature)
    defaults = [item.default for item in entry.hyperparameters.values()]
    assert inspect.Parameter.empty not in defaults
    assert entry.factory is getattr(module, name)
    assert {item.kind for item in signature.parameters.values()} <= {inspect.Parameter.KEYWORD_ONLY}


def test_privacy_is_counted_without_torch():
    assert called(sys.executable, "-c", TABLES["COUNTED"]).stdout.split() == ["True", "False"]
