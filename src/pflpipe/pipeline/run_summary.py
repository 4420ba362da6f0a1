"""The last lines of a snakemake run: where the results are, the best rows, and warnings.

The rows come from the tables, with the epsilon that the tables state.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.errors import PflpipeError
from pflpipe.pipeline import mlflow_export
from pflpipe.report import answer, comparison, tidy
from pflpipe.report.comparison import Group, epsilon_text, finite
from pflpipe.study.config import Config
from pflpipe.study.load import finish
from pflpipe.study.study_spec import Outline, Study

LOGS = Path("logs")
MOST = 10
"""Most warnings that are printed; the rest is counted."""


def lines(
    outlines: Iterable[Outline], settings: Config, address: str, since: float
) -> Iterator[str]:
    """Yield the last lines of a run.

    Args:
        outlines: the requested studies.
        settings: config.yaml.
        address: MLflow's address.
        since: start of snakemake in seconds since the epoch; older files and logs are ignored.
    """
    results = settings.results_dir
    for outline in outlines:
        yield from _study(outline, results, address)
    for name in ("tables/all.csv", "ledger.html", "report.html"):
        file = results / name
        if file.exists() and file.stat().st_mtime >= since:
            yield f"  {file}"
    warned = warnings(since)
    yield from warned[:MOST]
    if len(warned) > MOST:
        yield f"and {len(warned) - MOST} more: grep -r ^warning: {LOGS}"


def _study(outline: Outline, results: Path, address: str) -> Iterator[str]:
    table = results / "tables" / f"{outline.name}.csv"
    if not table.exists():
        return
    yield f"{outline.name}: {table.with_suffix('.md')}, .tex, .csv"
    if (figures := results / "figures" / outline.name).is_dir():
        yield f"  figures: {figures}/"
    if marker(outline.name, results).exists():
        yield f"  {tracking(outline.name, results, address)}"
    try:
        yield from (f"  {line}" for line in of_study(outline, results))
    except PflpipeError as error:  # such as a table of another version
        yield f"  warning: {error}"


def marker(name: str, results: Path) -> Path:
    """Return the file that says what MLflow has of a study."""
    return results / "tracking" / f"{name}.done"


def tracking(name: str, results: Path, address: str) -> str:
    """Return how to see the runs of a study that has a marker in MLflow.

    Args:
        address: MLflow's.
    """
    file = marker(name, results)
    server = mlflow_export.without_credentials(address)
    text = file.read_text(encoding="utf-8")
    page = text.partition(", page ")[2].partition("\n")[0]  # an old marker has none
    experiment = f"experiment {name}"
    if text.startswith("pending"):
        return f"MLflow: not sent yet; the same command tries again ({file})"
    if address.startswith("http"):
        return f"MLflow: {page or f'{experiment} at {server}'}"
    database = mlflow_export.database_file(address)
    files = quote(f"{database.parent if database else results}/{mlflow_export.ARTIFACTS}")
    where = shlex.join(["--backend-store-uri", server, "--artifacts-destination", files])
    return f"MLflow: {mlflow_export.UI} {where}, {page or experiment}"


def of_study(outline: Outline, results: Path, most: int = 3) -> Iterator[str]:
    """Yield the answer of a study in five lines, and warnings about its table. Without an answer:
    the best rows at the largest budget, certified or unreviewed ones if there are any.

    Raises:
        PflpipeError: the table belongs to another version of the study.
    """
    study = finish(outline, results)
    frame = tidy.stored(study, results)
    answered = list(answer.lines(study, frame, results))
    yield from answered or _best(study, frame, most)
    diverged = int(frame["diverged_round"].notna().sum())
    if diverged:
        yield f"warning: {diverged} of {len(frame)} runs diverged to values that are not finite"
    large = frame[frame["delta"] >= 1 / frame["clients"]]
    for delta, clients in dict.fromkeys(zip(large["delta"], large["clients"], strict=True)):
        yield (
            f"warning: δ = {delta:g} is not below 1/M = {1 / clients:g}: its ε allow one client "
            "to be published in clear"
        )
    if not answered or "epsilon_person" in frame:
        yield from comparison.protected(frame)
    nominal = int((frame["claim"] == "nominal").sum())
    if nominal:
        yield f"warning: {nominal} of {len(frame)} rows state a nominal ε; read the honest one"


def _best(study: Study, frame: pd.DataFrame, most: int) -> Iterator[str]:
    groups = comparison.groups(study, frame)
    rivals = comparison.of_claim(groups, *WITHOUT_DEPARTURES)
    if rivals:
        budget = max(rivals, key=_epsilon).budget
        rivals = comparison.by_budget(rivals)[budget]
    for group in comparison.ranked(rivals or groups)[:most]:
        facet = "".join(f", {name} {value}" for name, value in group.facet.items())
        yield (
            f"{group.label}{facet}: personal {group.metric.heading} "
            f"{f'{group.text()} {group.metric.unit}'.rstrip()}, {group.claim}, "
            f"ε = {epsilon_text(group)}"
        )


def _epsilon(group: Group) -> float:
    return max(finite(group.rows["epsilon_central"]), default=0.0)


def warnings(since: float) -> list[str]:
    """Return the distinct lines that begin with ``warning:`` in logs newer than ``since``."""
    lines: dict[str, None] = {}
    for log in sorted(LOGS.rglob("*.log")):
        if log.stat().st_mtime >= since:
            with log.open(encoding="utf-8", errors="replace") as file:
                lines |= dict.fromkeys(
                    f"{log}: {line.rstrip()}" for line in file if line.startswith("warning:")
                )
    return list(lines)
