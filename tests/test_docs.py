"""The examples printed in docs/ do what the text around them says."""

import dataclasses
import json
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import torch

import simulations
from pages import blocks, readme
from pflpipe import cells
from pflpipe.data import datasets, partition
from pflpipe.facts.departures import DEPARTURES
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.methods.base import Method
from pflpipe.pipeline.project import Project
from pflpipe.report import cards, statistics, verdicts
from pflpipe.simulation import rounds, runs, scores
from pflpipe.simulation.clients import Backend
from pflpipe.simulation.simulation import Simulation
from pflpipe.study.config import STUDIES, Config
from pflpipe.study.load import load_study
from pflpipe.study.plans import plan_of
from pflpipe.study.settings import NO_PRIVACY, layout

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "quickstart.md"


def example(document: str) -> str:
    """The first Python block of a document."""
    block = re.search(r"```python\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)
    assert block
    return block[1]


EXAMPLES = DOCS / "examples"
METHOD = "docs/examples/easgd.py"


def simulated(method: Method, backend: Backend, **changes: float) -> Simulation:
    """Three private rounds of six clients with four to nine rows each, half of them drawn, in
    float64; ``changes`` are of the plan."""
    plan = simulations.plan(6, **({"noise_multiplier": 1.0, "sample_rate": 0.5} | changes))
    sizes = (4, 5, 6, 7, 8, 9)
    world = simulations.simulation("dp_fedavg", plan=plan, backend=backend, sizes=sizes, lr=0.2)
    return dataclasses.replace(world, method=method)


def test_the_documents_are_short():
    """For a reader in a hurry; .github/CONTRIBUTING.md states the limits."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 100] == []
    words = {path: len(path.read_text().split()) for path in DOCS.rglob("*.md")}
    assert sum(words.values()) <= 80_000
    assert [path for path in words if path.parent == DOCS / "results" and words[path] > 1500] == []
    files = [path for path in (DOCS / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000


def test_the_paper_fits_its_journal_and_cites_what_the_methods_cite():
    """JOSS takes at most 1,000 words; a method is cited as ``pflpipe methods`` prints it."""
    text = (DOCS / "paper/paper.md").read_text()
    assert len(text.split()) <= 1000
    entries = re.findall(r"^@.*?^}", (DOCS / "paper/paper.bib").read_text(), re.M | re.S)
    known = {re.findall(r"{(\w+),", entry)[0]: entry for entry in entries}
    assert sorted(set(re.findall(r"@(\w+)", text))) == sorted(known)
    for entry in {entry for name in registry.NAMES for entry in cards.citations(name)}:
        assert known.get(re.findall(r"{(\w+),", entry)[0], entry) == entry


def trained(method: Method, backend: Backend, **changes: float) -> rounds.Progress:
    world = simulated(method, backend, **changes)
    return rounds.run(world, rounds.start(world))


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def easgd(**hyperparameters: float) -> Method:
    return registry.info("easgd", str(ROOT / METHOD)).factory(**hyperparameters)


def test_the_page_shows_the_example_method_and_its_study_as_they_are():
    page = (DOCS / "adding_a_method.md").read_text()
    assert example("adding_a_method.md") == (ROOT / METHOD).read_text()
    assert f"```yaml\n{(EXAMPLES / 'easgd.yaml').read_text()}```" in page


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_the_first_release_of_the_example_method_is_that_of_dp_fedavg_times_its_force(backend):
    once = {"sample_rate": 1.0, "rounds": 1, "noise_multiplier": 0.0, "clip_norm": 99.0}
    methods = (registry.info("dp_fedavg").factory(), easgd(force=1.0), easgd(force=0.5))
    plain, whole, half = (trained(method, backend, **once).params for method in methods)
    assert distance(whole, plain) == 0
    start = rounds.start(simulated(easgd(), backend, **once)).params
    assert distance(half, {name: (start[name] + plain[name]) / 2 for name in start}) < 1e-15


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_without_force_the_example_method_trains_every_clients_model_alone(backend):
    alone = trained(registry.info("local_only").factory(), backend).states
    assert distance(trained(easgd(force=0.0), backend).states, alone) == 0


def test_without_clip_and_noise_the_example_methods_centre_gets_what_the_clients_give():
    """Of all clients, of whom half are drawn."""
    quiet = {"clip_norm": 1e9, "noise_multiplier": 0.0}
    start = rounds.start(simulated(easgd(), "loop", **quiet)).params
    alone, tied = (trained(easgd(force=f), "loop", rounds=1, **quiet) for f in (0.0, 0.3))
    moved = {name: value - start[name] for name, value in tied.params.items()}
    given = {name: (alone.states[name] - tied.states[name]).mean(0) for name in moved}
    assert max(float(value.abs().max()) for value in given.values()) > 1e-3
    assert distance(moved, given) < 1e-15


def test_the_more_force_the_nearer_are_the_example_methods_models_to_their_centre():
    lengths = []
    for force in (0.0, 0.3, 0.9):
        done = trained(easgd(force=force), "loop")
        apart = (done.states[name] - value for name, value in done.params.items())
        lengths.append(sum(float(part.square().sum()) for part in apart))
    assert lengths == sorted(set(lengths), reverse=True)


@pytest.mark.docs
def test_the_example_study_runs_as_it_is(here):
    """Copied into an empty project, as the page says: the scripts of the workflow in its order."""
    (here / "studies").mkdir()
    for file in ("easgd.py", "easgd.yaml"):
        shutil.copy(EXAMPLES / file, "studies")
    cells_of, how = load_study("easgd").cells, {"device": "cpu", "backend": "auto"}
    datasets.prepare("digits", None, here, Path("data/digits.npz"))
    arrays = datasets.load_arrays(Path("data/digits.npz"))
    names = [cell.id for cell in cells_of]
    places = scores.places_of(cells_of, names, Path("results"), Path("data"))
    for cell, inputs, folder in places:
        partition.make(arrays, cell.partition, cell.seed).save(inputs.partition)
        write_json(inputs.plan, to_json(plan_of(cell)))
        job = cells.Cell.from_dict(json.loads(json.dumps(registry.run_cell(cell).to_dict())))
        runs.train(job, inputs, folder, Path("checkpoints"), checkpoint_seconds=60, **how)
    scores.evaluate_cells(places, Path("scores.csv"), **how)
    rows = pd.read_csv("scores.csv").groupby("cell")["personal_own"].mean()
    found = {(c.method, c.hyperparameters.get("force")): rows[c.id] for c in cells_of}
    assert len(found) == 4
    assert found["easgd", 0.1] > found["dp_fedavg", None], "what the study is there to show"


def test_the_example_arrays_are_read_as_a_data_set_with_users(tmp_path, monkeypatch):
    assert example("data.md") == (DOCS / "examples/my_data.py").read_text()
    monkeypatch.chdir(DOCS / "examples")
    target = tmp_path / "data/my_rows.npz"
    datasets.prepare("my_rows", Path("my_data.py:load"), tmp_path / "downloads", target)
    arrays = datasets.load_arrays(target)
    assert arrays.classes == 4
    assert len(arrays.train_labels) + len(arrays.test_labels) == 2000
    assert arrays.train_users is not None
    wish = cells.Partition("natural", clients=50)
    split = partition.make(arrays, wish, seed=0)
    assert all(len(rows) for rows in (*split.train, *split.test))


def test_the_documents_list_every_named_data_set_and_every_partition():
    text = (DOCS / "data.md").read_text()
    kinds = cells.OPTIONS["partition.kind"].option.choices
    assert [name for name in (*datasets.DATASETS, *kinds) if f"`{name}`" not in text] == []


def test_the_table_of_departures_explains_each_one_once():
    table = (DOCS / "privacy.md").read_text().partition("| departure |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(cells))) == sorted(DEPARTURES)


def test_pages_name_the_rules_that_their_words_follow():
    text = " ".join((DOCS / "results.md").read_text().split())
    assert f"With fewer than {statistics.MIN_SEEDS} seeds nothing is said." in text
    assert f"a gain of {verdicts.MARGIN:g} percentage point" in text
    rules = " ".join((DOCS / "when_it_pays.md").read_text().split())
    assert f"A gain counts from **{verdicts.MARGIN:g} percentage point** on" in rules
    drop, spreads = f"{statistics.DROP:g}", f"{statistics.SPREADS:g}"
    assert f"more than {drop} points, and more than {spreads} standard deviations" in rules
    assert f"({statistics.PRIOR:g} degrees; fewer where few are pooled)" in rules


def readme_lines(block: str) -> list[tuple[str, str]]:
    """Method with variant, and budget, of every personal accuracy that the table names."""
    table = re.findall(r"^\|(.*)\|$", block, re.MULTILINE)
    header, _, *rows = ([entry.strip() for entry in line.split("|")] for line in table)
    found = []
    for row in rows:
        label, claim = row[0].replace("\\_", "_"), row[1]
        for heading, entry in zip(header, row, strict=True):
            if heading.startswith("personal, ") and entry:
                budget = heading.removeprefix("personal, ")
                found.append((label, NO_PRIVACY if claim.startswith("none") else budget))
    return found


def test_the_page_names_exactly_the_lines_of_the_quickstart_as_it_is():
    study = load_study(readme.QUICKSTART, ROOT / STUDIES)
    wanted = [(setting.label, setting.budget) for setting in layout(study).settings]
    _, block, _ = blocks.split(PAGE.read_text(), readme.TABLE, str(PAGE))
    assert sorted(readme_lines(block)) == sorted(wanted), "renew it with: make quickstart readme"


def of_others(text: str, part: str) -> list[str]:
    """The blocks of a page whose numbers are of other ``runs`` than their study has now, or of
    other ``code``."""
    project = Project(Config(studies=()), ROOT, thorough=False)
    found = []
    for name in (readme.TABLE, readme.COMPARED):
        study = load_study(name.partition(":")[0], ROOT / STUDIES)
        comment = readme.runs_comment(study, project.training_code)
        (wanted,) = re.findall(rf"{part} \w+", comment)
        if wanted not in blocks.split(text, name, str(PAGE))[1]:
            found.append(name)
    return found


@pytest.mark.slow
def test_the_numbers_of_the_documents_are_of_the_runs_that_their_studies_have_now():
    for page, names in readme.PAGES.items():
        for name in names:
            assert blocks.split((ROOT / page).read_text(), name, page)[1].strip(), (page, name)
    text = PAGE.read_text()
    for part in ("runs", "code"):
        changed = text.replace(f"{part} ", f"{part} 0")
        assert of_others(changed, part) == [readme.TABLE, readme.COMPARED], "others are noticed"
    assert of_others(text, "runs") == [], "renew them with: make quickstart report readme"
    # No failure: whoever changes code that trains need not train everything again in the same
    # commit.
    for name in of_others(text, "code"):
        warnings.warn(f"{PAGE.name}, block {name!r}: its numbers are of other code", stacklevel=1)


def test_the_readme_says_what_the_page_says():
    """The accuracies of its block stand in the page's table, its other numbers in its sentences."""
    block = blocks.split((ROOT / "README.md").read_text(), readme.VERDICT, "README.md")[1]
    page = PAGE.read_text()
    said = blocks.split(page, readme.TABLE, "")[1] + blocks.split(page, readme.SENTENCES, "")[1]
    numbers = re.findall(r"\d+\.\d", block)
    assert len(numbers) > 5
    assert [number for number in numbers if number not in said] == []


def gap(point: pd.Series) -> str:
    text = f"{point['gain']:+.1f} ({point['low']:.1f} to {point['high']:.1f})"
    return text.replace("-", "−")


def test_the_page_of_heterogeneity_prints_its_points():
    text = (DOCS / "heterogeneity.md").read_text(encoding="utf-8")
    points = pd.read_csv(DOCS / "heterogeneity/points.csv")
    for (alpha, shifted), pair in points.groupby(["alpha", "shifted"]):
        low, high = (pair[pair["epsilon"] == budget].iloc[0] for budget in (2, 8))
        of_all = (f"{high[name]:.1f}" for name in ("local_only", "released"))
        cells = [f"{alpha:g}", f"{shifted:g}", *of_all]
        for point in (high, low):
            name = point["personal"].replace("_", "\\_")
            cells += [f"{name} {point[point['personal']]:.1f}", gap(point)]
        assert f"\n| {' | '.join(cells)} |\n" in text
    shared = pd.read_csv(DOCS / "heterogeneity/shared_answers.csv")
    for share, pair in shared.groupby("share"):
        columns = (pair[name] for name in ("fedrep", "one_release_factors", "item_effects"))
        shown = (", ".join(f"{value:.1f}" for value in column) for column in columns)
        assert f"\n| {share:g} | {' | '.join(shown)} |" in text


def test_the_page_of_privacy_prints_the_accuracies_of_secure_noise():
    runs = pd.read_csv(DOCS / "secure_noise/runs.csv", keep_default_na=False)
    runs["budget"] = runs["epsilon_central"].round(3)
    scores = runs.groupby(["study", "budget", "variant"])["personal_own"]
    known = {key: (values.mean(), values.std()) for key, values in scores}
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    for study, name in (("secure_noise_spi", "SPI"), ("secure_noise_mnist", "MNIST")):
        for budget in (0.5, 2, 8):
            cells = []
            for variant in ("", "secure noise", "12 bits", "16 bits", "20 bits"):
                mean, deviation = known.get((study, budget, variant), (None, None))
                cells.append("refused" if mean is None else f"{mean:.1f} ± {deviation:.1f}")
            start = f"| {name} | 0.5" if budget == 0.5 else f"| | {budget:g}"
            assert f"\n{start} | {' | '.join(cells)} |\n" in text
