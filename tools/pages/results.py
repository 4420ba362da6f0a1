"""docs/results.md: what the finished studies say, for somebody who has read nothing else, written
from ``docs/results/`` alone (committed.py).

What several studies say together comes first (together.py). Every study begins with a few sentences
whose words of comparison follow from intervals (sentences.py), then come its figures, whatever
images lie in its folder, and its tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from pages import committed, together
from pages.committed import Committed
from pages.gains import THIRDS, cost, curve, gains
from pflpipe.cells import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.files import write_text
from pflpipe.report import sentences, verdict
from pflpipe.report.statistics import (
    MIN_SEEDS,
    Contest,
    Difference,
    against,
    by_seed,
    contest,
    rank_intervals,
)
from pflpipe.report.summary import (
    BOLD_WORDS,
    epsilon_text,
    explained,
    finite,
    mean_text,
    over_seeds,
)
from pflpipe.report.typeset import Entry, Table, markdown
from pflpipe.report.verdict import ALONE
from pflpipe.study.settings import NO_PRIVACY

PLAIN, OPEN = "dp_fedavg", "fedavg"
"""What others are compared with: DP-FedAvg without personalization, no privacy."""
IMAGES = (".png", ".svg")
NOTE = "note.md"
"""In a study's folder: what somebody wrote about its numbers; goes to the top of its part."""
HEAD = f"""\
# Results

Written by `make results` from the files in `docs/results/`, of which every number here can be made
again; do not edit. What the methods are: [Methods](reference/methods.md). What an ε promises:
[privacy.md](privacy.md).

How to read it. One run is one observation: its noise is common to all of its clients. Intervals
are of paired differences over seeds, by Student's t, and wide enough for the number of lines
compared: in at most 5 of 100 such studies any of the intervals of one column and section excludes 0
where there is no difference. "Better", "worse" and "best" are said only where such an interval
excludes 0; "not distinguishable" says that it does not, and not that there is no difference. With
fewer than {MIN_SEEDS} seeds nothing is said. The intervals are about other seeds (noise, splits,
who is new) of these data, not about other data.
"""


@dataclass(frozen=True)
class _Section:
    """The lines of one budget and one claim.

    Attributes:
        lines: rows of ``Committed.runs``, with ``GAINS`` beside them, by label; largest mean first.
    """

    budget: str
    claim: str
    lines: Mapping[str, pd.DataFrame]

    def values(self, column: str) -> pd.DataFrame:
        """Return seeds x lines."""
        return by_seed(list(self.lines.items()), column)

    @cached_property
    def means(self) -> dict[str, float]:
        return {label: over_seeds(rows["personal_own"]) for label, rows in self.lines.items()}

    @cached_property
    def contest(self) -> Contest | None:
        return contest(self.values("personal_own"))

    def beside(self, column: str, baseline: pd.DataFrame | None) -> dict[str, Difference]:
        """Return every line's difference to another one; nothing where there is no such line, and
        never of a line to itself."""
        if baseline is None:
            return {}
        own = self.values(column)
        others = [label for label, rows in self.lines.items() if rows is not baseline]
        return against(own[others], by_seed([("", baseline)], column)[""])

    def gain(self, column: str) -> dict[str, Difference]:
        """Return a column of ``GAINS`` beside 0, for the lines that have it."""
        own = self.values(column).dropna(axis=1, how="all")
        return against(own, pd.Series(0.0, index=own.index))


class _Page:
    """One study's part of the page."""

    def __init__(self, study: Committed) -> None:
        self.study = study
        alone = study.runs[study.runs["line"] == ALONE]
        runs = study.runs.join(gains(study, alone), on="cell")
        found = [
            (str(budget), str(claim), rows)
            for (budget, claim), rows in runs.groupby(["budget", "claim"], sort=False)
        ]
        found.sort(key=lambda item: _order(*item[:2]))
        self.sections = [
            _Section(budget, claim, dict(_ranked(rows))) for budget, claim, rows in found
        ]

    def line(self, budget: str, label: str) -> pd.DataFrame | None:
        """Return the runs of a line; None if the study has none."""
        for section in self.sections:
            if section.budget == budget and label in section.lines:
                return section.lines[label]
        return None

    def of_claim(self, claim: str) -> dict[str, _Section]:
        """Return the sections of a claim by budget, the largest budget last."""
        return {one.budget: one for one in self.sections if one.claim == claim}

    def standings(self) -> dict[str, together.Standing]:
        """Return by budget how the certified lines stand."""
        alone = self.line(NO_PRIVACY, ALONE)
        return {
            budget: together.Standing(
                tuple(section.lines),
                section.beside("personal_own", alone),
                section.beside("personal_own", self.line(budget, PLAIN)),
                section.contest.kept if section.contest else frozenset(),
            )
            for budget, section in self.of_claim("certified").items()
        }

    # ------------------------------------------------------------ sentences

    def sentences(self) -> Iterator[str]:
        """Yield five sentences: together or alone, who is best, what personalization adds, who
        gains, what privacy costs; fewer where a study lacks what one compares with, and two more
        where lines are unreviewed."""
        alone = self.line(NO_PRIVACY, ALONE)
        certified, unreviewed = (self.of_claim(claim) for claim in WITHOUT_DEPARTURES)
        yield from verdict.compared(_lines(certified), _lines(unreviewed), alone)
        yield sentences.each_budget(
            {
                budget: sentences.against(found, f"{PLAIN} (one model for all)")
                for budget, section in certified.items()
                if (found := section.beside("personal_own", self.line(budget, PLAIN)))
            }
        )
        if certified:
            *_, section = certified.values()
            yield from self._of_the_leader(section, alone)

    def _of_the_leader(self, section: _Section, alone: pd.DataFrame | None) -> Iterator[str]:
        label = str(section.contest.leader) if section.contest else next(iter(section.lines))
        rows = section.lines[label]
        if alone is not None and finite(rows["above"]):
            parts = [
                f"with {label} at {section.budget}, {over_seeds(rows['above']):.0f} % of the "
                f"clients score above what they reach alone and {over_seeds(rows['below']):.0f} % "
                "below it"
            ]
            worst = section.beside("personal_own_worst_decile", alone)[label]
            parts.append(
                f"the worst tenth of its clients is {sentences.verdict(worst)} that of learning "
                f"alone, {sentences.number(worst)}"
            )
            new = section.gain("new")
            if label in new:
                parts.append(
                    f"clients who were not there are {sentences.stand(new[label])} learning "
                    f"alone, {sentences.number(new[label])}"
                )
            yield f"{sentences.joined(parts)}."
        public = self.line(NO_PRIVACY, OPEN)
        if public is not None:
            # Which line is compared was chosen by the data, so all are.
            price = section.beside("personal_own", public)[label]
            yield (
                f"{label} at {section.budget} is {sentences.verdict(price)} {OPEN} without "
                f"privacy, {sentences.number(price)}, and its clients together send "
                f"{_megabytes(rows)} MB in a run."
            )

    # ------------------------------------------------------------ tables

    def accuracy(self) -> Table:
        """Return who reaches what, with ranks and differences."""
        majority = committed.majority(self.study)
        return self._table(
            "accuracy",
            "personal models on their clients' own test rows, the global model on all test rows; "
            "percent, mean ± standard deviation over n seeds. To alone, to "
            f"{PLAIN}: paired differences in percent points with adjusted 95 % intervals (Holm). "
            "Rank: 95 % of resampled seeds, within its section.",
            (
                f"Bold, among rows of the same budget and claim: {BOLD_WORDS}.",
                *self._notes(),
                "Clients that always say the majority class of their training examples would have "
                f"{mean_text(majority, len(majority))}.",
            ),
            (
                *("method", "claim", "ε (central)", "personal own", "rank", "to alone"),
                *(f"to {PLAIN}", "global common", "n"),
            ),
            self._of_accuracy,
            labels=3,
        )

    def _of_accuracy(self, section: _Section) -> Iterator[tuple[Entry, ...]]:
        alone = section.beside("personal_own", self.line(NO_PRIVACY, ALONE))
        plain = section.beside("personal_own", self.line(section.budget, PLAIN))
        ranks = rank_intervals(section.values("personal_own"), self.study.name, section.budget)
        kept = section.contest.kept if section.contest else frozenset()
        for label, rows in section.lines.items():
            first, last = ranks.get(label, (0, 0))
            yield (
                Entry(label + _dagger(rows)),
                Entry(section.claim),
                Entry(epsilon_text(rows)),
                Entry(mean_text(finite(rows["personal_own"]), len(rows)), label in kept),
                Entry("–" if not first else str(first) if first == last else f"{first} to {last}"),
                _entry(alone, label),
                _entry(plain, label),
                Entry(mean_text(finite(rows["global_common"]), len(rows))),
                Entry(str(len(rows))),
            )

    def who_gains(self) -> Table:
        """Return how gains spread over clients, and what new ones have."""
        return self._table(
            "who gains",
            "clients beside themselves learning alone at the same seed. Above, below: share of the "
            "clients in training, in percent; net: above less below. Worst tenth: difference of "
            "the means of the worst tenths. New: clients who took no part in training, beside "
            "learning alone; the last column is the global model on their test rows. Intervals as "
            "above.",
            (),
            ("method", "budget", "above", "below", "net", "worst tenth", "new", "new, global"),
            self._of_gains,
            labels=2,
        )

    def _of_gains(self, section: _Section) -> Iterator[tuple[Entry, ...]]:
        worst = section.beside("personal_own_worst_decile", self.line(NO_PRIVACY, ALONE))
        net, new = section.gain("net"), section.gain("new")
        for label, rows in section.lines.items():
            if label != ALONE:
                yield (
                    Entry(label),
                    Entry(_budget(section)),
                    Entry(mean_text(finite(rows["above"]), len(rows))),
                    Entry(mean_text(finite(rows["below"]), len(rows))),
                    _entry(net, label),
                    _entry(worst, label),
                    _entry(new, label),
                    Entry(mean_text(finite(rows["global_new"]), len(rows))),
                )

    def by_group(self) -> Table:
        """Return gains by how much clients hold, and by how evenly."""
        groups = [f"{kind}_{third}" for kind, thirds in THIRDS.items() for third in thirds]
        words = {"size": "examples", "classes": "classes"}

        def lines(section: _Section) -> Iterator[tuple[Entry, ...]]:
            found = {group: section.gain(group) for group in groups}
            for label in section.lines:
                if label != ALONE:
                    shown = (_entry(found[group], label) for group in groups)
                    yield (Entry(label), Entry(_budget(section)), *shown)

        return self._table(
            "by size and by skew",
            "mean gain over learning alone, in percent points, of thirds of the clients: by the "
            "number of examples they train with, and by the effective number of classes among "
            "these (exp of the entropy of the labels; 1 is one class alone). Clients that are "
            "alike are in one group. Intervals as above.",
            (),
            ("method", "budget", *(third for thirds in THIRDS.values() for third in thirds)),
            lines,
            labels=2,
            groups=("", "", *(words[kind] for kind, thirds in THIRDS.items() for _ in thirds)),
        )

    def costs(self) -> Table:
        """Return what a run sends and takes, and what the accuracy of DP-FedAvg costs."""
        return self._table(
            "cost",
            "of all clients together: megabytes sent and seconds of training in a run, and until "
            f"the mean accuracy over seeds first reaches what {PLAIN} has in the end at the same "
            "budget (without privacy: what learning alone has). The noise is that of the whole "
            "run, so stopping there is no recipe: it shows what the accuracy costs. –: never "
            "reached. Seconds are of the machine below, which may have been shared.",
            (),
            ("method", "budget", "MB, run", "s, run", "rounds, same", "MB, same", "s, same"),
            self._of_costs,
            labels=2,
        )

    def _of_costs(self, section: _Section) -> Iterator[tuple[Entry, ...]]:
        reference = self.line(section.budget, PLAIN)
        if reference is None:
            reference = self.line(NO_PRIVACY, ALONE)
        target = math.inf if reference is None else float(curve(self.study, reference).iloc[-1])
        for label, rows in section.lines.items():
            total, seconds = _megabytes(rows), over_seeds(rows["train_seconds"])
            reached = cost(self.study, rows, target)
            same = ["–"] * 3
            if reached is not None:
                part = reached / float(rows["rounds"].iloc[0])
                same = [str(reached), _megabytes(rows, part), _three_digits(part * seconds)]
            texts = [label, _budget(section), total, _three_digits(seconds), *same]
            yield tuple(map(Entry, texts))

    def _table(
        self,
        name: str,
        caption: str,
        notes: tuple[str, ...],
        header: tuple[str, ...],
        lines: Callable[[_Section], Iterator[tuple[Entry, ...]]],
        *,
        labels: int,
        groups: tuple[str, ...] = (),
    ) -> Table:
        sections = tuple(filter(None, (tuple(lines(section)) for section in self.sections)))
        return Table(f"{self.study.name}, {name}", caption, notes, header, sections, labels, groups)

    def _notes(self) -> Iterator[str]:
        yield from explained(section.claim for section in self.sections)
        if self.study.runs["diverged_round"].notna().any():
            yield "† Diverged in at least one seed; its scores are counted as they are."

    def text(self, images: Path) -> str:
        """Return the study's part of the page, which lies beside ``images``' parent folder."""
        about = self.study.about
        pictures = [
            f"![{self.study.name}: {path.stem}]({quote(f'results/{self.study.name}/{path.name}')})"
            for path in sorted(images.iterdir())
            if path.suffix in IMAGES
        ]
        tables = [self.accuracy()]
        if self.line(NO_PRIVACY, ALONE) is not None:
            tables += [self.who_gains(), self.by_group()]
        tables.append(self.costs())
        told = [sentences.escaped(about.description)] if about.description else []
        note = images / NOTE
        return "\n\n".join(
            [
                f"## {about.title}",
                *([note.read_text(encoding="utf-8").strip()] if note.is_file() else []),
                _numbered(self.sentences()),
                *pictures,
                *told,
                sentences.escaped(about.caption),
                *(markdown(table).strip() for table in tables),
                *dict.fromkeys(about.measured.values()),
                about.runs,
            ]
        )


def write(docs: Path) -> Path | None:
    """Write ``docs/results.md`` from the folders of ``docs/results``, the study with most runs
    first; return the page, or None where no study is there. Studies that lack methods are only
    named: who is best among some is no answer.

    Raises:
        DataError: a study is damaged.
    """
    folders = sorted(file.parent for file in docs.glob("results/*/about.json"))
    if not folders:
        return None
    studies = sorted(map(committed.read, folders), key=lambda study: -len(study.runs))
    pages = [_Page(study) for study in studies if not study.about.missing]
    parts = [page.text(docs / "results" / page.study.name) for page in pages]
    if found := together.shared({page.study.name: page.standings() for page in pages}):
        parts.insert(0, _together(found))
    waiting = [
        f"Not complete yet: {study.name}, which lacks {', '.join(study.about.missing)}."
        for study in studies
        if study.about.missing
    ]
    text = "\n\n".join([*parts, *map(sentences.escaped, waiting)])
    write_text(docs / "results.md", "\n".join([HEAD, text, ""]))
    return docs / "results.md"


def _together(found: together.Standings) -> str:
    return "\n\n".join(
        [
            "## What the studies say together",
            _numbered(together.sentences(found, PLAIN)),
            markdown(together.table(found, PLAIN)).strip(),
        ]
    )


def _numbered(answers: Iterable[str]) -> str:
    return "\n".join(
        f"{number}. {sentences.escaped(text)}"
        for number, text in enumerate(filter(None, answers), start=1)
    )


def _order(budget: str, claim: str) -> tuple[bool, str, float, int]:
    # No privacy first, as the reference; then budgets upwards; certified before nominal.
    kind, _, value = budget.partition(" = ")
    return kind != NO_PRIVACY, kind, float(value) if value else 0.0, CLAIMS.index(claim)


def _lines(sections: Mapping[str, _Section]) -> dict[str, Mapping[str, pd.DataFrame]]:
    return {budget: section.lines for budget, section in sections.items()}


def _ranked(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    lines = [(str(label), members) for label, members in rows.groupby("line", sort=False)]
    return sorted(lines, key=lambda item: (-over_seeds(item[1]["personal_own"]), item[0]))


def _entry(found: Mapping[str, Difference], label: str) -> Entry:
    return Entry(sentences.number(found[label]) if label in found else "–")


def _budget(section: _Section) -> str:
    marked = section.claim in ("unreviewed", "nominal")
    return f"{section.budget} ({section.claim})" if marked else section.budget


def _dagger(rows: pd.DataFrame) -> str:
    return " †" if rows["diverged_round"].notna().any() else ""


def _megabytes(rows: pd.DataFrame, part: float = 1.0) -> str:
    total = over_seeds(rows["upload_bytes_per_round"] * rows["rounds"])
    return _three_digits(part * total / 1e6)


def _three_digits(value: float) -> str:
    # 1230 and not 1.23e+03.
    return f"{float(f'{value:.3g}'):g}"
