"""What figures say about differences and ranks over seeds.

All runs of a seed share its split of the data, so that two methods are compared within each seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
Seeds = Mapping[str, "pd.Series[float]"]
"""For each line of a panel by its label, its value in percent by seed."""


def intervals(values: Seeds, against: Mapping[str, str]) -> pd.DataFrame:
    """Return the mean over seeds and its interval at ``LEVEL``, by Student's t.

    Args:
        values: of each label.
        against: the label from which the values of a label are subtracted seed by seed; one that is
            not in it keeps its own.

    Returns:
        ``estimate``, ``low``, ``high`` by label; no interval (NaN) for fewer than two seeds.
    """
    records = {}
    for label, own in values.items():
        other = values[against[label]] if label in against else 0.0
        part = (own - other).dropna().to_numpy(dtype=float)
        mean, reach = np.nan, np.nan
        if len(part):
            mean = part.mean()
        if len(part) > 1:
            quantile = stats.t.ppf((1 + LEVEL) / 2, len(part) - 1)
            reach = quantile * part.std(ddof=1) / np.sqrt(len(part))
        records[label] = {"estimate": mean, "low": mean - reach, "high": mean + reach}
    return pd.DataFrame.from_dict(records, orient="index", columns=["estimate", "low", "high"])


def ranks(values: Seeds) -> pd.DataFrame:
    """Return the rank of each label's mean, 1 the largest, and an interval of ranks at ``LEVEL``.

    A label cannot rank above those that are significantly better, nor below those that are
    significantly worse (Mogstad et al., "Inference for ranks", REStud 2024): paired t tests against
    each of the others, with Holm's correction for their number.

    Returns:
        ``estimate``, ``low``, ``high`` by label; low is the best rank. Labels without a value are
        left out.
    """
    known = {label: own for label, own in values.items() if own.notna().any()}
    means = pd.Series({label: own.mean() for label, own in known.items()}, dtype=float)
    records = {}
    for label, own in known.items():
        others = [other for other in known if other != label]
        differences = [(own - known[other]).dropna().to_numpy(dtype=float) for other in others]
        p = np.array([_p(part) for part in differences])
        rejected = np.zeros(len(p), dtype=bool)
        for tried, place in enumerate(np.argsort(p, kind="stable")):
            if p[place] > (1 - LEVEL) / (len(p) - tried):
                break
            rejected[place] = True
        signs = np.array([np.sign(part.mean()) if len(part) else 0.0 for part in differences])
        records[label] = {
            "estimate": 1.0 + (means > means[label]).sum(),
            "low": 1.0 + (rejected & (signs < 0)).sum(),
            "high": len(known) - float((rejected & (signs > 0)).sum()),
        }
    return pd.DataFrame.from_dict(records, orient="index", columns=["estimate", "low", "high"])


def _p(differences: np.ndarray) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0
    spread = differences.std(ddof=1) / np.sqrt(len(differences))
    if spread == 0:
        return 0.0
    return float(2 * stats.t.sf(abs(differences.mean()) / spread, len(differences) - 1))
