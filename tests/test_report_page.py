"""The report and the ledger: pages that say what came of a study, and that a browser shows whole,
on a phone and on a desk."""

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import browser
import fake_audits
import fake_results
from pflpipe.auditing import cases
from pflpipe.errors import DataError
from pflpipe.report import audit_table, ledger_page, report_page, sentences
from pflpipe.report.tables import write_study
from pflpipe.study.study_spec import Drawing, Row, Study

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "workflow" / "report"
SETTINGS = "--config 'studies=[\"tiny\"]'"
QUESTION = "Who wins & why? <b>Not bold</b>"


@pytest.fixture(scope="module")
def study() -> Study:
    figures = (Drawing("privacy_utility", "privacy_utility"),)
    return replace(fake_results.study(), description=QUESTION, figures=figures)


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with both pages."""
    folder = fake_results.write(study, tmp_path_factory.mktemp("tree"))
    write_study(study, folder, folder / "tables" / "tiny.csv")
    fake_audits.write(folder / "audits")
    drawn = folder / "figures/tiny/privacy_utility.png"
    drawn.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2010, 900), "#dddddd").save(drawn)
    template, target = PAGES / "report.html", folder / "report.html"
    report_page.write([study], folder, ROOT, SETTINGS, template, target)
    table = folder / "tables" / "tiny.csv"
    ledger_page.write([table], folder, PAGES / "ledger.html", folder / "ledger.html")
    return folder


@pytest.fixture(scope="module")
def text(results: Path) -> str:
    return (results / "report.html").read_text()


def part(text: str, name: str) -> str:
    """What stands between a heading and the next one."""
    found = re.search(rf'<h\d id="{name}">.*?</h\d>(.*?)<h\d', text, re.DOTALL)
    assert found, name
    return found[1]


def items(text: str) -> list[str]:
    return [html.unescape(item) for item in re.findall(r"<li>(.*?)</li>", text)]


# ---------------------------------------------------------------- the report


@pytest.mark.slow
def test_the_report_asks_answers_and_shows(text, study, results):
    assert html.escape(QUESTION) in text
    frame = ledger_page.read(results / "tables" / "tiny.csv")
    said = list(sentences.of_study(study, frame))
    assert items(part(text, "verdict-tiny")) == said
    assert len(said) == 7
    assert said[0].startswith("At ε = 2, ")
    assert said[-1] == sentences.SEEDS_ALONE
    nominal = "In this study feddpa (official code), as pflpipe imitates xiyuanyang45/DynamicPFL "
    assert said[-2].startswith(nominal)
    table = part(text, "table-tiny")
    assert table.count("<tr>") == 1 + 8
    assert '<td class="w nominal">2 (nominal; honest ∞ at δ=0.001)</td>' in table
    assert any(note.startswith("Certified ε = 2") for note in items(table))
    assert re.findall(r'width="(\d+)"', part(text, "figures-tiny")) == ["643"]  # 6.7 inches


def test_the_report_says_what_is_true_and_covered_and_how_to_make_it_again(text, study, results):
    frame = ledger_page.read(results / "tables" / "tiny.csv")
    audited = audit_table.table(results, cases.of_rows(study.cells))
    for term, words in ledger_page.summary(frame, audited):
        assert f"<dt>{term}</dt><dd>{words}</dd>" in part(text, "ledger")
    # FedDPA and DP-FedAvg share a release; the official code of FedDPA has one of its own.
    verdicts = re.findall(r'<td class="w (\w+)">\1</td></tr>', part(text, "audit"))
    assert sorted(verdicts) == ["kept", "kept", "refuted", "unsound"]
    assert 'alt="claims against what an audit shows"' in text
    assert any("covered by no ε" in item for item in items(part(text, "not-covered")))
    again = text.partition('<h2 id="again">')[2]
    again = again.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    command = f".venv/bin/snakemake --cores all {SETTINGS} -- {results}/report.html"
    assert html.escape(command) in again
    assert "studies/tiny.yaml, seeds 0, 1, 2. Measured on " in again
    assert re.search(r"torch \d+\.\d+", again)


@pytest.mark.slow
def test_a_panel_of_conditions_has_sentences_of_its_own(study, tmp_path):
    few = [cell for cell in study.cells if cell.method in ("local_only", "dp_fedavg")]
    cells = [
        replace(cell, partition=replace(cell.partition, alpha=alpha))
        for alpha, cell in itertools.product((0.1, 1.0), few)
    ]
    wide = replace(study, rows=tuple(map(Row, cells)))
    folder = fake_results.write(wide, tmp_path)
    write_study(wide, folder, folder / "tables" / "tiny.csv")
    said = list(sentences.of_study(wide, ledger_page.read(folder / "tables" / "tiny.csv")))
    panels = [sentence.partition(": ")[0] for sentence in said[:-1]]
    assert panels == ["α = 0.1"] * 5 + ["α = 1"] * 5


def test_a_report_without_a_figure_of_its_study_is_one_clear_line(study, results, tmp_path):
    more = replace(study, figures=(Drawing("gains", "gains"),))
    with pytest.raises(DataError, match=r"gains.png does not exist"):
        report_page.write([more], results, ROOT, "", PAGES / "report.html", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.chromium() as found:
        yield found


@pytest.mark.docs
@pytest.mark.parametrize("width", browser.WIDTHS)
@pytest.mark.parametrize("name", ["report", "ledger"])
def test_a_page_is_no_wider_than_the_window_and_needs_no_network(name, width, results, chromium):
    with browser.opened(chromium, results / f"{name}.html", width) as (page, heard):
        assert heard == browser.Heard()
        assert browser.beyond(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        sizes = page.evaluate(
            "[...document.querySelectorAll('p, li, dd, td')]"
            ".map((node) => parseFloat(getComputedStyle(node).fontSize))"
        )
        assert min(sizes) >= 13
        for target in page.evaluate(
            "[...document.querySelectorAll('a[href^=\"#\"]')].map((node) => node.hash.slice(1))"
        ):
            assert page.locator(f'[id="{target}"]').count() == 1, target
        # The first column of a table stays where it is while the others are moved.
        box = page.locator(".scroll").first
        before = box.locator("tbody td").first.bounding_box()
        box.evaluate("(node) => node.scrollTo(200, 0)")
        assert box.locator("tbody td").first.bounding_box() == before


@pytest.mark.docs
def test_the_reports_table_sorts_each_of_its_sections_and_is_whole_on_a_desk(results, chromium):
    with browser.opened(chromium, results / "report.html", browser.WIDTHS[1]) as (page, heard):
        assert browser.cut(page, "section .scroll") == []
        table = page.locator("section table").first
        head = table.locator("th", has_text="personal own").first
        place = 1 + head.evaluate("(node) => node.cellIndex")
        bodies = table.locator("tbody").all()
        before = [body.inner_text().split("\n") for body in bodies]
        for sign in (1, -1):
            head.press("Enter")
            for body, lines in zip(bodies, before, strict=True):
                assert sorted(body.inner_text().split("\n")) == sorted(lines)
                texts = body.locator(f"td:nth-child({place})").all_inner_texts()
                numbers = [sign * float(text.split()[0]) for text in texts if text]
                assert numbers == sorted(numbers)
        assert max(map(len, before)) > 1, "a section with something to sort"
        assert heard.errors == []
