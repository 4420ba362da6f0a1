"""docs/results.md: what the finished studies say, for somebody who has read nothing else, written
from ``docs/results/`` alone (archive.py).

What several studies say together comes first (across_studies.py). Every study begins with a few
sentences whose words of comparison follow from intervals (sentences.py), then come its figures,
whatever images lie in its folder, and its tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from pages import across_studies, archive, wording
from pages.archive import Archive
from pages.gains import THIRDS, cost, curve, gains
from pflpipe.files import write_text
from pflpipe.report import comparison, sentences, statistics
from pflpipe.report.comparison import (
    ALONE,
    BOLD_WORDS,
    MAIN,
    OPEN,
    PLAIN,
    Group,
    claim_notes,
    epsilon_text,
    finite,
    mean_text,
    over_seeds,
)
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import MIN_SEEDS, Contest, Difference
from pflpipe.study.settings import NO_PRIVACY

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
    """The groups of one budget and one claim, the largest mean first; their rows are those of
    ``Archive.runs``, with ``GAINS`` beside them."""

    groups: list[Group]

    @property
    def budget(self) -> str:
        return self.groups[0].budget

    @property
    def claim(self) -> str:
        return self.groups[0].claim

    @cached_property
    def contest(self) -> Contest | None:
        return comparison.contest(self.groups)

    @property
    def best(self) -> frozenset[Group]:
        return self.contest.bold if self.contest else frozenset()

    def against(self, baseline: Group | None, column: str = MAIN) -> dict[Group, Difference]:
        return comparison.against(self.groups, baseline, column)

    def gain(self, column: str) -> dict[Group, Difference]:
        """Return a column of ``GAINS`` beside 0, for the groups that have it."""
        own = comparison.table(self.groups, column).dropna(axis=1, how="all")
        return statistics.against(own, pd.Series(0.0, index=own.index))


class _Page:
    """One study's part of the page."""

    def __init__(self, study: Archive) -> None:
        self.study = study
        alone = study.runs[study.runs["line"] == ALONE]
        runs = study.runs.join(gains(study, alone), on="cell")
        self.groups = [
            Group(str(label), str(budget), rows)
            for (budget, _, label), rows in runs.groupby(["budget", "claim", "line"], sort=False)
        ]
        self.sections = [_Section(section) for section in comparison.sections(self.groups)]
        self.alone = self.find(NO_PRIVACY, ALONE)

    def find(self, budget: str, label: str) -> Group | None:
        """Return a group; None if the study has none."""
        return comparison.find(self.groups, label, budget)

    def of_claim(self, claim: str) -> dict[str, _Section]:
        """Return the sections of a claim by budget, the largest budget last."""
        return {one.budget: one for one in self.sections if one.claim == claim}

    def standings(self) -> dict[str, across_studies.Standing]:
        """Return by budget how the certified groups stand."""
        found = {}
        for budget, section in self.of_claim("certified").items():
            alone, plain = (
                {group.label: one for group, one in section.against(baseline).items()}
                for baseline in (self.alone, self.find(budget, PLAIN))
            )
            labels = tuple(group.label for group in section.groups)
            kept = frozenset(group.label for group in section.best)
            found[budget] = across_studies.Standing(labels, alone, plain, kept)
        return found

    # ------------------------------------------------------------ sentences

    def sentences(self) -> Iterator[str]:
        """Yield five sentences: together or alone, who is best, what personalization adds, who
        gains, what privacy costs; fewer where a study lacks what one compares with, and two more
        where lines are unreviewed."""
        yield from sentences.compared([g for section in self.sections for g in section.groups])
        certified = self.of_claim("certified")
        budgets = {budget: section.groups for budget, section in certified.items()}
        name = f"{PLAIN} (one model for all)"
        yield sentences.over(budgets, lambda budget: self.find(budget, PLAIN), name)
        if certified:
            *_, section = certified.values()
            yield from self._of_the_leader(section)

    def _of_the_leader(self, section: _Section) -> Iterator[str]:
        leader = section.contest.leader if section.contest else section.groups[0]
        name = f"{leader.label} at {leader.budget}"
        if self.alone is not None and finite(leader.rows["above"]):
            parts = [
                f"with {name}, {leader.mean('above'):.0f} % of the clients score above what they "
                f"reach alone and {leader.mean('below'):.0f} % below it"
            ]
            worst = section.against(self.alone, "personal_own_worst_decile")[leader]
            parts.append(
                f"the worst tenth of its clients is {wording.verdict(worst)} that of learning "
                f"alone, {wording.number(worst)}"
            )
            new = section.gain("new")
            if leader in new:
                parts.append(
                    f"clients who were not there are {wording.stand(new[leader])} learning "
                    f"alone, {wording.number(new[leader])}"
                )
            yield f"{sentences.joined(parts)}."
        public = self.find(NO_PRIVACY, OPEN)
        if public is not None:
            # Which group is compared was chosen by the data, so all are.
            price = section.against(public)[leader]
            yield (
                f"{name} is {wording.verdict(price)} {OPEN} without privacy, "
                f"{wording.number(price)}, and its clients together send "
                f"{_megabytes(leader.rows)} MB in a run."
            )

    # ------------------------------------------------------------ tables

    def accuracy(self) -> Table:
        """Return who reaches what, with ranks and differences."""
        majority = archive.majority(self.study)
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
        alone, plain = (
            section.against(baseline) for baseline in (self.alone, self.find(section.budget, PLAIN))
        )
        table = comparison.table(section.groups)
        ranks = statistics.rank_intervals(table, self.study.name, section.budget)
        for group in section.groups:
            first, last = ranks.get(group, (0, 0))
            yield (
                Entry(group.label + " †" * bool(group.diverged)),
                Entry(group.claim),
                Entry(epsilon_text(group)),
                Entry(group.text(), group in section.best),
                Entry("–" if not first else str(first) if first == last else f"{first} to {last}"),
                _entry(alone, group),
                _entry(plain, group),
                Entry(group.text("global_common")),
                Entry(str(len(group.rows))),
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
        worst = section.against(self.alone, "personal_own_worst_decile")
        net, new = section.gain("net"), section.gain("new")
        for group in section.groups:
            if group.label != ALONE:
                yield (
                    Entry(group.label),
                    Entry(_budget(section)),
                    Entry(group.text("above")),
                    Entry(group.text("below")),
                    _entry(net, group),
                    _entry(worst, group),
                    _entry(new, group),
                    Entry(group.text("global_new")),
                )

    def by_group(self) -> Table:
        """Return gains by how much clients hold, and by how evenly."""
        columns = [f"{kind}_{third}" for kind, thirds in THIRDS.items() for third in thirds]
        words = {"size": "examples", "classes": "classes"}

        def lines(section: _Section) -> Iterator[tuple[Entry, ...]]:
            found = [section.gain(column) for column in columns]
            for group in section.groups:
                if group.label != ALONE:
                    shown = (_entry(one, group) for one in found)
                    yield (Entry(group.label), Entry(_budget(section)), *shown)

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
        reference = self.find(section.budget, PLAIN) or self.alone
        target = math.inf
        if reference is not None:
            target = float(curve(self.study, reference.rows).iloc[-1])
        for group in section.groups:
            total, seconds = _megabytes(group.rows), group.mean("train_seconds")
            reached = cost(self.study, group.rows, target)
            same = ["–"] * 3
            if reached is not None:
                part = reached / float(group.first("rounds"))
                same = [str(reached), _megabytes(group.rows, part), _three_digits(part * seconds)]
            texts = [group.label, _budget(section), total, _three_digits(seconds), *same]
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
        yield from claim_notes(self.groups)
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
        if self.alone is not None:
            tables += [self.who_gains(), self.by_group()]
        tables.append(self.costs())
        told = [wording.escaped(about.description)] if about.description else []
        note = images / NOTE
        return "\n\n".join(
            [
                f"## {about.title}",
                *([note.read_text(encoding="utf-8").strip()] if note.is_file() else []),
                _numbered(self.sentences()),
                *pictures,
                *told,
                wording.escaped(about.caption),
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
    studies = sorted(map(archive.read, folders), key=lambda study: -len(study.runs))
    pages = [_Page(study) for study in studies if not study.about.missing]
    parts = [page.text(docs / "results" / page.study.name) for page in pages]
    if found := across_studies.shared({page.study.name: page.standings() for page in pages}):
        parts.insert(0, _across(found))
    waiting = [
        f"Not complete yet: {study.name}, which lacks {', '.join(study.about.missing)}."
        for study in studies
        if study.about.missing
    ]
    text = "\n\n".join([*parts, *map(wording.escaped, waiting)])
    write_text(docs / "results.md", "\n".join([HEAD, text, ""]))
    return docs / "results.md"


def _across(found: across_studies.Standings) -> str:
    return "\n\n".join(
        [
            "## What the studies say together",
            _numbered(across_studies.sentences(found, PLAIN)),
            markdown(across_studies.table(found, PLAIN)).strip(),
        ]
    )


def _numbered(answers: Iterable[str]) -> str:
    return "\n".join(
        f"{number}. {wording.escaped(text)}"
        for number, text in enumerate(filter(None, answers), start=1)
    )


def _entry(found: Mapping[Group, Difference], group: Group) -> Entry:
    return Entry(wording.number(found[group]) if group in found else "–")


def _budget(section: _Section) -> str:
    marked = section.claim in ("unreviewed", "nominal")
    return f"{section.budget} ({section.claim})" if marked else section.budget


def _megabytes(rows: pd.DataFrame, part: float = 1.0) -> str:
    total = over_seeds(rows["upload_bytes_per_round"] * rows["rounds"])
    return _three_digits(part * total / 1e6)


def _three_digits(value: float) -> str:
    # 1230 and not 1.23e+03.
    return f"{float(f'{value:.3g}'):g}"
