"""The page of one study and its table, written from its folder in ``docs/results/`` alone
(archive.py).

The page begins with the verdict and what somebody wrote about it. Then come the figure, the best
methods beside their rivals, sentences whose words of comparison follow from intervals
(sentences.py), and last how the numbers were made. ``table.csv`` has every line of the study with
all columns; the site shows it below the page. A study of several numbers of people or of rows is a
map (gain_map.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pages import across_studies, archive, blocks, gain_map, gains, wording
from pages.gains import cost, curve
from pages.panel import Panel, Section
from pflpipe.code.dependencies import PLACEBO
from pflpipe.report import comparison, sentences, statistics
from pflpipe.report.comparison import ALONE, OPEN, PLAIN, Group, epsilon_text, finite, over_seeds
from pflpipe.report.render_table import Entry, Table, markdown
from pflpipe.report.statistics import Difference
from pflpipe.report.verdicts import RELEASED, untouched
from pflpipe.study.settings import NO_PRIVACY

FIGURE, TABLE, GROUPS = "privacy_utility.png", "table.csv", "groups.csv"
SHOWN = 2
"""How many of the certified lines of a budget a page shows, the largest mean first; of the
smallest, a middle and the largest budget."""
COLUMNS = (
    "method",
    "budget",
    "personal own",
    "to alone",
    "to released",
    f"to {PLAIN}",
    "global own",
)
PARTS = {
    f"{name}, {part}": f"{kind}_{part}"
    for kind, name in (("size", "examples"), ("classes", "classes"))
    for part in gains.PARTS[kind]
}
"""Columns of the table, and those of gains.py."""


def lines(panel: Panel) -> dict[Group, dict[str, str]]:
    """Return the columns of every line of a study, as they are printed."""
    found: dict[Group, dict[str, str]] = {}
    for section in panel.sections:
        plain = panel.find(section.budget, PLAIN)
        rival, reference = panel.released(section.budget), plain or panel.alone
        target = math.inf
        if reference is not None:
            target = float(curve(panel.study, reference.rows).iloc[-1])
        ranks = statistics.rank_intervals(
            comparison.table(section.groups), panel.study.name, section.budget
        )
        rivals = {
            "to alone": section.against(panel.alone),
            "to released": section.beside(rival),
            f"to {PLAIN}": section.against(plain),
        }
        gained: dict[str, dict[Group, Difference]] = {}
        if panel.alone is not None:
            gained = {
                "net": section.gain("net"),
                "worst tenth": section.against(panel.alone, "personal_own_worst_decile"),
                "new": section.gain("new"),
                **{name: section.gain(column) for name, column in PARTS.items()},
            }
        for group in section.groups:
            first, last = ranks.get(group, (0, 0))
            personal = panel.alone is not None and group.label != ALONE
            found[group] = {
                "method": group.label + " †" * bool(group.diverged),
                "budget": section.budget,
                "claim": group.claim,
                "ε (central)": epsilon_text(group),
                "personal own": group.text(),
                "best": "yes" * (group in section.best),
                "rank": "–" if not first else str(first) if first == last else f"{first} to {last}",
                **{name: _number(differences, group) for name, differences in rivals.items()},
                "global own": group.text(RELEASED) + " (b)" * (group is rival),
                "global common": group.text("global_common"),
                "n": str(len(group.rows)),
                "above": group.text("above") if personal else "–",
                "below": group.text("below") if personal else "–",
                "worse": group.text("worse") if personal else "–",
                **{
                    name: _number(differences if personal else {}, group)
                    for name, differences in gained.items()
                },
                "new, global": group.text("global_new") if personal else "–",
                **_costs(panel, group, target),
            }
    return found


def _costs(panel: Panel, group: Group, target: float) -> dict[str, str]:
    """Return what a run sends and takes, and until its mean accuracy reaches a target."""
    seconds = group.mean("train_seconds")
    same = dict.fromkeys(("rounds, same", "MB, same", "s, same"), "–")
    reached = cost(panel.study, group.rows, target)
    if reached is not None:
        part = reached / float(group.first("rounds"))
        same = {
            "rounds, same": str(reached),
            "MB, same": _megabytes(group.rows, part),
            "s, same": _three_digits(part * seconds),
        }
    return {"MB, run": _megabytes(group.rows), "s, run": _three_digits(seconds), **same}


def standings(panel: Panel) -> dict[str, across_studies.Standing]:
    """Return by budget how the certified groups stand."""
    found = {}
    for budget, section in panel.certified.items():
        alone, released, plain = (
            {group.label: one for group, one in differences.items()}
            for differences in (
                section.against(panel.alone),
                section.beside(panel.released(budget)),
                section.against(panel.find(budget, PLAIN)),
            )
        )
        labels = tuple(group.label for group in section.groups)
        kept = frozenset(group.label for group in section.best)
        found[budget] = across_studies.Standing(labels, alone, released, plain, kept)
    return found


def said(panel: Panel) -> Iterator[str]:
    """Yield who gains and what privacy costs at the largest budget; then, at the smallest and the
    largest one, who beats learning alone and who is best, and the nominal claims that fail. Nothing
    is said where a study lacks what a sentence compares with."""
    budgets = [*panel.certified]
    ends = {budget: panel.certified[budget] for budget in (*budgets[:1], *budgets[-1:])}
    if ends:
        yield from _of_the_leader(panel, ends[budgets[-1]])
    shown = (*ends, NO_PRIVACY)
    of_groups = panel.of_groups
    yield from sentences.compared([one for one in panel.groups if one.budget in shown], of_groups)
    yield from sentences.claims_that_fail([one for one in panel.groups if one.budget in shown])


def _of_the_leader(panel: Panel, section: Section) -> Iterator[str]:
    leader = section.contest.leader if section.contest else section.groups[0]
    name = f"{leader.label} at {leader.budget}"
    if panel.alone is not None and finite(leader.rows["above"]):
        worst = section.against(panel.alone, "personal_own_worst_decile")[leader]
        parts = [
            f"with {name}, {leader.mean('above'):.0f} % of the clients score above what they "
            f"reach alone, {leader.mean('below'):.0f} % below it, and "
            f"{leader.mean('worse'):.0f} % below it by more than chance",
            f"the worst tenth of its clients is {wording.verdict(worst)} that of learning alone, "
            f"{wording.number(worst)}",
        ]
        new = section.gain("new")
        if leader in new:
            parts.append(
                f"clients who were not there are {wording.stand(new[leader])} learning alone, "
                f"{wording.number(new[leader])}"
            )
        yield f"{sentences.joined(parts)}."
    public = panel.find(NO_PRIVACY, OPEN)
    if public is not None:
        # Which group is compared was chosen by the data, so all are.
        price = section.against(public)[leader]
        yield (
            f"{name} is {wording.verdict(price)} {OPEN} without privacy, {wording.number(price)}, "
            f"and its clients together send {_megabytes(leader.rows)} MB in a run."
        )


def best(panel: Panel, found: Mapping[Group, Mapping[str, str]]) -> Table:
    """Return the lines with the largest means of every budget beside their rivals."""
    certified = [*panel.certified.values()]
    middle = certified[len(certified) // 2 :][:1]
    budgets = {one.budget for one in (*certified[:1], *middle, *certified[-1:])}
    claims = ("none", "certified", PLACEBO)
    shown: list[Group] = []
    for section in panel.sections:
        if section.budget in (NO_PRIVACY, *budgets) and section.claim in claims:
            kept = _kept(panel, section)
            shown += [group for group in section.groups if group in kept]
    rows = tuple(
        tuple(
            Entry(found[group][name], name == "personal own" and bool(found[group]["best"]))
            for name in COLUMNS
        )
        for group in shown
    )
    return Table(panel.study.name, _caption(panel), tuple(_notes(panel)), COLUMNS, (rows,), 2)


def _kept(panel: Panel, section: Section) -> list[Group | None]:
    if section.claim == PLACEBO:
        return [panel.placebo(section.budget)]
    verdict = panel.verdicts.get(section.budget)
    rivals = [panel.released(section.budget), panel.find(section.budget, PLAIN)]
    return [*section.groups[:SHOWN], *rivals, *([verdict.group] if verdict else ())]


def _caption(panel: Panel) -> str:
    majority = archive.majority(panel.study)
    return (
        f"the {SHOWN} largest certified means of a budget, and their rivals. Clients that always "
        "say the majority class of their training examples would have "
        f"{comparison.mean_text(majority, len(majority))}."
    )


def _notes(panel: Panel) -> Iterator[str]:
    if panel.study.runs["diverged_round"].notna().any():
        yield "† Diverged in at least one seed; its scores are counted as they are."
    if same := dict.fromkeys(one.label for one in panel.groups if untouched(one)):
        yield f"Not personal, but the released model for everybody: {', '.join(same)}."


def by_group(gains: pd.DataFrame) -> Table:
    """Return the gains by group of people, which tools/gain_by_group.py has written, at the
    smallest, a middle and the largest budget."""
    budgets = list(gains["budget"].unique())
    shown = list(dict.fromkeys([budgets[0], budgets[len(budgets) // 2], budgets[-1]]))
    rows: dict[str, list[str]] = {}
    for one in gains[gains["budget"].isin(shown)].to_dict("records"):
        row = rows.setdefault(one["group"], [one["group"], f"{one['people']:,}"])
        row.append(wording.number(Difference(one["gain"], one["low"], one["high"], 0)))
    first = gains.drop_duplicates("budget").set_index("budget").loc[shown]
    header = [f"{one.method} to {one.rival}, {budget}" for budget, one in first.iterrows()]
    entries = tuple(tuple(map(Entry, row)) for row in rows.values())
    caption = "the verdict's personal model beside the strongest rival."
    return Table("groups", caption, (), ("group", "people", *header), (entries,), 1)


def write(found: Sequence[Panel], folder: Path) -> str:
    """Write the table of a study into its ``folder``, and return its page, which lies beside it in
    ``docs/results/``."""
    study, about = found[0].study, found[0].study.about
    if len(found) > 1:
        gain_map.draw(found, folder / gain_map.FIGURE)
        table, figure = gain_map.table(found), gain_map.FIGURE
        answers, best_lines, rest = [gain_map.counted(found)], gain_map.matrix(found), []
    else:
        columns = lines(found[0])
        table, figure = pd.DataFrame(columns.values()), FIGURE
        answers = [*sentences.paying(found[0].verdicts)]
        best_lines, rest = markdown(best(found[0], columns)).strip(), [*said(found[0])]
    table.to_csv(folder / TABLE, index=False, lineterminator="\n")
    where, groups = f"{study.name}/{TABLE}", folder / GROUPS
    setting = f"{found[0].setting}. " * (len(found) == 1)
    parts = [
        f"# {about.title}",
        wording.escaped(" ".join(answers)),
        blocks.kept(folder.with_suffix(".md"), blocks.NOTE),
        f"![{study.name}]({study.name}/{figure})" * (folder / figure).is_file(),
        best_lines,
        "## Who gains" * bool(rest),
        numbered(rest),
        markdown(by_group(pd.read_csv(groups))).strip() if groups.is_file() else "",
        "## How it was made",
        f"By `make results`, but for the note. [How to read it](../results.md). {setting}"
        f"All methods and columns: [{TABLE}]({where}).",
        wording.escaped(about.description),
        wording.escaped(about.caption.removeprefix(about.title).lstrip(". ")),
        _measured(about.measured.values()),
        f"<!-- table: {where} -->",
        f"{about.runs}\n",
    ]
    return "\n\n".join(filter(None, parts))


def _measured(ways: Iterable[str]) -> str:
    """Return where methods were measured: a sentence for each machine."""
    sentences = dict.fromkeys(one for way in ways for one in re.split(r"(?<=\.) (?=M)", way))
    machines: dict[str, list[str]] = {}
    for sentence in sentences:
        machine, commit, runs = sentence.removesuffix(".").partition(", commit ")
        machines.setdefault(machine, []).append(f"{commit}{runs}")
    return " ".join(f"{one}{';'.join(told).replace(';,', ';')}." for one, told in machines.items())


def numbered(answers: Iterable[str]) -> str:
    """Return sentences as a list of Markdown."""
    return "\n".join(
        f"{number}. {wording.escaped(text)}"
        for number, text in enumerate(filter(None, answers), start=1)
    )


def _number(found: Mapping[Group, Difference], group: Group) -> str:
    return wording.number(found[group]) if group in found else "–"


def _megabytes(rows: pd.DataFrame, part: float = 1.0) -> str:
    total = over_seeds(rows["upload_bytes_per_round"] * rows["rounds"])
    return _three_digits(part * total / 1e6)


def _three_digits(value: float) -> str:
    # 1230 and not 1.23e+03.
    return f"{float(f'{value:.3g}'):g}"
