"""studies/readings/: every value has its source, studies are what their readings make, and every
verdict of docs/reproduction.md follows from committed results by one rule."""

import dataclasses
import math
import operator
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

import malformed
from pages import readings, reproduction, verdict_rule
from pages.verdict_rule import NO_POWER, NOT_REPRODUCED, REPRODUCED, TOGETHER
from pflpipe.cells import Cell, Privacy
from pflpipe.study.load import load_study
from pflpipe.study.plans import plan_of

ROOT = malformed.ROOT
STUDIES, FOLDER = ROOT / "studies", ROOT / "docs/reproduction"
REGISTRIES = readings.load(STUDIES)
READINGS = [one for registry in REGISTRIES.values() for one in registry["readings"]]
PRINTED = yaml.safe_load((STUDIES / "paper_results.yaml").read_text())["results"]


def of_parts(registry: dict) -> list[dict]:
    """Return the options of a registry's studies and of its surrogate."""
    parts = [*registry.get("studies", {}).values(), registry.get("surrogate", {"options": []})]
    return [option for part in parts for option in part["options"]]


def table_of(title: str) -> list[list[str]]:
    """Return the cells of the table below a heading of docs/reproduction.md."""
    page = (ROOT / "docs/reproduction.md").read_text()
    below = page.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def test_the_studies_of_readings_are_what_these_make():
    made = dict(readings.study_texts(STUDIES))
    assert {file.stem for file in made} >= {"feddpa_official_code", "dp_fedsim_readings_sgd"}
    for file, text in made.items():
        assert file.read_text() == text, "make readings"


@pytest.mark.parametrize("name", REGISTRIES)
def test_every_value_of_a_reading_has_a_source_and_every_reading_both_controls(name):
    registry = REGISTRIES[name]
    options = [*registry.get("options", []), *of_parts(registry)]
    assert {option["agree"] for option in options} <= {"both", "paper", "code", "differ", "ours"}
    assert all(option["source"] for option in [*options, *registry["untried"]])
    for repository in registry["code"].values():
        assert re.fullmatch(r"[\w-]+/[\w-]+ [0-9a-f]{40}", repository)
    assert registry["stop"].strip()
    assert registry["next"].strip()
    for one in [*registry["readings"], *filter(None, [registry.get("surrogate")])]:
        assert set(one["controls"]) == {"zero_noise", "zero_signal"}
        control = one["controls"]["zero_signal"]
        assert control["run"] in readings.CONTROLLED
        assert (control["run"] == "none") == ("found" not in control)


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_value_of_a_code_names_a_file_and_a_line(name):
    for option in of_parts(REGISTRIES[name]):
        if option["agree"] == "code":
            assert re.search(r"[\w/]+\.py:\d+", option["source"]), option


def test_a_row_with_the_values_of_a_code_has_each_of_its_own_from_there():
    part = REGISTRIES["feddpa_table2"]["studies"]["feddpa_official_code"]
    row = "feddpa, official code, its own values"
    own = {one["set"]: one for one in part["options"] if row in one.get("rows", [])}
    assert {"hyperparameters.lambda_1", "hyperparameters.lambda_2"} <= set(own)
    for option in own.values():
        assert re.match(r"\w+\.py:\d+", option["source"]), option


@pytest.mark.parametrize(
    ("name", "place", "study", "variant"),
    [
        ("dp_fedsim_table1_cifar10", 0, "dp_fedsim_table1_cifar10", ""),
        ("dp_fedsim_table1_cifar10", 1, "dp_fedsim_readings", ""),
        ("dp_fedsim_table1_cifar10", 2, "dp_fedsim_readings", "ten clients"),
        ("dp_fedsim_table1_fashion", 1, "dp_fedsim_readings_fashion", ""),
    ],
)
def test_controls_without_a_signal_are_those_of_the_committed_file(name, place, study, variant):
    reading = REGISTRIES[name]["readings"][place]
    frame = pd.read_csv(FOLDER / "controls/noise_alone.csv", keep_default_na=False)
    rows = frame[(frame["study"] == study) & (frame["variant"] == variant)]
    found = " and ".join(f"{float(value):.1f}" for value in rows[reading["round"]])
    assert reading["controls"]["zero_signal"]["found"].startswith(f"noise alone {found} for")


def test_each_row_stands_beside_its_run_without_noise_and_each_such_run_is_shown():
    frame = pd.read_csv(FOLDER / "controls/zero_noise.csv")
    runs, used = frame.set_index(["study", "method", "variant"]), set()
    for registry in filter(operator.itemgetter("readings"), REGISTRIES.values()):
        shown = [line for line in table_of(registry["title"]) if line[1]]
        rows = [(reading, row) for reading in registry["readings"] for row in reading["compared"]]
        for (reading, row), line in zip(rows, shown, strict=True):
            if control := reading["controls"]["zero_noise"].get(row):
                used.add(tuple(control))
                run = runs.loc[tuple(control)]
                end, last = run["round"], run["rounds"]
                stopped = "" if end == last else f" (round {end} of {last})"
                assert line[2] == f"{run[reading['round']]:.1f}{stopped}"
            else:
                is_noisy = reading["compared"][row].split(",")[0] != "fedavg"
                assert line[2] == ("not run" if is_noisy else "none")
    assert used == set(runs.index)


def trained(cell: Cell) -> Cell:
    """A cell without privacy, seed and tests along the way."""
    often = dataclasses.replace(cell.training, evaluate_every=0, evaluate_personal=True)
    return dataclasses.replace(cell, privacy=Privacy("none"), departures=(), training=often, seed=0)


def test_a_control_without_noise_is_its_row_with_a_thousandth_of_the_noise_at_most():
    pairs = [(registry, one) for registry in REGISTRIES.values() for one in registry["readings"]]
    for registry, reading in pairs:
        of_row, column = {}, registry["cells"].get("partition_alpha")
        for row in load_study(Path(reading["results"]).name, STUDIES).rows:
            label = ", ".join(filter(None, [row.cell.method, row.variant]))
            if column in (None, row.cell.partition.alpha):
                of_row |= {label: row.cell, row.variant: row.cell}
        for name, (study, *control) in reading["controls"]["zero_noise"].items():
            rows = load_study(study, STUDIES).rows
            (without,) = (r.cell for r in rows if [r.cell.method, r.variant] == control)
            usual = of_row[reading["compared"][name]]
            plans = [plan_of(c, np.full(c.partition.clients, 500)).plan for c in (without, usual)]
            assert plans[0].multiplier < plans[1].multiplier / 1000
            assert without.privacy.clip_norm == usual.privacy.clip_norm
            assert trained(without) == trained(usual)


def test_a_control_without_a_signal_has_the_noise_of_its_row_and_a_millionth_of_its_bound():
    frame = pd.read_csv(FOLDER / "controls/zero_signal.csv")
    for run in frame.itertuples():
        cells = {(r.cell.method, r.variant): r.cell for r in load_study(run.study, STUDIES).rows}
        of_row = run.variant.removesuffix("zero signal").removesuffix(", ")
        pair = cells[run.method, run.variant], cells[run.method, of_row]
        ours, theirs = (plan_of(one, np.full(one.partition.clients, 500)).plan for one in pair)
        assert ours.clip_norm == pytest.approx(theirs.clip_norm / 1e6)
        assert ours.multiplier == pytest.approx(theirs.multiplier * 1e6, rel=1e-5)
        shown = f"{run.last if math.isnan(run.best) else run.best:.1f} for "
        assert any(shown in one["controls"]["zero_signal"]["found"] for one in READINGS)


def test_what_the_page_says_that_noise_costs_is_what_its_tables_show():
    costs, stopped = {}, {}
    for registry in filter(operator.itemgetter("readings"), REGISTRIES.values()):
        for line in table_of(registry["title"]):
            if line[0].startswith("**"):
                reading = line[0].split("**")[1]
            elif line[2][:1].isdigit():
                kind = stopped if "(" in line[2] else costs
                cost = float(line[2].split()[0]) - float(line[1].split()[0])
                kind.setdefault(reading, []).append(cost)
    whole = costs.pop("epsilon 2 for whole clients")
    (ten,) = stopped["ten clients, all in every round"]
    assert max(cost for several in costs.values() for cost in several) < 6
    page = " ".join((ROOT / "docs/reproduction.md").read_text().split())
    assert "noise costs less than 6 points in every finished row" in page
    *most, last = (f"{cost:.0f}" for cost in whole)
    assert f"At ε = 2 it costs {', '.join(most)} and {last}, and with ten clients" in page
    assert f"DP-FedSim at least {int(ten)}." in page


def test_rows_to_which_a_control_without_a_signal_is_applied_have_its_noise():
    def noises(study: str, method: str, variants: tuple[str, ...] = ("",)) -> set[float]:
        cells = [
            row.cell
            for row in load_study(study, STUDIES).rows
            if row.cell.method == method and row.variant in variants
        ]
        plans = [plan_of(cell, np.full(cell.partition.clients, 500)).plan for cell in cells]
        return {plan.multiplier * plan.clip_norm / plan.expected_cohort for plan in plans}

    (noise,) = noises("dp_fedsim_readings", "dp_fedavg")
    for method in ("dp_fedsam", "dp_fedsim"):
        assert noises("dp_fedsim_readings", method) == {noise}
    rows = ("", "base", "MSA alone", "AGC alone")
    assert noises("dp_fedsim_readings_table2", "dp_fedsim", rows) == {noise}
    assert noises("dp_fedsim_readings_sgd", "dp_fedavg") == {noise}
    assert noises("dp_fedsim_readings_sgd", "dp_fedsim") == {noise}
    for method in ("dp_fedavg", "dp_fedsam", "dp_fedsim"):
        assert noises("dp_fedsim_readings_fashion", method) == {noise}
    assert noises("dp_fedsim_readings_sgd_fashion", "dp_fedavg") == {noise}
    for study, variant in (("table1_cifar10", ""), ("readings", "ten clients")):
        (usual,) = noises(f"dp_fedsim_{study}", "dp_fedavg", (variant,))
        assert noises(f"dp_fedsim_{study}", "dp_fedsim", (variant,)) == {usual}


RULE = {
    "in an interval that leaves the others out": (50, 49, 3, [60, 70, 80, 90, 52], False),
    "out of such an interval": (40, 49, 3, [60, 70, 80, 90, 51], False),
    "in an interval that holds two of five": (50, 49, 3, [51, 52, 80, 90, 95], False),
    "out of an interval that holds two of five": (40, 49, 3, [51, 52, 80, 90, 95], False),
    "in an interval of no measured spread": (50, 49, math.inf, [60, 70, 80, 90, 95], False),
    "in it while the reading is off": (50, 49, 3, [60, 70, 80, 90, 95], True),
}
WORDS = [REPRODUCED, NOT_REPRODUCED, NO_POWER, NO_POWER, NO_POWER, TOGETHER]


@pytest.mark.parametrize(("case", "word"), zip(RULE.values(), WORDS, strict=True), ids=list(RULE))
def test_the_rule_of_verdicts(case, word):
    assert verdict_rule.verdict(*case) == word


def test_a_spread_is_between_seeds_and_after_a_last_round_between_rounds():
    one, other = [0.0, 10, 10, 10, 10, 10], [99.0, 10, 20, 10, 20, 15]
    best = verdict_rule.spread([[one, other], [other]], best=True)
    assert best.deviation == pytest.approx(statistics.stdev([10, 99]))
    assert best.freedom == 1
    last = verdict_rule.spread([[one, other], [other]], best=False)
    rounds = 2 * statistics.variance(other[-5:]) / 3
    assert last.deviation**2 == pytest.approx(statistics.variance([10, 15]) + rounds)
    assert last.half(2) == pytest.approx(12.7062 * last.deviation * math.sqrt(1.5), rel=1e-5)
    assert verdict_rule.spread([[one], [other]], best=True).half(1) == math.inf


def test_rows_are_off_together_where_their_mean_leaves_its_own_interval():
    assert verdict_rule.off_together([-9, -9, -9, -9], [10, 10, 10, 10])
    assert not verdict_rule.off_together([-9, 9, -9, 9], [10, 10, 10, 10])
    assert not verdict_rule.off_together([-9], [10])


def spread(names: list[str], metric: str, best: bool) -> tuple[float, int]:
    """Return standard deviation and degrees of freedom, as the page describes them."""
    between, within = [], []
    for name in names:
        file = FOLDER / f"rounds/{name}.csv"
        if not file.is_file():
            continue
        frame = pd.read_csv(file, keep_default_na=False)
        whole = yaml.safe_load((STUDIES / f"papers/{name}.yaml").read_text())["training"]["rounds"]
        series = frame.groupby([*frame.columns[:-2]], sort=False)[metric].apply(list)
        series = series[[len(values) == whole for values in series]]
        within += [statistics.variance(values[-5:]) for values in series]
        value = [max(values) if best else statistics.fmean(values[-5:]) for values in series]
        rows = pd.Series(value, index=series.index).groupby(series.index.names[:-1])
        between += [values - values.mean() for _, values in rows]
    freedom = sum(len(values) - 1 for values in between)
    if not freedom:
        return math.inf, 0
    variance = sum(float((values**2).sum()) for values in between) / freedom
    return math.sqrt(variance + (0 if best else statistics.fmean(within))), freedom


@pytest.mark.parametrize("name", [name for name in REGISTRIES if REGISTRIES[name]["readings"]])
def test_every_verdict_on_the_page_follows_from_committed_results_by_the_rule(name):
    registry = REGISTRIES[name]
    page = iter(table_of(registry["title"]))
    for reading in registry["readings"]:
        head = next(page)
        assert head[0].startswith(f"**{reading['name']}**")
        source = FOLDER / f"{reading['results']}.csv"
        if not source.is_file():
            assert head[-1] == "not run"
            continue
        best = reading["round"] == "best"
        frame = pd.read_csv(source, keep_default_na=False)
        names = [key for key in ("method", "variant") if key in frame]
        label = frame[names].apply(lambda row: ", ".join(filter(None, row)), axis=1)
        deviation, freedom = spread(registry["spread"], registry["metric"], best)
        lines = {}
        for method, row in reading["compared"].items():
            seeds = frame[label == row].groupby("seed")[registry["metric"]]
            values = seeds.max() if best else seeds.last()
            half = math.inf
            if freedom:
                half = stats.t(freedom).ppf(0.975) * deviation * math.sqrt(1 + 1 / len(values))
            place = {key: registry[key] for key in ("paper", "table")}
            table = [r for r in PRINTED if place.items() <= r.items()]
            wanted = {"method": method, **registry["cells"]}
            (printed,) = (r for r in table if all(r.get(k) == v for k, v in wanted.items()))
            others = [r["accuracy"] for r in table if r is not printed]
            near = sum(abs(value - values.mean()) <= half for value in others)
            lines[method] = (values.mean(), half, printed["accuracy"], near, len(others))
        differences = [ours - printed for ours, _, printed, _, _ in lines.values()]
        length = math.sqrt(sum(half**2 for _, half, _, _, _ in lines.values())) / len(lines)
        together = abs(np.mean(differences)) > length
        for method, (ours, half, printed, near, others) in lines.items():
            got = next(page)
            assert got[0] == method
            assert got[1].split()[0] == f"{ours:.1f}"
            assert got[4:6] == [f"{printed:g}", f"{near} of {others}"]
            if got[-1].startswith("not finished"):
                continue
            if near > others / 5:
                assert got[-1] == NO_POWER
            elif abs(printed - ours) > half:
                assert got[-1] == NOT_REPRODUCED
            else:
                assert got[-1] == (TOGETHER if together else REPRODUCED)
        for method in reading.get("not_run", {}):
            assert next(page)[::6] == [method, f"not run: {reading['not_run'][method]}"]
    assert next(page, None) is None


def test_the_round_of_the_best_validation_accuracy_is_reported_whatever_its_test_accuracy(tmp_path):
    (tmp_path / "rounds.csv").write_text(
        "normalisation,noise,round,validation,test\n"
        "GroupNorm,0.02,0,20.0,31.0\n"
        "GroupNorm,0.02,1,22.0,18.0\n"
        "GroupNorm,0.02,2,22.0,35.0\n"
        "GroupNorm,0.02,3,10.0,40.0\n"
        "GroupNorm,0.0,0,20.0,31.0\n"
        "GroupNorm,0.0,1,25.0,33.0\n"
    )
    (tmp_path / "whole.csv").write_text("classes,printed\n5,53.92\n10,41.06\n10,41.06\n")
    surrogate = {"results": "whole", "rounds": "rounds", "rounds_at": 10}
    assert list(readings.best_validation(surrogate, tmp_path)) == [
        ("GroupNorm", "18.0 (round 1) / 40.0", "33.0 (round 1) / 33.0", "41.06")
    ]


def test_the_page_of_reproduction_is_what_the_committed_files_make(tmp_path):
    for part in ("docs/reproduction", "studies"):
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "docs/reproduction.md").write_text((ROOT / "docs/reproduction.md").read_text())
    written = reproduction.write(tmp_path / "docs", tmp_path / "studies")
    assert written.read_text() == (ROOT / "docs/reproduction.md").read_text(), "make results"


def test_studies_of_papers_without_results_stand_as_loaded_and_not_run():
    listed = {
        name
        for _, studies, _ in table_of("Loads, not run")
        for name in re.findall(r"`(\w+)`", studies)
    }
    done = {file.stem for file in FOLDER.rglob("*.csv")}
    assert listed == {file.stem for file in (STUDIES / "papers").glob("*.yaml")} - done
    assert {"feddpa_table1_svhn", "dp_pfeddsu_table2", "fedglp_adp_table1"} <= listed
