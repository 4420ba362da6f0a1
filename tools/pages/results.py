"""docs/results.md: what the finished studies say, for somebody who has read nothing else, written
from ``docs/results/`` alone (archive.py).

The map comes first (gain_map.py), then the verdict of every study at every budget
(report/verdicts.py), then what several studies say together (across_studies.py). Every study has a
page of its own (one_study.py). What explains the numbers stands in blocks that are written by hand
(blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pages import (
    across_studies,
    archive,
    blocks,
    croissant,
    front,
    gain_map,
    gains,
    one_study,
    predictions,
    which_method,
    wording,
)
from pages.archive import Archive
from pages.panel import Panel, panels
from pflpipe.code.dependencies import PLACEBO
from pflpipe.files import write_text
from pflpipe.report import comparison
from pflpipe.report.comparison import PLAIN, Group
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import Difference
from pflpipe.study.settings import round_up

ACROSS = "across_studies"


def write(docs: Path) -> list[Path]:
    """Write ``docs/results.md``, the pages and tables of ``docs/results/`` from its folders, the
    study with most runs first, what the first page shows of them (front.py), and what describes
    them for machines (croissant.py); return the pages,
    none where no study is there. Studies that lack methods are only named: who is best among some
    is no answer.

    Raises:
        DataError: a study is damaged.
    """
    root = docs / "results"
    folders = sorted(file.parent for file in root.glob("*/about.json"))
    if not folders:
        return []
    studies = sorted(map(archive.read, folders), key=lambda study: -len(study.runs))
    whole = [study for study in studies if not study.about.missing]
    found = {study.name: panels(archive.with_lent(study, whole)) for study in whole}
    texts = {f"{name}.md": one_study.write(parts, root / name) for name, parts in found.items()}
    single = {name: parts[0] for name, parts in found.items() if len(parts) == 1}
    # A study without learning alone lends its lines to one of the same people, which counts.
    standings = {
        name: one_study.standings(panel)
        for name, panel in single.items()
        if panel.alone is not None
    }
    together = across_studies.shared(standings)
    if together:
        file = f"{ACROSS}.csv"
        across_studies.table(together).to_csv(root / file, index=False, lineterminator="\n")
        note = blocks.kept(root / f"{ACROSS}.md", blocks.NOTE)
        table = f"<!-- table: {file} -->\n"
        texts[f"{ACROSS}.md"] = "\n\n".join(["# The methods in all studies", note, table])
    waiting = (
        f"Not complete yet: {study.name}, which lacks {', '.join(study.about.missing)}."
        for study in studies
        if study.about.missing
    )
    cases = which_method.cases(found)
    # With one data set there are no others to fit a rule on.
    several = len({case.data for case in cases if not case.map}) > 1
    maps = [parts for parts in found.values() if len(parts) > 1]
    summary = [
        "# Results",
        blocks.kept(docs / "results.md", blocks.NOTE),
        *["## The map: where private personalization pays"][: len(maps)],
        *(part for parts in maps for part in _map(parts, first=parts is maps[0])),
        *_studies(single),
        *(_together(together) if together else ()),
        *((which_method.sentence(cases),) if several else ()),
        *_predictions(found),
        *map(wording.escaped, waiting),
        blocks.kept(docs / "results.md", "columns"),
    ]
    for old in root.glob("*.md"):
        if old.name not in texts and not blocks.written(old, blocks.NOTE):
            old.unlink()
    write_text(docs / "results.md", "\n\n".join(summary) + "\n")
    advice = docs / which_method.PAGE
    if several:
        write_text(advice, which_method.page(cases, blocks.kept(advice, blocks.NOTE)))
    for name, text in texts.items():
        write_text(root / name, text)
    croissant.write(root, whole)
    pages = [docs / "results.md", *[advice][:several], *(root / name for name in texts)]
    return [*pages, *front.write(docs.parent, found)]


def _map(found: Sequence[Panel], first: bool) -> Iterator[str]:
    study = found[0].study
    sent = f" A message has {found[0].numbers} numbers." if found[0].numbers else ""
    yield f"{_link(study)}{sent}"
    if first:
        yield f"![{study.name}](results/{study.name}/{gain_map.FIGURE})"
        yield gain_map.matrix(found)


def _predictions(found: Mapping[str, Sequence[Panel]]) -> Iterator[str]:
    if text := predictions.summary(found):
        yield "## Predicted before the runs"
        yield text


def _link(study: Archive) -> str:
    return f"[{study.about.title}](results/{study.name}.md)"


def _studies(found: dict[str, Panel]) -> Iterator[str]:
    if not found:
        return
    yield "## The studies"
    yield "\n".join(
        f"- {wording.escaped(name)}: {_link(panel.study)} {panel.setting}."
        for name, panel in found.items()
    )
    header = (
        *("study", "budget", "with search", "verdict", "personal model", "rival (a)", "to (a)"),
        *("rival (b)", "to (b)", "other rivals", "worse off", "gain by fifth of rows"),
    )
    rows = tuple(tuple(_verdicts(name, panel)) for name, panel in found.items())
    caption = (
        "of each study, at the smallest, a middle and the largest budget, the personal model that "
        "stands first (the largest mean, among those that pay where some do), beside the strongest "
        "rival of each kind."
    )
    name = "does personalization pay?"
    # Columns of numbers do not wrap, and twelve of them would be wider than a desk.
    yield markdown(Table(name, caption, (), header, rows, labels=len(header))).strip()


def _verdicts(name: str, panel: Panel) -> Iterator[tuple[Entry, ...]]:
    budgets = [*panel.verdicts]
    shown = dict.fromkeys([*budgets[:1], *budgets[len(budgets) // 2 :][:1], *budgets[-1:]])
    for budget, one in ((budget, panel.verdicts[budget]) for budget in shown):
        beside = {kind: (line.group.label, one) for kind, (line, one) in one.beside.items()}
        known = [text for kind in "ab" for text in _rival(beside.get(kind))]
        others = [" ".join(_rival(beside[kind])) for kind in "cd" if kind in beside]
        searched = one.group.first("epsilon_with_search")
        texts = ["–" if searched is None else round_up(searched), one.word, one.group.label, *known]
        texts += [", ".join(others) or "not in the study", *_who_gains(one.group)]
        yield tuple(map(Entry, [name, budget, *texts]))
        if (control := panel.placebo(budget)) is not None:
            rival = one.beside["a"][0].group
            gap = comparison.against([control], rival, people=panel.of_groups)[control]
            texts = ["–", PLACEBO, control.method, *_rival((rival.label, gap)), "–", "–", "–"]
            yield tuple(map(Entry, [name, budget, *texts, *_who_gains(control)]))


def _who_gains(group: Group) -> tuple[str, str]:
    worse = group.mean("worse")
    parts = [group.mean(f"size_{part}") for part in gains.PARTS["size"]]
    by_fifth = ", ".join(f"{part:+.1f}" for part in parts if math.isfinite(part))
    return f"{worse:.0f} %" if worse >= 0 else "–", by_fifth


def _rival(found: tuple[str, Difference] | None) -> tuple[str, str]:
    return ("–", "–") if found is None else (found[0], wording.number(found[1]))


def _together(found: across_studies.Standings) -> Iterator[str]:
    yield "## What the studies say together"
    yield (
        "These sentences are about the settings above and no others, at the budgets that most "
        f"studies have. [The differences by study and budget](results/{ACROSS}.md)."
    )
    yield one_study.numbered(across_studies.sentences(found, PLAIN))
