"""Figures: complete, reproducible to the byte, and undisturbed by missing or diverged values."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import fake_results
from pflpipe.cells import Cell
from pflpipe.errors import DataError
from pflpipe.methods import registry
from pflpipe.report import figures, tidy
from pflpipe.study.outline import Chosen, Row, Study
from pflpipe.study.settings import layout


@pytest.fixture(scope="module")
def study() -> Study:
    return fake_results.study(seeds=(0, 1))


@pytest.fixture(scope="module")
def folder(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tree")
    official = next(cell.id for cell in study.cells if cell.official_code)
    fake_results.write(study, place, diverged={official: 3})
    return place


def draw(kind: str, study: Study, folder: Path) -> Figure:
    results = folder / "results"
    tidy.write(tidy.tidy(study, results), results / "tables" / f"{study.name}.csv")
    return figures.KINDS[kind](study, folder / "results", folder / "data")


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def words(figure: Figure) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in axes.texts}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """One private and one other run."""
    place = tmp_path_factory.mktemp("single")
    study = fake_results.study(seeds=(0,), epsilons=(2.0,), methods=("dp_fedavg", "fedavg"))
    fake_results.write(study, place)
    return study, place


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(figures.KINDS))
def test_the_same_results_give_the_same_bytes(
    kind: str, single: tuple[Study, Path], tmp_path: Path
) -> None:
    study, folder = single
    for name in ("a", "b"):
        figures.write(study, kind, folder / "results", folder / "data", tmp_path / f"{name}.png")
    for suffix in ("png", "svg"):
        first, second = (
            (tmp_path / f"a.{suffix}").read_bytes(),
            (tmp_path / f"b.{suffix}").read_bytes(),
        )
        assert len(first) > 5000
        assert first == second
        assert b"<dc:date>" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


@pytest.mark.slow
def test_drawing_leaves_matplotlib_as_it_was(single: tuple[Study, Path], tmp_path: Path) -> None:
    study, folder = single
    before = dict(matplotlib.rcParams)
    figures.write(study, "noise", folder / "results", folder / "data", tmp_path / "x.png")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("kind", sorted(figures.KINDS))
def test_a_line_says_that_no_epsilon_covers_what_is_measured(
    kind: str, study: Study, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda draw, target: drawn.append(draw()))
    chosen = Chosen(0, {"hyperparameters.tau": 0.4}, sets=3, runs=6)
    searched = dataclasses.replace(
        study, rows=tuple(dataclasses.replace(row, chosen=chosen) for row in study.rows)
    )
    for one in (study, searched):
        figures.write(one, kind, folder / "results", folder / "data", folder / "x.png")
    plain, after_search = (" ".join(figure.get_suptitle().split()) for figure in drawn)
    assert plain == (
        "Measured values are diagnostics: the experimenter's own measurements on public data, "
        "covered by no ε."
    )
    assert (
        after_search
        == f"{plain} Hyper-parameters were chosen on validation data; no ε covers that choice."
    )


# ---------------------------------------------------------------- privacy_utility


def test_utility_shows_every_line_of_the_table(study: Study, folder: Path) -> None:
    figure = draw("privacy_utility", study, folder)
    assert labels(figure) == [
        "local_only",
        "fedavg",
        "dp_fedavg",
        "feddpa",
        "feddpa (official code)",
        "nominal claim",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "personal own accuracy (%)",
        "global common accuracy (%)",
    ]


def test_a_nominal_point_stands_at_its_honest_epsilon_hollow_with_its_claim_beside_it(
    study: Study, folder: Path
) -> None:
    axes = draw("privacy_utility", study, folder).axes[0]
    (hollow,) = [
        line
        for line in axes.lines
        if line.get_markerfacecolor() == "white" and len(line.get_xdata()) == 2
    ]
    infinity = axes.get_xticks()[-1]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "8", "∞"]
    assert all(abs(x / infinity - 1) < 0.05 for x in np.asarray(hollow.get_xdata()))
    assert {"claims 2", "claims 8"} <= {text.get_text() for text in axes.texts}


def test_a_certified_point_stands_at_its_epsilon_with_the_deviation_of_its_seeds(
    study: Study, folder: Path
) -> None:
    frame = tidy.tidy(study, folder / "results")
    values = frame[(frame["method"] == "dp_fedavg") & (frame["epsilon_target"] == 8.0)][
        "personal_own"
    ].astype(float)
    axes = draw("privacy_utility", study, folder).axes[0]
    means = [
        float(y)
        for line in axes.lines
        for y in np.atleast_1d(np.asarray(line.get_ydata(), dtype=float))
    ]
    assert any(abs(y - values.mean()) < 1e-9 for y in means)
    bars = [segment for bar in axes.collections for segment in getattr(bar, "get_segments", list)()]
    assert any(abs((bar[1][1] - bar[0][1]) / 2 - values.std(ddof=1)) < 1e-9 for bar in bars)


@pytest.mark.slow
def test_only_infinite_epsilons_still_make_an_axis(study: Study, folder: Path) -> None:
    nominal = dataclasses.replace(
        study, rows=tuple(row for row in study.rows if row.cell.official_code)
    )
    axes = draw("privacy_utility", nominal, folder).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "8", "∞"]


def test_without_an_infinite_epsilon_there_is_no_infinity_on_the_axis(
    study: Study, folder: Path
) -> None:
    certified = dataclasses.replace(
        study, rows=tuple(row for row in study.rows if not row.cell.departures)
    )
    axes = draw("privacy_utility", certified, folder).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "8"]


def test_a_study_of_local_training_alone_still_has_a_utility_figure(
    study: Study, folder: Path
) -> None:
    local = dataclasses.replace(
        study, rows=tuple(row for row in study.rows if row.cell.method == "local_only")
    )
    figure = draw("privacy_utility", local, folder)
    assert labels(figure) == ["local_only"]
    assert len(figure.axes) == 1
    assert list(figure.axes[0].get_xticks()) == []


@pytest.mark.slow
def test_an_axis_of_the_study_gets_a_row_of_panels(study: Study, tmp_path: Path) -> None:
    rows = [
        Row(
            dataclasses.replace(
                row.cell, partition=dataclasses.replace(row.cell.partition, alpha=alpha)
            )
        )
        for row in study.rows[:8]
        for alpha in (0.1, 1.0)
    ]
    wide = dataclasses.replace(study, rows=tuple(rows))
    fake_results.write(wide, tmp_path)
    for kind, panels in (("privacy_utility", 4), ("convergence", 6), ("partition", 6)):
        figure = draw(kind, wide, tmp_path)
        assert len(figure.axes) == panels, kind
    assert {axes.get_title() for axes in draw("privacy_utility", wide, tmp_path).axes} == {
        "α = 0.1",
        "α = 1",
    }


# ---------------------------------------------------------------- convergence, noise


@pytest.mark.slow
def test_accuracies_by_round_are_drawn_below_the_loss_where_a_study_asks_for_them(
    tmp_path: Path,
) -> None:
    training = dataclasses.replace(fake_results.BASE.training, evaluate_every=2)
    study = fake_results.study(
        seeds=(0, 1), base=dataclasses.replace(fake_results.BASE, training=training)
    )
    fake_results.write(study, tmp_path)
    figure = draw("convergence", study, tmp_path)
    budgets = 3
    assert (
        len(figure.axes) == 3 * budgets
    )  # the loss, personal models on their own tests, on the common test
    words = [axes.get_ylabel() for axes in figure.axes[::budgets]]
    assert words == ["training loss", "personal own (%)", "personal common (%)"]
    for axes, first in ((figure.axes[budgets], 62.0), (figure.axes[2 * budgets], 52.0)):
        xs, ys = axes.lines[0].get_data()
        assert list(xs) == [2, 4]
        assert list(ys) == [first, first + 2]


def test_convergence_has_a_panel_per_budget_and_marks_divergence(
    study: Study, folder: Path
) -> None:
    figure = draw("convergence", study, folder)
    assert [axes.get_title() for axes in figure.axes] == ["no privacy", "ε = 2", "ε = 8"]
    assert "diverged" in labels(figure)
    crosses = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[3]]
    official = next(cell for cell in study.cells if cell.official_code)
    losses = pd.read_csv(folder / "results" / "runs" / registry.run_id(official) / "rounds.csv")[
        "loss"
    ]
    assert list(crosses[0].get_ydata()) == [losses[1]], (
        "it stands at the last loss that was a number"
    )


def test_the_loss_curve_is_the_mean_over_seeds(study: Study, folder: Path) -> None:
    cells = [cell for cell in study.cells if cell.method == "fedavg"]
    losses = [
        pd.read_csv(folder / "results" / "runs" / registry.run_id(cell) / "rounds.csv")["loss"]
        for cell in cells
    ]
    axes = draw("convergence", study, folder).axes[0]
    assert any(np.allclose(line.get_ydata(), sum(losses) / 2) for line in axes.lines)


def test_noise_is_drawn_for_private_methods_only(study: Study, folder: Path) -> None:
    figure = draw("noise", study, folder)
    assert labels(figure)[:3] == ["dp_fedavg", "feddpa", "feddpa (official code)"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear", "linear"]
    public = dataclasses.replace(
        study, rows=tuple(row for row in study.rows if row.cell.method == "fedavg")
    )
    assert words(draw("noise", public, folder)) == {"no method of this study adds noise"}


@pytest.mark.slow
@pytest.mark.parametrize("values", [("", "nan", "inf", "0.0", "-inf", "1e300", "-1.0"), ("nan",)])
def test_no_value_of_rounds_csv_crashes_a_figure(values: tuple[str, ...], tmp_path: Path) -> None:
    study = fake_results.study(seeds=(0,), epsilons=(2.0,), methods=("dp_fedavg", "fedavg"))
    results = fake_results.write(study, tmp_path)
    odd = itertools.cycle(values)
    for cell in study.cells:
        path = results / "runs" / registry.run_id(cell) / "rounds.csv"
        header, *lines = path.read_text().splitlines()
        broken = [
            ",".join([line.split(",")[0], *(next(odd) for _ in range(header.count(",")))])
            for line in lines
        ]
        path.write_text("\n".join([header, *broken]) + "\n")
    for kind in ("convergence", "noise"):
        figures.write(study, kind, results, tmp_path / "data", tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").stat().st_size > 5000
        drawn = [
            y
            for axes in draw(kind, study, tmp_path).axes
            for line in axes.lines
            for y in line.get_ydata()
        ]
        assert not any(math.isinf(y) for y in drawn)


@pytest.mark.slow
def test_missing_accuracies_and_epsilons_leave_gaps(tmp_path: Path) -> None:
    study = fake_results.study(seeds=(0,), epsilons=(2.0,))
    results = fake_results.write(study, tmp_path)
    for path in (results / "scores" / "tiny").glob("*.csv"):
        header, *lines = path.read_text().splitlines()
        path.write_text(
            "\n".join([header, *(",".join([*line.split(",")[:3], *[""] * 6]) for line in lines)])
            + "\n"
        )
    figures.write(study, "privacy_utility", results, tmp_path / "data", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


# ---------------------------------------------------------------- partition


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "numbered"), [(10, True), (100, False)])
def test_the_partition_figure_counts_every_example_of_every_client(
    clients: int, numbered: bool, tmp_path: Path
) -> None:
    base: Cell = dataclasses.replace(
        fake_results.BASE,
        partition=dataclasses.replace(fake_results.BASE.partition, clients=clients),
    )
    study = fake_results.study(seeds=(0, 1), epsilons=(2.0,), methods=("dp_fedavg",), base=base)
    fake_results.write(study, tmp_path)
    figure = draw("partition", study, tmp_path)
    above, below = figure.axes[:2]
    mesh = above.collections[0].get_array()
    assert mesh is not None
    assert mesh.shape == (10, clients)
    sizes = sum(patch.get_height() for patch in below.patches)
    assert sizes == 600
    assert bool(above.texts) is numbered
    assert mesh.sum() == 600 - clients, (
        "training and validation; the helper gives every client one test example"
    )


def test_a_missing_partition_is_one_clear_line(study: Study, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist; .*snakemake"):
        draw("partition", study, tmp_path)


# ---------------------------------------------------------------- the methods' looks


def test_a_method_has_the_same_colour_in_every_study(study: Study) -> None:
    few = dataclasses.replace(study, rows=study.rows[-2:])
    for method in {setting.method for setting in layout(few).settings}:
        looks = [
            figures._Style(plan)(
                next(setting for setting in plan.settings if setting.method == method)
            )["color"]
            for plan in (layout(study), layout(few))
        ]
        assert looks[0] == looks[1]


def test_all_methods_together_can_be_told_apart(study: Study) -> None:
    names = [*figures._METHODS, "a_new_one", "another_one"]
    rows = tuple(Row(dataclasses.replace(study.cells[0], method=name)) for name in names)
    plan = layout(dataclasses.replace(study, rows=rows))
    style = figures._Style(plan)
    looks = [tuple(style(setting).values()) for setting in plan.settings]
    assert len(set(looks)) == len(names)
