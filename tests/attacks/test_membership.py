"""Membership inference: a fair game of exact neighbours, scores that use all that releases say, and
what the plan allows."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.stats import laplace, norm
from sklearn.metrics import roc_auc_score

import fake_attacks
from pflpipe import cells, errors, seeds
from pflpipe.attacks import membership, strongest
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import accounting
from pflpipe.privacy.mechanism import Uploads
from pflpipe.report.attacks import membership as shown
from pflpipe.simulation import rounds
from pflpipe.study.study_spec import Row, Study
from simulations import assert_equal, open_plan, params_after, plan, simulation, spied

CLIENTS = 24


def game(noise=1e-4, method="dp_fedavg", **changes):
    """A simulation of 24 clients with images of 200 pixels; without noise a client's update is
    nearly its own direction."""
    options = {"clip_norm": 1.0, **changes.pop("options", {})}
    made = open_plan(CLIENTS) if noise is None else plan(CLIENTS, noise_multiplier=noise, **options)
    options = {"backend": "vmap", **changes}
    return simulation(method, sizes=(6,) * CLIENTS, shape=(200,), plan=made, **options)


def of_rows(world, train):
    """The simulation whose clients have these training rows."""
    return dataclasses.replace(world, split=dataclasses.replace(world.split, train=train))


def judged(result, score):
    return result["member"][~result["calibration"]], result[score][~result["calibration"]]


# ---------------------------------------------------------------- the game


def test_members_calibrating_and_held_out_clients_are_disjoint_and_coins_are_fair():
    draws = [membership.roles(seed, 41) for seed in range(400)]
    assert all(not (member & calibration).any() for member, calibration in draws)
    assert {int(calibration.sum()) for _, calibration in draws} == {10}
    # 400 x 31 coins: the standard deviation of their mean is 0.0045.
    assert np.mean([member.sum() / 31 for member, _ in draws]) == pytest.approx(0.5, abs=0.018)
    each = np.mean([calibration for _, calibration in draws], axis=0)
    assert each.min() > 0.12
    assert each.max() < 0.38
    coins = np.stack([member[~calibration] for member, calibration in draws])
    assert coins.std(axis=1).min() > 0
    assert np.corrcoef(coins[:, 0], coins[:, 1])[0, 1] == pytest.approx(0, abs=0.2)


def test_equal_seeds_play_the_same_game():
    first, second = (membership.attack(game()) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_the_first_release_is_that_of_the_members_alone_but_for_the_divisor():
    world = game(noise=0.3, batch_size=0)  # batches are shuffled by the client's number
    member, _ = membership.roles(world.seed, CLIENTS)
    chosen, split = np.flatnonzero(member), world.split
    names = ("train", "validation", "test")
    parts = {part: [getattr(split, part)[client] for client in chosen] for part in names}
    fewer = dataclasses.replace(world.plan, clients=len(chosen))
    alone = dataclasses.replace(world, split=dataclasses.replace(split, **parts), plan=fewer)
    totals = []
    for run, count in ((membership.of_members(world, member), CLIENTS), (alone, len(chosen))):
        (_, _, first), *_ = spied(run)[1]
        totals.append({name: value * count for name, value in first.sum.items()})
    assert_equal(*totals, 1e-12)


ABOUT = {name: registry.info(name).about for name in NAMES}
CERTIFIED = [name for name in NAMES if ABOUT[name].private and ABOUT[name].has_global_model]


@pytest.mark.parametrize("name", CERTIFIED)
def test_in_every_certified_method_a_client_without_examples_sends_zero(name):
    """So that the game's two worlds are the neighbours of zero_out."""
    world = simulation(name, sizes=(9, 0, 6))
    _, rounds, _ = spied(world)
    assert rounds
    for uploads, _, _ in rounds:
        assert all(torch.count_nonzero(value[1]) == 0 for value in uploads.update.values())
        assert uploads.extras == {}
    assert any(torch.count_nonzero(value[0]) > 0 for value in rounds[0][0].update.values())


# ---------------------------------------------------------------- the scores


@pytest.mark.parametrize("noise", [1e-4, None])
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_without_noise_the_likelihood_ratio_separates_perfectly(noise, backend):
    result = membership.attack(game(noise, "dp_fedavg" if noise else "fedavg", backend=backend))
    for score in ("likelihood", "informed", "strongest"):
        member, values = judged(result, score)
        assert values[member].min() > values[~member].max(), score
    assert roc_auc_score(*judged(result, "loss")) > 0.8


@pytest.mark.slow
def test_without_noise_the_strongest_adversary_needs_no_clients_that_calibrate_it():
    """A score above 0 says member, whatever clients weigh and whichever rounds they are drawn
    for."""
    given = {"sizes": tuple(range(1, 7)) * 4, "shape": (200,), "plan": open_plan(CLIENTS)}
    weighted = simulation("fedavg", **given, batch_size=0)
    sampled = game(0.0, batch_size=0, options={"sample_rate": 0.5, "rounds": 8})
    laplacian = game(0.0, batch_size=0, options={"mechanism": "laplace", "norm": 1})
    for world in (weighted, sampled, laplacian):
        member, values = judged(membership.attack(world), "strongest")
        np.testing.assert_array_equal(values > 0, member)


@pytest.mark.slow
def test_the_strongest_adversary_is_normal_with_the_plans_mu_and_no_better():
    """Its score is mu z - mu^2 / 2 with z ~ N(0, 1) for who is no member and N(mu, 1) for a member:
    the plan's own curve. In sixteen games at mu = 2 every client is clipped in every round and
    nothing is left to shuffle.

    The deviations count that two z of a game are correlated as the cosine of what the two clients
    send (and indicators of them by no more): 4 of them either way, for every mean and every point
    of the curve.
    """
    members, scores, blocks, mu = [], [], [], 2.0
    for seed in range(16):
        options = {"rounds": 3, "clip_norm": 0.05}
        world = game(math.sqrt(3) / 2, batch_size=0, backend="vmap", seed=seed, options=options)
        member, calibration = membership.roles(world.seed, CLIENTS)
        products, exact, _ = membership._watch(world, member)
        gram = products[:-1, :-1] * (CLIENTS / 0.05) ** 2 / 3
        assert np.diag(gram) == pytest.approx(1, rel=1e-6), "everybody is clipped in all rounds"
        members.append(member[~calibration])
        scores.append(exact[~calibration])
        blocks.append(gram[np.ix_(~calibration, ~calibration)])
    member, cosines = np.concatenate(members), block_diag(*blocks)
    z = np.concatenate(scores) / mu + mu / 2
    groups = [(~member, 0.0), (member, mu)]
    assert min(member.sum(), (~member).sum()) > 120
    contrast = member / member.sum() - ~member / (~member).sum()
    assert contrast @ z == pytest.approx(mu, abs=4 * math.sqrt(contrast @ cosines @ contrast))
    for group, mean in groups:
        correlated = np.abs(cosines[np.ix_(group, group)]).sum() / group.sum() ** 2
        assert z[group].mean() == pytest.approx(mean, abs=4 * math.sqrt(correlated))
        assert z[group].var() == pytest.approx(1, abs=4 * math.sqrt(2 * correlated))
        for rate in (0.1, 0.3, 0.5):
            expected = norm.sf(norm.isf(rate) - mean)
            measured = (z[group] > norm.isf(rate)).mean()
            deviation = math.sqrt(expected * (1 - expected) * correlated)
            assert measured == pytest.approx(expected, abs=4 * deviation)


LAWS = [("dp_fedavg", "gaussian"), ("dp_fedavg", "laplace"), ("fedaddp", "gaussian")]


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize(("method", "law"), LAWS)
def test_the_strongest_score_is_the_ratio_of_the_two_densities_of_what_is_left(method, law, rate):
    """One round: the release less what the others sent, under noise alone and under noise with the
    candidate's message."""
    order = 1 if law == "laplace" else 2
    options = {"mechanism": law, "norm": order, "sample_rate": rate, "rounds": 1}
    world = game(0.5, method, batch_size=0, options={"clip_norm": 0.05, **options})
    member, _ = membership.roles(world.seed, CLIENTS)
    found = membership.attack(world)["strongest"]

    everybody = dataclasses.replace(world, plan=dataclasses.replace(world.plan, sample_rate=1.0))
    _, [(uploads, scale, _)], _ = spied(everybody)
    of_members = membership.of_members(world, member)
    run = dataclasses.replace(of_members, key=seeds.derived_key(world.key, "members"))
    drawn = rounds.cohort(run, 0)
    _, [(_, _, released)], _ = spied(run)
    assert bool(scale) == (method == "fedaddp")

    def flat(tree, clients):
        """Return a tree in units of the public scale, which at first is nowhere 0."""
        units = [(tree[name] / scale.get(name, 1)).reshape(clients, -1) for name in tree]
        return torch.cat(units, dim=1).numpy()

    rows = flat(uploads.update, CLIENTS)
    lengths = np.linalg.norm(rows, ord=order, axis=1, keepdims=True)
    messages = 0.05 * rows / lengths / (rate * CLIENTS)
    noise = flat(released.sum, 1)[0] - flat(released.clean, 1)[0]
    spread = 0.5 * 0.05 / (rate * CLIENTS)
    density = laplace(scale=spread) if law == "laplace" else norm(scale=spread)
    for client, message in enumerate(messages):
        rest = noise + message * (member[client] and drawn[client])
        apart = (density.logpdf(rest - message) - density.logpdf(rest)).sum()
        expected = math.log(1 - rate + rate * math.exp(apart))
        assert found[client] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_candidates_weight_is_counted_as_if_it_came_and_the_others_as_if_it_did_not():
    """So that what the strongest adversary takes away from a release does not show the coin. Client
    1 is no member."""
    sizes, asked = torch.tensor([2.0, 0.0, 6.0]), {"size": torch.tensor([2.0, 4.0, 6.0])}
    everybody = torch.ones(3, dtype=torch.bool)
    heard = strongest.ObservedRound(Uploads({}, {"size": sizes}), everybody, {})
    world = simulation("fedavg", sizes=(2, 4, 6))
    without, together = strongest._weights(world, everybody.numpy(), asked, heard)
    come = [1 / 4, 0, 3 / 4]
    np.testing.assert_allclose(without, [[0, 0, 1], come, [1, 0, 0]])
    np.testing.assert_allclose(together, [come, [1 / 6, 1 / 3, 1 / 2], come])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "noise"), [("fedaddp", 0.3), ("fedavg", None)])
def test_an_attack_changes_nothing_that_it_looks_at(method, noise, monkeypatch):
    """fedaddp has a public scale, fedavg weights of clients."""
    looked_at, log_ratios = [], strongest.log_ratios

    def remember(*trees):
        looked_at.extend((dict(tree), copy.deepcopy(dict(tree))) for tree in trees)

    def watched(*given):
        _, _, expected, extras, heard, scale = given
        remember(expected, extras, heard.uploads.update, heard.uploads.extras, heard.sum, scale)
        return log_ratios(*given)

    monkeypatch.setattr(membership, "log_ratios", watched)
    world = game(noise, method)
    remember(*(vars(examples) for examples in (world.train, world.test)))
    membership.attack(world)
    assert len(looked_at) == 2 + 6 * world.plan.rounds
    for now, before in looked_at:
        assert_equal(now, before, 0)


@pytest.mark.slow
def test_at_tiny_epsilon_nobody_is_found():
    """Coins of eight games against scores of noise: areas within four standard deviations of
    guessing."""
    found = [membership.attack(game(noise=1000.0, seed=seed)) for seed in range(8)]
    for score in membership.SCORES:
        games = [judged(result, score) for result in found]
        member, values = (np.concatenate(parts) for parts in zip(*games, strict=True))
        inside, outside = member.sum(), (~member).sum()
        assert min(inside, outside) > 60
        deviation = math.sqrt((inside + outside + 1) / (12 * inside * outside))
        assert abs(roc_auc_score(member, values) - 0.5) < 4 * deviation, score


OPTIONS = [{}, {"mechanism": "laplace", "norm": 1}, {"sample_rate": 0.5}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"), [("fedaddp", {}), *(("dp_fedavg", options) for options in OPTIONS)]
)
def test_releases_are_measured_in_units_of_the_noise(method, options, monkeypatch):
    """When nobody is a member a release is noise alone, which in units of the public scale has one
    size everywhere."""
    world = game(noise=2.0, method=method, options={"clip_norm": 0.7, **options})
    products, *_ = membership._watch(world, np.zeros(CLIENTS, dtype=bool))
    scalars = world.plan.rounds * world.network.parameters
    assert scalars > 2000
    told = []

    def ratios(*given, informed):
        told.append(given)
        return given[1]

    monkeypatch.setattr(membership, "likelihood_ratios", ratios)
    membership.attack(world)
    for _, calibration, variance, coordinates in told:
        assert (variance, coordinates) == (told[0][2], scalars)
        np.testing.assert_array_equal(calibration, membership.roles(world.seed, CLIENTS)[1])
    assert len(told) == 2
    # Four standard deviations of a mean of squares, whose own is sqrt(2) for normal and sqrt(5) for
    # Laplace noise.
    assert products[-1, -1] / scalars == pytest.approx(variance, rel=4 * math.sqrt(5 / scalars))
    gaussian = (0.7 * 2.0 / world.plan.expected_cohort) ** 2
    assert variance == pytest.approx(gaussian * (2 if "norm" in options else 1))


def unexplained(world):
    """Return the share of the release that is not the members' expected messages, and the squares
    of the lengths of all clients' messages."""
    member, _ = membership.roles(world.seed, CLIENTS)
    products, *_ = membership._watch(world, member)
    combination = np.append(member.astype(float), -1.0)
    return combination @ products @ combination / products[-1, -1], np.diag(products)[:-1]


def test_the_adversary_does_not_know_how_members_shuffle():
    assert unexplained(game(1e-9, batch_size=4, options={"rounds": 1}))[0] > 1e-3


def test_what_a_client_is_taken_to_send_is_what_a_member_sends():
    """Full batches leave nothing to shuffle: without noise the release is the sum of the members'
    own vectors."""
    world = game(1e-9, batch_size=0, options={"rounds": 1, "clip_norm": 0.05})
    left, squares = unexplained(world)
    assert left < 1e-12
    assert squares == pytest.approx((0.05 / CLIENTS) ** 2, rel=1e-6), "everybody is clipped"


@pytest.mark.parametrize("informed", [False, True])
def test_the_likelihood_ratio_is_that_of_two_gaussians(informed):
    """Against the densities themselves, with whole covariance matrices; standardised by the same
    clients."""
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(0)
    clients, size, noise = 16, 9, 0.7
    calibration = np.arange(clients) < 5
    vectors, release = rng.normal(1, 1, (clients, size)), rng.normal(5, 2, size)
    rows = np.vstack([vectors, release])
    found = membership.likelihood_ratios(rows @ rows.T, calibration, noise**2, size, informed)
    ratios, lengths = [], []
    for client in range(clients):
        others = np.arange(clients) != client
        tossed, known = vectors[~calibration & others], vectors[calibration & others]
        mean = tossed.sum(0) / 2 if informed else len(tossed) / 2 * known.mean(0)
        own = tossed.T @ tossed / 4 if informed else len(tossed) / 2 * np.cov(known.T)
        own = own if informed else own + len(tossed) / 4 * np.outer(known.mean(0), known.mean(0))
        covariance = own + (noise**2 + np.trace(own) / size) * np.eye(size)
        means = mean, mean + vectors[client]
        out, inside = (multivariate_normal(each, covariance) for each in means)
        lengths.append(math.sqrt(vectors[client] @ np.linalg.solve(covariance, vectors[client])))
        ratios.append(inside.logpdf(release) - out.logpdf(release))
    # log ratio = x |c| - |c|^2 / 2, and the null's x are then standardised.
    k = np.array(lengths)
    x = (np.array(ratios) + k**2 / 2) / k
    mean, deviation = x[calibration].mean(), x[calibration].std(ddof=1)
    expected = (x - mean) / deviation * k / deviation - (k / deviation) ** 2 / 2
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_without_examples_is_judged_neither_way_and_hides_nobody_else(backend):
    """A natural user may hold none: there is nothing to try, and in and out of the game are the
    same."""
    world = game(backend=backend)
    train = [rows[:0] if client % 4 == 0 else rows for client, rows in enumerate(world.split.train)]
    result = membership.attack(of_rows(world, train))
    empty = np.arange(CLIENTS) % 4 == 0
    assert (empty & result["calibration"]).any()
    known = ~empty & ~result["calibration"]
    member = result["member"][known]
    assert result["loss"][empty] == pytest.approx(0, abs=1e-12)
    assert roc_auc_score(member, result["loss"][known]) > 0.8
    for score in ("likelihood", "informed"):
        assert result[score][empty] == pytest.approx(0, abs=1e-12)
        assert result[score][known][member].min() > result[score][known][~member].max()


def test_calibrators_without_examples_tell_nothing():
    world = game()
    _, calibration = membership.roles(world.seed, CLIENTS)
    pairs = zip(world.split.train, calibration, strict=True)
    train = [rows[:0] if known else rows for rows, known in pairs]
    train[int(np.flatnonzero(~calibration)[0])] = train[0][:0]
    result = membership.attack(of_rows(world, train))
    # The strongest one knows all messages and needs nobody.
    for score in membership.SCORES.keys() - {"strongest"}:
        assert (result[score] == 0).all()


def test_a_diverged_run_tells_nothing_and_is_no_error():
    result = membership.attack(game(noise=None, method="fedavg", lr=1e30))
    assert all((result[score] == 0).all() for score in membership.SCORES)


# ---------------------------------------------------------------- figure and table

BASE = dataclasses.replace(fake_attacks.CELL, departures=("data_size_weights",))
SAMPLED = dataclasses.replace(BASE.training, sample_rate=0.5)


def private(sigma, **changes):
    budget = cells.Privacy("gaussian", noise_multiplier=sigma, delta=1e-3, clip_norm=1.0)
    return dataclasses.replace(BASE, privacy=budget, method="dp_fedavg", departures=(), **changes)


def stored(entries, results, times=1):
    """Two seeds of each cell on disk: scores are 1 for three of four members, 0 for the fourth and
    all others but one of ten.

    All clients are there so many times.
    """
    rows = [dataclasses.replace(cell, seed=seed) for cell in entries for seed in (0, 1)]
    member = np.array([True] * 4 + [False] * 12)
    score = np.array([1.0, 1.0, 1.0, 0.0] + [1.0] + [0.0] * 9 + [9.0, 9.0])
    arrays = {"member": member, "calibration": np.arange(16) >= 14}
    arrays |= dict.fromkeys(membership.SCORES, score)
    repeated = {name: np.repeat(values, times) for name, values in arrays.items()}
    for cell in rows:
        fake_attacks.store(cell, results, "membership", **repeated)
    return Study("made", "Made", "Made up.", tuple(Row(cell) for cell in rows))


@pytest.mark.slow
def test_the_table_pools_seeds_and_knows_what_the_plan_allows(tmp_path):
    study = stored([BASE, private(2.0), private(2.0, training=SAMPLED)], tmp_path)
    table = shown.table(study, tmp_path)
    measured = ["score", "seeds", "members", "held_out", "auc", "auc_deviation"]
    rates = ["tpr_at_0.01", "bound_at_0.01", "tpr_at_0.1", "bound_at_0.1"]
    assert list(table.columns) == ["method", "budget", *measured, *rates]
    assert list(table["score"]) == 3 * ["loss", "likelihood", "informed", "strongest"]
    assert (table[["members", "held_out", "seeds"]] == (8, 20, 2)).all(axis=None)
    # Of 8 x 20 pairs: 6 x 18 right, 6 x 2 and 2 x 18 ties.
    assert table["auc"].unique() == pytest.approx((6 * 18 + (6 * 2 + 2 * 18) / 2) / 160)
    open_, plain, sampled = (table.iloc[i * len(membership.SCORES)] for i in range(3))
    assert math.isnan(open_["bound_at_0.1"])
    assert plain["bound_at_0.1"] == pytest.approx(norm.cdf(norm.ppf(0.1) + math.sqrt(4) / 2.0))
    shape = {"rounds": 4, "sample_rate": 0.5, "clients": 40}
    promised = accounting.epsilon(accounting.make_plan(private(2.0).privacy, **shape), 1e-3)
    assert sampled["bound_at_0.1"] == pytest.approx(0.1 * math.exp(promised) + 1e-3)


LEAST = {1: 0, 49: 0, 50: 0.1, 499: 100 / 9980, 500: 0.01}


@pytest.mark.parametrize("times", LEAST)
def test_rates_are_printed_and_drawn_where_a_hundred_false_positives_are_expected(times, tmp_path):
    """That takes 1,000 held-out clients of all seeds at 10 %, and 10,000 at 1 %; here there are 20
    times ``times``. Too few of them get the whole curve on plain axes.

    One of ten of them is a false alarm: the first threshold has that rate, and three of four
    members.
    """
    study, least = stored([private(2.0)], tmp_path, times), LEAST[times]
    table = shown.table(study, tmp_path)
    for rate, expected in (("0.1", 0.75), ("0.01", 0.0)):
        column = table[f"tpr_at_{rate}"]
        is_printed = 0 < least <= float(rate)
        assert (column == expected).all() if is_printed else column.isna().all()
        assert table[f"bound_at_{rate}"].notna().all(), "the plan's bound is no measurement"
    scale = "log" if least else "linear"
    for panel in shown.figure(study, tmp_path, 3.3).axes[: len(membership.SCORES)]:
        assert (panel.get_xscale(), panel.get_yscale()) == (scale, scale)
        assert (*panel.get_xlim(), *panel.get_ylim()) == pytest.approx((least, 1, least, 1))


def test_a_nominal_row_has_no_bound(tmp_path):
    cell = dataclasses.replace(private(2.0), profile="paper", departures=("update_against_global",))
    table = shown.table(stored([cell], tmp_path), tmp_path)
    assert table["bound_at_0.1"].isna().all()


def test_the_figure_has_every_setting_and_a_dashed_bound_where_there_is_one(tmp_path):
    study = stored([BASE, private(2.0), private(0.5)], tmp_path)
    figure = shown.figure(study, tmp_path, 6.7)
    titles = [" ".join(panel.get_title("left").split()) for panel in figure.axes]
    assert titles == list(membership.SCORES.values())
    for panel in figure.axes:
        assert sum(line.get_linestyle() == "--" for line in panel.lines) == 2
    names = ["FedAvg, no privacy", "DP-FedAvg, σ = 2", "DP-FedAvg, σ = 0.5"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{name} ({', '.join(['0.82'] * 4)})" for name in names]


def test_a_game_without_anybody_held_out_says_so():
    with pytest.raises(errors.DataError, match="more seeds"):
        shown._curve(np.array([True, True]), np.array([0.0, 1.0]))


@pytest.mark.slow
def test_the_run_that_is_attacked_is_the_cells_when_everybody_is_a_member_but_for_its_noise():
    world = game(noise=0.3)
    *_, progress = membership._watch(world, np.ones(CLIENTS, dtype=bool))
    key = seeds.derived_key(world.key, "members")
    own, other = params_after(world), params_after(dataclasses.replace(world, key=key))
    assert_equal(progress.params, other, 0)
    assert all((own[name] != other[name]).all() for name in own)
