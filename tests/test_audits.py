"""tools/audits/: its files load and are well-formed, and the page is made of the table alone."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import tabled
from pflpipe import Claim

TABLES = tabled.table("test_audits")

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in (ROOT / "tools/audits").glob("[!_]*.py"))
AT_HOME = [n for n in NAMES if not (ROOT / "tools/audits" / "requirements" / f"{n}.txt").is_file()]


@pytest.fixture
def audits(monkeypatch):
    """Imports a module of the folder, as ``make audits`` does."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield lambda name: importlib.import_module(f"audits.{name}" if name else "audits")
    for name in [one for one in sys.modules if one.split(".")[0] == "audits"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", AT_HOME)
def test_a_file_that_needs_no_package_of_its_own_loads_and_states_what_is_claimed(audits, name):
    forms, module = audits(""), audits(name)
    assert all((module.__doc__, module.PROGRAM, module.VERSION, module.AUDITS))
    for one in module.AUDITS:
        assert one.title
        assert one.source
        if isinstance(one, forms.Entry):
            assert isinstance(one.claim, Claim)
            assert callable(one.release) or hasattr(one.release, "step")
            assert one.said
        else:
            assert one.reason


def test_the_page_is_written_from_the_committed_table(audits):
    page = audits("_page")
    table = page.read()
    assert (page.DOCS / page.PAGE).read_text(encoding="utf-8") == page.page(table)
    assert {row["file"] for row in table} == set(NAMES)


def test_a_run_replaces_the_rows_of_its_file_and_leaves_the_others(audits, tmp_path):
    page = audits("_page")
    row = {"program": "P", "version": "1", "mechanism": "a|b", "verdict": "kept", "noise": 1.23456}
    page.renew("two", [row | {"file": "two", "sentence": "old"}], tmp_path)
    page.renew("one", [row | {"file": "one", "sentence": "stays"}], tmp_path)
    page.renew("two", [row | {"file": "two", "sentence": "new"}], tmp_path)
    found = [(row["file"], row["sentence"], row["noise"]) for row in page.read(tmp_path)]
    assert found == [("one", "stays", "1.235"), ("two", "new", "1.235")]
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "Claims: 2; programs: 2. **Kept: 2.**" in text
    assert text.count("- a|b: **kept, ε ") == 2


def test_what_cannot_be_installed_or_loaded_is_a_row_with_the_reason(audits):
    runner = audits("__main__")
    (row,) = runner.rows_of("no_such_program")
    assert row["verdict"] == "not tried"
    assert "no_such_program" in row["sentence"]


def test_refuted_rows_of_the_committed_table_name_the_evidence_that_their_numbers_are(audits):
    table = audits("_page").read()
    assert "seconds" not in table[0], "a table that is made again has the same bytes"
    for row in table:
        if row["verdict"] != "refuted":
            assert row["evidence"] == row["epsilon_is"] == ""
            continue
        claimed, true, lower = (float(row[f"epsilon_{n}"]) for n in ("claimed", "true", "lower"))
        measured = "both" if lower > claimed else "arithmetic" if row["epsilon_is"] else ""
        assert row["evidence"] == ("attack" if true == lower else measured)
        assert true > claimed
        assert row["source"]


def test_the_log_of_reports_has_every_finding_of_the_table_and_no_other(audits):
    page = audits("_page")
    log = (page.DOCS / "disclosure.md").read_text(encoding="utf-8").split("\n### ")[1:]
    logged = {re.search(r"`(\w+)`", part)[1]: re.findall(r"^- (.*)$", part, re.M) for part in log}
    found: dict[str, list[str]] = {}
    for row in page.read():
        if row["verdict"] not in ("refuted", "unsound"):
            continue
        number = f"{page._short(row['epsilon_true'])}, not {page._short(row['epsilon_claimed'])}"
        number = f"{row['epsilon_is']} ".replace("exact ", "") + number
        number = row["verdict"] if row["verdict"] == "unsound" else number.strip()
        place = re.match(r"[^, ]+", row["source"])[0].split("/")[-1]
        found.setdefault(row["file"], []).append(f"**{number}**, `{place}`:")
    short = {name: [one.split(": ")[0] + ":" for one in lines] for name, lines in logged.items()}
    assert short == found


FOUND = TABLES["FOUND"]


def refutation(audits, farther, found):
    """What is said of a claim of ten clients that an audit with these findings refuted."""
    claim = Claim(clients=10, noise_multiplier=1, delta=1e-5)
    words = {"title": "", "release": None, "source": "", "said": ""}
    one = audits("").Entry(claim=claim, farther=farther, **words)
    return audits("__main__").refutation(one, found)


@pytest.mark.parametrize("case", TABLES["REFUTED"])
def test_what_holds_instead_of_a_refuted_claim_is_exact_or_a_lower_bound(audits, case):
    farther, changes, expected = TABLES["REFUTED"][case]
    found = refutation(audits, farther, FOUND | changes)
    for name, value in expected.items():
        about = pytest.approx(value, abs=0.01) if isinstance(value, float) else value
        assert found[name] == about, name
    assert bool(found) == bool(expected)


def test_arithmetic_that_a_measurement_exceeds_is_an_error(audits):
    with pytest.raises(ValueError, match=r"measured at least 7\.36"):
        refutation(audits, 7.0, FOUND)
