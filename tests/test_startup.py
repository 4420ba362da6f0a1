"""What a training job loads: torch, numpy and the engine, and nothing that takes seconds to import
and is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import warm
from pflpipe.files import canonical_json
from test_runs import make_place

ROOT = Path(__file__).resolve().parent.parent
DEAR = {
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.onnx",
    "torchvision",
    "sympy",
    "triton",
}
DEAR |= {
    "scipy",
    "pandas",
    "matplotlib",
    "sklearn",
    "dp_accounting",
    "opacus",
    "mlflow",
    "snakemake",
    "yaml",
    "jsonschema",
}
SCRIPT = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.pipeline
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_training_job_imports_nothing_dear_beyond_torch(tmp_path, backend):
    cell = make_place(tmp_path, "feddpa")  # trains with masks and takes Fisher information
    inputs = [str(tmp_path / name) for name in ("plan.json", "partition.npz", "digits.npz")]
    words = {"cell": canonical_json(cell.to_dict()), "backend": backend, "device": "cpu"}
    words |= {name: str(tmp_path / name) for name in ("out", "checkpoints")}
    given = [f"--{name}={word}" for name, word in words.items()]
    script = str(ROOT / "workflow/scripts/train.py")
    loaded = warm.modules_of(SCRIPT, script, *given, "--inputs", *inputs)
    assert (tmp_path / "out" / "state.pt").exists()
    assert {"torch", "pflpipe.simulation.rounds", "pflpipe.methods.feddpa"} <= loaded
    assert loaded & DEAR == set()
