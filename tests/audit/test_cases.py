"""Which releases are audited, and what follows from a flag."""

import dataclasses
import itertools
import json
import math

import matplotlib
import pandas as pd
import pytest

import boxes
import fake_attacks
import fake_audits
import tabled
from fake_audits import RESULT
from pflpipe import cells, errors, files
from pflpipe.auditing import cases
from pflpipe.auditing.verdict import require_kept
from pflpipe.facts.departures import DEPARTURES
from pflpipe.methods import base, registry
from pflpipe.methods.registry import NAMES
from pflpipe.report import audit_table
from pflpipe.report.figures import style


def test_every_private_method_is_audited_in_every_version_and_trust_model():
    found = {(subject.method, subject.profile, subject.case.trust) for subject in cases.subjects()}
    for name in NAMES:
        about = registry.info(name).about
        versions = {"strict": True, "paper": bool(about.paper_departures)}
        versions |= {"official code": bool(about.official_departures)}
        trusts = {"central"} if about.mechanism == "laplace" else {"central", "local"}
        for (version, there), trust in itertools.product(versions.items(), trusts):
            assert ((name, version, trust) in found) == (about.private and there)
    alone = [s.case.departures for s in cases.subjects() if s.profile == "alone"]
    assert {name for departures in alone for name in departures} == set(DEPARTURES)


def test_a_ledger_asks_for_the_audits_of_its_own_methods_and_of_a_draw_only_if_there_is_one():
    def ids(*names: str, drawn: bool) -> set[str]:
        return {one.case.id for one in cases.of_methods(names, drawn)}

    plain = {"gaussian-central", "gaussian-local"}
    assert ids("local_only", "dp_fedavg", "pmtl_ft", drawn=False) == plain
    assert ids("dp_fedavg", drawn=True) == {*plain, "gaussian-drawn-central"}
    published = ids("feddpa", drawn=False) - plain
    assert published
    assert all("+" in name or len(name.split("-")) > 2 for name in published)
    assert ids(*cases.NAMES, drawn=True) < set(cases.cases())


def test_methods_with_the_same_release_share_an_audit_and_others_do_not():
    def ids(profile: str, trust: str) -> dict[str, str]:
        found = [one for one in cases.subjects() if not one.case.drawn]
        wanted = (profile, trust)
        return {one.method: one.case.id for one in found if (one.profile, one.case.trust) == wanted}

    of, published = ids("strict", "central"), ids("paper", "local")
    assert of["dp_fedavg"] == of["feddpa"] == of["fedper"] == "gaussian-central"
    scaled = {name for name, case in of.items() if "scaled" in case}
    own_units = {"dp_pfeddsu", "dp_scaffold", "fedaddp", "fedglp_adp", "fedpac"}
    own_units |= {"private_fedrep", "one_shot_ridge", "pfedfda", "item_effects"}
    own_units |= {"one_release_factors", "private_prior", "dpals"}
    assert scaled == own_units
    assert len({of[name] for name in scaled}) == len(scaled)
    assert of["appfl"] == of["appfl_steps"] == "laplace-central"
    on_support = "gaussian-noise_on_support-local"
    assert published["dp_pfeddsu"] == published["dp_fedsam_topk"] == on_support


def test_an_audit_that_is_not_there_is_named_with_the_nearest_one():
    with pytest.raises(errors.ConfigError, match="gaussian-central"):
        cases.find("gausian-central")


def test_reference_plans_are_where_an_audit_sees_most():
    plan = cases.find("gaussian-central").plan(())
    assert math.sqrt(plan.rounds) / plan.noise_multiplier == pytest.approx(2.602, abs=1e-3)
    claimed = cases.find("gaussian-local").audited().claimed
    assert claimed.noise_multiplier == pytest.approx(plan.noise_multiplier / math.sqrt(4))
    drawn = cases.find("gaussian-drawn-central").plan(())
    found = drawn.noise_multiplier, drawn.sample_rate, drawn.rounds, drawn.delta
    assert found == (2.248, 0.1, 100, 1e-5)
    laplace = cases.find("laplace-central").plan(())
    assert laplace.noise_multiplier == pytest.approx(1.0)
    for steps in ("learning_rate_in_noise", "clip_in_training+learning_rate_in_noise"):
        appfl = cases.find(f"laplace-{steps}+no_composition-central").audited()
        assert appfl.plan.noise_multiplier == pytest.approx(2 * 0.1 / 8)
        assert appfl.claimed.noise_multiplier == pytest.approx(1.0)
    shared = cases.find("gaussian-drawn-noise_over_all_clients-central").audited()
    assert shared.plan.noise_multiplier == pytest.approx(2.248 * math.sqrt(0.1))
    assert shared.claimed.noise_multiplier == 2.248


@pytest.mark.parametrize(
    "name", [name for name, case in cases.cases().items() if not case.departures]
)
def test_no_factor_of_a_reference_plan_is_1(name):
    plan = cases.find(name).plan(())
    assert plan.clip_norm != 1
    assert plan.expected_cohort not in (1, plan.clip_norm)


def test_every_audit_and_every_seed_draws_from_a_key_of_its_own():
    keys = [cases.audit_key(case, seed) for case in cases.cases().values() for seed in (0, 1)]
    assert len(set(keys)) == len(keys)
    assert keys[0] == cases.audit_key(next(iter(cases.cases().values())), 0)


PLAIN = ["gaussian-central", "gaussian-local"]
HALF = dataclasses.replace(fake_attacks.CELL.training, sample_rate=0.5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PLAIN),
        ({"method": "fedaddp"}, [f"gaussian-scaled_by_fedaddp-{t}" for t in ("central", "local")]),
        ({"training": HALF}, [*PLAIN, "gaussian-drawn-central"]),
        ({"privacy": cells.Privacy("laplace", epsilon=1.0, clip_norm=1.0)}, ["laplace-central"]),
        ({"privacy": cells.Privacy()}, []),
        ({"departures": ("noise_on_support",)}, []),
    ],
)
def test_a_certified_run_stands_on_the_audits_of_its_release(changes, expected):
    budget = cells.Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0)
    given = {"privacy": budget, "method": "dp_fedavg"} | changes
    cell = dataclasses.replace(fake_attacks.CELL, **given)
    assert [case.id for case in cases.of_cell(cell)] == expected


@pytest.mark.parametrize("row", tabled.table("test_cases"))
def test_a_broken_proof_refutes_a_published_number_only_if_the_ledger_or_whole_runs_do(row):
    name, coupled, runs, true, expected = row
    case = cases.find(f"gaussian-{name}")
    assert cases.verdict(case, coupled, runs, claimed=8.0, true=true) == expected


def test_a_refuted_certified_claim_stops_the_pipeline_and_a_nominal_one_does_not():
    nominal = RESULT | {"claim": "nominal"}
    require_kept([RESULT, *(nominal | {"verdict": word} for word in ("refuted", "unsound"))])
    with pytest.raises(errors.PrivacyError, match="gaussian-central: a certified claim is refuted"):
        require_kept([RESULT, RESULT | {"verdict": "refuted"}])


def test_an_audit_that_proves_more_than_the_ledger_says_stops_the_pipeline_whoever_claims_it():
    found = RESULT | {"claim": "nominal", "epsilon_lower": 26.2, "epsilon_true": "inf"}
    require_kept([found])
    with pytest.raises(errors.PrivacyError, match="gaussian-central: the ledger is refuted"):
        require_kept([found | {"epsilon_true": 25.1}])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    fake_audits.write(folder / "audits")
    return folder


@pytest.mark.slow
def test_table_has_a_row_for_every_subject_and_the_promised_columns(results):
    audit_table.write(results, results / "tables" / "audit.csv")
    frame = pd.read_csv(results / "tables" / "audit.csv")
    assert tuple(frame.columns) == audit_table.COLUMNS
    assert len(frame) == len(cases.subjects())
    assert frame["epsilon_true"].max() == math.inf
    text = (results / "tables" / "audit.md").read_text()
    assert text.count("\n| ") == 2 + len(cases.cases())
    assert "FedDPA, as published" in text
    assert "∞" in text
    words = ("kept", "refuted (coupled)", "unsound (coupled)", "1.0000 (at least 0.9900)", "0.900")
    for word in words:
        assert f"| {word} |" in text
    for name in ("audit", "audit_column"):
        drawn = results / "figures" / name
        assert drawn.with_suffix(".svg").stat().st_size > 10_000
        assert drawn.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("width", style.WIDTHS)
def test_the_figure_has_a_colour_for_every_verdict_and_its_legend_says_which(results, width):
    with matplotlib.rc_context(fname=style.SHEET):
        drawn = audit_table.figure(audit_table.table(results), width)
        assert boxes.check(drawn) > 20
    assert drawn.get_figwidth() == width
    legend = {text.get_text() for text in drawn.legends[0].get_texts()}
    assert {"kept", "refuted", "unsound"} <= legend
    colours = {line.get_color() for line in drawn.axes[0].get_lines()}
    assert set(audit_table.COLOURS.values()) <= colours


def test_a_refuted_certified_claim_leaves_no_table(results, tmp_path):
    (tmp_path / "audits").mkdir()
    for file in (results / "audits").iterdir():
        found = json.loads(file.read_text())
        del found[files.DIGEST]
        files.write_json(tmp_path / "audits" / file.name, found | {"verdict": "refuted"})
    with pytest.raises(errors.PrivacyError, match="certified claim is refuted"):
        audit_table.write(tmp_path, tmp_path / "tables" / "audit.csv")
    assert not (tmp_path / "tables").exists()


@pytest.mark.slow
def test_an_audit_says_what_was_claimed_what_the_ledger_says_and_what_was_found(monkeypatch):
    monkeypatch.setattr(cases.Case, "runs", 200)
    found = cases.audit(cases.find("gaussian-per_tensor_clip-central"))
    assert set(audit_table.COLUMNS) - {"method", "profile"} <= found.keys()
    assert found["epsilon_claimed"] == pytest.approx(8.0, abs=1e-6)
    assert found["epsilon_claimed_rdp"] > found["epsilon_claimed"]
    assert found["epsilon_true"] > 20
    assert found["sensitivity"] == pytest.approx(math.sqrt(6), rel=0.04)
    assert found["flagged"]
    assert found["flagged_coupled"]
    assert found["verdict"] == "refuted"
    assert found["noise"] is None  # nothing is wrong with the noise
    assert 0.6 < found["detects_runs"] < found["detects"] < 1
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_method_says_whether_its_release_has_an_audit_of_its_own():
    for name in NAMES:
        hooks = registry.info(name).factory()
        plain = hooks.scale is base.unscaled and hooks.parts is base.only_parameters
        assert registry.info(name).about.public_scale == (not plain), name
