"""Fit the planner's curve: ``python tools/plan_curve.py`` writes src/pflpipe/study/curve.json and
prints how wrong it is.

A federation is a proxy (plan_proxies.py) with a method, or a study of docs/results/ with DP-FedAvg,
whose accuracy without noise is FedAvg's. Its clients have the better of their personal model and
the released one on their own rows, or learn alone where that is better still. The share is what is
left of their gain over learning alone without noise. A federation without a gain of ``LEAST``
points has no share, and is named.

Every federation is then predicted by a curve that was fitted without it, and without the others
that have its rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from pflpipe.files import write_json
from pflpipe.study import forecast
from pflpipe.study.load import load_outline

RESULTS = Path("docs/results")
STUDIES = ("people_mnist", "fashion_1000", "people_wisdm", "cifar10_500")
PROXIES = Path("docs/planner/proxies.csv")
PREDICTIONS = PROXIES.with_name("predictions.csv")
TARGET = Path("src/pflpipe/study/curve.json")
LEAST = 3.0
BETWEEN = 0.2, 1.5
"""Where a share is neither nearly 1 nor nearly 0, so that a prediction can be wrong."""


@dataclasses.dataclass(frozen=True)
class Federation:
    """One federation: ``s`` and accuracy at each length of the noise, and both ends of its scale in
    percent."""

    name: str
    s: np.ndarray
    accuracy: np.ndarray
    alone: float
    without_noise: float

    @property
    def rows(self) -> str:
        """The name of its rows, which other federations may have too."""
        return self.name.partition(",")[0]

    @property
    def gain(self) -> float:
        """What its clients gain over learning alone without noise, in points."""
        return self.without_noise - self.alone

    @property
    def shares(self) -> np.ndarray:
        """The share of the gain that is left at each length."""
        return np.maximum(self.accuracy - self.alone, 0) / self.gain


def proxies() -> list[Federation]:
    """Return the proxies with each of their methods."""
    table = pd.read_csv(PROXIES)
    table["best"] = table[["personal_own", "global_own"]].max(axis=1)
    found = []
    for (name, method), rows in table.groupby(["proxy", "method"], sort=False):
        if method != "local_only":
            alone = table.query("proxy == @name and method == 'local_only'")["best"].item()
            noisy = rows[rows["noise_length"] > 0]
            s = (noisy["noise_length"] / np.sqrt(noisy["rounds"])).to_numpy()
            without = rows.loc[rows["noise_length"] == 0, "best"].item()
            found.append(
                Federation(f"{name}: {method}", s, noisy["best"].to_numpy(), alone, without)
            )
    return found


def best(study: str) -> dict[tuple[str, str], float]:
    """Return line and budget of a study -> mean accuracy of the better of both models."""
    models, runs = ["personal_own", "global_own"], pd.read_parquet(RESULTS / study / "runs.parquet")
    means = runs.groupby(["line", "budget"], as_index=False)[models].mean()
    labels = zip(means["line"], means["budget"], strict=True)
    return dict(zip(labels, means[models].max(axis=1), strict=True))


def studies() -> list[Federation]:
    """Return DP-FedAvg in the finished studies."""
    found = []
    for name in STUDIES:
        runs, means = pd.read_parquet(RESULTS / name / "runs.parquet"), best(name)
        lengths, accuracies = [], []
        for line in load_outline(name).lines:
            cell = line.candidates[0].rows[0].cell
            if cell.method == "dp_fedavg" and "variant" not in line.entry:
                clients, training = cell.partition.clients, cell.training
                plan = forecast.plan_for(cell, clients)
                of_line = runs[(runs["line"] == "dp_fedavg") & runs["budget"].str.contains("ε")]
                cohort = training.sample_rate * clients
                sent = of_line["upload_bytes_per_round"].iloc[0] / 4 / cohort
                length = forecast.noise_length(plan, round(sent))
                lengths.append(length / math.sqrt(training.rounds))
                accuracies.append(means["dp_fedavg", f"ε = {cell.privacy.epsilon:g}"])
        alone, fedavg = (means[line, "no privacy"] for line in ("local_only", "fedavg"))
        found.append(Federation(name, np.array(lengths), np.array(accuracies), alone, fedavg))
    return found


def expected(federation: Federation, curve: forecast.Curve) -> np.ndarray:
    """Return the shares that a curve expects of a federation."""
    return np.array([curve.share(s) for s in federation.s])


def fit(federations: Sequence[Federation]) -> forecast.Curve:
    """Return the curve of these federations, each with the same weight."""

    def residuals(values: np.ndarray, chosen: Sequence[Federation]) -> np.ndarray:
        curve = forecast.Curve(math.exp(values[0]), math.exp(values[1]), 0, 0)
        return np.concatenate(
            [(each.shares - expected(each, curve)) / math.sqrt(len(each.s)) for each in chosen]
        )

    middle, slope = least_squares(residuals, [0.0, 0.5], args=(federations,)).x
    own = [
        least_squares(lambda value, f=each: residuals(np.array([value[0], slope]), [f]), [middle])
        for each in federations
    ]
    spread = float(np.std([one.x[0] for one in own], ddof=1))
    # `fun` of one federation adds up to its mean square.
    rest = math.sqrt(np.mean([np.sum(one.fun**2) for one in own]))
    return forecast.Curve(math.exp(middle), math.exp(slope), spread, rest)


def beside() -> Iterator[str]:
    """Yield the accuracies that docs/planner/predictions.csv has for finished studies, beside those
    that came out."""
    for row in pd.read_csv(PREDICTIONS).dropna(subset="accuracy").to_dict("records"):
        study, entry, budget = row["study"], row["entry"], f"ε = {row['epsilon']:g}"
        if (RESULTS / study / "runs.parquet").exists():
            came_out = best(study)
            if (entry, budget) not in came_out:  # a page may have fewer budgets
                continue
            measured = max(came_out[entry, budget], came_out["local_only", "no privacy"])
            yield (
                f"{study}, {entry} at {budget}: predicted {row['accuracy']:.1f} "
                f"({row['accuracy_low']:.1f} to {row['accuracy_high']:.1f}), came out "
                f"{measured:.1f}"
            )


def main() -> None:
    """Fit, print the errors of the federations that are left out, and write the file."""
    found = [*proxies(), *studies()]
    used = [each for each in found if each.gain >= LEAST]
    for each in found:
        if each.gain < LEAST:
            print(f"{each.name}: no share, as the gain is {each.gain:.1f} points")
    errors, inside, longer = [], [], []
    for left_out in used:
        # With it goes whatever shares its rows.
        curve = fit([each for each in used if each.rows != left_out.rows])
        print(f"{left_out.name}: gain {left_out.gain:.1f} points")
        for s, share in zip(left_out.s, left_out.shares, strict=True):
            predicted, low, high = curve.shares(s).values()
            errors.append((predicted - share, (predicted - share) * left_out.gain))
            inside.append(low <= share <= high)
            longer.append(BETWEEN[0] <= s <= BETWEEN[1])
            print(
                f"  s {s:5.2f}: left {share:5.2f}, predicted {predicted:.2f} "
                f"({low:.2f} to {high:.2f}), wrong by {errors[-1][1]:+.1f} points"
            )
    for where, chosen in (("", slice(None)), (f" at s from {BETWEEN[0]} to {BETWEEN[1]}", longer)):
        shares, points = np.array(errors)[chosen].T
        print(
            f"left out{where}: root mean square error {np.sqrt(np.mean(shares**2)):.2f} of the "
            f"gain, {np.sqrt(np.mean(points**2)):.1f} points; largest {np.abs(points).max():.1f}; "
            f"{np.mean(np.array(inside)[chosen]):.0%} in the intervals"
        )
    curve = fit(used)
    write_json(TARGET, {key: round(value, 3) for key, value in vars(curve).items()})
    print(f"{TARGET}: {curve}", *beside(), sep="\n")


if __name__ == "__main__":
    main()
