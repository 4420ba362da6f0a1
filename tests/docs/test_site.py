"""The site that ``make docs`` builds: complete, by itself, and readable."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT

import pflpipe

pytestmark = pytest.mark.docs
CHROMIUM = shutil.which("chromium")
STRICT = (sys.executable, "-m", "mkdocs", "build", "--strict")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            building = folder.with_name("site-building")
            command = [*STRICT, "--site-dir", str(building)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            building.rename(folder)
    return folder


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


def test_a_broken_link_a_broken_anchor_a_lost_file_and_a_page_outside_the_menu_stop_the_build(
    tmp_path,
):
    docs = tmp_path / "docs"
    docs.mkdir()
    links = "[a](lost.md) [b](#lost-anchor) [c](../LICENSE) [d](../lost_file.py)"
    (docs / "index.md").write_text(f"# Title\n\n{links}\n")
    (docs / "outside_the_menu.md").write_text("# Title\n")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\nplugins: []\nnav: [index.md]\n"
        f"hooks: [{ROOT}/docs/outside.py]\n"
    )
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


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_opened_as_files_its_search_finds_and_no_page_is_wider_than_a_telephone(site):
    from playwright.sync_api import sync_playwright

    told = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.on("console", lambda said: told.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda sent: told.append(sent.url) if sent.url[:4] == "http" else None)
        wide = []
        pages = set(site.rglob("*.html")) - {site / "404.html"}  # for a server, whose root it names
        for file in sorted(pages):
            page.goto(file.as_uri(), wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth") > 400:
                wide.append(str(file.relative_to(site)))
        assert wide == []
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto((site / "index.html").as_uri())
        page.locator(".md-search__input").fill("worst decile")
        page.locator(".md-search-result__item").first.wait_for(timeout=120_000)
        browser.close()
    assert told == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
