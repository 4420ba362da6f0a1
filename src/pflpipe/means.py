"""The unweighted mean over clients that have a value."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def over_clients(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    # NumPy warns about the mean of nothing, hence the check.
    numbers = np.array(list(values), dtype=np.float64)
    return float(np.nanmean(numbers)) if not np.isnan(numbers).all() else float("nan")
