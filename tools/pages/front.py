"""The two pictures and the table of the first page: whether private personalization pays for real
people, and printed epsilons beside those that hold.

All of it follows from committed files: the verdicts of ``docs/results/`` (panel.py) and
``docs/audit_others.csv``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pages import blocks
from pages.gain_map import small_figure
from pages.panel import Panel
from pages.readme import COLUMNS
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.report.figures import style
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.verdicts import DOES_NOT, MARGIN, PAYS, RELEASED, UNDECIDED, Verdict
from pflpipe.study.settings import round_up

PICTURES = ("does_it_pay.png", "printed_and_held.png")
"""Of the first page, in ``docs/images``."""
ANSWER = "results: answer"
"""The block of README.md and docs/index.md with the verdicts of the studies of real people."""
PAGES = ("README.md", "docs/index.md")
MAP = "people_spi_map"
PEOPLE: Mapping[str, tuple[str, str]] = {
    "people_spi": ("SPI", "SPI, 135 statements"),
    "people_epi": ("EPI", "EPI, 57 questions"),
    "people_jester": ("Jester", "Jester, 100 jokes"),
    "people_nafld": ("NAFLD", "NAFLD, patients"),
    "people_randhie": ("RandHIE", "RandHIE, insured"),
    "people_rwm5yr": ("RWM", "RWM, a health survey"),
    "people_insteval": ("InstEval", "InstEval, lecturers"),
    "people_mnist_scattering": ("digits", "handwritten digits"),
}
"""Studies of real people: their names in the picture and in the table. people_wisdm is none of
them, as its page says that its epsilon may not hold."""
_UNTRIED = " ¹"
"""After the name of a study without methods without rounds among the rivals."""
BUDGETS = ("ε = 0.5", "ε = 2", "ε = 8")
_WORDS = {PAYS: style.CERTIFIED, DOES_NOT: style.NOMINAL, UNDECIDED: style.PLAIN}
_THIN = "#aaaaaa"
_LINES = (("o", "-"), ("s", "--"), ("^", ":"))
_APART, _COLUMN = 0.065, 45_000
"""Part of the range of gains between names, and the number of people where their column begins."""
_END = 300.0
"""Right end of the axis of epsilons."""
_ROW, _WIDTH = 0.13, 48
"""Of a claim, its height in inches and the most characters of its name."""


def write(root: Path, found: Mapping[str, Sequence[Panel]]) -> list[Path]:
    """Draw both pictures and write the table into the ``PAGES`` that ask for it; return them.

    Args:
        root: folder with README.md and ``docs/``.
        found: the panels of every study that is committed.
    """
    pages = [root / page for page in PAGES if (root / page).is_file()]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    asking = [page for page, text in texts.items() if f"<!-- {ANSWER} -->\n" in text]
    audited = root / "docs/audit_others.csv"
    if not asking or not audited.is_file():  # the project of a user
        return []
    for page in asking:
        write_text(page, blocks.replaced(texts[page], ANSWER, table(found), str(page)))
    regions, audits = points(found), pd.read_csv(audited)
    for name, draw in zip(PICTURES, (lambda: gains(regions), lambda: claims(audits)), strict=True):
        with TemporaryDirectory() as folder:
            file = Path(folder) / name
            style.save(draw, file)
            small_figure(file, root / "docs/images" / name, Image.Quantize.MAXCOVERAGE)
    return asking


def table(found: Mapping[str, Sequence[Panel]]) -> str:
    """Return the verdicts of ``PEOPLE`` as Markdown: in bold what pays, else what to use instead;
    and the epsilons of those runs and their searches together."""
    rows, sums = [], []
    for study, (name, data) in PEOPLE.items():
        for panel in found.get(study, ()):
            verdicts = [panel.verdicts[budget] for budget in BUDGETS if budget in panel.verdicts]
            known = {one.group.budget: _answer(one) for one in verdicts}
            tried = all("d" in one.beside for one in verdicts)
            label = data if tried else f"{data}{_UNTRIED}"
            numbers = (Entry(label), Entry(f"{panel.people:,}"), Entry(str(panel.rows)))
            rows.append((*numbers, *(known.get(budget, Entry("–")) for budget in BUDGETS)))
            searched = [one.group.first("epsilon_with_search") for one in verdicts]
            sums.append(
                (name, ", ".join("–" if one is None else round_up(one) for one in searched))
            )
    header = ("real people", "people", "rows", *BUDGETS)
    lines = markdown(Table("", "", (), header, (tuple(rows),), len(header))).splitlines()
    told = "; ".join(f"{name} {epsilons}" for name, epsilons in sums)
    return "\n".join(
        [
            *(line for line in lines if line.startswith("|")),
            "",
            *textwrap.wrap(
                f"ε of a run and its search together (–: not counted): {told}.", COLUMNS
            ),
        ]
    )


def _answer(verdict: Verdict) -> Entry:
    line = verdict.instead
    if verdict.word == PAYS:
        return Entry(registry.info(verdict.group.method).about.title, bold=True)
    if verdict.word == UNDECIDED:
        return Entry(UNDECIDED)
    title = registry.info(line.group.method).about.title
    return Entry(f"{title}, released" if line.column == RELEASED else title)


def points(found: Mapping[str, Sequence[Panel]]) -> pd.DataFrame:
    """Return the gain of the best personal model over its strongest rival, a row for every region
    of the map and every study of ``PEOPLE`` at every budget."""
    rows = []
    for study, name in {MAP: "", **{study: name for study, (name, _) in PEOPLE.items()}}.items():
        for panel in found.get(study, ()):
            for budget, verdict in panel.verdicts.items():
                gain = min((one for _, one in verdict.beside.values()), key=lambda one: one.mean)
                row = {"study": study, "name": name, "people": panel.people, "rows": panel.rows}
                row |= {"budget": budget, "word": verdict.word, "gain": gain.mean}
                row |= {"low": gain.low, "high": gain.high, "without_rounds": "d" in verdict.beside}
                rows.append(row | {"test_fraction": panel.test_fraction})
    return pd.DataFrame(rows)


def gains(regions: pd.DataFrame) -> Figure:
    """Draw the gains of ``points`` by number of people, one panel a budget.

    Lines: the map, by rows a person. With a name: the studies of ``PEOPLE``, a diamond where the
    rivals include methods without rounds, and else a circle. The colour is the verdict.
    """
    tried = regions.groupby("name", sort=False)["without_rounds"].any()
    untried = [name or "lines" for name in tried.index[~tried]]
    heading = (
        "What the best personal model gains over its strongest rival, in percentage points, on "
        "people's own test rows. Real people; bars: simultaneous 95 % intervals over seeds and "
        "people; band: less than a point. Lines: SPI with fewer people and rows. Methods without "
        f"rounds are among the rivals, but for: {', '.join(untried) or '–'}."
    )
    shape = (1, len(BUDGETS))
    figure, (places,) = style.panels(
        len(BUDGETS), shape, style.WIDTHS[1], heading, 2.4, sharex=True, sharey=True
    )
    kinds = sorted(regions.loc[regions["study"] == MAP, "test_fraction"].unique())
    for axes, budget in zip(places, BUDGETS, strict=True):
        axes.axhspan(-MARGIN, MARGIN, color="#e8e8e8")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(f"{budget} for a whole person", loc="left")
        axes.set_xscale("log")
        axes.set_xlim(70, 500_000)
        axes.set_xticks([100, 1_000, 10_000], ["100", "1,000", "10,000"])
        axes.minorticks_off()
        axes.set_xlabel("people in training")
        members = regions[regions["budget"] == budget]
        for (marker, dashes), kind in zip(_LINES, kinds, strict=False):
            line = members[(members["study"] == MAP) & (members["test_fraction"] == kind)]
            label = f"{line['rows'].mean():.0f} rows each"
            axes.plot(line["people"], line["gain"], dashes + marker, color=_THIN, label=label)
            _mark(axes, line, marker)
        named = members[members["study"] != MAP]
        _mark(axes, named[named["without_rounds"]], "D")
        _mark(axes, named[~named["without_rounds"]], "o")
        _name(axes, named, _APART * (regions["high"].max() - regions["low"].min()))
    for word, colour in _WORDS.items():
        places[0].plot([], [], "D", color=colour, label=word)
    places[0].set_ylabel("points")
    style.legend(figure, *places, columns=6)
    return figure


def _mark(axes: Axes, regions: pd.DataFrame, marker: str) -> None:
    for row in regions.to_dict("records"):
        look: Any = {"color": _WORDS[row["word"]], "zorder": 3}
        axes.vlines(row["people"], row["low"], row["high"], linewidth=0.8, **look)
        axes.plot([row["people"]], [row["gain"]], marker, markersize=4, **look)


def _name(axes: Axes, regions: pd.DataFrame, apart: float) -> None:
    """Write the names of the studies in a column at the right, so many points apart from each
    other, each with a line to its mark."""
    named = regions.sort_values("gain")
    heights = named["gain"].to_numpy().copy()
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + apart)
    heights -= (heights - named["gain"]).mean()
    for height, row in zip(heights, named.to_dict("records"), strict=True):
        axes.annotate(
            row["name"],
            xy=(row["people"], row["gain"]),
            xytext=(_COLUMN, height),
            va="center",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "color": _THIN, "linewidth": 0.5, "shrinkB": 3},
        )


def claims(audits: pd.DataFrame) -> Figure:
    """Draw the claims that audits of other programs refuted: what is claimed, what holds, and what
    an attack alone proves."""
    refuted = audits[audits["verdict"] == "refuted"].reset_index(drop=True)
    kept, alone = (audits["verdict"] == "kept").sum(), (refuted["evidence"] == "arithmetic").sum()
    heading = (
        f"Claims of other programs about their own ε that do not hold: {len(refuted)} of "
        f"{len(audits)}, each for its version and configuration alone; {alone} by arithmetic "
        f"alone. {kept} were kept. A triangle points to where ε may lie; at the edge: above "
        f"{_END:.0f}, or none."
    )
    figure, ((axes,),) = style.panels(
        1, (1, 1), style.WIDTHS[1], heading, _ROW * len(refuted) + 0.5
    )
    axes.set_xscale("log")
    axes.set_xlim(0.3, _END)
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_xlabel("ε of one user, or of one example where the program says so")
    names = refuted["program"] + ": " + refuted["mechanism"]
    short = [textwrap.shorten(name, _WIDTH, placeholder=" …") for name in names]
    axes.set_yticks(range(len(refuted)), short, fontsize=6.5)
    axes.set_ylim(len(refuted) - 0.4, -0.6)
    axes.grid(axis="x")
    heights = refuted.index.to_numpy()
    claimed, held, proved = (
        refuted[f"epsilon_{name}"].to_numpy(float) for name in ("claimed", "true", "lower")
    )
    shown = np.minimum(held, _END)
    axes.hlines(heights, claimed, shown, color=style.NOMINAL, linewidth=0.8)
    look: Any = {"linestyle": "none", "color": style.NOMINAL, "clip_on": False}
    axes.plot(claimed, heights, marker="o", markerfacecolor="white", label="claimed", **look)
    for word, marker in {"exact": "o", "at least": ">", "at most": "<"}.items():
        members = (refuted["epsilon_is"] == word).to_numpy() & np.isfinite(held)
        label = "holds" if word == "exact" else None
        axes.plot(shown[members], heights[members], marker=marker, label=label, **look)
    axes.plot(shown[~np.isfinite(held)], heights[~np.isfinite(held)], marker=">", **look)
    known = proved > 0
    axes.plot(
        *(proved[known], heights[known], "|"),
        color="black",
        label="proved by an attacker of whole runs (99 % confidence)",
    )
    style.legend(figure, axes, columns=3)
    return figure
