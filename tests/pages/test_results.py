"""docs/results.md and the pages of studies: made of docs/results/ alone, and no word that their
intervals do not support."""

import dataclasses
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import synthetic

import fake_results
import tabled
from pages import archive, one_study, publish, results, wording
from pages import panel as one_panel
from pages import shown as shown_on_the_site
from pages.gains import cost, gains
from pages.panel import panels
from pages.publish import finished_part
from pflpipe.data.split import Split
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import read_json, write_json
from pflpipe.report import sentences
from pflpipe.report.statistics import Difference
from pflpipe.report.tidy import tidy
from pflpipe.report.tidy import write as write_tidy
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Row, Study

TABLES = tabled.table("test_results")
NEW = 4
METHODS = ("local_only", "fedavg", "dp_fedavg", "fedper", "feddpa", "feddpa!")
LEVELS = {"local_only": 40, "fedavg": 90, "dp_fedavg": 60, "fedper": 61, "feddpa": 75}
"""Right answers of a hundred; FedPer and DP-FedAvg are one, and only one, apart."""
WORDS = re.compile(
    r"\b(best|better|worse|pays|wins?|beats?|outperforms?|superior|significant\w*)\b"
)


def made(
    folder: Path,
    methods: tuple[str, ...] = METHODS,
    batch_size: int = fake_results.BASE.training.batch_size,
) -> tuple[Study, Path]:
    """A finished study of twelve clients and four new ones, whose scores are counts of right
    answers, with evaluations after two and four rounds."""
    base = fake_results.BASE
    partition = dataclasses.replace(base.partition, new_clients=NEW)
    training = dataclasses.replace(base.training, evaluate_every=2, batch_size=batch_size)
    base = dataclasses.replace(base, partition=partition, training=training)
    study = fake_results.study(seeds=range(5), methods=methods, base=base)
    written = fake_results.write(study, folder)
    lines: dict[str, list[list[object]]] = {}
    for cell in study.cells:
        _DEALT.save(written / "partitions" / f"{cell.partition_id}.npz")
        sizes = map(len, (*_DEALT.test, *_DEALT.new.test))
        luck = np.random.default_rng(cell.seed).normal(scale=9)
        own = np.random.default_rng([cell.seed, *cell.id.encode()]).normal(scale=2)
        for client, size in enumerate(sizes):
            level = LEVELS[cell.method] + (cell.privacy.epsilon or 0) + luck + own + client % 3
            right = 100 * min(size, max(0, round(size * level / 100))) / size if size else ""
            if client < 12:
                row = [cell.id, client, 30, right, "", "", 50, "", 50, "", ""]
            else:
                row = [cell.id, f"new{client - 12}", 30, *[""] * 6, right, 50]
            lines.setdefault(cell.method, []).append(row)
    header = ",".join(fake_results.SCORES)
    for method, rows in lines.items():
        fake_results.write_csv(written / "scores" / "tiny" / f"{method}.csv", header, rows)
    write_tidy(tidy(study, written), written / "tables" / "tiny.csv")
    return study, written


def _dealt() -> Split:
    """Client i trains on 3 + i examples of 1 + i % 3 classes (row r has class r % 10); the last one
    has no test rows."""
    rows = [np.arange(3 + client) for client in range(12 + NEW)]
    train = [10 * own + own % (1 + client % 3) for client, own in enumerate(rows)]
    test, nothing = np.arange(100, 300), np.arange(0)
    new = Split(train[12:], [nothing] * NEW, [test] * NEW, np.arange(50), True)
    return Split(train[:12], [nothing] * 12, [test] * 11 + [nothing], np.arange(50), True, new)


_DEALT = _dealt()


def export(study: Study, written: Path, docs: Path, measured: str = "Measured here.") -> Path:
    target = docs / "results" / "tiny"
    told = {cell.id: measured for cell in study.cells}
    archive.export(study, written, written.parent / "data", target, told, "<!-- runs x -->")
    return target


def tiny(docs: Path) -> Path:
    """Write all pages, and return that of the study."""
    assert docs / "results" / "tiny.md" in results.write(docs)
    return docs / "results" / "tiny.md"


def summary(docs: Path) -> str:
    """Write all pages, and return the first one."""
    assert results.write(docs)[0] == docs / "results.md"
    return (docs / "results.md").read_text().replace("\\_", "_")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Path]:
    """A study, its results, and docs/ with what is committed of it."""
    folder = tmp_path_factory.mktemp("finished")
    study, written = made(folder)
    export(study, written, folder / "docs")
    return study, written, folder / "docs"


@pytest.fixture
def docs(finished: tuple[Study, Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[2], tmp_path / "docs"))


# ---------------------------------------------------------------- what is committed


@pytest.mark.parametrize("own_from_train", [True, False])
def test_the_majority_class_is_that_of_a_clients_training_examples(own_from_train):
    """Clients train on classes 2, 2, 7, on nothing and on 5, the new one on 7. Rows 4 to 7 are
    their test rows, of classes 2, 2, 7, 0 in the training arrays and 0, 7, 7, 2 in the test arrays.
    Who has no test rows counts for nothing, nor do the new one and who has no training rows."""
    train_labels, test_labels = np.array([2, 2, 7, 5, 2, 2, 7, 0]), np.array([9] * 4 + [0, 7, 7, 2])
    nothing, test = np.arange(0), np.arange(4, 8)
    new = Split([np.array([2])], [nothing], [test], nothing, own_from_train)
    train = [np.arange(3), nothing, np.array([3]), np.arange(3)]
    split = Split(train, [nothing] * 4, [test] * 3 + [nothing], nothing, own_from_train, new)
    held = archive._held(split, train_labels, test_labels)
    assert held.index.tolist() == ["0", "1", "2", "3", "new0"]
    assert held["majority"].tolist() == ([2, 0, 0, 0, 1] if own_from_train else [1, 0, 0, 0, 2])
    study = small([5] * 6, [5] * 6)
    study = dataclasses.replace(study, held={"p": held})
    expected = 50 / 2 if own_from_train else 25 / 2
    assert archive.majority(study) == pytest.approx([expected])


@pytest.mark.slow
def test_what_is_committed_is_what_was_measured(finished):
    study, written, docs = finished
    found = archive.read(docs / "results" / "tiny")
    for cell in study.cells:
        scores = pd.read_csv(written / "scores/tiny" / f"{cell.method}.csv", dtype={"client": str})
        scores = scores[scores["cell"] == cell.id].set_index("client")
        expected = scores["personal_own"].fillna(scores["personal_new"]).dropna()
        percent = found.percent[cell.id].dropna()
        assert list(percent.index) == list(expected.index)
        assert percent.to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-9)
    table = tidy(study, written)
    for name in ("personal_own", "personal_own_worst_decile", "personal_new", "global_common"):
        expected = table[name].astype(float).to_numpy()
        assert found.runs[name].to_numpy() == pytest.approx(expected, abs=1e-4, nan_ok=True)
    held = found.held[study.cells[0].partition_id]
    assert list(held["train_size"][:3]) == [3, 4, 5]
    assert held.loc["11", "test_size"] == 0
    # One class; two of each of two; two, two and one of three.
    assert list(held["classes"][:3]) == [1.0, 2.0, round(math.exp(1.0549202), 2)]


def with_table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda file: change(pd.read_parquet(file)).to_parquet(file)


def with_counts(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return with_table(lambda table: table.assign(change=[*map(change, table["change"])]))


# The words of the error, and how the file was damaged before.
DAMAGES = {
    "runs.parquet has other columns": with_table(lambda table: table.drop(columns="line")),
    "remove that folder and make it again: make results STUDY=tiny": Path.unlink,
    "runs.parquet is damaged": lambda file: file.write_bytes(b"PAR1"),
    "has 15 counts of 16 clients of digits-": with_counts(lambda counts: counts[1:]),
    "personal_own of digits-.*-local_only-nonprivate-seed0-.*; got .* expected .*as its counts": (
        with_counts(lambda counts: np.maximum(counts - 9, -1))
    ),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_committed_files_that_do_not_fit_together_are_one_clear_line(docs, words):
    DAMAGES[words](docs / "results" / "tiny" / archive.FILE)
    with pytest.raises(DataError, match=words):
        results.write(docs)
    assert not (docs / "results.md").exists()


def without(written: Path, folder: Path, *methods: str) -> Path:
    """Copy results in which these methods are not tested."""
    copy = Path(shutil.copytree(written, folder / "results"))
    shutil.copytree(written.parent / "data", folder / "data")
    for method in methods:
        (copy / "scores" / "tiny" / f"{method}.csv").unlink()
    return copy


@pytest.mark.slow
def test_files_and_pages_are_the_same_every_time_also_when_methods_come_one_by_one(finished, docs):
    study, written, _ = finished
    new = docs.with_name("new")
    export(study, without(written, docs.with_name("first"), "feddpa", "dp_fedavg"), new)
    text = summary(new)
    assert "Not complete yet: tiny, which lacks dp_fedavg, feddpa." in text
    assert "## " not in text
    export(study, without(written, docs.with_name("second"), "local_only", "fedavg"), new)
    page = tiny(docs).read_text()
    assert tiny(new).read_text() == page
    once, parts = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in (docs, new)
    )
    assert once == parts
    assert not re.search(r"\b(nan|inf|None)\b", page)
    # All classes are equally often among the test rows.
    assert "majority class of their training examples would have 10.0 ± 0.0." in page


def test_a_method_with_seeds_that_are_not_there_yet_is_missing(finished, docs, tmp_path):
    study, written, _ = finished
    row = next(row for row in study.rows if row.cell.method == "fedper")
    more = dataclasses.replace(row, cell=dataclasses.replace(row.cell, seed=9))
    larger = dataclasses.replace(study, rows=(*study.rows, more))
    found = archive.read(export(larger, written, docs, "Measured there."))
    assert found.about.missing == ("fedper",)
    there = dict.fromkeys(study.methods, "Measured there.")
    assert found.about.measured == there | {"fedper": "Measured here."}
    assert set(found.runs["method"]) == set(study.methods), "what was measured stays"
    found = archive.read(export(study, written, docs, "Measured again."))
    assert set(found.about.measured.values()) == {"Measured again."}, "of nothing else is left"


def test_a_study_without_a_finished_method_is_one_clear_line(finished, tmp_path):
    study, written, _ = finished
    left = without(written, tmp_path, *study.methods)
    with pytest.raises(DataError, match="study tiny: no method is trained and tested; snakemake"):
        export(study, left, tmp_path)


def test_a_part_of_a_study_needs_no_table_to_know_what_its_methods_are_worth_as_published(tmp_path):
    study, written = made(tmp_path, methods=("dp_fedavg", "feddpa"), batch_size=2)
    own = {cell.plan_id for cell in study.cells}
    for path in (written / "plans").iterdir():
        if path.stem not in own:
            path.unlink()
    settings = SimpleNamespace(results_dir=written, data_dir=tmp_path / "data")
    project = SimpleNamespace(settings=settings, root=tmp_path)
    frame, _ = finished_part(study, project)
    worth = frame.set_index("cell")["epsilon_published"]
    for cell in (one for one in study.cells if one.method == "feddpa"):
        # Its noise as published is for one example of a client.
        expected = plan_of(as_published(cell), np.arange(3, 15)).ledger.epsilon_central
        assert worth[cell.id] == pytest.approx(expected)
        assert expected > 2 * cell.privacy.epsilon


def test_a_study_of_several_panels_is_refused(finished, tmp_path):
    study, written, _ = finished
    wider = dataclasses.replace(study.cells[0].partition, alpha=1.0)
    others = [Row(dataclasses.replace(cell, partition=wider)) for cell in study.cells]
    several = dataclasses.replace(study, rows=(*study.rows, *others))
    with pytest.raises(ConfigError, match=r"several conditions besides the budget; got 'α = 0\.3"):
        export(several, written, tmp_path)


def test_without_a_study_no_page_is_written_and_the_command_says_what_to_do(here):
    assert results.write(here) == []
    with pytest.raises(DataError, match="no study's results; name a finished one: make results"):
        publish.write([])
    assert not list(here.iterdir())


# ---------------------------------------------------------------- who gains


def small(own: list[float], alone: list[float]) -> archive.Archive:
    """Two runs of five clients and a new one, who have 10 test rows each, the third one none."""
    clients = ["0", "1", "2", "3", "4", "new0"]
    sizes = {"train_size": [5, 9, 9, 20, 40, 7], "test_size": [10, 10, 0, 10, 10, 10]}
    held = pd.DataFrame(sizes | {"classes": [1.0, 1.0, 1.0, 3.0, 2.0, 1.0]}, index=clients)
    both = {"cell": ["x", "y"], "line": ["feddpa", "local_only"]}
    runs = pd.DataFrame(both).assign(seed=0, partition="p", rounds=30, personal_own=80.0)
    correct = pd.DataFrame({"x": own, "y": alone}, index=clients)
    curves = pd.DataFrame({"x": [50.0, 79.0, 80.0]}, index=[10, 20, 30])
    about = archive.About("", "", "", (), "", ())
    return archive.Archive("s", about, runs, correct, {"p": held}, curves)


def test_a_client_gains_over_itself_alone_and_those_who_are_alike_are_one_group():
    """By hand: gains of +10, 0, none, -20 and +30 points, and +40 of the new client. Sizes 5, 9, 20
    and 40 have fifths at 7.4, 11.2, 17.8 and 28; effective classes 1, 1, 3, 2 have thirds at 1 and
    2. Nobody's loss of 2 of 10 rows is more than chance."""
    study = small([6, 5, math.nan, 4, 9, 8], [5, 5, math.nan, 6, 6, 4])
    found = gains(study, study.runs[1:])
    assert found.loc["x"].dropna().to_dict() == {
        **{"above": 50.0, "below": 25.0, "net": 25.0, "worse": 0.0, "new": 40.0},
        **{"size_fewest": 10.0, "size_few": 0.0, "size_many": -20.0, "size_most": 30.0},
        **{"classes_narrow": 5.0, "classes_middle": 30.0, "classes_broad": -20.0},
    }
    assert (found.loc["y"].dropna() == 0).all()
    without_partner = study.runs[1:].assign(seed=1)
    assert gains(study, without_partner).isna().all(axis=None)


def test_the_cost_of_an_accuracy_is_the_first_evaluated_round_that_has_it():
    study = small([0] * 6, [0] * 6)
    rows = study.runs[:1]
    assert [cost(study, rows, target) for target in (40, 60, 79.5, 80.1)] == [10, 20, 30, None]
    assert cost(study, study.runs[1:], 60) == 30, "without curves the last round alone is known"
    # Of some clients by round: the curve is compared with curves and not with all clients' 80.
    few = dataclasses.replace(study, curves=study.curves - 30)
    assert [cost(few, rows, target) for target in (49, 60)] == [20, None]


# ---------------------------------------------------------------- words


def told(study: archive.Archive) -> tuple[list[str], dict[tuple[str, str, str], dict[str, str]]]:
    """The verdict and the sentences about a study, and its table by method, budget and claim."""
    (panel,) = panels(study)
    columns = one_study.lines(panel).values()
    table = {(row["method"], row["budget"], row["claim"]): row for row in columns}
    said = [*sentences.paying(panel.verdicts), *one_study.said(panel)]
    return list(filter(None, said)), table


@pytest.fixture(scope="module")
def committed(finished: tuple[Study, Path, Path]) -> archive.Archive:
    return archive.read(finished[2] / "results" / "tiny")


def test_sentences_say_what_the_intervals_support(committed):
    said, _ = told(committed)
    for pattern, sentence in zip(TABLES["SENTENCES"], said, strict=True):
        assert re.fullmatch(pattern, sentence)


def test_the_page_has_the_best_lines_and_their_rivals_and_the_table_has_all(docs):
    page = tiny(docs).read_text().replace("\\_", "_")
    shown = re.findall(r"^\| (\w+) \| (.*?) \|", page, re.MULTILINE)[1:]
    private = ("feddpa", "fedper", "dp_fedavg")
    assert shown == [
        *(("fedavg", "no privacy"), ("local_only", "no privacy")),
        *((line, budget) for budget in ("ε = 2", "ε = 8") for line in private),
    ]
    assert "covered by no ε" in page
    assert "[table.csv](tiny/table.csv)" in page
    table = pd.read_csv(docs / "results/tiny/table.csv", dtype=str, keep_default_na=False)
    assert len(table) == 10
    nominal = table[table["claim"] == "nominal"]
    assert nominal["ε (central)"].tolist()[0] == "2 (nominal; honest ∞ at δ=0.001)"
    assert set(nominal["method"]) == {"feddpa (official code)"}
    whole = shown_on_the_site.tables(docs / "results/tiny/table.csv")
    assert whole.count("feddpa (official code)") == 5 * 2
    assert f"**{table['personal own'][0]}**" in whole


def test_more_than_three_budgets_show_the_smallest_a_middle_and_the_largest():
    level = synthetic.fixed((50, 50, 50), local_only=(40, 50, 50), fedrep=(62, 50, 50))
    region = {"people": (10,), "fractions": (0.2,), "epsilons": (0.5, 1, 2, 4, 8)}
    (panel,) = panels(synthetic.made(level, **region))
    (rows,) = one_study.best(panel, one_study.lines(panel)).sections
    shown = dict.fromkeys(row[1].text for row in rows)
    assert list(shown) == ["no privacy", "ε = 0.5", "ε = 2", "ε = 8"]


def test_a_placebo_stands_below_its_verdict_and_changes_no_word(monkeypatch):
    """A made-up control with the best numbers of all, so that a winner would be it."""
    known = {"local_only": (40, 50, 50), "control": (70, 50, 50), "fedrep": (62, 50, 50)}
    level = synthetic.fixed((50, 50, 50), **known)
    monkeypatch.setattr(synthetic, "LINES", (*synthetic.LINES, "control"))
    study = synthetic.made(level, people=(10,), fractions=(0.2,), epsilons=(2.0,))
    control = study.runs["line"] == "control"
    runs = study.runs.copy()
    runs.loc[control, ["method", "line", "claim"]] = "fedrep", "fedrep (placebo)", "placebo"
    # Its people differ, which must not count as what people of released models differ by.
    correct = study.correct.copy()
    correct.loc["0", study.runs.loc[control, "cell"]] = 0
    (panel,) = panels(dataclasses.replace(study, runs=runs, correct=correct))
    (without,) = panels(dataclasses.replace(study, runs=study.runs[~control]))
    verdict, same = panel.verdicts["ε = 2"], without.verdicts["ε = 2"]
    assert (verdict.word, verdict.group.label) == ("pays", "fedrep")
    assert verdict.beside.keys() == same.beside.keys()
    assert all(verdict.beside[kind][1] == gap for kind, (_, gap) in same.beside.items())
    above, below = ([one.text for one in row] for row in results._verdicts("made_up", panel))
    assert above[3:5] == ["pays", "fedrep"]
    assert below[:6] == ["made_up", "ε = 2", "–", "placebo", "fedrep", above[5]]
    assert below[6].startswith("+20.0 ("), "beside (a), the own constant"
    assert len(below) == len(above)
    (rows,) = one_study.best(panel, one_study.lines(panel)).sections
    (line,) = (row for row in rows if row[0].text == "fedrep (placebo)")
    assert not any(entry.bold for entry in line)
    said = " ".join(one_study.said(panel))
    assert "With the noise alone and nobody's update, at ε = 2, fedrep (placebo) is better" in said


def test_an_unreviewed_line_has_sections_and_a_sentence_of_its_own(committed):
    claim = committed.runs["claim"].mask(committed.runs["method"] == "fedper", "unreviewed")
    said, table = told(dataclasses.replace(committed, runs=committed.runs.assign(claim=claim)))
    assert [key[1:] for key in table if key[0] == "fedper"] == [
        *(("ε = 2", "unreviewed"), ("ε = 8", "unreviewed"))
    ]
    assert "fedper" not in "".join(said[:6])
    assert "feddpa is the best of the certified personal models" in said[5]
    assert "fedper (unreviewed) is better than learning alone" in said[6]
    assert "feddpa is the best of the personal models, unreviewed ones included" in said[7]


def test_costs_have_three_digits_and_no_exponent(committed):
    early = committed.runs.loc[committed.runs["line"] == "fedavg", "cell"]
    curves = committed.curves.copy()
    curves.loc[2, early] = 64.0  # what learning alone has in the end
    runs = committed.runs.assign(upload_bytes_per_round=3.086e8, train_seconds=1234.5)
    _, table = told(dataclasses.replace(committed, runs=runs, curves=curves))
    row = table["fedavg", "no privacy", "none"]
    costs = [row[name] for name in ("MB, run", "s, run", "rounds, same", "MB, same", "s, same")]
    assert costs == ["1230", "1230", "2", "617", "617"]


def test_two_seeds_support_no_word_of_comparison_and_no_bold(committed):
    few = committed.runs[committed.runs["seed"] < 2]
    said, table = told(dataclasses.replace(committed, runs=few))
    assert said[0].startswith("At ε = 2 and ε = 8, it is undecided whether personalization pays: ")
    assert WORDS.findall(" ".join(said)) == ["pays"]
    assert "fewer than 3 common seeds rank no method" in " ".join(said)
    assert not any(row["best"] for row in table.values())


def test_a_page_begins_with_its_verdict_and_ends_with_how_it_was_made(docs):
    (docs / "results/tiny" / one_study.FIGURE).touch()
    text = tiny(docs).read_text()
    parts = (
        *("At ε = 2 and ε = 8, personalization pays: train feddpa.", "<!-- note -->"),
        *(f"(tiny/{one_study.FIGURE})", "| method | budget |", "## Who gains\n"),
        *("1. With feddpa at ε = 8, 100 % of the clients", "## How it was made\n"),
        *("12 dealt clients with 8 rows each", "covered by no ε", "<!-- table: tiny/table.csv -->"),
    )
    assert text.splitlines()[2].startswith(parts[0])
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=text.index) == [*parts]


def test_a_page_names_a_machine_once_and_no_message_where_there_is_no_dp_fedavg(docs, monkeypatch):
    about = docs / "results/tiny/about.json"
    told = read_json(about)
    ways = [f"Measured on A, torch 2, commit {commit}, 3 s." for commit in ("1a", "2b")]
    names = sorted(told["measured"])
    measured = {name: ways[place % 2] for place, name in enumerate(names)}
    measured[names[0]] += " Measured on B, 4 s."
    write_json(about, told | {"measured": measured})
    monkeypatch.setattr(one_panel, "PLAIN", "nobody")
    text = tiny(docs).read_text()
    once = "\nMeasured on A, torch 2, commit 1a, 3 s; commit 2b, 3 s. Measured on B, 4 s.\n"
    assert text.count("Measured on") == 2
    assert once in text or once.replace("1a, 3 s; commit 2b", "2b, 3 s; commit 1a") in text
    assert "12 dealt clients with 8 rows each. All methods" in text


def test_what_somebody_wrote_about_a_studys_numbers_stays_below_its_verdict(docs):
    page = tiny(docs)
    begin = "<!-- note -->\n"
    page.write_text(page.read_text().replace(begin, f"{begin}\n> Trained before.\n"))
    text = tiny(docs).read_text()
    assert text.count("> Trained before.") == 1
    assert text.index("\nAt ε = 2") < text.index("> Trained before.") < text.index("| method |")
    about = docs / "results/tiny/about.json"
    write_json(about, read_json(about) | {"missing": ["fedper"]})
    results.write(docs)
    assert page.read_text() == text, "its study is not complete any more"


def test_what_two_studies_say_together_is_said_of_their_settings(docs):
    study = docs / "results" / "tiny"
    heading = "## What the studies say together"
    assert heading not in summary(docs)
    shutil.copytree(study, study.with_name("twin"))
    text = summary(docs)
    assert re.findall("^## .*$", text, re.MULTILINE)[:2] == ["## The studies", heading]
    setting = "12 dealt clients with 8 rows each and messages of 201 numbers"
    assert f"(results/twin.md) {setting}." in text
    assert "feddpa is better than dp_fedavg, fine-tuned, in every study that has both" in text
    across = docs / "results" / "across_studies.md"
    assert "<!-- table: across_studies.csv -->" in across.read_text()
    table = pd.read_csv(across.with_suffix(".csv"))
    assert list(table) == ["rival", "method", "budget", "tiny", "twin"]
    write_json(study / "about.json", read_json(study / "about.json") | {"missing": ["fedper"]})
    assert heading not in summary(docs), "who is best among some is no answer"
    assert not (docs / "results" / "tiny.md").exists(), "nor is its old page"
    assert not across.exists()


def test_every_word_of_comparison_has_an_interval_that_excludes_0():
    up, down = Difference(2.0, 0.001, 4.0, 5), Difference(-2.0, -4.0, -0.04, 5)
    neither = Difference(2.0, -0.1, 4.1, 5)
    words = {"better than": up, "worse than": down, "not distinguishable from": neither}
    for word, gap in words.items():
        assert wording.verdict(gap) == word
        said = sentences.against({"a": gap}, "b")
        (found,) = re.findall("better|worse|not distinguishable", said)
        assert word.startswith(found)
    assert wording.number(up) == "+2.0 (0.001 to 4.0)"
    assert wording.number(down) == "-2.0 (-4.0 to -0.04)"
    assert wording.number(Difference(2.0, -math.inf, math.inf, 2)) == "+2.0"
    assert wording.number(Difference(math.nan, -math.inf, math.inf, 0)) == "–"


def test_a_long_list_is_counted():
    assert sentences.names(["a"]) == "a"
    assert sentences.names(["a", "b", "c"]) == "a, b and c"
    assert sentences.names(list("abcdefgh")) == "a, b, c, d, e and 3 more"
