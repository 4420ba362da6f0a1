"""What tools/benchmarks/bench_scale.py measures for docs/scale.md is what it says it measures."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from pflpipe.cells import Cell
from pflpipe.data.datasets import load_arrays
from pflpipe.data.partition import make
from pflpipe.study.load import load_study

BENCHMARKS = Path(__file__).resolve().parent.parent / "tools" / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("bench_scale")
    for name in ("bench_scale", "bench_overhead"):
        sys.modules.pop(name, None)


def test_one_round_of_many_clients_is_measured_whole(bench, capsys):
    bench.measure_clients(40)
    found = json.loads(capsys.readouterr().out)
    assert all(value >= 0 for value in found.values())
    assert found["state_bytes_per_client_drawn"] == (8 + 1) * 2 * 4, "a head of two classes"
    assert found["scores_bytes"] > 40 * len("0" * 40)
    assert found["partition_bytes"] > 40 * 5 * 8, "five row numbers of eight bytes for everybody"


def test_every_client_s_state_is_written_and_read_back(bench, capsys):
    bench.measure_states(45, cohort=7)
    found = json.loads(capsys.readouterr().out)
    assert all(value >= 0 for value in found.values())
    assert found["clients_drawn"] == 45
    assert found["bytes"] == 45 * 72


@pytest.mark.parametrize("kind", ["iid", "natural"])
def test_the_pipeline_s_step_divides_five_rows_for_each_client(bench, monkeypatch, kind):
    sizes = []

    def measured(command):
        data, target = command[command.index("--data") + 1], command[-1]
        split = make(load_arrays(data), Cell.from_dict(json.loads(command[3])).partition, 0)
        sizes.extend(map(len, split.train + split.validation + split.test))
        split.save(target)
        return {}

    monkeypatch.setattr(bench, "measured_from_outside", measured)
    assert bench.divided(30, {"kind": kind})["bytes"] > 30 * 5 * 8
    assert sum(sizes) == 30 * 5


def test_as_many_runs_are_planned_as_it_says_and_a_batch_of_the_last(bench, monkeypatch):
    planned = []

    def snakemake(folder, *words):
        study = load_study("many", folder / "studies")
        planned.append((len(study.cells), "--batch" in words, "--dry-run" in words))
        return {"cpu_seconds": 3.0 * len(study.cells) ** 2, "megabytes": 500.0}

    monkeypatch.setattr(bench, "snakemake", snakemake)
    found = bench.planning(Namespace(runs=200))
    assert planned == [(20, False, True), (60, False, True), (200, False, True), (200, True, True)]
    assert found["exponents"] == pytest.approx({"cpu_seconds": 2, "megabytes": 0})


def test_what_a_run_leaves_is_the_difference_of_two_studies(bench, monkeypatch):
    def snakemake(folder, *words):
        seeds = json.loads((folder / "studies" / "few.yaml").read_text())["seeds"]
        for name in ["mlflow.db", *(f"run {seed}" for seed in seeds)]:
            (folder / "results").mkdir(exist_ok=True)
            (folder / "results" / name).write_bytes(b" " * (7 * len(seeds)))
        return {}

    monkeypatch.setattr(bench, "snakemake", snakemake)
    found = bench.files(Namespace())
    assert found["files"] == 1
    assert found["folders"] == found["files of snakemake"] == 0
    assert found["bytes of mlflow.db"] == 7
