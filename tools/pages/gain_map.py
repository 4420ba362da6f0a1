"""The map: where private personalization pays, from a study at several numbers of people and of
rows a person.

A region is one number of people, of rows, and one budget. It has the verdict of panel.py, about the
personal model that stands first there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pages import wording
from pages.panel import DOES_NOT, MARGIN, PAYS, Panel, Verdict, released_by
from pflpipe.files import atomic
from pflpipe.report import sentences
from pflpipe.report.comparison import MAIN
from pflpipe.report.figures import style
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import Difference

FIGURE = "map.png"
WIDTH, COLOURS = 1340, 48
"""Of a committed figure: the largest width in pixels, and how many colours it has."""
_RIVALS = {"alone": "over alone", "released": "over released"}
_LOOKS = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."), ("v", (0, (6, 2, 1, 2, 1, 2))))
_APART = 1.07
"""Factor between the marks of neighbouring lines at one number of people."""


def parts(found: Sequence[Panel]) -> Iterator[str]:
    """Yield the page of a map below its note."""
    about = found[0].study.about
    yield picture(found[0].study.name, "")
    yield advice(found)
    yield from filter(None, [wording.escaped(about.description)])
    yield wording.escaped(about.caption)
    yield markdown(table(found)).strip()


def picture(name: str, folder: str) -> str:
    """Return the figure as Markdown; ``folder`` leads from the page to the studies."""
    return f"![{name}: gain of personal models over their rivals]({folder}{name}/{FIGURE})"


def advice(found: Sequence[Panel]) -> str:
    """Return a list with a sentence for every number of people and rows: what their experimenter
    should do at each budget."""
    return "\n".join(f"- {wording.escaped(_advice(panel))}" for panel in found if panel.verdicts())


def _advice(panel: Panel) -> str:
    budgets: dict[str, list[str]] = {}
    for budget, verdict in panel.verdicts().items():
        budgets.setdefault(_deed(verdict), []).append(budget)
    said = "; ".join(f"at {sentences.names(at)}, {deed}" for deed, at in budgets.items())
    return f"With {panel.people:,} people and {panel.rows} rows each: {said}."


def _deed(verdict: Verdict) -> str:
    if verdict.word == PAYS:
        return f"personalization pays: train {verdict.group.label}"
    # Where the seeds do not separate them, learning alone is first: it costs no privacy.
    shared = verdict.apart.sign > 0
    other = f"use {released_by(verdict.rival)}" if shared else "learn alone"
    if verdict.word == DOES_NOT:
        return f"personalization does not pay: {other}"
    return f"it is undecided whether personalization pays: {other}, or run more seeds"


def table(found: Sequence[Panel]) -> Table:
    """Return a line for every region."""
    return Table(
        f"{found[0].study.name}, the map",
        "of each region the personal model that stands first: the largest mean, among those that "
        f"pay where some do. Pays: an interval beside both rivals lies above 0. Does not pay: the "
        f"interval of every personal model beside one of the rivals ends below {MARGIN:g} point. "
        "Percent and percent points, on clients' own rows, with 95 % intervals that are adjusted "
        "to the methods of a region and not to the number of regions.",
        (),
        (
            *("people", "rows", "budget", "verdict", "personal model", "its accuracy"),
            *("to alone", "rival (b)", "to released", "seeds"),
        ),
        tuple(tuple(_lines(panel)) for panel in found if panel.verdicts()),
        labels=5,
    )


def _lines(panel: Panel) -> Iterator[tuple[Entry, ...]]:
    for budget, one in panel.verdicts().items():
        texts = [f"{panel.people:,}", str(panel.rows), budget, one.word, one.group.label]
        texts += [one.group.text(MAIN), wording.number(one.alone), one.rival.label]
        texts += [wording.number(one.released), str(one.alone.seeds)]
        yield tuple(map(Entry, texts))


def draw(found: Sequence[Panel], target: Path) -> None:
    """Draw the gains of all regions, a row of axes for each budget."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / target.name
        style.save(lambda: _figure(found), file)
        small_figure(file, target)


def small_figure(source: Path, target: Path) -> None:
    """Write a figure with a page's width and few colours, a tenth of the bytes."""
    with Image.open(source) as image:
        size = (min(image.width, WIDTH), round(image.height * min(1, WIDTH / image.width)))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    with atomic(target) as path:
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(path, "png", optimize=True)


def _figure(found: Sequence[Panel]) -> Figure:
    verdicts = [(panel, panel.verdicts()) for panel in found]
    budgets = list(dict.fromkeys(budget for _, parts in verdicts for budget in parts))
    heading = (
        "Gain of the first personal model over learning alone (left) and over the best released "
        "model (right), in percent points, with 95 % intervals over seeds. Filled: personalization "
        "pays. By rows a person."
    )
    shape = (len(budgets), len(_RIVALS))
    figure, grid = style.panels(
        len(budgets) * len(_RIVALS),
        shape,
        style.WIDTHS[0],
        heading,
        1.3 * len(budgets) + 0.6,  # and what the labels of people take
        sharex=True,
        sharey=True,
    )
    for budget, places in zip(budgets, grid, strict=True):
        for (rival, title), axes in zip(_RIVALS.items(), places, strict=True):
            axes.axhline(0, color="black", linewidth=0.6)
            axes.set_title(f"{budget}, {title}", loc="left")
            axes.set_xscale("log")
            regions = [(panel, parts[budget]) for panel, parts in verdicts if budget in parts]
            _curves(axes, regions, rival)
    for axes in grid[-1]:
        people = sorted({panel.people for panel in found})
        axes.set_xticks(people, [f"{number:,}" for number in people], rotation=45)
        axes.minorticks_off()
        axes.set_xlabel("people")
    style.legend(figure, *grid.flat, columns=len(_LOOKS))
    return figure


def _curves(axes: Axes, regions: Sequence[tuple[Panel, Verdict]], rival: str) -> None:
    kinds = sorted({panel.test_fraction for panel, _ in regions})
    for index, kind in enumerate(kinds):
        members = [(panel, one) for panel, one in regions if panel.test_fraction == kind]
        rows = round(np.mean([panel.rows for panel, _ in members]))
        marker, dashes = _LOOKS[index % len(_LOOKS)]
        look: Any = {"color": style.STRONG[index % len(style.STRONG)], "linestyle": dashes}
        shift = _APART ** (index - (len(kinds) - 1) / 2)
        at = [panel.people * shift for panel, _ in members]
        gains: list[Difference] = [getattr(one, rival) for _, one in members]
        ends = np.array([[one.low, one.high] for one in gains]).T
        ends[~np.isfinite(ends)] = np.nan  # too few seeds
        means = [one.mean for one in gains]
        axes.plot(at, means, marker=marker, label=f"{rows} rows", markerfacecolor="white", **look)
        axes.vlines(at, *ends, color=look["color"], linewidth=0.8)
        paying = [index for index, (_, one) in enumerate(members) if one.word == PAYS]
        axes.plot(
            [at[index] for index in paying],
            [means[index] for index in paying],
            marker=marker,
            color=look["color"],
            linestyle="none",
        )
