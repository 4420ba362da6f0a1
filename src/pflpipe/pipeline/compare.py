"""Two sides of what was measured, side by side (``pflpipe compare``): two studies, two tables, or
two methods of one.

What a side has one value of is a condition of that side; what varies inside one of them tells rows
apart. Rows of both sides that agree in it stand beside each other, with the difference over the
seeds that both have: the same seed is the same division of the same data, so the difference is
taken seed by seed, and its error is that of paired values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe.errors import ConfigError, DataError, check_known, nearest
from pflpipe.report import tidy
from pflpipe.report.comparison import METRICS, Group, epsilon_text
from pflpipe.study.load import study_names

CONDITIONS = (
    *("dataset", "partition", "alpha", "classes_per_client", "clients", "new_clients"),
    *("model", "rounds", "local_epochs", "batch_size", "sample_rate"),
    *("method", "variant", "profile", "epsilon_target", "delta"),
)
"""Columns of a table that say what was compared."""

BUDGET = "epsilon_target"
TOLD_APART = ("hyperparameters", "clip_norm", "noise_multiplier")
"""Columns that tell rows apart if the conditions do not, such as a study of one method's values."""

Groups = dict[tuple[Any, ...], Group]
"""By the values of the key."""


def lines(first: str, second: str, results: Path, metric: str = "personal_own") -> Iterator[str]:
    """Yield the comparison as text.

    Args:
        first, second: a study, or a table's file, each with ``:<method>`` behind it for one method
            of it alone.
        results: folder with ``tables/<study>.csv``.
        metric: a column of accuracies, or of another metric that both tables have.

    Raises:
        ConfigError: no such metric or method. DataError: no such table, or no row in common.
    """
    sides = [side(word, results) for word in (first, second)]
    others = map(str, list(sides[0])[len(tidy.COLUMNS) :])
    known = [*METRICS, *(name for name in others if name in sides[1])]
    if metric not in known:
        raise ConfigError(f"metric {metric!r} does not exist", do=nearest(metric, known))
    digits, unit = (1, " in percent") if metric in METRICS else (3, "")
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
    yield f"{metric}{unit}: A | B | B - A ± its standard error over the seeds that both have"
    varying = [len(set(values)) > 1 for values in zip(*both, strict=True)]
    for values in both:
        columns = zip(key, values, varying, strict=True)
        told = [_told(name, value) for name, value, varies in columns if varies]
        label, pair = ", ".join(filter(None, told)) or "all rows", (a[values], b[values])
        parts = [_one(group, metric, digits) for group in pair]
        parts.append(_paired(*pair, metric, digits))
        yield f"  {label}: {' | '.join(parts)}"
    for word, found in (("A", a.keys() - b.keys()), ("B", b.keys() - a.keys())):
        if found:
            yield f"  and {len(found)} of {word} alone"
    yield "Accuracies are diagnostics, which no epsilon covers."


def side(word: str, results: Path) -> pd.DataFrame:
    """Return the rows that a word of the command line names; see ``lines``."""
    name, _, method = word.partition(":")
    table = Path(name) if name.endswith(".csv") else results / "tables" / f"{name}.csv"
    if not name.endswith(".csv") and not table.exists():
        check_known(name, [*study_names(), "all"], "no table, and no study")
    frame = tidy.read(tidy.existing(table, table))
    known = set(frame["method"])
    if method and method not in known:
        raise ConfigError(f"{name} has no method {method!r}", do=nearest(method, known))
    return frame[frame["method"] == method] if method else frame


def _key(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[str], dict[str, tuple[Any, ...]]]:
    """Return the columns that tell rows apart, and those in which the sides differ as a whole."""
    key: list[str] = []
    differing: dict[str, tuple[Any, ...]] = {}
    for name in CONDITIONS:
        found = [dict.fromkeys(map(_plain, frame[name])) for frame in (a, b)]
        if name != "variant":  # which only some rows have; others have no delta, not another one
            for values in found:
                values.pop(None, None)
        if any(len(values) > 1 for values in found):
            key.append(name)
        elif list(found[0]) != list(found[1]):
            differing[name] = tuple(next(iter(values), "none") or "none" for values in found)
    for name in TOLD_APART:
        if any(frame.duplicated([*key, "seed"]).any() for frame in (a, b)):
            key.append(name)
    return key, differing


def _groups(frame: pd.DataFrame, key: list[str]) -> Groups:
    """Return the rows of all seeds by the values of the key."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for position, record in enumerate(frame.to_dict("records")):
        members.setdefault(tuple(_plain(record[name]) for name in key), []).append(position)
    return {values: Group("", "", frame.iloc[found]) for values, found in members.items()}


def _at_budgets(groups: Groups, others: Groups, key: list[str]) -> Groups:
    """Return the groups, those without privacy at every budget of the rows that they may stand
    beside."""
    if BUDGET not in key:
        return groups
    at = key.index(BUDGET)
    placed: Groups = {}
    for values, group in groups.items():
        beside = [
            other
            for other in others
            if (*other[:at], *other[at + 1 :]) == (*values[:at], *values[at + 1 :])
        ]
        wanted = values[at] is None and values not in others
        placed |= dict.fromkeys((beside if wanted else []) or [values], group)
    return placed


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value


def _told(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("method", "variant"):
        return str(value)
    return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"


def _one(group: Group, metric: str, digits: int) -> str:
    diverged = " (diverged)" if group.diverged else ""
    return f"{group.text(metric, digits)}{diverged}, {group.claim}, ε {epsilon_text(group)}"


def _paired(a: Group, b: Group, metric: str, digits: int) -> str:
    # A table of several studies may have a seed twice; its last row counts.
    first, second = (group.values(metric).groupby(level=0).last() for group in (a, b))
    differences = (second - first).dropna()
    if differences.empty:
        return "no seed in common"
    mean, error = differences.mean(), float(differences.std() / len(differences) ** 0.5)
    text = f"{mean:+.{digits}f}"
    text += f" ± {error:.{digits}f}" if len(differences) > 1 else ""
    return f"{text} ({len(differences)} seeds)"
