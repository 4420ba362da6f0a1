"""docs/results.md: what the finished studies say, for somebody who has read nothing else, written
from ``docs/results/`` alone (archive.py).

The map comes first (gain_map.py), then the verdict of every study at every budget (panel.py), then
what several studies say together (across_studies.py). Every study has a page of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pages import across_studies, archive, gain_map, one_study, wording
from pages.archive import Archive
from pages.panel import MARGIN, Panel, panels
from pflpipe.files import write_text
from pflpipe.report.comparison import PLAIN
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import MIN_SEEDS

HEAD = f"""\
# Results

Written by `make results` from the files in `docs/results/`, of which every number here can be made
again; do not edit. What the methods are: [Methods](reference/methods.md). What an ε promises:
[privacy.md](privacy.md).

Personal models have three rivals: (a) learning alone; (b) the best released model of any certified
method, tested untouched on clients' own rows; (c) DP-FedAvg, fine-tuned by every client
({wording.escaped(PLAIN)}). (b) is chosen on validation rows: of the study's search, or of the runs
themselves where a study has no search. Studies that kept no such scores have DP-FedAvg's by rule.
Personalization **pays** at a budget where the intervals of a personal model beside (a) and (b) lie
above 0. It **does not pay** where every personal model has an interval beside (a) or (b) that ends
below {MARGIN:g} percent point. Else it is **undecided**.

How to read it. One run is one observation: its noise is common to all of its clients. Intervals
are of paired differences over seeds, by Student's t, and wide enough for the number of lines
compared: in at most 5 of 100 such studies any of the intervals of one column and section excludes 0
where there is no difference. "Better", "worse" and "best" are said only where such an interval
excludes 0; "not distinguishable" says that it does not, and not that there is no difference. With
fewer than {MIN_SEEDS} seeds nothing is said. The intervals are about other seeds (noise, splits,
who is new) of these data, not about other data.
"""
ACROSS = "across_studies"


def write(docs: Path) -> list[Path]:
    """Write ``docs/results.md`` and the pages of ``docs/results/`` from its folders, the study with
    most runs first; return the pages, none where no study is there. Studies that lack methods are
    only named: who is best among some is no answer.

    Raises:
        DataError: a study is damaged.
    """
    root = docs / "results"
    folders = sorted(file.parent for file in root.glob("*/about.json"))
    if not folders:
        return []
    studies = sorted(map(archive.read, folders), key=lambda study: -len(study.runs))
    complete = [study for study in studies if not study.about.missing]
    found = {study.name: panels(study) for study in complete}
    texts = {f"{name}.md": one_study.text(parts, root / name) for name, parts in found.items()}
    single = {name: parts[0] for name, parts in found.items() if len(parts) == 1}
    standings = {name: one_study.Page(panel).standings() for name, panel in single.items()}
    together = across_studies.shared(standings)
    if together:
        texts[f"{ACROSS}.md"] = _across(together)
    waiting = (
        f"Not complete yet: {study.name}, which lacks {', '.join(study.about.missing)}."
        for study in studies
        if study.about.missing
    )
    maps = [parts for parts in found.values() if len(parts) > 1]
    summary = [
        HEAD.strip(),
        *["## The map: where private personalization pays"][: len(maps)],
        *(part for parts in maps for part in _map(parts)),
        *_studies(single),
        *(_together(together, single) if together else ()),
        *map(wording.escaped, waiting),
    ]
    for old in root.glob("*.md"):
        old.unlink()
    write_text(docs / "results.md", "\n\n".join(summary) + "\n")
    for name, text in texts.items():
        write_text(root / name, text)
    return [docs / "results.md", *(root / name for name in texts)]


def _map(found: Sequence[Panel]) -> Iterator[str]:
    study = found[0].study
    yield (
        f"{_link(study)} A message has {found[0].numbers} numbers. The advice holds for these "
        "data; the page has the intervals of every region."
    )
    yield gain_map.picture(study.name, "results/")
    yield gain_map.advice(found)


def _link(study: Archive) -> str:
    return f"[{study.about.title}](results/{study.name}.md)"


def _studies(found: dict[str, Panel]) -> Iterator[str]:
    if not found:
        return
    yield "## The studies"
    yield "\n".join(f"- {wording.escaped(name)}: {_link(one.study)}" for name, one in found.items())
    yield markdown(
        Table(
            "does personalization pay?",
            "of each study and budget the personal model that stands first (the largest mean, "
            "among those that pay where some do), beside learning alone and beside (b), in percent "
            "points with adjusted 95 % intervals. Rows: mean number of training rows a person. "
            f"Numbers: length of a message of {PLAIN}.",
            (),
            (
                *("study", "people", "rows", "numbers", "budget", "verdict", "personal model"),
                *("to alone", "rival (b)", "to released"),
            ),
            tuple(tuple(_verdicts(name, panel)) for name, panel in found.items()),
            labels=1,
        )
    ).strip()


def _verdicts(name: str, panel: Panel) -> Iterator[tuple[Entry, ...]]:
    for budget, one in panel.verdicts().items():
        texts = [name, f"{panel.people:,}", str(panel.rows), panel.numbers, budget]
        texts += [one.word, one.group.label, wording.number(one.alone)]
        texts += [one.rival.label + ", by rule" * panel.by_rule, wording.number(one.released)]
        yield tuple(map(Entry, texts))


def _together(found: across_studies.Standings, single: dict[str, Panel]) -> Iterator[str]:
    names = dict.fromkeys(name for standings in found.values() for name in standings)
    yield "## What the studies say together"
    yield "These sentences are about the following settings and no others."
    yield "\n".join(f"- {wording.escaped(name)}: {single[name].setting}" for name in names)
    yield one_study.numbered(across_studies.sentences(found, PLAIN))
    yield f"[The methods beside each other](results/{ACROSS}.md) has the differences by study."


def _across(found: across_studies.Standings) -> str:
    parts = [
        "# The methods in all studies",
        "Written by `make results` from `docs/results/`; do not edit. How to read it: "
        "[Results](../results.md).",
        *(markdown(table).strip() for table in across_studies.tables(found)),
    ]
    return "\n\n".join(parts) + "\n"
