"""``make readme``: the numbers of README.md and docs/quickstart.md are those of the results, and
nothing else in them changes."""

import contextlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import fake_results
import tabled
from called import called
from pages import blocks, readme
from pflpipe.errors import ConfigError, DataError
from pflpipe.report.tables import write_study
from pflpipe.study.load import load_study

ROOT = Path(__file__).resolve().parents[2]
STUDY = tabled.table("test_readme")["STUDY"]
EMPTY = {
    page: "".join(f"Words.\n\n<!-- {name} -->\n<!-- end -->\n\n" for name in names)
    for page, names in readme.PAGES.items()
}
PAGE, QUICKSTART = "docs/quickstart.md", "results/tables/quickstart.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of the quickstart and of its published versions, which here are the same study."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "studies").mkdir()
    for name in (readme.QUICKSTART, readme.PUBLISHED):
        (folder / "studies" / f"{name}.yaml").write_text(STUDY)
        study = load_study(name, folder / "studies")
        table = folder / "results" / "tables" / f"{name}.csv"
        write_study(study, fake_results.write(study, folder), table)
        # The made-up plans call every nominal epsilon infinite.
        frame = pd.read_csv(table)
        nominal = frame["claim"] == "nominal"
        honest = frame.loc[nominal, "epsilon_target"].map({2.0: 25.61, 8.0: 106.7})
        frame.loc[nominal, "epsilon_central"] = honest
        frame.to_csv(table, index=False)
    figures = folder / "results" / "figures" / "quickstart"
    figures.mkdir(parents=True)
    (figures / readme.FIGURE).write_bytes(b"a figure")
    (folder / "config.yaml").write_text("studies: [quickstart]\n")
    (folder / "docs").mkdir()
    for page, text in EMPTY.items():
        (folder / page).write_text(text)
    return folder


@pytest.fixture
def published(made, here):
    """A project with those results, and with documents whose blocks are empty."""
    return shutil.copytree(made, here, dirs_exist_ok=True)


@pytest.fixture
def place(published):
    """The same without results of the published versions."""
    (published / "results" / "tables" / "quickstart_published.csv").unlink()
    return published


def code(cells) -> str:
    """Stands for ``Project.training_code``."""
    return f"code of {sorted({cell.method for cell in cells})}"


@contextlib.contextmanager
def edited() -> Iterator[pd.DataFrame]:
    """The table of the quickstart, to be changed."""
    frame = pd.read_csv(QUICKSTART)
    yield frame
    frame.to_csv(QUICKSTART, index=False)


def at(frame: pd.DataFrame, method: str, epsilon: float, claim: str = "certified") -> pd.Series:
    of = {"method": method, "claim": claim, "epsilon_target": epsilon}
    return (frame[list(of)] == pd.Series(of)).all(axis=1)


def renew() -> list[str]:
    return readme.renew(Path(), Path("results"), code)


def renewed(place: Path) -> str:
    renew()
    return (place / PAGE).read_text()


def rows(text: str) -> dict[str, list[str]]:
    """Entries of the table by the label of the line, in its order."""
    lines = [line.replace("\\_", "_") for line in text.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0][2:]: line.rstrip("| ").split(" | ")[1:] for line in lines}


@pytest.mark.slow
def test_the_table_has_references_then_certified_then_nominal_lines_each_with_its_means(published):
    table = rows(renewed(published))
    header, *labels = table
    assert [header, *labels[:2]] == ["method", "local_only", "fedavg"]
    assert labels[-1] == "feddpa (official code)"
    columns = "personal, ε = 2", "personal, ε = 8", "global, ε = 2", "global, ε = 8"
    assert table["method"] == ["claim", *columns]
    assert table["local_only"][0] == "none, sends nothing"
    assert table["fedavg"][0] == "none, ε = ∞"
    assert table["feddpa (official code)"][0] == "nominal; honest ε = 25.7 and 107"
    frame = pd.read_csv(QUICKSTART)
    for label in labels:
        is_variant = frame["variant"].notna() == ("(" in label)
        line = frame[is_variant & (frame["method"] == label.split()[0])]
        for budget, entries in ((2.0, table[label][1::2]), (8.0, table[label][2::2])):
            cells = line[line["epsilon_target"].fillna(8.0) == budget]
            for entry, metric in zip(entries, ("personal_own", "global_common"), strict=False):
                values = cells[metric].dropna()
                found = f"{values.mean():.1f} ± {values.std():.1f}" if len(values) else "–"
                assert entry == (found if len(cells) else "")
    certified = [float(table[label][2].split()[0]) for label in labels[2:-1]]
    assert certified == sorted(certified, reverse=True)
    assert {table[label][0] for label in labels[2:-1]} == {"certified"}


@pytest.mark.slow
def test_the_table_says_that_no_epsilon_covers_it_and_where_it_was_measured(place):
    text = renewed(place)
    (covered,) = re.findall(r"^- .*diagnostics.*$", text, re.MULTILINE)
    assert "no ε covers them" in covered
    (measured,) = re.findall(r"^- Measured on .*$", text, re.MULTILINE)
    # Six lines of three seeds, four of them at two budgets. The first two private ones share their
    # runs, of a second each.
    where, when = "A processor, 2 cores, Python 3, torch 2, commit 1234abc", r"\d{4}-\d\d-\d\d"
    assert re.search(rf" {where}, {when}, 24 s of training in 24 runs\.$", measured)
    assert str(place) not in text


def test_the_sentences_say_who_may_be_the_best_and_what_a_nominal_epsilon_is_worth(place):
    def scored(**values: tuple[float, ...]) -> str:
        with edited() as frame:
            for method, scores in values.items():
                frame.loc[at(frame, method, 8.0), "personal_own"] = scores
        return renewed(place)

    two = {"dp_fedavg": (99.0, 100.0, 98.0), "dp_fedavg_fb": (98.0, 99.5, 98.1)}
    highest = "dp_fedavg has the highest mean of the certified personal models (99.0 %)"
    undecided = f"; at ε = 8, {highest}, but the seeds do not separate it from dp_fedavg_fb."
    assert undecided in scored(**two, feddpa=(50.0, 51.0, 49.0))
    level = "models (99.0 %), but 3 seeds separate none of the 3 methods."
    assert level in scored(feddpa=(98.0, 99.6, 98.2))
    with edited() as frame:
        frame.loc[at(frame, "feddpa", 2.0, "nominal"), "epsilon_central"] = (21.41, 25.64, 21.8)
    text = scored(feddpa=(50.0, 51.0, 49.0), dp_fedavg_fb=(89.0, 90.5, 88.1))
    best = "dp_fedavg is the best of the certified personal models (99.0 %)."
    assert f"; at ε = 8, {best}" in text
    local = rows(text)["local_only"][2].split()[0]
    assert f"Without privacy: local_only {local}, fedavg " in text
    code = "xiyuanyang45/DynamicPFL 4461ecb (utils.py:9-22, ours.py:229-258)"
    worth = "has ε = 21.5 to 25.7 where it claims 2 and 107 where it claims 8, by arithmetic."
    assert f"In this study feddpa (official code), as pflpipe imitates {code}, {worth}" in text
    said = blocks.split(text, readme.SENTENCES, PAGE)[1]
    pays, lacking, better, *others = said.strip().split(".\n")
    assert "it is undecided whether personalization pays: " in pays
    assert lacking.startswith("Not among the rivals: (c) item effects")
    assert "learning alone (local_only)" in better
    assert len(others) == 4, "seven sentences, a line each"
    verdict = " ".join((place / "README.md").read_text().split())
    assert "% at ε = 8 (top: dp_fedavg)." in verdict
    assert re.search(r"- 3 certified methods: \S+ to \S+ % at ε = 2 \(top: ", verdict)
    assert f"- Without privacy: local_only {local}, fedavg " in verdict
    assert "imitates" not in verdict, "one imitated code's worst split is no headline"


def test_published_versions_stand_beside_their_certified_ones(published):
    text = renewed(published)
    frame = pd.read_csv("results/tables/quickstart_published.csv")
    low = frame[frame["epsilon_target"] == 2.0].groupby(["method", "claim"])["personal_own"].mean()
    pair = f"{low['feddpa', 'nominal']:.1f} against {low['feddpa', 'certified']:.1f}"
    words = "for a nominal ε = 2, against certified: feddpa (official code), honest ε = 25.7: "
    assert f"{words}{pair}.\n" in text


def test_without_results_of_the_published_versions_their_block_stays(place):
    marker = f"<!-- {readme.COMPARED} -->\n"
    (place / PAGE).write_text(EMPTY[PAGE].replace(marker, f"{marker}Old.\n"))
    words = "results/tables/quickstart_published.csv does not exist; run make report first"
    assert renew()[0].endswith(words)
    assert blocks.split((place / PAGE).read_text(), readme.COMPARED, "")[1] == "Old.\n"


def test_nothing_outside_the_blocks_changes_and_a_second_time_changes_nothing(published):
    renew()
    for page, empty in EMPTY.items():
        text = (published / page).read_text()
        found = re.sub(r"(<!-- [\w: ]+ -->\n)\n.*?(<!-- end -->\n)", r"\1\2", text, flags=re.DOTALL)
        assert (found, text != empty) == (empty, True)
    image = published / f"docs/images/quickstart_{readme.FIGURE}"
    assert image.read_bytes() == b"a figure"
    files = [image, *(published / page for page in EMPTY)]
    before = [(path.read_bytes(), path.stat().st_ino) for path in files]
    assert renew() == ["nothing new"]
    assert [(path.read_bytes(), path.stat().st_ino) for path in files] == before


def test_the_comment_about_the_runs_follows_their_settings_and_not_their_labels(place):
    def comment(old: str, new: str) -> str:
        (place / "studies" / "quickstart.yaml").write_text(STUDY.replace(old, new))
        return readme.runs_comment(load_study("quickstart"), code)

    assert comment("", "") in renewed(place)
    assert comment("variant: official code", "variant: as published") == comment("", "")
    assert comment("lr: 0.5", "lr: 0.25") != comment("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "PAGE: marker <!-- a: b -->; got '0 of it'; expected one such line"),
        ("<!-- a: b -->\n<!-- end -->\n" * 2, "marker <!-- a: b -->; got '2 of it'"),
        ("<!-- a: b -->\n", "marker <!-- a: b --> has no <!-- end --> of its own"),
        ("<!-- a: b -->\n<!-- c: d -->\n<!-- end -->\n", "has no <!-- end --> of its own"),
    ],
)
def test_a_missing_marker_is_one_clear_error(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        blocks.split(text, "a: b", "PAGE")


def test_a_page_without_a_marker_changes_no_page(published):
    marker = f"<!-- {readme.VERDICT} -->\n<!-- end -->"
    texts = {**EMPTY, "README.md": EMPTY["README.md"].replace(marker, "")}
    (published / "README.md").write_text(texts["README.md"])
    with pytest.raises(ConfigError, match=r"README\.md: marker <!-- quickstart: verdict"):
        renew()
    assert {name: (published / name).read_text() for name in EMPTY} == texts
    assert not (published / "docs/images").exists()


def test_a_table_of_another_version_of_the_study_is_refused(place):
    (place / "studies" / "quickstart.yaml").write_text(STUDY.replace("rounds: 4", "rounds: 5"))
    with pytest.raises(DataError, match="another version of the study; delete that file"):
        renew()


@pytest.mark.slow
def test_lines_that_the_table_could_not_tell_apart_are_refused(place):
    two = STUDY.replace("axes:", "axes:\n  partition.alpha: [0.3, 1.0]")
    (place / "studies" / "quickstart.yaml").write_text(two)
    study = load_study("quickstart")
    write_study(study, fake_results.write(study, place), place / QUICKSTART)
    with pytest.raises(ConfigError, match=r"feddpa \(official code\) has several lines at ε = 2"):
        renew()


def test_a_run_that_diverged_is_marked_where_its_accuracy_stands(place):
    with edited() as frame:
        frame.loc[frame[at(frame, "dp_fedavg", 2.0)].index[0], "diverged_round"] = 3
    text = renewed(place)
    table = rows(text)
    marked = [entry.endswith("†") for entry in table.pop("dp_fedavg")]
    assert marked == [False, True, False, True, False]
    assert "†" not in str(table)
    assert "- † Left the finite numbers in at least one seed" in text


def test_a_failure_in_the_middle_of_writing_leaves_the_readme_as_it_was(place, monkeypatch):
    def full_disk(path: Path, text: str, **_: str) -> None:
        path.open("w").write(text[:100])
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full_disk)
        with pytest.raises(OSError, match="no space"):
            renew()
    assert {page: (place / page).read_text() for page in EMPTY} == EMPTY
    assert [path for path in place.rglob(".*") if path.is_file()] == []


@pytest.mark.docs
def test_the_command_without_results_says_so_in_one_line(tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "quickstart.yaml").write_text(STUDY)
    (tmp_path / "config.yaml").write_text("studies: [quickstart]\n")
    command = [sys.executable, "-m", "pages", "readme"]
    found = called(*command, folder=tmp_path, code=2, PYTHONPATH=str(ROOT / "tools"))
    assert found.stderr == f"error: {QUICKSTART} does not exist; run make quickstart first\n"
    assert found.stdout == ""
