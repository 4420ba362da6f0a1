"""Figures: readable at the width of a paper's column, reproducible to the byte, true to the table,
and undisturbed by missing or diverged values."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import boxes
import fake_results
import tabled
from pages.archive import RUN_COLUMNS
from pflpipe.attacks import jobs as attacks
from pflpipe.cells import Cell, Partition
from pflpipe.errors import ConfigError, DataError
from pflpipe.methods import registry as methods
from pflpipe.report import comparison, statistics, tidy
from pflpipe.report.figures import clients, kinds, style
from pflpipe.study import documents
from pflpipe.study import figures as drawings
from pflpipe.study.study_spec import Chosen, Drawing, Row, Study


def evaluated(base: Cell = fake_results.BASE, **changes: Any) -> Cell:
    """A cell with accuracies by round."""
    return replace(base, training=replace(base.training, evaluate_every=2, **changes))


@pytest.fixture(scope="module")
def study() -> Study:
    return fake_results.study(base=evaluated())


@pytest.fixture(scope="module")
def folder(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    official = next(cell.id for cell in study.cells if cell.official_code)
    return fake_results.write(study, tmp_path_factory.mktemp("tree"), diverged={official: 3}).parent


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study with twenty methods."""
    study = fake_results.study(epsilons=(8.0,), methods=TABLED["MANY"], base=evaluated())
    return study, fake_results.write(study, tmp_path_factory.mktemp("crowd")).parent


TABLED = tabled.table("test_figures")
TABLES: dict[tuple[str, Path], pd.DataFrame] = {}


def table(study: Study, folder: Path) -> pd.DataFrame:
    """The tidy table of results that no test changes after it was asked for."""
    key = (repr(study), folder)
    if key not in TABLES:
        TABLES[key] = tidy.tidy(study, folder / "results")
    return TABLES[key]


def draw(kind: str, study: Study, folder: Path, frame=None, **options: Any) -> Figure:
    """A figure of a study of which part of the results' rows are chosen, or of another table."""
    results = folder / "results"
    if frame is None:
        tidy.write(table(study, folder), results / "tables" / f"{study.name}.csv")
    with matplotlib.rc_context(fname=style.SHEET):
        return kinds.draw(study, Drawing(kind, kind, **options), results, folder / "data", frame)


IN_PRINT = {"dp_fedavg": "DP-FedAvg", "feddpa": "FedDPA"}


def only(study: Study, *names: str) -> Study:
    return replace(study, rows=tuple(row for row in study.rows if row.cell.method in names))


def values(
    study: Study, folder: Path, method: str, epsilon: float | None, claim: str = "certified"
) -> np.ndarray:
    """Personal accuracy by seed, read from the tidy table; without privacy for no epsilon."""
    frame = table(study, folder)
    chosen = frame["method"] == method
    if epsilon is not None:
        chosen &= (frame["claim"] == claim) & (frame["epsilon_target"] == epsilon)
    return frame[chosen]["personal_own"].to_numpy(dtype=float)


def rows(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].get_yticklabels()]


def dots(figure: Figure, panel: int = 0) -> dict[str, Any]:
    """The mark of each row."""
    axes = figure.axes[panel]
    places = dict(zip(axes.get_yticks(), rows(figure, panel), strict=True))
    marks = [line for line in axes.lines if line.get_marker() in ("o", "s")]
    return {places[line.get_ydata()[0]]: line for line in marks}


def marked(figure: Figure, panel: int = 0) -> dict[str, float]:
    """The number at which each row's mark stands."""
    return {name: float(line.get_xdata()[0]) for name, line in dots(figure, panel).items()}


def bar(figure: Figure, name: str, panel: int = 0) -> list[float]:
    """The ends of the interval beside a row's mark."""
    height = dots(figure, panel)[name].get_ydata()[0]
    lines = figure.axes[panel].lines
    (found,) = (line for line in lines if list(line.get_ydata()) == [height, height])
    return list(found.get_xdata())


def panels(figure: Figure) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes]


def one_line(text: str) -> str:
    return " ".join(text.split())


def rounds_of(results: Path, cell: Cell) -> Path:
    return results / "runs" / methods.run_id(cell) / "rounds.csv"


# ---------------------------------------------------------------- what a paper needs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "width"), [*((kind, 3.3) for kind in sorted(kinds.KINDS)), ("cost", 6.7)]
)
def test_no_label_overlaps_another_or_leaves_the_figure_which_has_a_heading(kind, width, crowd):
    figure = draw(kind, *crowd, width=width)
    assert figure.get_figwidth() == width
    assert boxes.check(figure) > 6
    assert figure.get_suptitle() or kind == "ranks", "its caption where it is bare"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [("privacy_utility", 21), ("ranks", 18), ("gains", 20), ("cost", 21), ("soundness", 1)],
)
def test_every_method_has_a_row_with_a_name_of_its_own(kind, count, crowd):
    names = rows(draw(kind, *crowd))
    assert len(set(names)) == len(names) == count


@pytest.mark.slow
def test_no_two_named_curves_look_the_same_and_the_others_are_grey(crowd):
    figure = draw("convergence", *crowd)
    (axes,) = figure.axes
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    strong = [look for look in looks if look[0] != style.REST]
    assert len(set(strong)) == len(strong) == len(figure.legends[0].get_texts()) == 6
    assert len(looks) == 21
    assert len({*style.STRONG, style.REST}) == 8


@pytest.mark.slow
def test_curves_of_some_clients_say_so(crowd):
    study, folder = crowd
    one = only(study, "dp_fedavg")
    for some, words in ((0, "model. Mean"), (5, "model; 5 clients, drawn once for a seed. Mean")):
        cells = [evaluated(cell, evaluate_clients=some) for cell in one.cells]
        few = replace(one, rows=tuple(map(Row, cells)))
        fake_results.write(few, folder)
        assert words in one_line(draw("convergence", few, folder).get_suptitle())


def test_a_method_far_below_all_others_does_not_press_them_together(tmp_path):
    methods = ("local_only", "dp_fedavg", "fedper", "fedrep", "lg_fedavg", "feddpa")
    few = fake_results.study(epsilons=(8.0,), methods=methods)
    frame = tidy.tidy(few, fake_results.write(few, tmp_path))
    frame.loc[frame["method"] == "lg_fedavg", "personal_own"] += [-15, 0, 15]

    def drawn(method: str) -> Figure:
        lower = frame.copy()
        lower.loc[lower["method"] == method, "personal_own"] -= 1000
        return draw("privacy_utility", few, tmp_path, lower)

    far = drawn("fedrep")
    assert "Arrow: further to the left." in one_line(far.get_suptitle())
    (axes,) = far.axes
    assert -100 < axes.get_xlim()[0] < 0
    (arrow,) = (line for line in axes.lines if line.get_marker() == "<")
    places = dict(zip(axes.get_yticks(), rows(far), strict=True))
    assert places[arrow.get_ydata()[0]] == "FedRep"
    assert arrow.get_xdata()[0] == axes.get_xlim()[0]
    cut = [line for line in axes.lines if min(line.get_xdata()) < axes.get_xlim()[0]]
    names = {places[height] for line in cut if (height := line.get_ydata()[0]) in places}
    assert names <= {"FedRep"}, "nobody else's interval is cut"
    reference = drawn("local_only")
    assert "Arrow" not in reference.get_suptitle(), "what has no privacy is always on the scale"
    assert reference.axes[0].get_xlim()[0] < -1000


def test_the_comparison_needs_no_more_than_what_docs_results_keeps_of_runs(study, folder, tmp_path):
    few = only(study, "local_only", "dp_fedavg", "feddpa")
    kept = table(few, folder)
    kept = kept[[name for name in RUN_COLUMNS if name in kept]]
    figure = draw("privacy_utility", few, tmp_path, kept)
    whole = draw("privacy_utility", few, folder)
    for panel in range(len(whole.axes)):
        assert rows(figure, panel) == rows(whole, panel)
        assert marked(figure, panel) == marked(whole, panel)


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes_with_real_text_at_the_width(study, folder, tmp_path):
    few, before = only(study, "fedavg", "dp_fedavg", "feddpa"), dict(matplotlib.rcParams)
    tidy.write(table(few, folder), folder / "results" / "tables" / f"{few.name}.csv")
    for kind, name in itertools.product(("privacy_utility", "partition"), "ab"):
        target = tmp_path / f"{kind}_{name}.png"
        drawing = Drawing(kind, kind, width=3.3)
        kinds.write(few, drawing, folder / "results", folder / "data", target)
    assert dict(matplotlib.rcParams) == before, "drawing leaves matplotlib as it was"
    for kind, suffix in itertools.product(("privacy_utility", "partition"), ("png", "svg", "pdf")):
        first, second = ((tmp_path / f"{kind}_{name}.{suffix}").read_bytes() for name in "ab")
        assert first == second, (kind, suffix)
        assert len(first) > 5000
        assert not re.search(rb"dc:date|CreationDate|matplotlib (v|pdf)", first)
    svg = (tmp_path / "privacy_utility_a.svg").read_text()
    assert float(re.search(r'width="([\d.]+)pt"', svg)[1]) == pytest.approx(72 * 3.3)
    assert "<text" in svg
    assert "DP-FedAvg" in svg
    assert "dp_fedavg" not in svg
    pdf = (tmp_path / "privacy_utility_a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)} == {6.5, 8.0}


def test_a_bare_figure_has_its_heading_and_its_note_in_a_text_beside_it(study, folder, tmp_path):
    few = only(study, "fedavg", "dp_fedavg", "feddpa")
    drawing, frame = Drawing("privacy_utility", "privacy_utility", width=3.3), table(few, folder)
    places = (few, drawing, folder / "results", folder / "data")
    whole = draw("privacy_utility", few, folder, frame, width=3.3)
    kinds.write(*places, tmp_path / "a.png", frame, bare=True)
    text, svg = (tmp_path / "a.txt").read_text(), (tmp_path / "a.svg").read_text()
    said = f"{whole.get_suptitle()} {whole.get_supxlabel()}".replace("-\n", "-")
    assert text.split() == said.split()
    assert "95" not in "".join(re.findall(r"<text[^>]*>([^<]*)", svg))
    lines = [*whole.get_suptitle().splitlines(), *whole.get_supxlabel().strip().splitlines()]
    height = float(re.search(r'height="([\d.]+)pt"', svg)[1]) / 72
    assert height == pytest.approx(whole.get_figheight() - style.LINE * len(lines))


@pytest.mark.parametrize("kind", ["privacy_utility", "partition"])
def test_a_line_says_that_no_epsilon_covers_what_is_measured(kind, study, folder):
    chosen = Chosen(0, {"hyperparameters.tau": 0.4}, sets=3, runs=6)
    searched = replace(study, rows=tuple(replace(row, chosen=chosen) for row in study.rows))
    plain, of_choice = TABLED["NOT_COVERED"]
    assert one_line(draw(kind, study, folder).get_supxlabel()) == plain
    assert one_line(draw(kind, searched, folder).get_supxlabel()) == f"{plain} {of_choice}"


# ---------------------------------------------------------------- the comparison


def test_methods_stand_at_their_difference_to_the_reference_best_first(study, folder):
    figure = draw("privacy_utility", study, folder)
    assert panels(figure) == ["ε = 2", "ε = 8"]
    marks, reference = marked(figure, 1), values(study, folder, "dp_fedavg", 8.0)
    better = values(study, folder, "feddpa", 8.0) - reference
    alone = values(study, folder, "local_only", None) - reference
    assert marks["FedDPA"] == pytest.approx(better.mean())
    assert marks["Local only\nsends nothing"] == pytest.approx(alone.mean())
    assert marks["DP-FedAvg"] == 0
    places = [marks[name] for name in rows(figure, 1) if name in ("DP-FedAvg", "FedDPA")]
    assert places == sorted(places, reverse=True)
    numbers = {text.get_text() for text in figure.axes[1].texts}
    assert f"{values(study, folder, 'feddpa', 8.0).mean():.1f}" in numbers


def test_a_nominal_row_is_hollow_and_names_the_epsilon_that_holds(study, folder):
    marks = dots(draw("privacy_utility", study, folder))
    hollow = [name for name, line in marks.items() if line.get_markerfacecolor() == "white"]
    assert hollow == ["FedDPA (official code) †\nhonest ε = ∞"]
    assert {"FedAvg\nno privacy", "Local only\nsends nothing", "DP-FedAvg"} < set(marks)


def test_without_the_reference_accuracies_stand_for_themselves(study, folder):
    figure = draw("privacy_utility", only(study, "local_only", "feddpa"), folder)
    assert figure.axes[0].get_xlabel() == "accuracy (%)"
    mean = values(study, folder, "feddpa", 2.0).mean()
    assert marked(figure)["FedDPA"] == pytest.approx(mean)
    assert panels(draw("privacy_utility", only(study, "local_only"), folder)) == ["no privacy"]


def test_a_figure_shows_what_its_study_chose(study, folder):
    chosen = {"methods": ("feddpa",), "where": {"privacy.epsilon": [8]}}
    figure = draw("privacy_utility", study, folder, **chosen)
    assert panels(figure) == ["ε = 8"]
    assert {name.partition(" ")[0] for name in rows(figure)} == {"DP-FedAvg", "FedDPA"}
    common = draw("privacy_utility", study, folder, metric="global_common")
    assert "common test, global model" in one_line(common.get_suptitle())
    assert not any(name.startswith("Local only") for name in rows(common))


@pytest.mark.slow
def test_an_axis_of_the_study_gets_panels(study, tmp_path):
    cells = [
        replace(cell, partition=replace(cell.partition, alpha=alpha))
        for cell in only(study, "fedavg", "dp_fedavg").cells
        for alpha in (0.1, 1.0)
    ]
    wide = replace(study, rows=tuple(map(Row, cells)))
    fake_results.write(wide, tmp_path)
    titles = panels(draw("privacy_utility", wide, tmp_path))
    assert titles == ["ε = 2, α = 0.1", "ε = 8, α = 0.1", "ε = 2, α = 1", "ε = 8, α = 1"]


def test_soundness_is_the_difference_of_the_published_version_to_the_certified_one(study, folder):
    ((name, number),) = marked(draw("soundness", study, folder), 1).items()
    published = values(study, folder, "feddpa", 8.0, claim="nominal")
    expected = published - values(study, folder, "feddpa", 8.0)
    assert "honest ε = ∞" in name
    assert number == pytest.approx(expected.mean())


def test_soundness_compares_versions_of_the_same_hyperparameters(study, tmp_path):
    own = only(study, "feddpa")
    cells = [cell for cell in own.cells if not cell.departures]
    others = [Row(replace(cell, hyperparameters={"tau": 0.1})) for cell in cells]
    both = replace(own, rows=(*others, *own.rows))
    frame = tidy.tidy(both, fake_results.write(both, tmp_path))
    frame["personal_own"] = 80.0
    frame.loc[frame["claim"] == "nominal", "personal_own"] = 83.0
    frame.loc[frame["hyperparameters"].str.contains('"tau": 0.1'), "personal_own"] = 10.0
    (number,) = marked(draw("soundness", both, tmp_path, frame)).values()
    assert number == pytest.approx(3.0)


def test_intervals_beside_the_baseline_are_those_of_the_tables(crowd):
    study, folder = crowd
    figure = draw("privacy_utility", study, folder)
    known = comparison.groups(study, table(study, folder))
    section = [one for one in comparison.of_claim(known, "certified") if one.budget == "ε = 8"]
    base = comparison.find(section, "dp_fedavg", "ε = 8")
    assert len(section) > 2, "variances of several lines are pooled"
    found = {one.label: own for one, own in comparison.against(section, base).items()}
    assert bar(figure, "FedDPA") == pytest.approx([found["feddpa"].low, found["feddpa"].high])


def test_ranks_are_those_of_certified_methods(study, folder):
    figure = draw("ranks", study, folder)
    assert {*rows(figure)} == {*IN_PRINT.values()}
    assert marked(figure)[rows(figure)[0]] == 1
    for panel, epsilon in enumerate((2.0, 8.0)):
        own = {IN_PRINT[name]: values(study, folder, name, epsilon) for name in IN_PRINT}
        words = (study.name, f"ε = {epsilon:g}")
        expected = statistics.rank_intervals(pd.DataFrame(own), *words)
        for name, ends in expected.items():
            assert tuple(bar(figure, name, panel)) == ends
            others = [numbers.mean() for other, numbers in own.items() if other != name]
            rank = 1 + sum(mean > own[name].mean() for mean in others)
            assert marked(figure, panel)[name] == rank


def test_a_cost_is_a_clients_bytes_of_all_rounds_and_blue_on_the_frontier(study, folder):
    figure = draw("cost", study, folder)
    assert [axes.get_xlabel() for axes in figure.axes[:3]] == ["%", "MB", "seconds"]
    single = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 1]
    each = 9640.0 / fake_results.BASE.partition.clients
    bytes_sent = sorted({line.get_xdata()[0] for line in single})
    assert bytes_sent == pytest.approx([0.0, 1e-6 * each * fake_results.ROUNDS])
    names = dict(zip(figure.axes[0].get_yticks(), rows(figure), strict=True))
    colours = {names[line.get_ydata()[0]]: line.get_color() for line in single}
    means = {IN_PRINT[name]: values(study, folder, name, 2.0).mean() for name in IN_PRINT}
    better, worse = sorted(means, key=lambda name: -means[name])
    assert (colours[better], colours[worse]) == (style.CERTIFIED, style.PLAIN), "both send as much"


def test_gains_count_the_clients_that_are_better_off_than_alone(study, folder):
    figure = draw("gains", study, folder)

    def of_clients(method: str) -> np.ndarray:
        """Of every client at epsilon 2, seed by seed."""
        frame = pd.read_csv(folder / f"results/scores/tiny/{method}.csv", index_col="cell")
        cells = [cell for cell in only(study, method).cells if cell.privacy.epsilon in (None, 2.0)]
        return frame.loc[[cell.id for cell in cells], "personal_own"].to_numpy()

    gain = of_clients("dp_fedavg") - of_clients("local_only")
    axes = figure.axes[0]
    height = dict(zip(rows(figure), axes.get_yticks(), strict=True))["DP-FedAvg"]
    bars = [bar for bar in axes.patches if bar.get_y() < height < bar.get_y() + bar.get_height()]
    found = sorted(bar.get_width() for bar in bars)
    edges = (0.0, *clients.STEPS)
    shares = [sign * 100 * (sign * gain > edge).mean() for edge in edges for sign in (1, -1)]
    assert found == pytest.approx(sorted(shares))
    assert max(found) > 0


# ---------------------------------------------------------------- curves


@pytest.mark.slow
def test_accuracy_by_round_is_the_mean_over_seeds(study, folder):
    figure = draw("convergence", study, folder)
    assert panels(figure) == ["ε = 2", "ε = 8"]
    for line in figure.axes[0].lines:
        xs, ys = line.get_data()
        assert list(xs) == [2, 4]
        assert list(ys) == [62.0, 64.0]


@pytest.mark.slow
def test_the_bar_of_a_named_curve_is_the_range_of_its_seeds_in_the_last_round(study, tmp_path):
    part, last = only(study, "dp_fedavg"), (50.0, 65.0, 95.0)
    results = fake_results.write(part, tmp_path)
    for cell in part.cells:
        rounds = pd.read_csv(rounds_of(results, cell))
        rounds.loc[rounds.index[-1], "personal_own"] = last[cell.seed]
        rounds.to_csv(rounds_of(results, cell), index=False)
    figure = draw("convergence", part, tmp_path)
    assert len(figure.axes) == 2
    for axes in figure.axes:
        (curve,), (bars,) = axes.lines, axes.collections
        (((right, low), (_, high)),) = bars.get_segments()
        assert right > max(curve.get_xdata())
        assert (low, high) == (50.0, 95.0)
        assert low < curve.get_ydata()[-1] < high


@pytest.mark.slow
def test_the_curves_that_a_study_names_stand_out(study, folder):
    figure = draw("convergence", study, folder, strong=("fedavg",))
    axes = figure.axes[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg, no privacy"]
    assert sum(line.get_color() == style.REST for line in axes.lines) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd", [("", "nan", "inf", "0.0", "-inf", "1e300", "-1.0"), ("1.0", "nan", "inf", "", "2.0")]
)
def test_no_value_of_rounds_csv_crashes_a_figure(odd, tmp_path):
    few = {"seeds": (0,), "epsilons": (2.0,), "methods": ("dp_fedavg", "fedavg")}
    study = fake_results.study(base=evaluated(), **few)
    results = fake_results.write(study, tmp_path)
    values = itertools.cycle(odd)
    for cell in study.cells:
        header, *lines = rounds_of(results, cell).read_text().splitlines()
        width = header.count(",")
        broken = [[line.split(",")[0], *itertools.islice(values, width)] for line in lines]
        fake_results.write_csv(rounds_of(results, cell), header, broken)
    figure = draw("convergence", study, tmp_path)
    drawn = [y for line in figure.axes[0].lines for y in line.get_ydata()]
    assert drawn
    assert not np.isinf(drawn).any()


# ---------------------------------------------------------------- nothing to show


@pytest.mark.slow
def test_missing_accuracies_leave_gaps(study, folder, tmp_path):
    part = only(study, "dp_fedavg", "feddpa")
    results = fake_results.write(part, tmp_path)
    file = results / "scores" / "tiny" / "feddpa.csv"
    scores = pd.read_csv(file)
    scores.loc[:, "personal_own":] = np.nan
    scores.to_csv(file, index=False)
    assert rows(draw("privacy_utility", part, tmp_path)) == ["DP-FedAvg"]


@pytest.mark.parametrize(("kind", "names", "words"), TABLED["NOTHING_TO_SHOW"])
def test_a_figure_with_nothing_to_show_says_what_it_needs(kind, names, words, study, folder):
    metric = "personal_new" if kind in ("privacy_utility", "convergence") else "personal_own"
    with pytest.raises(DataError, match=rf"figure {kind} of study tiny.*{words}"):
        draw(kind, only(study, *names), folder, metric=metric)


def test_only_what_runs_can_show_is_a_figure_of_a_study_without_a_block():
    plain = [drawing.name for drawing in drawings.read({}, "f", fake_results.study().rows)]
    assert plain == ["privacy_utility", "soundness", "gains", "cost", "partition"]
    many = fake_results.study(seeds=range(5), base=evaluated())
    every = {drawing.name for drawing in drawings.read({}, "f", many.rows)}
    assert every == set(drawings.KINDS) == set(kinds.KINDS)


def test_the_block_of_a_study_chooses_and_names_its_figures():
    rows = fake_results.study().rows
    block = {
        "at_8": {"kind": "privacy_utility", "width": 3.3, "where": {"privacy.epsilon": [8]}},
        "cost": {"methods": ["feddpa"], "metric": "global_common"},
    }
    methods = [{"name": name} for name in fake_results.study().methods]
    found = drawings.read({"methods": methods, "figures": block}, "f", rows)
    assert found == (
        Drawing("at_8", "privacy_utility", width=3.3, where={"privacy.epsilon": [8]}),
        Drawing("cost", "cost", metric="global_common", methods=("feddpa",)),
    )
    study = replace(fake_results.study(), figures=found)
    assert drawings.find(study, "at_8") == found[0]
    assert drawings.find(study, "gains") == Drawing("gains", "gains")
    with pytest.raises(ConfigError, match=r"has no figure 'gain'.*gains"):
        drawings.find(study, "gain")


def test_the_schema_knows_the_kinds_and_the_widths_and_of_an_attack_no_more_than_the_width():
    schema = documents.schema()["$defs"]["figures"]
    known = schema["additionalProperties"]["properties"]
    assert tuple(known["width"]["enum"]) == style.WIDTHS
    name = re.compile(schema["propertyNames"]["pattern"])
    assert not any(map(name.search, ("A", "a b", "")))
    assert all(map(name.search, (*drawings.KINDS, "membership_2")))
    ((of_attacks, rules),) = schema["patternProperties"].items()
    assert drawings.ATTACKS == attacks.NAMES
    assert all(re.search(of_attacks, name) for name in attacks.NAMES)
    assert not any(re.search(of_attacks, name) for name in (*drawings.KINDS, "membership_2"))
    assert list(rules["properties"]) == ["width"]
    assert known["strong"]["maxItems"] == len(style.STRONG)


# ---------------------------------------------------------------- partition


def drawn_partition(partition: Partition, folder: Path, seeds: tuple[int, ...]) -> Figure:
    base = replace(fake_results.BASE, partition=partition)
    study = fake_results.study("tiny", seeds, (2.0,), ("dp_fedavg",), base)
    fake_results.write(study, folder)
    return draw("partition", study, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "numbered"), [(10, True), (100, False)])
def test_the_partition_figure_counts_every_example_of_every_client(clients, numbered, tmp_path):
    several = replace(fake_results.BASE.partition, clients=clients)
    figure = drawn_partition(several, tmp_path, seeds=(0, 1))
    above, below = figure.axes[:2]
    mesh = above.images[0].get_array()
    assert mesh.shape == (10, clients)
    # Training and validation: the helper gives every client one test example.
    assert mesh.sum() == 600 - clients
    assert sum(patch.get_height() for patch in below.patches) == 600
    assert bool(above.texts) is numbered
    assert f"{clients} clients" in figure.subfigs[0].get_suptitle()


def test_the_partition_figure_counts_natural_users(tmp_path):
    figure = drawn_partition(Partition("natural"), tmp_path, seeds=(0,))
    assert figure.subfigs[0].get_suptitle() == "digits: natural, 12 clients, seed 0"


def test_a_missing_partition_is_one_clear_line(study, tmp_path):
    with pytest.raises(DataError, match=r"does not exist; .*snakemake"):
        draw("partition", study, tmp_path)
