"""What a choice with a guarantee costs in accuracy: searches of four kinds, drawn again and again
from the same runs.

    python tools/search_cost.py results

reads the runs of the studies search_spi and vote_spi and writes docs/search_cost/runs.csv,
votes.csv, table.csv and a figure, docs/images/search_cost.png. Without an argument it makes table
and figure from the first two.

Every run has a score, the sum of its clients' validation accuracies, and a result, their mean
accuracy on test rows. A free search tries every candidate once and takes the best score. A private
one draws its trials and their noise as privacy/private_search.py does. The final run has the chosen
candidate's values and a seed that the search did not look at. The chart shows how often the final
run is at most so good.

In a vote (Liebenow, Peinemann, Mohammadi: DP-Hype, arXiv 2510.04902) every client tries the
candidates alone and votes for the one with its best validation accuracy; of equals chance takes
one. The votes are released once, with noise. Only DP-FedAvg's candidates can be tried so: alone
they are learning rates, while FedRep's are about a body that others share.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pflpipe.privacy.plan import Plan
from pflpipe.privacy.private_search import PrivateSearch
from pflpipe.study.load import load_outline

STUDY, VOTES = "search_spi", "vote_spi"
VOTER, VOTE, VOTE_NOISE = "dp_fedavg", "vote of clients who try them alone", 10.0
FOLDER, FIGURE = Path("docs/search_cost"), Path("docs/images/search_cost.png")
SEARCHES = 10_000
KINDS = {
    "one candidate, not searched": None,
    "private, 8 trials, logarithmic": PrivateSearch(8, "logarithmic"),
    "private, 8 trials, geometric": PrivateSearch(8, "geometric"),
    "private, 16 trials, geometric": PrivateSearch(16, "geometric"),
    VOTE: None,
    "free, every candidate": None,
}


def runs(results: Path) -> pd.DataFrame:
    """Return one row for each run: method, candidate, seed, score, accuracy (percent)."""
    table = pd.read_csv(results / "tables" / f"{STUDY}.csv")
    table["candidate"] = table.groupby(["method", "seed"]).cumcount()
    found = []
    for method, rows in table.groupby("method"):
        clients = pd.read_csv(results / "scores" / STUDY / f"{method}.csv", comment="#")
        scores = clients.groupby("cell")["personal_validation"].sum() / 100
        found.append(rows.assign(score=rows["cell"].map(scores), accuracy=rows["personal_own"]))
    columns = ["method", "candidate", "seed", "score", "accuracy", "noise_multiplier"]
    return pd.concat(found)[columns]


def votes(results: Path) -> pd.DataFrame:
    """Return one row for each candidate of ``VOTER``: candidate, learning rate, votes."""
    alone = pd.read_csv(results / "tables" / f"{VOTES}.csv").set_index("cell")["hyperparameters"]
    clients = pd.read_csv(results / "scores" / VOTES / "local_only.csv", comment="#")
    clients["lr"] = clients["cell"].map(
        {cell: json.loads(one)["lr"] for cell, one in alone.items()}
    )
    cells = [cell for cell in load_outline(STUDY).everything.cells if cell.method == VOTER]
    rates = [cell.training.lr for cell in cells if cell.seed == cells[0].seed]
    reached = clients.dropna(subset="personal_validation").pivot(
        index="client", columns="lr", values="personal_validation"
    )[rates]
    ties = np.random.default_rng(0).random(reached.shape)
    best = (reached.to_numpy() + 1e-6 * ties).argmax(axis=1)
    count = np.bincount(best, minlength=len(rates))
    return pd.DataFrame({"candidate": range(len(rates)), "lr": rates, "votes": count})


def searches(rows: pd.DataFrame, kind: str, count: np.ndarray) -> np.ndarray:
    """Return the accuracy of the final run of every search ``[SEARCHES]``.

    Args:
        count: the votes for each candidate.
    """
    rng = np.random.default_rng(0)
    # [candidates, seeds]
    score, accuracy = (
        rows.pivot(index="candidate", columns="seed", values=name).to_numpy()
        for name in ("score", "accuracy")
    )
    candidates, seeds = score.shape
    private = KINDS[kind]

    def once() -> float:
        if kind.startswith("one"):
            return float(accuracy[rng.integers(candidates), rng.integers(seeds)])
        if kind == VOTE:
            winner = (count + VOTE_NOISE * rng.standard_normal(candidates)).argmax()
            return float(accuracy[winner, rng.integers(seeds)])
        if private is None:
            seed = int(rng.integers(seeds))
            chosen = int(score[:, seed].argmax())
        else:
            trials = private.number(rng)
            tried, at = rng.integers(candidates, size=trials), rng.integers(seeds, size=trials)
            noise = private.score_noise * rng.standard_normal(trials)
            best = int((score[tried, at] + noise).argmax())
            chosen, seed = int(tried[best]), int(at[best])
        others = np.delete(np.arange(seeds), seed)
        return float(accuracy[chosen, rng.choice(others)])

    return np.array([once() for _ in range(SEARCHES)])


def epsilon(rows: pd.DataFrame, kind: str, plan_of: Callable[[float], Plan]) -> float:
    """Return epsilon_with_search of a search of a kind with its final run."""
    from pflpipe.privacy import accounting

    plan = plan_of(rows["noise_multiplier"].iloc[0])
    assert plan.delta is not None
    private = KINDS[kind]
    if private is not None:
        return private.epsilon(plan, plan, plan.delta)
    if kind == VOTE:
        ballot = replace(plan, noise_multiplier=VOTE_NOISE, sample_rate=1.0, rounds=1)
        return accounting.composed_epsilon([plan, ballot], plan.delta)
    tried = 0 if kind.startswith("one") else rows["candidate"].nunique()
    return accounting.composed_epsilon([plan] * (tried + 1), plan.delta)


def plan_of(multiplier: float) -> Plan:
    """Return the plan of the study's runs."""
    return Plan("gaussian", 2, 1.0, multiplier, 0.1, 60, 1e-5, 3_200)


def main() -> None:
    """Write table and figure, and before them the runs if results are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?")
    given = parser.parse_args().results
    FOLDER.mkdir(exist_ok=True)
    if given is not None:
        runs(given).to_csv(FOLDER / "runs.csv", index=False, float_format="%.6g")
        votes(given).to_csv(FOLDER / "votes.csv", index=False)
    table = pd.read_csv(FOLDER / "runs.csv")
    count = pd.read_csv(FOLDER / "votes.csv")["votes"].to_numpy()
    methods = list(table["method"].unique())
    figure, axes = plt.subplots(1, len(methods), figsize=(6.7, 2.8), sharey=True, squeeze=False)
    lines = []
    for axis, method in zip(axes[0], methods, strict=True):
        rows = table[table["method"] == method]
        for kind in KINDS:
            if kind == VOTE and method != VOTER:
                continue
            reached = np.sort(searches(rows, kind, count))
            axis.step(reached, np.arange(1, SEARCHES + 1) / SEARCHES, where="post", label=kind)
            low, high = np.quantile(reached, [0.05, 0.95])
            spent = epsilon(rows, kind, plan_of)
            lines.append((method, kind, spent, reached.mean(), low, high))
        axis.set_title(method)
        axis.set_xlabel("accuracy of the final run, percent")
    axes[0, 0].set_ylabel("share of searches")
    axes[0, 0].legend(fontsize=6, loc="upper left")
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=200)
    names = ["method", "search", "epsilon_with_search", "mean", "low", "high"]
    text = pd.DataFrame(lines, columns=names)
    text.to_csv(FOLDER / "table.csv", index=False, float_format="%.4g")
    print(text.to_string(index=False))


if __name__ == "__main__":
    main()
