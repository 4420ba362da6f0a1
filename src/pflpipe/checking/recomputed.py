"""What the numbers of a certificate's row must be, given the rest of the row.

The writer's numbers come from pflpipe.privacy. This module imports nothing of pflpipe (an import
contract says so): dp-accounting counts every epsilon, and the rules between settings, plan and
claim are written down a second time. Where dp-accounting has no closed form, both sides use its
privacy loss distribution on the same grid (``_interval``), so that the numbers agree to many
digits.
"""

import collections
import functools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import compute_epsilon
from scipy.special import gammaln, logsumexp, xlog1py, xlogy
from scipy.stats import binom

WITHOUT_EFFECT = {
    *("learning_rate_in_noise", "no_composition", "noise_over_all_clients"),
    *("sample_level_calibration", "update_against_global"),
}
"""Departures under which the noise of the plan covers what it says."""
OF_MESSAGES = {"data_size_weights", "noise_not_divided", "noise_per_participant"}
"""Departures with noise on single messages, which shows a secret cohort."""
IN_PARTS = {"per_layer_clip_unscaled", "per_tensor_clip"}
COUNTED = OF_MESSAGES | IN_PARTS | {"public_sampling"}
"""Departures whose cost follows from the data, the model or the schedule of the cohorts. Under any
departure besides these and those without effect, no finite epsilon holds."""
CALIBRATED = 1e-3
"""How far below the epsilon asked for the calibrated one may be, relatively."""
FINEST, WIDEST_ROUND, WIDEST_RUN = 1e-4, 20.0, 200.0
"""Grid of the privacy loss. It is coarser in proportion to a loss of one round, or of all rounds,
that is wider than these."""
CURVES = {"laplace": "pld", "skellam": "skellam"}
"""Mechanism -> its curve, where the sampling rate does not decide it."""
DISCRETE = math.sqrt(1 - (4 / 1024) ** 2)
"""Gaussian noise of this share, rounded at random with a scale of 4 steps, is discrete Gaussian
noise of 1,024 steps or more in a standard deviation."""
COARSER = 10
"""How much coarser that grid is for a group of clients."""
LARGEST_MU, LARGEST_LOSS = 1e4, 700.0
"""Beyond these there is almost no noise: a Gaussian epsilon is infinite, and a Laplace one is that
of delta 0."""


class Noise(NamedTuple):
    """Rounds with noise of a multiplier, in each of which a client is drawn at a rate."""

    mechanism: str
    multiplier: float
    rate: float
    rounds: int


def expected(row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that follow from the rest of a row, by dotted path, and one sentence for
    each value that does not follow.

    Args:
        row: a row of a certificate that satisfies its schema.
    """
    settings, plan, counted = row["settings"], row["plan"], row["counted"]
    privacy, training = settings["privacy"], settings["training"]
    departures = frozenset(settings.get("departures", ()))
    mechanism, rate = privacy.get("mechanism", "none"), training.get("sample_rate", 1.0)
    laplace, public = mechanism == "laplace", "public_sampling" in departures
    alone = mechanism not in ("gaussian", "none")  # its noise is neither shared nor correlated
    claim = "unreviewed" if unreviewed(row["code"]) else "certified"
    groups, number, buffers = training.get("groups", 1), privacy.get("buffers", 0), None
    band = training["rounds"] if number else privacy.get("band", 1)
    fixed = groups > 1 or band > 1 or number > 0
    drawn = "everybody" if rate == 1 else "public" if public else "poisson"
    found: dict[str, Any] = {
        "dataset.name": settings["dataset"],
        "departures": sorted(departures),
        "claim": "nominal" if departures else claim,
        "trust": "secure_aggregation" if mechanism == "skellam" else "central",
        "sampling": "cyclic" if groups > 1 else drawn,
        "plan.mechanism": mechanism,
        "plan.norm": 1 if laplace else 2,
        "plan.rounds": training["rounds"],
        "plan.sample_rate": rate,
        "plan.delta": privacy.get("delta", 0.0 if laplace else None),
        "plan.clip_norm": privacy.get("clip_norm"),
        "plan.clients": settings["partition"].get("clients", plan["clients"]),
        "plan.noise": privacy.get("noise", "reproducible"),
        "plan.bits": privacy.get("bits", 16) if mechanism == "skellam" else 0,
        "plan.dropout": privacy.get("dropout", 0.0),
    }
    found |= _grid(plan, found["plan.noise"])
    claimed = mechanism != "none"
    uncovered = alone or (departures and claimed) or "clip_quantile" in privacy
    turns = (1, 1) if fixed and (uncovered or rate < 1) else (groups, band)
    found |= dict(zip(("plan.groups", "plan.band"), turns, strict=True))
    buffers = plan["buffers"]
    if number != len(buffers["decays"] if buffers else ()):
        found["plan.buffers"] = f"of {number}"
    if row["person"]:
        found |= {"person.epsilon": None, "person.epsilon_1e5": None}
    if search := row["search"]:
        private = search["private"]
        # A private search does not publish its number of runs.
        found["search.runs"] = None if private else sum(part["runs"] for part in search["plans"])
        found["search.epsilon_with_search"] = None
    if mechanism == "none":
        nothing = ("trust", "plan.noise_multiplier", "plan.adaptive", "counted", "accountant")
        epsilons = dict.fromkeys(row["epsilons"])
        return found | dict.fromkeys(nothing) | {"claim": "none", "epsilons": epsilons}, []
    noise = release(plan)
    more, unknown = _noise(noise, settings, departures, plan["delta"])
    found |= more | _adaptive(privacy, noise.multiplier, rate * plan["clients"])
    if (
        departures - WITHOUT_EFFECT - COUNTED
        or (departures & OF_MESSAGES and rate < 1 and not public)
        or (departures & IN_PARTS and laplace)
    ):
        found |= {"counted.multiplier": 0.0, "counted.message": None if alone else 0.0}
    elif of_data := departures & COUNTED:
        names = ", ".join(sorted(of_data))
        unknown.append(f"what {names} costs follows from data, model or cohorts")
    else:
        shared = noise.multiplier / math.sqrt(rate * plan["clients"])
        message = None if alone or fixed else shared
        found |= {"counted.multiplier": noise.multiplier, "counted.message": message}
    found["counted.rate"] = 1.0 if public else noise.rate
    found["counted.rounds"] = counted["rounds"] if public else noise.rounds
    found["accountant.name"] = CURVES.get(mechanism, "gdp" if counted["rate"] == 1 else "pld")
    noise_of_run = Noise(mechanism, counted["multiplier"], counted["rate"], counted["rounds"])
    found |= _epsilons(noise_of_run, counted["message"], plan["delta"])
    if row["person"]:
        # Without a bound the rows of a user may lie with all clients.
        size = min(row["person"]["max_clients_per_user"] or plan["clients"], plan["clients"])
        for end, at in (("", plan["delta"]), ("_1e5", 1e-5)):
            found[f"person.epsilon{end}"] = of_group(noise_of_run, at, size)
    # Rows that are dealt make other clients at the seeds of a search, and nothing counts both.
    if search and not departures and settings["partition"]["kind"] == "natural":
        times = [(release(part), part["runs"] or 1) for part in search["plans"]]
        runs = [one._replace(rounds=one.rounds * number) for one, number in times]
        found["search.epsilon_with_search"] = (
            best_of_trials(private, runs[0], noise, plan["delta"])
            if private and len(runs) == 1
            else central((*runs, noise), plan["delta"])
        )
    return found, unknown


def unreviewed(code: list[dict[str, Any]]) -> list[str]:
    """Return the names of the code from outside the package that may touch a message. Initial
    weights are numbers, which keep nothing of a client."""
    outside = [part for part in code if not part["package"] and part["touches"] == "messages"]
    return [part["name"] for part in outside if part["kind"] != "initial weights"]


def release(plan: dict[str, Any]) -> Noise:
    """Return the noise of a plan as a whole: its rounds, or one release of correlated rounds."""
    fields = ("mechanism", "noise_multiplier", "sample_rate", "rounds")
    noise = Noise(*(plan[name] for name in fields))
    return _single(noise, plan["groups"], plan["band"], plan["buffers"])


def _single(noise: Noise, groups: int, band: int, buffers: dict[str, Any] | None) -> Noise:
    """Return one release with the curve of Gaussian rounds in which groups of clients take part in
    turn, with noise correlated by a band or by buffers; other rounds as they are.

    The noise of a run is z with a triangular system solved for it. Its matrix times the moves of a
    client of the first group, all equal, is the largest movement.
    """
    if groups == band == 1 or not noise.multiplier:
        return noise
    # Row t of the product: the weight of lag t, and that of the last round of the group.
    rows, weight = list[float](), 1.0
    shares = list(buffers["scales"]) if buffers else []
    for row in range(min(band, noise.rounds)):
        if row and buffers:
            weight = sum(shares)
            shares = [kept * one for kept, one in zip(buffers["decays"], shares, strict=True)]
        elif row:
            weight *= 1 - 1 / (2 * row)
        rows.append(weight + (rows[row - groups] if row >= groups else 0))
    squares = sum(length**2 for length in rows)
    # Beyond the band rows repeat with the period of the groups.
    for row in range(max(0, len(rows) - groups), len(rows)):
        squares += rows[row] ** 2 * ((noise.rounds - 1 - row) // groups)
    multiplier = noise.multiplier / math.sqrt(squares)
    return noise._replace(multiplier=multiplier, rate=1.0, rounds=1)


def _noise(
    noise: Noise, settings: dict[str, Any], departures: frozenset[str], delta: float
) -> tuple[dict[str, Any], list[str]]:
    """Return what the request says of the plan's noise: its multiplier, or the epsilon that it
    reaches, if that is not the one asked for."""
    privacy = settings["privacy"]
    if "noise_multiplier" in privacy:
        return {"plan.noise_multiplier": privacy["noise_multiplier"]}, []
    if "sample_level_calibration" in departures:
        return {}, ["the noise was calibrated to the clients' numbers of examples"]
    if "noise_over_all_clients" in departures:
        rate = settings["training"].get("sample_rate", 1.0)
        noise = noise._replace(multiplier=noise.multiplier / math.sqrt(rate))
    if "learning_rate_in_noise" in departures:
        noise = noise._replace(multiplier=noise.multiplier / (2 * settings["training"]["lr"]))
    if "no_composition" in departures:
        noise = noise._replace(rounds=1)
    reached = central((noise,), delta)
    # The Renyi accountant is looser, so the noise that it asks for gives less.
    least = 0.0 if privacy.get("accountant") == "rdp" else 1 - CALIBRATED
    is_met = least <= reached / privacy["epsilon"] <= 1 + 1e-9
    return {} if is_met else {"settings.privacy.epsilon": reached}, []


def _grid(plan: dict[str, Any], noise: str) -> dict[str, Any]:
    """Return the whole numbers of secure noise: a message has at most 2^26 steps, and no more of
    its square than keeps the noise at the multiplier, counted with fractions."""
    if noise != "secure":
        return {"grid": None}
    share, multiplier = plan["clip_norm"] / plan["clients"], plan["noise_multiplier"]
    step = 2.0 ** (math.frexp(share)[1] - 26)
    scale = multiplier * (share / step)
    return {
        "grid.step": step,
        "grid.message": step * plan["clients"] * (1 + 2**-19),
        "grid.scale": scale,
        "grid.length": int((Fraction(scale) / Fraction(multiplier)) ** 2),
    }


def _adaptive(privacy: dict[str, Any], multiplier: float, cohort: float) -> dict[str, Any]:
    if "clip_quantile" not in privacy:
        return {"plan.adaptive": None, "counted.update": None}
    bits = privacy.get("clip_bit_noise", cohort / 20)
    # Both parts together have the multiplier z: z^-2 = update^-2 + (2 bits)^-2.
    left = multiplier**-2 - (2 * bits) ** -2 if multiplier else math.inf
    return {
        "plan.adaptive.quantile": privacy["clip_quantile"],
        "plan.adaptive.lr": privacy.get("clip_lr", 0.2),
        "plan.adaptive.bit_noise": bits,
        "counted.update": left**-0.5 if left > 0 else None,
    }


def _epsilons(noise: Noise, message: float | None, delta: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for end, at in (("", delta), ("_1e5", 1e-5)):
        found[f"epsilons.central{end}"] = central((noise,), at)
        found[f"epsilons.replace_one{end}"] = replace_one(noise, at)
        # Whoever sees messages knows the cohort; two arbitrary ones are twice as far apart.
        for name, factor in (("local", 1.0), ("local_replace_one", 2.0)):
            single = noise._replace(multiplier=(message or 0.0) / factor, rate=1.0)
            known = message is not None
            found[f"epsilons.{name}{end}"] = central((single,), at) if known else None
    return found


@functools.cache
def central(runs: tuple[Noise, ...], delta: float) -> float:
    """Return the epsilon of all runs together: of one mechanism, on the same clients. Neighbours
    differ in one client, whose messages are zero in one of them."""
    if not all(run.multiplier for run in runs):
        return math.inf
    runs = tuple(map(_as_gaussian, runs))
    # Equal rounds count together: a grid for each run would be composed less exactly.
    rounds: collections.Counter[Noise] = collections.Counter()
    for run in runs:
        rounds[run._replace(rounds=0)] += run.rounds
    merged = tuple(kind._replace(rounds=number) for kind, number in rounds.items())
    if runs[0].mechanism == "skellam":
        return _skellam(merged, delta)
    if runs[0].mechanism == "gaussian":
        bound = _gaussian(math.hypot(*map(_mu, merged)), delta)
    else:
        bound = sum(run.rounds * _log_mixture(run.rate, 1 / run.multiplier) for run in merged)
    is_exact = all(run.mechanism == "gaussian" and run.rate == 1 for run in merged)
    if is_exact or delta == 0 or math.isinf(bound) or any(map(_is_wide, merged)):
        return bound
    return min(bound, float(_losses(merged, _interval(merged)).get_epsilon(delta)))


def best_of_trials(private: dict[str, Any], tried: Noise, final: Noise, delta: float) -> float:
    """Return the epsilon of the best of a random number of trials (Papernot and Steinke 2022,
    Theorem 2) together with a final run."""
    if not (tried.multiplier and final.multiplier):
        return math.inf
    mean, eta = private["trials"], float(private["distribution"] == "geometric")
    if eta:
        log_inverse = math.log(mean)
    else:  # of E[K] = (1 / gamma - 1) / log(1 / gamma)
        low, high = 0.0, 700.0
        for _ in range(200):
            log_inverse = (low + high) / 2
            below = math.expm1(log_inverse) < mean * log_inverse
            low, high = (log_inverse, high) if below else (low, log_inverse)
    orders = (*range(2, 65), 80, 96, 128, 192, 256, 512)
    score = 1 / (2 * private["score_noise"] ** 2)
    trial = [_renyi(tried, order) + order * score for order in orders]
    second = min(
        log_inverse,
        *((1 - 1 / a) * spent + log_inverse / a for a, spent in zip(orders, trial, strict=True)),
    )
    spent = [
        one + (1 + eta) * second + math.log(mean) / (order - 1) + _renyi(final, order)
        for order, one in zip(orders, trial, strict=True)
    ]
    return float(compute_epsilon(orders, spent, delta)[0])


@functools.cache
def _renyi(run: Noise, order: int) -> float:
    """Return the Renyi divergence of sampled Gaussian releases at a whole order (Mironov, Talwar,
    Zhang 2019, equation 4)."""
    counts = np.arange(order + 1)
    logs = (
        gammaln(order + 1)
        - gammaln(counts + 1)
        - gammaln(order - counts + 1)
        + xlogy(counts, run.rate)
        + xlog1py(order - counts, -run.rate)
        + counts * (counts - 1) / (2 * run.multiplier**2)
    )
    return run.rounds * float(logsumexp(logs)) / (order - 1)


@functools.cache
def of_group(noise: Noise, delta: float, size: int) -> float:
    """Return the epsilon of noisy sums in which ``size`` clients count or are zero together."""
    if size == 1 or not noise.multiplier:
        return central((noise,), delta)
    noise = _as_gaussian(noise)
    together = noise._replace(multiplier=noise.multiplier / size)
    if noise.mechanism == "laplace":  # all of them count as soon as one is drawn
        return central((together._replace(rate=1 - (1 - noise.rate) ** size),), delta)
    bound = central((together._replace(rate=1.0),), delta)
    if noise.rate == 1 or _is_wide(together):
        return bound
    losses = _losses_of_group(noise, size, COARSER * _interval((together,)))
    return min(bound, float(losses.get_epsilon(delta)))


@functools.cache
def replace_one(noise: Noise, delta: float) -> float:
    """Return the epsilon of noisy sums in which a client's message is replaced by another one."""
    if not noise.multiplier:
        return math.inf
    if noise.mechanism == "laplace":
        return _laplace_replaced(noise, delta)
    noise = _as_gaussian(noise)
    halved = noise._replace(multiplier=noise.multiplier / 2)
    if noise.mechanism == "skellam":
        return central((halved,), delta)
    bound = _gaussian(_mu(halved), delta)
    if noise.rate == 1 or _is_wide(halved):
        return bound
    losses = _losses((noise,), _interval((halved,)), "REPLACE_ONE")
    return min(bound, float(losses.get_epsilon(delta)))


def _as_gaussian(noise: Noise) -> Noise:
    """Return discrete Gaussian noise as the Gaussian noise of which it is post-processing, and
    other noise as it is."""
    if noise.mechanism != "discrete_gaussian":
        return noise
    return noise._replace(mechanism="gaussian", multiplier=noise.multiplier * DISCRETE)


def _skellam(runs: tuple[Noise, ...], delta: float) -> float:
    """Return the epsilon of Skellam noise, of which no curve under sampling is known. Of variance
    mu >= 100 it has at whole orders at most 1 + 9 / (4 mu) times the divergence of Gaussian
    noise."""
    if delta == 0 or any(run.rate < 1 for run in runs):
        return math.inf
    orders = np.r_[2.0:1025.0, 2.0 ** np.arange(11, 41)]
    rho = sum(run.rounds / (2 * run.multiplier**2) for run in runs) * (1 + 9 / 400)
    return float(compute_epsilon(orders, rho * orders, delta)[0])


def _gaussian(mu: float, delta: float) -> float:
    if mu > LARGEST_MU:
        return math.inf
    return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def _mu(run: Noise) -> float:
    return math.sqrt(run.rounds) / run.multiplier


def _log_mixture(rate: float, loss: float) -> float:
    """Return log(1 - q + q e^loss), in which the exponential may overflow."""
    absent = math.log(1 - rate) if rate < 1 else -math.inf
    return float(np.logaddexp(absent, math.log(rate) + loss))


def _is_wide(run: Noise) -> bool:
    if run.mechanism == "laplace":
        return 1 / run.multiplier > LARGEST_LOSS
    return _mu(run) > LARGEST_MU


def _width(run: Noise) -> float:
    """Return the loss that rounds without sampling exceed with a probability of about 1e-12."""
    if run.mechanism == "laplace":
        return run.rounds / run.multiplier
    return _mu(run) ** 2 / 2 + 7 * _mu(run)


def _interval(runs: tuple[Noise, ...]) -> float:
    rounds = max(_width(run._replace(rounds=1)) for run in runs)
    return FINEST * max(1.0, rounds / WIDEST_ROUND, sum(map(_width, runs)) / WIDEST_RUN)


@functools.lru_cache(maxsize=4)
def _losses(runs: tuple[Noise, ...], interval: float, relation: str = "ADD_OR_REMOVE_ONE") -> Any:
    kinds = {"gaussian": dp_accounting.GaussianDpEvent, "laplace": dp_accounting.LaplaceDpEvent}
    neighbours = dp_accounting.NeighboringRelation[relation]
    accountant = PLDAccountant(neighbours, value_discretization_interval=interval)
    for run in runs:
        release = kinds[run.mechanism](run.multiplier)
        if run.rate < 1:
            release = dp_accounting.PoissonSampledDpEvent(run.rate, release)
        accountant.compose(release, run.rounds)
    return accountant


@functools.lru_cache(maxsize=4)
def _losses_of_group(noise: Noise, size: int, interval: float) -> Any:
    drawn = np.arange(size + 1)
    chances = binom.pmf(drawn, size, noise.rate)
    sums = MixtureOfGaussiansDpEvent(noise.multiplier, drawn.tolist(), chances.tolist())
    return PLDAccountant(value_discretization_interval=interval).compose(sums, noise.rounds)


def _laplace_replaced(run: Noise, delta: float) -> float:
    """Return ``replace_one`` of Laplace noise.

    In units of the bound, the worst messages are 1 and -1 (privacy/mechanisms/laplace.py). A round
    then has the density (1 - q) f(x) + q f(x - 1) in one run and (1 - q) f(x) + q f(x + 1) in the
    other.
    """
    loss = 1 / run.multiplier
    largest = _log_mixture(run.rate, loss) - _log_mixture(run.rate, -loss)
    bound = run.rounds * largest
    if delta == 0 or largest > LARGEST_LOSS:
        return bound
    interval = FINEST * max(1.0, largest / WIDEST_ROUND, bound / WIDEST_RUN)
    losses = _replaced_losses(run.rate, loss, largest, interval).self_compose(run.rounds)
    return min(bound, float(losses.get_epsilon_for_delta(delta)))


def _replaced_losses(q: float, loss: float, largest: float, interval: float) -> Any:
    last = math.ceil(largest / interval)
    grid = interval * np.arange(last + 1)
    # From x in [0, 1] on the first density is more than e^epsilon times the second: for x >= 0 the
    # two differ by the factors 1 - q + q e^((2 x - 1) / b) and 1 - q + q e^(-1 / b).
    ratio = np.exp(grid) * (1 - q + q * math.exp(-loss)) - (1 - q)
    x = np.clip((1 + np.log(ratio / q) / loss) / 2, 0, 1)
    absent, second = np.exp(-loss * x) / 2, np.exp(-loss * (1 + x)) / 2
    first = 1 - np.exp(-loss * (1 - x)) / 2
    above = (1 - q) * absent + q * first - np.exp(grid) * ((1 - q) * absent + q * second)
    above = np.append(np.maximum(above[:-1], 0), 0)
    # The two runs mirror each other: delta(-epsilon) = 1 - e^-epsilon (1 - delta(epsilon)).
    below = 1 - np.exp(-grid[:0:-1]) * (1 - above[:0:-1])
    deltas = np.concatenate([below, above])
    points = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(points)
