"""The list of studies (``pflpipe studies``) by purpose, with runs and estimated training time."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from pflpipe.cells import Cell
from pflpipe.data import sources
from pflpipe.data.datasets import Header
from pflpipe.errors import DataError, PflpipeError, counted
from pflpipe.methods import registry
from pflpipe.study import runtime_estimate
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline, study_names
from pflpipe.study.study_spec import Chosen, Outline

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
        seconds = runtime_estimate.total(cells, header, often=often)
        estimate = (
            f"{counted(round(sum(often)), 'run')}, about {runtime_estimate.duration_text(seconds)}"
        )
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
    yield (
        "Times are estimates for training on one CPU thread: images times passes, divided by the "
        "images per second of network and method. GPUs are faster; runs share cores and finished "
        "runs."
    )


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
