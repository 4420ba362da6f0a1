"""What a job loads: a training job torch, numpy and the engine, and nothing that takes seconds to
import and is not needed; what needs no tensors no torch."""

import shlex
import sys
from pathlib import Path

import pytest

import fake_audits
import fake_results
import malformed
import warm
from called import called
from pflpipe.files import canonical_json
from pflpipe.report import tidy
from pflpipe.study.load import load_study
from test_runs import make_place

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "workflow/scripts"
DEAR = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx"}
DEAR |= {"torchvision", "sympy", "triton", "scipy", "pandas", "matplotlib", "sklearn"}
DEAR |= {"dp_accounting", "opacus", "mlflow", "snakemake", "yaml", "jsonschema"}
SCRIPT = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
IN_TURN = """
import runpy, shlex, sys

for line in sys.argv[1:]:
    program, *words = shlex.split(line)
    sys.argv = [program, *words]
    try:
        if program.endswith(".py"):
            runpy.run_path(f"SCRIPTS/{program}", run_name="__main__")
        elif program == "pflpipe":
            from pflpipe.pipeline.cli import main
            main()
        else:
            from snakemake.cli import main
            main(words)
    except SystemExit as end:
        assert not end.code, line
    assert not {"torch", "opacus"} & sys.modules.keys(), line
"""


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
def test_what_needs_no_tensors_loads_no_torch(tmp_path, monkeypatch):
    """Reading studies, plans, tables, figures and pages, on results of five methods."""
    monkeypatch.chdir(tmp_path)
    malformed.write_good(tmp_path)
    study = load_study("good")
    results = fake_results.write(study, tmp_path)
    fake_audits.write(results / "audits")
    figures = [f"results/figures/good/{drawing.name}.png" for drawing in study.figures]
    template, table = ROOT / "workflow/report", "results/tables/good.csv"
    cell = canonical_json(study.cells[-1].accounted.to_dict())
    lines = [
        "pflpipe validate",
        "pflpipe status",
        f"table.py --study good --results results --audits --out {table}",
        f"all_csv.py --tables {table} --out results/tables/all.csv",
        *(
            f"figure.py --study good --figure {Path(file).stem} --results results --data data "
            f"--out {file}"
            for file in figures
        ),
        "audit_table.py --results results --out results/tables/audit.csv",
        f"ledger.py --tables {table} --results results --template {template}/ledger.html "
        "--out results/ledger.html",
        f"report.py --studies good --results results --root {ROOT} "
        f"--template {template}/report.html --out results/report.html",
        f"plan.py --cell {shlex.quote(cell)} --out plan.json",
        "choose.py --help",
        "track.py --help",
        f"snakemake -n --quiet --snakefile {ROOT}/Snakefile --cores 1",
    ]
    program = IN_TURN.replace("SCRIPTS", str(SCRIPTS))
    called(sys.executable, "-c", program, *lines, folder=tmp_path)
    assert tidy.stored(study, results)["cell"].tolist() == [cell.id for cell in study.cells]
    assert all(map(Path.exists, map(Path, [*figures, "results/report.html", "plan.json"])))
