"""``pflpipe ui``: the page of a study that trains, as a browser gets it, and no word too early."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import browser
import fake_audits
import fake_results
import malformed
from pflpipe.files import write_json
from pflpipe.pipeline import status, ui
from pflpipe.study import config
from pflpipe.study.load import load_outline

RESULTS = Path("results")
METHODS = ("local_only", "fedavg", "dp_fedavg", "pmtl_ft")


@pytest.fixture(autouse=True)
def study(good: Path) -> None:
    """A study of four methods and six seeds in a folder, all of it trained, tested and audited."""
    malformed.put("methods", [{"name": name} for name in METHODS])(good)
    malformed.put("seeds", [*range(6)])(good)
    malformed.put("looks", [3, 6])(good)
    fake_results.write(load_outline("good").study(), good)
    fake_audits.write(RESULTS / "audits")
    write_json(status.PLANNED, {"studies/good.yaml": ""})


def leave(seeds: int, *methods: str) -> str:
    """Leave the scores of the first seeds of methods; none: no file. Return the page."""
    for method in methods:
        file = RESULTS / "scores" / "good" / f"{method}.csv"
        known = {cell.id for cell in load_outline("good").study().cells if cell.seed < seeds}
        frame = pd.read_csv(file)
        frame[frame["cell"].isin(known)].to_csv(file, index=False)
        if not seeds:
            file.unlink()
    return page()


def page() -> str:
    return ui.page("good", config.load())


def is_read(text: str) -> bool:
    return "No verdict yet" not in text and "personalization" in text


def test_the_verdict_is_read_when_every_method_is_tested_at_a_look_and_audited():
    assert is_read(page())
    text = leave(3, "fedavg")
    assert is_read(text), "the others have their three new seeds already"
    assert "<p>3 seeds." in text
    assert is_read(leave(4, *METHODS)), "fedavg has three seeds in common with the others"
    text = leave(0, "pmtl_ft")
    assert not is_read(text)
    assert "Not tested yet: pmtl_ft." in text
    assert "dp_fedavg" in text.partition("All methods")[2], "what is there is shown"


def test_seeds_between_two_looks_give_no_verdict():
    text = leave(4, *METHODS)
    assert "<p>4 seeds." in text
    assert not is_read(text)


def test_no_word_is_said_before_the_audits_and_nothing_is_shown_of_a_refuted_release():
    audit = RESULTS / "audits/gaussian-local.json"
    audit.unlink()
    text = page()
    assert not is_read(text)
    assert "1 of 2 audits" in text
    write_json(audit, fake_audits.RESULT | {"epsilon_lower": 99})
    text = page()
    assert "the ledger is refuted" in text
    assert "All methods" not in text


def test_nothing_tested_yet_is_a_page_too():
    text = leave(0, *METHODS)
    assert "24 of 24 runs done" in text
    assert "All methods" not in text


@pytest.fixture
def served() -> Iterator[str]:
    """The address that ``pflpipe ui`` prints, with one method that is not trained yet."""
    leave(0, "pmtl_ft")
    for record in (RESULTS / "runs").glob("*pmtl_ft*/run.json"):
        record.unlink()
    # As in a terminal, also where tests run in the background, which ignores Ctrl-C.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "pflpipe", "ui", "good"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "--port", "0"], start_new_session=True, **pipes) as server:
        yield server.stdout.readline().rpartition(" ")[2].strip()
        server.send_signal(signal.SIGINT)
        _, error = server.communicate(timeout=60)
    assert (server.returncode, error) == (130, ""), "Ctrl-C ends it, without a word"


@pytest.mark.slow
@pytest.mark.pipeline
def test_a_study_in_progress_answers_on_this_machine_alone_and_in_a_browser(served):
    assert served.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(served) as answer:
        text = answer.read().decode()
    assert "18 of 24 runs done" in text
    assert 'http-equiv="refresh"' in text, "it asks for itself again"
    assert not is_read(text)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{served}results/mlflow.db")
    with browser.chromium() as chromium:
        for width in browser.WIDTHS:
            with browser.opened(chromium, served, width) as (shown, heard):
                assert browser.beyond(shown) == []
                assert heard.errors == []
                assert {*heard.requests} == {served}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gud", "does not exist in studies/; known: good"),
        ("good --port 70000", "70000"),
        ("good --port BUSY", "in use"),
    ],
)
def test_what_cannot_be_served_is_one_line_with_exit_code_2(words, said, ran):
    with socket.create_server((ui.HOST, 0)) as other:
        words = words.replace("BUSY", str(other.getsockname()[1]))
        error = ran("ui", *words.split(), code=2).err
    assert error.count("\n") == 1
    assert said in error


def test_a_search_that_has_not_chosen_is_said(good):
    search = {"seeds": [9], "validation_fraction": 0.2, "values": {"training.lr": [0.1, 0.5]}}
    malformed.put("search", search)(good)
    assert "searches/good.json" in page()
