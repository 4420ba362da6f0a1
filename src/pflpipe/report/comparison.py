"""Groups of runs that differ only in their seed, and what their numbers show.

Tables, sentences, figures, pages and MLflow show the same groups. This module computes what they
state of one group (its claim, the epsilon that holds, its mean) and of several groups (order,
sections, differences to a baseline, who may be the best, which certified group belongs to a
published one).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pflpipe.code.dependencies import CLAIMS, PLACEBO, WITHOUT_DEPARTURES
from pflpipe.learning.metrics import ACCURACY, ALWAYS, BUILT_IN, CONSTANT_ERROR, Metric
from pflpipe.privacy.ledger import DEALT
from pflpipe.report import statistics
from pflpipe.report.statistics import MIN_SEEDS, Contest, Difference, People
from pflpipe.study.metric_columns import BEST_ROUND, columns
from pflpipe.study.settings import NO_PRIVACY, Setting, layout, round_up
from pflpipe.study.study_spec import Study

ALONE, PLAIN, OPEN = "local_only", "dp_fedavg", "fedavg"
"""The baselines: learning alone, DP-FedAvg fine-tuned by every client, the same without privacy."""
METRICS = columns(ALWAYS)
"""The columns of accuracy; those of a study's other metrics are in ``Study.columns``."""
FIRST_METRIC = "training.metric"
"""Key in the column ``hyperparameters`` of a tidy table: the metric of the loss, if it is not
accuracy."""
MAIN = "personal_own"
"""The metric that groups are ranked by."""
BOLD_WORDS = (
    "not distinguishable from the best: with 95 % confidence the line that is truly best is among "
    f"those in bold (differences over seeds); with fewer than {MIN_SEEDS} seeds, or where "
    "the seeds separate nothing, nothing is bold"
)
BEST_ROUND_WORDS = "best round, chosen on test data (optimistic)"
_CLAIM_NOTES = {
    "unreviewed": (
        "Unreviewed: the mechanism is certified, but code that may touch a message (method, loss "
        "or network) is not pflpipe's own and not reviewed by its developers "
        "(docs/adding_a_method.md)."
    ),
    "nominal": (
        "Nominal: the number the paper would print for a mechanism with departures that break it; "
        "the honest ε is what that mechanism provides."
    ),
    PLACEBO: "Placebo: the same noise and nobody's update, so that nothing is learned from others.",
}
"""What a reader must know about rows whose epsilon is not certified."""
# The columns that make a published and a certified run comparable.
WORK = ("hyperparameters", "clip_norm", "clip_quantile", "local_epochs", "batch_size")


@dataclass(frozen=True, eq=False)
class Group(Setting):
    """A setting with its rows of a tidy table, one for each seed."""

    rows: pd.DataFrame

    @classmethod
    def of(cls, setting: Setting, rows: pd.DataFrame) -> Group:
        """Return a setting with its rows."""
        return cls(
            setting.label,
            setting.budget,
            rows,
            facet=setting.facet,
            indices=setting.indices,
            choice=setting.choice,
        )

    def first(self, column: str) -> Any:
        """Return a column's value in the first row, None where it is empty."""
        value = self.rows[column].iloc[0]
        return None if pd.isna(value) else value

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.first("method"))

    @property
    def claim(self) -> str:
        """One of ``dependencies.CLAIMS``, or ``PLACEBO``."""
        return str(self.first("claim"))

    @property
    def name(self) -> str:
        """The label, with a mark if the method is unreviewed."""
        return f"{self.label} (unreviewed)" if self.claim == "unreviewed" else self.label

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorting key of sections: no privacy first, as the reference; then increasing budgets,
        certified before nominal."""
        kind, _, value = self.budget.partition(" = ")
        return kind != NO_PRIVACY, kind, float(value or 0), (*CLAIMS, PLACEBO).index(self.claim)

    def values(self, column: str) -> pd.Series[float]:
        """Return a column by seed, NaN where a value is missing or not finite."""
        # Tidy tables have dtype object, with None for missing values.
        read = pd.to_numeric(self.rows[column], errors="coerce")
        numbers = read.to_numpy(float, na_value=math.nan)
        seeds = self.rows["seed"].to_list()
        return pd.Series(np.where(np.isfinite(numbers), numbers, math.nan), seeds, name=column)

    def mean(self, column: str = MAIN) -> float:
        """Return the mean over the seeds that have a value; minus infinity where none has."""
        return over_seeds(self.rows[column])

    @cached_property
    def metric(self) -> Metric:
        """The first metric of its study, by which groups are ranked."""
        settings = self.first("hyperparameters") if "hyperparameters" in self.rows else None
        return BUILT_IN[json.loads(settings or "{}").get(FIRST_METRIC, ACCURACY)]

    @property
    def point(self) -> float:
        """What verdicts call a point: one of a metric in percent, 1 % of the error of the own
        constant on training rows else; NaN where nobody has two of them."""
        if self.metric.unit == "%":
            return 1.0
        return self.values(CONSTANT_ERROR).iloc[0] / 100

    def points(self, point: float, column: str = MAIN) -> pd.Series[float]:
        """Return a column by seed in points of this size; more is better."""
        return self.metric.sign * self.values(column) / point

    @property
    def worth(self) -> float:
        """The mean of ``MAIN``, negated where less is better; minus infinity without a value."""
        mean = self.mean()
        return self.metric.sign * mean if math.isfinite(mean) else mean

    @property
    def mean_words(self) -> str:
        """The mean of ``MAIN`` with its unit, such as ``83.8 %``."""
        return f"{self.mean():.{self.metric.digits}f} {self.metric.unit}".rstrip()

    def text(self, column: str = MAIN, digits: int | None = None) -> str:
        """Return mean and standard deviation over the seeds, by default with the digits of the
        first metric; see ``mean_text``."""
        digits = self.metric.digits if digits is None else digits
        return mean_text(finite(self.rows[column]), len(self.rows), digits)

    def worst(self, column: str) -> str:
        """Return the largest epsilon of a column, rounded up."""
        return round_up(largest(self.rows[column]))

    @property
    def diverged(self) -> list[int]:
        """The rounds in which seeds diverged."""
        return sorted({int(value) for value in self.rows["diverged_round"].dropna()})

    @property
    def sends(self) -> bool:
        """Whether anything leaves a client."""
        return bool(self.rows["upload_bytes_per_round"].any())


def groups(study: Study, frame: pd.DataFrame) -> list[Group]:
    """Return the groups of a study in its order, from the frame that ``tidy`` returns for it."""
    return [Group.of(one, frame.iloc[list(one.indices)]) for one in layout(study).settings]


def sections(members: Iterable[Group]) -> list[list[Group]]:
    """Return sections of groups that compete: those with the same facet, budget and claim. In a
    section the best mean comes first."""
    competing = by(members, lambda group: (tuple(group.facet.values()), group.budget, group.claim))
    facets = list(dict.fromkeys(facet for facet, *_ in competing))
    ordered = sorted(
        competing.items(), key=lambda item: (facets.index(item[0][0]), item[1][0].order)
    )
    return [ranked(section) for _, section in ordered]


def ranked(members: Iterable[Group]) -> list[Group]:
    """Return the groups, the best mean first."""
    return sorted(members, key=lambda group: (-group.worth, group.label))


def of_claim(members: Iterable[Group], *claims: str) -> list[Group]:
    """Return the groups with one of these claims."""
    return [group for group in members if group.claim in claims]


def by_budget(members: Iterable[Group]) -> dict[str, list[Group]]:
    """Return the groups of each budget."""
    return by(members, lambda group: group.budget)


def by(members: Iterable[Group], key: Callable[[Group], Any]) -> dict[Any, list[Group]]:
    """Return the groups of each key, in order."""
    result: dict[Any, list[Group]] = {}
    for group in members:
        result.setdefault(key(group), []).append(group)
    return result


def find(members: Iterable[Group], label: str, budget: str = NO_PRIVACY) -> Group | None:
    """Return the group with a label at a budget; None if there is none."""
    return next((one for one in members if (one.label, one.budget) == (label, budget)), None)


def table(members: Iterable[Group], column: str = MAIN) -> pd.DataFrame:
    """Return seeds x groups of one column."""
    return pd.DataFrame({group: group.values(column) for group in members}).sort_index()


def contest(
    members: Iterable[Group], column: str = MAIN, sign: int = 1, people: People | None = None
) -> Contest | None:
    """Return who may be the best of groups, of which a placebo is none; see ``statistics.contest``.
    ``sign`` is -1 where less is better."""
    return statistics.contest(sign * table(of_claim(members, *CLAIMS), column), people)


def best(members: Iterable[Group], column: str = MAIN, sign: int = 1) -> frozenset[Group]:
    """Return the groups in bold: those that may be the best; none where no group is out."""
    outcome = contest(members, column, sign)
    return outcome.bold if outcome else frozenset()


def against(
    members: Iterable[Group],
    baseline: Group | None,
    column: str = MAIN,
    people: People | None = None,
) -> dict[Group, Difference]:
    """Return by how much every group is better than a baseline, adjusted for their number; nothing
    without a baseline, and never of a group to itself."""
    if baseline is None:
        return {}
    others = [group for group in members if group is not baseline]
    sign = baseline.metric.sign
    known = None if people is None else lambda group: people(group, baseline)
    return statistics.against(sign * table(others, column), sign * baseline.values(column), known)


def pairs(members: Sequence[Group]) -> Iterator[tuple[Group | None, Group | None]]:
    """Yield (published, sound) groups of one method that belong together; None where there is no
    such run.

    A published group belongs to the sound one of its budget with the same hyper-parameters and
    local work, or to the only one of its budget.
    """
    sound = of_claim(members, *WITHOUT_DEPARTURES)
    alone = list(sound)  # without a published version
    for group in of_claim(members, "nominal"):
        at = group.budget, group.first("delta")
        rivals = [other for other in sound if (other.budget, other.first("delta")) == at]
        # A study may run a certified version with several hyper-parameters. If none of them equals
        # the published version's, a pair is unambiguous only if there is one.
        same = [one for one in rivals if all(one.first(k) == group.first(k) for k in WORK)]
        chosen = next(iter(same), rivals[0] if len(rivals) == 1 else None)
        if chosen in alone:
            alone.remove(chosen)
        yield group, chosen
    yield from ((None, group) for group in alone)


# ---------------------------------------------------------------- numbers as text


def finite(values: Iterable[Any]) -> list[float]:
    """Return the values that exist and are finite."""
    return [float(value) for value in values if pd.notna(value) and math.isfinite(value)]


def over_seeds(values: Iterable[Any]) -> float:
    """Return the mean of the values that exist and are finite; minus infinity, below all others,
    where there is none."""
    numbers = finite(values)
    return sum(numbers) / len(numbers) if numbers else -math.inf


def largest(values: Iterable[Any]) -> float | None:
    """Return the largest of the values that exist, or None."""
    return max((float(value) for value in values if pd.notna(value)), default=None)


def mean_text(values: Sequence[float], seeds: int, digits: int = 1) -> str:
    """Return ``81.2 ± 0.4``; without deviation for one value; followed by ``(2 of 3)`` if only 2 of
    3 seeds have a value."""
    if not values:
        return "–"
    text = f"{over_seeds(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    return text if len(values) == seeds else f"{text} ({len(values)} of {seeds})"


def best_round_text(group: Group, metric: str) -> str:
    """Return mean and standard deviation of an accuracy after its best round; empty for rows with a
    guarantee."""
    return "" if group.claim in WITHOUT_DEPARTURES else group.text(BEST_ROUND + metric)


def epsilon_text(group: Group) -> str:
    """Return the privacy of a group as text; the honest epsilon is the largest over its seeds.

    ``2`` for a certified or an unreviewed one, ``2 (nominal; honest 40.5 at δ=0.001)`` for a
    nominal one. Without privacy: ``∞``, or ``–`` if nothing is ever sent.
    """
    if group.claim == "none":
        return "∞" if group.sends else "–"
    honest = group.worst("epsilon_central")
    if group.claim in (*WITHOUT_DEPARTURES, PLACEBO):
        return honest
    delta, nominal = group.first("delta"), largest(group.rows["epsilon_nominal"])
    at = "" if delta is None else f" at δ={delta:g}"
    return f"{'–' if nominal is None else round_up(nominal)} (nominal; honest {honest}{at})"


def protected(frame: pd.DataFrame) -> Iterator[str]:
    """Yield what the epsilons of a tidy table protect where a client is no user of that name: the
    unit, and for dealt clients the epsilon of a person beside that of a client."""
    if "unit" not in frame:
        return
    for unit, rows in frame[frame["claim"] != "none"].groupby("unit", sort=False):
        if unit not in ("user", DEALT):
            yield f"The unit is one {unit} with all rows."
        elif unit == DEALT:
            yield from _of_persons(rows)


def _of_persons(rows: pd.DataFrame) -> Iterator[str]:
    for _, alike in rows.groupby("max_clients_per_user", sort=False, dropna=False):
        most = alike["max_clients_per_user"].iloc[0]
        columns = alike[["epsilon_central", "epsilon_person", "delta"]].astype(float)
        pairs = dict.fromkeys(
            f"ε = {round_up(client)} of a client is "
            f"{'none' if math.isinf(person) else round_up(person)} of one person (δ = {delta:g})"
            for client, person, delta in columns.itertuples(index=False)
        )
        number = "any number of" if pd.isna(most) else f"at most {most:g}"
        yield (
            f"The unit is one {DEALT} with all rows, and no person: the rows of one person lie "
            f"with {number} clients, and {'; '.join(pairs)}."
        )


def claim_notes(members: Iterable[Group]) -> Iterator[str]:
    """Yield what a reader must know about the claims of these groups, each once."""
    claims = {group.claim for group in members}
    yield from (note for claim, note in _CLAIM_NOTES.items() if claim in claims)


def code_notes(members: Iterable[Group]) -> Iterator[str]:
    """Yield which groups have code that is not the package's, and which."""
    for code, alike in by(members, lambda group: group.first("unreviewed_code")).items():
        if code:
            labels = ", ".join(dict.fromkeys(group.label for group in alike))
            yield f"Not pflpipe's own code ({labels}): {code}."
