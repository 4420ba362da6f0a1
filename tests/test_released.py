"""The released part of a study: complete, a function of the releases alone, and kept back when a
claim does not hold."""

import functools
import json
import math
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize

import fake_audits
import fake_results
import gdp
import warm
from called import called
from pflpipe import cells
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import read_json, write_json
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.pipeline import released
from pflpipe.report import tidy
from pflpipe.simulation import rounds, runs, scores
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Chosen, Row, Study
from simulations import assert_equal, ends_of_other_data, simulation

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = [name for name in NAMES if registry.info(name).about.private]

# ---------------------------------------------------------------- two worlds with the same releases

CLIENTS, ROWS, FEATURES = 6, 8, 5
HUGE = np.arange(CLIENTS * ROWS, CLIENTS * ROWS + 9)
"""Rows of numbers so large that the second step on them ends in NaN: such an upload counts as
zero."""
TRAINED = ("dp_fedavg", "fedpac", "fedglp_adp")


def cell(method: str) -> cells.Cell:
    """A cell on the user's own arrays."""
    training = cells.Training(5, 2, 4, "sgd", 0.1, sample_rate=0.7)
    privacy = cells.Privacy("gaussian", None, 1.0, 1e-3, 0.5)
    task = cells.Partition("iid", CLIENTS), cells.Model("mlp", (4,)), training, privacy
    return cells.Cell("mine", *task, method, registry.check_hyperparameters(method, {}))


def study_of(*found: cells.Cell) -> Study:
    return Study("tiny", "A tiny study", "Made up.", tuple(map(Row, found)))


STUDY = study_of(*map(cell, TRAINED))


@functools.cache
def planned(privacy: cells.Privacy, training: cells.Training) -> dict[str, Any]:
    """The contents of the plan file that such cells share."""
    return to_json(plan_of(replace(STUDY.cells[0], privacy=privacy, training=training)))


def train(folder: Path, first: Sequence[int]) -> Path:
    """Run the study for real on clients of which the first one holds these rows, and return the
    folder of its results."""
    results = folder / "results"
    rng = np.random.default_rng(0)
    features = rng.normal(size=(HUGE[-1] + 1, FEATURES)).astype(np.float32)
    features[HUGE] = 1e38 * (-1.0) ** HUGE[:, None]
    labels = np.arange(len(features)) % 3
    arrays = {"train_images": features, "train_labels": labels}
    arrays |= {"test_images": features[:9], "test_labels": labels[:9], "classes": np.int64(3)}
    folder.mkdir()
    np.savez(folder / "mine.npz", **arrays, mean=[0.5], std=[0.5])
    others = np.split(np.arange(ROWS, CLIENTS * ROWS), CLIENTS - 1)
    held = [np.asarray(first, dtype=np.int64), *others]
    none = [np.zeros(0, np.int64)] * CLIENTS
    for one in STUDY.cells:
        ((_, inputs, out),) = scores.places_of([one], [one.id], results, folder)
        write_json(inputs.plan, planned(one.privacy, one.training))
        Split(held, none, none, np.arange(9)).save(inputs.partition)
        how = {"device": "cpu", "backend": "loop", "checkpoint_seconds": 3600}
        runs.train(one, inputs, out, folder / "checkpoints", **how)
    return results


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of the study when the first client's uploads are zero, and when they are NaN, with
    few and many examples."""
    base, firsts = tmp_path_factory.mktemp("worlds"), {"zero": (), "few": HUGE[:2], "many": HUGE}
    return {name: train(base / name, first) for name, first in firsts.items()}


def published(results: Path, target: Path, study: Study = STUDY) -> dict[str, bytes]:
    """Publish a study and return the contents of the folder's files."""
    released.write(study, results, target)
    return {str(path.relative_to(target)): path.read_bytes() for path in sorted(target.rglob("*"))}


@pytest.mark.slow
def test_equal_releases_are_published_as_equal_bytes_whatever_the_clients_held(worlds, tmp_path):
    folders = {name: published(results, tmp_path / name) for name, results in worlds.items()}
    assert folders["zero"] == folders["few"] == folders["many"]
    assert len(folders["zero"]) == 2 * len(TRAINED) + 2
    for name in map(registry.run_id, STUDY.cells):
        diaries = [worlds[world] / "runs" / name for world in ("zero", "few", "many")]
        told = [read_json(folder / "run.json")["diagnostics"] for folder in diaries]
        assert told[0]["diverged_round"] is None
        assert told[1]["diverged_round"] is not None
        images = [pd.read_csv(folder / "timing.csv")["images"].sum() for folder in diaries]
        assert images[0] < images[1] < images[2]
        nonfinite = [values["nonfinite_uploads"] for values in told]
        rows = [pd.read_csv(folder / "rounds.csv") for folder in diaries]
        assert nonfinite == [table["nonfinite_uploads"].sum() for table in rows]
        assert 0 == nonfinite[0] < nonfinite[1] == nonfinite[2]


@pytest.mark.slow
def test_nothing_that_is_measured_reaches_the_folder(worlds, tmp_path):
    before = published(worlds["zero"], tmp_path / "before")
    other = shutil.copytree(worlds["zero"], tmp_path / "results")
    for name in map(registry.run_id, STUDY.cells):
        folder = other / "runs" / name
        run = read_json(folder / "run.json")
        run["diagnostics"]["participants"] += 1
        run["diagnostics"]["diverged_round"] = 3
        run["program"] |= {"device": "cuda:7", "threads": 7, "versions": {}}
        write_json(folder / "run.json", run)
        state = torch.load(folder / "state.pt", weights_only=True)
        del state["states"]
        torch.save(state | {"more": 1}, folder / "state.pt")
        for file in ("rounds.csv", "timing.csv", "states.bin"):
            (folder / file).write_text("another world\n")
    shutil.rmtree(other / "partitions")
    assert published(other, tmp_path / "after") == before


@pytest.mark.slow
def test_the_folder_holds_models_settings_plans_and_ledgers(worlds, tmp_path):
    folder = tmp_path / "published"
    published(worlds["many"], folder)
    manifest = read_json(folder / "manifest.json")
    for one in STUDY.cells:
        name = registry.run_id(one)
        state = torch.load(worlds["many"] / "runs" / name / "state.pt", weights_only=True)
        with np.load(folder / f"{name}.npz", allow_pickle=False) as bundle:
            arrays = dict(bundle)
        kept = state["params"] | {f"server/{key}": value for key, value in state["server"].items()}
        assert arrays.keys() == kept.keys()
        for key, value in kept.items():
            np.testing.assert_array_equal(arrays[key], value.numpy())
        about = read_json(folder / f"{name}.json")
        assert about.keys() == {"cell", "plan", "ledger", "released"}
        assert registry.key(cells.Cell.from_dict(about["cell"])) == registry.key(one)
        wanted = planned(one.privacy, one.training)
        assert about["plan"] == wanted["plan"]
        assert about["ledger"].items() <= wanted["ledger"].items()
        assert manifest["runs"][name]["epsilon_central"] == wanted["ledger"]["epsilon_central"]
        told = {key.removesuffix("_1e5") for key in (*about["ledger"], *about["released"])}
        assert told <= manifest["promises"].keys(), "every number says what it promises"
    # FedGLP-ADP's server computes something from its releases.
    assert any(key.startswith("server/") for key in arrays)


def test_no_file_carries_a_date(worlds, tmp_path):
    published(worlds["zero"], tmp_path / "published")
    for path in (tmp_path / "published").glob("*.npz"):
        entries = zipfile.ZipFile(path).infolist()
        assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
        assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)


def test_the_documents_say_of_every_quantity_whether_it_is_released(worlds, tmp_path):
    published(worlds["many"], tmp_path / "published")
    table = (ROOT / "docs/privacy.md").read_text().partition("| quantity |")[2].partition("\n\n")[0]
    named: dict[str, set[str]] = {"released": set(), "declared": set(), "diagnostics": set()}
    for line in table.splitlines()[2:]:
        quantity, _, kind, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        named[kind] |= set(re.findall(r"`(\w+)`", quantity))
    folder = worlds["many"] / "runs" / registry.run_id(STUDY.cells[0])
    run, state = read_json(folder / "run.json"), torch.load(folder / "state.pt", weights_only=True)
    about = read_json(tmp_path / "published" / f"{folder.name}.json")
    plan = planned(STUDY.cells[0].privacy, STUDY.cells[0].training)
    everything = set().union(*named.values())
    told = {*about["ledger"], *about["released"], *plan["ledger"], *state}
    assert named["released"] >= told - {"states"}
    assert named["diagnostics"] >= {*run["diagnostics"], "states"}
    assert everything >= {*run} - {"released", "diagnostics"}
    measured = {*rounds.COLUMNS, *runs.TIMING_COLUMNS, *scores.COLUMNS}
    assert everything >= measured | {*tidy.COLUMNS}
    # The clip bound is public, by round as well.
    assert named["diagnostics"] >= measured - {"cell", "clip_norm"}


def test_the_folder_says_what_a_client_is_and_what_holds_for_a_person(worlds, tmp_path):
    results = shutil.copytree(worlds["few"], tmp_path / "results")
    for file in (results / "plans").glob("*.json"):
        person = {"epsilon_person": 43.21, "epsilon_person_1e5": "inf"}
        edited(file, "ledger", unit="dealt client", max_clients_per_user=2, **person)
    plain = published(worlds["few"], tmp_path / "plain")["README.md"].decode()
    dealt = published(results, tmp_path / "dealt")["README.md"].decode()
    assert "Protected is one client with all of its data" in plain
    assert "For one person:" not in plain
    assert "Protected is one dealt client with all of its data" in dealt
    assert " | 2 | 43.3 | 0.001 | ∞ |" in dealt
    for folder, person in (("plain", None), ("dealt", 43.21)):
        shown = read_json(tmp_path / folder / "manifest.json")["runs"].values()
        assert {run.get("epsilon_person") for run in shown} == {person}


# ---------------------------------------------------------------- every method


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
def test_what_is_published_depends_on_data_through_the_releases_alone(method):
    """With releases that the clients' data cannot touch, other data give the same model; what stays
    home is the first value."""
    images = registry.info(method).about.needs == ("norm",)
    about: dict[str, Any] = {"model": cells.Model("resnet20"), "shape": (8, 8, 1)} if images else {}
    world = simulation(method, local_epochs=1, **about)
    ends = ends_of_other_data(world)
    assert_equal(ends[0].params, ends[1].params, 0)
    assert_equal(ends[0].server, ends[1].server, 0)
    first, sent = rounds.start(world).params, world.method.sends(world.task)
    if method in ("one_shot_ridge", "private_prior"):  # whose server makes the head of moments
        sent = world.task.head_names
    if "items" in registry.info(method).about.needs:  # and these the whole model of sums
        sent = tuple(first)
    for name, value in ends[0].params.items():
        assert torch.equal(value, first[name]) == (name not in sent), name


# ---------------------------------------------------------------- what is in, what is out, what it
# costs together


def made_up(study: Study, folder: Path) -> Path:
    """Write made-up results of a study, with a model for every run."""
    results = fake_results.write(study, folder)
    state = {"params": {"head.bias": torch.ones(3)}, "server": {}, "states": {}}
    for name in map(registry.run_id, study.cells):
        torch.save(state, results / "runs" / name / "state.pt")
    return results


def manifest_of(study: Study, folder: Path) -> dict[str, Any]:
    released.write(study, made_up(study, folder), folder / "published")
    return read_json(folder / "published" / "manifest.json")


def test_only_certified_runs_are_published_and_the_others_are_named(tmp_path):
    study = fake_results.study(seeds=(0,), epsilons=(2.0,))
    results = made_up(study, tmp_path)
    for one in study.cells:
        if one.method != "dp_fedavg" and released.left_out(one):
            shutil.rmtree(results / "runs" / registry.run_id(one))  # they are not even read
    found = published(results, tmp_path / "published", study)
    private = [one for one in study.cells if one.method in ("dp_fedavg", "feddpa")]
    certified = [registry.run_id(one) for one in private if not one.departures]
    files = {f"{name}.{kind}" for name in certified for kind in ("npz", "json")}
    assert found.keys() == {"README.md", "manifest.json"} | files
    left_out = json.loads(found["manifest.json"])["left_out"]
    missing = {run["method"]: run["why"] for run in left_out}
    assert missing.keys() == {"local_only", "fedavg", "feddpa"}
    assert missing["fedavg"].startswith("none: ")
    assert re.match("nominal: it departs.*data_size_weights", missing["feddpa"])
    page = found["README.md"].decode()
    assert all(f"- `{run['run']}`: {run['why']}" in page for run in left_out)


def test_a_run_without_noise_is_not_published_whatever_it_claims(tmp_path):
    bare = replace(fake_results.BASE, privacy=cells.Privacy("gaussian", None, 0.0, 1e-3, 0.5))
    found = manifest_of(study_of(fake_results.BASE, bare), tmp_path)
    assert [run["run"] for run in found["left_out"]] == [registry.run_id(bare)]
    assert found["runs"].keys() == {registry.run_id(fake_results.BASE)}


def test_runs_that_are_one_release_are_published_once(tmp_path):
    base = fake_results.BASE
    watched = replace(base, training=replace(base.training, evaluate_every=2))
    tuned = replace(base, method="dp_fedavg_fb", hyperparameters={"head_lr": 0.5})
    assert registry.run_id(watched) != registry.run_id(base)
    found = manifest_of(study_of(base, watched, tuned), tmp_path)
    assert list(found["runs"]) == [registry.run_id(base)]
    epsilon = found["same_clients"][0]["epsilon_central"][-1]["epsilon"]
    assert epsilon == pytest.approx(gdp_epsilon([12.0]), rel=1e-6)


def gdp_epsilon(multipliers: Sequence[float], delta: float = 1e-3) -> float:
    """The epsilon of releases of these multipliers in every round."""
    mu = math.sqrt(sum(fake_results.ROUNDS / multiplier**2 for multiplier in multipliers))
    return optimize.brentq(lambda epsilon: gdp.delta(mu, epsilon) - delta, 0, 100, xtol=1e-10)


def curve(group: dict[str, Any]) -> dict[float, float]:
    return {point["delta"]: float(point["epsilon"]) for point in group["epsilon_central"]}


def test_runs_on_the_same_clients_add_up(tmp_path):
    study = fake_results.study(seeds=(0, 1), epsilons=(2.0, 8.0), methods=("dp_fedavg", "feddpa"))
    found = manifest_of(study, tmp_path)["same_clients"]
    for group, seed in zip(found, (0, 1), strict=True):
        members = [one for one in study.cells if one.seed == seed]
        assert group["clients"] == f"partition {members[0].partition_id}"
        assert group["runs"] == [registry.run_id(one) for one in members]
        for delta in (1e-3, 1e-5):
            epsilon = gdp_epsilon([12.0, 12.0, 3.0, 3.0], delta)
            assert curve(group)[delta] == pytest.approx(epsilon, rel=1e-6)


def variant(**changes: Any) -> cells.Cell:
    """The usual cell with other words about its partition; ``seed`` and ``dataset`` are the cell's
    own."""
    own = {name: changes.pop(name) for name in ("seed", "dataset") if name in changes}
    division = replace(fake_results.BASE.partition, **changes)
    privacy = replace(fake_results.BASE.privacy, epsilon=3.0)
    return replace(fake_results.BASE, partition=division, privacy=privacy, **own)


USERS = {"kind": "natural", "alpha": None}
TWO_RUNS = {
    "seed": ({}, {"seed": 1}, False),
    "alpha": ({}, {"alpha": 0.5}, False),
    "parts set aside": ({}, {"validation_fraction": 0.3, "test_fraction": None}, True),
    "users of all seeds": (USERS, {"seed": 1}, True),
    "the first users": (USERS, {"clients": 8, "min_size": 2}, True),
    "other users": (USERS, {"dataset": "other"}, False),
}


@pytest.mark.parametrize(("both", "other", "same"), TWO_RUNS.values(), ids=TWO_RUNS)
def test_clients_are_the_same_with_the_same_share_or_as_the_same_users(both, other, same, tmp_path):
    study = study_of(variant(**both), variant(**both | other))
    assert len(manifest_of(study, tmp_path)["same_clients"]) == (1 if same else 2)


def test_runs_of_both_mechanisms_cost_at_least_what_each_costs():
    words = {"clip_norm": 1.0, "sample_rate": 1.0, "rounds": 4, "clients": 12}
    gaussian = released.Plan("gaussian", 2, noise_multiplier=4.0, delta=1e-3, **words)
    laplace = released.Plan("laplace", 1, noise_multiplier=8.0, delta=0.0, **words)
    groups = ((gaussian, laplace), (gaussian,), (laplace,))
    both, one, two = (curve({"epsilon_central": released._curve(plans)}) for plans in groups)
    assert both.keys() == {0.0, 1e-5, 1e-3}
    assert both[0.0] == math.inf
    assert max(one[1e-3], two[1e-5]) < both[1e-3] < one[1e-3] + two[0.0] + 1e-3
    assert two[0.0] == pytest.approx(4 / 8)


@pytest.mark.parametrize("searched", [False, True])
def test_the_folder_says_that_no_epsilon_covers_how_hyperparameters_were_chosen(searched, tmp_path):
    chosen = Chosen(0, {"training.lr": 0.5}, 2, 4) if searched else None
    study = Study("tiny", "A tiny study", "Made up.", (Row(fake_results.BASE, chosen=chosen),))
    words = manifest_of(study, tmp_path)["not_covered"]
    assert ("were chosen on validation data" in words[0]) == searched
    assert "covers that choice" in words[0]
    page = (tmp_path / "published/README.md").read_text()
    assert all(f"- {sentence}" in page for sentence in words)


# ---------------------------------------------------------------- what is not published at all


def edited(file: Path, *path: str, **changes: Any) -> None:
    """Change values of a block of a JSON file."""
    record = read_json(file)
    block = functools.reduce(lambda outer, key: outer[key], path, record)
    block |= changes
    write_json(file, record)


WATCHED = fake_results.study(seeds=(0,), epsilons=(2.0,), methods=("dp_fedavg", "feddpa"))
RUN = f"runs/{registry.run_id(WATCHED.cells[1])}/run.json"
PLAN = f"plans/{fake_results.BASE.plan_id}.json"


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ((RUN, "diagnostics", "residuals"), {"mismatches": 1}, "exactly the noise of its plan"),
        ((PLAN, "ledger"), {"claim": "nominal"}, "claim; got 'nominal'; expected certified"),
    ],
    ids=["a run that did something else than its plan (test_tables.py)", "another claim"],
)
def test_what_is_not_certified_as_it_was_run_is_not_published(path, change, words, tmp_path):
    results = made_up(WATCHED, tmp_path)
    edited(results / path[0], *path[1:], **change)
    with pytest.raises(DataError, match=words):
        released.write(WATCHED, results, tmp_path / "published")
    assert {file.name for file in tmp_path.iterdir()} == {"results", "data"}


def test_a_study_without_a_certified_run_has_nothing_to_publish(tmp_path):
    study = fake_results.study(seeds=(0,), methods=("fedavg", "feddpa!"))
    with pytest.raises(ConfigError, match="study tiny; got 'no certified run'"):
        released.write(study, made_up(study, tmp_path), tmp_path / "published")


def test_a_folder_that_is_there_is_not_written_over(tmp_path):
    study = study_of(fake_results.BASE)
    results = made_up(study, tmp_path)
    (tmp_path / "published").mkdir()
    released.write(study, results, tmp_path / "published")
    (tmp_path / "published" / "mine.txt").write_text("mine")
    words = "published; got 'files'; expected no such folder; move it away"
    with pytest.raises(DataError, match=words):
        released.write(study, results, tmp_path / "published")
    assert (tmp_path / "published" / "mine.txt").exists()


@pytest.mark.slow
def test_a_refuted_audit_ends_the_script_before_anything_is_written(tmp_path):
    write_json(tmp_path / "audit.json", fake_audits.RESULT | {"verdict": "refuted"})
    script = ROOT / "workflow" / "scripts" / "released.py"
    words = ["--study", "any", "--results", ".", "--audits", "audit.json", "--out", "published"]
    run = called(warm.interpreter(), script, *words, folder=tmp_path, code=2)
    assert run.stderr.startswith("error: audit gaussian-central: a certified claim is refuted")
    assert not (tmp_path / "published").exists()
