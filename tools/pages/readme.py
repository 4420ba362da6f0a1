"""The measured numbers of README.md and docs/quickstart.md: each stands between two markers, and
``make readme`` writes it there from the results.

What stands outside of the blocks (blocks.py) is written by hand and holds no measured number.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pages import blocks as parts
from pflpipe.cells import Cell
from pflpipe.code.dependencies import CLAIMS
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import atomic, write_text
from pflpipe.report import comparison, measured_on, sentences
from pflpipe.report.comparison import Group
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.tidy import existing, stored
from pflpipe.study.config import STUDIES
from pflpipe.study.load import load_study
from pflpipe.study.settings import NO_PRIVACY
from pflpipe.study.study_spec import Study

QUICKSTART, PUBLISHED = "quickstart", "quickstart_published"
VERDICT, TABLE, SENTENCES, COMPARED = (
    f"{QUICKSTART}: verdict",
    f"{QUICKSTART}: table",
    f"{QUICKSTART}: sentences",
    f"{PUBLISHED}: sentences",
)
PAGES = {"README.md": (VERDICT,), "docs/quickstart.md": (TABLE, SENTENCES, COMPARED)}
"""The blocks of each document."""
COLUMNS = 98
"""Width of README.md."""
Code = Callable[[Sequence[Cell]], str]
FIGURE = "privacy_utility.png"
"""The quickstart's figure in the documents."""
_METRICS = {"personal": "personal_own", "global": "global_common"}


@dataclass(frozen=True)
class _Method:
    """One line of the table: the groups of one label, by budget."""

    label: str
    budgets: dict[str, Group]

    @property
    def first(self) -> Group:
        return next(iter(self.budgets.values()))

    @property
    def claim(self) -> str:
        return self.first.claim


def renew(root: Path, results: Path, code: Code) -> list[str]:
    """Rewrite the blocks of ``PAGES`` in ``root`` and the quickstart's ``FIGURE`` in
    ``root/docs/images``; return what was done.

    The block of ``quickstart_published``, which ``make quickstart`` does not train, stays as it is
    without its results. All files are known before one is replaced, each atomically.

    Args:
        root: folder with README.md, ``studies/`` and ``docs/``.
        results: folder with ``tables/``, ``figures/`` and ``runs/``.
        code: see ``runs_comment``.

    Raises:
        ConfigError: a marker is missing, or the quickstart has no location for a line in the table.
        DataError: the quickstart's results are missing, or are those of another version of the
            study.
    """
    study = load_study(QUICKSTART, root / STUDIES, results)
    frame = _read(study, results)
    image = root / "docs/images" / f"{QUICKSTART}_{FIGURE}"
    figure = existing(results / "figures" / QUICKSTART / FIGURE)
    lines = _methods(study, frame)
    table = _table(study, frame, lines, measured_on.of_study(study, frame, results))
    blocks = {
        TABLE: f"{markdown(table)}\n{runs_comment(study, code)}",
        SENTENCES: "\n".join(_sentences(lines)),
        VERDICT: "\n".join(
            textwrap.fill(said, COLUMNS, subsequent_indent="  ") for said in _verdict(lines)
        ),
    }
    told = []
    try:
        study = load_study(PUBLISHED, root / STUDIES, results)
        compared = _compared(_methods(study, _read(study, results)))
    except DataError as error:
        told.append(f"block {COMPARED} stays as it is: {error}")
    else:
        blocks[COMPARED] = f"{compared}\n\n{runs_comment(study, code)}"
    before = {root / page: (root / page).read_text(encoding="utf-8") for page in PAGES}
    after = dict(before)
    for page, names in PAGES.items():
        for name in filter(blocks.__contains__, names):
            after[root / page] = parts.replaced(after[root / page], name, blocks[name], page)
    if not image.is_file() or image.read_bytes() != figure.read_bytes():
        with atomic(image) as path:
            shutil.copyfile(figure, path)
        told.append(f"{image}: renewed")
    for path, text in after.items():
        if text != before[path]:
            write_text(path, text)
            told.append(f"{path}: renewed")
    return told or ["nothing new"]


def runs_comment(study: Study, code: Code) -> str:
    """Return a comment, invisible in Markdown, that names the runs of a study and the code that
    trains them: a digest changes whenever they would be others.

    Args:
        code: says what the program means that trains cells, such as ``Project.training_code``.
    """
    runs = " ".join(sorted({row.run for row in study.rows}))
    return f"<!-- runs {_digest(runs)}, code {_digest(code(study.cells))} -->"


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:10]


def _read(study: Study, results: Path) -> pd.DataFrame:
    do = "make report" if study.name == PUBLISHED else "make quickstart"
    if not (path := results / "tables" / f"{study.name}.csv").is_file():
        raise DataError(f"{path} does not exist", do=f"run {do} first")
    return stored(study, results)


def _methods(study: Study, frame: pd.DataFrame) -> list[_Method]:
    """Return a study's lines: without privacy in the study's order, then those of each other claim,
    each best first."""
    lines: dict[str, _Method] = {}
    for group in comparison.groups(study, frame):
        budgets = lines.setdefault(group.label, _Method(group.label, {})).budgets
        if group.budget in budgets:
            raise ConfigError(
                f"study {study.name}: {group.label} has several lines at {group.budget}",
                expected="one, as the table has no column for what tells them apart",
            )
        budgets[group.budget] = group

    def rank(line: _Method) -> tuple[int, float]:
        location = ("none", *CLAIMS).index(line.claim)
        return location, -list(line.budgets.values())[-1].mean() if location else 0.0

    return sorted(lines.values(), key=rank)


def _groups(lines: Sequence[_Method]) -> list[Group]:
    return [group for line in lines for group in line.budgets.values()]


def _budgets(lines: Sequence[_Method]) -> list[str]:
    return [name for name in comparison.by_budget(_groups(lines)) if name != NO_PRIVACY]


def _table(study: Study, frame: pd.DataFrame, lines: Sequence[_Method], origin: str) -> Table:
    budgets = _budgets(lines)
    seeds = len({cell.seed for cell in study.cells})
    deltas = ", ".join(f"{value:g}" for value in frame["delta"].dropna().unique())
    caption = (
        f"accuracy in percent, mean ± standard deviation over {seeds} seeds; personal models on "
        f"their clients' own test data, the global model on all test data; δ = {deltas}; rows "
        f"without privacy stand under {budgets[-1]}."
    )
    diverged = "† Left the finite numbers in at least one seed; its scores are counted as they are."
    notes = [
        "These accuracies are diagnostics, the experimenter's measurements on public data: no ε "
        "covers them.",
        *([diverged] if frame["diverged_round"].notna().any() else []),
        origin,
    ]
    rows = []
    for line in lines:
        shown = {
            budgets[-1] if name == NO_PRIVACY else name: group
            for name, group in line.budgets.items()
        }
        entries = [
            _entry(shown.get(budget), metric) for metric in _METRICS.values() for budget in budgets
        ]
        rows.append(tuple(map(Entry, [line.label, _claim(line), *entries])))
    groups = [word for word in _METRICS for _ in budgets]
    header = ("method", "claim", *budgets * len(_METRICS))
    return Table(
        study.name,
        caption,
        tuple(notes),
        header,
        (tuple(rows),),
        labels=2,
        groups=("", "", *groups),
    )


def _entry(group: Group | None, metric: str) -> str:
    return "" if group is None else group.text(metric) + " †" * bool(group.diverged)


def _claim(line: _Method) -> str:
    if line.claim == "none":
        return "none, ε = ∞" if line.first.sends else "none, sends nothing"
    honest = " and ".join(group.worst("epsilon_central") for group in line.budgets.values())
    return f"nominal; honest ε = {honest}" if line.claim == "nominal" else line.claim


def _sentences(lines: Sequence[_Method]) -> Iterator[str]:
    """Yield what the table says at a glance, a sentence each: whether personalization pays, who is
    better than learning alone, who may be the best, the references, and what a nominal epsilon
    is worth."""
    groups = _groups(lines)
    yield from sentences.paying(sentences.judged(groups))
    yield from sentences.compared(groups)
    yield from sentences.references(groups)
    yield from sentences.claims_that_fail(groups)
    yield sentences.SEEDS_ALONE


def _verdict(lines: Sequence[_Method]) -> Iterator[str]:
    """Yield the same in short for README.md, as items of a list: the certified methods, whether
    they pay, and the references."""
    groups = _groups(lines)
    certified = comparison.by_budget(comparison.of_claim(groups, "certified"))
    ranked = {budget: comparison.ranked(members) for budget, members in certified.items()}
    parts = [
        f"{best[-1].mean():.1f} to {best[0].mean():.1f} % at {budget} (top: {best[0].name})"
        for budget, best in ranked.items()
    ]
    count = sum(line.claim == "certified" for line in lines)
    yield f"- {count} certified methods: {', '.join(parts)}."
    verdict = itertools.islice(sentences.paying(sentences.judged(groups)), 1)
    for said in (*verdict, *sentences.references(groups)):
        yield f"- {said}"
    yield f"- {sentences.SEEDS_ALONE}"


def _compared(lines: Sequence[_Method]) -> str:
    """Return one sentence: every published version and its honest epsilon beside the certified
    version."""
    budget = _budgets(lines)[0]
    found = comparison.by(_groups(lines), lambda group: (group.budget, group.method))
    pairs = [
        (published, sound)
        for (asked, _), members in found.items()
        if asked == budget
        for published, sound in comparison.pairs(members)
        if published and sound and sound.claim == "certified"
    ]
    pairs.sort(key=lambda pair: pair[1].mean() - pair[0].mean())
    words = [
        f"{published.label}, honest ε = {published.worst('epsilon_central')}: "
        f"{published.mean():.1f} against {sound.mean():.1f}"
        for published, sound in pairs
    ]
    return (
        f"Personal accuracy as published, for a nominal {budget}, against certified: "
        f"{'; '.join(words)}."
    )
