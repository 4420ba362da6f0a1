"""The map: where private personalization pays, from a study at several numbers of people and of
rows a person.

A region is one number of people, of rows, and one budget. It has a verdict of report/verdicts.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pages import wording
from pages.panel import Panel
from pflpipe.files import atomic
from pflpipe.report import verdicts
from pflpipe.report.comparison import ALONE, MAIN
from pflpipe.report.figures import style
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import Difference
from pflpipe.report.verdicts import (
    CONSTANT,
    DOES_NOT,
    KINDS,
    PAYS,
    RELEASED,
    UNDECIDED,
    Verdict,
)

FIGURE = "map.png"
WIDTH, COLOURS = 1000, 24
"""Of a committed figure: the largest width in pixels, and how many colours it has."""
_LOOKS = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."), ("v", (0, (6, 2, 1, 2, 1, 2))))
_LEGEND = (
    "what to do. Bold: personalization pays, train that method; else it does not. Own constant: "
    "say what you say most. Released: the released model of that method, untouched. ?: undecided; "
    "use that, or run more seeds."
)
_APART = 1.07
"""Factor between the marks of neighbouring lines at one number of people."""


def counted(found: Sequence[Panel]) -> str:
    """Return in how many regions personalization pays, does not, and is undecided."""
    words = [one.word for panel in found for one in panel.verdicts.values()]
    return (
        f"Personalization pays in {words.count(PAYS)} of {len(words)} regions, does not pay in "
        f"{words.count(DOES_NOT)} and is undecided in {words.count(UNDECIDED)}."
    )


def matrix(found: Sequence[Panel]) -> str:
    """Return the map as Markdown: what to do by people, rows and budget."""
    budgets = list(dict.fromkeys(budget for panel in found for budget in panel.verdicts))
    rows = []
    for panel in found:
        verdicts = panel.verdicts
        cells = (
            Entry(_short(verdicts[budget]), verdicts[budget].word == PAYS)
            if budget in verdicts
            else Entry("–")
            for budget in budgets
        )
        rows.append((Entry(f"{panel.people:,}"), Entry(str(panel.rows)), *cells))
    header = ("people", "rows", *budgets)
    table = Table(found[0].study.name, _LEGEND, (), header, (tuple(rows),), len(header))
    return markdown(table).strip()


def _short(verdict: Verdict) -> str:
    if verdict.word == PAYS:
        return verdict.group.label
    line = verdict.instead
    label = {ALONE: "alone", CONSTANT: "own constant"}.get(line.group.label, line.group.label)
    name = f"released {label}" if line.column == RELEASED else label
    return name if verdict.word == DOES_NOT else f"{name}?"


def table(found: Sequence[Panel]) -> pd.DataFrame:
    """Return a row for every region, as it is printed: the personal model that stands first,
    beside its rivals."""
    kinds = _kinds(found)
    return pd.DataFrame(
        {
            "people": f"{panel.people:,}",
            "rows": str(panel.rows),
            "budget": budget,
            "verdict": one.word,
            "personal model": one.group.label,
            "its accuracy": one.group.text(MAIN),
            **dict(_rivals(one, kinds)),
            "instead": _short(dataclasses.replace(one, word=DOES_NOT)),
            "collapsed": "; ".join(verdicts.fallen(one)) or "–",
            "seeds": str(one.beside["a"][1].seeds),
        }
        for panel in found
        for budget, one in panel.verdicts.items()
    )


def _kinds(found: Sequence[Panel]) -> list[str]:
    """Return the kinds of rivals that some region has."""
    verdicts = [one for panel in found for one in panel.verdicts.values()]
    return [kind for kind in KINDS if any(kind in one.beside for one in verdicts)]


def _rivals(verdict: Verdict, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    for kind in kinds:
        known = verdict.beside.get(kind)
        yield f"rival ({kind})", known[0].group.label if known else "–"
        yield f"to ({kind})", wording.number(known[1]) if known else "–"


def draw(found: Sequence[Panel], target: Path) -> None:
    """Draw the gains of all regions, a row of axes for each budget."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / target.name
        style.save(lambda: _figure(found), file)
        small_figure(file, target, Image.Quantize.MAXCOVERAGE)


def small_figure(
    source: Path, target: Path, method: Image.Quantize = Image.Quantize.MEDIANCUT
) -> None:
    """Write a figure with a page's width and few colours, a tenth of the bytes; ``MAXCOVERAGE``
    keeps rare colours."""
    with Image.open(source) as image:
        size = (min(image.width, WIDTH), round(image.height * min(1, WIDTH / image.width)))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    with atomic(target) as path:
        small.quantize(COLOURS, method, dither=Image.Dither.NONE).save(path, "png", optimize=True)


def _figure(found: Sequence[Panel]) -> Figure:
    verdicts = [(panel, panel.verdicts) for panel in found]
    budgets = list(dict.fromkeys(budget for _, parts in verdicts for budget in parts))
    kinds = _kinds(found)
    told = "; ".join(f"({kind}) {KINDS[kind]}" for kind in kinds)
    heading = (
        f"Gain of the best personal model over the strongest rival of each kind: {told}. In "
        "percentage points, with simultaneous 95 % intervals. Filled: personalization pays. By "
        "rows a person."
    )
    shape = (len(budgets), len(kinds))
    figure, grid = style.panels(
        len(budgets) * len(kinds),
        shape,
        style.WIDTHS[len(kinds) > 2],
        heading,
        1.3 * len(budgets) + 0.6,  # and what the labels of people take
        sharex=True,
        sharey=True,
    )
    for budget, places in zip(budgets, grid, strict=True):
        for kind, axes in zip(kinds, places, strict=True):
            axes.axhline(0, color="black", linewidth=0.6)
            axes.set_title(f"{budget}, over ({kind})", loc="left")
            axes.set_xscale("log")
            regions = [(panel, parts[budget]) for panel, parts in verdicts if budget in parts]
            _curves(axes, regions, kind)
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
        members = [(panel, one) for panel, one in members if rival in one.beside]
        at = [panel.people * shift for panel, _ in members]
        gains: list[Difference] = [one.beside[rival][1] for _, one in members]
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
