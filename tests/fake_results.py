"""A small, complete results tree in the formats that the rules write, for tests of tables, figures
and tracking.

The numbers are made up, but of the right kind: a nominal method whose honest epsilon is infinite, a
method without a global model, clients without test rows, a run that diverged.
"""

import csv
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.code.dependencies import claim_of
from pflpipe.data.split import Split
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.learning.metrics import CONSTANT_ERROR
from pflpipe.methods import registry
from pflpipe.privacy.ledger import Ledger, Planned
from pflpipe.privacy.plan import Plan
from pflpipe.report.tidy import tidy
from pflpipe.report.tidy import write as write_tidy
from pflpipe.seeds import numpy_rng
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.study_spec import Row, Study

RUN = Path(__file__).with_name("fake_run.json")
ROUNDS = 4
BASE = Cell(
    dataset="digits",
    partition=Partition("dirichlet", clients=12, alpha=0.3, min_size=6, test_fraction=0.2),
    model=Model("mlp", (32,)),
    training=Training(rounds=ROUNDS, local_epochs=5, batch_size=0, optimizer="sgd", lr=0.5),
    privacy=Privacy("gaussian", epsilon=2.0, delta=0.001, clip_norm=0.5),
    method="dp_fedavg",
)
SCORES = (
    *("cell", "client", "train_size", "personal_own", "personal_validation", "personal_common"),
    *("global_own", "global_validation", "global_common", "personal_new", "global_new"),
)
OF_ROUNDS = (
    *("round", "participants", "loss", "update_norm_mean", "update_norm_max", "fraction_clipped"),
    *("nonfinite_uploads", "noise_norm", "signal_norm", "signal_to_noise"),
    *("personal_own", "personal_common", "global_common"),
)
PUBLIC = {"local_only", "fedavg"}
OFFICIAL = ("sample_level_calibration", "data_size_weights", "update_against_global")


def study(
    name: str = "tiny",
    seeds: Sequence[int] = (0, 1, 2),
    epsilons: Sequence[float] = (2.0, 8.0),
    methods: Sequence[str] = ("local_only", "fedavg", "dp_fedavg", "feddpa", "feddpa!"),
    base: Cell = BASE,
    **row: Any,
) -> Study:
    """Return a study of epsilons x methods x seeds; ``feddpa!`` is FedDPA as its official code does
    it."""
    rows = {}
    for method, epsilon, seed in itertools.product(methods, epsilons, seeds):
        budget = replace(base.privacy, epsilon=epsilon)
        changes: dict[str, Any] = {"privacy": Privacy() if method in PUBLIC else budget}
        changes["hyperparameters"] = {"tau": 0.4} if method.startswith("feddpa") else {}
        if method.endswith("!"):
            changes |= {"profile": "paper", "official_code": True, "departures": OFFICIAL}
        cell = replace(base, method=method.removesuffix("!"), seed=seed, **changes)
        rows.setdefault(cell.id, Row(cell, **row))
    return Study(name, "A tiny study", "Made up.", tuple(rows.values()))


def write(study: Study, folder: Path, *, diverged: dict[str, int] | None = None) -> Path:
    """Write data and results of a study below ``folder`` and return ``folder / "results"``.

    Args:
        diverged: cell id -> the round in which that run diverged.
    """
    results = folder / "results"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    labels, images = np.arange(600) % 10, np.zeros((600, 8, 8), np.uint8)
    arrays = {"train_images": images, "train_labels": labels}
    arrays |= {"test_images": images[:100], "test_labels": labels[:100]}
    arrays |= {"classes": np.int64(10), "mean": [0.0], "std": [1.0]}
    np.savez(folder / "data" / "digits.npz", **arrays)
    scores: dict[str, list[list[Any]]] = {}
    for cell in study.cells:
        _write_partition(cell, results / "partitions" / f"{cell.partition_id}.npz", labels)
        for planned in filter(None, (cell, as_published(cell))):
            write_json(results / "plans" / f"{planned.plan_id}.json", plan(planned))
        lines = write_run(cell, results, (diverged or {}).get(cell.id))
        scores.setdefault(cell.method, []).extend(lines)
    others = [name for name in study.metrics if name != "accuracy"]
    of_errors = [] if study.metric.unit == "%" else [CONSTANT_ERROR]
    of_others = [f"{other}_{name}" for other in others for name in SCORES[3:]]
    header = ",".join([*SCORES, *of_others, *of_errors])
    for method, lines in scores.items():
        # Every other metric has the numbers of accuracy.
        complete = [[*line, *line[3:] * len(others), *[80.0] * len(of_errors)] for line in lines]
        write_csv(results / "scores" / study.name / f"{method}.csv", header, complete)
    write_tidy(tidy(study, results), results / "tables" / f"{study.name}.csv")
    return results


def write_run(cell: Cell, results: Path, diverged: int | None = None) -> list[list[Any]]:
    """Write runs/<cell>/ and return the score lines of the cell."""
    rng = numpy_rng(cell.seed, cell.method, str(cell.privacy.epsilon))
    private, is_alone = cell.privacy.mechanism != "none", cell.method == "local_only"
    folder = results / "runs" / registry.run_id(cell)
    count, every = cell.training.rounds, cell.training.evaluate_every
    rounds = []
    for number in range(1, count + 1):
        is_finite = diverged is None or number < diverged
        loss = 2.3 / number + 0.1 * rng.random() if is_finite else math.nan
        noise, signal = 2.0 * private, 1.5 / number
        lengths = [0.4, 0.9, 0.5 * private, 0, noise, signal]
        lengths.append(signal / noise if private else math.inf)
        is_evaluated = every and number % every == 0
        curves = [60.0 + number, 50.0 + number, ""] if is_evaluated else ["", "", ""]
        rounds.append([number, _clients(cell), loss, *lengths, *curves])
    write_csv(folder / "rounds.csv", ",".join(OF_ROUNDS), rounds)
    timing = [[number, 0.25, 500, 2000.0] for number in range(1, count + 1)]
    write_csv(folder / "timing.csv", "round,seconds,images,images_per_second", timing)
    run = json.loads(RUN.read_text())
    run["cell"] = registry.run_cell(cell).to_dict()
    run["released"]["releases"] = 0 if is_alone else count
    if is_alone:
        run["released"] |= {"uploaded_parameters": 0, "upload_bytes_per_round": 0.0}
    diagnostics = {"diverged_round": diverged, "nonfinite_uploads": 4 * (diverged is not None)}
    run["diagnostics"] |= diagnostics | {"participants": count * _clients(cell)}
    run["diagnostics"]["residuals"] |= {"releases": count, "coordinates": 2410 * count}
    run["code"] = [vars(part) for part in registry.trained(cell).outside]
    write_json(folder / "run.json", run)
    budget = cell.privacy.epsilon or 0.0
    level = {"local_only": 70.0, "fedavg": 90.0}.get(cell.method, 70 + budget)
    lines = []
    for client in range(_clients(cell)):
        own = level + float(rng.normal())
        shared = ["", "", ""] if is_alone else [own - 1, own - 1, own - 2]
        lines.append([cell.id, client, 14, own, own, own - 5, *shared, "", ""])
    return lines


def _clients(cell: Cell) -> int:
    return cell.partition.clients or 12  # of natural users only the data set knows the number


def plan(cell: Cell) -> dict[str, Any]:
    """Return the contents of a plan file."""
    budget, training = cell.privacy, cell.training
    private, nominal = budget.mechanism != "none", bool(cell.departures)
    sigma = None if not private else 24.0 / (budget.epsilon or 1.0)
    # What holds for each epsilon that was asked for, as a multiple of it.
    factors = {"central": 1, "central_1e5": 1.5, "replace_one": 2.5, "replace_one_1e5": 3}
    factors |= {"local": 6, "local_1e5": 7, "local_replace_one": 14}
    factors |= {"local_replace_one_1e5": 16, "rdp": 1.1, "rdp_1e5": 1.6}
    honest: dict[str, Any] = dict.fromkeys(factors, math.inf if private else None)
    if budget.epsilon is not None and not nominal:
        honest = {name: budget.epsilon * factor for name, factor in factors.items()}
    effective = sigma if sigma is None or not nominal else 0.0
    most, person = cell.partition.max_clients_per_user, None
    if cell.partition.users and honest["central"] is not None:
        person = honest["central"] * (most or 100)
    of_both = {"delta": budget.delta, "noise_multiplier": sigma, "clip_norm": budget.clip_norm}
    shape = {"sample_rate": training.sample_rate, "rounds": training.rounds}
    rule = Plan(budget.mechanism, 2, clients=_clients(cell), noise=budget.noise, **of_both, **shape)
    entry = Ledger(
        claim=claim_of(budget.mechanism, cell.departures, cell.outside),
        departures=cell.departures,
        adjacency="zero_out",
        trust="central" if private else None,
        sampling="everybody",
        releases_per_round=None if not private else _clients(cell) if nominal else 1,
        epsilon_target=budget.epsilon,
        epsilon_nominal=budget.epsilon if nominal else None,
        noise_multiplier_effective=effective,
        noise_multiplier_message=None if effective is None else effective / _clients(cell) ** 0.5,
        noise_multiplier_weighted=effective if "data_size_weights" in cell.departures else None,
        unit="dealt client" if cell.partition.users else "user",
        max_clients_per_user=most,
        epsilon_person=person,
        epsilon_person_1e5=person,
        **of_both,
        **{f"epsilon_{name}": value for name, value in honest.items()},
    )
    return to_json(Planned(rule, entry))


def _write_partition(cell: Cell, path: Path, labels: np.ndarray) -> None:
    rng, clients = numpy_rng(cell.seed, "fake partition"), _clients(cell)
    order = np.argsort(labels, kind="stable")
    bounds = np.sort(rng.choice(np.arange(3, len(labels) - 3), clients - 1, replace=False))
    shares = np.split(order, bounds)
    parts = (slice(2, None), slice(1, 2), slice(1))
    train, validation, test = ([share[part] for share in shares] for part in parts)
    Split(train, validation, test, common=np.arange(100), own_from_train=True).save(path)


def write_csv(path: Path, header: str, lines: Sequence[Sequence[Any]]) -> None:
    """Write a CSV file as Python's csv module does it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(lines)
