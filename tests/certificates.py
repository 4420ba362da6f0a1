"""A made-up study with a release of every kind, its true plans and results, and its certificate."""

import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fake_audits
import fake_results
from pflpipe.cells import Cell, Features, Model, Partition, Privacy
from pflpipe.code import meaning
from pflpipe.files import read_json, write_json
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.pipeline import certificate
from pflpipe.privacy import accounting
from pflpipe.report import tidy
from pflpipe.study import search
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Row, Study
from tabled import table

EXAMPLES = Path(__file__).parents[1] / "docs/examples"
SIZES = np.arange(5, 17)
PIN = "0123456789abcdef" * 4


def cell(
    method: str = "dp_fedavg",
    profile: str = "strict",
    departures: Sequence[str] = (),
    seed: int = 0,
    **changes: Any,
) -> Cell:
    """A cell of fake_results; ``changes`` are of its privacy and training."""
    official = profile == "official"
    version = "paper" if official else profile
    budget, training = fake_results.BASE.privacy, fake_results.BASE.training
    changes["departures"] = tuple(departures)  # of the method, and of its plan
    of_training = {name: value for name, value in changes.items() if hasattr(training, name)}
    of_budget = {name: value for name, value in changes.items() if hasattr(budget, name)}
    is_private = registry.info(method).about.private
    return dataclasses.replace(
        fake_results.BASE,
        method=method,
        hyperparameters=registry.check_hyperparameters(method, {}),
        privacy=dataclasses.replace(budget, **of_budget) if is_private else Privacy(),
        training=dataclasses.replace(training, batch_size=4, **of_training),
        profile=version,
        official_code=official,
        departures=(*registry.departures(method, version, official), *departures),
        seed=seed,
    )


def other(**changes: Any) -> Cell:
    """The cell of DP-FedAvg with other fields."""
    return dataclasses.replace(cell(), **changes)


EASGD, SMALL_CNN = (meaning.sha256(EXAMPLES / f"{name}.py") for name in ("easgd", "small_cnn"))
USERS = Partition("natural", clients=12, test_fraction=0.2)  # whom a search shares with its rows
SEARCHED = [dataclasses.replace(cell(seed=seed), partition=USERS) for seed in (0, 1)]
DEALT = dataclasses.replace(fake_results.BASE.partition, users="ignored", max_clients_per_user=3)
TO_ANY = dataclasses.replace(DEALT, max_clients_per_user=None)
CELLS = {
    "found by a search": SEARCHED[0],
    "its second seed": SEARCHED[1],
    **{name: cell(**given) for name, given in table("certificates").items()},
    "unreviewed": other(method="easgd", source="easgd.py", digests={"method": EASGD}),
    "own network": other(model=Model("small_cnn.py:SmallCNN"), digests={"network": SMALL_CNN}),
    "all users": dataclasses.replace(
        cell(augment=("flip",)),
        partition=dataclasses.replace(USERS, clients=0),
        model=Model("mlp", (32,), init="start.safetensors", init_digest=PIN),
        features=Features("scattering"),
    ),
    "found by a search on other clients": cell(seed=2),
    "dealt": other(partition=DEALT),
    "dealt to any": other(partition=TO_ANY),
}
OF_THE_DATA = {"declared": False, "unit": "patient"}


def written(folder: Path) -> Path:
    """Write the study's results below a folder that has the code of its users; return the file of
    its certificate."""
    for file in ("easgd.py", "small_cnn.py"):
        shutil.copy(EXAMPLES / file, folder)
    # Elsewhere there are no files of unreviewed code.
    with contextlib.chdir(folder):
        return file_of(write(folder))


def write(folder: Path) -> Path:
    """Write results and certificate of the study."""
    results = folder / "results"
    (folder / "data").mkdir()
    (folder / "data" / "digits.pin").write_text(f"{PIN}\n")
    scores: dict[str, list[Any]] = {}
    for one in CELLS.values():
        scores.setdefault(one.method, []).extend(fake_results.write_run(one, results))
        record = results / "runs" / registry.run_id(one) / "run.json"
        content = read_json(record)
        content["diagnostics"]["residuals"]["moves"] = fake_results.ROUNDS
        write_json(record, content)
        for planned in filter(None, (one, as_published(one))):
            plan = plan_of(planned, SIZES, **(OF_THE_DATA if one is CELLS["all users"] else {}))
            write_json(results / "plans" / f"{planned.plan_id}.json", to_json(plan))
    for method, lines in scores.items():
        file = results / "scores" / "tiny" / f"{method}.csv"
        fake_results.write_csv(file, ",".join(fake_results.SCORES), lines)
    fake_audits.write(results / "audits")
    fake_audits.claim_truly(results / "audits")
    plan = plan_of(SEARCHED[0]).plan
    both = accounting.composed_epsilon([plan] * 7, 0.001)
    chosen = {"index": 1, "values": {"training.lr": 0.5}, "sets": 3, "runs": 6, "delta": 0.001}
    chosen |= {"epsilon": accounting.epsilon(plan, 0.001), "epsilon_with_search": both}
    line = {"line": "dp_fedavg", "rows": [one.id for one in SEARCHED], "chosen": chosen}
    line |= {"plans": {SEARCHED[0].plan_id: 6}, "private": None}
    dealt = CELLS["found by a search on other clients"]
    private = {"trials": 3.0, "distribution": "geometric", "score_noise": 2.0}
    other = line | {"rows": [dealt.id], "plans": {dealt.plan_id: None}, "private": private}
    uncounted = {"epsilon_with_search": None, "search_not_counted": search.OTHER_CLIENTS}
    other["chosen"] = chosen | uncounted | {"runs": None}
    write_json(results / "searches" / "tiny.json", {"grid": "", "lines": [line, other]})
    tidy.write(tidy.tidy(study(), results), results / "tables" / "tiny.csv")
    certificate.write(study(), results, folder / "data")
    return results


def study() -> Study:
    return Study("tiny", "A tiny study", "Made up.", tuple(map(Row, CELLS.values())))


def file_of(results: Path) -> Path:
    return results / "tables" / "tiny.certificate.json"
