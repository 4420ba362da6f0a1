"""A certificate says what the results say, and every planted edit is rejected at the level that can
reject it."""

import contextlib
import copy
import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import certificates
import generated
import once
import tabled
from called import called
from certificates import CELLS, cell, file_of
from pflpipe.auditing import cases
from pflpipe.cells import MEANING, Privacy
from pflpipe.checking import recomputed, rules, verify
from pflpipe.code import dependencies, meaning
from pflpipe.errors import DataError, PflpipeError
from pflpipe.facts.departures import DEPARTURES, OF_CALIBRATION
from pflpipe.files import DIGEST, canonical_json, read_json, write_json
from pflpipe.json_records import to_json
from pflpipe.learning import losses
from pflpipe.methods import registry
from pflpipe.pipeline import certificate, evidence, settled
from pflpipe.privacy import accounting
from pflpipe.privacy.plan import Plan
from pflpipe.study.plans import plan_of

TABLES = tabled.table("test_certificate")

pytestmark = pytest.mark.slow
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
HOW = {"deadline": None, "derandomize": True, "suppress_health_check": CHECKS}


OF_DATA = ("sizes count", "public cohorts")
SEARCHED = ("found by a search", "its second seed")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a study with a release of every kind, and true plans; a copy of this process
    of what one process made."""

    def write(folder: Path) -> None:
        folder.mkdir()
        certificates.written(folder)

    made = once.folder(tmp_path_factory, "certificate", write)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("certificate") / "copy") / "results")


@pytest.fixture
def content(results: Path) -> dict[str, Any]:
    return content_of(results)


def content_of(results: Path) -> dict[str, Any]:
    return json.loads(file_of(results).read_text())


def row_of(content: dict[str, Any], kind: str) -> dict[str, Any]:
    return content["rows"][list(CELLS).index(kind)]


def verdicts(file: Path, results: Path | None = None) -> dict[str, str]:
    """Part -> verdict; rows have the names of ``CELLS``."""
    names = {one.id: name for name, one in CELLS.items()}
    if results is None:
        found = settled.findings(file)
    else:
        found = evidence.findings(file, results, results.parent / "data")
    return {names.get(one.part, one.part): one.verdict for one in found}


def planted(content: dict[str, Any], results: Path, *, renewed: bool = True) -> Path:
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


def row_is_rejected(results: Path, content: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a certificate of this row alone is rejected, with its digest renewed."""
    return is_rejected(planted(content | {"rows": [row]}, results))


def put(row: dict[str, Any], place: Sequence[Any], value: Any) -> None:
    generated.at(row, place[:-1])[place[-1]] = value


@contextlib.contextmanager
def in_place_of(file: Path, content: Any) -> Iterator[None]:
    """Let a file of JSON have another content for a while."""
    before = file.read_bytes()
    try:
        write_json(file, content)
        yield
    finally:
        file.write_bytes(before)


# What a certificate says


def test_every_row_that_its_file_determines_is_verified(results):
    found = verdicts(file_of(results))
    assert {name for name in CELLS if found[name] == verify.NOT_CHECKABLE} == set(OF_DATA)
    assert {found[name] for name in CELLS.keys() - set(OF_DATA)} == {verify.VERIFIED}


def test_with_the_results_every_row_is_verified_and_so_are_data_and_code(results):
    found = verdicts(file_of(results), results)
    elsewhere = ("method easgd.py:easgd", "network small_cnn.py:SmallCNN")
    for part in (*elsewhere, "initial weights start.safetensors"):
        assert found.pop(f"code of {part}") == verify.NOT_CHECKABLE
    assert set(found.values()) == {verify.VERIFIED}
    parts = ("code of method feddpa", "code of loss cross_entropy", "code of metric accuracy")
    assert {"data set digits", *parts, *CELLS} <= found.keys()


def test_no_file_that_a_certificate_names_is_run(results, here):
    (here / "easgd.py").write_text("raise SystemExit('run')\n")
    assert verdicts(file_of(results), results)["unreviewed"] == verify.VERIFIED


def test_a_row_says_what_the_claim_rests_on(content):
    row = row_of(content, "found by a search")
    plan = plan_of(CELLS["found by a search"])
    assert row["dataset"] == {"name": "digits", "sha256": certificates.PIN}
    assert (row["adjacency"], row["trust"], row["person"]) == ("zero_out", "central", None)
    assert row["plan"] == to_json(plan.plan)
    assert row["epsilons"]["central"] == plan.ledger.epsilon_central
    said = [(audit["verdict"], audit["detects"]) for audit in row["audits"]]
    assert said == [("kept", 0.99), ("kept", 0.99)]
    assert {"personal_own", "train_seconds", "diverged_round"} <= set(row["diagnostics"])
    assert "epsilon_central" not in row["diagnostics"]
    assert (row["commit"], row["accountant"]["name"]) == ("1234abc", "gdp")
    assert (row["search"]["runs"], row["search"]["plans"][0]["runs"]) == (6, 6)


def test_published_mechanisms_carry_the_audits_of_their_own_release(content):
    (central, local) = row_of(content, "no bound")["audits"]
    assert (central["verdict"], local["verdict"]) == ("refuted", "unsound")
    assert "data_dependent_noise" in central["audit"] or "raw_similarity" in central["audit"]


def test_the_schema_is_a_schema_and_admits_nothing_unknown(content):
    schema = json.loads(verify.SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(content)
    content["rows"][0]["note"] = "trust me"
    assert not validator.is_valid(content)


def both(mechanism: str, rate: float, multiplier: float) -> tuple[Plan, recomputed.Noise]:
    """A plan, and its noise as the second accountant is told of it."""
    plan = Plan(mechanism, 1 if mechanism == "laplace" else 2, 1.0, multiplier, rate, 8, 1e-5, 100)
    return plan, recomputed.Noise(mechanism, multiplier, rate, 8)


@pytest.mark.parametrize("noise", TABLES["the second accountant agrees with the first"])
def test_the_second_accountant_agrees_with_the_first(noise):
    plan, noise = both(*noise)
    close = functools.partial(pytest.approx, rel=verify.TOLERANCE / 10)
    assert recomputed.central((noise,), 1e-5) == close(accounting.epsilon(plan, 1e-5))
    assert recomputed.replace_one(noise, 1e-5) == close(accounting.epsilon_replace_one(plan, 1e-5))
    double = 2 * plan.noise_multiplier
    plans = [plan, dataclasses.replace(plan, noise_multiplier=double), plan]
    runs = noise, noise._replace(multiplier=double), noise
    assert recomputed.central(runs, 1e-5) == close(accounting.composed_epsilon(plans, 1e-5))


# Edits that do not renew the digest


@functools.cache
def true_of_a_row(results: Path, kind: str) -> dict[str, Any]:
    """A certificate of a single row, which is a true one."""
    content = content_of(results)
    assert not row_is_rejected(results, content, row_of(content, kind))
    return json.loads((results.parent / "planted.json").read_text())


@settings(max_examples=100, **HOW)
@given(data=st.data())
def test_an_edit_that_does_not_renew_the_digest_is_rejected(results, data):
    true = true_of_a_row(results, data.draw(st.sampled_from(list(CELLS))))
    content, places = copy.deepcopy(true), list(generated.paths(true["rows"][0]))
    *parents, last = ("rows", 0, *data.draw(st.sampled_from(places)))
    place = generated.at(content, parents)
    value = data.draw(st.none() | st.booleans() | st.floats(0, 9) | st.text(max_size=3))
    if isinstance(place, dict) and data.draw(st.booleans()):
        del place[last]
    else:
        place[last] = value
    assume(repr(content) != repr(true))
    assert is_rejected(planted(content, results, renewed=False))


@settings(max_examples=100, **HOW)
@given(place=st.floats(0, 1), put=st.sampled_from(["", "0", " ", "\n", '"', "é"]))
def test_an_edit_of_a_single_character_is_rejected(results, place, put):
    file = planted(true_of_a_row(results, "adaptive"), results)
    text = file.read_text()
    at = min(int(place * len(text)), len(text) - 1)
    assume(text[at] != put)
    file.write_text(text[:at] + put + text[at + 1 :])
    assert is_rejected(file)


def test_a_key_that_is_given_twice_is_rejected(results, content):
    text, file = file_of(results).read_text(), results.parent / "planted.json"
    twice = text.replace('"claim": "nominal"', '"claim": "certified",\n   "claim": "nominal"', 1)
    file.write_text(twice)
    assert json.loads(twice) == content
    assert is_rejected(file)


# Numbers that contradict the rest of the file, with the digest renewed


def numbers(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of numbers, and of what stands in the place of one."""
    for place in generated.paths(value):
        leaf = generated.at(value, place)
        if leaf == "inf" or leaf is None or isinstance(leaf, int | float):
            yield place


@settings(max_examples=120, **HOW)
@given(data=st.data())
def test_a_number_that_the_rest_contradicts_is_rejected_by_the_file_alone(results, data):
    content = content_of(results)
    kind = data.draw(st.sampled_from(list(CELLS)))
    row = row_of(content, kind)
    parts = [name for name in ("plan", "counted", "epsilons") if row[name]]
    if row["search"] and not row["search"]["search_not_counted"]:
        parts.append("search")
    part = data.draw(st.sampled_from(parts))
    free = {("sets",)} if part == "search" else set()  # only the runs count
    if kind == "sizes count":  # its noise follows from numbers that no certificate has
        free.add(("noise_multiplier",))
    place = data.draw(st.sampled_from([one for one in numbers(row[part]) if one not in free]))
    before = generated.at(row[part], place)
    if isinstance(before, int | float) and before:
        factor = data.draw(st.floats(0.3, 3).filter(lambda value: abs(value - 1) > 1e-3))
        put(row[part], place, before * factor if isinstance(before, float) else before + 1)
    else:
        put(row[part], place, data.draw(st.floats(0.01, 100)))
    assert row_is_rejected(results, content, row), (kind, part, place)


def test_more_buffers_than_the_settings_ask_for_are_rejected_by_the_file_alone(results, content):
    buffers = row_of(content, "buffered")["plan"]["buffers"]
    assert buffers["decays"][0] > 0.3
    for name, idle in (("decays", 0.5), ("scales", 0.0)):  # no epsilon follows from it
        buffers[name].append(idle)
    assert is_rejected(planted(content, results))


# Claims that contradict the results, with the digest renewed and every number recomputed


def renew(row: dict[str, Any]) -> None:
    """Give a row what follows from its settings: the id, the claim and all numbers."""
    row["cell"] = settled.cell_of(row["settings"]).id
    for _ in range(2):  # epsilons follow from what is counted
        for path, value in recomputed.expected(row)[0].items():
            put(row, path.split("."), "inf" if value == math.inf else value)


def drop_departures(row, draw, content):
    dropped = draw(st.sets(st.sampled_from(row["departures"]), min_size=1))
    kept = [name for name in row["departures"] if name not in dropped]
    row["settings"] |= {"departures": kept}
    if not kept:
        del row["settings"]["departures"]
    # Forgers know which audits belong to what is left.
    audits = {audit["audit"]: audit for other in content["rows"] for audit in other["audits"]}
    names = rules.Names.of(json.loads(verify.SCHEMA.read_text()))
    row["audits"] = [copy.deepcopy(audits[name]) for name in rules.audits(row, names)]
    # The noise stays what it was: forgers say that they asked for it.
    ask_for_its_noise(row)
    row["counted"]["rounds"] = row["plan"]["rounds"]
    renew(row)


def ask_for_its_noise(row: dict[str, Any]) -> None:
    """Say in the settings that the noise was given."""
    row["settings"]["privacy"].pop("epsilon", None)
    row["settings"]["privacy"]["noise_multiplier"] = row["plan"]["noise_multiplier"]


def drop_a_search(row, draw, content):
    row["search"] = None


def shorten_a_search(row, draw, content):
    row["search"]["plans"][0]["runs"] = draw(st.integers(1, 5))
    renew(row)


def swap_adjacencies(row, draw, content):
    if draw(st.booleans()):
        row["adjacency"] = draw(st.sampled_from(["replace_one", "add_remove"]))
    else:
        epsilons, before = row["epsilons"], dict(row["epsilons"])
        assume(epsilons["central"] != epsilons["replace_one"])
        epsilons |= {"central": before["replace_one"], "replace_one": before["central"]}


def relabel(row, draw, content):
    others = {"certified", "unreviewed", "nominal", "none"} - {row["claim"]}
    row["claim"] = draw(st.sampled_from(sorted(others)))


def rename_the_method(row, draw, content):
    others = {"dp_fedsim", "ditto", "pfedme"} - {row["settings"]["method"]}
    row["settings"]["method"] = draw(st.sampled_from(sorted(others)))
    renew(row)


def promise_less_noise(row, draw, content):
    row["plan"]["noise_multiplier"] *= draw(st.floats(1.1, 3))
    ask_for_its_noise(row)
    renew(row)


def change_the_counted(row, draw, content):
    row["counted"][draw(st.sampled_from(["multiplier", "message"]))] *= draw(st.floats(1.1, 3))
    renew(row)


def change_an_audit(row, draw, content):
    assume(row["audits"])
    audit = draw(st.sampled_from(row["audits"]))
    how = draw(st.sampled_from(["drop", "verdict", "detects", "detects_runs"]))
    if how == "drop":
        row["audits"].remove(audit)
    else:
        audit[how] = None if how == "verdict" else draw(st.floats(0, 0.8))


def change_what_a_run_says(row, draw, content):
    fields = ["commit", "run", "diagnostics", "dataset"]
    if row["cell"] == CELLS["unreviewed"].id:
        fields.remove("run")  # the id follows from a file that is not run: it is not checkable
    how = draw(st.sampled_from(fields))
    if how == "diagnostics":
        row[how].remove(draw(st.sampled_from(row[how])))
    elif how == "dataset":
        row[how]["sha256"] = draw(st.sampled_from([None, "0" * 64]))
    else:
        row[how] += draw(st.sampled_from(["0", "-dirty"]))


def drop_or_repeat_a_row(row, draw, content):
    content["rows"].remove(row)
    if draw(st.booleans()):
        content["rows"].append(copy.deepcopy(draw(st.sampled_from(content["rows"]))))
    assert row not in content["rows"]


FORGED: dict[Callable, Sequence[str]] = {
    drop_departures: (*OF_DATA, "no bound"),
    drop_a_search: SEARCHED,
    shorten_a_search: SEARCHED,
    promise_less_noise: ("given noise", "no bound"),
    change_the_counted: OF_DATA,
    swap_adjacencies: sorted(CELLS.keys() - {"without privacy"}),
}
"""What forgers do, and the rows with which they do it."""
WITH_ANY = (relabel, rename_the_method, change_an_audit, change_what_a_run_says)
FORGED |= dict.fromkeys((*WITH_ANY, drop_or_repeat_a_row), tuple(CELLS))
CONSISTENT = (drop_departures, drop_a_search, shorten_a_search, promise_less_noise)


@settings(max_examples=15, **HOW)
@given(data=st.data())
@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_claim_that_the_results_contradict_is_rejected_with_them(results, forge: Callable, data):
    content, true = content_of(results), content_of(results)["rows"]
    forge(row_of(content, data.draw(st.sampled_from(FORGED[forge]))), data.draw, content)
    left_out = forge is not drop_or_repeat_a_row
    if left_out:  # the others say nothing of the forged row
        content["rows"] = [row for row in content["rows"] if row not in true]
    file = planted(content, results)
    if forge in CONSISTENT:
        assert not is_rejected(file), "the file alone cannot tell"
    found = evidence.findings(file, results, results.parent / "data")
    refuted = [one.why for one in found if one.verdict == verify.REFUTED]
    assert any(why for why in refuted if not (left_out and "are left out" in why))


# Every field, one at a time, with all digests made right again


EDITED = TABLES["EDITED"]


def with_other(row: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    edited = copy.deepcopy(row)
    put(edited, place, copy.deepcopy(value))
    return edited


def others(value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * factor for factor in (0.75, 1.25)] if value else []
    if isinstance(value, str):
        is_digest = len(value) == 64
        return [value[::-1]] if is_digest else [*TABLES["WORDS"].get(value, []), f"{value}x"]
    return [] if isinstance(value, dict | list) else [1.0, "x"]


def edits(row: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a row with each of its fields changed, removed, and as another row has it."""
    last = len(row["audits"]) - 1
    for place in generated.paths(row):
        # The id follows from the settings; of audits, one stands for all.
        if not place or place == ("cell",) or (place[0] == "audits" and place[1:2] < (last,)):
            continue
        name = ".".join(map(str, place))
        for value in others(generated.at(row, place)):
            yield f"{name}: {value!r}", with_other(row, place, value)
        removed = copy.deepcopy(row)
        del generated.at(removed, place[:-1])[place[-1]]
        yield f"{name}: removed", removed
        with contextlib.suppress(LookupError, TypeError):
            yield f"{name}: swapped", with_other(row, place, generated.at(other, place))


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two rows differ, in the form of ``verify.UNCHECKED``."""
    if isinstance(before, dict) or isinstance(after, dict):
        if path == "search" and None in (before, after):
            yield path
            return
        before, after = ({} if one is None else one for one in (before, after))
        if isinstance(before, dict) and isinstance(after, dict):
            for key in sorted(before.keys() | after.keys()):
                inner = f"{path}.{key}" if path else key
                yield from changes(before.get(key), after.get(key), inner)
            return
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from changes(one, other, f"code.{one['kind']}" if path == "code" else path)
    elif before != after:
        numbers = all(isinstance(one, float) for one in (before, after))
        if not (numbers and math.isclose(before, after, rel_tol=2 * verify.TOLERANCE)):
            yield path


def departs(*names: str) -> Callable[[dict[str, Any], str], bool]:
    return lambda row, _: not set(names).isdisjoint(row["departures"])


def is_of_the_package(row: dict[str, Any], path: str) -> bool:
    return all(part["package"] for part in row["code"] if path.split(".")[1] == part["kind"])


def is_not_counted(row: dict[str, Any], _: str) -> bool:
    return bool(row["search"]) and row["search"]["epsilon_with_search"] is None


ROWS: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "": lambda row, path: (
        path != "settings.privacy.departures" or departs(*OF_CALIBRATION)(row, "")
    ),
    "a word for users": lambda row, _: row["person"] is None,
    "natural": lambda row, _: row["settings"]["partition"]["kind"] == "natural",
    "accountant rdp": lambda row, _: row["settings"]["privacy"].get("accountant") == "rdp",
    "sample_level_calibration": departs("sample_level_calibration"),
    "with departures": lambda row, _: bool(row["departures"]),
    "of the package": is_of_the_package,
    "its wording": is_not_counted,
    "not counted": is_not_counted,
}
"""The rows that are meant by the words in brackets in ``verify.UNCHECKED``."""


def names(listed: str, path: str, row: dict[str, Any]) -> bool:
    """Whether an entry of ``verify.UNCHECKED`` is about a field of a row."""
    name, _, rows = listed.partition(" (")
    return fnmatch.fnmatchcase(path, name) and ROWS[rows.removesuffix(")")](row, name)


def is_listed(path: str, row: dict[str, Any]) -> bool:
    """Whether the list says that a file alone cannot check a field of a row."""
    setting = path.removeprefix("settings.")
    checked = any(f"{setting}.".startswith(f"{name}.") for name in verify.SETTINGS)
    return any(names(one, path, row) for one in verify.UNCHECKED) or (
        setting != path and not checked
    )


def tried(results: Path, kind: str) -> list[tuple[str, dict[str, Any], set[str], bool]]:
    """Return every edit of a row, the row, the fields that it changes, and whether it is
    rejected."""
    content, found = content_of(results), []
    row = row_of(content, kind)
    other = row_of(content, EDITED[EDITED.index(kind) - 1])
    for what, edited in edits(row, other):
        if changed := set(changes(row, edited)):
            with contextlib.suppress(PflpipeError, LookupError, TypeError, AttributeError):
                edited["cell"] = settled.cell_of(edited["settings"]).id
            found.append((what, row, changed, row_is_rejected(results, content, edited)))
    return found


def test_a_field_can_be_edited_if_it_is_listed_and_no_field_is_that_a_file_alone_can_check(results):
    found = [(kind, *one) for kind in EDITED for one in tried(results, kind)]
    accepted = [one for *one, is_rejected in found if not is_rejected]
    unlisted = {
        (kind, what)
        for kind, what, row, changed in accepted
        if not all(is_listed(path, row) for path in changed)
    }
    assert unlisted == set()
    alone = [(row, *changed) for _, _, row, changed in accepted if len(changed) == 1]
    needed = {one for one in verify.UNCHECKED for row, path in alone if names(one, path, row)}
    assert needed == set(verify.UNCHECKED)


def test_what_concerns_all_rows_is_listed_if_it_can_be_edited(results, content):
    for name, value in content.items():
        other = f"{value}x" if name != "rows" else value[1:]
        without = {key: kept for key, kept in content.items() if key != name}
        listed = "rows that are left out" if name == "rows" else name
        file = planted(without | {name: other}, results, renewed=name != DIGEST)
        assert is_rejected(file) != (listed in verify.OF_FILES), name
        assert is_rejected(planted(without, results, renewed=name != DIGEST)), name


def test_rows_that_say_different_things_of_one_audit_are_rejected(results, content):
    row_of(content, "adaptive")["audits"][0]["epsilon_lower"] *= 0.9
    assert is_rejected(planted(content, results))


# What the issue planted


def invent_a_method(row):
    row["settings"]["method"] = "my_magic"
    for part in row["code"]:
        part["name"] = "my_magic" if part["kind"] == "method" else part["name"]


NOT_RUN = {"verdict": None, "epsilon_lower": None}
PLANTED = {
    "no audits": lambda row: row["audits"].clear(),
    "an audit is contradicted": lambda row: row["audits"][0].update(epsilon_lower=99.0),
    "an audit was not run but has its power": lambda row: row["audits"][0].update(NOT_RUN),
    "an audit is of this plan": lambda row: row["audits"][0].update(this_plan=True),
    "a method is invented": invent_a_method,
    "the loss is deleted": lambda row: row["settings"]["training"].pop("loss"),
}


@pytest.mark.parametrize("forge", PLANTED.values(), ids=PLANTED)
def test_a_planted_contradiction_is_rejected_by_the_file_alone(results, content, forge):
    row = row_of(content, "given noise")
    assert row["settings"]["training"]["loss"] == "binary"
    forge(row)
    row["cell"] = settled.cell_of(row["settings"]).id
    assert row_is_rejected(results, content, row)


@pytest.mark.parametrize("kind", ["groups", "no bound", "own network", "dealt"])
def test_a_warning_that_follows_from_the_settings_cannot_be_left_out(results, content, kind):
    assert row_is_rejected(results, content, row_of(content, kind) | {"warnings": []})


def test_audits_that_were_not_run_leave_a_row_uncheckable(results, content):
    row = row_of(content, "laplace")
    row["audits"] = [dict.fromkeys(row["audits"][0]) | {"audit": "laplace-central"}]
    file = planted(content | {"rows": [row]}, results)
    assert verdicts(file) == {"laplace": verify.NOT_CHECKABLE}


def test_an_audit_says_which_plan_it_is_of(content):
    row = row_of(content, "given noise")
    for audit in row["audits"]:
        assert (audit["this_plan"], audit["plan"]["rounds"]) == (False, 30)
        assert audit["epsilon_lower"] < audit["epsilon_claimed"]
    assert row["audits"][0]["epsilon_claimed"] == pytest.approx(8.0)
    assert row["audits"][0]["epsilon_lower"] > row["epsilons"]["central"]


def test_warnings_unit_and_person_are_those_of_the_ledger(content):
    for kind, one in CELLS.items():
        of_data = certificates.OF_THE_DATA if kind == "all users" else {}
        ledger = plan_of(one, certificates.SIZES, **of_data).ledger
        row = row_of(content, kind)
        assert (row["unit"], row["warnings"]) == (ledger.unit, list(ledger.warnings))
    dealt = row_of(content, "dealt")
    assert (dealt["unit"], dealt["person"]["max_clients_per_user"]) == ("dealt client", 3)
    assert dealt["person"]["epsilon"] > 2 * dealt["epsilons"]["central"]
    assert row_of(content, "all users")["unit"] == "patient"
    assert row_of(content, "all users")["person"] is None


def test_a_row_lists_its_code(content):
    kinds = ["method", "loss", "network", "transform", "initial weights", "data", "features"]
    code = row_of(content, "all users")["code"]
    assert [part["kind"] for part in code] == [*kinds, "metric"]
    assert [part["package"] for part in code] == [True] * 4 + [False] + [True] * 3
    (network,) = (part for part in row_of(content, "own network")["code"] if not part["package"])
    digest = meaning.sha256(certificates.EXAMPLES / "small_cnn.py")
    assert (network["name"], network["sha256"]) == ("small_cnn.py:SmallCNN", digest)
    assert row_of(content, "own network")["claim"] == "unreviewed"


def test_a_file_of_code_that_was_edited_is_noticed_beside_the_results(results, here):
    shutil.copy(certificates.EXAMPLES / "small_cnn.py", here)
    part = "code of network small_cnn.py:SmallCNN"
    assert verdicts(file_of(results), results)[part] == verify.VERIFIED
    with (here / "small_cnn.py").open("a") as file:
        file.write("SCALE = 2\n")
    assert verdicts(file_of(results), results)[part] == verify.REFUTED


def test_a_run_with_other_code_refutes_its_row(results):
    record = results / "runs" / registry.run_id(CELLS["own network"]) / "run.json"
    content = read_json(record)
    content["code"][0]["sha256"] = "0" * 64
    with in_place_of(record, content):
        found = verdicts(file_of(results), results)
    assert [name for name in found if found[name] == verify.REFUTED] == ["own network"]


def test_the_lists_of_the_schema_and_of_the_checker_are_those_of_the_package():
    lists = json.loads(verify.SCHEMA.read_text())
    names = rules.Names.of(lists)
    private = {name for name in registry.NAMES if registry.info(name).about.private}
    assert names.certified == private
    assert names.others == set(registry.NAMES) - private
    subjects = cases.subjects()
    assert names.scaled == {one.case.scaled_by for one in subjects} - {""}
    published = {(one.method, one.case.id) for one in subjects if one.case.departures}
    listed = {(name, case) for name, audits in names.published.items() for case in audits}
    assert listed == published
    assert names.measured == certificate.MEASURED
    assert set(lists["$defs"]["departures"]["items"]["enum"]) == set(DEPARTURES)
    row = lists["properties"]["rows"]["items"]["properties"]
    # Settings of another meaning need another format.
    assert row["settings"]["properties"]["streams"]["const"] == MEANING
    assert row["code"]["items"]["properties"]["kind"]["enum"] == list(dependencies.TOUCHES)
    assert rules.TOUCHES == dependencies.TOUCHES
    assert {name: losses.find(name).metric for name in rules.FIRST} == rules.FIRST
    assert verify.SCHEMA.name.startswith(f"{verify.FORMAT.removeprefix('pflpipe-')}.")
    assert {f"privacy.{field.name}" for field in dataclasses.fields(Privacy)} < set(verify.SETTINGS)


def test_the_audits_of_a_release_are_written_down_a_second_time():
    names = rules.Names.of(json.loads(verify.SCHEMA.read_text()))
    methods = [cell(name) for name in sorted(names.certified)]
    papers = [cell(name, "paper") for name in sorted(names.certified)]
    drawn = [cell("fedpac", sample_rate=0.5), cell(clip_quantile=0.5, sample_rate=0.5)]
    for one in (*CELLS.values(), *methods, *papers, *drawn):
        row = {"settings": one.identity}
        assert rules.audits(row, names) == [case.id for case in cases.of_release(one)]


@pytest.mark.parametrize("noise", TABLES["the second accountant counts groups as the first does"])
def test_the_second_accountant_counts_groups_as_the_first_does(noise):
    plan, noise = both(*noise)
    for size in (1, 3):
        first = accounting.epsilon_of_group(plan, 1e-5, size)
        assert recomputed.of_group(noise, 1e-5, size) == pytest.approx(first, rel=1e-6)
    again = recomputed.replace_one(noise, 1e-5)
    assert again == pytest.approx(accounting.epsilon_replace_one(plan, 1e-5), rel=1e-6)


def test_the_checker_of_a_file_imports_nothing_else_of_the_package(results, content):
    rows = [row_of(content, "found by a search"), row_of(content, "own network")]
    file = planted(content | {"rows": rows}, results)
    checker = [f"pflpipe.checking{name}" for name in ("", ".recomputed", ".rules", ".verify")]
    said = called(sys.executable, "-c", TABLES["CHECKER"], file).stdout.splitlines()
    assert said == ["verified 2", "", " ".join(["pflpipe._version", *checker])]


# What cannot be checked


def test_without_its_evidence_a_row_is_not_checkable_and_says_what_is_missing(results, tmp_path):
    (tmp_path / "tables").mkdir()
    shutil.copy(results / "tables" / "tiny.csv", tmp_path / "tables")
    found = evidence.findings(file_of(results), tmp_path, tmp_path)
    rows = [one for one in found if one.part in {one.id for one in CELLS.values()}]
    assert {one.verdict for one in rows} == {verify.NOT_CHECKABLE}
    assert all("plans" in one.why and "run.json" in one.why for one in rows)
    why = f"there is no {tmp_path}/digits.pin"
    assert verify.Finding("data set digits", verify.NOT_CHECKABLE, why) in found


def test_code_that_differs_from_the_installed_is_not_checkable(results, content):
    for part in itertools.chain(*(row["code"] for row in content["rows"])):
        part["sha256"] = "0" * 64 if part["name"] == "appfl" else part["sha256"]
    found = verdicts(planted(content, results), results)
    assert found["code of method appfl"] == verify.NOT_CHECKABLE
    assert found["laplace"] == verify.VERIFIED


def test_a_deviating_run_refutes_its_row(results, tmp_path):
    record = results / "runs" / registry.run_id(CELLS["laplace"]) / "run.json"
    content = read_json(record)
    content["released"]["releases"] += 1
    with in_place_of(record, content):
        found = verdicts(file_of(results), results)
        with pytest.raises(DataError, match="rounds with a release"):
            certificate.write(certificates.study(), results, tmp_path)
    assert [name for name in found if found[name] == verify.REFUTED] == ["laplace"]


def test_rows_that_were_dealt_have_no_epsilon_with_a_search(content):
    """Whatever the number: the clients of the search were others."""
    row = row_of(content, "found by a search")
    assert row["search"]["epsilon_with_search"] > row["epsilons"]["central"]
    row["settings"]["partition"]["kind"] = "iid"
    assert recomputed.expected(row)[0]["search.epsilon_with_search"] is None


def test_a_search_of_an_earlier_version_is_refused(results):
    file = results / "searches" / "tiny.json"
    content = read_json(file)
    del content["lines"][0]["rows"]
    with in_place_of(file, content), pytest.raises(DataError, match="earlier version"):
        certificate.searches("tiny", results)


# The commands


def test_the_exit_code_is_0_1_or_2(results, content, ran):
    lines = ran("verify", file_of(results)).out.splitlines()
    assert f"{CELLS['adaptive'].id}: verified" in lines
    assert any(line.startswith(f"{CELLS['sizes count'].id}: not checkable: ") for line in lines)
    row_of(content, "laplace")["epsilons"]["central"] /= 2
    output = ran("verify", planted(content, results), code=1)
    assert f"{CELLS['laplace'].id}: refuted: epsilons.central is" in output.out
    assert output.err.startswith("error: ")
    other = results.parent / "other.json"
    for text in ("{", "[]", '{"format": "pflpipe-certificate-1"}', "[" * 100_000):
        other.write_text(text)
        assert len(ran("verify", other, code=2).err.splitlines()) == 1
    ran("verify", results.parent / "gone.json", code=2)
