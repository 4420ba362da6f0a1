"""Commands that read declarations answer without torch what they answer with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import malformed
from pflpipe import without_torch
from pflpipe.errors import PflpipeError

ANSWERS = """
import json, os, sys
from pathlib import Path
from pflpipe import without_torch
from pflpipe.errors import PflpipeError

def answers():
    from pflpipe.study import config
    from pflpipe.study.check import validate
    found = {}
    for folder in sys.argv[1:]:
        os.chdir(folder)
        try:
            found[folder] = [str(outline) for outline in validate(config.load()).values()]
        except PflpipeError as error:
            found[folder] = str(error)
    return found

print(json.dumps([without_torch.run(answers), "torch" in sys.modules]))
"""


def started(program: str, *arguments: str, folder: Path) -> str:
    """Return what a Python program prints in a process that has not imported torch yet."""
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_validation_says_without_torch_what_it_says_with_it(tmp_path, monkeypatch):
    from pflpipe.study import config
    from pflpipe.study.check import validate

    expected: dict[str, object] = {}
    for name, case in {"good": None, **dict(list(malformed.CASES.items())[::4])}.items():
        folder = tmp_path / name
        malformed.write_good(folder)
        if case is not None:
            case.damage(folder)
        monkeypatch.chdir(folder)
        try:
            expected[str(folder)] = [str(found) for found in validate(config.load()).values()]
        except PflpipeError as error:
            expected[str(folder)] = str(error)
    answers, loaded = json.loads(started(ANSWERS, *expected, folder=tmp_path))
    assert answers == expected
    assert not loaded


@pytest.mark.slow
@pytest.mark.parametrize("command", ["validate", "methods", "methods feddpa fedpac", "studies"])
def test_commands_that_read_declarations_do_not_import_torch(command, tmp_path):
    malformed.write_good(tmp_path)
    program = """
import sys
from pflpipe import cli
try:
    cli.main()
finally:
    print("torch" in sys.modules)
"""
    assert started(program, *command.split(), folder=tmp_path).splitlines()[-1] == "False"


# A torch of a few lines, because importing the real one takes seconds.
TORCH = """
class Tensor: pass
def ones(count): return [1.0] * count
float32, float64 = "f32", "f64"
class nn:
    class Linear:
        def __init__(self, wide, narrow): self.bias = [0.0] * narrow
"""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("import torch\nanswer = sum(torch.ones(3))", "3.0"),
        ("from torch import Tensor, nn\nanswer = isinstance(3, Tensor)", "False"),
        ("from torch import nn\nclass Net(nn.Linear): pass\nanswer = len(Net(2, 3).bias)", "3"),
        ("import torch\nanswer = torch.float32 == torch.float64", "False"),
        ("import torch\nanswer = 'yes' if torch.float32 else 'no'", "yes"),
        ("import torch\nanswer = str(torch.float32)", "f32"),
        (
            "from torch import nn\nclass Net(nn.Linear): pass\nanswer = Net.no_such",
            "AttributeError",
        ),
    ],
)
def test_what_needs_torch_gets_it(text, answer, tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "needs.py").write_text(text)
    program = """
import sys
sys.path.insert(0, ".")
from pflpipe import without_torch

def command():
    sys.modules.pop("needs", None)
    import needs
    return needs.answer

try:
    print(without_torch.run(command))
except AttributeError:
    print("AttributeError")
"""
    assert started(program, folder=tmp_path) == f"{answer}\n"


def test_an_error_of_the_user_is_told_at_the_first_attempt(tmp_path):
    program = """
import sys
from pflpipe import without_torch
from pflpipe.errors import ConfigError

def command():
    import torch
    print("asked")
    raise ConfigError("no")

try:
    without_torch.run(command)
except ConfigError:
    print("torch" in sys.modules)
"""
    assert started(program, folder=tmp_path) == "asked\nFalse\n"


def test_with_torch_at_hand_a_command_runs_once():
    assert "torch" in sys.modules
    calls: list[int] = []
    without_torch.run(lambda: calls.append(1))
    assert calls == [1]
