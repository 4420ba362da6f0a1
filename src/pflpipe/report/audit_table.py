"""The table of audits (results/tables/audit.csv), its summary for people, and the figure of claims
and lower bounds."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pflpipe.auditing.cases import Subject, subjects
from pflpipe.auditing.verdict import require_kept
from pflpipe.files import atomic, read_json, write_text
from pflpipe.methods import registry
from pflpipe.report.figures import rows, style
from pflpipe.report.templates import filled
from pflpipe.report.tidy import existing
from pflpipe.study.settings import round_up

# fmt: off
COLUMNS = (
    "method", "profile", "departures", "trust", "claim", "adjacency", "mechanism", "sample_rate",
    "rounds", "delta", "noise_multiplier", "epsilon_claimed", "epsilon_claimed_rdp",
    "epsilon_claimed_1e5", "epsilon_true", "mu_claimed", "canary", "sensitivity",
    "sensitivity_most", "spread", "noise", "noise_least", "mu_lower", "epsilon_lower",
    "epsilon_direct", "excess", "false_positives", "false_negatives", "runs", "statistic",
    "detects", "detects_runs", "flagged_coupled", "flagged_runs", "flagged", "verdict", "seconds",
    "audit",
)
# fmt: on

_PROFILES = {
    "alone": "only {departures}",
    "adaptive": "adaptive clipping",
    "correlated": "groups in turn, correlated noise",
    "buffered": "groups in turn, noise correlated by buffers",
    "outside": "methods from outside, {mechanism} noise",
}
"""Subjects without a method."""
COLOURS = {"kept": "#009E73", "unsound": "#E69F00", "refuted": "#D55E00"}
_GREY = "#555555"
_CLAIMED: dict[str, Any] = {"marker": "|", "ms": 9, "mew": 1.5, "linestyle": "none"}
_AUDITED: dict[str, Any] = {"marker": "o", "linestyle": "none"}
_LEDGER: dict[str, Any] = {"marker": "D", "markerfacecolor": "white", "linestyle": "none"}


def table(results: Path, audited: Sequence[Subject] | None = None) -> pd.DataFrame:
    """Return one row per subject with exactly ``COLUMNS``, from the files below ``results/audits``.

    Args:
        audited: the subjects; all by default.

    Raises:
        PrivacyError: a certified claim is not kept, or an audit proves more than the ledger says.
    """
    shown = subjects() if audited is None else audited
    ids = dict.fromkeys(subject.case.id for subject in shown)
    audits = {name: read_json(existing(results / "audits" / f"{name}.json")) for name in ids}
    # No table shows a certified claim that an audit refutes.
    require_kept(audits.values())
    rows = [
        audits[one.case.id] | {"method": one.method or None, "profile": one.profile}
        for one in shown
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    kinds = ("epsilon_", "mu_", "sens", "spread", "noise", "excess")
    # JSON has no infinity: it is the text "inf" there.
    numbers = [name for name in COLUMNS if name.startswith(kinds)]
    return frame.assign(**{name: frame[name].astype(float) for name in numbers})


def write(results: Path, target: Path) -> None:
    """Write the table to ``target`` (.csv), a summary next to it (.md), and the figure in the width
    of a page and of a column (.png, .svg and .pdf each)."""
    frame = table(results)
    with atomic(target) as path:
        frame.to_csv(path, index=False, lineterminator="\n")
    write_text(target.with_suffix(".md"), markdown(frame))
    column, page = style.WIDTHS
    for name, width in (("audit_column", column), ("audit", page)):
        style.save(functools.partial(figure, frame, width), results / "figures" / f"{name}.png")


def markdown(frame: pd.DataFrame) -> str:
    """Return a Markdown table with one line per distinct audit."""
    template = Path(__file__).with_name("audit_table.md")
    return filled(template, audits=distinct(frame), round_up=round_up)


def figure(frame: pd.DataFrame, width: float) -> Figure:
    """Draw for every distinct release the claimed epsilon, the audited lower bound and the epsilon
    of the ledger, in a width in inches."""
    names = {row["audit"]: f"{names} ({row['trust']})" for names, row in distinct(frame)}
    heading = "Claims and what an audit proves: the ε of each distinct release, log scale."
    drawn, (place,) = rows.draw([rows.Block("", [names])], width, heading)
    (axes,) = place.axes
    # An infinite epsilon is drawn in a grey band at the right edge, beyond all finite ones.
    finite = [float(v) for v in frame["epsilon_true"] if math.isfinite(v)] + [8.0]
    edge = 3 * max(*finite, *frame["epsilon_claimed"].astype(float))
    for _, row in distinct(frame):
        height, colour = place.heights[row["audit"]], COLOURS[row["verdict"]]
        claimed, true = row["epsilon_claimed"], min(row["epsilon_true"], edge)
        axes.plot([claimed, true], [height, height], color=style.REST, linewidth=1, zorder=1)
        axes.plot([claimed], [height], color=_GREY, **_CLAIMED)
        axes.plot([true], [height], color=colour, **_LEDGER)
        axes.plot([max(row["epsilon_lower"], 0.1)], [height], color=colour, **_AUDITED)
    axes.axvspan(edge / 1.5, edge * 1.5, color="#f3f3f3", zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(0.09, edge * 1.5)
    ticks = [10.0**power for power in range(-1, math.floor(math.log10(edge / 1.6)) + 1)]
    axes.set_xticks([*ticks, edge], [*(f"{value:g}" for value in ticks), "∞"])
    axes.minorticks_off()
    axes.set_xlabel("ε at the reference plan's δ")
    marks = {"claimed": _CLAIMED, "at least, by the audit": _AUDITED, "ledger": _LEDGER}
    # Lines without points, for the legend alone: marks have the colour of their verdict.
    for label, look in marks.items():
        axes.plot([], [], color=_GREY, label=label, **look)
    for verdict, colour in COLOURS.items():
        axes.plot([], [], "s", color=colour, label=verdict)
    style.legend(drawn, axes, columns=3 * style.columns(width))
    return drawn


def distinct(frame: pd.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """Return the distinct audits, each with the names of the methods that share it."""
    releases = []
    for _, members in frame.groupby("audit", sort=False):
        first = members.iloc[0]
        titles = [registry.info(name).about.title for name in members["method"].dropna()]
        strict = first["profile"] == "strict"
        names = f"{', '.join(titles)}, {'certified' if strict else 'as published'}"
        if strict and len(members) > 3:
            names = f"{len(members)} methods, certified"
        names = _PROFILES.get(first["profile"], names).format(**first)
        if 0 < first["sample_rate"] < 1:
            names += ", drawn"
        releases.append((names, {str(name): value for name, value in first.items()}))
    return releases
