"""A method whose code is not the package's own has a claim of its own wherever a claim is read: it
is shown and compared, and never taken for a certified one."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import yaml

import fake_results
import tabled
import tracked
from pflpipe import json_records
from pflpipe.auditing import cases
from pflpipe.cells import Cell, Privacy
from pflpipe.code.dependencies import CLAIMS, Dependency, claim_of
from pflpipe.errors import ConfigError
from pflpipe.files import read_json, write_json
from pflpipe.methods import registry
from pflpipe.pipeline import mlflow_runs, project, released
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import Planned, ledger
from pflpipe.report import (
    cards,
    ledger_page,
    paper_table,
    sentences,
    summary,
    tables,
    tidy,
)
from pflpipe.report.attacks import membership
from pflpipe.report.attacks.results import attacked
from pflpipe.report.figures import kinds as figures
from pflpipe.report.figures import style
from pflpipe.study import figures as drawings
from pflpipe.study.config import Config
from pflpipe.study.load import load_study
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Drawing, PaperLayout, Row, Study
from test_api import OWN, train

ROOT = Path(__file__).resolve().parent.parent
TABLES = tabled.table("test_unreviewed")
FILE = str(ROOT / "docs/examples/easgd.py")
METHODS = ("local_only", "fedavg", "dp_fedavg", "feddpa", "feddpa!", "easgd")
WARNED = TABLES["WARNED"].format(file=FILE)


def from_outside(study: Study) -> Study:
    """The study with the file that ``easgd`` is from."""

    sources = ((cell, FILE if cell.method == "easgd" else "") for cell in study.cells)
    rows = (Row(dataclasses.replace(cell, source=source)) for cell, source in sources)
    return dataclasses.replace(study, rows=tuple(rows))


@pytest.fixture(scope="module")
def study() -> Study:
    """Certified, nominal and open methods, and one from outside that is far better than all."""
    return from_outside(fake_results.study(methods=METHODS))


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fake_results.write(study, tmp_path_factory.mktemp("tree"))
    for cell in outside(study):
        path = folder / "plans" / f"{cell.plan_id}.json"
        plan = read_json(path)
        plan["ledger"]["warnings"] = list(plan_of(cell).ledger.warnings)
        write_json(path, plan)
    scores = folder / "scores" / study.name / "easgd.csv"
    better = pd.read_csv(scores)
    better["personal_own"] += 9
    better.to_csv(scores, index=False)
    tables.write_study(study, folder, folder / "tables" / f"{study.name}.csv")
    return folder


@pytest.fixture(scope="module")
def frame(study: Study, results: Path) -> pd.DataFrame:
    return tidy.stored(study, results)


def outside(study: Study) -> list[Cell]:
    return [cell for cell in study.cells if cell.source]


def without(study: Study, frame: pd.DataFrame) -> tuple[Study, pd.DataFrame]:
    """Study and table without the method."""
    rows = tuple(row for row in study.rows if not row.cell.source)
    others = frame[frame["method"] != "easgd"].reset_index(drop=True)
    return dataclasses.replace(study, rows=rows), others


# ---------------------------------------------------------------- the word


@pytest.mark.parametrize(("asked", "departures", "source", "claim"), TABLES["CLAIMS"])
def test_only_what_would_be_certified_is_unreviewed(asked, departures, source, claim):
    code = (Dependency.of("method", source, ""),) if source else ()
    departures, privacy = tuple(departures), Privacy(**asked)
    assert claim_of(privacy.mechanism, departures, code) == claim
    changes = {"privacy": privacy, "departures": departures, "source": source}
    cell = dataclasses.replace(fake_results.BASE, **changes)
    assert cell.claim == claim
    plan = make_plan(privacy, rounds=4, sample_rate=1.0, clients=5, departures=departures)
    entry = ledger(plan, privacy, departures, code=code)
    assert entry.claim == claim
    assert any(source in text for text in entry.warnings) == bool(source and claim != "none")


def test_its_plan_is_that_of_our_own_and_its_ledger_says_what_its_numbers_stand_on(study):
    for cell in outside(study):
        ours, its = plan_of(dataclasses.replace(cell, source="")), plan_of(cell)
        assert its.plan == ours.plan
        assert (ours.ledger.claim, its.ledger.claim) == ("certified", "unreviewed")
        assert its.ledger.warnings == (WARNED, *ours.ledger.warnings)
        own = {"claim": ours.ledger.claim, "warnings": ours.ledger.warnings}
        assert dataclasses.replace(its.ledger, **own) == ours.ledger, "no number differs"


def test_its_plan_has_a_file_of_its_own_and_the_request_for_it_says_whose_it_is(study):
    cell = outside(study)[0]
    others = [dataclasses.replace(cell, source=source) for source in ("", "another.py")]
    assert len({one.plan_id for one in (cell, *others)}) == 3
    for one in (cell, *others):
        asked = Cell.from_dict(json.loads(project.plan_request(one)))
        assert asked.plan_id == one.plan_id
        assert plan_of(asked) == plan_of(one)


def test_a_run_that_a_method_from_outside_shares_with_ours_finds_its_plan(here):
    """Its training is DP-FedAvg's, whose plan no cell of the study has."""
    (here / "studies").mkdir()
    (here / "studies/mine.py").write_text(TABLES["MINE"])
    asked = yaml.safe_load((ROOT / "docs/examples/easgd.yaml").read_text())
    asked["methods"] = [{"name": "mine.py:mine"}]
    (here / "studies/ours.yaml").write_text(yaml.safe_dump(asked))
    (cell,) = load_study("ours").cells
    run = registry.run_cell(cell)
    assert (cell.claim, run.claim) == ("unreviewed", "certified")
    assert run.plan_id != cell.plan_id
    found = project.Project(Config(studies=("ours",)), ROOT, thorough=False)
    assert [found.cells({"plan": one.plan_id})[0] for one in (run, cell)] == [run, cell]


# ---------------------------------------------------------------- tables


def test_the_table_shows_it_beside_the_others_under_its_own_word(study, results, frame):
    rows = frame[frame["method"] == "easgd"]
    assert set(rows["claim"]) == {"unreviewed"}
    assert set(frame["claim"]) == set(CLAIMS)
    text = (results / "tables" / "tiny.md").read_text().replace("\\_", "_")
    (at_2, at_8) = (line for line in text.splitlines() if line.startswith("| easgd |"))
    assert at_2.startswith("| easgd | unreviewed | 2 | 8")
    assert at_8.startswith("| easgd | unreviewed | 8 | 8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and "| 8 |" in line]
    assert [line.split(" | ")[1] for line in lines][-1] == "unreviewed", "below the certified"
    assert "unreviewed" in (results / "tables" / "tiny.tex").read_text()


def test_the_notes_of_the_table_say_what_the_word_means_and_never_count_it_as_certified(
    study, results, frame
):
    summed = tables.shown(study, frame, results)[0]
    assert sum(note.startswith("Unreviewed: the mechanism is certified") for note in summed.notes)
    assert f"Warning: {WARNED}." in summed.notes
    assert sum(note.startswith("Unreviewed ε = ") for note in summed.notes) == 2
    assert not [n for n in summed.notes if n.startswith("Certified ε") and "easgd" in n]
    others = summary.summarise(*without(study, frame))
    assert not [note for note in others.notes if "nreviewed" in note]


def test_it_takes_no_bold_type_from_a_certified_row_and_has_none_alone(study, frame):
    changed = frame.copy()
    ours = (changed["claim"] == "certified") & (changed["method"] == "feddpa")
    changed.loc[ours, "personal_own"] += 3
    table = summary.summarise(study, changed)
    own = table.header.index("personal own")
    bold = {line[0].text for section in table.sections for line in section if line[own].bold}
    assert "feddpa" in bold
    assert "easgd" not in bold


def test_a_table_in_a_papers_layout_marks_its_name(study, frame):
    layout = PaperLayout(("privacy.epsilon",), "personal_own", {}, "", "studies/tiny.yaml: layout")
    rows = tuple(row for row in study.rows if not row.cell.departures)
    part = frame[frame["departures"].isna()].reset_index(drop=True)
    found = paper_table.table(dataclasses.replace(study, rows=rows), layout, part)
    names = [line[0].text for section in found.sections for line in section]
    assert "easgd [unreviewed]" in names
    assert "dp_fedavg" in names
    assert any(note.startswith("Unreviewed:") for note in found.notes)


# ---------------------------------------------------------------- sentences


def test_no_sentence_about_certified_models_names_it_and_one_more_compares_it(study, frame):
    said = [text.replace("\\_", "_") for text in sentences.of_study(study, frame)]
    assert [text for text in said if "certified" in text and "easgd" in text] == []
    (alone,) = (text for text in said if "easgd (unreviewed)" in text and "alone" in text)
    assert "easgd (unreviewed) is better than learning alone" in alone
    (best,) = (text for text in said if "unreviewed ones included" in text)
    assert "easgd (unreviewed) is the best of the personal models, unreviewed ones included" in best
    before = list(sentences.of_study(*without(study, frame)))
    assert [text for text in said if "unreviewed" not in text] == before, "of the others"


# ---------------------------------------------------------------- Python and the command line


def test_hooks_given_to_python_are_unreviewed_and_named_methods_are_not():
    named, own = (train(method).ledger for method in ("dp_fedavg", OWN))
    assert (named.claim, own.claim) == ("certified", "unreviewed")
    assert own.epsilon_central == named.epsilon_central
    words = "pflpipe's developers have not reviewed the method of your own: "
    assert own.warnings[0].startswith(words)
    assert train(registry.info("local_only").factory(), privacy=None).ledger.claim == "none"


def test_its_card_says_the_word():
    card = cards.card("docs/examples/easgd.py:easgd")
    assert "`profile: strict` and `profile: paper`: **unreviewed**. All that a client sends" in card
    assert "pflpipe's developers have not reviewed this file." in card
    assert "unreviewed" not in cards.card("dp_fedavg")


# ---------------------------------------------------------------- figures


def draw(kind: str, study: Study, results: Path) -> Any:
    with matplotlib.rc_context(fname=style.SHEET):
        return figures.draw(study, Drawing(kind, kind), results, results.parent / "data")


def test_a_figure_gives_it_a_mark_of_its_own_and_says_what_the_mark_means(study, results):
    figure = draw("privacy_utility", study, results)
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    names = dict(zip(axes.get_yticks(), labels, strict=True))
    marks = {names[line.get_ydata()[0]]: line for line in axes.lines if line.get_marker() == "D"}
    ((name, mark),) = marks.items()
    assert name == "Elastic averaging\nunreviewed"
    assert mark.get_color() not in (style.CERTIFIED, style.NOMINAL)
    assert "Diamond: unreviewed" in " ".join(figure.get_suptitle().split())


def test_ranks_and_the_cost_of_soundness_are_of_certified_methods_alone(study, results):
    for kind in ("ranks", "soundness"):
        for axes in draw(kind, study, results).axes:
            assert not any("easgd" in text.get_text() for text in axes.get_yticklabels())
    own = from_outside(fake_results.study(seeds=range(5), methods=("dp_fedavg", "easgd")))
    kinds = [drawing.kind for drawing in drawings.read({}, "studies/tiny.yaml", own.rows)]
    assert "ranks" not in kinds, "one certified method has no rank"


# ---------------------------------------------------------------- MLflow


def test_its_runs_in_mlflow_have_the_word_in_tag_name_and_note(study, results):
    every = tracked.runs_of(study, results)
    found = [one for one in every if one.tags.get("method") == "easgd"]
    assert len(found) == 2 * (1 + 3)
    for entry in found:
        assert entry.tags["claim"] == "unreviewed"
        assert re.fullmatch(r"easgd eps=[28] unreviewed( s\d)?", entry.name)
        assert "unreviewed: this ε holds only if" in entry.tags[mlflow_runs.NOTE]
    others = [one for one in every if one not in found]
    assert not any("unreviewed" in str((one.name, one.tags)) for one in others)


# ---------------------------------------------------------------- the ledger's page


NONE = pd.DataFrame(columns=list(ledger_page.AUDIT))  # audits


def test_the_ledgers_page_counts_it_by_itself_and_colours_the_word(frame):
    said = dict(ledger_page.summary(frame, NONE))
    words = "4 lines certified, 2 unreviewed, 2 nominal, 2 methods without privacy"
    assert words in said["compared"]
    holds = f"holds only if this code keeps the rules: method {FILE}:easgd"
    assert said["unreviewed ε"].startswith(holds)
    assert not any("easgd" in text for term, text in said.items() if term != "unreviewed ε")
    page = ledger_page.page(frame, NONE, ROOT / "workflow/report/ledger.html")
    assert '<td class="w unreviewed">unreviewed</td>' in page
    assert ".unreviewed {" in page


def test_on_the_ledgers_page_a_version_from_outside_is_not_called_sound(frame):
    """A method from outside may have a published version, which departs, beside its own."""
    departing = {"claim": "nominal", "profile": "paper", "departures": "no_composition"}
    nominal = frame[frame["method"] == "easgd"].assign(epsilon_nominal=2.0, **departing)
    both = pd.concat([frame, nominal], ignore_index=True)
    page = ledger_page.page(both, NONE, ROOT / "workflow/report/ledger.html")
    assert "without departures: strict" in page
    costs = dict(ledger_page.summary(both, NONE)).get("cost of soundness", "")
    assert "feddpa" in costs
    assert "easgd" not in costs


# ---------------------------------------------------------------- what is published, and attacked


def test_nothing_of_it_is_published_as_certified(study, tmp_path):
    for cell in study.cells:
        assert (released.left_out(cell) == "") == (cell.claim == "certified")
    certified = project.certified(study.cells)
    assert {cell.claim for cell in certified} == {"certified"}
    words = f"unreviewed: pflpipe's developers have not reviewed method {FILE}:easgd"
    assert released.left_out(outside(study)[0]) == words
    alone = dataclasses.replace(study, rows=tuple(Row(cell) for cell in outside(study)))
    with pytest.raises(ConfigError, match="got 'no certified run'"):
        released.write(alone, tmp_path, tmp_path / "published")


def test_its_table_waits_for_the_audits_of_the_mechanism(study):
    (first, *_) = outside(study)
    ours = dataclasses.replace(first, method="dp_fedavg", source="")
    assert cases.of_cell(first) == cases.of_cell(ours) != []


def test_an_attacked_run_of_it_is_held_against_what_its_plan_allows(study, results):
    ours = next(cell for cell in study.cells if cell.claim == "certified")
    plans = [results / "plans" / f"{cell.plan_id}.json" for cell in (outside(study)[0], ours)]
    its, bound = (membership._bound(json_records.load(Planned, plan)) for plan in plans)
    rates = np.array([0.1])
    assert math.isclose(its(rates)[0], bound(rates)[0])


def test_tables_and_figures_of_attacks_have_the_word_with_its_name(study, results):
    labels = [one.setting.label for one in attacked("one_run", study, results)]
    assert labels.count("easgd (unreviewed)") == 2
    assert labels.count("dp_fedavg") == 2
