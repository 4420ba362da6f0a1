"""The ledger as a page: for each method the published epsilon, the one that holds, and the cost of
the certified version.

Numbers come from the tidy tables and the audit's table, texts about departures from
facts/departures.py. A nominal epsilon is always marked as such. Of the seeds of a group, the
worst number counts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pflpipe.auditing.cases import of_methods
from pflpipe.auditing.evidence import WIDEST
from pflpipe.code.dependencies import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.errors import counted
from pflpipe.facts.departures import DEPARTURES, OF_CALIBRATION, WITHOUT_BOUND
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.methods.about import About
from pflpipe.report import audit_table, comparison
from pflpipe.report.comparison import MAIN, WORK, Group, by, largest, of_claim
from pflpipe.report.templates import filled
from pflpipe.report.tidy import read
from pflpipe.study.settings import measurements, round_down, round_up

SETTING = (
    *("study", "dataset", "partition", "alpha", "classes_per_client", "clients"),
    *("sample_rate", "rounds", "model"),
)
AUDIT = (
    *("method", "departures", "trust", "claim", "sample_rate", "epsilon_claimed", "delta"),
    *("sensitivity", "spread", "epsilon_lower", "flagged"),
)
"""The columns that are read from the audit's table."""


def write(tables: Sequence[Path], results: Path, template: Path, target: Path) -> None:
    """Write the page of tidy tables (results/tables/<study>.csv) with the audits of their methods
    (``results/audits``).

    Raises:
        DataError: a table or an audit is missing, or a table lacks a column.
    """
    frame = pd.concat([read(path) for path in tables], ignore_index=True)
    write_text(target, page(frame, audited(frame, results), template))


def audited(frame: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return the audit's table of a tidy table's methods, with or without sampling of clients."""
    drawn = bool((frame["sample_rate"] < 1).any())
    return audit_table.table(results, of_methods(set(frame["method"]), drawn))


def page(frame: pd.DataFrame, audited: pd.DataFrame, template: Path) -> str:
    """Return the HTML page of a tidy table and the audit's table."""
    return filled(template, **sections(frame, audited))


def sections(frame: pd.DataFrame, audited: pd.DataFrame) -> dict[str, Any]:
    """Return the values for the ledger's sections in the templates of the pages."""
    verdicts = _verdicts(audited)
    private = frame[frame["claim"] != "none"]
    settings = private.groupby(list(SETTING), sort=False, dropna=False)
    return {
        "summary": list(summary(frame, audited)),
        "settings": [_setting(list(_groups(rows)), verdicts) for _, rows in settings],
        "ledger": list(_groups(private)),
        "text": _text,
        "cost": _cost,
        "short": _short,
        "units": " ".join(comparison.protected(frame)),
        "persons": "epsilon_person" in frame,
        "departures": DEPARTURES,
        "unbounded": WITHOUT_BOUND,
        "measurements": measurements(frame["dataset"]),
        "metrics": {Group("", "", of).metric.described for _, of in frame.groupby("study")},
    }


def _groups(private: pd.DataFrame) -> Iterator[Group]:
    """Yield the groups of rows in their order, labelled by variant and profile."""
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
    """Yield the ledger's summary, pairs of a term and its text.

    Args:
        frame: a tidy table of any studies.
        audited: the audit's table; rows of other methods do not count.
    """
    unit = "one client with all of its data, over all rounds, against the whole world"
    yield "protected", ". ".join([unit, *comparison.protected(frame)])
    groups = list(_groups(frame[frame["claim"] != "none"]))
    certified, unreviewed, nominal = (of_claim(groups, claim) for claim in CLAIMS[:3])
    open_ = frame.loc[frame["claim"] == "none", "method"].nunique()
    yield (
        "compared",
        f"{counted(frame['method'].nunique(), 'method')} in "
        f"{counted(frame['study'].nunique(), 'study')}: "
        f"{counted(len(certified), 'line')} certified, "
        f"{f'{len(unreviewed)} unreviewed, ' if unreviewed else ''}{len(nominal)} nominal, "
        f"{counted(open_, 'method')} without privacy (a line is a method at a budget)",
    )
    if unreviewed:
        code = {str(group.first("unreviewed_code")) for group in unreviewed}
        rule = "holds only if this code keeps the rules"
        yield "unreviewed ε", f"{rule}: {'; '.join(sorted(code))}"
    if nominal:
        worth = {
            f"{group.method} ({group.label}) {group.worst('epsilon_central')} in place of "
            f"{_text(group, 'epsilon_nominal')}": None
            for group in nominal
        }
        yield "nominal ε", "; ".join(worth)
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
        and sound.metric.unit == "%"
        and (gap := comparison.over_seeds(_gaps(published, sound, MAIN))) > -math.inf
    ]
    if costs:
        ends = dict.fromkeys([min(costs), max(costs)])
        text = " to ".join(f"{gap:+.1f} ({name})".replace("-", "−") for gap, name in ends)
        yield "cost of soundness", f"{text} points of personal accuracy, certified less published"
    searched = largest(frame["epsilon_with_search"])
    if searched is not None:
        yield "with the search", f"ε is at most {round_up(searched)} if its runs are counted"
    for reason, members in by(groups, lambda group: group.first("search_not_counted")).items():
        if reason:
            yield "with the search", f"no ε counts that of {_methods(members)}: {reason}"
    yield (
        "not covered",
        "measured values (metrics, losses, times), and how hyper-parameters were chosen",
    )


def _method_and_setting(group: Group) -> tuple[Any, ...]:
    return tuple(group.first(name) for name in (*SETTING, "method"))


def _methods(groups: Iterable[Group]) -> str:
    return ", ".join(sorted({group.method for group in groups}))


def _attacked(audited: pd.DataFrame) -> str:
    releases = audited.drop(columns="method").drop_duplicates(list(AUDIT[1:]))
    parts = []
    for claim in ("certified", "nominal"):
        flags = list(releases["flagged"][releases["claim"] == claim])
        if flags:
            parts.append(f"of {counted(len(flags), f'{claim} release')} {sum(flags)} refuted")
    return "; ".join(parts) or "no release attacked"


# ---------------------------------------------------------------- published and sound versions


def _setting(groups: Sequence[Group], verdicts: Mapping[Any, list[str]]) -> dict[str, Any]:
    """Return the methods of one data set and federation: those whose published version departs from
    the certified mechanism, and the others."""
    departing, others = [], []
    shared: dict[str, list[str]] = {}  # sentence -> the methods that share a release
    for method, members in by(groups, lambda group: group.method).items():
        outside = About(title=method, paper="not a method of the package")
        # A method from outside the package is known by its name alone.
        about = registry.info(method).about if method in registry.NAMES else outside
        published = about.departures + about.paper_departures + about.official_departures
        if published or not all(group.claim in WITHOUT_DEPARTURES for group in members):
            audits = {
                version: verdicts.get((method, frozenset(steps) - OF_CALIBRATION), [])
                for version, steps in (("published", published), ("sound", ()))
            }
            entry = {"method": method, "about": about, "departures": published, "audits": audits}
            departing.append(entry | {"pairs": list(comparison.pairs(members))})
        else:
            others += members
            for sentence in verdicts.get((method, frozenset()), ["none"]):
                shared.setdefault(sentence, []).append(method)
    return {"departing": departing, "others": others, "audits": shared, "first": groups[0]}


def _gaps(published: Group, sound: Group, metric: str) -> list[float]:
    """Return sound minus published at the seeds that both have, in the metric's unit."""
    return comparison.finite(sound.values(metric) - published.values(metric))


def _cost(published: Group | None, sound: Group | None, metric: str) -> str:
    """Return the mean and standard deviation of ``_gaps``."""
    if published is None or sound is None:
        return "not run"
    gaps = _gaps(published, sound, metric)
    text = comparison.mean_text(
        gaps, max(len(published.rows), len(sound.rows)), sound.metric.digits
    )
    return f"+{text}" if gaps and sum(gaps) > 0 else text.replace("-", "−")


def _verdicts(audited: pd.DataFrame) -> dict[Any, list[str]]:
    """Return (method, departures of its release) -> the results of the attacks on that release, one
    sentence for each trust. Departures in calibration are left out: no attack on a release can see
    them."""
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
        bound = f"ε ≥ {_plain(round_down(lower))}"
        shown = "no finite ε" if lower == math.inf else bound
        sentence = (
            f"{seen}: {claimed} {'REFUTED' if row['flagged'] else 'not refuted'}; one client moves "
            f"a release {moved} that covers{noise}; {shown} shown"
        )
        steps = [] if pd.isna(row["departures"]) else str(row["departures"]).split("+")
        key = row["method"], frozenset(filter(None, steps)) - OF_CALIBRATION
        sentences.setdefault(key, []).append(sentence)
    return sentences


def _text(group: Group, name: str) -> str:
    """Return the text of a number, the worst over the seeds; a nominal epsilon is marked."""
    values = group.rows[name].dropna().astype(float)
    if name == "epsilon_with_search" and group.first("search_not_counted"):
        return "none (other clients)"
    if values.empty:
        return "–"
    if name.startswith("noise_multiplier"):
        return _plain(round_down(values.min()))
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
    """Return a number below a million without an exponent."""
    return f"{float(text):.0f}" if text[-4:] in ("e+03", "e+04", "e+05") else text
