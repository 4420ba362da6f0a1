"""One-run audit: no private run guesses better than the bound says, a broken one is refuted, and
only coins are unknown."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import lil_matrix
from scipy.special import expit

import fake_attacks
import tabled
from pflpipe import cells, errors, files, json_records
from pflpipe.attacks import jobs as attacks
from pflpipe.attacks import one_run
from pflpipe.facts.departures import DEPARTURES, EXTRAS
from pflpipe.privacy import accounting, mechanism
from pflpipe.report.attacks import one_run as shown
from pflpipe.report.attacks.results import attacked
from pflpipe.seeds import derived_key, release_rng
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Row, Study
from releases import length, told
from simulations import assert_equal, plan, simulation, spied

ROUNDS = 10
OFFICIAL = ("data_size_weights", "update_against_global")


def world(method="dp_fedavg", *, named=(), seed=1, lr=0.3, **changes):
    """A run of four clients with 243 parameters; noise multiplier sqrt(ROUNDS) = 3.16, which at q =
    1 is mu = 1."""
    values = {"keep_ratio": 0.7} if method == "dp_pfeddsu" else {}
    rule = plan(4, **({"noise_multiplier": math.sqrt(ROUNDS), "rounds": ROUNDS} | changes))
    shape = {"model": cells.Model("mlp", (10,)), "shape": (20,), "sizes": (2, 3, 4, 3)}
    return simulation(method, values, plan=rule, departures=tuple(named), lr=lr, seed=seed, **shape)


@functools.cache
def played(name, seed, lr=0.3):
    """A game of one of ``WORLDS``."""
    return one_run.attack(world(**WORLDS[name], seed=seed, lr=lr))


def heard(run):
    """Play the game and tell what the mechanism itself was given and what it returned in each
    round."""
    seen = []
    original = mechanism.release

    def spy(generator, uploads, *rest):
        present, plan, scale, _ = rest
        state = generator.bit_generator.state
        released = original(generator, uploads, *rest)
        if plan.noise_multiplier:  # else the auditor computes the clients' part
            seen.append((uploads, present, plan, scale, released, state))
        return released

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "release", spy)
        return one_run.attack(run), seen


# ---------------------------------------------------------------- the bound


def best_private(coins, guesses, correct, epsilon, delta):
    """Return the largest P[so many right] of all (epsilon, delta)-private maps from coins to
    guesses, by a linear program."""
    sides = list(itertools.product((-1, 1), repeat=coins))
    every = itertools.product((-1, 0, 1), repeat=coins)
    told = [guess for guess in every if sum(map(abs, guess)) == guesses]
    both = itertools.permutations(range(len(sides)), 2)
    pairs = [(i, j) for i, j in both if np.not_equal(sides[i], sides[j]).sum() == 1]
    outputs, mapped = len(told), len(sides) * len(told)
    limits = lil_matrix((len(pairs) * (outputs + 1), mapped + len(pairs) * outputs))
    limit = np.repeat([0.0, delta], [len(pairs) * outputs, len(pairs)])
    for place, (i, j) in enumerate(pairs):
        for output in range(outputs):  # P[output | i] - e^epsilon P[output | j] <= excess
            row = place * outputs + output
            columns = [i * outputs + output, j * outputs + output, mapped + row]
            limits[row, columns] = [1, -math.exp(epsilon), -1]
        excess = slice(mapped + place * outputs, mapped + (place + 1) * outputs)
        limits[len(pairs) * outputs + place, excess] = 1
    spare = np.zeros((len(sides), len(pairs) * outputs))
    sums = np.hstack([np.kron(np.eye(len(sides)), np.ones(outputs)), spare])
    agreed = np.array([[np.equal(side, guess).sum() for guess in told] for side in sides])
    gain = np.concatenate([(agreed >= correct).ravel() / len(sides), spare[0]])
    return -linprog(-gain, A_ub=limits.tocsr(), b_ub=limit, A_eq=sums, b_eq=np.ones(len(sides))).fun


@pytest.mark.parametrize(("coins", "guesses"), [(1, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.0, 0.01), (0.3, 0.05), (2.0, 0.02)])
def test_the_best_private_run_of_all_guesses_exactly_as_well_as_the_bound_allows(
    coins, guesses, epsilon, delta
):
    for correct in range(1, guesses + 1):
        allowed = one_run.chance(correct, guesses, coins, epsilon, delta)
        best = best_private(coins, guesses, correct, epsilon, delta)
        assert best == pytest.approx(allowed, abs=1e-7)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3, 1e-2])
def test_the_bound_is_that_of_the_paper_at_delta_0_and_never_weaker_where_it_refutes(delta):
    from scipy.stats import binom

    for coins, guesses, epsilon in itertools.product((100, 1000), (50, 100), (0.5, 2.0, 4.0)):
        for correct in range(guesses // 2, guesses + 1):
            counts = np.arange(1, coins + 1)
            above = binom.sf(correct - 1, guesses, expit(epsilon))
            below = binom.sf(correct - counts - 1, guesses, expit(epsilon))
            paper = above + 2 * coins * delta * ((below - above) / counts).max()
            mine = one_run.chance(correct, guesses, coins, epsilon, delta)
            assert mine <= paper + 1e-12 or mine > 0.5
            assert delta or mine == pytest.approx(paper, rel=1e-9)


@pytest.mark.slow
def test_the_bound_of_randomised_response_holds_in_95_of_100_games_and_is_not_vacuous(monkeypatch):
    """Every coin is told with probability delta, and else by randomised response: exactly (epsilon,
    delta)-private."""
    monkeypatch.setattr(one_run, "lower_bound", functools.cache(one_run.lower_bound))
    rng = np.random.default_rng(0)
    cases = [(0.5, 0, 0.1), (2.0, 0, 1.0), (2.0, 0.01, 1.0), (4.0, 0.001, 2.2), (1.0, 0.03, 0)]
    for epsilon, delta, least in cases:
        bounds = []
        for _ in range(2000):
            heads = rng.random(400) < 0.5
            told, honest = rng.random(400) < delta, rng.random(400) < expit(epsilon)
            scores = np.where(heads == (honest | told), 1.0, -1.0) * (1 + told)
            bounds.append(one_run.judged(heads, scores, delta)["epsilon_lower"])
        assert np.mean(np.array(bounds) > epsilon) <= one_run.ERROR
        assert np.median(bounds) >= least


def test_nothing_is_refuted_where_everything_may_be_told_more_often_than_a_bound_may_fail():
    assert one_run.lower_bound(3000, 3000, 3000, 0.06, 0.05) == 0
    assert one_run.lower_bound(3000, 3000, 3000, 0.04, 0.05) > 5


def test_all_guesses_right_refute_what_makes_that_unlikely_and_wrong_guesses_nothing():
    found = [one_run.lower_bound(correct, 100, 100, 0.0, 0.05) for correct in (100, 50, 0)]
    assert found == [pytest.approx(math.log(1 / (0.05**-0.01 - 1)), rel=1e-6), 0, 0]
    some = [one_run.lower_bound(correct, 100, 200, 1e-3, 0.05) for correct in range(50, 101)]
    assert some == sorted(some)
    assert len(set(some)) > 35


def test_small_parts_are_left_out_where_delta_would_decide_them():
    assert [len(one_run.shares(delta)) for delta in (0.0, 1e-5, 1e-3, 1e-2, 0.1)] == [5, 5, 3, 1, 1]
    heads = np.arange(400) % 2 == 0
    assert one_run.judged(heads, heads * 1.0, 1e-3)["guesses"] == 300
    found = one_run.judged(heads, heads * 1.0, 0.1)
    assert (found["epsilon_lower"], found["epsilon_highest"]) == (0, 0)


def test_heads_are_guessed_at_the_top_tails_at_the_bottom_and_nothing_between():
    heads = np.array([True, False, False, True, True, False, True, False])
    scores = np.array([9.0, 8.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0])
    assert [one_run.guess(heads, scores, guesses) for guesses in (2, 4, 6)] == [1, 2, 3]
    assert one_run.guess(heads, np.where(heads, 1.0, 0.0), 8) == 8


# ---------------------------------------------------------------- the run

WORLDS = tabled.table("test_one_run")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_scores_are_log_likelihood_ratios(name):
    """Of which e^x has mean 1 without the canary, and e^-x with it, exactly; only the right size
    and place give that."""
    games = [played(name, seed, lr=1e-12) for seed in (1, 2)]
    heads, scores = (np.concatenate([game[part] for game in games]) for part in ("heads", "scores"))
    for ratio in (np.exp(scores[~heads]), np.exp(-scores[heads])):
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(len(ratio))
    assert scores[heads].mean() - scores[~heads].mean() > 0.3
    if name in ("one sum", "weighted messages", "noisy messages"):
        gap = scores[heads].mean() - scores[~heads].mean()
        assert gap == pytest.approx(1, abs=4 * math.sqrt(4 / len(heads)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WORLDS][:5])  # neither Laplace noise nor a secret cohort
def test_next_to_no_noise_leaves_the_coins_whatever_clients_learn(name):
    """Their part is subtracted to the last digit: y is 1 for heads and 0 for tails in every
    round."""
    sigma = 1e-5
    game = one_run.attack(world(**WORLDS[name], noise_multiplier=sigma))
    coins, some = len(game["heads"]), name == "seven in ten are sent"
    assert 100 < coins < 243 if some else coins == 243
    told = game["scores"] * sigma**2 / ROUNDS + 0.5
    assert told == pytest.approx(game["heads"].astype(float), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_every_canary_has_a_coordinate_of_its_own_and_all_that_the_clip_allows(name):
    run = world(**WORLDS[name])
    game, seen = heard(run)
    assert len(seen) == ROUNDS
    for uploads, present, larger, scale, _, _ in seen:
        clients = len(present) - len(game["heads"])
        assert larger == dataclasses.replace(run.plan, clients=4 + len(game["heads"]))
        rows = {name: value[clients:] for name, value in uploads.update.items()}
        flat = torch.cat([value.flatten(1) for value in rows.values()], 1) != 0
        assert flat.sum(1).tolist() == game["heads"].astype(int).tolist()
        assert flat.sum(0).max() == 1
        bound = larger.clip_norm or 0.0
        clipped = mechanism.clip(rows, bound, scale, larger.norm)[0]
        for sent, factor in ((clipped, 1), (rows, one_run.LENGTH)):
            sizes = length(sent, larger.norm, scale=scale).numpy()
            assert sizes == pytest.approx(factor * bound * game["heads"], rel=1e-5)
        for entry, value in uploads.extras.items():
            assert entry == "size"
            assert (value[clients:] == value[:clients].double().mean()).all()


@pytest.mark.slow
def test_canaries_are_drawn_as_clients_are():
    game, seen = heard(world(sample_rate=0.6, rounds=40))
    drawn = torch.stack([present[-len(game["heads"]) :] for _, present, *_ in seen]).double()
    assert drawn.mean().item() == pytest.approx(0.6, abs=4 * math.sqrt(0.24 / drawn.numel()))
    assert drawn.mean(1).std() < 0.05
    assert drawn.mean(0).std().item() == pytest.approx(math.sqrt(0.24 / 40), rel=0.3)


def test_clients_send_what_they_send_without_canaries_and_hear_of_themselves_alone():
    """Before the first release; their own messages are those of the M clients, whatever the
    canaries' are."""
    run = world("feddpa", named=OFFICIAL, rounds=1)
    game = one_run.Game("some key")
    _, ((_, _, said), *_), _ = spied(dataclasses.replace(run, release=game.release))
    _, ((uploads, _, expected), *_), _ = spied(run)
    assert_equal(said.clean, expected.clean, 0)
    for tree in (said.messages, said.clean):
        assert {len(value) for value in tree.values()} == {4}
    assert torch.equal(said.norms, expected.norms)
    assert set(uploads.extras) == {"size"}


@pytest.mark.slow
def test_coins_places_and_cohorts_have_streams_of_their_own():
    run = world()
    game, seen = heard(run)
    key = derived_key(run.key, "one_run")
    assert (game["heads"] == (release_rng(key, "coins").random(len(game["heads"])) < 0.5)).all()
    for name in (("noise", 0), ("sample", 0), ("canaries", 0), ("places",)):
        coins = release_rng(key, *name).random(len(game["heads"])) < 0.5
        assert (game["heads"] != coins).mean() > 0.3
    own = [release_rng(run.key, "noise", round).bit_generator.state for round in range(ROUNDS)]
    keys = [tuple(state["state"]["key"]) for *_, state in seen]
    assert len(set(keys)) == ROUNDS
    assert set(keys).isdisjoint(tuple(state["state"]["key"]) for state in own)
    again, other = one_run.attack(run), one_run.attack(world(seed=2))
    assert (again["heads"] == game["heads"]).all()
    assert (again["scores"] == game["scores"]).all()
    assert 0.3 < (other["heads"] != game["heads"]).mean() < 0.7


def test_there_are_as_many_canaries_as_there_is_room_for():
    assert one_run.number(500, 800) == 500
    assert one_run.number(50_000, 60_000) == one_run.MOST
    assert one_run.number(270_000, 270_000) == one_run.FLOATS // 270_000 == 248
    assert one_run.number(10**8, 10**8) == 1


# ---------------------------------------------------------------- sound and broken


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_sound_run_is_not_refuted(name):
    promised = accounting.epsilon(world(**WORLDS[name]).plan, 1e-3)
    for seed in range(3):
        found = one_run.judged(*played(name, seed).values(), 1e-3)
        assert found["epsilon_lower"] < promised < found["epsilon_highest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("clip", [1, 10], ids=["a tenth of the noise", "ten times the clip bound"])
def test_a_broken_run_is_refuted(name, clip, monkeypatch):
    def change(plan):
        noise = plan.noise_multiplier / 10
        return {"clip_norm": clip * plan.clip_norm, "noise_multiplier": noise}

    run = world(**WORLDS[name])
    monkeypatch.setattr(mechanism, "release", told(change))
    found = one_run.judged(*one_run.attack(run).values(), 1e-3)
    assert found["epsilon_lower"] > max(accounting.epsilon(run.plan, 1e-3), 3.2)


@pytest.mark.slow
def test_feddpas_official_code_spends_more_than_the_epsilon_it_is_calibrated_to():
    """Its noise is that of DP-SGD on single examples, 96 clients' here; the four clients who train
    stand for them."""
    named = ("sample_level_calibration", *OFFICIAL)
    sizes = (12, 9, 15, 14, 11, 10, 13, 16) * 12
    asked = cells.Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0)
    shape = {"rounds": 30, "sample_rate": 1.0, "clients": 96, "local_epochs": 5, "batch_size": 16}
    made = accounting.make_plan(asked, departures=named, sizes=np.array(sizes), **shape)
    noise = {name: getattr(made, name) for name in ("clip_norm", "noise_multiplier")}
    game = one_run.attack(world("feddpa", named=named, **noise, rounds=30))
    assert one_run.judged(*game.values(), 1e-3)["epsilon_lower"] > 2


# ---------------------------------------------------------------- whom it is for

BUDGET = cells.Privacy("gaussian", epsilon=2.0, delta=1e-3, clip_norm=1.0)
CELL = dataclasses.replace(fake_attacks.CELL, privacy=BUDGET, method="dp_fedavg")
SAMPLED = dataclasses.replace(CELL.training, sample_rate=0.5)
WEIGHTED = ("data_size_weights",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy": cells.Privacy(), "method": "fedavg", "departures": WEIGHTED}, "noise"),
        ({"privacy": dataclasses.replace(BUDGET, epsilon=None, noise_multiplier=0.0)}, "noise"),
        ({"departures": ("noise_on_support", "per_tensor_clip")}, "extras, .*: noise_on_support"),
        ({"departures": WEIGHTED, "training": SAMPLED}, "one draw of noise on the sum"),
        ({"departures": ("public_sampling",), "training": SAMPLED}, "one draw of noise on the sum"),
    ],
)
def test_a_run_without_noise_or_whose_canaries_would_need_private_extras_is_refused_and_left_out(
    changes, reason, tmp_path
):
    cell = dataclasses.replace(CELL, **changes)
    study = Study("made", "Made", "Made up.", (Row(cell), Row(CELL)))
    assert attacks.cells("one_run", study) == [CELL]
    with pytest.raises(errors.ConfigError, match=f"attack one_run: .*expected .*{reason}"):
        attacks.run("one_run", cell, None, tmp_path / "x.npz", device="cpu", backend="loop")
    assert list(tmp_path.iterdir()) == []


def test_every_departure_that_reads_more_than_a_size_is_left_out():
    for name in DEPARTURES.keys() - EXTRAS.keys() | {"data_size_weights"}:
        assert attacks.lacks("one_run", dataclasses.replace(CELL, departures=(name,))) == ""
    assert attacks.lacks("one_run", dataclasses.replace(CELL, training=SAMPLED)) == ""


# ---------------------------------------------------------------- figure and table


@pytest.fixture
def stored(tmp_path):
    """Four settings of two seeds: what mu = 0.5 shows, what mu = 3 shows, a nominal row, and a
    claim beyond reach."""
    narrow, wide = (dataclasses.replace(BUDGET, epsilon=epsilon) for epsilon in (1.0, 30.0))
    changes = {"privacy": narrow}, {"profile": "paper", "departures": ("noise_on_support",)}
    strong = [dataclasses.replace(CELL, **change) for change in (*changes, {"privacy": wide})]
    settings = [(0.5, CELL), *((3.0, cell) for cell in strong)]
    rows = [(mu, dataclasses.replace(cell, seed=seed)) for mu, cell in settings for seed in (0, 1)]
    for number, (mu, cell) in enumerate(rows):
        rng = np.random.default_rng(number)
        heads = rng.random(500) < 0.5
        scores = rng.normal(size=500) + mu * heads
        fake_attacks.store(cell, tmp_path, "one_run", heads=heads, scores=scores)
    return Study("made", "Made", "Made up.", tuple(Row(cell) for _, cell in rows)), tmp_path


def test_the_table_holds_a_bound_of_all_seeds_together_against_the_claim(stored, monkeypatch):
    monkeypatch.setattr(attacks, "EXTRAS", {})  # any departure makes a nominal row
    table = shown.table(*stored)
    wanted = ["method", "budget", "seeds", "canaries", "guesses", "correct"]
    wanted += ["epsilon_lower", "epsilon_highest"]
    assert [name for name in table if name in wanted] == wanted
    assert list(table)[-3:] == ["epsilon_claimed", "delta", "verdict"]
    assert (table["canaries"] == 1000).all()
    assert table["epsilon_claimed"].tolist() == pytest.approx([2, 1, 2, 30], rel=1e-6)
    assert table["verdict"].tolist() == ["not refuted", "refuted", "refuted", "out of reach"]
    assert (table["epsilon_lower"] <= table["epsilon_highest"]).all()
    assert table["epsilon_lower"].iloc[1] > 3.5
    setting = attacked("one_run", *stored)[1]
    assert setting.cells == stored[0].cells[2:4]
    together = [setting.pooled(name) for name in ("heads", "scores")]
    assert table["epsilon_lower"].iloc[1] == one_run.judged(*together, 1e-3)["epsilon_lower"]


def test_a_nominal_row_without_a_target_claims_what_its_ledger_says(stored):
    study, results = stored
    fixed = dataclasses.replace(BUDGET, epsilon=None, noise_multiplier=1.0)
    cell = dataclasses.replace(CELL, privacy=fixed, departures=("per_tensor_clip",))
    first = np.load(results / "attacks/one_run" / f"{study.cells[0].id}.npz")
    fake_attacks.store(cell, results, "one_run", **first)
    table = shown.table(Study("made", "Made", "Made up.", (Row(cell),)), results)
    assert table["epsilon_claimed"].item() == plan_of(cell).ledger.epsilon_central > 10


def test_the_figure_has_a_line_for_each_setting_and_marks_what_is_refuted(stored, monkeypatch):
    monkeypatch.setattr(attacks, "EXTRAS", {})
    (axes,) = shown.figure(*stored, 3.3).axes
    words = [label.get_text() for label in axes.get_yticklabels()]
    assert len(words) == 4
    assert words[1] == "DP-FedAvg, ε = 1"
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["bound that refutes"].get_ydata().tolist() == list(axes.get_yticks()[1:3])
    assert lines["bound"].get_ydata().tolist() == list(axes.get_yticks()[::3])
    assert lines["claimed"].get_xdata()[:3].tolist() == pytest.approx([2, 1, 2], rel=1e-6)
    highest, claimed = (
        shown.table(*stored)["epsilon_highest"].max(),
        lines["claimed"].get_xdata(),
    )
    assert highest < claimed[3] < axes.get_xlim()[1]


def test_an_infinite_claim_and_one_setting_alone_can_be_drawn(stored):
    study, results = stored
    alone = Study("made", "Made", "Made up.", study.rows[:2])
    cell = study.cells[0]
    known = attacked("one_run", alone, results)[0].planned
    nothing = dataclasses.replace(known.ledger, epsilon_central=math.inf)
    changed = dataclasses.replace(known, ledger=nothing)
    files.write_json(results / "plans" / f"{cell.plan_id}.json", json_records.to_json(changed))
    (axes,) = shown.figure(alone, results, 3.3).axes
    assert np.isfinite(axes.get_xlim()).all()
    assert shown.table(alone, results)["verdict"].tolist() == ["out of reach"]
