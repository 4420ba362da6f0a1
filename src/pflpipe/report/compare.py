"""Compare two studies, two tables, or two methods of one (``pflpipe compare``).

A column with one value on each side is a condition of that side. Columns that vary within a side
are the key of its rows. Rows with equal keys are compared: the difference is taken seed by seed,
because at the same seed both have the same split of the same data, and its error is that of paired
values.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe.errors import ConfigError, DataError, check_known, counted, nearest
from pflpipe.report import tidy
from pflpipe.report.comparison import METRICS, Group, epsilon_text
from pflpipe.study.load import study_names
from pflpipe.study.metric_columns import BEST_ROUND

CONDITIONS = (
    *("dataset", "partition", "alpha", "classes_per_client", "clients", "new_clients"),
    *("model", "rounds", "local_epochs", "batch_size", "sample_rate"),
    *("method", "variant", "profile", "epsilon_target", "delta"),
)
"""Columns that may be conditions."""

BUDGET = "epsilon_target"
FURTHER = ("hyperparameters", "clip_norm", "noise_multiplier")
"""Columns of the key if the conditions do not identify a row, as in a study of one method."""

Groups = dict[tuple[Any, ...], Group]
"""Groups by the values of their key."""


def lines(first: str, second: str, results: Path, metric: str = "personal_own") -> Iterator[str]:
    """Yield the comparison as text.

    Args:
        first, second: a study or a table's file, followed by ``:<method>`` for one of its methods.
        results: folder with ``tables/<study>.csv``.
        metric: a column of accuracies, or of another metric that both tables have.

    Raises:
        ConfigError: no such metric or method, or studies whose losses have different metrics.
        DataError: no such table, or no row in common.
    """
    sides = [side(name, results) for name in (first, second)]
    others = [str(name) for name in list(sides[0])[len(tidy.COLUMNS) :] if name in sides[1]]
    # Best rounds are no measurement that could decide between methods.
    others = [name for name in others if not name.startswith(BEST_ROUND)]
    metrics = [*METRICS, *(name for name in others if name not in tidy.OF_UNITS)]
    if metric not in metrics:
        raise ConfigError(f"metric {metric!r} does not exist", do=nearest(metric, metrics))
    key, differing = _key(*sides)
    a, b = (_groups(frame, key) for frame in sides)
    a, b = _at_budgets(a, b, key), _at_budgets(b, a, key)
    both = [values for values in a if values in b]
    if not both:
        raise DataError(f"{first} and {second} have no rows that agree in {', '.join(key)}")
    yield f"A: {first}"
    yield f"B: {second}"
    for name, (of_a, of_b) in differing.items():
        yield f"  {name}: {of_a} | {of_b}"
    digits, words = 3, ""
    if metric in METRICS:
        firsts = {side[values].metric for side in (a, b) for values in both}
        if len(firsts) > 1:
            got = ", ".join(sorted(of.heading for of in firsts))
            raise ConfigError(f"metric {metric}", got=got, expected="studies with one metric")
        (of,) = firsts
        digits, words = of.digits, f", {of.described}"
    yield f"{metric}{words}: A | B | B - A ± its standard error over the seeds that both have"
    varying = [len(set(values)) > 1 for values in zip(*both, strict=True)]
    for values in both:
        columns = zip(key, values, varying, strict=True)
        texts = [_text(name, value) for name, value, varies in columns if varies]
        label, pair = ", ".join(filter(None, texts)) or "all rows", (a[values], b[values])
        parts = [
            f"{one.text(metric, digits)}{' (diverged)' * bool(one.diverged)}, {one.claim}, "
            f"ε {epsilon_text(one)}"
            for one in pair
        ]
        parts.append(_paired(*pair, metric, digits))
        yield f"  {label}: {' | '.join(parts)}"
    for letter, alone in (("A", a.keys() - b.keys()), ("B", b.keys() - a.keys())):
        if alone:
            yield f"  and {len(alone)} of {letter} alone"
    yield "Measured values are diagnostics, which no epsilon covers."


def side(argument: str, results: Path) -> pd.DataFrame:
    """Return the rows of an argument; see ``lines``."""
    name, _, method = argument.partition(":")
    table = Path(name) if name.endswith(".csv") else results / "tables" / f"{name}.csv"
    if not name.endswith(".csv") and not table.exists():
        check_known(name, [*study_names(), "all"], "no table, and no study")
    frame = tidy.read(tidy.existing(table, table))
    methods = set(frame["method"])
    if method and method not in methods:
        raise ConfigError(f"{name} has no method {method!r}", do=nearest(method, methods))
    return frame[frame["method"] == method] if method else frame


def _key(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[Any, ...]]]:
    """Return the columns of the key, and the conditions in which the sides differ."""
    key: list[str] = []
    differing: dict[str, tuple[Any, ...]] = {}
    for name in CONDITIONS:
        # A missing delta (no privacy) is not another delta, but a missing variant is the default.
        columns = [f[name] if name == "variant" else f[name].dropna() for f in (a, b)]
        values = [list(dict.fromkeys(column)) for column in columns]
        if any(len(one) > 1 for one in values):
            key.append(name)
        elif values[0] != values[1]:
            differing[name] = tuple((one or ["none"])[0] or "none" for one in values)
    for name in FURTHER:
        if any(frame.duplicated([*key, "seed"]).any() for frame in (a, b)):
            key.append(name)
    return key, differing


def _groups(frame: pd.DataFrame, key: list[str]) -> Groups:
    """Return the rows of all seeds by the values of the key."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for position, values in enumerate(frame[key].itertuples(index=False, name=None)):
        members.setdefault(values, []).append(position)
    return {values: Group("", "", frame.iloc[positions]) for values, positions in members.items()}


def _at_budgets(groups: Groups, others: Groups, key: list[str]) -> Groups:
    """Return the groups; one without privacy is repeated at every budget of the others that agree
    with it."""
    if BUDGET not in key:
        return groups
    at = key.index(BUDGET)
    placed: Groups = {}
    for values, group in groups.items():
        at_budgets = [
            other
            for other in others
            if (*other[:at], *other[at + 1 :]) == (*values[:at], *values[at + 1 :])
        ]
        is_public = values[at] is None and values not in others
        placed |= dict.fromkeys((at_budgets if is_public else []) or [values], group)
    return placed


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("method", "variant"):
        return str(value)
    return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"


def _paired(a: Group, b: Group, metric: str, digits: int) -> str:
    # A table of several studies may have a seed twice; its last row counts.
    first, second = (group.values(metric).groupby(level=0).last() for group in (a, b))
    differences = (second - first).dropna()
    if differences.empty:
        return "no seed in common"
    mean, error = differences.mean(), float(differences.std() / len(differences) ** 0.5)
    text = f"{mean:+.{digits}f}"
    text += f" ± {error:.{digits}f}" if len(differences) > 1 else ""
    return f"{text} ({counted(len(differences), 'seed')})"
