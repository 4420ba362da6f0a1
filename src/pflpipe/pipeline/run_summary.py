"""What is said when snakemake is done: where everything is, the best rows, and what was warned of.

Nothing here is computed anew: the rows are those of the tables, with the epsilon that they state.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from pflpipe.cells import WITHOUT_DEPARTURES
from pflpipe.errors import PflpipeError
from pflpipe.report import comparison, mlflow_export, tidy
from pflpipe.report.comparison import Group, epsilon_text, finite
from pflpipe.study.config import Config
from pflpipe.study.load import finish
from pflpipe.study.study_spec import Outline

LOGS = Path("logs")
MOST = 10
"""Warnings that are printed; the rest are counted."""


def lines(
    outlines: Iterable[Outline], settings: Config, address: str, since: float
) -> Iterator[str]:
    """Yield what a user wants to know at the end.

    Args:
        outlines: the studies that were asked for.
        settings: config.yaml.
        address: of MLflow.
        since: when snakemake began, seconds since the epoch: older files and logs are not its own.
    """
    results = settings.results_dir
    for outline in outlines:
        yield from _study(outline, results, address)
    for name in ("tables/all.csv", "ledger.html", "report.html"):
        file = results / name
        if file.exists() and file.stat().st_mtime >= since:
            yield f"  {file}"
    found = warnings(since)
    yield from found[:MOST]
    if len(found) > MOST:
        yield f"and {len(found) - MOST} more: grep -r ^warning: {LOGS}"


def _study(outline: Outline, results: Path, address: str) -> Iterator[str]:
    table = results / "tables" / f"{outline.name}.csv"
    if not table.exists():
        return
    yield f"{outline.name}: {table.with_suffix('.md')}, .tex, .csv"
    if (figures := results / "figures" / outline.name).is_dir():
        yield f"  figures: {figures}/"
    marker = results / "tracking" / f"{outline.name}.done"
    if marker.exists():
        server = mlflow_export.without_credentials(address)
        if marker.read_text(encoding="utf-8").startswith("pending"):
            yield f"  MLflow: not sent yet; the same command tries again ({marker})"
        elif address.startswith("http"):
            yield f"  MLflow: experiment {outline.name} at {server}"
        else:
            file = mlflow_export.database_file(address)
            files = quote(f"{file.parent if file else results}/{mlflow_export.ARTIFACTS}")
            where = shlex.join(["--backend-store-uri", server, "--artifacts-destination", files])
            yield f"  MLflow: mlflow ui {where}, experiment {outline.name}"
    try:
        yield from best(outline, results)
    except PflpipeError as error:  # such as a table of another version, which is not shown then
        yield f"  warning: {error}"


def best(outline: Outline, results: Path, most: int = 3) -> Iterator[str]:
    """Yield a study's best rows, certified or unreviewed if there are any, at the largest budget
    that such rows have; and what else a reader must know of the table.

    Raises:
        PflpipeError: the table is not that of the study.
    """
    study = finish(outline, results)
    frame = tidy.stored(study, results)
    groups = comparison.groups(study, frame)
    rivals = comparison.of_claim(groups, *WITHOUT_DEPARTURES)
    if rivals:
        budget = max(rivals, key=_epsilon).budget
        rivals = comparison.by_budget(rivals)[budget]
    for group in comparison.ranked(rivals or groups)[:most]:
        facet = "".join(f", {name} {value}" for name, value in group.facet.items())
        yield (
            f"  {group.label}{facet}: personal accuracy {group.text()} %, {group.claim}, "
            f"ε = {epsilon_text(group)}"
        )
    diverged = int(frame["diverged_round"].notna().sum())
    if diverged:
        yield f"  warning: {diverged} of {len(frame)} runs left the finite numbers"
    large = frame[frame["delta"] >= 1 / frame["clients"]]
    for delta, clients in dict.fromkeys(zip(large["delta"], large["clients"], strict=True)):
        yield (
            f"  warning: δ = {delta:g} is not below 1/M = {1 / clients:g}: its ε allow one client "
            "to be published in clear"
        )
    nominal = int((frame["claim"] == "nominal").sum())
    if nominal:
        yield f"  warning: {nominal} of {len(frame)} rows state a nominal ε; read the honest one"


def _epsilon(group: Group) -> float:
    return max(finite(group.rows["epsilon_central"]), default=0.0)


def warnings(since: float) -> list[str]:
    """Return the lines that begin with ``warning:`` in the logs since a time, each once."""
    found: dict[str, None] = {}
    for log in sorted(LOGS.rglob("*.log")):
        if log.stat().st_mtime >= since:
            with log.open(encoding="utf-8", errors="replace") as file:
                found |= dict.fromkeys(
                    f"{log}: {line.rstrip()}" for line in file if line.startswith("warning:")
                )
    return list(found)
