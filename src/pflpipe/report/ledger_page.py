"""The ledger as a page: per method what is published, what is true, and what the sound variant
costs.

Its numbers come from the tidy tables and the audit's table, the words about departures from their
registry. An epsilon that a departure makes untrue never stands without the word nominal. Over the
seeds of a line the worst number counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from pflpipe.audit.cases import of_methods
from pflpipe.audit.coupled import WIDEST
from pflpipe.cells import CLAIMS, WITHOUT_DEPARTURES
from pflpipe.errors import DataError
from pflpipe.files import write_text
from pflpipe.methods import registry
from pflpipe.methods.base import About
from pflpipe.named import DEPARTURES, OF_CALIBRATION, WITHOUT_BOUND
from pflpipe.report import audits
from pflpipe.report.summary import finite, largest, mean_text, over_seeds, round_up
from pflpipe.report.tidy import existing, read

SETTING = (
    "study",
    "dataset",
    "partition",
    "alpha",
    "classes_per_client",
    "clients",
    "sample_rate",
    "rounds",
    "model",
)
AUDIT = (
    *("method", "departures", "trust", "claim", "sample_rate", "epsilon_claimed", "delta"),
    *("sensitivity", "spread", "epsilon_lower", "flagged"),
)
"""What is read of the audit's table (audit/report.py)."""
_WORK = ("hyperparameters", "clip_norm", "clip_quantile", "local_epochs", "batch_size")
_READINGS = ("central", "central_1e5", "local", "replace_one")
_ACCURACIES = ("personal_own", "global_common")
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


@dataclass(frozen=True, eq=False)
class Line:
    """All seeds of one method's variant at one budget, rows of the tidy table."""

    rows: pd.DataFrame

    def first(self, name: str) -> Any:
        """Return a column's value in the first row, None where it is empty."""
        value = self.rows[name].iloc[0]
        return None if pd.isna(value) else value

    @cached_property
    def departures(self) -> frozenset[str]:
        """Names of the departures."""
        return _names(self.first("departures"))

    @property
    def claim(self) -> str:
        """One of ``cells.CLAIMS``."""
        return str(self.first("claim"))

    @property
    def sound(self) -> bool:
        """Whether its mechanism is the certified one."""
        return self.claim in WITHOUT_DEPARTURES

    @property
    def version(self) -> str:
        """Its variant and its profile."""
        return ", ".join(
            dict.fromkeys(
                str(mark) for mark in (self.first("variant"), self.first("profile")) if mark
            )
        )

    @property
    def asked(self) -> str:
        """The budget that the study asked for."""
        return _asked(self.rows.iloc[0])

    @property
    def delta(self) -> str:
        """The δ that its epsilons are at."""
        value = self.first("delta")
        return "–" if value is None else f"{value:g}"

    def text(self, name: str) -> str:
        """Return a number of the ledger, the worst over the seeds; a nominal epsilon with its
        mark."""
        if name.startswith("noise_multiplier"):
            least = min(
                (float(value) for value in self.rows[name] if pd.notna(value)), default=None
            )
            return "–" if least is None else _round_down(least)
        worst = largest(self.rows[name])
        if worst is None:
            return "–"
        if name in ("clip_norm", "clip_quantile"):
            return f"{worst:g}"
        if name in ("epsilon_target", "epsilon_nominal"):
            return f"{worst:g}" if self.sound else f"{worst:g} (nominal)"
        return _plain(round_up(worst))

    def accuracy(self, name: str) -> str:
        """Return mean and standard deviation over the seeds, in percent."""
        return mean_text(finite(self.rows[name]), len(self.rows))


def write(tables: Sequence[Path], results: Path, template: Path, target: Path) -> None:
    """Write the page of these tidy tables (results/tables/<study>.csv), with the audits of their
    methods beside it (``results/audits``).

    Raises:
        DataError: a table or an audit is missing, or a table lacks a column.
    """
    frame = pd.concat([read(path) for path in tables], ignore_index=True)
    drawn = bool((frame["sample_rate"] < 1).any())
    audited = audits.table(results, of_methods(set(frame["method"]), drawn))
    write_text(target, page(frame, audited, template))


def page(frame: pd.DataFrame, audited: pd.DataFrame, template: Path) -> str:
    """Return the HTML page of a tidy table and the audit's table."""
    private = frame[frame["claim"] != "none"]
    found = _verdicts(audited)
    settings = [
        _setting(rows, found)
        for _, rows in private.groupby(list(SETTING), sort=False, dropna=False)
    ]
    lines = list(_lines(private))
    return filled(
        template,
        summary=list(summary(frame, audited)),
        settings=settings,
        ledger_header=[heading for heading, _ in _LEDGER],
        ledger=[_entry(line) for line in lines],
    )


def filled(template: Path, **values: Any) -> str:
    """Return the text of a template of the pages' folder, in which what it is given is escaped."""
    return _templates(template.parent).get_template(template.name).render(**values)


@cache
def _templates(folder: Path) -> jinja2.Environment:
    """Return what keeps the folder's templates; one is compiled when it is first asked for, and
    when its file has changed."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def read_audits(path: Path) -> pd.DataFrame:
    """Return the audit's table.

    Raises:
        DataError: it is missing or lacks a column.
    """
    frame = pd.read_csv(existing(path), float_precision="round_trip")
    if missing := [name for name in AUDIT if name not in frame]:
        raise DataError(
            f"{path}: columns",
            got=f"none called {', '.join(missing)}",
            do="delete that file and run snakemake again",
        )
    return frame


def _lines(rows: pd.DataFrame) -> Iterator[Line]:
    """Yield the lines of some rows in their order."""
    budget = [_asked(row) for _, row in rows.iterrows()]
    keys = [*SETTING, "method", "variant", "profile", "departures", "delta", *_WORK]
    for _, members in rows.assign(budget=budget).groupby(
        [*keys, "budget"], sort=False, dropna=False
    ):
        yield Line(members)


def _asked(row: pd.Series[Any]) -> str:
    if pd.notna(row["epsilon_target"]):
        return f"ε = {row['epsilon_target']:g}"
    return f"σ = {row['noise_multiplier']:g}"


# ---------------------------------------------------------------- in short


def summary(frame: pd.DataFrame, audited: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield what the ledger says in some ten lines, each a term and its words.

    Args:
        frame: a tidy table of any studies.
        audited: the audit's table, of which the methods of ``frame`` count.
    """
    yield "protected", "one client with all of its data, over all rounds, against the whole world"
    lines = list(_lines(frame[frame["claim"] != "none"]))
    certified, unreviewed, nominal = (
        [line for line in lines if line.claim == claim] for claim in CLAIMS[:3]
    )
    studies, methods = frame["study"].nunique(), frame["method"].nunique()
    open_ = frame.loc[frame["claim"] == "none", "method"].nunique()
    yield (
        "compared",
        f"{_count(methods, 'method')} in {_count(studies, 'study')}: "
        f"{_count(len(certified), 'line')} certified, "
        f"{f'{len(unreviewed)} unreviewed, ' if unreviewed else ''}{len(nominal)} nominal, "
        f"{_count(open_, 'method')} without privacy (a line is a method at a budget)",
    )
    if certified:
        yield "certified ε", _each_budget(certified)
        for term, column in (("single messages", "local"), ("replace-one", "replace_one")):
            values = [largest(line.rows[f"epsilon_{column}"]) for line in certified]
            known = [value for value in values if value is not None]
            if known:
                reach = dict.fromkeys(map(round_up, (min(known), max(known))))
                yield term, f"ε = {' to '.join(reach)} for the certified lines"
    if unreviewed:
        names = ", ".join(sorted({str(line.first("method")) for line in unreviewed}))
        yield (
            "unreviewed ε",
            f"only if the code of {names} keeps the rules: {_each_budget(unreviewed)}",
        )
    if nominal:
        yield "nominal ε", _each_method(nominal)
    published = {
        str(line.first("method")) for line in lines if line.first("epsilon_published") == math.inf
    }
    if published:
        yield "as published", f"no ε holds for {', '.join(sorted(published))}"
    yield "audit", _attacked(audited[audited["method"].isin(frame["method"])])
    costs = [
        (float(gap), f"{line.first('method')}, {line.asked}")
        for line, other in _pairs_of(lines)
        if other.claim == "certified"
        and (gap := over_seeds(_gaps(line, other, "personal_own"))) > -math.inf
    ]
    if costs:
        ends = " to ".join(f"{gap:+.1f} ({name})".replace("-", "−") for gap, name in _ends(costs))
        yield "cost of soundness", f"{ends} points of personal accuracy, certified less published"
    searched = largest(frame["epsilon_with_search"])
    if searched is not None:
        yield "with the search", f"ε is at most {round_up(searched)} if its runs are counted"
    yield (
        "not covered",
        "accuracies, losses and times, and how hyper-parameters were chosen",
    )


def _count(number: int, word: str) -> str:
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def _ends(costs: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    return list(dict.fromkeys([min(costs), max(costs)]))


def _each_budget(lines: Sequence[Line]) -> str:
    """Return what holds for each budget that lines without departures were asked for."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(f"{line.asked}, δ = {line.delta}", []).append(line)
    worst = {
        budget: [
            round_up(largest(value for line in own for value in line.rows[f"epsilon_{name}"]))
            for name in ("central", "central_1e5")
        ]
        for budget, own in found.items()
    }
    return "; ".join(
        f"asked for {budget}: {holds} holds, {sharper} at δ = 1e-5"
        for budget, (holds, sharper) in worst.items()
    )


def _each_method(lines: Sequence[Line]) -> str:
    """Return what is printed and what holds for each nominal method."""
    found: dict[str, list[str]] = {}
    for line in lines:
        name = f"{line.first('method')} ({line.version})"
        worth = round_up(largest(line.rows["epsilon_central"]))
        found.setdefault(name, []).append(f"{worth} where {line.text('epsilon_nominal')} is said")
    return "; ".join(f"{name}: {', '.join(worth)}" for name, worth in found.items())


def _attacked(audited: pd.DataFrame) -> str:
    releases = audited.drop(columns="method").drop_duplicates(list(AUDIT[1:]))
    found = []
    for claim in ("certified", "nominal"):
        own = releases[releases["claim"] == claim]
        if len(own):
            refuted = own["flagged"].astype(str).str.lower().eq("true").sum()
            found.append(f"of {_count(len(own), f'{claim} release')} {refuted} refuted")
    return "; ".join(found) or "no release attacked"


# ---------------------------------------------------------------- published against sound


def _setting(rows: pd.DataFrame, verdicts: Mapping[Any, list[str]]) -> dict[str, Any]:
    """Return one data set and federation: methods that depart as published, and those that do
    not."""
    departing, others = [], []
    shared: dict[
        str, list[str]
    ] = {}  # sentence -> the methods that share it, for those whose releases are alike
    by_method: dict[str, list[Line]] = {}
    for line in _lines(rows):
        by_method.setdefault(line.first("method"), []).append(line)
    for method, lines in by_method.items():
        outside = About(title=method, paper="not a method of the package")
        about = registry.info(method).about if method in registry.NAMES else outside
        published = about.departures + about.paper_departures + about.official_departures
        if published or not all(line.sound for line in lines):
            departing.append(
                {
                    "method": method,
                    "title": about.title,
                    "paper": about.paper,
                    "departures": [
                        _departure(name, name in about.official_departures) for name in published
                    ],
                    "audits": [
                        {"version": word, "found": verdicts.get((method, _released(names)), [])}
                        for word, names in (("published", published), ("sound", ()))
                    ],
                    "pairs": [_pair(first, second) for first, second in _pairs(lines)],
                }
            )
        else:
            others += [
                _side(line) | {"method": method, "printed": line.text("epsilon_target")}
                for line in lines
            ]
            for sentence in verdicts.get((method, frozenset()), ["none"]):
                shared.setdefault(sentence, []).append(method)
    return {
        "title": _title(rows.iloc[0]),
        "departing": departing,
        "others": others,
        "audits": shared,
    }


def _title(row: pd.Series[Any]) -> str:
    details = {"alpha": " (α = {:g})", "classes_per_client": " ({:g} classes per client)"}
    detail = "".join(
        words.format(row[name]) for name, words in details.items() if pd.notna(row[name])
    )
    words = [
        f"{row['dataset']}, {row['partition']} partition{detail}",
        f"{row['clients']:g} clients, sampling rate {row['sample_rate']:g}, {row['rounds']:g} "
        f"rounds, {row['model']}",
    ]
    return f"{row['study']}: {'; '.join(words)}"


def _departure(name: str, official: bool) -> dict[str, Any]:
    return {
        "name": name,
        "words": DEPARTURES[name],
        "official": official,
        "why": WITHOUT_BOUND.get(name),
    }


def _pairs(lines: Sequence[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    """Yield (published, sound) lines of one method that belong together; None where there is no
    such run.

    A published line belongs to the sound one of its budget with the same hyper-parameters and local
    work, or to the only one.
    """
    alone = [line for line in lines if line.sound]
    for line in lines:
        if line.sound:
            continue
        rivals = [
            other
            for other in lines
            if other.sound and (other.asked, other.first("delta")) == _budget(line)
        ]
        same = [
            other
            for other in rivals
            if all(other.first(name) == line.first(name) for name in _WORK)
        ]
        chosen = next(iter(same), rivals[0] if len(rivals) == 1 else None)
        if chosen in alone:
            alone.remove(chosen)
        yield line, chosen
    yield from ((None, line) for line in alone)


def _pairs_of(lines: Sequence[Line]) -> Iterator[tuple[Line, Line]]:
    """Yield the (published, sound) lines of all methods and settings of which both were run."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        key = tuple(line.first(name) for name in (*SETTING, "method"))
        groups.setdefault(key, []).append(line)
    for members in groups.values():
        for published, sound in _pairs(members):
            if published and sound:
                yield published, sound


def _budget(line: Line) -> tuple[str, Any]:
    return line.asked, line.first("delta")


def _pair(published: Line | None, sound: Line | None) -> dict[str, Any]:
    known = published or sound
    assert known is not None
    found: dict[str, Any] = {
        "budget": known.asked,
        "published": None,
        "sound": None,
        "cost": ["not run"] * len(_ACCURACIES),
    }
    found["delta"] = known.delta
    if published:
        found["published"] = _side(published)
    elif sound:
        found["counted"] = sound.text("epsilon_published")
    if sound:
        found["sound"] = _side(sound)
    if published and sound:
        found["cost"] = [_difference(published, sound, name) for name in _ACCURACIES]
    return found


def _side(line: Line) -> dict[str, Any]:
    """Return what a table shows of one line."""
    return {
        "version": line.version,
        "budget": line.asked,
        "delta": line.delta,
        "printed": line.text("epsilon_nominal"),
        "claim": line.claim,
        "epsilons": [line.text(f"epsilon_{name}") for name in _READINGS],
        "accuracies": [line.accuracy(name) for name in _ACCURACIES],
    }


def _gaps(published: Line, sound: Line, name: str) -> list[float]:
    """Return sound minus published at the seeds that both have, in percentage points."""
    one, other = (line.rows.set_index("seed")[name].astype(float) for line in (sound, published))
    return finite((one - other).dropna())


def _difference(published: Line, sound: Line, name: str) -> str:
    """Return the mean and standard deviation of ``_gaps``."""
    gaps = _gaps(published, sound, name)
    text = mean_text(gaps, max(len(published.rows), len(sound.rows)))
    return f"+{text}" if gaps and sum(gaps) > 0 else text.replace("-", "−")


def _verdicts(audited: pd.DataFrame) -> dict[Any, list[str]]:
    """Return (method, departures of its release) -> what the attacks on that release showed, one
    sentence for each trust."""
    found: dict[Any, list[str]] = {}
    for row in audited.to_dict("records"):
        seen = {"central": "Noisy sums", "local": "Single messages"}[row["trust"]]
        if row["sample_rate"] < 1:
            seen += f" of clients drawn at rate {row['sample_rate']:g}"
        claimed = (
            f"ε = {row['epsilon_claimed']:.3g}{' (nominal)' if row['claim'] == 'nominal' else ''} "
            f"at δ = {row['delta']:g}"
        )
        verdict = "REFUTED" if str(row["flagged"]).lower() == "true" else "not refuted"
        moved = (
            "infinitely farther than"
            if row["sensitivity"] == math.inf
            else f"{row['sensitivity']:.3g} times as far as"
        )
        noise = ", and the noise follows private data" if row["spread"] > WIDEST else ""
        lower = float(row["epsilon_lower"])
        shown = "no finite ε" if lower == math.inf else f"ε ≥ {_round_down(lower)}"
        sentence = (
            f"{seen}: {claimed} {verdict}; one client moves a release {moved} that covers{noise}; "
            f"{shown} shown"
        )
        found.setdefault((row["method"], _released(_names(row["departures"]))), []).append(sentence)
    return found


def _released(departures: Iterable[str]) -> frozenset[str]:
    """Return the departures that an attack on the release can see: how the noise was calibrated is
    none of them."""
    return frozenset(departures) - OF_CALIBRATION


# ---------------------------------------------------------------- every number


def _entry(line: Line) -> dict[str, Any]:
    """Return one line of the full ledger."""
    each = line.first("releases_per_round")
    numbers = [line.text(name) for _, name in _LEDGER]
    if (runs := line.first("search_runs")) is not None:
        numbers[-1] += f" ({runs:g} runs)"
    words = ("claim", "adjacency", "trust", "sampling")
    return {
        "where": [line.first("study"), _title(line.rows.iloc[0]).partition(": ")[2]],
        "method": line.first("method"),
        "version": line.version,
        "words": [line.first(name) or "–" for name in words],
        "releases": "–" if each is None else f"{each:g}",
        "shape": [
            f"{line.first(name):g}" if line.first(name) is not None else "–"
            for name in ("sample_rate", "rounds", "clients")
        ],
        "delta": line.delta,
        "numbers": numbers,
        "departures": ", ".join(sorted(line.departures)) or "–",
    }


def _names(departures: Any) -> frozenset[str]:
    return (
        frozenset(filter(None, str(departures).split("+"))) if pd.notna(departures) else frozenset()
    )


def _round_down(value: float) -> str:
    """Return a lower bound with three significant digits, never larger than it is (beyond a
    rounding error of 1e-6)."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "unknown"
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return _plain(f"{math.floor(value / step * (1 + 1e-6)) * step:.3g}")


def _plain(text: str) -> str:
    """Return a number without a power of ten, up to a million."""
    return f"{float(text):.0f}" if text[-4:] in ("e+03", "e+04", "e+05") else text
