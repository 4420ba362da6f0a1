"""What docs/mlflow.md says, done in a browser, on results that were moved before."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

import fake_results
import tracked
from browser import chromium
from mlflow_server import answers, free_port, wait
from pflpipe.pipeline import mlflow_export

pytestmark = pytest.mark.docs
PAGE = Path(__file__).resolve().parent.parent / "docs" / "mlflow.md"
FIGURE = PAGE.parent / "images" / "quickstart_privacy_utility.png"


def command() -> tuple[list[str], dict[str, str]]:
    """The page's command that starts MLflow, with this interpreter's MLflow, and its variable."""
    ((start, name, value, words),) = re.findall(
        r"^((\w+)=(\w+) )\.venv/bin/(mlflow ui .*)$", PAGE.read_text(), re.MULTILINE
    )
    assert f"{start}{words}".startswith(mlflow_export.UI)
    return [sys.executable, "-m", *words.split()], {"MLFLOW_DISABLE_TELEMETRY": "true", name: value}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The printed address, of MLflow as the page says, on a study of eight settings in a folder
    that was moved."""
    folder, moved = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("moved")
    training = dataclasses.replace(fake_results.BASE.training, evaluate_every=1)
    base = dataclasses.replace(fake_results.BASE, training=training)
    with tracked.environment():
        world = tracked.World(folder, fake_results.study("digits", base=base, seeds=(0, 1)))
        figures = world.results / "figures" / "digits"
        figures.mkdir(parents=True)
        shutil.copy(FIGURE, figures / "best.png")
        done = world.sync()
        assert done.startswith("done: 16 runs")
    shutil.move(world.results, moved / "results")
    port, log = free_port(), moved / "log"
    words, variables = command()
    with log.open("w") as file:
        how = {"cwd": moved, "env": os.environ | variables, "stdout": file, "stderr": file}
        server = subprocess.Popen([*words, "--port", str(port)], start_new_session=True, **how)
    wait(lambda: answers(f"http://127.0.0.1:{port}/health"), server, log)
    yield done.partition(", page ")[2].replace(":5000/", f":{port}/")
    os.killpg(server.pid, signal.SIGTERM)  # the group of this very process
    server.wait(timeout=60)


@pytest.fixture(scope="module")
def page(uri: str) -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1700, "height": 1000})
        page.set_default_timeout(90_000)
        yield page


def test_the_printed_address_opens_the_settings_best_first_with_claim_and_epsilon(page, uri):
    page.goto(uri)
    row = page.locator(".ag-row", has=page.get_by_text("dp_fedavg eps=8", exact=True)).first
    number = row.get_attribute("row-index")
    cells = page.locator(f".ag-row[row-index='{number}'] .ag-cell")
    page.locator(".ag-cell", has_text="certified").first.wait_for()
    heads = page.locator(".ag-header-cell").all_inner_texts()
    assert {"personal_own", "claim", "epsilon"} <= set(heads)
    texts = cells.all_inner_texts()
    assert {"certified", "8"} <= set(texts), texts
    assert page.get_by_text("9 matching runs").count() == 1, "eight settings and the study"
    shown = page.locator(".ag-cell[col-id*='personal_own']").all_inner_texts()
    numbers = [float(text) for text in shown if text.strip("-– ")]
    assert len(numbers) == 8
    assert numbers == sorted(numbers, reverse=True)
    # MLflow's mode for language models has a list of traces, sessions and prompts.
    assert page.get_by_text("Prompts", exact=True).count() == 0
    assert page.get_by_text("Error loading shared view").count() == 0


def test_settings_are_filtered_and_two_are_compared(page, uri):
    page.goto(uri)
    page.get_by_text("study digits").wait_for()
    for name in ("fedavg eps=inf", "local_only no eps", "dp_fedavg eps=8", "feddpa eps=2"):
        assert page.get_by_text(name, exact=True).count() == 1, name
    (words,) = re.findall(r"^tags.claim = .*$", PAGE.read_text(), re.MULTILINE)
    search = page.get_by_placeholder("metrics.rmse")
    search.fill(words)
    search.press("Enter")
    page.get_by_text("study digits").wait_for(state="detached")
    page.get_by_text("4 matching runs").wait_for()
    for name in ("dp_fedavg eps=8", "feddpa eps=8"):
        row = page.locator(".ag-row", has=page.get_by_text(name, exact=True)).first
        row.locator("input[type=checkbox]").first.click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Comparing 2 Runs from 1 Experiment").wait_for()
    for name in ("dp_fedavg eps=8", "feddpa eps=8"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text("personal_own", exact=True).first.wait_for()


def test_accuracy_by_round_is_a_curve(page, uri):
    page.goto(uri)
    page.get_by_text("dp_fedavg eps=8", exact=True).click()
    page.get_by_role("tab", name="Model metrics").click()
    page.get_by_placeholder("Search metric charts").fill("^by_round/personal_own$")
    curve = page.locator(".js-plotly-plot .scatterlayer path.js-line").first
    curve.wait_for(state="attached")
    # Four rounds: the line has four corners.
    assert len(re.findall(r"[ML]|(?<=\d),", curve.get_attribute("d"))) >= 4


def test_files_of_the_study_are_shown_where_the_folder_is_now(page, uri):
    page.goto("about:blank")  # MLflow remembers the filter of the page that it is on
    page.goto(uri)
    page.get_by_text("study digits").click()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("figures", exact=True).click()
    page.get_by_text("best.png", exact=True).click()
    # MLflow's own pictures are small.
    widths = page.wait_for_function(
        "[...document.images].map(image => image.naturalWidth).find(width => width > 1000)"
    )
    with Image.open(FIGURE) as figure:
        assert widths.json_value() == figure.width
