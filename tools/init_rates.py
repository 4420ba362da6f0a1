"""The rates that ``pflpipe init`` proposes, beside those that each study tuned.

    python tools/init_rates.py                  the rule, and what it is without each data set
    python tools/init_rates.py write FOLDER     studies that try it, each without its own data set
    python tools/init_rates.py compare RESULTS  what they reached, beside the tuned rates

The rule reads the committed searches, so validation rows alone: of every data set of a kind of
network the two best candidates, the geometric mean of both, then that over the data sets. On items,
FedRep's head learns for as long as a person has answers, as early stopping is a ridge penalty whose
weight falls with rows (Ali, Kolter, Tibshirani, "A Continuous-Time View of Early Stopping for Least
Squares Regression", AISTATS 2019), so its rate is proposed for each answer.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pages import archive
from pflpipe.report.comparison import MAIN

RESULTS = Path(__file__).parents[1] / "docs/results"
STUDIES = {
    "items": ("people_spi", "people_jester", "people_insteval"),
    "features": ("people_nafld", "people_randhie", "people_rwm5yr"),
}
JUDGED = ("people_spi", "people_epi", *STUDIES["features"])
"""people_epi has no search: its rates are those that people_spi found."""
BEST, BUDGET = 2, "ε = 2"
METHODS = ("dp_fedavg", "fedrep")
PATHS = {
    "lr": ("dp_fedavg", "training.lr"),
    "fedrep_lr": ("fedrep", "training.lr"),
    "fedrep_clip": ("fedrep", "privacy.clip_norm"),
    "fedrep_head_lr": ("fedrep", "hyperparameters.head_lr"),
}


def answers(study: str) -> float:
    """Return the mean number of training rows of a person of a committed study."""
    held = next(iter(archive.read(RESULTS / study).held.values()))
    return float(held["train_size"][~archive.is_new(held)].mean())


def _of_study(study: str, kind: str) -> dict[str, float]:
    lines = json.loads(gzip.decompress((RESULTS / study / archive.SEARCH).read_bytes()))["lines"]
    found = {}
    for name, (method, path) in PATHS.items():
        line = next(one for one in lines if one["line"].startswith(f"{method} at "))
        ranked = sorted(line["candidates"], key=lambda one: -one["personal_validation"])
        found[name] = _mean([one["values"][path] for one in ranked[:BEST]])
    if kind == "items":
        found["fedrep_head_lr"] /= answers(study)
    return found


def _mean(values: Collection[float]) -> float:
    return float(np.exp(np.mean(np.log([*values]))))


def proposed(kind: str, without: str = "") -> dict[str, float]:
    """Return the rates of a kind of network, to two digits; on items, FedRep's ``head_lr`` for each
    answer of a person. ``without`` leaves a study out."""
    known = [_of_study(study, kind) for study in STUDIES[kind] if study != without]
    return {name: float(f"{_mean([one[name] for one in known]):.2g}") for name in PATHS}


def outline(study: str) -> dict[str, Any]:
    """Return a study that tries the rule, fitted without its own data set."""
    kind = "features" if study in STUDIES["features"] else "items"
    rates = proposed(kind, study)
    document: dict[str, Any] = yaml.safe_load(
        Path(f"studies/{study}.yaml").read_text(encoding="utf-8")
    )
    document.pop("search", None)
    head = rates["fedrep_head_lr"] * (answers(study) if kind == "items" else 1)
    fedrep: dict[str, Any] = {
        "name": "fedrep",
        "training": {"lr": rates["fedrep_lr"]},
        "privacy": {"clip_norm": rates["fedrep_clip"]},
        "hyperparameters": {"head_lr": float(f"{head:.2g}"), "head_epochs": 15},
    }
    if kind == "features":
        fedrep["model"] = {"name": "mlp", "hidden": [16]}
    document["training"]["lr"] = rates["lr"]
    document["axes"] = {"privacy.epsilon": [2]}
    document["methods"] = [{"name": "dp_fedavg"}, fedrep]
    return document


def write(folder: Path) -> None:
    """Write the studies that try the rule."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in JUDGED:
        text = yaml.safe_dump(outline(name), sort_keys=False, allow_unicode=True)
        (folder / f"init_{name}.yaml").write_text(text, encoding="utf-8")


def compared(results: Path) -> pd.DataFrame:
    """Return accuracy on own test rows of every study and method with the proposed rates and with
    the tuned ones, in percent, the mean over the seeds that both have."""
    rows = []
    for study in JUDGED:
        runs = archive.read(RESULTS / study).runs
        for method in METHODS:
            file = results / "scores" / f"init_{study}" / f"{method}.csv"
            known = runs[(runs["line"] == method) & (runs["budget"] == BUDGET)]
            if not file.is_file() or known.empty:
                continue
            scores = pd.read_csv(file).groupby("cell")[MAIN].mean()
            seeds = [int(str(cell).split("-seed")[1].split("-")[0]) for cell in scores.index]
            tuned = known.set_index("seed").loc[seeds, MAIN].mean()
            rows.append((study, method, scores.mean(), tuned, scores.mean() - tuned))
    return pd.DataFrame(rows, columns=["study", "method", "proposed", "tuned", "difference"])


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deed", nargs="?", choices=("write", "compare"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results"))
    args = parser.parse_args()
    if args.deed == "write":
        write(args.folder)
    elif args.deed == "compare":
        print(compared(args.folder).round(2).to_string(index=False))
    else:
        for kind, studies in STUDIES.items():
            for without in ("", *studies):
                print(kind, f"without {without}" * bool(without), proposed(kind, without))


if __name__ == "__main__":
    main()
