"""Figures of attacks: as readable, and in the same look, as those of a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import matplotlib
import pytest

import boxes
import fake_attacks
from pflpipe import cells
from pflpipe.attacks import registry as attacks
from pflpipe.cells import Cell
from pflpipe.report.attacks import inversion, membership
from pflpipe.report.attacks.registry import draw
from pflpipe.report.figures import style
from pflpipe.study.outline import Row, Study


def private(epsilon: float) -> Cell:
    budget = cells.Privacy("gaussian", epsilon=epsilon, delta=1e-3, clip_norm=1.0)
    return dataclasses.replace(fake_attacks.CELL, privacy=budget, method="dp_fedavg")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """One setting without privacy, eight budgets and a long name."""
    made = [fake_attacks.CELL, *(private(2.0**power) for power in range(8))]
    names = ["", "every bit of a name that is as long as a variant may well be", *[""] * 7]
    rows = [
        Row(dataclasses.replace(cell, seed=seed), variant=name)
        for cell, name in zip(made, names, strict=True)
        for seed in (0, 1)
    ]
    study, folder = Study("tiny", "Tiny", "Made up.", tuple(rows)), tmp_path_factory.mktemp("tree")
    fake_attacks.write(study, folder)
    return study, folder


@pytest.mark.parametrize("name", attacks.NAMES)
def test_no_label_of_an_attacks_figure_overlaps_another_or_leaves_it(
    name: str, attacked: tuple[Study, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "SHOWN", 2)
    with matplotlib.rc_context(fname=style.SHEET):
        figure = draw(name, *attacked)
        assert boxes.check(figure) > 6
    assert figure.get_figwidth() in style.WIDTHS
    assert "covered by no ε" in " ".join(figure.get_supxlabel().split())
    sizes = {round(text.get_fontsize(), 1) for text in figure.findobj(matplotlib.text.Text)}
    assert sizes <= {6.5, 8.0}


def test_no_two_settings_have_the_same_curve_and_none_looks_like_a_bound(
    attacked: tuple[Study, Path],
) -> None:
    with matplotlib.rc_context(fname=style.SHEET):
        figure = membership.figure(*attacked)
    steps = [line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post"]
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in steps}
    assert len(looks) == len(steps) == 9
    assert all(line.get_linestyle() not in ("--", ":") for line in steps[:7])
    assert len({color for color, _ in looks} | {style.PLAIN}) <= 8
