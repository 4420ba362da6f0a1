"""What a job loads: a training job torch, numpy and the engine, and nothing that takes seconds to
import and is not needed; what needs no tensors no torch."""

import shlex
import sys
from pathlib import Path

import pytest

import fake_audits
import fake_results
import tabled
import warm
from called import called
from pflpipe.files import canonical_json
from pflpipe.report import tidy
from pflpipe.study.load import load_study
from test_runs import make_place

ROOT = Path(__file__).resolve().parent.parent
TABLES = tabled.table("test_startup")
SCRIPTS = ROOT / "workflow/scripts"
DEAR = set(TABLES["DEAR"])
SCRIPT = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.pipeline
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_training_job_imports_nothing_dear_beyond_torch(tmp_path, backend):
    cell = make_place(tmp_path, "feddpa")  # trains with masks and takes Fisher information
    inputs = [str(tmp_path / name) for name in ("plan.json", "partition.npz", "digits.npz")]
    words = {"cell": canonical_json(cell.to_dict()), "backend": backend, "device": "cpu"}
    words |= {name: str(tmp_path / name) for name in ("out", "checkpoints")}
    given = [f"--{name}={word}" for name, word in words.items()]
    loaded = warm.modules_of(SCRIPT, str(SCRIPTS / "train.py"), *given, "--inputs", *inputs)
    assert (tmp_path / "out" / "state.pt").exists()
    assert {"torch", "pflpipe.simulation.rounds", "pflpipe.methods.feddpa"} <= loaded
    assert loaded & DEAR == set()


@pytest.mark.pipeline
def test_what_needs_no_tensors_loads_no_torch(good):
    """Reading studies, plans, tables, figures and pages, on results of five methods."""
    study = load_study("good")
    results = fake_results.write(study, good)
    fake_audits.write(results / "audits")
    places = {"root": ROOT, "table": "results/tables/good.csv"}
    places["cell"] = shlex.quote(canonical_json(study.cells[-1].accounted.to_dict()))
    figures, lines = [drawing.name for drawing in study.figures], []
    for line in TABLES["LINES"]:
        names = figures if "{figure}" in line else [""]
        lines += [line.format(**places, figure=name) for name in names]
    program = TABLES["IN_TURN"].replace("SCRIPTS", str(SCRIPTS))
    called(sys.executable, "-c", program, *lines)
    assert tidy.stored(study, results)["cell"].tolist() == [cell.id for cell in study.cells]
    made = [f"results/figures/good/{name}.png" for name in figures]
    assert all(Path(file).exists() for file in (*made, "results/report.html", "plan.json"))
