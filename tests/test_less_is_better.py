"""Studies whose first metric is an error: what the pages, tables and figures say of them."""

import html
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fake_audits
import fake_results
from pflpipe.errors import ConfigError
from pflpipe.learning.metrics import BUILT_IN
from pflpipe.pipeline import mlflow_runs
from pflpipe.report import (
    answer,
    audit_table,
    compare,
    ledger_page,
    report_page,
    tidy,
    verdict_page,
)
from pflpipe.report.figures import kinds, style
from pflpipe.report.tables import write_study
from pflpipe.study import ranking
from pflpipe.study.study_spec import Drawing

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "workflow/report"


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """A study of an error with a published version, its results and its labels."""
    base = fake_results.BASE
    training = replace(base.training, evaluate_every=1, loss="squared_error")
    base = replace(base, training=training)
    methods = ("local_only", "dp_fedavg", "fedrep", "fedper", "lg_fedavg", "feddpa", "feddpa!")
    study = fake_results.study(base=base, epsilons=(2.0,), methods=methods)
    first = {"mean_squared_error": BUILT_IN["mean_squared_error"]}
    study = replace(study, metrics=first, criterion="mean_squared_error")
    folder = tmp_path_factory.mktemp("errors")
    fake_results.write(study, folder)
    with np.load(folder / "data/digits.npz") as arrays:
        labels = ("train_labels", "test_labels")
        numbers = {name: arrays[name].astype(np.float32) for name in labels}
        np.savez(folder / "data/digits.npz", **{**arrays, **numbers})
    return study, folder


def drawn(errors, kind, frame=None, **options):
    study, folder = errors
    with matplotlib.rc_context(fname=style.SHEET):
        drawing = Drawing(kind, kind, **options)
        return kinds.draw(study, drawing, folder / "results", folder / "data", frame)


def words_of(page):
    return re.sub("<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)


def test_no_page_calls_an_error_an_accuracy_or_a_percentage(errors):
    study, folder = errors
    frame = tidy.stored(study, folder / "results")
    results = folder / "results"
    fake_audits.write(results / "audits")
    write_study(study, results, results / "tables/tiny.csv")
    audit_table.table(results).to_csv(results / "tables/audit.csv", index=False)
    (results / "figures").mkdir()
    Image.new("RGB", (20, 10)).save(results / "figures/audit.png")
    report_page.write([study], results, ROOT, "", REPORTS / "report.html", results / "report.html")
    audited = pd.DataFrame(columns=list(ledger_page.AUDIT))
    ledger = ledger_page.page(frame, audited, REPORTS / "ledger.html")
    texts = [words_of(page) for page in (ledger, (results / "report.html").read_text())]
    for text in (*texts, (results / "tables/tiny.md").read_text()):
        assert not re.search("accurac|percent|points", text, re.IGNORECASE)
    assert "mean squared error (less is better): after the last round" in texts[0]
    assert "on the clients' own test data: mean squared error (less is better)." in texts[1]


def test_the_verdict_of_errors_is_in_percent_of_the_own_constant(errors):
    """Of 80: local_only has about 70, and dp_fedavg, the best private one, 72."""
    study, folder = errors
    frame, results = tidy.stored(study, folder / "results"), folder / "results"
    verdict, beside, who, _, decides = answer.lines(study, frame, results)
    assert "personalization does not pay: learn alone" in verdict
    assert "; in percent of 80, the own constant's error on training rows, −2." in beside
    assert who == "ε = 2: 11 % gain and 89 % lose"
    assert decides == "ε = 2: decided"
    page = verdict_page.text(study, frame, results, REPORTS / "verdict.html", "again")
    said = words_of(html.unescape(page))
    assert "A drop of mean squared error counts from 1 % of the own constant's error on" in said
    assert not re.search("accurac|points", said)


def test_mlflow_says_which_error_its_columns_have(errors):
    note = mlflow_runs.experiment_note(errors[0])
    assert "`personal_own` and the like: mean squared error (less is better)." in note


def test_a_comparison_of_errors_says_what_is_compared_and_refuses_an_accuracy(errors):
    study, folder = errors
    found = list(compare.lines("tiny:fedrep", "tiny:fedper", folder / "results"))
    assert found[3].startswith("personal_own, mean squared error (less is better): A | B |")
    other = tidy.stored(study, folder / "results").assign(hyperparameters="{}")
    tidy.write(other, folder / "results/tables/classes.csv")
    with pytest.raises(ConfigError, match="got 'accuracy, mean squared error'; expected"):
        list(compare.lines("tiny", "classes", folder / "results"))


def test_a_method_far_worse_than_all_others_does_not_press_their_errors_together(errors):
    study, folder = errors
    frame = tidy.stored(study, folder / "results")
    frame.loc[frame["method"] == "fedrep", "personal_own"] += 1000
    figure = drawn(errors, "privacy_utility", frame)
    assert "Arrow: further to the right." in " ".join(figure.get_suptitle().split())
    (axes,) = figure.axes
    (arrow,) = [line for line in axes.lines if line.get_marker() == ">"]
    assert arrow.get_xdata()[0] == axes.get_xlim()[1] < 1000


def test_curves_of_errors_end_above_those_with_a_name(errors):
    study, folder = errors
    far = next(row.run for row in study.rows if row.cell.method == "fedrep")
    file = folder / "results/runs" / far / "rounds.csv"
    table = pd.read_csv(file)
    before = file.read_bytes()
    table.assign(personal_own=1e6).to_csv(file, index=False)
    figure = drawn(errors, "convergence", strong=("dp_fedavg", "feddpa"))
    file.write_bytes(before)
    said = " ".join(figure.get_suptitle().split())
    assert "grey: the other methods (cut off above the scale)" in said
    assert figure.axes[0].get_ylim()[1] < 100


def test_the_partition_figure_of_numbers_has_no_classes(errors):
    (axes,) = drawn(errors, "partition").axes
    assert axes.get_xlabel() == "client, sorted by its examples"
    assert sum(patch.get_height() for patch in axes.patches) == 600


def test_a_ranking_of_errors_names_the_metric_and_shows_the_digits_that_differ(errors):
    study, folder = errors
    few = replace(study, rows=tuple(row for row in study.rows if row.cell.method == "fedrep"))
    lines = [[cell.id, 0, 0.0123 + cell.seed] for cell in few.cells]
    scores = folder / "ranked"
    fake_results.write_csv(scores / "fedrep.csv", "cell,client,personal_validation", lines)
    _, first, last = ranking.lines(few, scores)
    assert first.startswith("  1.0123 ± 1.0000")
    assert "personal_validation over runs: mean squared error (less is better)." in last
