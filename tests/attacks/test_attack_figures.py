"""Figures of attacks: as readable, and in the same look, as those of a study."""

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

import boxes
import fake_attacks
import tabled
from pflpipe import cells, errors
from pflpipe.attacks import jobs as attacks
from pflpipe.pipeline import cli
from pflpipe.report.attacks import membership
from pflpipe.report.attacks.kinds import draw
from pflpipe.report.figures import style
from pflpipe.study import documents, load
from pflpipe.study import figures as drawings
from pflpipe.study.study_spec import Drawing, Row, Study

ROOT = Path(__file__).resolve().parents[2]


def private(epsilon: float) -> cells.Cell:
    budget = cells.Privacy("gaussian", epsilon=epsilon, delta=1e-3, clip_norm=1.0)
    return replace(fake_attacks.CELL, privacy=budget, method="dp_fedavg")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """One setting without privacy, eight budgets and a long name."""
    made = [fake_attacks.CELL, *(private(2.0**power) for power in range(8))]
    names = ["", "every bit of a name that is as long as a variant may well be", *[""] * 7]
    pairs, folder = list(zip(made, names, strict=True)), tmp_path_factory.mktemp("tree")
    rows = [Row(replace(cell, seed=seed), variant=name) for cell, name in pairs for seed in (0, 1)]
    study = Study("tiny", "Tiny", "Made up.", tuple(rows))
    fake_attacks.write(study, folder)
    return study, folder


@pytest.mark.slow
@pytest.mark.parametrize("width", style.WIDTHS)
@pytest.mark.parametrize("name", attacks.NAMES)
def test_no_label_of_an_attacks_figure_overlaps_another_or_leaves_it(name, width, attacked):
    study, folder = attacked
    with matplotlib.rc_context(fname=style.SHEET):
        figure = draw(study, Drawing(name, name, width=width), folder)
        assert boxes.check(figure) > 6
    assert figure.get_figwidth() == width
    assert figure.get_figheight() < 10, "inches of nine settings: the height of a page"
    assert "covered by no ε" in " ".join(figure.get_supxlabel().split())
    sizes = {round(text.get_fontsize(), 1) for text in figure.findobj(matplotlib.text.Text)}
    assert sizes <= {6.5, 8.0}


@pytest.mark.slow
def test_no_two_settings_have_the_same_curve_and_none_looks_like_a_bound(attacked):
    with matplotlib.rc_context(fname=style.SHEET):
        figure = membership.figure(*attacked, min(style.WIDTHS))

    def looks(lines):
        return [(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines]

    steps = [line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post"]
    found = looks(steps)
    assert len(set(found)) == len(steps) == 9
    assert all(line.get_linestyle() not in ("--", ":") for line in steps[:7])
    assert len({color for color, _ in found} | {style.PLAIN}) <= 8
    assert looks(figure.legends[0].get_lines()) == found


def test_a_study_has_an_attacks_figure_when_it_names_it_and_says_no_more_than_its_width() -> None:
    rows = [Row(fake_attacks.CELL)]
    block = {"membership": {"width": 3.3}, "one_run": {}}
    wanted = Drawing("membership", "membership", width=3.3), Drawing("one_run", "one_run")
    assert drawings.read({"figures": block, "methods": []}, "f", rows) == wanted
    assert {drawing.name for drawing in drawings.read({}, "f", rows)}.isdisjoint(attacks.NAMES)
    with pytest.raises(errors.ConfigError, match=r"f: figures\.mine\.kind"):
        drawings.read({"figures": {"mine": {}}}, "f", rows)
    study = Study("tiny", "Tiny", "Made up.", tuple(rows))
    assert drawings.find(study, "one_run") == Drawing("one_run", "one_run")


@pytest.mark.slow
def test_pflpipe_figures_draws_an_attack_from_finished_results_as_wide_as_asked(
    tmp_path, monkeypatch
):
    figures = (Drawing("one_run", "one_run", width=3.3),)
    study = Study("tiny", "Tiny", "Made up.", (Row(private(2.0)),), figures=figures)
    fake_attacks.write(study, tmp_path)
    monkeypatch.setattr(load, "load_study", lambda name, results: study)
    arguments = cli._parser().parse_args(["figures", "tiny", "--results", str(tmp_path)])
    (line,) = cli._called(arguments)
    assert line == f"{tmp_path}/figures/tiny/one_run.png, .svg, .pdf"
    found = {file.suffix for file in (tmp_path / "figures/tiny").glob("one_run.*")}
    assert found == {".png", ".svg", ".pdf", ".csv"}
    with Image.open(tmp_path / "figures/tiny/one_run.png") as image:
        assert image.width == round(300 * 3.3)


@pytest.mark.parametrize(("given", "words"), tabled.table("test_attack_figures"))
def test_an_attacks_figure_takes_a_width_and_no_other_word(given, words):
    study = documents.read_yaml(ROOT / "studies/attacks_digits.yaml")
    found = documents.violations(study | {"figures": {"membership": given}}, documents.validator())
    assert [str(one.error) for one in found] == [words] * bool(words)
