"""Every job of a new user, typed into a fresh shell; its page is shown by a real browser.

``python tests/jobs.py WHEEL FOLDER [JOB ...]`` prints a table: job, seconds, screenshots. A job has
two of them in FOLDER, as a phone and a desk show its page, or else what it printed. Jobs run in the
order below and build on one another; the first makes the environment that the others use.
"""

import csv
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from browser import WIDTHS, beyond, chromium, opened
from called import works
from tabled import table

ROOT = Path(__file__).resolve().parents[1]
TABLES = table("jobs")


@dataclass(frozen=True)
class Job:
    """What is typed, and the page of the folder that is looked at, or nothing for what was
    printed."""

    typed: str
    page: str


def people(name: str) -> Callable[[Path], None]:
    """Return a writer of sixty people with twenty rows; answers follow from numbers or words."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        level = np.repeat(rng.normal(size=60), 20)
        values = rng.normal(size=(1200, 5)).round(3)
        score = values @ np.array([1.5, -1, 1, 0.5, -0.5]) + level + rng.normal(size=1200)
        words = np.array(["calm", "pain", "sleep", "tired", "walk", "rest", "eat", "work"])
        said = rng.integers(0, len(words), (1200, 6))
        weight = np.array([-1, 2, -1, 1, -1, 0, 0, 0])[said].sum(axis=1) + level
        given = score.round(3)
        if name != "errors":
            given = np.where((weight if name == "texts" else score) > 0, "high", "low")
        texts = name == "texts"
        names = ["note"] if texts else [f"test_{number}" for number in range(5)]
        rows = [[" ".join(words[one])] for one in said] if texts else values.tolist()
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["person", *names, "answer"])
            for row, (own, answer) in enumerate(zip(rows, given, strict=True)):
                writer.writerow([f"p{row // 20:02}", *own, answer])

    return write


def notebook(folder: Path) -> None:
    """Put the notebook there without the cell that installs the wheel."""
    whole = json.loads((ROOT / "docs/notebook.ipynb").read_text())
    whole["cells"] = [one for one in whole["cells"] if "%pip" not in "".join(one["source"])]
    (folder / "notebook.ipynb").write_text(json.dumps(whole))


def own_method(folder: Path) -> None:
    """Put the example of docs/adding_a_method.md there."""
    for file in (ROOT / "docs/examples").glob("easgd.*"):
        shutil.copy(file, folder / "studies")


def paper(folder: Path) -> None:
    """Put a paper of two columns there."""
    (folder / "paper.tex").write_text(TABLES["PAPER"])


def changed(folder: Path) -> None:
    """Change one thing of a study: its clip norm."""
    file = folder / "studies/classes.yaml"
    text, found = re.subn(r"clip_norm: [\d.]+", "clip_norm: 0.5", file.read_text())
    assert found, f"{file} has no clip_norm"
    file.write_text(text)


JOBS = {
    name: Job(text.replace("{snakemake}", TABLES["SNAKEMAKE"]), page)
    for name, (text, page) in TABLES["JOBS"].items()
}
BEFORE = {name: people(name) for name in ("classes", "errors", "texts")}
BEFORE |= {"change": changed, "paper": paper, "method": own_method, "notebook": notebook}
"""What writes the files that a user has before a job."""


def typed(job: Job, wheel: Path, folder: Path) -> tuple[float, str]:
    """Return the seconds of a job in a fresh shell, and what it printed."""
    variables = {"HOME": str(folder.parent), "LANG": "C.UTF-8", "TERM": "dumb"}
    kept = ("PIP_FIND_LINKS", "PIP_CERT", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "https_proxy")
    variables |= {name: os.environ[name] for name in kept if name in os.environ}
    variables["PATH"] = f"{folder.parent}/venv/bin:{os.environ['PATH']}"
    since = time.perf_counter()
    command = ["bash", "-c", job.typed.replace("{wheel}", str(wheel))]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    seconds = time.perf_counter() - since
    printed = f"$ {job.typed}\n{done.stdout}{done.stderr}"
    if done.returncode:
        sys.exit(f"{printed[-3000:]}\nended with {done.returncode}")
    return seconds, printed


def pictures(name: str, job: Job, printed: str, folder: Path) -> Iterator[str]:
    """Yield the screenshots of a job, and what is wider than its page."""
    page, server = folder / job.page, None
    if not job.page:
        page = folder / f"{name}.txt.html"
        page.write_text(f"<pre style='white-space:pre-wrap'>{html.escape(printed)}</pre>")
    address: str | Path = page
    if job.page == "mlflow":
        variables = os.environ | {"PATH": f"{folder.parent}/venv/bin:{os.environ['PATH']}"}
        server = subprocess.Popen(["bash", "-c", TABLES["MLFLOW"]], cwd=folder, env=variables)
        told = (folder / "results/tracking/classes.done").read_text()
        address = re.findall(r"http\S+", told)[0]
        wait = ("--retry", "300", "--retry-delay", "1", "--retry-connrefused")
        assert works("curl", "--silent", "--fail", *wait, address), f"{address} does not answer"
    try:
        with chromium() as browser:
            for width in WIDTHS:
                with opened(browser, address, width) as (shown, heard):
                    if server is not None:
                        shown.locator(".ag-cell").first.wait_for(state="attached", timeout=120_000)
                    target = folder.parent / f"{name}-{width}.png"
                    shown.screenshot(path=target, full_page=job.page != "mlflow")
                    yield " ".join([target.name, *heard.errors[:1], *beyond(shown)[:1]])
    finally:
        if server is not None:
            server.terminate()
            server.wait()


def main() -> None:
    """Do the jobs that the command line names, all by default, and print the table."""
    wheel, parent, *names = sys.argv[1:]
    folder = Path(parent).resolve() / "work"
    folder.mkdir(parents=True, exist_ok=True)
    print("| job | seconds | screenshots |\n|---|--:|---|")
    for name in names or JOBS:
        job = JOBS[name]
        BEFORE.get(name, lambda _: None)(folder)
        seconds, printed = typed(job, Path(wheel).resolve(), folder)
        shown = "; ".join(pictures(name, job, printed, folder))
        print(f"| {name} | {seconds:.0f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
