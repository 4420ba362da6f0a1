"""A certificate says what the results say, and every planted edit is rejected at the level that can
reject it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import fake_audits
import fake_results
import generated
from pflpipe import code_version
from pflpipe.auditing import cases
from pflpipe.cells import Cell, Model, Partition, Privacy
from pflpipe.errors import DataError
from pflpipe.files import DIGEST, canonical_json, read_json, write_json
from pflpipe.methods import registry
from pflpipe.pipeline import certificate, cli, recomputed, verify
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan
from pflpipe.records import to_json
from pflpipe.report import tidy
from pflpipe.study import search
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Row, Study

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[1] / "docs/examples"
SIZES = np.arange(5, 17)
PIN = "0123456789abcdef" * 4
planted_edits = functools.partial(
    settings,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def cell(method: str = "dp_fedavg", profile: str = "strict", **changes: Any) -> Cell:
    """A cell of fake_results; ``changes`` are of its privacy, training and seed."""
    official = profile == "official"
    version = "paper" if official else profile
    budget, training = dataclasses.asdict(fake_results.BASE.privacy), fake_results.BASE.training
    budget |= {name: value for name, value in changes.items() if name in budget}
    training = dataclasses.replace(
        training,
        batch_size=4,
        **{name: value for name, value in changes.items() if hasattr(training, name)},
    )
    return dataclasses.replace(
        fake_results.BASE,
        method=method,
        hyperparameters=registry.check_hyperparameters(method, {}),
        privacy=Privacy(**budget) if registry.info(method).about.private else Privacy(),
        training=training,
        profile=version,
        official_code=official,
        departures=(
            *registry.departures(method, version, official),
            *changes.get("departures", ()),
        ),
        seed=changes.get("seed", 0),
    )


USERS = Partition("natural", clients=12, test_fraction=0.2)  # whom a search shares with its rows
SEARCHED = [dataclasses.replace(cell(seed=seed), partition=USERS) for seed in (0, 1)]
DEALT = dataclasses.replace(fake_results.BASE.partition, users="ignored", max_clients_per_user=3)
CELLS = {
    "found by a search": SEARCHED[0],
    "its second seed": SEARCHED[1],
    "without privacy": cell("local_only"),
    "secret cohorts": cell(sample_rate=0.5),
    "given noise": cell(epsilon=None, noise_multiplier=3.0),
    "calibrated like the papers": cell(accountant="rdp"),
    "adaptive": cell(clip_quantile=0.5, clip_bit_noise=4.0),
    "groups": cell(groups=3),
    "groups without privacy": cell("fedavg", groups=3),
    "correlated": cell(groups=2, band=3),
    "buffered": cell(groups=4, buffers=1),
    "laplace": cell("appfl", mechanism="laplace"),
    "secret cohorts, laplace": cell("appfl", mechanism="laplace", delta=None, sample_rate=0.5),
    "sizes count": cell("feddpa", "official"),
    "public cohorts": cell("dp_fedsam", "official", sample_rate=0.5),
    "no bound": cell("dp_fedsim", "paper"),
    "noise over all clients": cell(
        profile="paper", departures=("noise_over_all_clients",), sample_rate=0.5
    ),
    "unreviewed": dataclasses.replace(
        cell(),
        method="easgd",
        source="easgd.py",
        hyperparameters={},
        digests={"method": code_version.sha256(EXAMPLES / "easgd.py")},
    ),
    "own network": dataclasses.replace(
        cell(),
        model=Model("small_cnn.py:SmallCNN"),
        digests={"network": code_version.sha256(EXAMPLES / "small_cnn.py")},
    ),
    "all users": dataclasses.replace(cell(), partition=dataclasses.replace(USERS, clients=0)),
    "found by a search on other clients": cell(seed=2),
    "dealt": dataclasses.replace(cell(), partition=DEALT),
    "dealt, secret cohorts": dataclasses.replace(
        cell(epsilon=None, noise_multiplier=20.0, sample_rate=0.5), partition=DEALT
    ),
    "dealt to any": dataclasses.replace(
        cell(), partition=dataclasses.replace(DEALT, max_clients_per_user=None)
    ),
}
OF_DATA = ("sizes count", "public cohorts")
OF_THE_DATA = {"declared": False, "unit": "patient"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a study with a release of every kind, and true plans."""
    folder = tmp_path_factory.mktemp("certificate")
    for file in ("easgd.py", "small_cnn.py"):
        shutil.copy(EXAMPLES / file, folder)
    # Elsewhere there are no files of unreviewed code.
    with contextlib.chdir(folder):
        return write(folder)


def write(folder: Path) -> Path:
    """Write results and certificate of the study."""
    results = folder / "results"
    (folder / "data").mkdir()
    (folder / "data" / "digits.pin").write_text(f"{PIN}\n")
    scores: dict[str, list[Any]] = {}
    for one in CELLS.values():
        scores.setdefault(one.method, []).extend(fake_results.write_run(one, results))
        record = results / "runs" / registry.run_id(one) / "run.json"
        content = read_json(record)
        content["diagnostics"]["residuals"]["moves"] = fake_results.ROUNDS
        write_json(record, content)
        for planned in filter(None, (one, as_published(one))):
            plan = plan_of(planned, SIZES, **(OF_THE_DATA if one is CELLS["all users"] else {}))
            write_json(results / "plans" / f"{planned.plan_id}.json", to_json(plan))
    for method, lines in scores.items():
        file = results / "scores" / "tiny" / f"{method}.csv"
        fake_results.write_csv(file, ",".join(fake_results.SCORES), lines)
    fake_audits.write(results / "audits")
    for name, claimed in claims_of_audits().items():
        file = results / "audits" / f"{name}.json"
        true = claimed if read_json(file)["claim"] == "certified" else "inf"
        numbers = {"epsilon_claimed": claimed, "epsilon_lower": 0.9 * claimed, "epsilon_true": true}
        write_json(file, read_json(file) | numbers)
    plan = plan_of(SEARCHED[0]).plan
    chosen = {
        "index": 1,
        "values": {"training.lr": 0.5},
        "sets": 3,
        "runs": 6,
        "epsilon": accounting.epsilon(plan, 0.001),
        "epsilon_with_search": accounting.composed_epsilon([plan] * 7, 0.001),
        "delta": 0.001,
    }
    line = {"line": "dp_fedavg", "rows": [one.id for one in SEARCHED], "chosen": chosen}
    line |= {"plans": {SEARCHED[0].plan_id: 6}, "private": None}
    dealt = CELLS["found by a search on other clients"]
    uncounted = {"epsilon_with_search": None, "search_not_counted": search.OTHER_CLIENTS}
    other = {"line": "dp_fedavg", "rows": [dealt.id], "chosen": chosen | uncounted}
    other |= {"plans": {dealt.plan_id: 6}, "private": None}
    write_json(results / "searches" / "tiny.json", {"grid": "", "lines": [line, other]})
    tidy.write(tidy.tidy(study(), results), results / "tables" / "tiny.csv")
    certificate.write(study(), results, folder / "data")
    return results


@functools.cache
def claims_of_audits() -> dict[str, float]:
    """Id -> the epsilon that the audited plan claims, as an audit computes it."""
    claimed = {name: case.mechanism_under_audit().claimed for name, case in cases.cases().items()}
    return {
        name: accounting.epsilon(plan, accounting.delta_of(plan)) for name, plan in claimed.items()
    }


def study() -> Study:
    return Study("tiny", "A tiny study", "Made up.", tuple(map(Row, CELLS.values())))


def file_of(results: Path) -> Path:
    return results / "tables" / "tiny.certificate.json"


def content_of(results: Path) -> dict[str, Any]:
    return copy.deepcopy(_content(file_of(results)))


@functools.cache
def _content(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def row_of(content: dict[str, Any], kind: str) -> dict[str, Any]:
    return content["rows"][list(CELLS).index(kind)]


def verdicts(file: Path, results: Path | None = None) -> dict[str, str]:
    """Part -> verdict; rows have the names of ``CELLS``."""
    names = {one.id: name for name, one in CELLS.items()}
    data = file.parent / "none" if results is None else results.parent / "data"
    return {
        names.get(one.part, one.part): one.verdict for one in verify.findings(file, results, data)
    }


def planted(content: dict[str, Any], results: Path, *, renewed: bool) -> Path:
    """Write an edited certificate beside the true one, with a digest of its own or the old one."""
    body = {name: value for name, value in content.items() if name != DIGEST}
    if renewed:
        content = body | {DIGEST: hashlib.sha256(canonical_json(body).encode()).hexdigest()}
    file = results.parent / "planted.json"
    file.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")
    return file


def is_rejected(file: Path, results: Path | None = None) -> bool:
    try:
        return verify.REFUTED in verdicts(file, results).values()
    except DataError:
        return True


# What a certificate says


def test_every_row_that_its_file_determines_is_verified(results):
    found = verdicts(file_of(results))
    assert {name for name in CELLS if found[name] == verify.NOT_CHECKABLE} == set(OF_DATA)
    assert {found[name] for name in CELLS.keys() - set(OF_DATA)} == {verify.VERIFIED}


def test_with_the_results_every_row_is_verified_and_so_are_data_and_code(results):
    found = verdicts(file_of(results), results)
    assert found.pop("code of easgd") == verify.NOT_CHECKABLE
    assert set(found.values()) == {verify.VERIFIED}
    assert {"data set digits", "code of feddpa", *CELLS} <= found.keys()


def test_no_file_that_a_certificate_names_is_run(results, tmp_path, monkeypatch):
    (tmp_path / "easgd.py").write_text("raise SystemExit('run')\n")
    monkeypatch.chdir(tmp_path)
    assert verdicts(file_of(results), results)["unreviewed"] == verify.VERIFIED


def test_a_row_says_what_the_claim_rests_on(results):
    row = row_of(content_of(results), "found by a search")
    plan = plan_of(SEARCHED[0])
    assert row["dataset"] == {"name": "digits", "sha256": PIN}
    assert (row["unit"], row["adjacency"], row["trust"]) == ("user", "zero_out", "central")
    assert row["plan"] == to_json(plan.plan)
    assert row["epsilons"]["central"] == plan.ledger.epsilon_central
    assert [audit["verdict"] for audit in row["audits"]] == ["kept", "kept"]
    assert [audit["detects"] for audit in row["audits"]] == [0.99, 0.99]
    assert {"personal_own", "train_seconds", "diverged_round"} <= set(row["diagnostics"])
    assert "epsilon_central" not in row["diagnostics"]
    assert (row["commit"], len(row["code"]), row["accountant"]["name"]) == ("1234abc", 10, "gdp")
    assert (row["search"]["runs"], row["search"]["plans"][0]["runs"]) == (6, 6)


def test_published_mechanisms_carry_the_audits_of_their_own_release(results):
    (central, local) = row_of(content_of(results), "no bound")["audits"]
    assert (central["verdict"], local["verdict"]) == ("refuted", "unsound")
    assert "data_dependent_noise" in central["audit"] or "raw_similarity" in central["audit"]


def test_the_schema_is_a_schema_and_admits_nothing_unknown(results):
    schema = json.loads(verify.SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    content = content_of(results)
    assert validator.is_valid(content)
    content["rows"][0]["note"] = "trust me"
    assert not validator.is_valid(content)


@pytest.mark.parametrize(
    ("mechanism", "rate", "multiplier"),
    [
        *(("gaussian", 1.0, 0.08), ("gaussian", 0.3, 5.0), ("gaussian", 0.3, 1e-4)),
        *(("laplace", 1.0, 0.7), ("laplace", 0.3, 2.0), ("laplace", 0.3, 1e-3)),
    ],
)
def test_the_second_accountant_agrees_with_the_first(mechanism, rate, multiplier):
    norm = 1 if mechanism == "laplace" else 2
    plan = Plan(mechanism, norm, 1.0, multiplier, rate, 8, 1e-5, 100)
    noise = recomputed.Noise(mechanism, multiplier, rate, 8)
    close = functools.partial(pytest.approx, rel=verify.TOLERANCE / 10)
    assert recomputed.central((noise,), 1e-5) == close(accounting.epsilon(plan, 1e-5))
    assert recomputed.replace_one(noise, 1e-5) == close(accounting.epsilon_replace_one(plan, 1e-5))
    plans = [plan, dataclasses.replace(plan, noise_multiplier=2 * multiplier), plan]
    runs = noise, noise._replace(multiplier=2 * multiplier), noise
    assert recomputed.central(runs, 1e-5) == close(accounting.composed_epsilon(plans, 1e-5))


# Edits that do not renew the digest


@planted_edits(max_examples=100)
@given(data=st.data())
def test_an_edit_that_does_not_renew_the_digest_is_rejected(results, data):
    true = content_of(results)
    number = data.draw(st.integers(0, len(CELLS) - 1))
    content, places = content_of(results), list(generated.paths(true["rows"][number]))
    *parents, last = ("rows", number, *data.draw(st.sampled_from(places)))
    place = content
    for key in parents:
        place = place[key]
    value = data.draw(st.none() | st.booleans() | st.floats(0, 9) | st.text(max_size=3))
    if isinstance(place, dict) and data.draw(st.booleans()):
        del place[last]
    else:
        place[last] = value
    assume(repr(content) != repr(true))
    assert is_rejected(planted(content, results, renewed=False))


@planted_edits(max_examples=100)
@given(place=st.floats(0, 1), put=st.sampled_from(["", "0", " ", "\n", '"', "é"]))
def test_an_edit_of_a_single_character_is_rejected(results, place, put):
    text = file_of(results).read_text()
    at = min(int(place * len(text)), len(text) - 1)
    assume(text[at] != put)
    file = results.parent / "planted.json"
    file.write_text(text[:at] + put + text[at + 1 :])
    assert is_rejected(file)


def test_a_key_that_is_given_twice_is_rejected(results):
    text = file_of(results).read_text()
    twice = text.replace('"claim": "nominal"', '"claim": "certified",\n   "claim": "nominal"', 1)
    file = results.parent / "planted.json"
    file.write_text(twice)
    assert json.loads(twice) == content_of(results)
    assert is_rejected(file)


# Numbers that contradict the rest of the file, with the digest renewed


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of numbers, and of what stands in the place of one."""
    for place in generated.paths(value, path):
        leaf = functools.reduce(lambda inner, key: inner[key], place, value)
        if leaf == "inf" or leaf is None or isinstance(leaf, int | float):
            yield place


@planted_edits(max_examples=120)
@given(data=st.data())
def test_a_number_that_the_rest_contradicts_is_rejected_by_the_file_alone(results, data):
    content = content_of(results)
    kind = data.draw(st.sampled_from(list(CELLS)))
    row = row_of(content, kind)
    parts = [name for name in ("plan", "counted", "epsilons", "search") if row[name]]
    part = data.draw(st.sampled_from(parts))
    places = list(numbers(row[part]))
    if kind == "sizes count":  # its noise follows from numbers that no certificate has
        places = [place for place in places if place != ("noise_multiplier",)]
    if part == "search":  # only the runs count
        places = [place for place in places if place != ("sets",)]
    *parents, last = data.draw(st.sampled_from(places))
    place = functools.reduce(lambda inner, key: inner[key], parents, row[part])
    before = place[last]
    if isinstance(before, int | float) and before:
        factor = data.draw(st.floats(0.3, 3).filter(lambda value: abs(value - 1) > 1e-3))
        place[last] = before * factor if isinstance(before, float) else before + 1
    else:
        place[last] = data.draw(st.floats(0.01, 100))
    assert is_rejected(planted(content, results, renewed=True)), (kind, part, last)


def test_more_buffers_than_the_settings_ask_for_are_rejected_by_the_file_alone(results):
    content = content_of(results)
    buffers = row_of(content, "buffered")["plan"]["buffers"]
    assert buffers["decays"][0] > 0.3
    for name, idle in (("decays", 0.5), ("scales", 0.0)):  # no epsilon follows from it
        buffers[name].append(idle)
    assert is_rejected(planted(content, results, renewed=True))


# Claims that contradict the results, with the digest renewed and every number recomputed


def renew(row: dict[str, Any]) -> None:
    """Give a row what follows from its settings: the id, the claim and all numbers."""
    digest = hashlib.sha256(canonical_json(row["settings"]).encode()).hexdigest()
    row["cell"] = f"{row['cell'].rpartition('-')[0]}-{digest[:10]}"
    for _ in range(2):  # epsilons follow from what is counted
        for path, value in recomputed.expected(row)[0].items():
            *parents, last = path.split(".")
            place = functools.reduce(lambda inner, key: inner[key], parents, row)
            place[last] = "inf" if value == math.inf else value


def drop_departures(content, data):
    row = row_of(content, data.draw(st.sampled_from(["sizes count", "public cohorts", "no bound"])))
    dropped = data.draw(st.sets(st.sampled_from(row["departures"]), min_size=1))
    kept = [name for name in row["departures"] if name not in dropped]
    row["settings"] |= {"departures": kept}
    if not kept:
        del row["settings"]["departures"]
        row["audits"] = row_of(content, "adaptive")["audits"][:2]
    # The noise stays what it was: forgers say that they asked for it.
    row["settings"]["privacy"] = {
        name: value for name, value in row["settings"]["privacy"].items() if name != "epsilon"
    } | {"noise_multiplier": row["plan"]["noise_multiplier"]}
    row["counted"]["rounds"] = row["plan"]["rounds"]
    renew(row)


def drop_a_search(content, data):
    row_of(content, data.draw(st.sampled_from(["found by a search", "its second seed"])))[
        "search"
    ] = None


def shorten_a_search(content, data):
    row = row_of(content, data.draw(st.sampled_from(["found by a search", "its second seed"])))
    row["search"]["plans"][0]["runs"] = data.draw(st.integers(1, 5))
    renew(row)


def swap_adjacencies(content, data):
    row = row_of(content, data.draw(st.sampled_from(sorted(CELLS.keys() - {"without privacy"}))))
    if data.draw(st.booleans()):
        row["adjacency"] = data.draw(st.sampled_from(["replace_one", "add_remove"]))
    else:
        epsilons = row["epsilons"]
        assume(epsilons["central"] != epsilons["replace_one"])
        names = "central", "replace_one"
        epsilons |= dict(zip(names, (epsilons[name] for name in reversed(names)), strict=True))


def relabel(content, data):
    row = row_of(content, data.draw(st.sampled_from(list(CELLS))))
    claims = ["certified", "unreviewed", "nominal", "none"]
    row["claim"] = data.draw(st.sampled_from(claims).filter(lambda name: name != row["claim"]))


def rename_the_method(content, data):
    row = row_of(content, data.draw(st.sampled_from(list(CELLS))))
    row["settings"]["method"] = data.draw(
        st.sampled_from(["dp_fedsim", "ditto", "pfedme"]).filter(
            lambda name: name != row["settings"]["method"]
        )
    )
    renew(row)


def promise_less_noise(content, data):
    row = row_of(content, data.draw(st.sampled_from(["given noise", "no bound"])))
    row["plan"]["noise_multiplier"] *= data.draw(st.floats(1.1, 3))
    privacy = row["settings"]["privacy"]
    privacy.pop("epsilon", None)
    privacy["noise_multiplier"] = row["plan"]["noise_multiplier"]
    renew(row)


def change_the_counted(content, data):
    row = row_of(content, data.draw(st.sampled_from(OF_DATA)))
    name = data.draw(st.sampled_from(["multiplier", "message"]))
    row["counted"][name] *= data.draw(st.floats(1.1, 3))
    renew(row)


def change_an_audit(content, data):
    audited = [rows for rows in (row_of(content, name)["audits"] for name in CELLS) if rows]
    audits = data.draw(st.sampled_from(audited))
    audit = data.draw(st.sampled_from(audits))
    how = data.draw(st.sampled_from(["drop", "verdict", "detects", "detects_runs"]))
    if how == "drop":
        audits.remove(audit)
    elif how == "verdict":
        audit["verdict"] = None
    else:
        audit[how] = data.draw(st.floats(0, 0.8))


def change_what_a_run_says(content, data):
    row = row_of(content, data.draw(st.sampled_from(list(CELLS))))
    how = data.draw(st.sampled_from(["commit", "run", "diagnostics", "dataset"]))
    if how == "diagnostics":
        row[how].remove(data.draw(st.sampled_from(row[how])))
    elif how == "dataset":
        row[how]["sha256"] = data.draw(st.sampled_from([None, "0" * 64]))
    else:
        row[how] += data.draw(st.sampled_from(["0", "-dirty"]))


def drop_or_repeat_a_row(content, data):
    number = data.draw(st.integers(0, len(CELLS) - 1))
    row = content["rows"].pop(number)
    if data.draw(st.booleans()):
        other = data.draw(st.integers(0, len(CELLS) - 2))
        content["rows"].append(copy.deepcopy(content["rows"][other]))
    assert row not in content["rows"]


FORGED = [
    *(drop_departures, drop_a_search, shorten_a_search, swap_adjacencies, relabel),
    *(rename_the_method, promise_less_noise, change_the_counted, change_an_audit),
    *(change_what_a_run_says, drop_or_repeat_a_row),
]
CONSISTENT = (drop_departures, drop_a_search, shorten_a_search, promise_less_noise)


@planted_edits(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_claim_that_the_results_contradict_is_rejected_with_them(results, forge: Callable, data):
    content = content_of(results)
    forge(content, data)
    file = planted(content, results, renewed=True)
    if forge in CONSISTENT:
        assert not is_rejected(file), "the file alone cannot tell"
    assert is_rejected(file, results)


# What cannot be checked


def test_without_its_evidence_a_row_is_not_checkable_and_says_what_is_missing(results, tmp_path):
    (tmp_path / "tables").mkdir()
    table = results / "tables" / "tiny.csv"
    (tmp_path / "tables" / "tiny.csv").write_bytes(table.read_bytes())
    found = verify.findings(file_of(results), tmp_path, tmp_path)
    rows = [one for one in found if one.part in {one.id for one in CELLS.values()}]
    assert {one.verdict for one in rows} == {verify.NOT_CHECKABLE}
    assert all("plans" in one.why and "run.json" in one.why for one in rows)
    assert (
        verify.Finding(
            "data set digits", verify.NOT_CHECKABLE, f"there is no {tmp_path}/digits.pin"
        )
        in found
    )


def test_code_that_differs_from_the_installed_is_not_checkable(results):
    content = content_of(results)
    for row in content["rows"]:
        row["code"] = "0" * 10
    found = verdicts(planted(content, results, renewed=True), results)
    assert found["code of appfl"] == verify.NOT_CHECKABLE
    assert found["laplace"] == verify.VERIFIED


def test_a_deviating_run_refutes_its_row(results, tmp_path):
    record = results / "runs" / registry.run_id(CELLS["laplace"]) / "run.json"
    before = record.read_bytes()
    content = read_json(record)
    content["released"]["releases"] += 1
    try:
        write_json(record, content)
        found = verdicts(file_of(results), results)
        with pytest.raises(DataError, match="rounds with a release"):
            certificate.write(study(), results, tmp_path)
    finally:
        record.write_bytes(before)
    assert [name for name in found if found[name] == verify.REFUTED] == ["laplace"]


def test_rows_that_were_dealt_have_no_epsilon_with_a_search(results):
    """Whatever the number: the clients of the search were others."""
    content = content_of(results)
    row = row_of(content, "found by a search")
    assert row["search"]["epsilon_with_search"] > row["epsilons"]["central"]
    row["settings"]["partition"]["kind"] = "iid"
    claimed = recomputed.expected(row)[0]["search.epsilon_with_search"]
    assert claimed is None


def test_a_search_of_an_earlier_version_is_refused(results):
    file = results / "searches" / "tiny.json"
    before = file.read_bytes()
    content = read_json(file)
    del content["lines"][0]["rows"]
    try:
        write_json(file, content)
        with pytest.raises(DataError, match="earlier version"):
            certificate.searches("tiny", results)
    finally:
        file.write_bytes(before)


# The commands


def run(monkeypatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["pflpipe", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def test_the_exit_code_is_0_1_or_2(results, monkeypatch, capsys):
    true, content = file_of(results), content_of(results)
    assert run(monkeypatch, "verify", true) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{CELLS['adaptive'].id}: verified" in lines
    assert any(line.startswith(f"{CELLS['sizes count'].id}: not checkable: ") for line in lines)
    row_of(content, "laplace")["epsilons"]["central"] /= 2
    assert run(monkeypatch, "verify", planted(content, results, renewed=True)) == 1
    output = capsys.readouterr()
    assert f"{CELLS['laplace'].id}: refuted: epsilons.central is" in output.out
    assert output.err.startswith("error: ")
    for text in ("{", "[]", '{"format": "pflpipe-certificate-2"}', "[" * 100_000):
        (results.parent / "other.json").write_text(text)
        assert run(monkeypatch, "verify", results.parent / "other.json") == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert run(monkeypatch, "verify", results.parent / "gone.json") == 2
