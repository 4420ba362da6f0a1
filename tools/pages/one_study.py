"""The page of one study, written from its folder in ``docs/results/`` alone (archive.py).

It begins with its figures, whatever images are in its folder. Then come a few sentences whose words
of comparison follow from intervals (sentences.py), and its tables. A study of several numbers of
people or of rows is a map (gain_map.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from pages import across_studies, archive, gain_map, wording
from pages.gains import THIRDS, cost, curve
from pages.panel import RELEASED, UNDECIDED, Panel, Section, Verdict, released_by, untouched
from pflpipe.report import comparison, sentences, statistics
from pflpipe.report.comparison import (
    ALONE,
    BOLD_WORDS,
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
from pflpipe.report.statistics import Difference
from pflpipe.study.settings import NO_PRIVACY

IMAGES = (".png", ".svg")
NOTE = "note.md"
"""In a study's folder: what somebody wrote about its numbers; goes to the top of its page."""
FORMER = "former.csv"
"""In a study's folder: what its runs before the last ones had, columns of ``runs.csv``; the page
has them beside the new ones."""


class Page:
    """What a page says of a study with one panel."""

    def __init__(self, panel: Panel) -> None:
        self.panel, self.study = panel, panel.study

    def standings(self) -> dict[str, across_studies.Standing]:
        """Return by budget how the certified groups stand."""
        found = {}
        for budget, section in self.panel.certified.items():
            alone, released, plain = (
                {group.label: one for group, one in differences.items()}
                for differences in self._rivals(section)
            )
            labels = tuple(group.label for group in section.groups)
            kept = frozenset(group.label for group in section.best)
            found[budget] = across_studies.Standing(labels, alone, released, plain, kept)
        return found

    def _rivals(self, section: Section) -> tuple[dict[Group, Difference], ...]:
        """Return the differences to (a), (b) and (c)."""
        return (
            section.against(self.panel.alone),
            section.beside(self.panel.released(section.budget)),
            section.against(self.panel.find(section.budget, PLAIN)),
        )

    # ------------------------------------------------------------ sentences

    def sentences(self) -> Iterator[str]:
        """Yield seven sentences: whether personalization pays, who beats (a), who is best, who
        beats (b) and (c), who gains, what privacy costs; fewer where a study lacks what one
        compares with, and two more where lines are unreviewed."""
        verdicts = self.panel.verdicts().items()
        yield sentences.each_budget({budget: told(one) for budget, one in verdicts})
        yield from sentences.compared(self.panel.groups)
        certified = self.panel.certified
        yield sentences.each_budget(dict(self._over_released()))
        budgets = {budget: section.groups for budget, section in certified.items()}
        name = f"DP-FedAvg, fine-tuned ({PLAIN})"
        yield sentences.over(budgets, lambda budget: self.panel.find(budget, PLAIN), name)
        if certified:
            *_, section = certified.values()
            yield from self._of_the_leader(section)

    def _over_released(self) -> Iterator[tuple[str, str]]:
        for budget, section in self.panel.certified.items():
            rival = self.panel.released(budget)
            if rival is not None:
                found = {group.name: one for group, one in section.beside(rival).items()}
                yield budget, sentences.against(found, f"{released_by(rival)}, untouched")

    def _of_the_leader(self, section: Section) -> Iterator[str]:
        leader = section.contest.leader if section.contest else section.groups[0]
        name = f"{leader.label} at {leader.budget}"
        if self.panel.alone is not None and finite(leader.rows["above"]):
            parts = [
                f"with {name}, {leader.mean('above'):.0f} % of the clients score above what they "
                f"reach alone and {leader.mean('below'):.0f} % below it"
            ]
            worst = section.against(self.panel.alone, "personal_own_worst_decile")[leader]
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
        public = self.panel.find(NO_PRIVACY, OPEN)
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
            "personal models on their clients' own test rows, the global model on these and on "
            "all; percent, mean ± standard deviation over n seeds. To alone (a), to the released "
            f"model (b), untouched and marked in its column, to {PLAIN}, which is fine-tuned (c): "
            "paired differences in percent points with adjusted 95 % intervals (Holm). "
            "Rank: 95 % of resampled seeds, within its section.",
            (
                f"Bold, among rows of the same budget and claim: {BOLD_WORDS}.",
                *self._notes(),
                "Clients that always say the majority class of their training examples would have "
                f"{mean_text(majority, len(majority))}.",
            ),
            (
                *("method", "claim", "ε (central)", "personal own", "rank", "to alone"),
                *("to released", f"to {PLAIN}", "global own", "global common", "n"),
            ),
            self._of_accuracy,
            labels=3,
        )

    def _of_accuracy(self, section: Section) -> Iterator[tuple[Entry, ...]]:
        differences, rival = self._rivals(section), self.panel.released(section.budget)
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
                *(_entry(found, group) for found in differences),
                Entry(group.text(RELEASED) + " (b)" * (group is rival)),
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

    def _of_gains(self, section: Section) -> Iterator[tuple[Entry, ...]]:
        worst = section.against(self.panel.alone, "personal_own_worst_decile")
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

        def lines(section: Section) -> Iterator[tuple[Entry, ...]]:
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

    def _of_costs(self, section: Section) -> Iterator[tuple[Entry, ...]]:
        reference = self.panel.find(section.budget, PLAIN) or self.panel.alone
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

    def former(self, before: pd.DataFrame) -> Table:
        """Return the means of a study beside those of its former runs."""
        columns = ["personal_own", RELEASED]
        means = {
            key: rows[columns].mean() for key, rows in before.groupby(["line", "budget", "claim"])
        }

        def lines(section: Section) -> Iterator[tuple[Entry, ...]]:
            for group in section.groups:
                key = (group.label, group.budget, group.claim)
                if key in means:
                    pairs = ((means[key][name], group.mean(name)) for name in columns)
                    texts = (text for pair in pairs for text in _beside(*pair))
                    yield tuple(map(Entry, (group.label, _budget(section), *texts)))

        return self._table(
            "the numbers before these",
            "means over seeds in percent, of the runs that this page had before (then) and of "
            "those above (now), and the difference in percent points. Each had its own search.",
            (),
            ("method", "budget", *("then", "now", "difference") * 2),
            lines,
            labels=2,
            groups=("", "", *["personal own"] * 3, *["global own"] * 3),
        )

    def _table(
        self,
        name: str,
        caption: str,
        notes: tuple[str, ...],
        header: tuple[str, ...],
        lines: Callable[[Section], Iterator[tuple[Entry, ...]]],
        *,
        labels: int,
        groups: tuple[str, ...] = (),
    ) -> Table:
        sections = tuple(filter(None, (tuple(lines(section)) for section in self.panel.sections)))
        return Table(f"{self.study.name}, {name}", caption, notes, header, sections, labels, groups)

    def _notes(self) -> Iterator[str]:
        yield from claim_notes(self.panel.groups)
        if self.study.runs["diverged_round"].notna().any():
            yield "† Diverged in at least one seed; its scores are counted as they are."
        if same := dict.fromkeys(one.label for one in self.panel.groups if untouched(one)):
            yield f"Not personal, but the released model for everybody: {', '.join(same)}."
        if self.panel.by_rule:
            yield (
                "This study kept no validation scores of released models, so that (b) could not be "
                f"chosen among methods: it is the one of {PLAIN}, by rule."
            )

    def parts(self, images: Path) -> Iterator[str]:
        """Yield the page below its note, beside the folder of ``images``."""
        about = self.study.about
        yield f"This page is about one setting: {self.panel.setting}."
        yield from (
            f"![{self.study.name}: {path.stem}]({quote(f'{self.study.name}/{path.name}')})"
            for path in sorted(images.iterdir())
            if path.suffix in IMAGES
        )
        yield numbered(self.sentences())
        yield from filter(None, [wording.escaped(about.description)])
        yield wording.escaped(about.caption)
        yield markdown(self.accuracy()).strip()
        if self.panel.alone is not None:
            yield markdown(self.who_gains()).strip()
            yield markdown(self.by_group()).strip()
        yield markdown(self.costs()).strip()
        if (images / FORMER).is_file():
            yield markdown(self.former(pd.read_csv(images / FORMER))).strip()


def text(found: Sequence[Panel], folder: Path) -> str:
    """Return the page of a study, which lies beside its ``folder`` in ``docs/results/``."""
    study, note = found[0].study, folder / NOTE
    about = study.about
    if len(found) > 1:
        gain_map.draw(found, folder / gain_map.FIGURE)
        parts = gain_map.parts(found)
    else:
        parts = Page(found[0]).parts(folder)
    return "\n\n".join(
        [
            f"# {about.title}",
            f"Written by `make results` from `docs/results/{study.name}/`; do not edit. How to "
            "read it: [Results](../results.md).",
            *([note.read_text(encoding="utf-8").strip()] if note.is_file() else []),
            *parts,
            *dict.fromkeys(about.measured.values()),
            f"{about.runs}\n",
        ]
    )


def told(verdict: Verdict) -> str:
    """Return a verdict as part of a sentence, without its budget."""
    word = {UNDECIDED: "it is undecided whether personalization pays"}
    return (
        f"{word.get(verdict.word, f'personalization {verdict.word}')}: {verdict.group.label} has "
        f"{wording.number(verdict.alone)} beside learning alone and "
        f"{wording.number(verdict.released)} beside {released_by(verdict.rival)}"
    )


def numbered(answers: Iterable[str]) -> str:
    """Return sentences as a list of Markdown."""
    return "\n".join(
        f"{number}. {wording.escaped(text)}"
        for number, text in enumerate(filter(None, answers), start=1)
    )


def _entry(found: Mapping[Group, Difference], group: Group) -> Entry:
    return Entry(wording.number(found[group]) if group in found else "–")


def _budget(section: Section) -> str:
    marked = section.claim in ("unreviewed", "nominal")
    return f"{section.budget} ({section.claim})" if marked else section.budget


def _beside(then: float, now: float) -> Iterator[str]:
    for value, form in ((then, ".1f"), (now, ".1f"), (now - then, "+.1f")):
        # Adding 0 makes a rounded -0 positive.
        yield format(round(value, 1) + 0.0, form) if math.isfinite(value) else "–"


def _megabytes(rows: pd.DataFrame, part: float = 1.0) -> str:
    total = over_seeds(rows["upload_bytes_per_round"] * rows["rounds"])
    return _three_digits(part * total / 1e6)


def _three_digits(value: float) -> str:
    # 1230 and not 1.23e+03.
    return f"{float(f'{value:.3g}'):g}"
