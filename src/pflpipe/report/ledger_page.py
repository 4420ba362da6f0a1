"""The ledger as a page: per method what is published, what is true, and what the sound variant
costs.

Its numbers come from the tidy tables and the audit's table, the words about departures from their
registry. An epsilon that a departure makes untrue never stands without the word nominal. Over the
seeds of a group the worst number counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe.audit.cases import of_methods
from pflpipe.audit.coupled import WIDEST
from pflpipe.cells import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.methods.base import About
from pflpipe.named import DEPARTURES, OF_CALIBRATION, WITHOUT_BOUND
from pflpipe.report import audits, comparison
from pflpipe.report.comparison import MAIN, WORK, Group, by, largest, of_claim, round_up
from pflpipe.report.templates import filled
from pflpipe.report.tidy import read
from pflpipe.study.settings import measurements

SETTING = (
    *("study", "dataset", "partition", "alpha", "classes_per_client", "clients"),
    *("sample_rate", "rounds", "model"),
)
AUDIT = (
    *("method", "departures", "trust", "claim", "sample_rate", "epsilon_claimed", "delta"),
    *("sensitivity", "spread", "epsilon_lower", "flagged"),
)
"""What is read of the audit's table (audit/report.py)."""
# fmt: off
_LEDGER = (
    ("σ", "noise_multiplier"), ("C", "clip_norm"), ("σ, central", "noise_multiplier_effective"),
    ("σ, a message", "noise_multiplier_message"), ("σ, weights", "noise_multiplier_weighted"),
    ("σ, group", "noise_multiplier_group"), ("γ of C", "clip_quantile"),
    ("σ, updates", "noise_multiplier_update"), ("ε asked for", "epsilon_target"),
    ("ε printed", "epsilon_nominal"), ("ε central", "epsilon_central"),
    ("at 1e-5", "epsilon_central_1e5"), ("ε replace-one", "epsilon_replace_one"),
    ("at 1e-5", "epsilon_replace_one_1e5"), ("ε messages", "epsilon_local"),
    ("at 1e-5", "epsilon_local_1e5"), ("ε messages, replace-one", "epsilon_local_replace_one"),
    ("at 1e-5", "epsilon_local_replace_one_1e5"), ("ε Rényi", "epsilon_rdp"),
    ("at 1e-5", "epsilon_rdp_1e5"),
    ("ε as published", "epsilon_published"), ("ε with search", "epsilon_with_search"),
)
# fmt: on


def write(tables: Sequence[Path], results: Path, template: Path, target: Path) -> None:
    """Write the page of these tidy tables (results/tables/<study>.csv), with the audits of their
    methods (``results/audits``).

    Raises:
        DataError: a table or an audit is missing, or a table lacks a column.
    """
    frame = pd.concat([read(path) for path in tables], ignore_index=True)
    write_text(target, page(frame, audited(frame, results), template))


def audited(frame: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return the audit's table of the methods of a tidy table, as they sample their clients."""
    drawn = bool((frame["sample_rate"] < 1).any())
    return audits.table(results, of_methods(set(frame["method"]), drawn))


def page(frame: pd.DataFrame, audited: pd.DataFrame, template: Path) -> str:
    """Return the HTML page of a tidy table and the audit's table."""
    return filled(template, **sections(frame, audited))


def sections(frame: pd.DataFrame, audited: pd.DataFrame) -> dict[str, Any]:
    """Return what the ledger's sections in the templates of the pages show."""
    verdicts = _verdicts(audited)
    private = frame[frame["claim"] != "none"]
    settings = private.groupby(list(SETTING), sort=False, dropna=False)
    return {
        "summary": list(summary(frame, audited)),
        "settings": [_setting(list(_groups(rows)), verdicts) for _, rows in settings],
        "columns": _LEDGER,
        "ledger": list(_groups(private)),
        "text": _text,
        "cost": _cost,
        "title": _title,
        "short": _short,
        "departures": DEPARTURES,
        "unbounded": WITHOUT_BOUND,
        "measurements": measurements(frame["dataset"]),
    }


def _groups(private: pd.DataFrame) -> Iterator[Group]:
    """Yield the groups of some rows in their order, labelled by variant and profile."""
    budgets = [
        f"ε = {asked:g}" if pd.notna(asked) else f"σ = {sigma:g}"
        for asked, sigma in private[["epsilon_target", "noise_multiplier"]].itertuples(index=False)
    ]
    keys = [*SETTING, "method", "variant", "profile", "departures", "delta", *WORK, "budget"]
    frame = private.assign(budget=budgets)
    for _, rows in frame.groupby(keys, sort=False, dropna=False):
        marks = dict.fromkeys(rows.iloc[0][["variant", "profile"]].dropna())
        yield Group(", ".join(map(str, filter(None, marks))), rows["budget"].iloc[0], rows)


# ---------------------------------------------------------------- in short


def summary(frame: pd.DataFrame, audited: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield what the ledger says in some ten lines, each a term and its words.

    Args:
        frame: a tidy table of any studies.
        audited: the audit's table, of which the methods of ``frame`` count.
    """
    yield "protected", "one client with all of its data, over all rounds, against the whole world"
    groups = list(_groups(frame[frame["claim"] != "none"]))
    certified, unreviewed, nominal = (of_claim(groups, claim) for claim in CLAIMS[:3])
    open_ = frame.loc[frame["claim"] == "none", "method"].nunique()
    yield (
        "compared",
        f"{_count(frame['method'].nunique(), 'method')} in "
        f"{_count(frame['study'].nunique(), 'study')}: "
        f"{_count(len(certified), 'line')} certified, "
        f"{f'{len(unreviewed)} unreviewed, ' if unreviewed else ''}{len(nominal)} nominal, "
        f"{_count(open_, 'method')} without privacy (a line is a method at a budget)",
    )
    if certified:
        yield "certified ε", _each_budget(certified)
    for term, column in (("single messages", "local"), ("replace-one", "replace_one")):
        values = [largest(group.rows[f"epsilon_{column}"]) for group in certified]
        known = [value for value in values if value is not None]
        if known:
            reach = dict.fromkeys(map(round_up, (min(known), max(known))))
            yield term, f"ε = {' to '.join(reach)} for the certified lines"
    if unreviewed:
        code = f"only if the code of {_methods(unreviewed)} keeps the rules"
        yield "unreviewed ε", f"{code}: {_each_budget(unreviewed)}"
    if nominal:
        yield "nominal ε", _each_method(nominal)
    unbounded = [group for group in groups if group.first("epsilon_published") == math.inf]
    if unbounded:
        yield "as published", f"no ε holds for {_methods(unbounded)}"
    yield "audit", _attacked(audited[audited["method"].isin(frame["method"])])
    costs = [
        (float(gap), f"{published.method}, {published.budget}")
        for members in by(groups, _method_and_setting).values()
        for published, sound in comparison.pairs(members)
        if published
        and sound
        and sound.claim == "certified"
        and (gap := comparison.over_seeds(_gaps(published, sound, MAIN))) > -math.inf
    ]
    if costs:
        ends = dict.fromkeys([min(costs), max(costs)])
        text = " to ".join(f"{gap:+.1f} ({name})".replace("-", "−") for gap, name in ends)
        yield "cost of soundness", f"{text} points of personal accuracy, certified less published"
    searched = largest(frame["epsilon_with_search"])
    if searched is not None:
        yield "with the search", f"ε is at most {round_up(searched)} if its runs are counted"
    yield (
        "not covered",
        "accuracies, losses and times, and how hyper-parameters were chosen",
    )


def _method_and_setting(group: Group) -> tuple[Any, ...]:
    return tuple(group.first(name) for name in (*SETTING, "method"))


def _methods(groups: Iterable[Group]) -> str:
    return ", ".join(sorted({group.method for group in groups}))


def _count(number: int, word: str) -> str:
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def _each_budget(groups: Iterable[Group]) -> str:
    """Return what holds for each budget that groups without departures were asked for."""
    budgets = by(groups, lambda group: f"{group.budget}, δ = {_short(group.first('delta'))}")
    parts = []
    for budget, members in budgets.items():
        rows = pd.concat([group.rows for group in members])
        holds, sharper = (
            round_up(largest(rows[f"epsilon_{name}"])) for name in ("central", "central_1e5")
        )
        parts.append(f"asked for {budget}: {holds} holds, {sharper} at δ = 1e-5")
    return "; ".join(parts)


def _each_method(groups: Iterable[Group]) -> str:
    """Return what is printed and what holds for each nominal method."""
    parts = []
    for name, members in by(groups, lambda group: f"{group.method} ({group.label})").items():
        worth = [
            f"{group.worst('epsilon_central')} where {_text(group, 'epsilon_nominal')} is said"
            for group in members
        ]
        parts.append(f"{name}: {', '.join(worth)}")
    return "; ".join(parts)


def _attacked(audited: pd.DataFrame) -> str:
    releases = audited.drop(columns="method").drop_duplicates(list(AUDIT[1:]))
    parts = []
    for claim in ("certified", "nominal"):
        flags = list(releases["flagged"][releases["claim"] == claim])
        if flags:
            parts.append(f"of {_count(len(flags), f'{claim} release')} {sum(flags)} refuted")
    return "; ".join(parts) or "no release attacked"


# ---------------------------------------------------------------- published against sound


def _setting(groups: Sequence[Group], verdicts: Mapping[Any, list[str]]) -> dict[str, Any]:
    """Return one data set and federation: methods that depart as published, and those that do
    not."""
    departing, others = [], []
    shared: dict[str, list[str]] = {}  # sentence -> methods, for those whose releases are alike
    for method, members in by(groups, lambda group: group.method).items():
        outside = About(title=method, paper="not a method of the package")
        about = registry.info(method).about if method in registry.NAMES else outside
        published = about.departures + about.paper_departures + about.official_departures
        if published or not all(group.claim in WITHOUT_DEPARTURES for group in members):
            departing.append(
                {
                    "method": method,
                    "about": about,
                    "departures": published,
                    "audits": {
                        word: verdicts.get((method, frozenset(names) - OF_CALIBRATION), [])
                        for word, names in (("published", published), ("sound", ()))
                    },
                    "pairs": list(comparison.pairs(members)),
                }
            )
        else:
            others += members
            for sentence in verdicts.get((method, frozenset()), ["none"]):
                shared.setdefault(sentence, []).append(method)
    return {"departing": departing, "others": others, "audits": shared, "first": groups[0]}


def _title(group: Group) -> str:
    row = group.rows.iloc[0]
    details = {"alpha": " (α = {:g})", "classes_per_client": " ({:g} classes per client)"}
    detail = "".join(
        words.format(row[name]) for name, words in details.items() if pd.notna(row[name])
    )
    return (
        f"{row['dataset']}, {row['partition']} partition{detail}; {row['clients']:g} clients, "
        f"sampling rate {row['sample_rate']:g}, {row['rounds']:g} rounds, {row['model']}"
    )


def _gaps(published: Group, sound: Group, metric: str) -> list[float]:
    """Return sound minus published at the seeds that both have, in percentage points."""
    return comparison.finite(sound.values(metric) - published.values(metric))


def _cost(published: Group | None, sound: Group | None, metric: str) -> str:
    """Return the mean and standard deviation of ``_gaps``."""
    if published is None or sound is None:
        return "not run"
    gaps = _gaps(published, sound, metric)
    text = comparison.mean_text(gaps, max(len(published.rows), len(sound.rows)))
    return f"+{text}" if gaps and sum(gaps) > 0 else text.replace("-", "−")


def _verdicts(audited: pd.DataFrame) -> dict[Any, list[str]]:
    """Return (method, departures of its release) -> what the attacks on that release showed, one
    sentence for each trust. How the noise was calibrated, no attack on a release can see."""
    sentences: dict[Any, list[str]] = {}
    for row in audited.to_dict("records"):
        seen = {"central": "Noisy sums", "local": "Single messages"}[row["trust"]]
        if row["sample_rate"] < 1:
            seen += f" of clients drawn at rate {row['sample_rate']:g}"
        nominal = " (nominal)" * (row["claim"] == "nominal")
        claimed = f"ε = {row['epsilon_claimed']:.3g}{nominal} at δ = {row['delta']:g}"
        moved = f"{row['sensitivity']:.3g} times as far as"
        if row["sensitivity"] == math.inf:
            moved = "infinitely farther than"
        noise = ", and the noise follows private data" if row["spread"] > WIDEST else ""
        lower = float(row["epsilon_lower"])
        bound = f"ε ≥ {_plain(comparison.round_down(lower))}"
        shown = "no finite ε" if lower == math.inf else bound
        sentence = (
            f"{seen}: {claimed} {'REFUTED' if row['flagged'] else 'not refuted'}; one client moves "
            f"a release {moved} that covers{noise}; {shown} shown"
        )
        names = [] if pd.isna(row["departures"]) else str(row["departures"]).split("+")
        key = row["method"], frozenset(filter(None, names)) - OF_CALIBRATION
        sentences.setdefault(key, []).append(sentence)
    return sentences


def _text(group: Group, name: str) -> str:
    """Return a number of the ledger, the worst over the seeds; a nominal epsilon with its mark."""
    values = group.rows[name].dropna().astype(float)
    if values.empty:
        return "–"
    if name.startswith("noise_multiplier"):
        return _plain(comparison.round_down(values.min()))
    worst = values.max()
    if name in ("clip_norm", "clip_quantile"):
        return f"{worst:g}"
    if name in ("epsilon_target", "epsilon_nominal"):
        return f"{worst:g}" + " (nominal)" * (group.claim not in WITHOUT_DEPARTURES)
    runs = group.first("search_runs") if name == "epsilon_with_search" else None
    return _plain(round_up(worst)) + ("" if runs is None else f" ({runs:g} runs)")


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _plain(text: str) -> str:
    """Return a number without a power of ten, up to a million."""
    return f"{float(text):.0f}" if text[-4:] in ("e+03", "e+04", "e+05") else text
