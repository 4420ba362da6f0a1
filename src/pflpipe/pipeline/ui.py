"""The verdict page of a study, live while it trains (``pflpipe ui``).

A server of the standard library for this machine alone. Each request reads what jobs have written
(status.py), so that it needs no lock, and Snakemake does not know of it.
"""

import threading
import time
import webbrowser
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd

from pflpipe.auditing import cases
from pflpipe.auditing.verdict import require_kept
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.files import read_json
from pflpipe.pipeline import mlflow_export, run, run_summary, status
from pflpipe.report import tidy, verdict_page
from pflpipe.report.verdict_page import Underway
from pflpipe.study import config
from pflpipe.study.load import finish, load_outline
from pflpipe.study.study_spec import Study

HOST = "127.0.0.1"


def lines(name: str, port: int, settings: config.Config) -> Iterator[str]:
    """Yield where the page of a study is, then serve it until Ctrl-C.

    Args:
        port: 0 for any that is free.

    Raises:
        ConfigError: there is no such study, or the port cannot be had.
    """
    load_outline(name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, kind, text = 404, "plain", "the page is at /"
            if self.path == "/":
                try:
                    code, kind, text = 200, "html", page(name, settings)
                except PflpipeError as error:  # the study's file was edited
                    code, text = 500, f"error: {error}"
            self.send_response(code)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing of a request: the page asks every few seconds."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        got = f"{port} ({getattr(error, 'strerror', None) or error})"
        raise ConfigError("--port", got=got, expected="a free one", do="--port 0") from None
    address = f"http://{HOST}:{server.server_port}/"
    with server:
        yield f"the verdict page of {name}, live: {address}"
        if run_summary.marker(name, settings.results_dir).exists():
            tracked = mlflow_export.address_of(settings.results_dir, settings.tracking_uri)
            yield run_summary.tracking(name, settings.results_dir, tracked)
        yield "Ctrl-C ends it; what trains goes on"
        if run.has_browser():  # some programs end with their window
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
        server.serve_forever()


def page(name: str, settings: config.Config) -> str:
    """Return the page of what is tested so far, which asks for itself again."""
    outline, results, now = load_outline(name), settings.results_dir, time.time()
    since = status.began() or now
    state = status.told(status.read(outline, settings, since), since, now)
    study, frame, is_read = tidy.of_cells(outline.study(), ()), pd.DataFrame(), False
    try:
        whole = finish(outline, results)
        tested = so_far(whole, results)
        names = {case.id for cell in tested.cells for case in cases.of_cell(cell)}
        audits = [results / "audits" / f"{name}.json" for name in sorted(names)]
        done = [file for file in audits if file.exists()]
        require_kept(map(read_json, done))
        if len(done) < len(audits):
            state += f", {len(done)} of {len(audits)} audits"
        study, frame = tested, tidy.tidy(tested, results)
        looks = whole.looks or (len({cell.seed for cell in whole.cells}),)
        is_look = len({cell.seed for cell in study.cells}) in looks
        is_read = is_look and done == audits and study.methods == whole.methods
    except PflpipeError as error:  # no search has chosen, or a job makes an old result again
        state += f"; {error}"
    missing = [method for method in outline.everything.methods if method not in study.methods]
    underway = Underway(state, missing, is_read)
    return verdict_page.text(study, frame, results, run.TEMPLATE, run.again(name), underway)


def so_far(study: Study, results: Path) -> Study:
    """Return the study with the methods that are tested, at the seeds that all of these have: while
    seeds are added, those of the last look."""
    seeds: dict[str, set[int]] = {}
    for method in study.methods:
        file = results / "scores" / study.name / f"{method}.csv"
        known = set(pd.read_csv(file, usecols=["cell"])["cell"]) if file.is_file() else set()
        cells = [cell for cell in study.cells if cell.method == method]
        lacking = {cell.seed for cell in cells if cell.id not in known}
        if whole := {cell.seed for cell in cells} - lacking:
            seeds[method] = whole
    shared = set.intersection(*seeds.values()) if seeds else set()
    fits = (cell for cell in study.cells if cell.method in seeds and cell.seed in shared)
    return tidy.of_cells(study, [cell.id for cell in fits])
