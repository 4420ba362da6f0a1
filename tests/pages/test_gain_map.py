"""Whether personalization pays beside all of its rivals, and a map of it by people, rows and budget
from committed files alone."""

import dataclasses
import importlib
import itertools
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from synthetic import fixed

import fake_results
import tabled
from pages import archive, gain_map, one_study, results
from pages.panel import Panel, panels
from pflpipe.report import sentences, verdicts
from pflpipe.study.study_spec import Row

TABLES = tabled.table("test_gain_map")

BENCHMARKS = Path(__file__).resolve().parents[2] / "tools" / "benchmarks"
ALONE = 60.0
ONE = {"people": (10,), "fractions": (0.2,), "epsilons": (2.0,)}
"""A single region."""


def region(personal: float, released: float, spread: float = 0.0) -> Panel:
    """FedRep's mean and that of the best released model, beside learning alone at 60 and DP-FedAvg
    at 50."""
    lines = {"local_only": (ALONE,), "dp_fedavg": (50, 40, 40), "fedrep": (personal,)}
    return of_levels((released,) * 3, spread=spread, **lines)


def of_levels(others: tuple[float, ...], spread: float = 0.0, **lines: tuple[float, ...]) -> Panel:
    """A single region of a study with these levels."""
    (panel,) = panels(synthetic.made(fixed(others, **lines), **ONE, spread=spread))
    return panel


@pytest.mark.parametrize(("personal", "released", "spread", "word"), TABLES["WORDS"])
def test_personalization_pays_where_it_beats_learning_alone_and_the_released_model(
    personal, released, spread, word
):
    verdict = region(personal, released, spread).verdicts["ε = 2"]
    assert verdict.word == word
    (alone, own), (rival, other) = verdict.beside["a"], verdict.beside["b"]
    assert (alone.name, own.mean) == ("learning alone", pytest.approx(personal - ALONE))
    assert other.mean == pytest.approx(personal - max(released, 40))
    assert rival.name == "the released model of untouched"
    assert verdict.missing == ("c", "d")


def test_a_released_model_is_no_personal_one_however_good_it_is():
    panel = region(50.5, 90)
    verdict = panel.verdicts["ε = 2"]
    assert (verdict.word, verdict.group.label) == ("does not pay", "fedrep")
    (section,) = panel.certified.values()
    assert "untouched" not in {group.label for group in section.beside(panel.released("ε = 2"))}
    (note,) = one_study.best(panel, one_study.lines(panel)).notes
    assert note == "Not personal, but the released model for everybody: untouched."


def test_every_released_model_is_a_rival_whatever_validation_rows_said():
    """The rival that stands first on validation rows is not the strongest."""
    lines = {"local_only": (ALONE,), "dp_fedavg": (70, 65, 71), "fedrep": (72,)}
    panel = of_levels((71.5, 71.5, 60), **lines)
    assert panel.verdicts["ε = 2"].word == "does not pay"
    assert panel.released("ε = 2").label == "untouched"


def test_the_own_constant_is_a_rival_that_no_study_needs_to_have():
    """Everybody's majority has 50 % of the own test rows right; learning alone has 40."""
    panel = of_levels((30, 30, 30), local_only=(40,), fedrep=(50.5,))
    verdict = panel.verdicts["ε = 2"]
    assert (verdict.word, verdict.beside["a"][0].name) == ("does not pay", "the own constant")
    assert panel.constant.values("personal_own").tolist() == [50.0, 51.0, 52.0, 53.0, 54.0]


def test_the_released_model_is_advised_only_where_it_beats_learning_alone():
    """Personal models lose to both; only a released model a point above alone is better."""
    for released, deed in ((60.9, "learn alone"), (61.1, "use the released model of untouched")):
        said = next(sentences.paying(region(50.5, released).verdicts))
        assert said == f"At ε = 2, personalization does not pay: {deed}."


def test_a_personal_model_with_a_collapsed_run_never_pays_and_says_how_often_it_may():
    study = synthetic.made(fixed((60, 60, 60), fedrep=(80,)), **ONE)
    fallen = (study.runs["line"] == "fedrep") & (study.runs["seed"] == 3)
    runs = study.runs.assign(personal_own=study.runs["personal_own"].mask(fallen, 55.0))
    (steady,), (panel,) = panels(study), panels(dataclasses.replace(study, runs=runs))
    assert steady.verdicts["ε = 2"].word == "pays"
    verdict = panel.verdicts["ε = 2"]
    assert (verdict.word, verdict.collapsed) == ("undecided", {"fedrep": (1, 5)})
    assert verdict.beside["a"][1].mean == pytest.approx(20, abs=0.3)
    assert list(verdicts.fallen(verdict)) == ["1 of 5 runs of fedrep collapsed (1 to 72 %)"]


def test_without_learning_alone_there_is_no_verdict_and_a_study_may_lack_other_rivals():
    study = synthetic.made(fixed((60,)), **ONE)
    runs = study.runs[study.runs["line"] != "local_only"]
    (panel,) = panels(dataclasses.replace(study, runs=runs))
    assert panel.verdicts == {}
    (panel,) = panels(study)
    assert panel.verdicts["ε = 2"].missing == ("b", "c", "d")


@pytest.mark.slow
def test_neither_word_is_wrong_more_often_than_it_says_and_intervals_hold(monkeypatch):
    """The hardest settings of tools/benchmarks/bench_verdicts.py, which has 2,000 studies of each;
    95 % less two standard errors of 200 studies are 92."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("bench_verdicts")
    for paying, wrong in ((False, "pays"), (True, "does not pay")):
        for setting in (
            bench.Setting(3, paying=paying, luck=bench.thrice, collapses=False),
            bench.Setting(3, paying=paying, luck=bench.equal, collapses=False, common=2.0),
            bench.Setting(3, paying=paying, luck=bench.thrice, collapses=True, lines=(2, 2)),
        ):
            found = bench.simulate(setting, 200)
            assert min(found["held"], found["shown"]) >= 92
            assert found[wrong] <= 5


# ---------------------------------------------------------------- the map


def regions(line: str, people: int, fraction: float, epsilon: float) -> tuple[float | None, ...]:
    """With many rows learning alone is as good as anything; with few rows a released model is, at a
    small budget, and FedRep at a large one. FedRep is 40 points worse with ten people."""
    alone, fedrep = (90.0, 90.0) if fraction < 0.5 else (60.0, 70.0 + epsilon)
    own = {"local_only": alone, "fedrep": fedrep - 40 * (people == 10)}
    released = {"dp_fedavg": (55, 50, 50), "untouched": (75, 75, 75)}
    return released.get(line) or (own[line], None, None)


@pytest.fixture(scope="module")
def study() -> archive.Archive:
    return synthetic.made(regions)


def test_every_region_has_an_entry_and_a_row(study):
    found = panels(study)
    assert [(one.people, one.rows) for one in found] == [(10, 80), (10, 40), (40, 80), (40, 40)]
    assert gain_map.matrix(found).splitlines()[-4:] == [
        "| 10 | 80 | alone | alone |",
        "| 10 | 40 | released untouched | released untouched |",
        "| 40 | 80 | alone | alone |",
        "| 40 | 40 | released untouched | **fedrep** |",
    ]
    none, shared = "personalization does not pay", "use the released model of untouched"
    assert [next(sentences.paying(panel.verdicts)) for panel in found[1:]] == [
        f"At ε = 0.5 and ε = 8, {none}: {shared}.",
        f"At ε = 0.5 and ε = 8, {none}: learn alone.",
        f"At ε = 0.5, {none}: {shared}; at ε = 8, personalization pays: train fedrep.",
    ]
    table = gain_map.table(found)
    of = table[["people", "rows", "budget"]].itertuples(index=False, name=None)
    assert [*of] == [*itertools.product(("10", "40"), ("80", "40"), ("ε = 0.5", "ε = 8"))]
    assert table["verdict"].tolist() == ["does not pay"] * 7 + ["pays"]
    last = table.iloc[-1]
    assert (last["personal model"], last["rival (b)"]) == ("fedrep", "untouched")
    assert last["to (a)"].startswith("+18.0 (")
    assert last["to (b)"].startswith("+3.0 (")


def test_an_undecided_region_says_what_to_do_meanwhile():
    panel = of_levels((55, 55, 55), spread=1, fedrep=(61,), local_only=(60,))
    undecided = "it is undecided whether personalization pays: learn alone, or run more seeds."
    assert next(sentences.paying(panel.verdicts)) == f"At ε = 2, {undecided}"
    assert "| 10 | 80 | alone? |" in gain_map.matrix([panel])


def lending(study: archive.Archive) -> archive.Archive:
    """FedRep's scores as those of a method without rounds, in a study without other methods."""
    runs = study.runs[study.runs["line"] == "fedrep"]
    once = runs.assign(line="once", method="once", rounds=1, cell=runs["cell"] + "-once")
    correct, curves = (
        table[list(runs["cell"])].set_axis(list(once["cell"]), axis=1)
        for table in (study.correct, study.curves)
    )
    about = dataclasses.replace(study.about, measured={"once": "Elsewhere."})
    return dataclasses.replace(study, about=about, runs=once, correct=correct, curves=curves)


def test_a_study_that_has_all_of_a_maps_splits_lends_it_the_methods_without_rounds(study):
    """The same scores without rounds: what paid does not, and is called by the other name."""
    lender, few = lending(study), synthetic.made(regions, people=(40,))
    for one in (study, few):
        found = panels(archive.with_lent(one, [lender]))
        assert all("d" in verdict.beside for panel in found for verdict in panel.verdicts.values())
        assert gain_map.matrix(found).splitlines()[-1] == "| 40 | 40 | released untouched | once |"
        last = gain_map.table(found).iloc[-1]
        assert (last["verdict"], last["rival (d)"]) == ("does not pay", "once")
    missing = lender.runs["partition"] != "p40-0.6-0"
    less = dataclasses.replace(lender, runs=lender.runs[missing])
    assert archive.with_lent(few, [less]) is few


@pytest.mark.slow
def test_the_map_comes_first_and_is_the_same_from_committed_files_alone(study, tmp_path):
    single = synthetic.made(regions, people=(40,), fractions=(0.6,))

    def files(docs: Path) -> dict[Path, bytes]:
        synthetic.save(study, docs)
        synthetic.save(dataclasses.replace(single, name="single"), docs)
        pages = [page.name for page in results.write(docs)]
        assert pages == ["results.md", "made_up.md", "single.md"]
        return {path.relative_to(docs): path.read_bytes() for path in docs.rglob("*.*")}

    once = files(tmp_path / "once")
    assert files(tmp_path / "again") == once
    assert once[Path("results/made_up/map.png")].startswith(b"\x89PNG")
    order = (
        "## The map: where private personalization pays",
        "](results/made_up/map.png)",
        "| 10 | 80 | alone | alone |",
        "## The studies",
        "| single | ε = 8 | – | pays | fedrep | local\\_only | +18.0 (",
    )
    text = once[Path("results.md")].decode()
    assert sorted(order, key=text.index) == [*order]
    assert "](made_up/map.png)" in once[Path("results/made_up.md")].decode()


def test_what_is_exported_of_a_map_keeps_people_rows_and_the_choice_of_the_search(tmp_path):
    base = fake_results.study(epsilons=(2.0,), methods=("local_only", "dp_fedavg"))
    splits = [
        dataclasses.replace(fake_results.BASE.partition, clients=clients, test_fraction=fraction)
        for clients, fraction in itertools.product((6, 12), (0.2, 0.5))
    ]
    cells = [dataclasses.replace(cell, partition=one) for one in splits for cell in base.cells]
    study = dataclasses.replace(base, rows=tuple(map(Row, cells)))
    written, target = fake_results.write(study, tmp_path), tmp_path / "docs"
    told = {cell.id: "Here." for cell in cells}
    archive.export(study, written, tmp_path / "data", target, told, "")
    runs = pd.read_parquet(target / archive.FILE).set_index("cell")
    for cell in cells:
        found, split = runs.loc[cell.id], cell.partition
        assert (found["clients"], found["test_fraction"]) == (split.clients, split.test_fraction)
        scores = pd.read_csv(written / "scores/tiny" / f"{cell.method}.csv")
        mean = scores.loc[scores["cell"] == cell.id, "global_validation"].mean()
        assert found["global_validation"] == pytest.approx(mean, abs=1e-4, nan_ok=True)
    assert runs.loc[runs["method"] == "dp_fedavg", "global_validation"].notna().all()
