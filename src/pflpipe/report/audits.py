"""From audits to results/tables/audit.csv, its summary for people, and the figure of claims against
lower bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pflpipe.audit.cases import subjects
from pflpipe.audit.verdict import require_kept
from pflpipe.files import atomic, read_json, write_text
from pflpipe.methods import registry
from pflpipe.report.summary import round_up

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

COLOURS = {"kept": "#009E73", "unsound": "#E69F00", "refuted": "#D55E00"}
_GREY = "#555555"


def table(results: Path) -> pd.DataFrame:
    """Return one row per subject with exactly ``COLUMNS``, from the files below ``results/audits``.

    Raises:
        PrivacyError: a certified claim is not kept, or an audit proves more than the ledger says.
    """
    found: dict[str, dict[str, Any]] = {}
    rows = []
    for subject in subjects():
        name = subject.case.id
        if name not in found:
            found[name] = read_json(results / "audits" / f"{name}.json")
        rows.append(found[name] | {"method": subject.method or None, "profile": subject.profile})
    require_kept(found.values())
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = [
        name
        for name in COLUMNS
        if name.startswith(("epsilon_", "mu_", "sens", "spread", "noise", "excess"))
    ]
    return frame.assign(**{name: frame[name].astype(float) for name in numbers})


def write(results: Path, target: Path) -> None:
    """Write the table to ``target`` (.csv), a summary beside it (.md), and the figure (.png and
    .svg)."""
    frame = table(results)
    drawn = figure(frame)
    with atomic(target) as path:
        frame.to_csv(path, index=False, lineterminator="\n")
    write_text(target.with_suffix(".md"), markdown(frame))
    for kind in ("png", "svg"):
        image = results / "figures" / f"audit.{kind}"
        with atomic(image) as path:
            drawn.savefig(
                path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
            )


def markdown(frame: pd.DataFrame) -> str:
    """Return one line per distinct audit, for people."""
    head = (
        *(
            "release",
            "trust",
            "claim",
            "ε claimed",
            "ε true",
            "moves by",
            "depends on noise",
            "noise",
            "ε at least",
        ),
        *("sees noise below", "runs see noise below", "verdict"),
    )
    lines = []
    for names, row in _distinct(frame):
        levels = filter(
            None, ["coupled" * bool(row["flagged_coupled"]), "runs" * bool(row["flagged_runs"])]
        )
        why = " and ".join(levels)
        lines.append(
            [
                names,
                row["trust"],
                row["claim"],
                *map(round_up, (row["epsilon_claimed"], row["epsilon_true"])),
                f"{row['sensitivity']:.3g} (at most {row['sensitivity_most']:.4g})",
                f"{row['spread']:.0e}",
                "–"
                if math.isnan(row["noise"])
                else f"{row['noise']:.4f} (at least {row['noise_least']:.4f})",
                f"{row['epsilon_lower']:.3g}",
                f"{row['detects']:.4f}",
                f"{row['detects_runs']:.3f}",
                f"{row['verdict']} ({why})" if why else row["verdict"],
            ]
        )
    text = "\n".join(
        "| " + " | ".join(map(str, cells)) + " |" for cells in [head, ["---"] * len(head), *lines]
    )
    return (
        "# Audit of every distinct release\n\n"
        "Moves by: how far one client moves one release, in units of what the claim covers. "
        "Depends on noise: how much\n"
        "that movement varies with the noise's seed, at most 1e-4. Noise: how much of it there "
        "is, as a fraction of the\n"
        "claim's. ε at least: what the errors of an attacker in thousands of runs leave possible "
        "(99 %); 2,000 runs show at\n"
        "most 26 at delta 0.02 and 34 at delta 1e-5. Sees noise below: the largest factor by "
        "which all noise of a mechanism\n"
        "that keeps such a claim could be too small and be found so in nine audits of ten; runs "
        "see: the same by whole runs\n"
        "alone, 0 where they prove nothing.\n\n"
        "Verdicts: kept, no violation found; refuted, the claimed ε is false; unsound, the "
        "release violates what its proof\n"
        "needs, and the claimed ε holds all the same. docs/audit.md says more.\n\n" + text + "\n"
    )


def figure(frame: pd.DataFrame) -> Figure:
    """Draw for every distinct release the claimed epsilon, the audited lower bound and the epsilon
    of the ledger."""
    rows = _distinct(frame)
    drawn = Figure(figsize=(8.6, 1.3 + 0.27 * len(rows)), layout="constrained")
    axes = drawn.subplots()
    finite = [float(v) for v in frame["epsilon_true"] if math.isfinite(v)] + [8.0]
    edge = 3 * max(*finite, *frame["epsilon_claimed"].astype(float))
    for index, (_, row) in enumerate(rows):
        claimed, true = float(row["epsilon_claimed"]), min(float(row["epsilon_true"]), edge)
        lower = row["epsilon_lower"]
        colour = COLOURS[row["verdict"]]
        axes.plot([claimed, true], [index, index], color="#cccccc", linewidth=1, zorder=1)
        axes.plot(
            [claimed],
            [index],
            color=_GREY,
            marker="|",
            markersize=11,
            markeredgewidth=2,
            linestyle="none",
        )
        axes.plot(
            [true],
            [index],
            color=colour,
            marker="D",
            markerfacecolor="white",
            markersize=5,
            linestyle="none",
        )
        axes.plot(
            [max(float(lower), 0.1)],
            [index],
            color=colour,
            marker="o",
            markersize=6,
            linestyle="none",
        )
    axes.axvspan(edge / 1.5, edge * 1.5, color="#f3f3f3", zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(0.09, edge * 1.5)
    ticks = [
        value for value in (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000) if value < edge / 1.6
    ]
    axes.set_xticks([*ticks, edge], [*(f"{value:g}" for value in ticks), "∞"])
    axes.minorticks_off()
    axes.set_yticks(
        range(len(rows)), [f"{names} ({row['trust']})" for names, row in rows], fontsize=7
    )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("epsilon at the reference plan's delta")
    handles = [
        Line2D(
            [],
            [],
            color=_GREY,
            marker="|",
            markersize=11,
            markeredgewidth=2,
            linestyle="none",
            label="claimed",
        ),
        Line2D([], [], color=_GREY, marker="o", linestyle="none", label="at least, by the audit"),
        Line2D(
            [],
            [],
            color=_GREY,
            marker="D",
            markerfacecolor="white",
            linestyle="none",
            label="ledger",
        ),
        *(
            Line2D([], [], color=colour, marker="s", linestyle="none", label=word)
            for word, colour in COLOURS.items()
        ),
    ]
    drawn.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=8, frameon=False)
    return drawn


def _distinct(frame: pd.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """Return the distinct audits with the names of those who share each."""
    found = []
    for _, rows in frame.groupby("audit", sort=False):
        first = rows.iloc[0]
        if first["profile"] == "alone":
            names = f"only {first['departures']}"
        elif first["profile"] == "adaptive":
            names = "adaptive clipping"
        elif first["profile"] == "strict" and len(rows) > 3:
            names = f"{len(rows)} methods, certified"
        else:
            titles = [registry.info(name).about.title for name in rows["method"].dropna()]
            names = (
                f"{', '.join(titles)}, "
                f"{'certified' if first['profile'] == 'strict' else 'as published'}"
            )
        if 0 < first["sample_rate"] < 1:
            names += ", drawn"
        found.append((names, {str(name): value for name, value in first.items()}))
    return found
