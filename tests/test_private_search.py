"""A private search publishes its choice alone, and its epsilon covers the choice as well."""

import contextlib
import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import fake_audits
import fake_results
import malformed
import pflpipe
import tabled
from pflpipe import cells, errors, json_records
from pflpipe.checking import recomputed
from pflpipe.files import read_json
from pflpipe.methods import registry
from pflpipe.pipeline import certificate, mlflow_runs, released, status
from pflpipe.privacy import accounting
from pflpipe.privacy.ledger import Planned
from pflpipe.privacy.plan import Plan
from pflpipe.privacy.private_search import ORDERS, PrivateSearch
from pflpipe.report import ledger_page, tables
from pflpipe.seeds import derived_key
from pflpipe.study import config, load, search

TABLES = tabled.table("test_private_search")

DISTRIBUTIONS = ("logarithmic", "geometric")
STUDY = malformed.STUDY | TABLES["STUDY"]
HEADER = "cell,client,train_size,personal_own,personal_validation,personal_common,global_validation"


@pytest.fixture
def outline(good):
    return changed()


def whole(**changes):
    """The study with some of its keys changed."""
    malformed.write(Path("studies/good.yaml"), STUDY | changes)
    return load.load_outline("good")


def changed(**of_search):
    return whole(search=STUDY["search"] | of_search)


def trying(seeds=(100,), **private):
    """The study with many trials."""
    return changed(private={"trials": 60} | private, seeds=list(seeds))


def write_scores(outline, of_rate=100, of_bound=0):
    """Make scores in which the validation accuracy of three clients follows rate and clip bound."""
    results = fake_results.write(outline.search, Path())
    for method in outline.search.methods:
        lines = []
        for cell in (cell for cell in outline.search.cells if cell.method == method):
            bound = cell.privacy.clip_norm or 0
            reached = of_rate * min(cell.training.lr, 1) + of_bound * bound
            lines += [[cell.id, client, 9, 50, reached, 50, ""] for client in range(3)]
        fake_results.write_csv(results / f"scores/good/search/{method}.csv", HEADER, lines)
    return results


def of(study="feddpa", *, outline):
    return next(line for line in outline.searched if line.method == study)


def gaussian(multiplier, **words):
    given = {"sample_rate": 1.0, "rounds": 1, "delta": 1e-5, "clients": 100} | words
    return Plan("gaussian", 2, 1.0, multiplier, adaptive=None, **given)


# The trials


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_number_of_trials_has_the_asked_mean_and_law(distribution):
    private = PrivateSearch(5, distribution)
    rng = np.random.default_rng(0)
    drawn = np.array([private.number(rng) for _ in range(20_000)])
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(5, rel=0.05)
    gamma, k = private.gamma, np.arange(1, 6)
    # Papernot and Steinke (2022), Definition 1.
    law = (1 - gamma) ** k / (k * math.log(1 / gamma))
    if distribution == "geometric":
        law = gamma * (1 - gamma) ** (k - 1)
    shares = [(drawn == one).mean() for one in k]
    assert shares == pytest.approx(law, abs=0.012)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("trials", [math.nextafter(1, 2), 1 + 1e-12, 1_000_000])
def test_a_number_can_be_drawn_at_both_ends_of_the_range(trials, distribution):
    assert PrivateSearch(trials, distribution).number(np.random.default_rng(0)) >= 1


def test_every_trial_is_a_run_of_its_own_and_candidates_are_drawn_with_replacement(outline):
    line = of(outline=trying())
    trials = [row for candidate in line.candidates for row in candidate.trials]
    seeds = {row.cell.seed for row in trials}
    assert len(seeds) == len(trials)
    assert min(seeds) >= 100
    assert len({row.key for row in trials}) == len(trials)
    assert len(line.candidates) == 6 < len(trials), "some candidate is tried again"


def tries(line):
    """The seeds of the trials of every candidate."""
    return [[row.cell.seed for row in candidate.trials] for candidate in line.candidates]


@pytest.mark.parametrize("at", [{}, {"at": {"privacy.epsilon": 8}}], ids=["each", "at one"])
def test_every_point_of_the_axes_draws_number_candidates_and_seeds_of_its_own(outline, at):
    search = STUDY["search"] | {"private": {"trials": 60}} | at
    methods = [{"name": "feddpa"}]
    points = whole(axes={"privacy.epsilon": [2, 4, 8]}, search=search, methods=methods).searched
    drawn = [tries(line) for line in points]
    assert len({sum(map(len, one)) for one in drawn}) > 1
    assert len({tuple(map(len, one)) for one in drawn}) == 3
    seeds = [seed for one in drawn for of_candidate in one for seed in of_candidate]
    assert len(set(seeds)) == len(seeds)


def test_no_two_searches_share_a_run_where_their_methods_train_alike(outline):
    search = {"values": {"training.lr": [0.1, 0.2]}, "private": {"trials": 60}}
    search = {key: one for key, one in STUDY["search"].items() if key != "candidates"} | search
    methods = [{"name": "dp_fedavg"}, {"name": "dp_fedavg_fb"}]
    lines = whole(search=search, methods=methods).searched
    keys = [{row.key for one in line.candidates for row in one.trials} for line in lines]
    assert registry.key(lines[0].candidates[0].tried) == registry.key(lines[1].candidates[0].tried)
    assert all(keys)
    assert keys[0].isdisjoint(keys[1])


OTHERS = {"seed": {"seeds": [101]}, "law": {"score_noise": 2}, "method": {}}


@pytest.mark.parametrize("other", OTHERS)
def test_another_search_draws_other_trials(outline, other):
    method = "fedavg" if other == "method" else "feddpa"
    changed = of(method, outline=trying(**OTHERS[other]))
    assert tries(of(outline=trying())) != tries(changed)


def test_rows_at_further_seeds_leave_the_trials_as_they_are(outline):
    assert tries(of(outline=whole(seeds=[0, 1, 2]))) == tries(of(outline=outline))


def test_number_and_candidates_follow_from_the_keys_of_the_noise_and_from_nothing_known(
    outline, monkeypatch
):
    """Who knows study, label and seed, but not the keys, knows nothing of the trials."""
    before = tries(of(outline=trying()))
    assert tries(of(outline=trying())) == before
    key = registry.key
    monkeypatch.setattr(registry, "key", lambda cell: derived_key("a secret", key(cell)))
    after = tries(of(outline=trying()))
    assert sum(map(len, after)) != sum(map(len, before))
    assert after != before


@pytest.mark.parametrize(("wrong", "words"), TABLES["what would void the guarantee is refused"])
def test_what_would_void_the_guarantee_is_refused(outline, wrong, words):
    with pytest.raises(errors.ConfigError) as raised:
        changed(**wrong)
    assert words in str(raised.value)


def test_a_pure_guarantee_is_refused_before_anything_trains(outline):
    laplace = {"mechanism": "laplace", "epsilon": 8, "delta": 1e-5, "clip_norm": 1}
    with pytest.raises(errors.ConfigError, match="private search"):
        whole(privacy=laplace)
    pure = dataclasses.replace(gaussian(1.0), mechanism="laplace", norm=1)
    with pytest.raises(errors.PrivacyError, match="gaussian"):
        PrivateSearch(8).epsilon(pure, pure, 1e-5)


# The score


@pytest.mark.parametrize(
    ("noise", "verdict"), [(3.0, "kept"), (1.5, "refuted")], ids=["the stated", "half of it"]
)
def test_a_client_moves_the_score_by_at_most_one_and_its_noise_is_the_stated(noise, verdict):
    private = PrivateSearch(8, score_noise=noise)

    def release(messages, weights, rng):
        return np.array([private.score(messages[:, 0], rng)])

    claim = pflpipe.Claim(clients=8, noise_multiplier=3.0, delta=1e-5, clip_norm=1.0, dimension=1)
    found = pflpipe.audit(release, claim, seconds=0.5)
    assert found.verdict == verdict, found.sentence


def test_scores_of_two_trials_and_of_two_cells_of_one_run_have_separate_noise(outline):
    asked = trying(score_noise=5)
    rows = [row for candidate in of(outline=asked).candidates for row in candidate.trials]
    private = asked.private_search
    noises = {round(search.released_score(row, np.zeros(3), private), 9) for row in rows}
    assert len(noises) == len(rows)


# The choice


def test_the_best_trial_is_chosen_and_nothing_is_kept_of_the_others(outline, ran):
    results = write_scores(outline)
    search.write(outline, results, outline.choices(results))
    line = of(outline=outline)
    tried = [candidate for candidate in line.candidates if candidate.trials]
    best = max(tried, key=lambda candidate: candidate.values["training.lr"])
    study = load.load_study("good")
    (chosen,) = {row.chosen.index for row in study.rows if row.cell.method == "feddpa"}
    assert line.candidates[chosen] is best
    record = read_json("results/searches/good.json")["lines"][0]
    assert record["candidates"] == []
    assert set(record["plans"].values()) == {None}
    assert all(row.chosen.runs is None for row in study.rows)
    printed = ran("rank", "good").out
    assert "chosen for" in printed
    assert "Mean" not in printed


def test_large_noise_on_scores_can_choose_another_trial(outline):
    asked = trying(score_noise=1000, seeds=[101])
    results = write_scores(asked)
    search.write(asked, results, asked.choices(results))
    chosen = {row.cell.method: row.cell.training.lr for row in load.load_study("good").rows}
    tried = {line.method: line.candidates for line in asked.searched}
    best = {name: max(one.values["training.lr"] for one in some) for name, some in tried.items()}
    assert chosen != best


# What is shown


def shown(folder, repeats, numbers, ran):
    """What anybody is shown of a study whose search tried these candidates so often."""

    def draw(self, candidates, rng):
        drawn = list(range(candidates))[numbers] * repeats
        return drawn, list(range(len(drawn)))

    folder.mkdir()
    malformed.write_good(folder)
    people = np.arange(60) // 6
    malformed.own_data(train_users=people)(folder)
    malformed.write(folder / "studies/good.yaml", STUDY | TABLES["SHOWN"])
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(PrivateSearch, "draw", draw)
        return dict(_shown(ran))


def _shown(ran):
    outline = load.load_outline("good")
    results = write_scores(outline, 80, 10)
    search.write(outline, results, outline.choices(results))
    study = load.load_study("good")
    fake_results.write(study, Path())
    fake_audits.write(results / "audits")
    fake_audits.claim_truly(results / "audits")
    for command in ("validate", "studies", "cost good", "plan good", "rank good --all"):
        yield command.split()[0], ran(*command.split()).out
    yield "status", "".join(status.lines(config.load()))
    yield "choice", outline.choices(results).read_text()
    table = results / "tables/good.csv"
    tables.write_study(study, results, table)
    for kind in (".csv", ".md", ".tex"):
        yield f"table {kind}", table.with_suffix(kind).read_text()
    page = malformed.ROOT / "workflow/report/ledger.html"
    ledger_page.write([table], results, page, Path("ledger.html"))
    yield "ledger", Path("ledger.html").read_text()
    yield "certificate", certificate.write(study, results, Path("data")).read_text()
    for row in study.rows:
        state = {"params": {"layer": torch.zeros(2)}, "server": {}}
        torch.save(state, results / "runs" / row.run / "state.pt")
    released.write(study, results, Path("released"))
    files = sorted(Path("released").iterdir())
    yield "released", "".join(f"{file}: {file.read_bytes()}" for file in files)
    for file in results.rglob("*"):
        os.utime(file, (1, 1))
    yield "mlflow", "".join(run.digest for run in mlflow_runs.of_study(study, results))


def test_nothing_that_is_shown_tells_how_many_trials_there_were_or_of_what(tmp_path, ran):
    """One trial of the candidate that will be chosen, and three of every candidate. What is shown
    is the expected number: three searches (FedAvg has no budget) of eight trials, and as many
    rows."""
    one = shown(tmp_path / "one", 1, slice(-1, None), ran)
    many = shown(tmp_path / "many", 3, slice(None), ran)
    assert all(one.values())
    assert [kind for kind in one if one[kind] != many[kind]] == []
    for kind, words in TABLES["what is shown is the expected number of trials"]:
        assert words in one[kind]


def test_a_private_search_says_the_same_whatever_its_seed(outline, ran):
    said = set()
    for seed in range(100, 110):
        changed(seeds=[seed])
        said.add(ran("validate").out)
    assert len(said) == 1


# The cost


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_no_outcome_of_the_best_of_trials_is_more_telling_than_the_bound(distribution, noise):
    """The best of K scores y has the density f(y) G'(F(y)), with G the generating function of K.
    Its Renyi divergence between runs with and without a client, by quadrature, stays below the
    bound at every order, and the bound of twice the noise does not cover it."""
    private = PrivateSearch(8, distribution, score_noise=noise)
    gamma = private.gamma
    y = np.linspace(-14 * noise, 14 * noise + 1, 40_001)

    def log_best(mean):
        left = 1 - (1 - gamma) * stats.norm.cdf(y, mean, noise)
        slope = gamma / left**2
        if distribution == "logarithmic":
            slope = (1 - gamma) / (left * math.log(1 / gamma))
        return stats.norm.logpdf(y, mean, noise) + np.log(slope)

    first, second = log_best(1.0), log_best(0.0)
    assert np.trapezoid(np.exp(first), y) == pytest.approx(1, abs=1e-6)
    silent = gaussian(1e6)  # training that shows nothing
    bound = private.renyi(silent)
    short = dataclasses.replace(private, score_noise=2 * noise).renyi(silent)
    found = []
    for order in (2, 3, 5, 8):
        for p, q in ((first, second), (second, first)):
            integral = np.trapezoid(np.exp(order * p + (1 - order) * q), y)
            found.append((math.log(integral) / (order - 1), ORDERS.index(order)))
    assert all(divergence <= bound[at] for divergence, at in found)
    assert any(divergence > short[at] for divergence, at in found) or distribution == "geometric"


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("epsilon", [2, 8])
def test_runs_and_choice_cost_at_most_three_times_one_run(epsilon, rate):
    request = cells.Privacy("gaussian", epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    plan = accounting.make_plan(request, rounds=60, sample_rate=rate, clients=3_200)
    for distribution in DISTRIBUTIONS:
        both = PrivateSearch(16, distribution).epsilon(plan, plan, 1e-5)
        assert 2**0.5 * epsilon < both <= 3 * epsilon


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_verifier_counts_the_same_with_its_own_code(distribution, rate):
    private = PrivateSearch(8, distribution)
    tried, final = (gaussian(z, sample_rate=rate, rounds=20) for z in (3.0, 5.0))
    given = dataclasses.asdict(private)
    noises = [recomputed.Noise("gaussian", multiplier, rate, 20) for multiplier in (3.0, 5.0)]
    again = recomputed.best_of_trials(given, *noises, 1e-5)
    assert private.epsilon(tried, final, 1e-5) == pytest.approx(again, rel=1e-9)


@pytest.mark.parametrize("kind", ["natural", "iid"])
def test_search_and_final_run_count_together_where_they_have_the_same_clients(outline, kind):
    methods = [{"name": "feddpa"}]
    asked = whole(partition={"kind": kind, "clients": 10}, methods=methods)
    results = write_scores(asked)
    (choice,) = search.write(asked, results, asked.choices(results))
    tried = json_records.load(Planned, results / f"plans/{asked.search.cells[0].plan_id}.json").plan
    assert choice.epsilon == accounting.epsilon(tried, tried.delta)
    if kind == "natural":
        together = asked.private_search.epsilon(tried, tried, tried.delta)
        assert (choice.epsilon_with_search, choice.search_not_counted) == (together, "")
    else:
        assert choice.epsilon_with_search is None
        assert choice.search_not_counted == search.OTHER_CLIENTS


def test_without_noise_nothing_is_covered():
    assert PrivateSearch(8).epsilon(gaussian(0.0), gaussian(1.0), 1e-5) == math.inf
