"""The guarantee of a plan: calibration, the exact curve and the papers' RDP number.

A curve is that of the plan's mechanism (mechanisms/). "RDP" is Opacus' set of orders and its
conversion. The accountants are those of libraries: our files describe an event and the library
counts it. Adjacency is zero_out (mechanism.py). Delta curves are upper bounds, never estimates.

SciPy, dp_accounting and Opacus are imported inside functions, because each import takes a second.
"""

import dataclasses
import functools
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pflpipe.cells import Privacy
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import check_adaptive, check_departures
from pflpipe.privacy import adaptive, correlated, mechanisms
from pflpipe.privacy.mechanisms import base
from pflpipe.privacy.mechanisms.base import FINEST_INTERVAL, SEARCH_INTERVAL, Mechanism, Releases
from pflpipe.privacy.noise_laws.buffers import fitted
from pflpipe.privacy.plan import Adaptive, Plan

BIT_NOISE_SHARE = 20
"""The default noise on the sum of the bits is the expected cohort over this number (Andrew et al.
2021, section 3.1: m / 20)."""
RDP_ORDERS = [1 + order / 10 for order in range(1, 100)] + list(range(12, 64))
"""The orders of Opacus' ``RDPAccountant``."""


def make_plan(
    privacy: Privacy,
    *,
    rounds: int,
    sample_rate: float,
    clients: int,
    groups: int = 1,
    departures: Iterable[str] = (),
    sizes: np.ndarray | None = None,
    local_epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
) -> Plan:
    """Return the Plan of a privacy request: with its fixed multiplier, or with the multiplier that
    reaches its epsilon.

    Args:
        privacy: the request.
        rounds, sample_rate, clients, groups: T, q, M, b.
        departures: names. Four of them change the noise: ``no_composition`` calibrates a single
            round, ``sample_level_calibration`` the steps of DP-SGD, ``learning_rate_in_noise``
            multiplies the result by 2 lr. ``noise_over_all_clients`` multiplies any multiplier by
            sqrt(q): each of q M messages has the share 1/M of the variance, not 1/(q M).
        sizes: training examples per client ``[M]``.
        local_epochs, batch_size: E, B; with the sizes, for ``sample_level_calibration``.
        lr: learning rate, for ``learning_rate_in_noise``.

    Raises:
        PrivacyError: the request is incomplete or contradictory, or cannot be met.
    """
    names = check_departures(departures)
    if not names.issuperset(privacy.departures):
        # Else the run would be certified under a request that declares otherwise.
        declared, do = ", ".join(privacy.departures), "declare them in a study, which names them"
        raise PrivacyError("privacy.departures", got=declared, expected="those of the run", do=do)
    law = mechanisms.of(privacy.mechanism)
    private = privacy.mechanism != "none"
    unless = PrivacyError.unless
    got = {"epsilon": privacy.epsilon, "noise_multiplier": privacy.noise_multiplier}
    one = not private or list(got.values()).count(None) == 1
    unless(one, "privacy: epsilon, noise_multiplier", got, "exactly one of the two")
    what = "privacy: epsilon of mechanism none"
    unless(private or privacy.epsilon is None, what, privacy.epsilon, "nothing")
    plan = Plan(
        mechanism=privacy.mechanism,
        norm=law.norm,
        clip_norm=privacy.clip_norm,
        noise_multiplier=privacy.noise_multiplier if privacy.epsilon is None else 1.0,
        sample_rate=sample_rate,
        rounds=rounds,
        delta=0.0 if law.pure and privacy.delta is None else privacy.delta,
        clients=clients,
        adaptive=_adaptive(privacy, sample_rate * clients),
        groups=groups,
        band=rounds if privacy.buffers else privacy.band,
        buffers=fitted(rounds, groups, privacy.buffers) if privacy.buffers else None,
        noise=privacy.noise,
        bits=privacy.bits if privacy.mechanism == "skellam" else 0,
        dropout=privacy.dropout,
    )
    plan.check_fixed(names)
    if plan.noise == "secure":
        unless(not names, "privacy.noise secure: departures", ", ".join(sorted(names)), "none")
    if plan.adaptive is not None:
        check_adaptive(names)
    if privacy.epsilon is not None:
        calibrated = dataclasses.replace(plan, rounds=1) if "no_composition" in names else plan
        if "sample_level_calibration" in names:
            calibrated = _calibrate_per_sample(
                calibrated, privacy.epsilon, sizes, local_epochs, batch_size
            )
        else:
            calibrated = calibrate(calibrated, privacy.epsilon, privacy.accountant)
        if "learning_rate_in_noise" in names:
            if not lr:
                expected = "the learning rate of the local steps"
                raise PrivacyError("departure learning_rate_in_noise", got=lr, expected=expected)
            multiplier = 2 * lr * calibrated.multiplier
            calibrated = dataclasses.replace(calibrated, noise_multiplier=multiplier)
        plan = dataclasses.replace(calibrated, rounds=rounds)
    if "noise_over_all_clients" in names and private:
        multiplier = plan.multiplier * math.sqrt(sample_rate)
        plan = dataclasses.replace(plan, noise_multiplier=multiplier)
    if plan.adaptive is not None:
        # Raises if the bits alone use up the budget; only the calibrated plan shows whether.
        adaptive.multiplier_of_updates(plan)
    return plan


def _adaptive(privacy: Privacy, expected_cohort: float) -> Adaptive | None:
    """Return the requested rule of the clip bound; None for a fixed bound."""
    if privacy.clip_quantile is None:
        return None
    noise = privacy.clip_bit_noise
    if noise is None:
        noise = expected_cohort / BIT_NOISE_SHARE
    return Adaptive(privacy.clip_quantile, privacy.clip_lr, noise)


def calibrate(plan: Plan, epsilon: float, accountant: str = "exact") -> Plan:
    """Return the plan with the least noise whose epsilon at the plan's delta is at most
    ``epsilon``.

    The noise is within a relative 1e-9 of the least one for closed forms, 1e-4 in epsilon for PLD
    and 1e-5 for RDP, and never below it.

    Args:
        plan: its noise multiplier is ignored.
        epsilon: the target, above 0.
        accountant: ``exact``, or ``rdp`` (Gaussian only) as in the papers.
    """
    unless = PrivacyError.unless
    is_number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
    is_finite = is_number and 0 < epsilon < math.inf
    unless(is_finite, "privacy: epsilon", epsilon, "a finite number above 0")
    unless(accountant in ("exact", "rdp"), "privacy: accountant", accountant, "exact or rdp")
    unless(plan.mechanism != "none", "privacy: epsilon of mechanism none", epsilon, "nothing")
    what = f"privacy: accountant of mechanism {plan.mechanism}"
    unless(accountant == "exact" or plan.law.stable, what, accountant, "exact")

    def curve(multiplier: float, interval: float = FINEST_INTERVAL) -> float:
        tried = dataclasses.replace(plan, noise_multiplier=multiplier)
        if accountant == "rdp":
            return epsilon_rdp(tried, delta_of(plan))
        return composed_epsilon([tried], delta_of(plan), interval)

    if accountant == "rdp":
        multiplier = _least_multiplier(curve, epsilon, start=1.0, tolerance=1e-5)
    elif plan.law.closed(_releases(plan)[1]) or plan.delta == 0:
        multiplier = _least_multiplier(curve, epsilon, start=1.0, tolerance=1e-9)
    else:
        # Start from the noise that is sufficient without amplification; its closed form is cheap.
        start = plan.rounds / epsilon
        if not plan.law.pure:
            start = calibrate(dataclasses.replace(plan, sample_rate=1.0), epsilon).multiplier
        # Search on the coarse grid, then correct on the fine one: a PLD at FINEST_INTERVAL takes
        # ten times as many points.
        multiplier = _least_multiplier(
            lambda value: curve(value, SEARCH_INTERVAL), epsilon, start=start, tolerance=1e-6
        )
        reached = curve(multiplier)
        if not epsilon * (1 - 1e-4) <= reached <= epsilon:
            # A bracket of about twice the error of the coarse grid; it widens if that is too small.
            step = 2 * abs(math.log(max(reached, epsilon / 2) / epsilon)) + 1e-6
            multiplier = _least_multiplier(
                curve, epsilon, start=multiplier, tolerance=1e-5, step=step
            )
    return dataclasses.replace(plan, noise_multiplier=multiplier)


def epsilon(plan: Plan, delta: float) -> float:
    """Return the plan's exact central epsilon at delta, infinite without noise. Central: only the
    released sums are public."""
    return composed_epsilon([plan], delta)


def composed_epsilon(
    plans: Sequence[Plan], delta: float, interval: float = FINEST_INTERVAL
) -> float:
    """Return the exact central epsilon at delta of several runs on the same clients, each with its
    plan, of one mechanism; infinite if one is without noise.

    ``interval`` discretises the privacy loss where there is no closed form.
    """
    if not all(plan.noise_multiplier for plan in plans):
        return math.inf
    return base.composed(list(map(_releases, plans)), delta, interval)


def _releases(plan: Plan) -> tuple[Mechanism, Releases]:
    """Return the mechanism of a plan and what it is counted as."""
    plan = correlated.single(plan)
    return plan.law, Releases(plan.law.counted(plan.multiplier), plan.sample_rate, plan.rounds)


def delta(plan: Plan, epsilon: float) -> float:
    """Return the plan's exact central delta at epsilon (1 without noise)."""
    if not plan.noise_multiplier:
        return 1.0
    law, of = _releases(plan)
    known = law.delta(of, epsilon)
    if known is not None:
        return known
    if not law.has_curve(of):
        return 1.0
    accountant = base.counted(((law, of),), FINEST_INTERVAL * base.coarser(law, of))
    return float(accountant.get_delta(epsilon))


def mu(plan: Plan) -> float | None:
    """Return mu of a plan whose curve is that of mu-GDP; None for any other, and without noise."""
    law, of = _releases(plan)
    return law.mu(of) if of.multiplier else None


def epsilon_rdp(plan: Plan, delta: float) -> float:
    """Return the epsilon of Opacus' RDP accountant for a Gaussian plan; infinite without noise."""
    PrivacyError.unless(plan.law.stable, "epsilon_rdp: mechanism", plan.mechanism, "gaussian")
    plan = correlated.single(plan)
    return _opacus_epsilon(plan.sample_rate, plan.multiplier, plan.rounds, delta)


def epsilon_local(plan: Plan, delta: float, participants: float | None = None) -> float:
    """Return epsilon against a server that sees single messages, if each client adds a share of the
    noise. Gaussian only.

    Each message carries N(0, C^2 sigma^2 / m), so its multiplier is sigma / sqrt(m), with m = q M
    unless given. The server knows the cohorts, so there is no amplification, and the client counted
    takes part in all T rounds. A message is compared with zero. Two arbitrary messages are up to
    2 C apart; for them use half the multiplier.
    """
    got = f"{plan.mechanism}, groups {plan.groups}, band {plan.band}"
    expected, fits = "gaussian with independent noise of all clients", plan.law.stable
    PrivacyError.unless(fits and not plan.fixed, "epsilon_local: mechanism", got, expected)
    shared = plan.multiplier / math.sqrt(participants or plan.expected_cohort)
    return epsilon(dataclasses.replace(plan, noise_multiplier=shared, sample_rate=1.0), delta)


def epsilon_replace_one(plan: Plan, delta: float) -> float:
    """Return the exact central epsilon at delta if a client's upload is replaced by another one;
    infinite without noise."""
    law, of = _releases(plan)
    return law.replaced(of, delta) if of.multiplier else math.inf


def epsilon_of_group(plan: Plan, delta: float, size: int) -> float:
    """Return a bound on the central epsilon at delta if the uploads of ``size`` clients are zero
    together, such as all dealt clients of a person; infinite without noise."""
    law, of = _releases(plan)
    if size == 1 or not of.multiplier:
        return epsilon(plan, delta)
    return law.group(of, delta, size)


@functools.cache
def _opacus_analysis() -> ModuleType:
    """Return the module ``opacus.accountants.analysis.rdp``, which needs only NumPy and SciPy.

    It is loaded as a file. An ordinary import first runs its package, which imports Opacus'
    optimizers, torch's distributed tensors and sympy: 2.8 seconds of CPU time in every planning
    job.
    """
    package = importlib.util.find_spec("opacus")
    assert package
    assert package.origin
    file = Path(package.origin).parent / "accountants" / "analysis" / "rdp.py"
    spec = importlib.util.spec_from_file_location("opacus_rdp", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _opacus_epsilon(sample_rate: float, multiplier: float, steps: int, delta: float) -> float:
    if multiplier == 0:
        return math.inf
    spent = _opacus_spent(sample_rate, multiplier, steps, tuple(RDP_ORDERS))
    return epsilon_of_renyi(spent, RDP_ORDERS, delta)


def renyi(plan: Plan, orders: Sequence[float]) -> np.ndarray:
    """Return the Renyi divergence of a Gaussian plan with noise at every order."""
    plan = correlated.single(plan)
    return np.asarray(_opacus_spent(plan.sample_rate, plan.multiplier, plan.rounds, tuple(orders)))


def epsilon_of_renyi(spent: np.ndarray, orders: Sequence[float], delta: float) -> float:
    """Return epsilon at delta of a mechanism with these Renyi divergences, at least 0."""
    with warnings.catch_warnings():
        # Opacus warns if the best order is the last of the list: the bound is then loose, not
        # wrong.
        warnings.simplefilter("ignore")
        bound, _ = _opacus_analysis().get_privacy_spent(orders=orders, rdp=spent, delta=delta)
    return max(0.0, float(bound))


@functools.lru_cache(maxsize=64)
def _opacus_spent(
    sample_rate: float, multiplier: float, steps: int, orders: tuple[float, ...]
) -> Any:
    # It is cached: that of a sampled plan takes a second, and a ledger needs two deltas of it.
    return _opacus_analysis().compute_rdp(
        q=sample_rate, noise_multiplier=multiplier, steps=steps, orders=orders
    )


def _least_multiplier(
    curve: Callable[[float], float],
    target: float,
    start: float,
    tolerance: float,
    step: float = math.log(2),
) -> float:
    """Return a multiplier with ``curve(multiplier) <= target``, above the least one by at most a
    few ``tolerance`` (relative)."""
    from scipy.optimize import brentq

    # With logarithms on both axes the curve is close to a line, so brentq needs few evaluations.
    def excess(logarithm: float) -> float:
        return math.log(min(max(curve(math.exp(logarithm)), 1e-300), 1e300) / target)

    high = math.log(start)
    while excess(high) > 0:
        high += step
        if high > math.log(1e12):
            expected, do = "one that this accountant can reach", "try accountant exact"
            raise PrivacyError("privacy: epsilon", got=target, expected=expected, do=do)
    low = high - step
    while excess(low) <= 0:
        high, low = low, low - step
        if low < math.log(1e-2):
            expected = "a delta far below 1/M for this epsilon"
            got = "reached with almost no noise"
            raise PrivacyError("privacy: delta", got=got, expected=expected)
    root = float(brentq(excess, low, high, xtol=tolerance))
    # brentq may return the wrong side of the root, where the epsilon is above the target.
    while excess(root) > 0:
        root += tolerance
    return math.exp(root)


def _calibrate_per_sample(
    plan: Plan,
    epsilon: float,
    sizes: np.ndarray | None,
    local_epochs: int | None,
    batch_size: int | None,
) -> Plan:
    """Return the plan with the multiplier of FedDPA's official code, which counts the steps of
    DP-SGD over all clients' examples.

    Opacus' RDP accountant counts the sampling rate q B / sum(n) and q sum_i T E n_i / B steps,
    rounded down. The noise is not added to those steps, so this epsilon holds neither for a client
    nor for an example. The ledger has the epsilon that holds for a client.
    """
    what = "departure sample_level_calibration"
    PrivacyError.unless(plan.law.stable, f"{what}: mechanism", plan.mechanism, "gaussian")
    total = int(checked_sizes(plan, sizes, "sample_level_calibration").sum())
    if not local_epochs or not batch_size or batch_size < 1:
        got = {"local_epochs": local_epochs, "batch_size": batch_size}
        raise PrivacyError(what, got=got, expected="local epochs and a batch size of at least 1")
    rate = min(1.0, plan.sample_rate * batch_size / total)
    steps = max(1, int(plan.sample_rate * plan.rounds * local_epochs * total / batch_size))
    delta = delta_of(plan)
    multiplier = _least_multiplier(
        lambda value: _opacus_epsilon(rate, value, steps, delta), epsilon, start=1.0, tolerance=1e-5
    )
    return dataclasses.replace(plan, noise_multiplier=multiplier)


def checked_sizes(plan: Plan, sizes: np.ndarray | None, departure: str) -> np.ndarray:
    """Return the numbers of examples ``[M]`` that a departure reads; raise PrivacyError if they do
    not fit the plan."""
    what, expected = f"departure {departure}", "the numbers of training examples of the clients"
    if sizes is None:
        raise PrivacyError(what, got="no sizes", expected=expected)
    fits = sizes.shape == (plan.clients,) and sizes.min() >= 0 and sizes.max() > 0
    got, expected = f"sizes of shape {list(sizes.shape)}", f"{plan.clients} counts, not all zero"
    PrivacyError.unless(fits, what, got, expected)
    return sizes


def delta_of(plan: Plan) -> float:
    """Return the delta of a plan that has a mechanism, and therefore a delta."""
    assert plan.delta is not None
    return plan.delta
