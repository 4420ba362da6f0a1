"""What a training job loads: torch, numpy and the engine, and nothing that takes seconds to import and is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pflpipe.files import canonical_json
from test_runs import make_place

ROOT = Path(__file__).resolve().parent.parent
DEAR = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx", "torchvision", "sympy", "triton"}
DEAR |= {"scipy", "pandas", "matplotlib", "sklearn", "dp_accounting", "opacus", "mlflow", "snakemake", "yaml", "jsonschema"}


PROGRAM = """
import atexit, runpy, sys
sys.argv = sys.argv[1:]
atexit.register(lambda: print(*sys.modules))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def modules_of(script: Path, *words: str) -> set[str]:
    """Modules that a script has imported when it ends."""
    command = [sys.executable, "-c", PROGRAM, str(script), *words]
    return set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_training_job_imports_nothing_dear_beyond_torch(tmp_path, backend):
    cell = make_place(tmp_path, "feddpa")  # trains with masks and takes Fisher information
    words = {"cell": canonical_json(cell.to_dict()), "out": "run", "checkpoints": "checkpoints", "backend": backend}
    words |= {"plan": "plan.json", "partition": "partition.npz", "data": "digits.npz", "device": "cpu"}
    for name in ("out", "checkpoints", "plan", "partition", "data"):
        words[name] = str(tmp_path / words[name])
    loaded = modules_of(ROOT / "workflow/scripts/train.py", *(f"--{name}={word}" for name, word in words.items()))
    assert (tmp_path / "run" / "state.pt").exists()
    assert {"torch", "pflpipe.federated", "pflpipe.methods.feddpa"} <= loaded
    assert loaded & DEAR == set()
