"""The site that ``make docs`` builds: complete, by itself, and readable."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from blocks import ROOT

import malformed
import once
import pflpipe
from browser import WIDTHS, Browser, beyond, chromium, cut, opened

pytestmark = pytest.mark.docs
STRICT = (sys.executable, "-m", "mkdocs", "build", "--strict")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all processes."""

    def make(folder: Path) -> None:
        command = [*STRICT, "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return once.folder(tmp_path_factory, "site", make)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_no_page_needs_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    fetched = (
        r'<(?:script|img|iframe)[^>]* src="?([^" >]+)|<link[^>]* href="?([^" >]+)|url\(([^)]+)\)'
    )
    elsewhere = {
        (page.name, address)
        for page in (*pages, *site.rglob("*.css"))
        for found in re.findall(fetched, page.read_text(encoding="utf-8"))
        for address in found
        if re.match(r"[\"']?(https?:)?//", address)
    }
    assert elsewhere == set()


def test_a_broken_link_or_anchor_a_lost_file_and_a_page_outside_the_menu_stop_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    links = "[a](lost.md) [b](#lost-anchor) [c](../LICENSE) [d](../lost_file.py)"
    (docs / "index.md").write_text(f"# Title\n\n{links}\n")
    (docs / "outside_the_menu.md").write_text("# Title\n")
    settings = {"INHERIT": f"{ROOT}/mkdocs.yml", "hooks": [f"{ROOT}/docs/outside.py"]}
    malformed.write(tmp_path / "mkdocs.yml", settings | {"plugins": [], "nav": ["index.md"]})
    done = subprocess.run(STRICT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = re.split(r"^(?=[A-Z]+ +- )", done.stderr, flags=re.MULTILINE)
    warnings = "".join(message for message in said if message.startswith("WARNING"))
    for words in ("'lost.md'", "'#lost-anchor'", "'../lost_file.py'", "- outside_the_menu.md"):
        assert words in warnings, words
    assert "LICENSE" not in done.stderr


def test_the_page_about_python_has_every_public_name():
    named = re.findall(r"^::: pflpipe\.(\w+)$", (ROOT / "docs/reference/api.md").read_text(), re.M)
    assert sorted(named) == sorted(set(pflpipe.__all__) - {"__version__"})


def test_opened_as_files_its_search_finds_no_page_is_too_wide_and_no_table_is_cut_on_a_desk(
    site, browser
):
    pages = set(site.rglob("*.html")) - {site / "404.html"}  # for a server, whose root it names
    wide = {}
    phone, desk = WIDTHS
    with opened(browser, site / "index.html", phone) as (page, heard):
        for file in sorted(pages):
            page.set_viewport_size({"width": phone, "height": 900})
            page.goto(file.as_uri(), wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth") > phone:
                wide[file.name] = ["the page"]
            page.set_viewport_size({"width": desk, "height": 900})
            wide.setdefault(file.name, []).extend(cut(page, ".md-typeset__scrollwrap"))
        page.goto((site / "index.html").as_uri())
        page.locator(".md-search__input").fill("worst tenth")
        page.locator(".md-search-result__item").first.wait_for(timeout=120_000)
    assert {name: boxes for name, boxes in wide.items() if boxes} == {}
    assert heard.errors == []
    assert heard.requests == []


def test_a_click_on_a_head_sorts_a_table_by_its_numbers_and_a_second_one_reverses_it(site, browser):
    file = site / "results/people_spi.html"
    with opened(browser, file, 1280) as (page, heard):
        table = page.locator("table", has=page.locator("th", has_text="to released")).first
        head = table.locator("th", has_text="to released")
        place = 1 + head.evaluate("(node) => node.cellIndex")
        cells = table.locator(f"tbody td:nth-child({place})")
        before = cells.all_inner_texts()
        orders = []
        for _ in range(2):
            head.click()
            texts = cells.all_inner_texts()
            assert sorted(texts) == sorted(before)
            filled = [text for text in texts if text != "–"]
            assert texts == [*filled, *["–"] * texts.count("–")]
            orders.append([float(text.split()[0]) for text in filled])
    rising, falling = orders
    assert len(set(rising)) > 5
    assert rising == sorted(rising)
    assert falling == rising[::-1]
    assert heard.errors == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", ["index", "notebook", "results/people_spi", "reference/methods", "reproduction"]
)
def test_what_a_page_shows_is_inside_the_window_or_a_box_that_scrolls(name, width, site, browser):
    with opened(browser, site / f"{name}.html", width) as (page, heard):
        assert beyond(page, ".md-content") == []
        assert heard.errors == []


def test_home_says_how_to_install_and_a_page_of_results_begins_with_its_figure(site, browser):
    with opened(browser, site / "index.html", WIDTHS[1]) as (page, _):
        assert "make install" in page.locator("pre", has_text="make quickstart").inner_text()
        page.goto((site / "results/people_spi.html").as_uri())
        figure = page.locator(".md-content img").first.bounding_box()
        assert figure["y"] < 600
        assert figure["y"] < page.locator(".md-content li").first.bounding_box()["y"]


def test_citations_are_whole_on_a_phone_and_formulas_are_typeset(site, browser):
    with opened(browser, site / "reference/methods.html", WIDTHS[0]) as (page, _):
        assert cut(page, ".language-bibtex code") == []
        formula = page.locator("#ditto ~ ul .formula", has_text="weight").first
        assert formula.inner_text() == "f(v) + weight / 2 |v − wt|22"
        assert formula.locator("sup").count() == 2


def test_the_field_above_a_table_keeps_the_rows_with_all_of_its_words(site, browser):
    file = site / "results/people_spi.html"
    with opened(browser, file, WIDTHS[1]) as (page, _):
        field = page.get_by_label("Filter rows").nth(1)  # of the table of all methods
        rows = page.locator("table", has_text="rank").locator("tbody tr")
        everything = rows.count()
        field.fill("Certified fedrep")
        shown = rows.filter(visible=True).all_inner_texts()
        assert 4 < len(shown) < everything
        assert all("certified" in text and "fedrep" in text for text in shown)
        field.fill("")
        assert rows.filter(visible=True).count() == everything
