"""The figures of a study: those of its ``figures`` block, by default those for which its runs have
data."""

from collections.abc import Mapping, Sequence
from typing import Any

from pflpipe.cells import PATHS
from pflpipe.errors import ConfigError, check_known
from pflpipe.learning.metrics import ALWAYS, Metric
from pflpipe.study.metric_columns import columns
from pflpipe.study.study_spec import Drawing, Outline, Row, Study, check_labels

KINDS = ("privacy_utility", "ranks", "soundness", "convergence", "gains", "cost", "partition")
ATTACKS = ("membership", "one_run")
"""Names, and kinds, of the figures of attacks. A study has them only if its block names them."""
_MANY_SEEDS = 5  # resampling fewer says almost nothing about ranks


def read(
    document: dict[str, Any], file: str, rows: Sequence[Row], metrics: Mapping[str, Metric] = ALWAYS
) -> tuple[Drawing, ...]:
    """Return the figures of a schema-checked study.

    Args:
        rows: all runs that the study may have.
        metrics: the study's metrics by name.

    Raises:
        ConfigError: unknown kind, method, path or metric.
    """
    block = document.get("figures")
    if block is None:
        return tuple(Drawing(kind, kind) for kind, shown in _kinds(rows).items() if shown)
    drawings = []
    for name, given in block.items():
        location = f"{file}: figures.{name}"
        kind = given.get("kind", name)
        do = f"give it a kind: {', '.join(KINDS)}"
        ConfigError.unless(kind in KINDS + ATTACKS, f"{location}.kind", kind, do=do)
        for key in ("methods", "strong"):
            check_labels(given.get(key, ()), document, f"{location}.{key}")
        for path in given.get("where", {}):
            check_known(path, PATHS, f"{location}.where: unknown path")
        metric = given.get("metric", "personal_own")
        check_known(metric, columns(metrics), f"{location}.metric: unknown metric")
        lists = {key: tuple(given[key]) for key in ("methods", "strong") if key in given}
        drawings.append(Drawing(**{**given, **lists, "name": name, "kind": kind}))
    return tuple(drawings)


def find(study: Study | Outline, name: str) -> Drawing:
    """Return a study's figure by name. Every study has a figure of each kind and attack.

    Raises:
        ConfigError: unknown name.
    """
    known = {kind: Drawing(kind, kind) for kind in KINDS + ATTACKS}
    known |= {drawing.name: drawing for drawing in study.figures}
    check_known(name, known, f"study {study.name!r} has no figure")
    return known[name]


def _kinds(rows: Sequence[Row]) -> dict[str, bool]:
    """Return kind -> whether these runs have the data of such a figure."""
    cells = [row.cell for row in rows]
    private = [cell for cell in cells if cell.privacy.mechanism != "none"]
    certified = {cell.method for cell in cells if cell.claim == "certified"}
    methods, seeds = {cell.method for cell in cells}, {cell.seed for cell in cells}
    by_round = (c.training.evaluate_every and c.training.evaluate_personal for c in cells)
    return dict.fromkeys(KINDS, True) | {
        "ranks": len(certified) > 1 and len(seeds) >= _MANY_SEEDS,
        "soundness": any(cell.departures and cell.method in certified for cell in private),
        "convergence": any(by_round),
        "gains": "local_only" in methods and len(methods) > 1,
    }
