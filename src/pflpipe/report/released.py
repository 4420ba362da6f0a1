"""The released part of a study by itself, fit to be published: what an epsilon covers, and nothing
else of a run.

From every certified training run it takes the final model and what follows from the settings: the
plan, its ledger, the sizes of messages. Whatever else a run's files hold - participants, losses,
norms, times, accuracies, the round of a divergence, states - is a diagnostic and stays behind, and
so do dates and machines. What is written is thus a function of settings and releases alone: equal
releases give equal bytes, whatever the clients held.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pflpipe import records
from pflpipe.cells import Cell
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import atomic, write_json, write_text
from pflpipe.methods import registry
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Ledger, Planned
from pflpipe.privacy.plan import Plan
from pflpipe.report.comparison import round_up
from pflpipe.report.tidy import existing, record_of
from pflpipe.study.settings import CHOSEN_ON_VALIDATION
from pflpipe.study.study_spec import Study

SIZES = ("releases", "parameters", "uploaded_parameters", "upload_bytes_per_round")
"""What is taken of ``run.json``, by name, so that a number which a run writes tomorrow is not
published by itself."""

PROMISES = {
    "claim": (
        "certified: the run took every step of the mechanism, so that epsilon_central is true of it"
    ),
    "adjacency": (
        "what neighbours are; zero_out: one client's message is replaced by zeros in every round"
    ),
    "trust": (
        "whom all epsilons but the local ones trust; central: the server, to add the noise and "
        "show nothing else"
    ),
    "sampling": (
        "who takes part in a round; everybody, or poisson: each client by a secret draw of its own"
    ),
    "releases_per_round": "noisy sums in a round",
    "epsilon_target": "what the study asked for",
    "epsilon_central": (
        "what holds at delta against whoever sees the noisy sums of all rounds and the models "
        "made of them"
    ),
    "epsilon_replace_one": "the same, if neighbours replace a client's message by another one",
    "epsilon_local": (
        "what holds at delta against a server that sees every message with its own share of the "
        "noise: whether a client sent anything but noise"
    ),
    "epsilon_local_replace_one": (
        "the same, if neighbours replace a client's message by another one: which data it holds"
    ),
    "epsilon_rdp": (
        "what the Renyi accountant prints for epsilon_central; looser, to compare with papers"
    ),
    "delta": (
        "the chance that the promise fails altogether; a delta near 1/M, M clients, promises very "
        "little"
    ),
    "noise_multiplier": "the noise's standard deviation (Laplace: its scale) over clip_norm",
    "noise_multiplier_effective": "the part of it that epsilon_central counts",
    "noise_multiplier_message": "that of a single message, which epsilon_local counts",
    "clip_norm": "bound on the length of one client's message; of the first round, if it adapts",
    "clip_quantile": "of the messages' lengths, which an adaptive bound follows",
    "clip_bit_noise": "standard deviation of the noise on the sum of the bits that tell of it",
    "noise_multiplier_update": "the updates' part of the noise, over the bound of the round",
    "warnings": "what makes a number say less than it seems to",
    "releases": "noisy sums of the run, one in each round",
    "parameters": "scalars of the model",
    "uploaded_parameters": "scalars that a client sends in a round, the mean over the rounds",
    "upload_bytes_per_round": "what the expected number of participants sends, whoever was drawn",
}
"""What each number in a run's file says; a name that ends in _1e5 is the same at delta = 1e-5."""

NOT_COVERED = (
    "Accuracies, losses, times and numbers of participants are diagnostics: measured without "
    "noise, covered by no epsilon, and therefore not in here.",
    "What belongs to one client - its own model, head or mask - stays with that client and is not "
    "in here either.",
    "Runs add up. Whatever else is published about the same clients, from other studies too, "
    "costs them more than is said here.",
    "A partition of another seed deals the same examples to other simulated clients. Whoever "
    "means to protect an example and not a client adds up all runs.",
    "The noise is pseudo-random and follows from the settings, so whoever has this folder can "
    "compute it. Epsilon is what the mechanism gives with secret noise; data that are not public "
    "need a deployment that draws it so.",
    "The same settings give the same noise, whatever the code does with it. A run that another "
    "version of a method made under the same settings shows, beside the one here, the difference "
    "of both without noise: publish one of them.",
)


def left_out(cell: Cell) -> str:
    """Return why a cell's training run is not published; nothing for a run that a finite epsilon
    covers."""
    if cell.privacy.mechanism == "none":
        return "none: no privacy was asked for, so what it sends is covered by nothing"
    if cell.departures:
        return f"nominal: it departs from the certified mechanism ({', '.join(cell.departures)})"
    if cell.source:
        return f"unreviewed: pflpipe's developers have not reviewed {cell.source}"
    if cell.privacy.noise_multiplier == 0:
        return "no noise, so no finite epsilon holds"
    return ""


def write(study: Study, results: Path, target: Path) -> None:
    """Write a folder with ``<run>.npz`` and ``<run>.json`` of every certified run,
    ``manifest.json`` and ``README.md``.

    Args:
        results: folder with ``runs/`` and ``plans/``.
        target: the folder; it appears when it is complete, and is never written over.

    Raises:
        ConfigError: no run of the study is certified.
        DataError: a run's file is missing, or the run did something else than its plan says; the
            target exists.
    """
    published, missing = _chosen(study)
    if not published:
        raise ConfigError(
            f"study {study.name}",
            got="no certified run",
            expected="one at least, to have something to publish",
        )
    if target.is_dir() and any(target.iterdir()):
        raise DataError(f"{target}", got="files", expected="no such folder", do="move it away")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as parent:
        folder = Path(parent) / target.name
        runs = {name: _write_run(name, cell, results, folder) for name, cell in published.items()}
        manifest = {
            "study": study.name,
            "runs": {name: _guarantee(run.ledger) for name, run in runs.items()},
            "same_clients": _together(published, {name: run.plan for name, run in runs.items()}),
            "left_out": missing,
            "promises": PROMISES,
            "not_covered": [_choice(study), *NOT_COVERED],
        }
        write_json(folder / "manifest.json", manifest)
        write_text(folder / "README.md", _readme(study.title, manifest))
        folder.rename(target)


def _chosen(study: Study) -> tuple[dict[str, Cell], list[dict[str, str]]]:
    """Return the cell of every run to publish by the run's id, and what is left out; equal keys are
    one release."""
    published: dict[str, Cell] = {}
    missing: dict[str, dict[str, str]] = {}
    keys = set()
    for cell in study.cells:
        name, key, why = registry.run_id(cell), registry.key(cell), left_out(cell)
        if why:
            missing[name] = {"run": name, "method": cell.method, "why": why}
        elif key not in keys:
            keys.add(key)
            published[name] = cell
    return published, [run for name, run in missing.items() if name not in published]


def _write_run(name: str, cell: Cell, results: Path, folder: Path) -> Planned:
    """Write the two files of a run and return its plan and its ledger."""
    source = results / "runs" / name
    planned = records.load(Planned, existing(results / "plans" / f"{cell.plan_id}.json"))
    claim = planned.ledger.claim
    if claim != "certified":
        do = "delete the plan and run snakemake again"
        raise DataError(f"plan of {name}: claim", got=claim, expected="certified", do=do)
    run = record_of(source, planned.plan, cell.departures)
    promised = records.to_json(planned.ledger)
    about = {
        "cell": registry.trained(cell).to_dict(),
        "plan": records.to_json(planned.plan),
        "ledger": {key: value for key, value in promised.items() if value not in (None, [])},
        "released": {key: getattr(run.released, key) for key in SIZES},
    }
    _write_arrays(folder / f"{name}.npz", _model(existing(source / "state.pt")))
    write_json(folder / f"{name}.json", about)
    return planned


def _model(path: Path) -> dict[str, np.ndarray]:
    """Return the global model and, as ``server/<name>``, what the server computed from the releases
    besides.

    Parameters that the method leaves to its clients are those before the first round, which follow
    from the seed.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    server = {f"server/{name}": value for name, value in saved["server"].items()}
    return {
        name: np.asarray(value.numpy(), order="C")
        for name, value in (saved["params"] | server).items()
    }


def _write_arrays(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz whose bytes follow from the arrays: names in order, and no date (a bare ZipInfo
    has that of 1980)."""
    with atomic(target) as path, zipfile.ZipFile(path, "w") as bundle:
        for name in sorted(arrays):
            with bundle.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, arrays[name], allow_pickle=False)


# ---------------------------------------------------------------- what the runs are worth together


def _together(cells: Mapping[str, Cell], plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Return what all runs on the same clients cost them, at every delta of these runs and at
    1e-5."""
    groups: dict[str, list[str]] = {}
    for name, cell in cells.items():
        groups.setdefault(_clients(cell), []).append(name)
    known: dict[Any, Any] = {}
    found = []
    for names in groups.values():
        first = cells[names[0]]
        natural = first.partition.kind == "natural"
        key = tuple(sorted((plans[name] for name in names), key=repr))
        if key not in known:  # seeds repeat each other's plans
            known[key] = _curve(key)
        found.append(
            {
                "clients": f"users of {first.dataset}"
                if natural
                else f"partition {first.partition_id}",
                "runs": names,
                "epsilon_central": known[key],
            }
        )
    return found


def _clients(cell: Cell) -> str:
    """Return what tells the clients of one run from those of another.

    A client's share is dealt before parts of it are set aside, so it is the same client whatever
    fractions these are. Users of a data set are themselves whatever the seed, and the first M of
    them are among the first N.
    """
    if cell.partition.kind == "natural":
        return cell.dataset
    share = dataclasses.replace(cell.partition, validation_fraction=0.1, test_fraction=None)
    return dataclasses.replace(cell, partition=share).partition_id


def _curve(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    deltas = sorted({accounting.delta_of(plan) for plan in plans} | {1e-5})
    found = {delta: accounting.composed_epsilon(plans, delta) for delta in deltas}
    return [
        {"delta": delta, "epsilon": "inf" if value == math.inf else value}
        for delta, value in found.items()
    ]


# ---------------------------------------------------------------- words


def _guarantee(ledger: Ledger) -> dict[str, Any]:
    return {
        name: records.to_json(getattr(ledger, name))
        for name in ("epsilon_central", "delta", "epsilon_central_1e5")
    }


def _choice(study: Study) -> str:
    if any(row.chosen for row in study.rows):
        return CHOSEN_ON_VALIDATION
    return (
        "Hyper-parameters are those of the study's file. If they were chosen by looking at data, "
        "no ε covers that choice."
    )


def _readme(title: str, manifest: Mapping[str, Any]) -> str:
    runs = [
        f"| `{name}` | {_shown(found['epsilon_central'])} | {found['delta']:g} | "
        f"{_shown(found['epsilon_central_1e5'])} |"
        for name, found in manifest["runs"].items()
    ]
    together = [
        f"| {group['clients']} | {len(group['runs'])} | {_shown(point['epsilon'])} | "
        f"{point['delta']:g} |"
        for group in manifest["same_clients"]
        for point in group["epsilon_central"]
    ]
    promises = [f"- `{name}`: {words}" for name, words in manifest["promises"].items()]
    not_covered = [f"- {words}" for words in manifest["not_covered"]]
    missing = [f"- `{run['run']}`: {run['why']}" for run in manifest["left_out"]] or ["Nothing."]
    return f"""# {title}: what is released

The certified runs of the study `{manifest["study"]}`, and nothing of them that no epsilon covers.

- `<run>.npz`: the final global model, one array for each parameter. Arrays called `server/...` are
  what the server computed from the releases besides. Parts that a method leaves to its clients have
  their public first values.
- `<run>.json`: the settings (`cell`), the mechanism (`plan`), what it guarantees (`ledger`) and the
  sizes of its messages (`released`).
- `manifest.json`: this page for machines.

## What is promised

Protected is one client with all of its data, over all rounds of a run: whatever that client held,
what is here would have come out alike, up to epsilon and delta, had its messages been zeros.

| run | epsilon_central | delta | at delta 1e-5 |
|---|--:|--:|--:|
{_lines(runs)}

All runs here together cost the same clients:

| clients | runs | epsilon_central | delta |
|---|--:|--:|--:|
{_lines(together)}

The numbers of a run's file; a name that ends in `_1e5` is the same at delta = 1e-5:

{_lines(promises)}

## What is not

{_lines(not_covered)}

## Left out

{_lines(missing)}
"""


def _lines(found: Sequence[str]) -> str:
    return "\n".join(found)


def _shown(epsilon: float | str) -> str:
    return round_up(float(epsilon))
