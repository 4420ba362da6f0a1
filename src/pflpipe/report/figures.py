"""The four figures of a study: utility against honest privacy, convergence, who holds what, noise
against signal.

Figures never touch matplotlib's global state (no pyplot), and their files carry no date and no
random ids: the same results give the same bytes. A missing, infinite or diverged value leaves a gap
or a mark, never an exception.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pflpipe.data.partition import Split
from pflpipe.files import atomic
from pflpipe.methods import registry
from pflpipe.report.summary import METRIC_WORDS, largest, not_covered, round_up
from pflpipe.report.tidy import existing, stored
from pflpipe.study.outline import Study
from pflpipe.study.settings import DIAGNOSTICS, NO_PRIVACY, Layout, Setting, layout

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "svg.hashsalt": "pflpipe",
}
# A method has one colour and one marker in every figure. The first eight names get the colours of
# Okabe and Ito (grey for their yellow, which is lost on white), the next ones the same with other
# dashes and markers; methods not named here come last.
_COLOURS = ("#000000", "#777777", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_MARKERS = "os^Dv<>PX"
# fmt: off
_METHODS = (
    "local_only", "fedavg", "dp_fedavg", "dp_fedavg_fb", "feddpa", "dp_fedsam", "ppsgd", "centaur",
    "fedglp_adp", "fedbabu", "dp_fedsim", "dp_pfeddsu", "pmtl_ft", "blur_lus", "dp_fedsam_topk",
    "fedaddp", "fedper", "fedrep", "fedbn", "lg_fedavg", "appfl", "appfl_steps",
    "ditto", "fedprox", "apfl", "per_fedavg", "pfedme", "fedala", "fedpac",
)
# fmt: on
_WEIGHTS = {"noise": {"linewidth": 3.0, "alpha": 0.4}, "signal": {"linewidth": 0.0, "alpha": 1.0}}
_DASHES = ("-", "--", ":", "-.")
_HEAT = LinearSegmentedColormap.from_list(
    "counts", ["#ffffff", "#bfd9ec", "#56a0d3", "#0b559f", "#08264d"]
)


def write(study: Study, kind: str, results: Path, data: Path, target: Path) -> None:
    """Draw one of ``KINDS`` below a line about what no epsilon covers; write ``target`` (.png) and
    the same as .svg beside it.

    Args:
        results, data: the folders of config.yaml.
    """

    def draw() -> Figure:
        figure = KINDS[kind](study, results, data)
        words = textwrap.fill(
            not_covered(study, f"Measured values are {DIAGNOSTICS}"),
            int(20 * figure.get_figwidth()),
        )
        figure.suptitle(words, x=0.01, ha="left", fontsize=6.5, color="#777777")
        return figure

    save(draw, target)


def save(draw: Callable[[], Figure], target: Path) -> None:
    """Draw in the style of all figures and write ``target`` (.png) and the same as .svg beside
    it."""
    with matplotlib.rc_context(_STYLE):
        figure = draw()
        FigureCanvasAgg(figure)
        with atomic(target.with_suffix(".svg")) as path:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        with atomic(target) as path:
            figure.savefig(path, format="png", dpi=160, metadata={"Software": None})


class _Style:
    """Colour and marker by method, dashes by the lines that share a method."""

    def __init__(self, plan: Layout) -> None:
        strangers = sorted({setting.method for setting in plan.settings} - set(_METHODS))
        self._order = [*_METHODS, *strangers]
        self._lines: dict[str, list[str]] = {}
        for setting in plan.settings:
            lines = self._lines.setdefault(setting.method, [])
            if setting.label not in lines:
                lines.append(setting.label)

    def __call__(self, setting: Setting) -> dict[str, Any]:
        index = self._order.index(setting.method)
        turn, line = index // len(_COLOURS), self._lines[setting.method].index(setting.label)
        return {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKERS[(index + turn + line) % len(_MARKERS)],
            "linestyle": _DASHES[(turn + line) % len(_DASHES)],
        }


def _grid(
    rows: int, columns: int, *, width: float, height: float, **options: Any
) -> tuple[Figure, Any]:
    figure = Figure(figsize=(max(width * columns, 4.8), height * rows + 0.7), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    if handles:
        columns = max(1, int(figure.get_figwidth() / 2.1))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=min(columns, len(handles)),
        )


# ---------------------------------------------------------------- utility against honest privacy


def privacy_utility(study: Study, results: Path, data: Path) -> Figure:
    """Accuracy against the honest central epsilon, mean and standard deviation over seeds.

    Methods without privacy are horizontal bands. Hollow markers are nominal: they stand at the
    epsilon that the mechanism provides, and a dotted line leads to the one it claims. No finite
    epsilon: the right edge, marked with the sign of infinity.
    """
    frame, plan = stored(study, results), layout(study)
    style = _Style(plan)
    metrics = [name for name in ("personal_own", "global_common") if frame[name].notna().any()] or [
        "personal_own"
    ]
    figure, grid = _grid(len(plan.facets), len(metrics), width=4.4, height=3.0, sharex=True)
    private_rows = [
        frame.iloc[list(setting.indices)]
        for setting in plan.settings
        if setting.budget != NO_PRIVACY
    ]
    edge = _Edge(
        largest(rows[name])
        for rows in private_rows
        for name in ("epsilon_central", "epsilon_nominal")
    )
    handles: dict[str, Any] = {}
    for row, facet in enumerate(plan.facets):
        lines: dict[str, list[tuple[Setting, pd.DataFrame]]] = {}
        for setting in plan.settings:
            if setting.belongs(facet):
                lines.setdefault(setting.label, []).append(
                    (setting, frame.iloc[list(setting.indices)])
                )
        private = [label for label, parts in lines.items() if parts[0][0].budget != NO_PRIVACY]
        # Points of the same epsilon stand beside each other, all of them within 30 % of it.
        step = min(1.035, 1.3 ** (1 / max(len(private) - 1, 1)))
        for column, metric in enumerate(metrics):
            axes: Axes = grid[row, column]
            for label, parts in lines.items():
                if label in private:
                    shift = step ** (private.index(label) - (len(private) - 1) / 2)
                    handle = _curve(axes, parts, metric, style, edge, shift)
                else:
                    handle = _band(axes, parts[0], metric, style)
                if handle is not None:
                    handles.setdefault(label, handle)
            edge.dress(axes)
            axes.set_title(facet_title(facet))
            axes.set_ylabel(f"{METRIC_WORDS[metric]} accuracy (%)")
            if row == len(plan.facets) - 1:
                delta = plan.shared.get("privacy.delta")
                axes.set_xlabel(
                    f"honest ε{f' at δ = {delta:g}' if delta else ''}, central trust (log scale)"
                )
    if (frame["claim"] == "nominal").any():
        handles["nominal claim"] = Line2D(
            [], [], color="#555555", marker="o", markerfacecolor="white", linestyle=":"
        )
    _legend(figure, handles)
    return figure


def facet_title(facet: Mapping[str, str]) -> str:
    """Return a panel's title, e.g. ``α = 0.3``."""
    return ", ".join(f"{name} = {value}" for name, value in facet.items())


class _Edge:
    """A logarithmic epsilon axis; ticks stand where points do, and infinity, if it occurs, at the
    right edge."""

    def __init__(self, epsilons: Iterable[float | None]) -> None:
        values = sorted({value for value in epsilons if value is not None})
        self.finite = [value for value in values if 0 < value < math.inf]
        low, high = (self.finite[0], self.finite[-1]) if self.finite else (1.0, 1.0)
        self.infinity = high * max(2.5, (high / low) ** 0.35)
        self.infinite = math.inf in values
        self.limits = (low / 1.35, self.infinity * 1.25 if self.infinite else high * 1.35)

    def position(self, epsilon: float) -> float:
        return epsilon if math.isfinite(epsilon) else self.infinity

    def dress(self, axes: Axes) -> None:
        width = math.log(self.limits[1] / self.limits[0])
        ticks: list[float] = []
        for value in self.finite:
            if not ticks or math.log(value / ticks[-1]) > 0.08 * width:
                ticks.append(value)
        axes.set_xscale("log")
        axes.set_xlim(*self.limits)
        axes.xaxis.set_major_locator(
            FixedLocator([*ticks, *([self.infinity] if self.infinite else [])])
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([*map(round_up, ticks), *(["∞"] if self.infinite else [])])
        if self.infinite:
            axes.axvspan(self.infinity / 1.25, self.limits[1], color="#f3f3f3", zorder=0)


def _curve(
    axes: Axes,
    parts: Sequence[tuple[Setting, pd.DataFrame]],
    metric: str,
    style: _Style,
    edge: _Edge,
    shift: float,
) -> Line2D | None:
    points = []
    for _, rows in parts:
        values, epsilon = rows[metric].dropna().astype(float), largest(rows["epsilon_central"])
        if len(values) and epsilon is not None:
            claimed = largest(rows["epsilon_nominal"])
            points.append(
                (
                    edge.position(epsilon) * shift,
                    values.mean(),
                    values.std(),
                    math.nan if claimed is None else claimed,
                )
            )
    if not points:
        return None
    look = style(parts[0][0])
    xs, ys, deviations, claims = (
        np.array(column, dtype=float) for column in zip(*sorted(points), strict=True)
    )
    nominal = parts[0][1]["claim"].iloc[0] == "nominal"
    if nominal:
        look |= {"markerfacecolor": "white", "linestyle": "none"}
        for x, y, claimed in zip(xs, ys, claims, strict=True):
            if not math.isnan(claimed):
                axes.plot(
                    [claimed, x], [y, y], color=look["color"], linestyle=":", linewidth=1, zorder=1
                )
                axes.plot(
                    [claimed], [y], color=look["color"], marker="|", linestyle="none", zorder=1
                )
                words: Any = {
                    "textcoords": "offset points",
                    "fontsize": 7,
                    "color": look["color"],
                    "ha": "right",
                }
                axes.annotate(f"claims {round_up(claimed)}", (x, y), (-5, 3), **words)
    handle: Line2D = axes.errorbar(
        xs, ys, yerr=np.nan_to_num(deviations), capsize=2.5, **look
    ).lines[0]
    return handle


def _band(
    axes: Axes, part: tuple[Setting, pd.DataFrame], metric: str, style: _Style
) -> Line2D | None:
    setting, rows = part
    values = rows[metric].dropna().astype(float)
    if values.empty:
        return None
    look = style(setting)
    mean, deviation = values.mean(), np.nan_to_num(values.std())
    axes.axhspan(mean - deviation, mean + deviation, color=look["color"], alpha=0.1, linewidth=0)
    return axes.axhline(
        mean, color=look["color"], linestyle="--" if setting.method == "local_only" else "-."
    )


# ---------------------------------------------------------------- round by round


def convergence(study: Study, results: Path, data: Path) -> Figure:
    """Mean training loss of the drawn clients by round, mean over seeds with the range of the
    seeds; × marks a divergence.

    Below it the accuracies by round, where the study asked for them (``training.evaluate_every``).
    """
    frame, plan = stored(study, results), layout(study)
    style, budgets, panels = _Style(plan), _budgets(plan), len(plan.facets)
    tables = {setting.indices: _rounds(study, setting, results) for setting in plan.settings}
    known = [name for name in METRIC_WORDS if all(name in table for table in tables.values())]
    curves = [
        name
        for name in known
        if any(table[name].notna().any(axis=None) for table in tables.values())
    ]
    figure, grid = _grid(
        panels * (1 + len(curves)), len(budgets), width=3.1, height=2.5, sharex=True
    )
    handles: dict[str, Any] = {}
    diverged: Line2D | None = None
    for index, quantity in enumerate(["loss", *curves]):
        part = grid[index * panels : (index + 1) * panels]
        for axes, facet, budget in _panels(part, plan, budgets):
            drawn = [
                setting
                for setting in plan.settings
                if setting.budget == budget and setting.belongs(facet)
            ]
            for setting, width in zip(drawn, _widths(drawn), strict=True):
                values = tables[setting.indices][quantity]
                values = values if quantity == "loss" else values.dropna(how="all")
                look = {name: value for name, value in style(setting).items() if name != "marker"}
                mean, low, high = values.mean(axis=1), values.min(axis=1), values.max(axis=1)
                axes.plot(mean.index, mean, linewidth=width, **look)
                axes.fill_between(
                    mean.index, low, high, color=look["color"], alpha=0.13, linewidth=0
                )
                handles.setdefault(setting.label, Line2D([], [], **look))
                rows = frame.iloc[list(setting.indices)]
                for when, loss in _divergences(rows, values) if quantity == "loss" else ():
                    cross: Any = {
                        "marker": "x",
                        "markersize": 8,
                        "markeredgewidth": 2,
                        "linestyle": "none",
                    }
                    axes.plot([when], [loss], color=look["color"], **cross)
                    diverged = Line2D([], [], color="#555555", **cross)
        for axes in part[:, 0]:
            axes.set_ylabel(
                "training loss" if quantity == "loss" else f"{METRIC_WORDS[quantity]} (%)"
            )
    # Budgets are compared with each other; training without privacy may end orders of magnitude
    # lower and has its own scale.
    free = [budget == NO_PRIVACY for budget in budgets]
    for group in (grid[:panels, free], grid[:panels, np.logical_not(free)]):
        _same_scale(group.ravel())
    _legend(figure, handles | ({"diverged": diverged} if diverged else {}))
    return figure


def noise(study: Study, results: Path, data: Path) -> Figure:
    """Norm of the noise and of the clipped sum it hides by round, and the fraction of uploads that
    were clipped.

    The signal is a diagnostic: no deployment could draw this figure.
    """
    plan = layout(study)
    style = _Style(plan)
    budgets = [budget for budget in _budgets(plan) if budget != NO_PRIVACY]
    if not budgets:
        figure, grid = _grid(1, 1, width=5, height=2.5)
        grid[0, 0].text(
            0.5,
            0.5,
            "no method of this study adds noise",
            ha="center",
            va="center",
            color="#777777",
        )
        return figure
    figure, grid = _grid(
        2 * len(plan.facets), len(budgets), width=3.3, height=2.2, sharex=True, sharey="row"
    )
    handles: dict[str, Any] = {}
    for axes, facet, budget in _panels(grid[::2], plan, budgets):
        below = grid[2 * plan.facets.index(facet) + 1, budgets.index(budget)]
        drawn = [
            setting
            for setting in plan.settings
            if setting.budget == budget and setting.belongs(facet)
        ]
        for setting, width in zip(drawn, _widths(drawn), strict=True):
            noted, look = _rounds(study, setting, results), style(setting)
            look.pop("marker")
            for name, weight in _WEIGHTS.items():
                means = noted[f"{name}_norm"].mean(axis=1)
                axes.plot(
                    means.index,
                    means.where(means > 0),
                    **look,
                    linewidth=width + weight["linewidth"],
                    alpha=weight["alpha"],
                )
            clipped = noted["fraction_clipped"].mean(axis=1)
            below.plot(clipped.index, clipped, **look, linewidth=width)
            handles.setdefault(setting.label, Line2D([], [], **look))
        _log_scale(axes)
        below.set_ylim(-0.03, 1.03)
        axes.set_xlabel("")
        below.set_xlabel("round")
    for upper, lower in zip(grid[::2, 0], grid[1::2, 0], strict=True):
        upper.set_ylabel("norm of the mean update")
        lower.set_ylabel("fraction clipped")
    for name, weight in _WEIGHTS.items():
        handles[name] = Line2D(
            [], [], color="#555555", linewidth=1.3 + weight["linewidth"], alpha=weight["alpha"]
        )
    _legend(figure, handles)
    return figure


def _budgets(plan: Layout) -> list[str]:
    found = dict.fromkeys(setting.budget for setting in plan.settings)
    return sorted(found, key=lambda budget: (budget != NO_PRIVACY, list(found).index(budget)))


def _panels(
    grid: Any, plan: Layout, budgets: Sequence[str]
) -> Iterable[tuple[Axes, Mapping[str, str], str]]:
    for row, facet in enumerate(plan.facets):
        for column, budget in enumerate(budgets):
            axes: Axes = grid[row, column]
            axes.set_title(", ".join(filter(None, [budget, facet_title(facet)])))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if row == len(plan.facets) - 1:
                axes.set_xlabel("round")
            yield axes, facet, budget


def _rounds(study: Study, setting: Setting, results: Path) -> dict[str, pd.DataFrame]:
    """Return, for each column of rounds.csv, a frame [rounds, seeds]; what is not finite is
    missing."""
    runs = []
    for index in setting.indices:
        path = existing(results / "runs" / registry.run_id(study.rows[index].cell) / "rounds.csv")
        table = pd.read_csv(path).set_index("round")
        runs.append(
            table.apply(pd.to_numeric, errors="coerce").replace([math.inf, -math.inf], math.nan)
        )
    return {name: pd.concat([run[name] for run in runs], axis=1) for name in runs[0]}


def _widths(lines: Sequence[Setting]) -> list[float]:
    # Later lines are thinner, so that one which lies exactly on another does not hide it.
    return [min(3.0, 1.3 + 0.7 * later) for later in reversed(range(len(lines)))]


def _same_scale(panels: Sequence[Axes]) -> None:
    ends = [
        float(value)
        for axes in panels
        for line in axes.lines
        for value in np.asarray(line.get_ydata(), dtype=float)
    ]
    finite = [value for value in ends if math.isfinite(value)]
    if finite and 0 < 20 * min(finite) < max(finite):
        for axes in panels:
            _log_scale(axes)
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _divergences(rows: pd.DataFrame, losses: pd.DataFrame) -> Iterable[tuple[int, float]]:
    """Yield the round in which a seed's run diverged, and its last finite loss until then."""
    for column, when in enumerate(rows["diverged_round"]):
        if when is not None:
            before = losses.iloc[:, column].loc[:when].dropna()
            yield when, float(before.iloc[-1]) if len(before) else math.nan


# ---------------------------------------------------------------- who holds what


def partition(study: Study, results: Path, data: Path) -> Figure:
    """Examples per client and class, and what each client keeps for training, validation and test,
    for the study's first seed.

    Clients are sorted by the class they hold most of, those without examples come last; up to 30
    clients show numbers.
    """
    first = study.rows[0].cell.seed
    cells = {row.cell.partition_id: row.cell for row in study.rows if row.cell.seed == first}
    figure = Figure(figsize=(7.2, 3.9 * len(cells) + 0.2), layout="constrained")
    blocks: Any = figure.subfigures(len(cells), 1, squeeze=False)
    for block, cell in zip(blocks[:, 0], cells.values(), strict=True):
        with np.load(existing(data / f"{cell.dataset}.npz"), allow_pickle=False) as arrays:
            labels, classes = arrays["train_labels"], int(arrays["classes"])
        split = Split.load(existing(results / "partitions" / f"{cell.partition_id}.npz"))
        _holdings(block, split, labels, classes)
        kind = cell.partition.kind
        detail = {
            "dirichlet": "α = {alpha:g}, ",
            "pathological": "{classes_per_client} classes each, ",
        }.get(kind, "")
        words = f"{kind}, {detail}{{clients}} clients".format(**dataclasses.asdict(cell.partition))
        block.suptitle(f"{cell.dataset}: {words}, seed {first}", fontsize=9)
    return figure


def _holdings(block: Any, split: Split, labels: np.ndarray, classes: int) -> None:
    held = [
        np.concatenate([train, validation])
        for train, validation in zip(split.train, split.validation, strict=True)
    ]
    counts = np.stack([np.bincount(labels[rows], minlength=classes) for rows in held], axis=1)
    largest_class = np.where(counts.any(axis=0), counts.argmax(axis=0), classes)
    order = np.lexsort((-counts.max(axis=0), largest_class))
    counts, clients = counts[:, order], np.arange(len(held))
    above, below = block.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, 1]})
    above.grid(False)
    image = above.pcolormesh(
        np.arange(len(held) + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        counts,
        cmap=_HEAT,
        vmin=0,
        rasterized=True,
    )
    above.set_ylabel("class")
    above.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=11))
    block.colorbar(image, ax=above, label="examples", pad=0.01, aspect=14)
    if len(held) <= 30 and classes <= 20:
        for row, column in zip(*np.nonzero(counts), strict=True):
            dark = counts[row, column] > 0.45 * counts.max()
            above.text(
                column,
                row,
                counts[row, column],
                ha="center",
                va="center",
                fontsize=6,
                color="white" if dark else "black",
            )
    bottom = np.zeros(len(held))
    for name, colour in (("train", "#0072B2"), ("validation", "#E69F00"), ("test", "#b0b0b0")):
        sizes = np.array([len(rows) for rows in getattr(split, name)])[order]
        below.bar(
            clients,
            sizes,
            bottom=bottom,
            width=0.85 if len(held) <= 200 else 1.0,
            color=colour,
            label=name,
        )
        bottom += sizes
    below.set_xlim(-0.5, len(held) - 0.5)
    below.set_xlabel("client, sorted by its largest class")
    below.set_ylabel("examples")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    below.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=8, borderaxespad=0.1)


KINDS: dict[str, Callable[[Study, Path, Path], Figure]] = {
    "privacy_utility": privacy_utility,
    "convergence": convergence,
    "partition": partition,
    "noise": noise,
}
