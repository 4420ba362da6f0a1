"""The summary of a study for people: mean and standard deviation over seeds.

Four promises: a nominal epsilon always has its mark and the honest epsilon next to it; a diverged
run is marked with its round; a number is bold if it may be the best (statistics.py) among rows of
the same budget and claim; the caption states which numbers no epsilon covers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import pandas as pd

from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.errors import counted
from pflpipe.report import comparison
from pflpipe.report.comparison import BOLD_WORDS, MAIN, METRICS, Group, epsilon_text, finite
from pflpipe.report.render_table import Entry, Table
from pflpipe.report.sentences import capitalised
from pflpipe.study import settings
from pflpipe.study.metric_columns import MetricColumn
from pflpipe.study.settings import NO_PRIVACY, Setting, layout, round_up
from pflpipe.study.study_spec import Chosen, Study

Column = tuple[str, Callable[[Group], str]]
"""Heading, and a function from a group to the text below it."""


def summarise(
    study: Study,
    frame: pd.DataFrame,
    warnings: Iterable[str] = (),
    names: Iterable[str] | None = None,
) -> Table:
    """Return the summary over seeds of a study's tidy table.

    Args:
        warnings: of the plans' ledgers, printed among the notes.
        names: columns of metrics, in order; by default all of the study.
    """
    groups = comparison.groups(study, frame)
    metrics = {
        name: study.columns[name]
        for name in (study.columns if names is None else names)
        if any(finite(group.rows[name]) for group in groups)
    }
    # All groups of a study have the same facets.
    printed = set(frame["paper_metric"].dropna())
    columns = list(_columns(groups[0].facet, metrics, printed, study.best_round))
    sections = []
    for section in comparison.sections(groups):
        best = {
            column.heading: comparison.best(section, name, column.metric.sign)
            for name, column in metrics.items()
        }
        sections.append(
            tuple(
                tuple(Entry(text(group), group in best.get(name, ())) for name, text in columns)
                for group in section
            )
        )
    searched = tuple(_searches(study, layout(study).settings))
    return Table(
        name=study.name,
        caption=caption(study, frame),
        notes=(*searched, *_notes(study, groups, warnings, searched=bool(searched))),
        header=tuple(heading for heading, _ in columns),
        sections=tuple(sections),
        labels=3 + len(groups[0].facet),
    )


def _columns(
    facets: Iterable[str], metrics: Mapping[str, MetricColumn], printed: set[str], best_round: str
) -> Iterator[Column]:
    # Printed numbers stand next to ours if they are of one metric, else in the last column.
    yield "method", lambda group: group.label + dagger(group)
    for name in facets:
        yield name, partial(lambda name, group: group.facet[name], name)
    yield "claim", lambda group: group.claim
    yield "ε (central)", epsilon_text
    for name, column in metrics.items():
        yield column.heading, partial(Group.text, column=name, digits=column.metric.digits)
        if name == best_round:
            yield comparison.BEST_ROUND_WORDS, partial(comparison.best_round_text, metric=name)
        if printed == {name}:
            yield "paper", _printed
    yield "n", lambda group: str(len(group.rows))
    if printed and not (len(printed) == 1 and printed <= {*metrics}):
        yield "paper", lambda group: _printed(group) and f"{_printed(group)} ({_metric(group)})"


def dagger(group: Group) -> str:
    """Return the mark of a group with diverged seeds, followed by their rounds; else nothing."""
    return f" †{','.join(map(str, group.diverged))}" if group.diverged else ""


def _printed(group: Group) -> str:
    values = finite(group.rows["paper_value"])
    return f"{values[0]:g}" if values else ""


def _metric(group: Group) -> str:
    return METRICS[group.first("paper_metric")].heading


def caption(study: Study, frame: pd.DataFrame) -> str:
    """Return the caption: what all rows share, and what the numbers are.

    Args:
        frame: the columns ``claim`` and ``adjacency`` of the study's rows, and those of
            ``comparison.protected``.
    """
    shared = layout(study).shared.items()
    conditions = [settings.phrase(*item) for item in shared if not settings.is_usual(*item)]
    title = study.title if study.title.endswith("?") else f"{study.title.rstrip('.')}."
    sentence = f"{title} Shared by all rows: {', '.join(conditions)}."
    if set(frame["claim"]) != {"none"}:
        adjacency = sorted({str(value).replace("_", "-") for value in frame["adjacency"].dropna()})
        sentence += (
            f" Privacy of whole clients: adjacency {', '.join(adjacency)}, trust central (the "
            "server sees noisy sums only)."
        )
        sentence += "".join(f" {text}" for text in comparison.protected(frame))
    shown = capitalised(", ".join(metric.described for metric in study.metrics.values()))
    places = "own: a client's own test rows; common: those of all; global: the released model"
    sentence += f" {shown} after the last round ({places}), mean ± standard deviation over n seeds."
    return f"{sentence} {not_covered(study)}"


def not_covered(study: Study) -> str:
    """Return the part of a caption about privacy: no epsilon covers the measured numbers nor, after
    a search, the choice of the settings."""
    text = settings.measured(study.datasets)
    if any(row.chosen for row in study.rows):
        text += f" {settings.CHOSEN_ON_VALIDATION}"
    return text


def _guarantees(claim: str, groups: Iterable[Group]) -> Iterator[str]:
    """Yield the privacy that each budget of a claim provides, by mechanism or panel if it
    differs."""
    ordered = sorted(comparison.of_claim(groups, claim), key=lambda group: group.order)
    for budget, members in comparison.by_budget(ordered).items():
        texts = comparison.by(members, _guarantee)
        for text, alike in texts.items():
            places = {group.facet_text for group in alike}
            others = {group.facet_text for group in members if group not in alike}
            labels = dict.fromkeys(group.label for group in alike)
            # In one panel, different mechanisms differ; else the panels do.
            where = ", ".join(labels) if places & others else "; ".join(sorted(places))
            yield f"{claim.capitalize()} {budget}{f' ({where})' * (len(texts) > 1)}: {text}"


def _guarantee(group: Group) -> str:
    central, sharper, local = (
        round_up(group.first(f"epsilon_{name}")) for name in ("central", "central_1e5", "local")
    )
    return (
        f"noise multiplier {group.first('noise_multiplier'):.4g}; ε = {central} at δ = "
        f"{group.first('delta'):g}, {sharper} at δ = 1e-05; {local} if the server sees single "
        "messages (local trust)."
    )


def _searches(study: Study, tried: Iterable[Setting]) -> Iterator[str]:
    """Yield what a search chose and what it costs in privacy; nothing without a search."""
    chosen: dict[str, list[str]] = {}
    efforts: dict[str, list[tuple[str, Chosen]]] = {}
    for setting in tried:
        if choice := study.rows[setting.indices[0]].chosen:
            budget = "" if setting.budget == NO_PRIVACY else setting.budget
            where = ", ".join(filter(None, [budget, setting.facet_text]))
            text = f"{setting.choice} ({where})" if where else setting.choice
            chosen.setdefault(setting.label, []).append(text)
            tries = "a private search" if choice.runs is None else counted(choice.runs, "run")
            effort = f"among {choice.sets} settings by {tries}"
            efforts.setdefault(effort, []).append((setting.label, choice))
    for label, choices in chosen.items():
        yield f"{label}: chosen by the search: {'; '.join(choices)}."
    for effort, attempts in efforts.items():
        labels = ", ".join(dict.fromkeys(label for label, _ in attempts))
        cost = _cost([choice for _, choice in attempts])
        where = "on validation data of other splits of these examples"
        yield f"{labels}: chosen {effort} {where}{cost}."


def _cost(choices: Sequence[Chosen]) -> str:
    """Return the epsilons of searches, all with the same number of runs, if these runs count, or
    why none counts them."""
    pairs = dict.fromkeys(
        f"{round_up(choice.epsilon_with_search)} instead of {round_up(choice.epsilon)} (δ = "
        f"{choice.delta:g})"
        for choice in choices
        if choice.epsilon_with_search is not None
    )
    if not pairs:
        reasons = dict.fromkeys(filter(None, (choice.search_not_counted for choice in choices)))
        return "".join(f"; no ε counts that search as well: {reason}" for reason in reasons)
    runs = choices[0].runs
    those = "that search" if runs is None else f"the releases of those {counted(runs, 'run')}"
    return f"; counting {those} with the final one's, of the same clients, ε is {', '.join(pairs)}"


def _over_whom(groups: Iterable[Group]) -> Iterator[str]:
    """Yield over how many clients own test rows are averaged, unless it is over all."""
    parts: dict[str, None] = {}
    for counts, clients in (
        (json.loads(row["clients_evaluated"] or "{}"), row["clients"])
        for group in groups
        for _, row in group.rows.iterrows()
    ):
        if MAIN in counts and counts[MAIN] < clients:
            new = counts.get("personal_new", 0)
            others = f" and {new} new ones" if new else ""
            parts[f"{counts[MAIN]} of {clients} clients{others}"] = None
    if parts:
        yield (
            f"Means over own test rows are over {', '.join(parts)}: those who have such "
            "rows. A client without training rows counts as new."
        )


def _notes(
    study: Study, groups: Sequence[Group], warnings: Iterable[str], *, searched: bool
) -> Iterator[str]:
    for claim in WITHOUT_DEPARTURES:
        yield from _guarantees(claim, groups)
    yield from comparison.claim_notes(groups)
    yield from comparison.code_notes(groups)
    yield from (f"Warning: {warning}." for warning in warnings)
    silent = {group.label for group in comparison.of_claim(groups, "none") if not group.sends}
    if silent:
        yield f"Sends nothing, so it leaks nothing: {', '.join(sorted(silent))}."
    if any(group.claim != "none" for group in groups):
        yield (
            "Every ε covers what is released: the noisy sums of what the clients send, and the "
            "models made of them. Personal models stay with their clients (joint DP)."
        )
        if not searched:  # else the caption has it
            yield "The choice of hyper-parameters is not accounted for."
    per_method = layout(study).per_method
    for text in dict.fromkeys(per_method.values()):
        yield f"{', '.join(name for name, its in per_method.items() if its == text)}: {text}."
    yield from _over_whom(groups)
    yield f"Bold, among rows of the same budget and claim: {BOLD_WORDS}."
    diverged = [
        f"{group.label} ({group.budget}) seed {row['seed']} in round {int(row['diverged_round'])} "
        f"({row['nonfinite_uploads']} uploads not finite)"
        for group in groups
        for _, row in group.rows[group.rows["diverged_round"].notna()].iterrows()
    ]
    if diverged:
        yield (
            f"† diverged: {'; '.join(diverged)}. Such an upload counts as zero, an answer that is "
            "not finite as wrong."
        )
