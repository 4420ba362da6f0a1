"""At which heterogeneity private personalization pays, by the study of that name.

    python tools/heterogeneity.py results

reads its table and writes docs/heterogeneity/points.csv and the figure
docs/images/heterogeneity.png, and prints how many of the predictions came true: those of
docs/heterogeneity/predictions.csv, which is older than the runs. The naive forecast is that labels
are never shifted: what a method has at the same alpha without a shift.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from pflpipe.report import comparison, sentences, verdicts
from pflpipe.report.comparison import MAIN, Group
from pflpipe.report.tidy import stored
from pflpipe.report.verdicts import RELEASED
from pflpipe.study.load import load_study
from pflpipe.study.settings import layout

STUDY = "heterogeneity"
FOLDER, FIGURE = Path("docs/heterogeneity"), Path("docs/images/heterogeneity.png")
KEYS = ["alpha", "shifted", "epsilon"]
SHOWN = {"pmtl_ft": "C0", "dp_fedavg": "C1", "fedrep": "C2", "local_only": "black"}
"""Lines of the figure; the fifth is the best released model."""
NEAR = 5.0
"""Percent points within which a prediction came true."""


def points(results: Path) -> Iterator[dict[str, object]]:
    """Yield one row for each alpha, share of shifted clients and budget: the verdict, and the mean
    accuracy on own test rows of every method, in percent."""
    study = load_study(STUDY, results=results)
    groups = comparison.groups(study, stored(study, results))
    for facet in layout(study).facets:
        panel = [group for group in groups if group.belongs(facet)]
        cell = study.cells[panel[0].indices[0]]
        held = {"alpha": cell.partition.alpha, "shifted": cell.partition.shifted}
        none = [one for one in panel if one.claim == "none"]
        for budget, verdict in sentences.judged(panel, 1).items():
            here = [*none, *(one for one in panel if one.budget == budget)]
            strongest = verdict.beside["b"]
            gaps = [gap for _, gap in verdict.beside.values()]
            least = min(gaps, key=lambda gap: gap.mean)
            yield {
                **held,
                "epsilon": float(budget.removeprefix("ε = ")),
                "verdict": verdict.word,
                "personal": verdict.group.label,
                "instead": verdicts.instead(verdict),
                "gain": least.mean,
                "low": least.low,
                "high": least.high,
                "released": strongest[0].group.mean(RELEASED),
                **{one.label: _mean(one) for one in here},
            }


def _mean(group: Group) -> float:
    return group.mean(RELEASED if verdicts.untouched(group) else MAIN)


def forecasts(table: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions of the points that were run, with outcome and naive forecast."""
    known = pd.read_csv(FOLDER / "predictions.csv")
    parts = []
    for budget in table["epsilon"].unique():
        fits = known["epsilon"].isna() | (known["epsilon"] == budget)
        parts.append(known[fits].assign(epsilon=budget))
    long = table.melt(KEYS, var_name="line", value_name="outcome")
    found = pd.concat(parts).merge(long, on=[*KEYS, "line"])
    plain = long[long["shifted"] == 0].drop(columns="shifted").rename(columns={"outcome": "naive"})
    joined: pd.DataFrame = found.merge(plain, on=["alpha", "epsilon", "line"])
    return joined


def draw(table: pd.DataFrame) -> None:
    """Draw the accuracies over alpha, one panel for each share of shifted clients and budget."""
    panels = list(table.groupby(["epsilon", "shifted"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.4), sharey=True)
    for place, (_, rows) in zip(axes, panels, strict=True):
        budget, share = rows["epsilon"].iloc[0], rows["shifted"].iloc[0]
        for line, colour in SHOWN.items():
            place.plot(rows["alpha"], rows[line], "o-", color=colour, label=line)
        released = "best released model"
        place.plot(rows["alpha"], rows["released"], "s--", color="grey", label=released)
        for row in rows.to_dict("records"):
            place.annotate(row["verdict"], (row["alpha"], 97), fontsize=7, ha="center")
        place.set(xscale="log", xlabel="Dirichlet α", ylim=(10, 101), xlim=(0.06, 17))
        place.set_title(f"ε = {budget:g}\nlabels of {100 * share:g} % of the clients shifted")
    axes[0].set_ylabel("accuracy on own test rows, %")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    """Write the table and the figure."""
    table = pd.DataFrame(points(Path(sys.argv[1])))
    table.to_csv(FOLDER / "points.csv", index=False, float_format="%.1f")
    draw(table)
    print(table.round(1).to_string(index=False))
    found = forecasts(table)
    words, numbers = found[found["line"] == "verdict"], found[found["line"] != "verdict"]
    values = numbers[["predicted", "outcome", "naive"]].astype(float)
    near = {name: (values[name] - values["outcome"]).abs() <= NEAR for name in values}
    shifted = numbers["shifted"] > 0
    print(f"within {NEAR:g} points: {near['predicted'].sum()} of {len(values)}")
    print(
        f"with shifted labels: {(near['predicted'] & shifted).sum()} of {shifted.sum()}, "
        f"naive {(near['naive'] & shifted).sum()}"
    )
    print(f"verdicts: {(words['predicted'] == words['outcome']).sum()} of {len(words)}")
    late = words[words["shifted"] > 0]
    print(f"naive verdicts: {(late['naive'] == late['outcome']).sum()} of {len(late)}")


if __name__ == "__main__":
    main()
