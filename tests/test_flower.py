"""The folder that pflpipe flower writes: its run is that of the study, its certificate is accepted,
and what is personal stays with the nodes."""

import copy
import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fake_results
import secure_sums
from mlflow_server import free_port
from pflpipe import files
from pflpipe.cells import Privacy, Training
from pflpipe.checking.verify import REFUTED
from pflpipe.data import datasets, partition
from pflpipe.errors import ConfigError, DataError, PrivacyError
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.pipeline import evidence, flower, settled
from pflpipe.simulation import remote, rounds, runs
from pflpipe.study import plans
from simulations import assert_equal

MISSING = "flwr is not installed: pip install 'pflpipe[flower]'"
METHODS = ("dp_fedavg", "fedrep", "ditto", "feddpa", "dp_scaffold")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    datasets.prepare("digits", None, data, data / "digits.npz")
    return data


SUMMED = Privacy("skellam", epsilon=8.0, delta=0.001, clip_norm=0.5, bits=20, dropout=0.25)


def study_of(method, digits: Path, results: Path, sample_rate=0.6):
    """Return a study of one run of twelve clients, with the files that its jobs make; of five under
    secure aggregation, if a method is ``summed``."""
    method, _, summed = method.partition(" ")
    training = Training(3, 1, 16, "sgd", 0.3, sample_rate=1.0 if summed else sample_rate)
    base = dataclasses.replace(fake_results.BASE, training=training)
    if summed:
        partition_of_five = dataclasses.replace(base.partition, clients=5)
        base = dataclasses.replace(base, partition=partition_of_five, privacy=SUMMED)
    study = fake_results.study(methods=(method,), epsilons=(8.0,), seeds=(0,), base=base)
    (row,) = study.rows
    plan = results / "plans" / f"{row.cell.plan_id}.json"
    split = results / "partitions" / f"{row.cell.partition_id}.npz"
    split.parent.mkdir(parents=True)
    arrays = datasets.load_arrays(digits / "digits.npz")
    partition.make(arrays, row.cell.partition, row.cell.seed).save(split)
    files.write_json(plan, to_json(plans.plan_of(row.cell)))
    return study, row, runs.Inputs(plan, split, digits / "digits.npz")


@pytest.fixture
def app(request, tmp_path, digits):
    """The folder of an app with the key of the study's own run, and the end of that run."""
    method, *rate = request.param if isinstance(request.param, tuple) else [request.param]
    study, row, inputs = study_of(method, digits, tmp_path / "results", *rate)
    folder = tmp_path / "app"
    nodes = 5 if "summed" in request.param else 3
    flower.write(study, row.run, nodes, tmp_path / "results", digits, folder)
    (folder / "server" / "key").write_text(registry.key(row.cell))
    alone = runs.simulate(row.cell, inputs, device="cpu", backend="loop")
    if "summed" in request.param:
        return folder, alone
    return folder, rounds.run(alone, rounds.start(alone))


def assert_accepted(file):
    """Hold that nothing in a certificate is refuted."""
    assert [one for one in settled.findings(file) if one.verdict == REFUTED] == []


def released(folder):
    """Return the end of the run of an app whose certificate is accepted."""
    (file,) = folder.glob("server/results/tables/*.certificate.json")
    assert_accepted(file)
    (state,) = folder.glob("server/results/runs/*/state.pt")
    return torch.load(state, weights_only=True)


def assert_released(folder, alone, tolerance=1e-6):
    """Hold that an app ended as the simulated run did."""
    saved = released(folder)
    assert_equal(alone.params, saved["params"], tolerance)
    assert_equal(alone.server, saved["server"], tolerance)


def nodes_of(folder):
    """Return client -> the device that has it."""
    places = sorted((folder / "nodes").iterdir())
    devices = [remote.Device(remote.read(place)[1], place / "states") for place in places]
    return {client: device for device in devices for client in device.clients}


@pytest.mark.parametrize("app", METHODS, indirect=True)
def test_the_run_of_the_folders_is_that_of_the_study_and_its_certificate_is_accepted(app, digits):
    folder, alone = app
    nodes = nodes_of(folder)
    assert {*nodes} == {*range(12)}
    cell, server = remote.begin(folder / "server")
    while server.progress.round < server.simulation.plan.rounds:
        public = server.public
        server.step({one: nodes[one].update(one, public) for one in server.cohort})
    assert_equal(alone.params, server.progress.params, 1e-6)
    assert_equal(alone.server, server.progress.server, 1e-6)
    file = flower.finish(cell, server, folder / "server")
    results, pins = folder / "server" / "results", folder / "server" / "pins"
    assert_accepted(file)
    found = evidence.findings(file, results, pins)
    assert [one for one in found if one.verdict == REFUTED] == []
    (row,) = files.read_json(file)["rows"]
    assert (row["claim"], row["counted"]["rounds"]) == ("certified", 3)
    assert row["epsilons"]["central"] == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize("app", ["dp_fedavg"], indirect=True)
def test_a_key_is_for_one_run(app):
    folder, _ = app
    remote.begin(folder / "server")
    with pytest.raises(PrivacyError, match="key; got 'no key'; expected that of a run to begin"):
        remote.begin(folder / "server")


@pytest.mark.parametrize("app", ["dp_fedavg"], indirect=True)
def test_the_server_has_no_rows_and_a_node_has_those_of_its_clients_alone(app, digits):
    folder, _ = app
    everything = datasets.load_arrays(digits / "digits.npz").train_images
    assert not datasets.load_arrays(folder / "server" / "examples.npz").train_images.any()
    held = map(datasets.load_arrays, sorted((folder / "nodes").glob("*/examples.npz")))
    places = [{one.tobytes() for one in part.train_images[1:]} for part in held]
    assert not places[0] & places[1]
    assert set().union(*places) <= {one.tobytes() for one in everything}
    assert (folder / "server" / "key").stat().st_mode & 0o077 == 0


def test_what_cannot_be_written_is_one_line(tmp_path, digits):
    study, row, inputs = study_of("dp_fedavg", digits, tmp_path / "results")
    places = tmp_path / "results", digits, tmp_path / "app"
    with pytest.raises(ConfigError, match="study tiny: unknown run 'nope'"):
        flower.write(study, "nope", 3, *places)
    with pytest.raises(ConfigError, match="--nodes; got 13; expected 1 to 12, the clients"):
        flower.write(study, row.run, 13, *places)
    inputs.plan.unlink()
    with pytest.raises(DataError, match="got 'no file'; expected a file; pflpipe run"):
        flower.write(study, row.run, 3, *places)
    assert not places[-1].exists()
    study, row, _ = study_of("local_only", digits, tmp_path / "other")
    with pytest.raises(ConfigError, match="it sends nothing, so each device trains it alone"):
        flower.write(study, row.run, 3, tmp_path / "other", digits, places[-1])
    assert not places[-1].exists()
    study, row, _ = study_of("dp_fedavg summed", digits, tmp_path / "summed")
    with pytest.raises(ConfigError, match="in Flower: --nodes; got 3; expected 5, one a client"):
        flower.write(study, row.run, 3, tmp_path / "summed", digits, places[-1])


def test_the_app_is_short_enough_to_be_read():
    files = Path(flower.__file__).with_name("flower_app").glob("*.*")
    assert sum(len(file.read_text().splitlines()) for file in files) <= 150


# ---------------------------------------------------------------- with Flower


def program(file: Path):
    """Return the module of a file of the app."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Grid:
    """Calls the client app of each node at once, and keeps all messages."""

    def __init__(self, client_app, folder: Path, lost=()) -> None:
        from flwr.app import Context, RecordDict

        self.app, self.lost, self.messages = client_app, lost, []
        self.contexts = {
            100 + i: Context(1, 100 + i, {"folder": str(place)}, RecordDict(), {"folder": "none"})
            for i, place in enumerate(sorted((folder / "nodes").iterdir()))
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.messages.append(copy.deepcopy(message))
            of = message.metadata.message_type
            protocol = message.content.config_records.get("secaggplus_configs")
            of = of if protocol is None else f"{protocol['stage']} {message.metadata.group_id}"
            if (of, node) not in self.lost:
                replies.append(self.app(copy.deepcopy(message), self.contexts[node]))
        self.messages += replies
        return replies


def run_app(folder, monkeypatch, lost=()):
    """Run the app in this process and return its grid."""
    pytest.importorskip("flwr", reason=MISSING)
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    # What a process of Flower's knows of itself.
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    client, server = (program(folder / "app" / f"{name}_app.py") for name in ("client", "server"))
    grid = Grid(client.app, folder, lost)
    nodes = len([*(folder / "nodes").iterdir()])
    settings = {"folder": str(folder / "server"), "nodes": nodes, "timeout": 1.0}
    server.app(grid, Context(1, 1, {}, RecordDict(), settings))
    return grid


@pytest.mark.parametrize("app", ["fedrep"], indirect=True)
def test_the_run_of_an_app_whose_node_is_lost_keeps_its_plan(app, monkeypatch):
    folder, alone = app
    run_app(folder, monkeypatch, {("train", 100)})
    weights = released(folder)["params"]["fc1.weight"]
    assert not torch.equal(weights, alone.params["fc1.weight"])
    assert not list(folder.glob("nodes/0/states/*/?.pt"))
    assert list(folder.glob("nodes/1/states/*/?.pt"))


@pytest.mark.parametrize("app", METHODS, indirect=True)
def test_the_apps_strategy_and_client_release_the_same_and_send_nothing_personal(app, monkeypatch):
    folder, alone = app
    grid = run_app(folder, monkeypatch)
    assert_released(folder, alone)
    # No message has a tensor of a client's state or of its personal model, nor a row.
    sent = bits_of(values_of(grid.messages, "array_records"))
    assert sent
    _, world = remote.read(folder / "nodes" / "0")
    known = bits_of([*rounds.start(world).params.values(), *alone.params.values()])
    kept = [torch.load(file, weights_only=True) for file in folder.glob("nodes/*/states/*/*.pt")]
    trees = [one for one in kept if "round" not in one]
    assert len(trees) == 12
    # The first control variate of SCAFFOLD is what its client sends.
    if world.name != "dp_scaffold":
        trees += [one["state"] for one in kept if "round" in one]
    for tree in trees:
        assert not (bits_of(filter(torch.any, tree.values())) - known) & sent


def bits_of(tensors):
    return {one.numpy().tobytes() for one in tensors}


def values_of(messages, kind):
    """Return what stands in the records of this kind of the messages."""
    records = [one for message in messages for one in getattr(message.content, kind).values()]
    return [value for record in records for value in record.values()]


def text_of(messages):
    """Return all bytes that the messages have."""
    parts = [array.data for array in values_of(messages, "array_records")]
    for value in values_of(messages, "config_records"):
        parts += value if isinstance(value, list) else [value]
    return b" ".join(one for one in parts if isinstance(one, bytes))


COLLECT = "collect_masked_vectors 2"


@pytest.mark.parametrize("lost", ["", "setup 2", "share_keys 2", COLLECT, "unmask 2"])
@pytest.mark.parametrize("app", ["dp_fedavg summed"], indirect=True)
def test_secagg_shows_the_server_the_simulated_sum_to_the_bit_and_no_vector_of_a_client(
    app, lost, monkeypatch
):
    folder, alone = app
    shares = secure_sums.known(monkeypatch)
    grid = run_app(folder, monkeypatch, {(lost, 102)})
    absent = {(1, 2)} - shares.keys()
    assert len(absent) == (lost not in ("", "unmask 2"))
    alone = secure_sums.simulated(alone, absent)
    alone = rounds.run(alone, rounds.start(alone))
    assert_released(folder, alone, 0)
    sent = text_of(grid.messages)
    assert alone.params["fc1.weight"].numpy().tobytes() in sent, "the release is sent in clear"
    for share in shares.values():
        for form in (share[""], share[""].int(), share[""] - (2**20 - 1) / 2, share[""].double()):
            assert form[:4].numpy().tobytes() not in sent
    (file,) = folder.glob("server/results/tables/*.certificate.json")
    (row,) = files.read_json(file)["rows"]
    assert (row["claim"], row["trust"]) == ("certified", "secure_aggregation")


@pytest.mark.parametrize("app", ["dp_fedavg summed"], indirect=True)
def test_a_round_of_secagg_with_too_few_nodes_ends_the_run_in_one_line(app, monkeypatch):
    folder, _ = app
    with pytest.raises(PrivacyError, match=r"round 2: clients in the secure sum; got 0; .* 4"):
        run_app(folder, monkeypatch, {(COLLECT, 100), (COLLECT, 102)})
    assert not list(folder.glob("server/results/runs/*"))


@pytest.mark.parametrize("app", ["dp_fedavg summed"], indirect=True)
def test_a_node_sends_nothing_unmasked_and_under_no_other_settings(app, monkeypatch):
    folder, _ = app
    grid = run_app(folder, monkeypatch)
    context = grid.contexts[100]
    asked = next(one for one in grid.messages if "asked" in one.content.config_records)
    del asked.content.config_records["secaggplus_configs"]
    with pytest.raises(KeyError, match="secaggplus_configs"):
        grid.app(asked, context)
    protocol = [one for one in grid.messages if "secaggplus_configs" in one.content.config_records]
    setup = protocol[0]
    setup.content.config_records["secaggplus_configs"]["threshold"] = 2
    with pytest.raises(PrivacyError, match=r"secure aggregation; got .*threshold.: 2"):
        grid.app(setup, context)


@pytest.mark.parametrize("bits", [4, 20, flower.MOST_BITS])
def test_the_rounding_of_secagg_changes_no_whole_number(bits):
    of = pytest.importorskip("flwr.common.secure_aggregation.quantization", reason=MISSING)
    most = 2**bits - 1
    whole = np.array([0, 1, 2, most // 3, most // 2, most - 1, most])
    (found,) = of.quantize([(whole - most / 2) * 1.0], most / 2, most)
    assert np.array_equal(found, whole)


@pytest.fixture(scope="module")
def simulate(tmp_path_factory):
    """Run an app in Flower's own simulation, behind a SuperLink on this machine."""
    for name in ("flwr", "ray"):
        missing = f"{name} is not installed: pip install 'pflpipe[flower]' 'flwr[simulation]'"
        pytest.importorskip(name, reason=missing)
    home, port, programs = tmp_path_factory.mktemp("home"), free_port(), Path(sys.executable).parent
    address = f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(address)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    quiet |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
    quiet["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    link = [programs / "flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    link += ["--disable-runtime-dependency-installation"]
    run = [programs / "flwr", "run", "app", "here", "--stream", "--run-config", "timeout=240.0"]
    around = {"env": os.environ | quiet, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(link, cwd=home, stdout=subprocess.PIPE, **around) as server:
        assert any("running on" in line for line in server.stdout)
        yield lambda folder: subprocess.run(
            [*run, "--federation-config", f"num-supernodes={len([*folder.glob('nodes/*')])}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            timeout=590,
            check=True,
            **around,
        )
        server.terminate()


@pytest.mark.pipeline
@pytest.mark.parametrize("app", METHODS, indirect=True)
def test_the_app_releases_the_same_in_flowers_own_simulation(app, simulate):
    folder, alone = app
    said = simulate(folder).stdout
    assert "certificate: " in said, said
    assert_released(folder, alone)


@pytest.mark.pipeline
@pytest.mark.parametrize("app", ["dp_fedavg summed"], indirect=True)
def test_secagg_runs_in_flowers_own_simulation(app, simulate):
    folder, _ = app
    said = simulate(folder).stdout
    assert said.count("'drawn': 5, 'answered': 5") == 3, said
    assert released(folder)


# ---------------------------------------------------------------- with pfl


EMPTY = ("fedrep", 0.05)  # a sampling rate that leaves a cohort empty


@pytest.mark.parametrize("app", [*METHODS, EMPTY], indirect=True, ids=str)
def test_pfls_simulated_backend_releases_the_same(app, request):
    pytest.importorskip("pfl", reason="pfl is not installed: docs/deploy.md says how")
    folder, alone = app
    if request.node.callspec.params["app"] == EMPTY:
        assert 0 in [row["participants"] for row in alone.rows]
    file = Path(__file__).parents[1] / "docs/examples/pfl_run.py"
    program(file).main(folder)
    assert_released(folder, alone)
    again = subprocess.run([sys.executable, file, folder], capture_output=True, text=True)
    assert again.returncode == 2
    (line,) = again.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("; write the app again with pflpipe flower; its run is a further release")
