"""The summary of a study for people: mean and standard deviation over seeds.

It keeps four promises: a nominal epsilon never stands without its mark and the honest one beside
it, a diverged run is marked with its round, bold type is what the seeds support (statistics.py)
among rows of the same budget and the same claim, and the caption says which numbers no epsilon
covers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pflpipe.cells import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.report.statistics import MIN_SEEDS, by_seed, contest
from pflpipe.report.typeset import Entry, Table
from pflpipe.study.metrics import ACCURACY, ALWAYS, Column, columns
from pflpipe.study.outline import Study
from pflpipe.study.settings import (
    CHOSEN_ON_VALIDATION,
    MEASURED,
    NO_PRIVACY,
    Layout,
    Setting,
    is_usual,
    layout,
    phrase,
)

METRICS = columns(ALWAYS)
"""The columns of accuracy; those of a study's other metrics are in ``Study.columns``."""
_CLAIMS = {
    "unreviewed": (
        "Unreviewed: the mechanism is certified, but the method's code is not pflpipe's own and "
        "not reviewed by pflpipe's developers (docs/adding_a_method.md)."
    ),
    "nominal": (
        "Nominal: the number the paper would print for a mechanism with departures that break it; "
        "the honest ε is what that mechanism provides."
    ),
}
"""What a reader must know of rows whose epsilon is not simply certified."""
BOLD_WORDS = (
    "not distinguishable from the best: with 95 % confidence the line that is truly best is among "
    "those in bold (paired differences over seeds); with fewer than "
    f"{MIN_SEEDS} seeds nothing is bold"
)


@dataclass(frozen=True)
class _Line:
    setting: Setting
    rows: pd.DataFrame

    def values(self, metric: str) -> list[float]:
        return finite(self.rows[metric])

    def mean(self, metric: str) -> float:
        return over_seeds(self.rows[metric])

    @property
    def claim(self) -> str:
        return str(self.rows["claim"].iloc[0])


def summarise(study: Study, frame: pd.DataFrame, warnings: Iterable[str] = ()) -> Table:
    """Return the summary over seeds of the frame that ``tidy`` made of the same study.

    Args:
        warnings: sentences of the plans' ledgers, printed among the notes.
    """
    plan = layout(study)
    lines = [_Line(setting, frame.iloc[list(setting.indices)]) for setting in plan.settings]
    metrics = {
        name: column
        for name, column in study.columns.items()
        if any(line.values(name) for line in lines)
    }
    facets = list(plan.settings[0].facet)
    paper = sorted({str(value) for value in frame["paper_metric"].dropna()})
    header = ["method", *facets, "claim", "ε (central)"]
    for name, column in metrics.items():
        header += [column.heading] + (["paper"] if paper == [name] else [])
    inline_paper = "paper" in header
    header += ["n"] + (["paper"] if paper and not inline_paper else [])

    sections: dict[Any, list[_Line]] = {}
    for line in lines:
        sections.setdefault(
            (tuple(line.setting.facet.values()), line.setting.budget, line.claim), []
        ).append(line)
    order = {facet: index for index, facet in enumerate(dict.fromkeys(key[0] for key in sections))}
    built = []
    for _, members in sorted(
        sections.items(), key=lambda item: (order[item[0][0]], _rank(item[1][0]))
    ):
        members.sort(key=lambda line: (-line.mean("personal_own"), line.setting.label))
        best = {name: _best(members, name, column) for name, column in metrics.items()}
        built.append(
            tuple(
                _entries(
                    line,
                    metrics,
                    {metric for metric in metrics if index in best[metric]},
                    paper,
                    inline_paper,
                )
                for index, line in enumerate(members)
            )
        )
    searched = tuple(_searches(study, plan))
    notes = (*searched, *_notes(plan, lines, warnings, searched=bool(searched)))
    return Table(
        study.name,
        caption(study, frame),
        notes,
        tuple(header),
        tuple(built),
        labels=3 + len(facets),
    )


def _rank(line: _Line) -> tuple[Any, ...]:
    # No privacy first, as the reference; then budgets upwards; certified before nominal.
    kind, _, value = line.setting.budget.partition(" = ")
    return kind != NO_PRIVACY, kind, float(value) if value else 0.0, CLAIMS.index(line.claim)


def _best(members: Sequence[_Line], name: str, column: Column) -> Collection[int]:
    # Positions of the members that may be the best; nothing to win alone.
    values = by_seed([(i, line.rows) for i, line in enumerate(members)], name)
    found = contest(column.metric.sign * values)
    return found.kept if found else ()


def _entries(
    line: _Line,
    metrics: Mapping[str, Column],
    best: Collection[str],
    paper: list[str],
    inline_paper: bool,
) -> tuple[Entry, ...]:
    diverged = sorted({int(value) for value in line.rows["diverged_round"] if pd.notna(value)})
    dagger = f" †{','.join(map(str, diverged))}" if diverged else ""
    entries = [
        Entry(line.setting.label + dagger),
        *map(Entry, line.setting.facet.values()),
        Entry(line.claim),
    ]
    entries.append(Entry(epsilon_text(line.rows)))
    values = [float(value) for value in line.rows["paper_value"] if pd.notna(value)]
    printed = f"{values[0]:g}" if values else ""
    for name, column in metrics.items():
        text = mean_text(line.values(name), len(line.rows), column.metric.digits)
        entries.append(Entry(text, name in best))
        if paper == [name]:
            entries.append(Entry(printed))
    entries.append(Entry(str(len(line.rows))))
    if paper and not inline_paper:
        entries.append(
            Entry(
                f"{printed} ({METRICS[str(line.rows['paper_metric'].iloc[0])].heading})"
                if printed
                else ""
            )
        )
    return tuple(entries)


def finite(values: Iterable[Any]) -> list[float]:
    """Return the values that exist and are finite."""
    return [float(value) for value in values if pd.notna(value) and math.isfinite(value)]


def over_seeds(values: Iterable[Any]) -> float:
    """Return the mean of the values that exist and are finite; minus infinity, below all others,
    where there is none."""
    numbers = finite(values)
    return sum(numbers) / len(numbers) if numbers else -math.inf


def mean_text(values: Sequence[float], seeds: int, digits: int = 1) -> str:
    """Return ``81.2 ± 0.4``; no deviation for one value; ``(2 of 3)`` behind it when only 2 of 3
    seeds have a value."""
    if not values:
        return "–"
    mean = over_seeds(values)
    text = f"{mean:.{digits}f}"
    if len(values) > 1:
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        text += f" ± {math.sqrt(variance):.{digits}f}"
    return text if len(values) == seeds else f"{text} ({len(values)} of {seeds})"


def epsilon_text(rows: pd.DataFrame) -> str:
    """Return the privacy of one setting in words; the honest epsilon is the largest over its seeds.

    ``2`` for a certified or an unreviewed one, ``2 (nominal; honest 40.5 at δ=0.001)`` for a
    nominal one; where no privacy was asked ``∞`` or, if nothing is ever sent, ``–``.
    """
    claim, honest = rows["claim"].iloc[0], largest(rows["epsilon_central"])
    if claim == "none":
        return "∞" if rows["upload_bytes_per_round"].any() else "–"
    if claim in WITHOUT_DEPARTURES:
        return round_up(honest)
    delta = rows["delta"].iloc[0]
    at = f" at δ={delta:g}" if pd.notna(delta) else ""
    nominal = largest(rows["epsilon_nominal"])
    return (
        f"{round_up(nominal) if nominal is not None else '–'} (nominal; honest "
        f"{round_up(honest)}{at})"
    )


def explained(claims: Iterable[str]) -> Iterator[str]:
    """Yield what a reader must know of each of these claims, once."""
    known = set(claims)
    yield from (words for claim, words in _CLAIMS.items() if claim in known)


def round_up(epsilon: float | None) -> str:
    """Return an epsilon with three significant digits, never smaller than it is (beyond a rounding
    error of 1e-6)."""
    if epsilon is None:
        return "unknown"
    if math.isinf(epsilon):
        return "∞"
    if epsilon <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / step * (1 - 1e-6)) * step:.3g}"


def largest(values: Iterable[Any]) -> float | None:
    """Return the largest of the values that exist, or None."""
    return max((float(value) for value in values if pd.notna(value)), default=None)


def caption(study: Study, frame: pd.DataFrame) -> str:
    """Return what all rows share, and what the numbers are.

    Args:
        frame: the columns ``claim`` and ``adjacency`` of the study's rows.
    """
    plan = layout(study)
    words = [
        phrase(path, value) for path, value in plan.shared.items() if not is_usual(path, value)
    ]
    title = study.title if study.title.endswith("?") else f"{study.title.rstrip('.')}."
    sentence = f"{title} Shared by all rows: {', '.join(words)}."
    if set(frame["claim"]) != {"none"}:
        adjacency = sorted({str(value).replace("_", "-") for value in frame["adjacency"].dropna()})
        sentence += (
            f" Privacy of whole clients: adjacency {', '.join(adjacency)}, trust central (the "
            "server sees noisy sums only)."
        )
    others = [metric for name, metric in study.metrics.items() if name != ACCURACY]
    measured = ["Accuracy in percent", *(metric.described for metric in others)]
    sentence += (
        f" {', '.join(measured)} after the last round, mean ± standard deviation over n seeds."
    )
    return f"{sentence} {not_covered(study)}"


def not_covered(study: Study, measured: str = MEASURED) -> str:
    """Return what a caption says of the numbers that it stands at and, after a search, of how the
    settings were chosen."""
    return (
        f"{measured} {CHOSEN_ON_VALIDATION}" if any(row.chosen for row in study.rows) else measured
    )


def _guarantees(claim: str, lines: Iterable[_Line]) -> Iterator[str]:
    guarantees: dict[tuple[str, str], list[Setting]] = {}
    for line in sorted((line for line in lines if line.claim == claim), key=_rank):
        row = line.rows.iloc[0]
        central, sharper, local = (
            round_up(row[f"epsilon_{name}"]) for name in ("central", "central_1e5", "local")
        )
        text = (
            f"noise multiplier {row['noise_multiplier']:.4g}; ε = {central} at δ = "
            f"{row['delta']:g}, {sharper} at δ = 1e-05; {local} if the server sees single messages "
            "(local trust)."
        )
        guarantees.setdefault((line.setting.budget, text), []).append(line.setting)
    for (budget, text), settings in guarantees.items():
        rivals = [
            others
            for (other, _), others in guarantees.items()
            if other == budget and others is not settings
        ]
        where = "; ".join(sorted({setting.facet_text for setting in settings}))
        if any(
            {setting.facet_text for setting in others}
            & {setting.facet_text for setting in settings}
            for others in rivals
        ):
            where = ", ".join(
                dict.fromkeys(setting.label for setting in settings)
            )  # methods of other mechanisms
        yield f"{claim.capitalize()} {budget}{f' ({where})' if rivals else ''}: {text}"


def _searches(study: Study, plan: Layout) -> Iterator[str]:
    """Yield what a search chose, and what looking for it costs; nothing for a study without one."""
    chosen: dict[str, list[str]] = {}
    efforts: dict[str, dict[str, None]] = {}
    for setting in plan.settings:
        choice = study.rows[setting.indices[0]].chosen
        if choice is None:
            continue
        where = ", ".join(
            filter(
                None, [setting.budget if setting.budget != NO_PRIVACY else "", setting.facet_text]
            )
        )
        chosen.setdefault(setting.label, []).append(
            f"{setting.choice} ({where})" if where else setting.choice
        )
        efforts.setdefault(f"among {choice.sets} settings by {choice.runs} runs", {})[
            setting.label
        ] = None
    for label, words in chosen.items():
        yield f"{label}: chosen by the search: {'; '.join(words)}."
    for effort, labels in efforts.items():
        cost = _cost(study, plan, labels)
        yield (
            f"{', '.join(labels)}: chosen {effort} on validation data of other splits of these "
            f"examples{cost}."
        )


def _cost(study: Study, plan: Layout, labels: Collection[str]) -> str:
    """Return what the privacy of lines that were searched with as many runs each comes to when
    these runs are counted."""
    settings = [setting for setting in plan.settings if setting.label in labels]
    choices = [choice for setting in settings if (choice := study.rows[setting.indices[0]].chosen)]
    pairs = {
        f"{round_up(choice.epsilon_with_search)} instead of {round_up(choice.epsilon)} (δ = "
        f"{choice.delta:g})": None
        for choice in choices
        if choice.epsilon_with_search is not None
    }
    if not pairs:
        return ""
    return (
        f"; counting the releases of those {choices[0].runs} runs with the final one's, as if of "
        f"the same clients, ε is {', '.join(pairs)}"
    )


def _notes(
    plan: Layout, lines: list[_Line], warnings: Iterable[str], *, searched: bool
) -> Iterator[str]:
    for claim in WITHOUT_DEPARTURES:
        yield from _guarantees(claim, lines)
    yield from explained(line.claim for line in lines)
    yield from (f"Warning: {warning}." for warning in warnings)
    silent = {
        line.setting.label
        for line in lines
        if line.claim == "none" and not line.rows["upload_bytes_per_round"].any()
    }
    if silent:
        yield f"Sends nothing, so it leaks nothing: {', '.join(sorted(silent))}."
    if any(line.claim != "none" for line in lines):
        yield (
            "Every ε covers what is released: the noisy sums of what the clients send, and the "
            "models made of them. Personal models stay with their clients (joint DP)."
        )
        if not searched:  # else the caption says it
            yield "The choice of hyper-parameters is not accounted for."
    for words in dict.fromkeys(plan.per_method.values()):
        names = [name for name, its in plan.per_method.items() if its == words]
        yield f"{', '.join(names)}: {words}."
    yield f"Bold, among rows of the same budget and claim: {BOLD_WORDS}."
    diverged = [
        f"{line.setting.label} ({line.setting.budget}) seed {row['seed']} in round "
        f"{int(row['diverged_round'])} ({row['nonfinite_uploads']} uploads not finite)"
        for line in lines
        for _, row in line.rows.iterrows()
        if pd.notna(row["diverged_round"])
    ]
    if diverged:
        yield (
            f"† diverged: {'; '.join(diverged)}. Such an upload counts as zero, an answer that is "
            "not finite as wrong."
        )
