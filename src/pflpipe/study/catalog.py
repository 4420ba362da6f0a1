"""The list of studies (``pflpipe studies``) by purpose, with runs and estimated training time:
images times passes, divided by the images that one CPU thread trains per second.

This is a model for planning, not a measurement. It ignores personal models made after training,
heads, tests and the start of a job; a GPU or another CPU has another speed. ``studies/README.md``
lists the papers' studies with the same estimate.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from pflpipe.cells import Cell
from pflpipe.data import sources
from pflpipe.data.datasets import Header
from pflpipe.errors import DataError, PflpipeError, counted
from pflpipe.methods import registry
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline, study_names
from pflpipe.study.study_spec import Chosen, Outline
from pflpipe.study.words import WORDS

SPEED: dict[str, int] = WORDS["speed"]
"""Network -> images that DP-FedAvg trains per second on one CPU thread."""
ANY_NETWORK = 2_000
"""The same for any other network, such as a user's own."""
GPU_SPEED: dict[str, int] = WORDS["gpu_speed"]
"""The same on one GPU, of the networks that were measured on one."""
COMPARISONS, SEARCHES = "Comparisons", "Comparisons after a search on validation data"


def lines(settings: Config) -> Iterator[str]:
    """Yield the studies of ``studies/`` as text, the quickest of each purpose first, those that
    cannot be read last."""
    header = headers(settings)
    groups: dict[str, list[tuple[float, str]]] = {COMPARISONS: [], SEARCHES: []}
    broken = []
    for name in study_names():
        try:
            outline = load_outline(name)
        except PflpipeError as error:
            broken.append(str(error.all[0]))
            continue
        cells, often = expected(outline)
        seconds = total(cells, header, often=often)
        estimate = f"{counted(round(sum(often)), 'run')}, about {duration_text(seconds)}"
        text = f"{name}: {outline.document['title']}\n    {estimate}; {outline}"
        order = float("inf") if seconds is None else seconds
        groups.setdefault(purpose(outline), []).append((order, text))
    for heading, studies in groups.items():
        if studies:
            yield f"{heading}:"
            yield from (text for _, text in sorted(studies))
            yield ""
    if broken:
        yield "Studies with errors:"
        yield from broken
        yield ""
    yield WORDS["studies"]


def purpose(outline: Outline) -> str:
    """Return the heading of a study.

    Studies of a paper's tables and figures are named after its method, ``<method>_<table>``.
    """
    for method in sorted(registry.NAMES, key=len, reverse=True):
        if outline.name.startswith(f"{method}_"):
            about = registry.info(method).about
            return f"Tables and figures of {about.title} ({about.paper})"
    return SEARCHES if outline.search else COMPARISONS


def headers(settings: Config) -> Callable[[str], Header | None]:
    """Return a function from the name of a data set to its header; None if it is not known yet, or
    refused."""

    @functools.cache
    def header(dataset: str) -> Header | None:
        source = settings.datasets.get(dataset)
        try:
            return sources.describe(dataset, source, settings.data_dir / f"{dataset}.npz")
        except DataError:
            return None  # `pflpipe validate` reports the error

    return header


def runs(outline: Outline, choices: Sequence[Chosen] = ()) -> dict[str, Cell]:
    """Return id -> run of a study: the runs of its search, and those that follow from its choices;
    without choices as many, from its first candidates."""
    tried = outline.search.cells if outline.search else ()
    return _runs(outline.study(choices).cells + tried)


def expected(outline: Outline) -> tuple[list[Cell], list[float]]:
    """Return runs of a study as ``runs`` does, and how often each is expected: once, but for the
    trials of a private search, whose number stays unknown."""
    private = outline.private_search
    if private is None:
        once = list(runs(outline).values())
        return once, [1.0] * len(once)
    cells = list(_runs(outline.study().cells).values())
    often = [1.0] * len(cells)
    # Lines with the same rows, such as those of a method without privacy, have one search.
    lines = {tuple(c.rows[0].cell.id for c in line.candidates): line for line in outline.searched}
    for line in lines.values():
        cells += (registry.run_cell(candidate.tried) for candidate in line.candidates)
        often += [private.trials / len(line.candidates)] * len(line.candidates)
    return cells, often


def _runs(cells: Iterable[Cell]) -> dict[str, Cell]:
    return {registry.run_id(cell): registry.run_cell(cell) for cell in cells}


# ---------------------------------------------------------------- estimated times


def images(cell: Cell, header: Header) -> float:
    """Return the expected number of images that a run trains on, over all rounds and clients.

    Args:
        cell: the run.
        header: of its data set.
    """
    split, training = cell.partition, cell.training
    everybody = header.users if split.kind == "natural" else split.clients + split.new_clients
    share = split.clients / everybody if everybody and split.clients else 1.0
    kept = (1 - (split.test_fraction or 0.0)) * (1 - split.validation_fraction)
    rate = training.sample_rate / training.groups
    passes = training.rounds * rate * training.local_epochs
    return header.train_size * min(share, 1.0) * kept * passes


def seconds(cell: Cell, header: Header, speeds: Mapping[str, float] = SPEED) -> float:
    """Return the estimate of a run in seconds of one CPU thread; arguments as for ``images``.

    Args:
        speeds: ``GPU_SPEED`` for seconds of a GPU.
    """
    speed = speeds.get(cell.model.name, ANY_NETWORK) / registry.of(cell).about.cost
    return images(cell, header) / speed


def total(
    cells: Iterable[Cell],
    header: Callable[[str], Header | None],
    speeds: Mapping[str, float] = SPEED,
    often: Iterable[float] = repeat(1.0),
) -> float | None:
    """Return the estimate of all runs together in seconds; None if the size of a data set is not
    known yet.

    Args:
        cells: the runs, each once.
        header: returns the header of a data set by name, or None.
        speeds: as in ``seconds``.
        often: how often each run is expected.
    """
    result = 0.0
    for cell, times in zip(cells, often, strict=False):
        if (known := header(cell.dataset)) is None:
            return None
        result += times * seconds(cell, known, speeds)
    return result


def duration_text(seconds: float | None) -> str:
    """Return a duration in a readable unit: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds is None:
        return "unknown"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
