"""The data structures of a study: rows of cells, and lines whose values a search chooses.

A study is a product (expansion.py) x seeds. A study with a search is an Outline first: its runs are
known once the search has chosen (search.py).
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pflpipe import options
from pflpipe.cells import Cell
from pflpipe.errors import check_known, counted
from pflpipe.files import canonical_json
from pflpipe.learning.metrics import ACCURACY, ALWAYS, Measure, Metric
from pflpipe.methods import registry
from pflpipe.privacy.private_search import PrivateSearch
from pflpipe.study.candidates import SearchRange
from pflpipe.study.metric_columns import MetricColumn, columns


def check_labels(labels: Iterable[str], document: Mapping[str, Any], location: str) -> None:
    """Raise ConfigError unless each label is a method or a variant of a study's file."""
    known = {e[key] for e in document["methods"] for key in ("name", "variant") if key in e}
    for label in labels:
        check_known(label, known, f"{location}: no method or variant of this study is")


@dataclass(frozen=True)
class Chosen:
    """The choice of a search for a row, and its privacy cost.

    Attributes:
        index: position of the candidate in the row's line.
        values: dotted path -> chosen value.
        sets, runs: numbers of candidates, and of runs that tried them; a private search does not
            publish ``runs``, which is then None.
        epsilon, epsilon_with_search: exact central epsilon at ``delta`` of the row's own run, and
            epsilon of this run together with the search, which has the same clients; None if no
            certified epsilon exists.
        search_not_counted: why ``epsilon_with_search`` is None though ``epsilon`` is not.
        global_validation: mean accuracy of the candidate's released models on the clients'
            validation rows, in percent; None if the method releases no model.
    """

    index: int
    values: dict[str, Any]
    sets: int
    runs: int | None
    epsilon: float | None = None
    epsilon_with_search: float | None = None
    delta: float | None = None
    global_validation: float | None = None
    search_not_counted: str = ""


@dataclass(frozen=True)
class PaperLayout:
    """The ``layout`` block of a study.

    Attributes:
        columns: dotted paths of conditions, the outermost first.
        metric: the quantity that the entries show, a column of the table.
        names: our method name or variant label -> its name in the paper's table, in its order.
        source: ``FedDPA, Table 2`` if the study has printed numbers, else empty.
        location: start of error messages.
    """

    columns: tuple[str, ...]
    metric: str
    names: Mapping[str, str]
    source: str
    location: str


@dataclass(frozen=True)
class Drawing:
    """A figure of a study, an entry of its ``figures`` block.

    Attributes:
        name: name of its files.
        kind: a key of report.figures.kinds's ``KINDS``, or the name of an attack.
        width: inches: a column, or a page with two columns.
        metric: the column that it shows.
        methods: the methods or variants that it shows, besides its reference; empty: all.
        strong: the methods that are highlighted, where the others are grey; empty: the best.
        where: dotted path of a condition -> the values that it shows. A run to which the condition
            does not apply is shown.
    """

    name: str
    kind: str
    width: float = 6.7
    metric: str = "personal_own"
    methods: tuple[str, ...] = ()
    strong: tuple[str, ...] = ()
    where: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One cell of a study, its label, and the printed number of a paper (percent) with the metric
    that it is compared with."""

    cell: Cell
    variant: str = ""
    paper_value: float | None = None
    paper_metric: str | None = None
    chosen: Chosen | None = None

    @cached_property
    def run(self) -> str:
        """Id of the training run that the cell needs, a folder in ``results/runs``."""
        return registry.run_id(self.cell)

    @cached_property
    def key(self) -> str:
        """Key of that run; runs with equal keys are one release."""
        return registry.key(self.cell)


@dataclass(frozen=True)
class Study:
    """A study as it is run.

    Attributes:
        rows: in the order of the file, every cell once.
        layout: of a paper's table, if there is one.
        metrics: by name; the first is that of the loss.
        criterion: the metric that ranks sets of values.
        best_round: the column whose best round the table shows as well; empty for none.
        looks: numbers of seeds at which its verdict may be read; empty for one reading.
        printed: columns of metrics of its table for a paper; empty for those that a paper has.
    """

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    layout: PaperLayout | None = None
    figures: tuple[Drawing, ...] = ()
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=ALWAYS.copy)
    criterion: str = ACCURACY
    best_round: str = ""
    looks: tuple[int, ...] = ()
    printed: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric of its loss, which is reported first and ranks its rows."""
        return next(iter(self.metrics.values()))

    @property
    def measured(self) -> list[str]:
        """The names of its metrics, of those of the user ``file.py:name``."""
        return [metric.source or name for name, metric in self.metrics.items()]

    @cached_property
    def columns(self) -> dict[str, MetricColumn]:
        """The columns of its table that are metrics, by name."""
        return columns(self.metrics)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all rows."""
        return tuple(row.cell for row in self.rows)

    @property
    def methods(self) -> tuple[str, ...]:
        """Method names in the order of the file, each once."""
        return tuple(dict.fromkeys(row.cell.method for row in self.rows))

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets in the order of the file, each once."""
        return tuple(dict.fromkeys(row.cell.dataset for row in self.rows))


@dataclass(frozen=True)
class Candidate:
    """One set of values for a line of a study.

    Attributes:
        values: dotted path -> value.
        rows: the runs at the study's seeds.
        tried: the run that tries the values, without its seed.
        trials: that run at the seeds of the search.
    """

    values: dict[str, Any]
    rows: tuple[Row, ...]
    tried: Cell
    trials: tuple[Row, ...]


@dataclass(frozen=True)
class Line:
    """One method entry at one point of the axes.

    Attributes:
        words: its name, e.g. ``feddpa at privacy.epsilon=2``.
        entry: the method entry of the file.
        searched: dotted path -> values or range that its search tries; empty without a search.
        candidates: the candidates of the search; a single one without a search.
    """

    words: str
    entry: Mapping[str, Any]
    searched: Mapping[str, list[Any] | SearchRange]
    candidates: tuple[Candidate, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.candidates[0].rows[0].cell.method

    def edges(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return path -> ``low`` or ``high`` if the value lies in that outer tenth of its range,
        else empty. Values that were not drawn from a range are left out."""
        ranges = (
            (p, given) for p, given in self.searched.items() if isinstance(given, SearchRange)
        )
        return {path: given.edge(values[path]) for path, given in ranges}


@dataclass(frozen=True)
class Outline:
    """A study before its search has chosen.

    Attributes:
        name, document: the study's name and the schema-checked values of its file.
        lines: lines in the order of the file.
        layout: layout of a paper's table, if there is one.
        figures: its figures.
        metrics: that of the loss, and the study's own metrics, by name.
    """

    name: str
    document: dict[str, Any]
    lines: tuple[Line, ...]
    layout: PaperLayout | None
    figures: tuple[Drawing, ...] = ()
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=ALWAYS.copy)

    @property
    def measures(self) -> dict[str, Measure]:
        """The functions that compute the metrics besides the first one, by name."""
        return {name: metric.of for name, metric in [*self.metrics.items()][1:]}

    @property
    def criterion(self) -> str:
        """The metric by which a search chooses."""
        return str(self.document.get("search", {}).get("metric", next(iter(self.metrics))))

    @property
    def best_round(self) -> str:
        """The column of accuracy of which the table has the best round too; empty for none."""
        if "report" not in self.document:
            return ""
        return self.layout.metric if self.layout else "personal_own"

    @property
    def private_search(self) -> PrivateSearch | None:
        """The guarantee that the study asks of its search, if it does."""
        given = self.document.get("search", {}).get("private")
        return given and options.build(PrivateSearch, given)

    @property
    def searched(self) -> tuple[Line, ...]:
        """The lines whose values a search chooses."""
        return tuple(line for line in self.lines if line.searched)

    @cached_property
    def search(self) -> Study | None:
        """The search as a study of its own, named ``<study>/search``; None without one."""
        rows = [row for line in self.searched for c in line.candidates for row in c.trials]
        return self._study(f"{self.name}/search", rows) if rows else None

    @cached_property
    def everything(self) -> Study:
        """All runs that the study may have: those of the search, and those that would follow from
        any choice."""
        candidates = [candidate for line in self.lines for candidate in line.candidates]
        return self._study(self.name, [row for c in candidates for row in (*c.trials, *c.rows)])

    @cached_property
    def grid(self) -> str:
        """Digest of the candidates of the search, in order, of its metric and its guarantee; not of
        the trials of a private one, which it would tell."""
        private = self.private_search
        every = (candidate for line in self.searched for candidate in line.candidates)
        tried = [
            [c.values, [c.tried.id] if private else [r.cell.id for r in c.trials]] for c in every
        ]
        by: list[Any] = [self.criterion] * (self.criterion != next(iter(self.metrics)))
        if private:
            by.append(dataclasses.asdict(private))
        return hashlib.sha256(canonical_json([*tried, *by]).encode()).hexdigest()[:10]

    def choices(self, results: Path) -> Path:
        """Return the file with the choices of the search."""
        return results / "searches" / f"{self.name}.json"

    def study(self, chosen: Sequence[Chosen] = ()) -> Study:
        """Return the study with a choice for every searched line, in order; without choices, with
        the first candidates."""
        # The file of choices has only the lines that search.
        waiting = iter(chosen)
        rows: list[Row] = []
        for line in self.lines:
            choice = next(waiting, None) if line.searched else None
            rows += (
                dataclasses.replace(row, chosen=choice)
                for row in line.candidates[choice.index if choice else 0].rows
            )
        return self._study(self.name, rows)

    def _study(self, name: str, rows: Iterable[Row]) -> Study:
        # Lines share runs, such as those of a method without privacy at several budgets.
        first: dict[str, Row] = {}
        for row in rows:
            first.setdefault(row.cell.id, row)
        return Study(
            name,
            self.document["title"],
            self.document["description"],
            tuple(first.values()),
            self.layout,
            self.figures,
            self.metrics,
            self.criterion,
            self.best_round,
            tuple(self.document.get("looks", ())),
            tuple(self.document.get("table", {}).get("columns", ())),
        )

    def __str__(self) -> str:
        number = len(self.study().rows)
        after = f" after a search of {len(self.search.rows)}" if self.search else ""
        if private := self.private_search:
            after = (
                f" after a private search each ({private.trials:g} trials expected, a number that "
                "stays unknown)"
            )
        methods, datasets = ", ".join(self.everything.methods), ", ".join(self.everything.datasets)
        return f"{counted(number, 'cell')}{after}, {methods} on {datasets}"
