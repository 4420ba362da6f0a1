"""The ledger's page: what is published, what is true and what it costs stand where a reader looks
for them."""

import dataclasses
import html
import math
import re
from pathlib import Path

import pandas as pd
import pytest

import fake_audits
import fake_results
import tabled
import warm
from called import called
from pflpipe.auditing import cases
from pflpipe.errors import DataError
from pflpipe.facts.departures import DEPARTURES
from pflpipe.methods import registry
from pflpipe.report import ledger_page
from pflpipe.report.tables import write_study

TABLES = tabled.table("test_ledger_page")

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "workflow" / "report" / "ledger.html"
METHODS = ("local_only", "fedavg", "dp_fedavg", "feddpa", "feddpa!", "dp_fedsim")
OFFICIAL = registry.departures("feddpa", "paper", True)
AUDITS = pd.DataFrame(TABLES["AUDITS"], columns=list(ledger_page.AUDIT))
AUDITS["departures"] = AUDITS["departures"].replace("official", "+".join(OFFICIAL))


@pytest.fixture(scope="module")
def study():
    return fake_results.study(methods=METHODS)


def text_of(frame: pd.DataFrame, audits: pd.DataFrame = AUDITS) -> str:
    return ledger_page.page(frame, audits, TEMPLATE)


def words_of(text: str, between: str = " ") -> str:
    """The words of a text with tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", between, text)).split())


def marked(text: str) -> list[list[list[tuple[str, str]]]]:
    """The rows of all tables, each a list of (text, class) of its cells."""
    cell = re.compile(r"<t[dh]\b([^>]*)>(.*?)</t[dh]>", re.DOTALL)
    mark = re.compile(r'class="([^"]*)"')

    def cells(row: str) -> list[tuple[str, str]]:
        found = cell.findall(row)
        return [(words_of(words, ""), "".join(mark.findall(inside))) for inside, words in found]

    found = re.findall(r"<table\b.*?</table>", text, re.DOTALL)
    return [list(map(cells, re.findall(r"<tr\b.*?</tr>", one, re.DOTALL))) for one in found]


def tables(text: str) -> list[list[list[str]]]:
    return [[[cell for cell, _ in row] for row in table] for table in marked(text)]


def about(text: str, method: str) -> str:
    """What stands above the rows of a method."""
    return next(row[0] for row in tables(text)[0] if len(row) == 1 and f" {method} " in row[0])


def rows_of(text: str, method: str) -> list[list[str]]:
    """Rows of a method among those that depart as published."""
    found, name = [], ""
    for row in tables(text)[0][1:]:
        if len(row) == 1:
            name = row[0].split(" (")[0].split()[-1]
        elif name == method:
            found.append(row)
    return found


# ---------------------------------------------------------------- in short


@pytest.mark.slow
def test_seven_lines_say_what_holds_what_does_not_and_what_it_costs(frame):
    changed = frame.copy()
    for epsilon, sound in ((2.0, 70.5), (8.0, 81.0)):
        own = (changed["method"] == "feddpa") & (changed["epsilon_target"] == epsilon)
        changed.loc[own & (changed["claim"] == "nominal"), "personal_own"] = 80.0
        changed.loc[own & (changed["claim"] == "certified"), "personal_own"] = sound
    found = list(ledger_page.summary(changed, AUDITS))
    assert len(found) == 7
    said = dict(found)
    assert {term: said[term] for term in TABLES["SUMMARY"]} == TABLES["SUMMARY"]
    written = text_of(changed)
    for term, text in found:
        assert f"<dt>{term}</dt><dd>{text}</dd>" in written


# ---------------------------------------------------------------- published against sound


@pytest.mark.slow
def test_a_method_is_shown_with_what_it_does_as_published_in_words(frame):
    words = about(text_of(frame), "feddpa")
    assert all(DEPARTURES[name] in words for name in OFFICIAL)
    assert words.count("(official code)") == 3
    assert "no ε holds: a client's raw model sets its weight" in about(text_of(frame), "dp_fedsim")


def test_published_and_sound_stand_together_with_what_each_is_worth(frame):
    rows = rows_of(text_of(frame), "feddpa")
    assert [row[:8] for row in rows[:2]] == TABLES["PUBLISHED AND SOUND"]
    assert [row[0] for row in rows] == ["ε = 2, δ = 0.001", "", "ε = 8, δ = 0.001", ""]


def test_the_cost_is_the_mean_difference_of_the_same_seeds(frame):
    changed = frame.query("method == 'feddpa' and epsilon_target == 2.0").copy()
    published, sound = changed["claim"] == "nominal", changed["claim"] == "certified"
    changed.loc[published, ["seed", "personal_own"]] = [[2, 90.0], [0, 80.0], [1, 70.0]]
    changed.loc[sound, ["seed", "personal_own"]] = [[0, 77.0], [1, 69.0], [2, 88.0]]
    row = rows_of(text_of(changed), "feddpa")[1]
    assert row[-2] == "−2.0 ± 1.0"  # 77 - 80, 69 - 70, 88 - 90: -3, -1, -2
    changed.loc[sound, "personal_own"] = [81.0, 71.0, math.nan]
    assert rows_of(text_of(changed), "feddpa")[1][-2] == "+1.0 ± 0.0 (2 of 3)"


def test_what_was_not_run_is_called_so_and_counted_where_it_can_be(frame):
    rows = rows_of(text_of(frame), "dp_fedsim")
    assert rows[0][1:] == ["published: not run", "nominal", "2 (nominal)", "∞", "counted, not run"]
    assert rows[1][1] == "sound: strict"
    assert rows[1][-2:] == ["not run", "not run"]
    alone = rows_of(text_of(frame[frame["claim"] == "nominal"]), "feddpa")
    assert alone[0][1] == "published: paper"
    assert alone[1][1] == "sound: not run"


def test_a_published_run_is_compared_with_the_sound_one_of_the_same_settings(frame):
    base = frame.query("method == 'feddpa' and epsilon_target == 2.0").copy()
    base["personal_own"] = [73.0 if claim == "nominal" else 70.0 for claim in base["claim"]]
    wide = base.assign(clip_norm=3.0, personal_own=50.0)
    costs = [row[-2] for row in rows_of(text_of(pd.concat([base, wide])), "feddpa")[1::2]]
    assert costs == ["−3.0 ± 0.0", "0.0 ± 0.0"]
    # The official code's batches are others, but there is one sound run at this budget only.
    other = base.assign(batch_size=[16 if claim == "nominal" else 0 for claim in base["claim"]])
    assert rows_of(text_of(other), "feddpa")[1][-2] == costs[0]
    # With two of them it belongs to neither.
    both = rows_of(text_of(pd.concat([other, wide[wide["claim"] == "certified"]])), "feddpa")
    assert [row[-2] for row in both if row[1] == "sound: strict"] == ["not run"] * 2


def test_methods_that_depart_in_nothing_have_a_table_of_their_own(frame):
    header, *rows = tables(text_of(frame))[1]
    assert [row[0] for row in rows] == ["dp_fedavg", "dp_fedavg"]
    assert [row[header.index("printed ε")] for row in rows] == ["2", "8"]
    assert all(row[header.index("claim")] == "certified" for row in rows)


def test_every_setting_has_a_part_of_its_own(frame):
    text = text_of(pd.concat([frame, frame.assign(alpha=1.0), frame.assign(study="other")]))
    headings = dict(re.findall(r'<h2 id="([\w-]+)">(.*?)</h2>', text))
    assert re.findall(r'<a href="#([\w-]+)">', text) == list(headings)[2:]
    assert list(headings.values())[3:-1] == TABLES["HEADINGS"]


# ---------------------------------------------------------------- the audit


def test_an_audit_says_which_claim_it_refuted_and_what_it_showed(frame):
    words = about(text_of(frame), "feddpa")
    for sentence in TABLES["SENTENCES"]:
        assert sentence in words
    assert about(text_of(frame), "dp_fedsim").count("release: none") == 2


def test_methods_whose_releases_are_alike_share_the_words_of_their_audit(frame):
    one = frame.query("method == 'dp_fedavg'")
    more = pd.concat([frame, one.assign(method="fedper"), one.assign(method="centaur")])
    audits = pd.concat([AUDITS, AUDITS.iloc[:1].assign(method="fedper")])
    found = re.findall(r"<li><code>([^<]*)</code>: (.*?)</li>", text_of(more, audits))
    assert found == [("dp_fedavg, fedper", TABLES["ALIKE"]), ("centaur", "none")]


def test_an_audit_of_a_release_holds_for_it_however_its_noise_was_calibrated(frame):
    fewer = AUDITS.iloc[[1]].assign(departures="data_size_weights+update_against_global")
    assert "REFUTED" in about(text_of(frame, fewer), "feddpa")
    assert "REFUTED" not in about(text_of(frame, AUDITS.iloc[[0, 3]]), "feddpa")


# ---------------------------------------------------------------- every number


def test_the_full_ledger_has_one_line_for_each_method_variant_profile_and_budget(frame):
    text = text_of(frame)
    header, *rows = tables(text)[-1]
    certified, nominal = ("feddpa", "certified"), ("feddpa", "nominal")
    lines = ("dp_fedavg", "certified"), certified, nominal, ("dp_fedsim", "certified")
    assert [(row[0], row[2]) for row in rows] == [line for line in lines for _ in (2, 8)]
    assert {len(row) for row in rows} == {len(header)}
    first = dict(zip(header, rows[0], strict=True))
    shown = TABLES["FIRST_ROW"]
    assert {name: first[name] for name in shown} == shown


def test_of_the_seeds_the_worst_number_counts(frame):
    changed = frame.query("method == 'dp_fedavg' and epsilon_target == 2.0").copy()
    changed["epsilon_central"] = [2.0, 2.004, 1.0]
    changed["noise_multiplier_effective"] = [9.0, 8.3399, 10.0]
    header, row = tables(text_of(changed))[-1]
    assert row[header.index("ε central")] == "2.01"
    assert row[header.index("σ, central")] == "8.33"


@pytest.mark.parametrize("case", TABLES["the cost of a search"])
def test_the_cost_of_a_search_names_its_runs_or_why_there_is_none(frame, case):
    columns, shown, said = TABLES["the cost of a search"][case].values()
    changed = frame.query("method == 'dp_fedavg'").assign(**columns)
    assert [row[-5] for row in tables(text_of(changed))[-1][1:]] == [shown] * 2
    assert dict(ledger_page.summary(changed, AUDITS))["with the search"] == said


# ---------------------------------------------------------------- promises of the whole page


def test_the_page_says_that_no_epsilon_covers_what_is_measured(frame):
    words, own = (words_of(text_of(one)) for one in (frame, frame.assign(dataset="my_rows")))
    said = "metrics, losses and times: the experimenter's own measurements{}, covered by no ε"
    assert said.format(" on public data") in words
    assert said.format("") in own, "nobody knows whether a user's rows are public"
    assert "hyper-parameters were chosen on validation data; no ε covers that choice" in words


def test_a_nominal_epsilon_never_stands_without_its_mark(frame):
    # A budget that no certified row has, so that its number can only be the nominal one.
    changed = frame.copy()
    changed.loc[changed["claim"] == "nominal", ["epsilon_target", "epsilon_nominal"]] = 3.21
    cells = [cell for table in marked(text_of(changed)) for row in table for cell in row]
    numbers = [(words, mark) for words, mark in cells if "3.21" in words]
    assert len(numbers) >= 4
    for words, mark in numbers:
        is_marked = words == "3.21 (nominal)" and mark == "nominal"
        assert is_marked or words == "ε = 3.21, δ = 0.001", "what the study asked for"


def test_words_of_a_study_are_escaped(frame):
    text = text_of(frame.assign(variant="<b>a & b</b>"))
    assert "<b>a" not in text
    assert "&lt;b&gt;a &amp; b" in text


def test_the_page_is_one_file_that_loads_nothing(frame):
    text = text_of(frame)
    assert re.findall(r"<script[^>]*>", text) == ["<script>"]  # which sorts and filters tables
    assert not re.search(r"<link|<img|https?://|url\(|import|fetch|XMLHttpRequest", text)
    tags = "(table|tr|td|th|tbody|thead|ul|li|div|h2|h3|p)"
    opened, closed = re.findall(f"<{tags}[ >]", text), re.findall(f"</{tags}>", text)
    assert sorted(opened) == sorted(closed)
    assert "nan" not in words_of(text).lower().split()


def test_studies_without_privacy_have_a_page_too(frame):
    text = text_of(frame[frame["claim"] == "none"], AUDITS.iloc[:0])
    assert "No private method was run." in text


def test_a_given_multiplier_is_the_budget(frame):
    given = {"epsilon_target": None, "epsilon_nominal": None, "noise_multiplier": 0.3}
    changed = frame[frame["epsilon_target"] == 2.0].assign(**given)
    rows = rows_of(text_of(changed), "feddpa")
    assert rows[0][:4] == ["σ = 0.3, δ = 0.001", "published: paper", "nominal", "–"]


@pytest.mark.slow
def test_the_script_writes_the_page_of_tables_on_disk(tmp_path):
    study = fake_results.study(methods=("dp_fedavg", "feddpa!"), seeds=(0,))
    results = fake_results.write(study, tmp_path)
    write_study(study, results, tmp_path / "tiny.csv")
    write_study(dataclasses.replace(study, rows=study.rows[:1]), results, tmp_path / "second.csv")
    needed = {one.case.id for one in cases.of_methods(("dp_fedavg", "feddpa"), drawn=False)}
    fake_audits.write(results / "audits", leave_out=cases.cases().keys() - needed)
    script = ROOT / "workflow" / "scripts" / "ledger.py"
    words = ["--tables", "tiny.csv", "second.csv", "--out", "ledger.html", "--results", results]
    called(warm.interpreter(), script, *words, "--template", TEMPLATE, folder=tmp_path)
    text = (tmp_path / "ledger.html").read_text()
    assert "ε ≥ 7.1 shown" in text
    assert 'class="missing">none' not in text, "a release without its audit"
    assert "2 (nominal)" in text
    assert len(tables(text)[-1]) == 1 + 4  # the second table's row is of the same study


def test_a_table_of_another_version_is_one_clear_line(tmp_path):
    (tmp_path / "old.csv").write_text("study,method\nx,feddpa\n")
    with pytest.raises(DataError, match=r"old.csv has other columns.*delete that file"):
        ledger_page.write([tmp_path / "old.csv"], tmp_path, TEMPLATE, tmp_path / "ledger.html")
    assert not (tmp_path / "ledger.html").exists()
