"""The scores file: accuracies of the personal models and of the global model after the last round,
one row per client."""

import hashlib
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pflpipe.cells import Cell
from pflpipe.errors import ConfigError
from pflpipe.files import with_digest, write_joined, write_text
from pflpipe.learning import losses
from pflpipe.learning.metrics import BUILT_IN, CONSTANT_ERROR, error_of_means
from pflpipe.methods import registry
from pflpipe.simulation import runs
from pflpipe.simulation.evaluation import NO_MEASURES, Measures, accuracies, accuracies_of_new
from pflpipe.simulation.processes import ALONE, Processes

COLUMNS = (
    *("cell", "client", "train_size"),
    *("personal_own", "personal_validation", "personal_common"),
    *("global_own", "global_validation", "global_common"),
    *("personal_new", "global_new"),
)
"""``client`` counts from 0; rows of clients who took no part in training are called ``new0``,
``new1`` ... and have nothing in the columns that are averaged over those who did. Clients without
training rows keep their number and have their scores in the columns of new ones. Other metrics than
accuracy add ``<metric>_<column>`` for every column of accuracies but the common test set's, and
errors ``CONSTANT_ERROR`` of those who took part."""


def places_of(
    cells: Iterable[Cell], names: Iterable[str], results: Path, data: Path
) -> list[tuple[Cell, runs.Inputs, Path]]:
    """Return for each id its cell, the files that its run read, and the folder of its run.

    Args:
        cells: of the study.
        names: ids of the wanted ones.
        results: folder with ``plans``, ``partitions`` and ``runs``.
        data: folder with ``<data>.npz``, the examples of every cell.

    Raises:
        ConfigError: an id is of no cell, since the study's file was edited after the job was
            planned; or there is no id, since its search has chosen among other candidates.
    """
    names = list(names)
    if not names:
        do = f"its choice is of another search: remove its file in {results / 'searches'}"
        raise ConfigError("evaluate: cells", got="none", expected="the runs of the study", do=do)
    by_id = {cell.id: cell for cell in cells}
    places = []
    for name in names:
        if name not in by_id:
            expected, do = "one of the study as it is now", "run snakemake again"
            raise ConfigError("evaluate: cell", got=name, expected=expected, do=do)
        cell = by_id[name]
        plan = results / "plans" / f"{cell.plan_id}.json"
        partition = results / "partitions" / f"{cell.partition_id}.npz"
        inputs = runs.Inputs(plan, partition, data / f"{cell.data_id}.npz")
        places.append((cell, inputs, results / "runs" / registry.run_id(cell)))
    return places


def evaluate_cells(
    places: Sequence[tuple[Cell, runs.Inputs, Path]],
    out: Path,
    *,
    device: str,
    backend: str,
    code: str = "",
    processes: Processes = ALONE,
    validation_only: bool = False,
    measures: Measures = NO_MEASURES,
) -> None:
    """Write the scores file of several cells: one row per cell and client, new clients last,
    accuracies in percent, empty where undefined, and the digest of all of them.

    The rows of each cell are kept next to ``out`` until all cells are done. If it is interrupted,
    the next call takes those of the same files and the same code, and computes the rest.

    Args:
        places: for each cell its input files and the folder of its run.
        out: the CSV to write.
        device: ``cpu``, ``cuda`` or ``auto``.
        backend: ``loop``, ``vmap`` or ``auto``.
        code: names the program and the metrics.
        processes: share the clients; the first one writes the file.
        validation_only: of a search; the columns of test data stay empty.
        measures: metrics besides accuracy.
    """
    measured = [name for name in COLUMNS[3:] if not name.endswith("_common")]
    columns = (*COLUMNS, *(f"{metric}_{name}" for metric in measures for name in measured))
    if any(losses.find(cell.training.loss).numbers for cell, *_ in places):
        columns = (*columns, CONSTANT_ERROR)

    def rows(cell: Cell, inputs: runs.Inputs, run: Path) -> Iterator[dict[str, Any]]:
        simulation = runs.simulate(
            cell, inputs, device=device, backend=backend, processes=processes
        )
        given = simulation, runs.load_final(run, simulation)
        scores: list[dict[str, Any]] = []
        scores += accuracies(*given, validation_only=validation_only, measures=measures)
        if (loss := losses.find(cell.training.loss)).numbers:
            for row in scores:
                labels = simulation.train.y[simulation.split.train[row["client"]]]
                targets = labels.double().cpu().reshape(len(labels), -1).numpy()
                row[CONSTANT_ERROR] = error_of_means(targets, BUILT_IN[loss.metric].of)
        if not validation_only:
            scores += accuracies_of_new(*given, measures)
        for row in scores:
            # Columns that do not apply to a client stay NaN, an empty field of the file.
            yield dict.fromkeys(columns, math.nan) | {"cell": cell.id} | row

    kept = out.with_suffix(".parts")
    parts = [kept / f"{_key(code, *place)}.csv" for place in places]
    # Before the first part is written, so that all processes find the same ones.
    missing = [number for number, part in enumerate(parts) if not part.exists()]
    for number in missing:
        # Rows become text one by one: as objects they take ten times the memory.
        text = runs.text_of(columns, rows(*places[number]))
        if processes.is_first:
            write_text(parts[number], with_digest(text))
    if processes.is_first:
        write_joined(out, parts)
        shutil.rmtree(kept)


def _key(code: str, cell: Cell, inputs: runs.Inputs, run: Path) -> str:
    """Return what the rows of a cell depend on, its files by name, size and time of change."""
    files = [inputs.plan, inputs.partition, inputs.data, *sorted(run.iterdir())]
    states = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    return hashlib.sha256(repr([code, cell.id, states]).encode()).hexdigest()[:16]
