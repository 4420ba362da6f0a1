"""Whom the best personal model of a study helps: its gain over the strongest rival by columns of
the people, such as sex and age.

    PYTHONPATH=src:tools .venv/bin/python tools/gain_by_group.py STUDY PEOPLE.npz COLUMN... \
        > docs/results/STUDY/groups.csv

reads the committed scores of ``docs/results/STUDY`` and, to know who is who, the data set as the
study's runs read it. PEOPLE.npz has one array for each column, a value for each user in the order
of their ids: text ("" is unknown), or numbers (NaN is unknown) with public boundaries, such as
``age=25,45`` for below 25, 25 to 44, and 45 or above. What is written is means over people, and
nobody's values; one_study.py shows it.

At every budget the personal model is that of the verdict, and the rival the largest mean of those
whose answers are known by person. Groups of all columns are one family of intervals, over seeds and
people (statistics.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pages import archive
from pages.archive import Archive
from pages.panel import Panel, panels
from pflpipe.data import datasets, partition
from pflpipe.program import run_script
from pflpipe.report import statistics
from pflpipe.report.comparison import MAIN, Group
from pflpipe.study import config
from pflpipe.study.load import load_outline

RESULTS = Path("docs/results")


def groups(columns: Mapping[str, np.ndarray], asked: Sequence[str]) -> dict[str, np.ndarray]:
    """Return name of a group -> whether a user belongs to it, bool ``[users]``."""
    found = {}
    for text in asked:
        name, _, cuts = text.partition("=")
        values = columns[name]
        ends = [float(cut) for cut in cuts.split(",") if cut]
        if ends:
            for low, high in zip([-np.inf, *ends], [*ends, np.inf], strict=True):
                words = (
                    f"{low:g} to {high - 1:g}"
                    if np.isfinite([low, high]).all()
                    else (f"below {high:g}" if np.isfinite(high) else f"{low:g} or above")
                )
                found[f"{name} {words}"] = (low <= values) & (values < high)
        else:
            found |= {str(one): values == one for one in np.unique(values) if one != ""}
    return found


def users(study: Archive, data: Path) -> dict[str, np.ndarray]:
    """Return by partition the place of the user of each client in training, in sorted ids."""
    cells = {cell.partition_id: cell for cell in load_outline(study.name).everything.cells}
    arrays = datasets.load_arrays(data / f"{cells[next(iter(study.held))].dataset}.npz")
    assert arrays.train_users is not None
    assert arrays.users is not None
    found = {}
    for name, held in study.held.items():
        split = partition.make(arrays, cells[name].partition, cells[name].seed)
        again = archive._held(split, arrays.train_labels, arrays.test_labels)
        assert again.equals(held), f"{name}: these data are not those of the study"
        ids = [arrays.train_users[rows[0]] for rows in split.train]
        found[name] = np.searchsorted(arrays.users, ids)
    return found


def table(
    panel: Panel, of_group: Mapping[str, np.ndarray], who: Mapping[str, np.ndarray]
) -> Iterator[dict[str, object]]:
    """Yield for every budget and group the number of people and the gain with its interval."""
    for budget, verdict in panel.verdicts.items():
        lines = [line for line, _ in verdict.beside.values() if line.column == MAIN]
        known = [line.group for line in lines if line.group in panel.groups]
        rival = max(known, key=Group.mean)
        everyone = range(len(next(iter(of_group.values()))))
        by_seed = {
            seed: _gain(panel, verdict.group, rival, seed, who) for seed in rival.values(MAIN).index
        }
        gains = pd.DataFrame(by_seed, index=everyone)  # [users, seeds]
        means = pd.DataFrame({name: gains[inside].mean() for name, inside in of_group.items()})
        spread = {
            name: float(gains[inside].var().mean()) / int(inside.sum())
            for name, inside in of_group.items()
        }
        found = statistics.against(means, pd.Series(0.0, means.index), spread.__getitem__)
        for name, gap in found.items():
            yield {
                **{"budget": budget, "method": verdict.group.label, "rival": rival.label},
                **{"group": name, "people": int(of_group[name].sum())},
                **{
                    "gain": round(gap.mean, 2),
                    "low": round(gap.low, 2),
                    "high": round(gap.high, 2),
                },
            }


def _gain(
    panel: Panel, ours: Group, theirs: Group, seed: int, who: Mapping[str, np.ndarray]
) -> pd.Series[float]:
    """Return the gain of one seed, by user."""
    one, other = (group.rows[group.rows["seed"] == seed].iloc[0] for group in (ours, theirs))
    places = who[str(one["partition"])]
    clients = [str(client) for client in range(len(places))]
    percent = panel.study.percent.reindex(clients)
    return pd.Series((percent[one["cell"]] - percent[other["cell"]]).to_numpy(), index=places)


def main() -> None:
    """Print the table of the study that the command line names."""
    name, file, *asked = sys.argv[1:]
    others = [archive.read(one.parent) for one in sorted(RESULTS.glob("one_release_*/about.json"))]
    study = archive.with_lent(archive.read(RESULTS / name), others)
    (panel,) = panels(study)
    who = users(study, config.load().data_dir)
    with np.load(file, allow_pickle=False) as columns:
        of_group = groups(columns, asked)
    rows = table(panel, of_group, who)
    print(pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"), end="")


if __name__ == "__main__":
    run_script(main)
