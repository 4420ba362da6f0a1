"""The estimate of a study's time is arithmetic that a reader can do: images times passes over
images a second."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

import fake_results
import tabled
from pflpipe.cells import Cell, Model, Partition, Privacy
from pflpipe.data.datasets import Header, describe
from pflpipe.errors import ConfigError
from pflpipe.study import catalog, config, cost, runtime_estimate
from pflpipe.study.load import load_outline

TABLES = tabled.table("test_cost")

HEADER = Header((8, 8, 1), 10, 1000, 50)


def cell(**partition: Any) -> Cell:
    return dataclasses.replace(fake_results.BASE, partition=Partition(**partition))


def test_images_are_those_that_are_left_for_training_times_passes():
    dealt = cell(kind="iid", clients=12, test_fraction=0.2, validation_fraction=0.1)
    # 4 rounds of 5 epochs over 1000 examples, of which a fifth and then a tenth is held out
    assert runtime_estimate.images(dealt, HEADER) == pytest.approx(4 * 5 * 1000 * 0.8 * 0.9)
    new = cell(kind="iid", clients=12, new_clients=4, validation_fraction=0.0)
    assert runtime_estimate.images(new, HEADER) == pytest.approx(4 * 5 * 1000 * 12 / 16)
    people = cell(kind="natural", clients=10, validation_fraction=0.0)
    assert runtime_estimate.images(people, HEADER) == pytest.approx(4 * 5 * 1000 * 10 / 50)
    all_of_them = cell(kind="natural", clients=0, validation_fraction=0.0)
    assert runtime_estimate.images(all_of_them, HEADER) == pytest.approx(4 * 5 * 1000)


STUDIES = ["feddpa_table4", "fedglp_adp_uplink", "appfl_personalization"]
STUDIES += ["dp_fedsim_table1_fashion", "dp_fedsim_table2"]


@pytest.mark.parametrize("name", STUDIES)
def test_the_estimate_is_that_of_the_table_of_studies(name):
    table = Path("studies/README.md").read_text()
    images, hours = re.search(rf"`{name}` .*\| (\d+) \| (\d+) \|", table).groups()  # type: ignore
    cells = catalog.runs(load_outline(name)).values()
    found = sum(runtime_estimate.images(each, describe(each.dataset)) for each in cells)  # type: ignore
    assert found / 1e6 == pytest.approx(float(images), abs=0.5)
    assert runtime_estimate.total(cells, describe) == pytest.approx(3600 * float(hours), rel=0.12)


def test_without_the_size_of_the_data_there_is_no_estimate():
    assert runtime_estimate.total([fake_results.BASE], lambda name: None) is None
    assert runtime_estimate.duration_text(None) == "unknown"


@pytest.mark.parametrize(("seconds", "words"), TABLES["DURATIONS"])
def test_durations_are_in_the_unit_that_people_would_use(seconds, words):
    assert runtime_estimate.duration_text(seconds) == words


def test_the_cost_of_a_study_is_training_and_the_measured_rates():
    outline = load_outline("quickstart")
    runs = catalog.runs(outline).values()
    training = runtime_estimate.total(runs, describe)
    head, *ways = cost.lines("quickstart", config.load(Path("config.yaml")), cluster=True)
    assert head.startswith(f"quickstart: {len(runs):,} runs; {23.1 * len(runs):,.0f} files")
    methods = len({cell.method for cell in runs})
    jobs = [1, methods, math.ceil(len(runs) / 20) + methods, len(runs) + methods]
    besides = [0.4 * len(runs), 0.4 * len(runs) + 12 * methods, 11 * len(runs), 16 * len(runs)]
    names = ["one job", "a job for each method", "20 runs a job", "a job for each run"]
    *ways, memory = ways
    assert memory == "memory of a job that trains or tests: at least 2,000 MB"
    for line, name, number, seconds in zip(ways, names, jobs, besides, strict=True):
        hours = (training + seconds) / 3600
        assert line == f"{name}: {number:,} submitted, {hours:.3g} CPU-hours"
    _, here = cost.lines("quickstart", config.load(Path("config.yaml")), cluster=False)
    assert here == ways[0].partition("submitted, ")[2]


def test_the_cost_of_unknown_data_is_refused(monkeypatch):
    monkeypatch.setattr(catalog, "headers", lambda settings: lambda name: None)
    with pytest.raises(ConfigError, match="quickstart: the size of its data is not known yet"):
        list(cost.lines("quickstart", config.load(Path("config.yaml")), cluster=True))


def test_states_on_the_disk_are_those_of_the_clients_that_are_drawn():
    training = dataclasses.replace(fake_results.BASE.training, rounds=3, sample_rate=0.4)
    plain = {"privacy": Privacy(), "hyperparameters": {}, "training": training}
    base = dataclasses.replace(cell(kind="iid", clients=12), model=Model("mlp", (5,)), **plain)
    of = {name: dataclasses.replace(base, method=name) for name in ("fedavg", "fedper", "ditto")}
    head, body = 4 * (5 * 10 + 10), 4 * (64 * 5 + 5)
    drawn = 12 * (1 - 0.6**3)
    # Ditto's clients also note in one byte whether they have trained.
    for name, size in {"fedavg": 0, "fedper": head, "ditto": body + head + 1}.items():
        found = cost.state_bytes([of[name]], lambda name: HEADER)
        assert found == pytest.approx(drawn * size), name
    both = cost.state_bytes([of["fedper"], of["fedper"]], lambda name: HEADER)
    assert both == pytest.approx(2 * drawn * head)


def test_a_job_requests_the_memory_of_its_largest_file(tmp_path):
    small, large = (tmp_path / name for name in ("small.npz", "large.npz"))
    small.write_bytes(b"")
    with large.open("wb") as file:
        file.truncate(300_000_000)
    assert cost.megabytes_of_process([str(small)]) == 2000
    assert cost.megabytes_of_process([str(small), str(large)]) == 6000
    assert cost.megabytes_of_process(str(large)) == 6000


def test_gpu_hours_are_those_of_networks_that_were_measured_on_a_gpu():
    settings = dataclasses.replace(config.load(), device="cuda", processes=2)
    known = list(cost.lines("feddpa_table4", settings, cluster=True))[-1]
    cells = catalog.runs(load_outline("feddpa_table4")).values()
    seconds = runtime_estimate.total(cells, describe)
    # the network of all its runs trains 2,000 images a second on a CPU, 22,000 on a GPU
    hours = f"about {seconds / 11 / 3600:.3g} GPU-hours of training on an NVIDIA H100"
    assert known == f"GPUs: 2 for each job that trains or tests; {hours}"
    unknown = list(cost.lines("quickstart", settings, cluster=True))[-1]
    assert unknown.endswith("; GPU-hours unknown: mlp not measured on a GPU")
