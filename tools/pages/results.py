"""docs/results.md: what the finished studies say, for somebody who has read nothing else, written
from ``docs/results/`` alone (archive.py).

The map comes first (gain_map.py), then the verdict of every study at every budget (panel.py), then
what several studies say together (across_studies.py). Every study has a page of its own
(one_study.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pages import across_studies, archive, blocks, gain_map, one_study, wording
from pages.archive import Archive
from pages.panel import MARGIN, Panel, panels
from pflpipe.files import write_text
from pflpipe.report.comparison import PLAIN
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import MIN_SEEDS

HEAD = f"""\
# Results

Written by `make results` from the files in `docs/results/`, from which every number here can be
made again. [What the methods are](reference/methods.md). [What an ε promises](privacy.md).

Personal models have three rivals: (a) learning alone; (b) the best released model of any certified
method, tested untouched on clients' own rows; (c) DP-FedAvg, fine-tuned by every client
({wording.escaped(PLAIN)}). (b) is chosen on validation rows: of the study's search, or of the runs
themselves where a study has no search. Studies that kept no such scores have DP-FedAvg's by rule.
Personalization **pays** at a budget if the intervals of a personal model beside (a) and (b) lie
above 0. It **does not pay** if every personal model has an interval beside (a) or (b) that ends
below {MARGIN:g} percentage point. Otherwise it is **undecided**.

One run is one observation: its noise is common to all of its clients. Intervals are of paired
differences over seeds (Student's t), widened for the number of lines compared (Holm): in at most 5
of 100 such studies, any interval of one column and section excludes 0 where there is no difference.
"Better", "worse" and "best" appear only where an interval excludes 0. "Not distinguishable" means
that it does not, not that there is no difference. With fewer than {MIN_SEEDS} seeds nothing is
said. The intervals are about other seeds (noise, splits, who is new) of these data, not about other
data. Bold, or `best`: not distinguishable from the best of the same budget and claim.
"""
COLUMNS = """\
## The columns of a study's table

Accuracies are in percent, mean ± standard deviation over `n` seeds; differences are in percentage
points with adjusted 95 % intervals. `personal own` is the personal model on its client's own test
rows, `global own` and `global common` the released model on these and on all, `new, global` on
those of clients who took no part in training. `to alone`, `to released` and `to dp_fedavg` are the
differences to (a), (b) and (c). `rank` holds for 95 % of resampled seeds. `above` and `below` are
the shares of clients above and below what they reach alone at the same seed, `net` their
difference. `worst tenth` compares the means of the worst tenths, `new` the clients who took no part
with learning alone. `few`, `some` and `many` are the mean gains over learning alone of thirds of
the clients by number of training examples; `narrow`, `middle` and `broad` by the effective number
of classes among these (exp of the entropy of the labels). `MB` and `s` are megabytes sent and
seconds of training of all clients in a run. `same` is until the mean accuracy first reaches what
dp\\_fedavg has in the end at the same budget (without privacy: what learning alone has). The noise
is that of the whole run, so stopping there is no recipe. `then` and `change` are of the runs that
the study had before, each with its own search.
"""
ACROSS = "across_studies"


def write(docs: Path) -> list[Path]:
    """Write ``docs/results.md`` and the pages and tables of ``docs/results/`` from its folders, the
    study with most runs first; return the pages, none where no study is there. Studies that lack
    methods are only named: who is best among some is no answer.

    Raises:
        DataError: a study is damaged.
    """
    root = docs / "results"
    folders = sorted(file.parent for file in root.glob("*/about.json"))
    if not folders:
        return []
    studies = sorted(map(archive.read, folders), key=lambda study: -len(study.runs))
    found = {study.name: panels(study) for study in studies if not study.about.missing}
    texts = {f"{name}.md": one_study.write(parts, root / name) for name, parts in found.items()}
    single = {name: parts[0] for name, parts in found.items() if len(parts) == 1}
    standings = {name: one_study.standings(panel) for name, panel in single.items()}
    together = across_studies.shared(standings)
    if together:
        file = f"{ACROSS}.csv"
        across_studies.table(together).to_csv(root / file, index=False, lineterminator="\n")
        texts[f"{ACROSS}.md"] = _ACROSS.format(file=file)
    waiting = (
        f"Not complete yet: {study.name}, which lacks {', '.join(study.about.missing)}."
        for study in studies
        if study.about.missing
    )
    maps = [parts for parts in found.values() if len(parts) > 1]
    summary = [
        HEAD.strip(),
        *["## The map: where private personalization pays"][: len(maps)],
        *(part for parts in maps for part in _map(parts, first=parts is maps[0])),
        *_studies(single),
        *(_together(together) if together else ()),
        *map(wording.escaped, waiting),
        *[COLUMNS.strip()][: len(found)],
    ]
    for old in root.glob("*.md"):
        if old.name not in texts and not blocks.written(old, blocks.NOTE):
            old.unlink()
    write_text(docs / "results.md", "\n\n".join(summary) + "\n")
    for name, text in texts.items():
        write_text(root / name, text)
    return [docs / "results.md", *(root / name for name in texts)]


_ACROSS = """\
# The methods in all studies

Written by `make results`. [How to read it](../results.md). Mean differences of personal models to
learning alone (a) and to the released model (b) on their clients' own test rows, in percentage
points. ↑, ↓: the adjusted 95 % interval, which is in the study's own table, excludes 0; it is
adjusted to the lines of one study, not to several studies. \\*: not distinguishable from the best
of the study and budget. –: not compared. As a file: [{file}]({file}).

<!-- table: {file} -->
"""


def _map(found: Sequence[Panel], first: bool) -> Iterator[str]:
    study = found[0].study
    yield f"{_link(study)} A message has {found[0].numbers} numbers."
    if first:
        yield f"![{study.name}](results/{study.name}/{gain_map.FIGURE})"
    yield gain_map.matrix(found)


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
    header = ("study", "budget", "verdict", "personal model", "to alone", "rival (b)")
    rows = tuple(tuple(_verdicts(name, panel)) for name, panel in found.items())
    caption = (
        "of each study and budget the personal model that stands first (the largest mean, among "
        "those that pay where some do), beside (a) and (b)."
    )
    name = "does personalization pay?"
    yield markdown(Table(name, caption, (), (*header, "to released"), rows, labels=1)).strip()


def _verdicts(name: str, panel: Panel) -> Iterator[tuple[Entry, ...]]:
    for budget, one in panel.verdicts().items():
        rival = one.rival.label + ", by rule" * panel.by_rule
        texts = [name, budget, one.word, one.group.label, wording.number(one.alone), rival]
        yield tuple(map(Entry, [*texts, wording.number(one.released)]))


def _together(found: across_studies.Standings) -> Iterator[str]:
    yield "## What the studies say together"
    yield (
        "These sentences are about the settings above and no others, at the budgets that most "
        f"studies have. [The differences by study and budget](results/{ACROSS}.md)."
    )
    yield one_study.numbered(across_studies.sentences(found, PLAIN))
