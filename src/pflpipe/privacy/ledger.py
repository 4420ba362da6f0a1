"""The ledger of one cell: the guarantee of the executed mechanism, with every departure counted.

A departure makes the noise cover less than the plan says. Each departure is translated into a
certified ``Plan`` that protects a client no better and whose curve accounting.py computes; several
departures multiply. If nothing bounds the change of one client, or if the noise shows the cohort,
that plan has no noise and every epsilon is infinite. Two things are taken as public: the numbers of
examples under ``data_size_weights``, and the schedule under ``public_sampling``.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pflpipe.cells import Privacy
from pflpipe.code import dependencies
from pflpipe.code.dependencies import Dependency, claim_of
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import OF_MESSAGES, SPLIT_CLIP, WITHOUT_BOUND, check_departures
from pflpipe.privacy import adaptive, correlated
from pflpipe.privacy.accounting import (
    checked_sizes,
    delta_of,
    epsilon,
    epsilon_local,
    epsilon_of_group,
    epsilon_rdp,
    epsilon_replace_one,
)
from pflpipe.privacy.cohorts import public_cohort
from pflpipe.privacy.plan import Plan, message_share

_ITSELF = "its epsilons hold only if it uses nothing but its arguments and keeps nothing for later"
_RULES = {
    "method": (
        "its epsilons hold only if every hook uses nothing but its arguments and changes none of "
        "them"
    ),
    "loss": _ITSELF,
    "network": _ITSELF,
    "transform": _ITSELF,
    "data": "an epsilon covers a client only if this code makes its rows of nobody else's",
}
"""Kind of a part from outside -> what it has to keep for the epsilons to hold."""


_SAID = {
    "data_size_weights": "clients' numbers of examples are taken as public; if they are not, the "
    "effective multiplier is up to halved",
    "no_composition": "no_composition: the paper's epsilon is that of one round; {rounds} rounds "
    "are counted here",
    "learning_rate_in_noise": "learning_rate_in_noise: the noise is twice the learning rate times "
    "what the paper's epsilon needs; the actual noise is counted",
    "noise_over_all_clients": "noise_over_all_clients: each message carries C sigma / sqrt(M) of "
    "noise, so a cohort has {times:.3g} times what the paper's epsilon needs; the actual noise is "
    "counted",
    "noise_not_divided": "noise_not_divided: every message carries the whole noise, so the sum has "
    "more than the plan says",
    "sample_level_calibration": "sample_level_calibration: the noise was calibrated for single "
    "examples; whole clients are counted here",
}
"""Departure -> what a reader of its numbers has to know."""

DEALT = "dealt client"
"""The unit where rows of declared users were dealt to clients."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The claims of a cell, computed from the executed plan and the departures.

    All epsilons and multipliers are None without privacy. If no guarantee holds, an epsilon is
    infinite and a multiplier is 0. Names that end in ``_1e5`` hold at delta = 1e-5, all others at
    ``delta``.

    Attributes:
        claim: ``certified`` (a mechanism without departures), ``unreviewed`` (the same with a
            method, loss or network from outside the package: every epsilon holds only if it keeps
            the rules of docs/adding_a_method.md), ``nominal`` (with departures: the paper's number
            is ``epsilon_nominal``, the true one ``epsilon_central``) or ``none`` (no mechanism).
        departures: their names, sorted.
        adjacency: ``zero_out``: neighbours differ in one client, whose upload is zero in every
            round.
        trust: ``central``: all epsilons but the local ones trust the server to add the noise;
            ``secure_aggregation``: the server sees sums alone, to which clients add the noise; None
            without privacy.
        sampling: ``everybody`` (q = 1), ``poisson``, ``cyclic`` (groups that take part in turn), or
            ``public`` (the cohort can be computed).
        releases_per_round: 1, or the expected number of messages under departures that release
            single messages; None without privacy.
        epsilon_target: the requested epsilon; None if a noise multiplier was requested.
        epsilon_nominal: ``epsilon_target`` of a nominal claim; None for any other.
        epsilon_central, epsilon_central_1e5: those of ``effective_plan``.
        epsilon_rdp, epsilon_rdp_1e5: Opacus' numbers for the same plan; None for laplace.
        epsilon_replace_one, epsilon_replace_one_1e5: the same if a client's upload is replaced
            instead of made zero.
        epsilon_local, epsilon_local_1e5: against a server that sees single messages with their
            share of the noise; None for laplace, whose noise cannot be shared that way, and with
            groups or a band, for which nobody has shown it.
        epsilon_local_replace_one, epsilon_local_replace_one_1e5: the same if a client's messages
            are replaced by those of any other data, up to 2 C away. This is what local differential
            privacy usually promises.
        delta: of the plan.
        noise_multiplier: of the plan.
        noise_multiplier_effective: the multiplier behind ``epsilon_central``; with groups or a band
            that of one release of all rounds together, ``noise_multiplier`` over the sensitivity.
        noise_multiplier_message: noise of a single message over its largest length, the multiplier
            behind ``epsilon_local``; None for laplace.
        noise_multiplier_weighted: with ``data_size_weights``, that of the least protected client;
            otherwise None.
        noise_multiplier_group: with ``noise_on_support``, that of coordinates that only one client
            keeps; otherwise None. This and ``noise_multiplier_weighted`` leave out the effect of
            ``WITHOUT_BOUND``, so that they show the cost of one step.
        clip_norm: C of the plan, in the units of an update; with adaptive clipping that of the
            first round.
        clip_quantile: quantile that an adaptive clip bound follows. This and the next two are None
            for a fixed bound.
        clip_bit_noise: standard deviation of the noise on the sum of the bits.
        noise_multiplier_update: noise on the updates over the bound of the round. Together with the
            noise on the bits it gives ``noise_multiplier`` (adaptive.py).
        unit: what one client is, with all of its rows: ``user``, a word of the data set's block in
            config.yaml such as ``patient``, or ``DEALT`` if the data set declares users and its
            rows were dealt to clients without regard to them.
        max_clients_per_user: of dealt clients: with how many of them the rows of one user lie at
            most; None if the study declares no bound.
        epsilon_person, epsilon_person_1e5: of dealt clients: those of a group of so many clients
            whose uploads are zero together, without a bound those of all clients; None for any
            other unit.
        warnings: one plain sentence for each reason why a number differs from that of the plan
            alone.
    """

    claim: str
    departures: tuple[str, ...]
    adjacency: str
    trust: str | None
    sampling: str
    releases_per_round: float | None = None
    epsilon_target: float | None
    epsilon_nominal: float | None
    epsilon_central: float | None = None
    epsilon_central_1e5: float | None = None
    epsilon_rdp: float | None = None
    epsilon_rdp_1e5: float | None = None
    epsilon_replace_one: float | None = None
    epsilon_replace_one_1e5: float | None = None
    epsilon_local: float | None = None
    epsilon_local_1e5: float | None = None
    epsilon_local_replace_one: float | None = None
    epsilon_local_replace_one_1e5: float | None = None
    delta: float | None
    noise_multiplier: float | None
    noise_multiplier_effective: float | None = None
    noise_multiplier_message: float | None = None
    noise_multiplier_weighted: float | None = None
    noise_multiplier_group: float | None = None
    clip_norm: float | None
    clip_quantile: float | None = None
    clip_bit_noise: float | None = None
    noise_multiplier_update: float | None = None
    unit: str = "user"
    max_clients_per_user: int | None = None
    epsilon_person: float | None = None
    epsilon_person_1e5: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """The content of a plan file: a cell's plan and its ledger. ``json_records.load`` reads it and
    ``json_records.to_json`` gives the JSON that is written."""

    plan: Plan
    ledger: Ledger


def effective_plan(
    plan: Plan,
    departures: Iterable[str],
    sizes: np.ndarray | None = None,
    parameters: Collection[str] = (),
) -> Plan:
    """Return a certified plan that protects a client no better than the plan with departures.

    - Groups or a band: ``correlated.single``, one release.
    - ``WITHOUT_BOUND``: noise multiplier 0, so that every epsilon is infinite.
    - ``per_tensor_clip``, ``per_layer_clip_unscaled``: K parts of length C each are sqrt(K) C long
      together, so the multiplier is sigma / sqrt(K). K counts the whole model, also for a method
      that sends a part of it. Parts are clipped in L2, which does not bound the L1 length, so a
      Laplace plan has no guarantee.
    - ``public_sampling``: q = 1, and T is the number of rounds of the client that is drawn most
      often.
    - ``data_size_weights``, ``noise_per_participant``, ``noise_not_divided``: each message carries
      noise of C sigma r (r: ``departures.message_share``) and has weight p_i. In a cohort S client
      k moves the average by at most C p_k under noise of C sigma r ||p_S||_2, a multiplier of sigma
      r ||p_S||_2 / p_k. Rounds with multipliers s_t equal one round with multiplier (sum
      s_t^-2)^(-1/2); the client with the largest such sum is counted. This needs a public cohort,
      q = 1 or ``public_sampling``. With a secret cohort the noise follows the number of clients
      drawn. If a client is drawn alone (probability q (1 - q)^(M - 1) a round), its presence
      decides between noise and exactly zero: no finite epsilon holds below that delta.

    Args:
        plan: from ``accounting.make_plan``.
        departures: names; those not listed above do not change the guarantee of a given multiplier.
        sizes: training examples per client ``[M]``; needed with ``data_size_weights``.
        parameters: names of the model's parameters; needed with the two departures of clipping in
            parts.

    Raises:
        PrivacyError: an argument that a departure needs is missing, or the mechanism cannot have
            the departure.
    """
    names = check_departures(departures)
    if plan.noise_multiplier is None:
        return plan
    if not plan.law.stable and names & OF_MESSAGES:
        what = f"departure {min(names & OF_MESSAGES)}: mechanism"
        raise PrivacyError(what, got=plan.mechanism, expected="gaussian")
    plan.check_fixed(names)
    if plan.fixed:
        return correlated.single(plan)
    parts = _parts(names, parameters)
    # Nothing bounds what a client changes, or the noise shows the cohort: no finite epsilon.
    if (
        not names.isdisjoint(WITHOUT_BOUND)
        or _shows_the_draw(plan, names)
        or (plan.law.norm == 1 and parts > 1)
    ):
        return dataclasses.replace(plan, noise_multiplier=0.0)
    clipped = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / math.sqrt(parts))
    if "public_sampling" not in names and names.isdisjoint(OF_MESSAGES):
        return clipped
    rounds, exposure = _exposure(plan, names, sizes)
    # At q = 1 epsilon depends on T / sigma^2 only, so the plan gets these rounds and the multiplier
    # that gives the exposure.
    spread = math.sqrt(rounds / exposure) if exposure else 1.0
    return dataclasses.replace(
        clipped, noise_multiplier=clipped.multiplier * spread, sample_rate=1.0, rounds=rounds
    )


def ledger(
    plan: Plan,
    privacy: Privacy,
    departures: Iterable[str] = (),
    sizes: np.ndarray | None = None,
    parameters: Collection[str] = (),
    code: Collection[Dependency] = (),
) -> Ledger:
    """Return the claims of a cell, computed from the executed plan and the departures.

    Args:
        plan: from ``make_plan``.
        privacy: the request, for its epsilon.
        departures, sizes, parameters: see ``effective_plan``.
        code: the parts of the row, of which those of the package may be left out.

    Raises:
        PrivacyError: as ``effective_plan`` does.
    """
    names = check_departures(departures)
    private = plan.mechanism != "none"
    entry = Ledger(
        claim=claim_of(plan.mechanism, names, code),
        departures=tuple(sorted(names)),
        adjacency="zero_out",
        trust=("secure_aggregation" if plan.bits else "central") if private else None,
        sampling=_sampling(plan, names),
        epsilon_target=privacy.epsilon,
        epsilon_nominal=privacy.epsilon if private and names else None,
        delta=plan.delta,
        noise_multiplier=plan.noise_multiplier,
        clip_norm=plan.clip_norm,
    )
    if not private:
        return entry
    effective, at = effective_plan(plan, names, sizes, parameters), delta_of(plan)
    found: dict[str, Any] = {
        "releases_per_round": _releases(plan, names),
        "noise_multiplier_effective": effective.noise_multiplier,
        "warnings": tuple(_warnings(plan, names, effective, parameters, code)),
    }
    if plan.adaptive is not None:
        found["clip_quantile"] = plan.adaptive.quantile
        found["clip_bit_noise"] = plan.adaptive.bit_noise
        found["noise_multiplier_update"] = adaptive.multiplier_of_updates(plan)
    counts: dict[str, Callable[[float], float]] = {
        "central": functools.partial(epsilon, effective),
        "replace_one": functools.partial(epsilon_replace_one, effective),
    }
    if plan.law.stable:
        counts["rdp"] = functools.partial(epsilon_rdp, effective)
    if plan.law.stable and not plan.fixed:
        message, share = _message(plan, names, effective, parameters), message_share(plan, names)
        found |= _multipliers(plan, names, message, share, sizes, parameters)
        # Two messages of norm C are up to 2 C apart, which counts as half the multiplier.
        other = dataclasses.replace(message, noise_multiplier=message.multiplier / 2)
        for name, one in (("local", message), ("local_replace_one", other)):
            counts[name] = functools.partial(epsilon_local, one, participants=share**-2)
    for name, count in counts.items():
        found |= {f"epsilon_{name}": count(at), f"epsilon_{name}_1e5": count(1e-5)}
    return dataclasses.replace(entry, **found)


def of_dealt(entry: Ledger, effective: Plan, most: int | None, person: str = "user") -> Ledger:
    """Return the ledger of clients to which rows of declared users were dealt: their unit, and the
    epsilon of a person, which follows from the plan and the declared bound and from no row.

    Args:
        entry: the ledger of a dealt client.
        effective: its ``effective_plan``.
        most: with how many clients the rows of a user lie at most; None: with all of them.
        person: the word for a user.
    """
    entry = dataclasses.replace(entry, unit=DEALT, max_clients_per_user=most)
    if effective.noise_multiplier is None:
        return entry
    size = min(most or effective.clients, effective.clients)
    at, sharper = (epsilon_of_group(effective, one, size) for one in (delta_of(effective), 1e-5))
    bound = (
        f"lie with at most {most} of them (max_clients_per_user)"
        if most
        else f"may lie with all {size} of them"
    )
    holds = "epsilon_person counts these together" if at < math.inf else "no epsilon holds for it"
    warning = (
        f"clients are dealt, and no epsilon of a client is that of one {person} with all rows, "
        f"which {bound}: {holds}"
    )
    return dataclasses.replace(
        entry,
        epsilon_person=at,
        epsilon_person_1e5=sharper,
        warnings=(warning, *entry.warnings),
    )


def _message(
    plan: Plan, names: frozenset[str], effective: Plan, parameters: Collection[str]
) -> Plan:
    """Return the plan of single messages, but for their share of the noise: the rounds and the
    clipping of the executed plan."""
    # Where the sum has no guarantee, a single message has none either.
    bounded = names - WITHOUT_BOUND.keys() - OF_MESSAGES
    alone = effective_plan(plan, bounded, parameters=parameters)
    return alone if effective.noise_multiplier else effective


def _multipliers(
    plan: Plan,
    names: frozenset[str],
    message: Plan,
    share: float,
    sizes: np.ndarray | None,
    parameters: Collection[str],
) -> dict[str, float | None]:
    """Return the multipliers of single messages and of parts of the sum."""
    bounded = names - WITHOUT_BOUND.keys()
    found: dict[str, float | None] = {"noise_multiplier_message": message.multiplier * share}
    if "data_size_weights" in names:
        weighted = effective_plan(plan, bounded, sizes, parameters)
        found["noise_multiplier_weighted"] = weighted.noise_multiplier
    if "noise_on_support" in names:
        alone = effective_plan(plan, bounded - OF_MESSAGES, parameters=parameters)
        found["noise_multiplier_group"] = alone.multiplier * share
    return found


def _sampling(plan: Plan, names: frozenset[str]) -> str:
    """Return ``everybody``, ``cyclic``, ``public`` or ``poisson``: how the cohorts are drawn."""
    if plan.groups > 1:
        return "cyclic"
    if plan.sample_rate == 1:
        return "everybody"
    return "public" if "public_sampling" in names else "poisson"


def _releases(plan: Plan, names: frozenset[str]) -> float:
    """Return the number of noised messages in a round: 1 for the sum, or the mean size of the
    cohort under departures of messages."""
    if names.isdisjoint(OF_MESSAGES):
        return 1
    return (
        float(public_cohort(0, plan).sum()) if "public_sampling" in names else plan.expected_cohort
    )


def _parts(names: frozenset[str], parameters: Collection[str]) -> int:
    """Return the number of parts of an update that are clipped to C each."""
    split = names & SPLIT_CLIP
    if split and not parameters:
        expected = "the names of the model's parameters"
        raise PrivacyError(f"departure {min(split)}", got="no parameters", expected=expected)
    if "per_tensor_clip" in names:
        return len(parameters)
    return len({name.rpartition(".")[0] for name in parameters}) if split else 1


def _shows_the_draw(plan: Plan, names: frozenset[str]) -> bool:
    """Return whether the noise depends on a cohort that must stay secret."""
    return (
        plan.sample_rate < 1
        and "public_sampling" not in names
        and not names.isdisjoint(OF_MESSAGES)
    )


def _exposure(plan: Plan, names: frozenset[str], sizes: np.ndarray | None) -> tuple[int, float]:
    """Return, over known cohorts, the largest number of rounds of a client and the largest sum of
    (sigma / its multiplier in a round)^2."""
    counts = (
        checked_sizes(plan, sizes, "data_size_weights")
        if "data_size_weights" in names
        else np.ones(plan.clients)
    )
    everyone = np.ones(plan.clients, dtype=bool)
    taken, exposed = np.zeros(plan.clients, dtype=int), np.zeros(plan.clients)
    for round in range(plan.rounds):
        cohort = public_cohort(round, plan) if "public_sampling" in names else everyone
        taken += cohort
        if names.isdisjoint(OF_MESSAGES):
            exposed += cohort
        else:
            # (p_k / (r |p_S|))^2, in which the sum of the weights cancels.
            squares = np.where(cohort, counts, 0) ** 2.0
            covered = squares.sum() * message_share(plan, names) ** 2
            exposed += squares / max(covered, np.finfo(float).tiny)
    return int(taken.max()), float(exposed.max())


def _warnings(
    plan: Plan,
    names: frozenset[str],
    effective: Plan,
    parameters: Collection[str],
    code: Collection[Dependency],
) -> Iterator[str]:
    """Yield one plain sentence for each reason why a number differs from that of the plan alone,
    and for each part of outside code."""
    for part in code:
        if part in dependencies.unreviewed(code) or (part.kind == "data" and not part.package):
            yield f"pflpipe's developers have not reviewed the {part}: {_RULES[part.kind]}"
    if delta_of(plan) >= 1 / plan.clients:
        yield (
            f"delta {plan.delta:g} is not below 1/M = {1 / plan.clients:g}: it allows one client "
            "to be published in clear"
        )
    elif delta_of(plan) > 1 / (10 * plan.clients):
        yield (
            f"delta {plan.delta:g} is above 1/(10 M) = {1 / (10 * plan.clients):g}: it allows one "
            f"client to be published in clear with a chance of {plan.clients * delta_of(plan):.2g}"
        )
    if plan.fixed:
        most = math.ceil(plan.rounds / plan.groups)
        length, noise = correlated.sensitivity_of(plan), plan.noise_law.words(plan.rounds)
        yield (
            f"cohorts are fixed in advance, groups in turn: {plan.groups}, and hide nothing: a "
            f"client takes part in up to {most} of {plan.rounds} rounds, whose noise is {noise}; "
            f"they count as one release of sensitivity {length:.6g} C"
        )
    if plan.bits:
        yield (
            f"secure aggregation, sums modulo 2^{plan.bits}, is simulated but in an app of "
            "pflpipe flower: the epsilons hold if at "
            f"least {plan.staying} of {plan.clients} clients add their share of the noise in every "
            "round, tell it nobody, and nobody sees more than the sum"
        )
    if plan.noise == "secure":
        yield (
            "secure noise comes from the operating system, and nobody can draw it again: the run "
            "cannot be reproduced, and who starts it anew pays its epsilon again"
        )
    for name in sorted(names & WITHOUT_BOUND.keys()):
        yield f"{name}: {WITHOUT_BOUND[name]}; no finite epsilon holds"
    if _shows_the_draw(plan, names):
        # Probability that exactly this client is drawn.
        alone = plan.sample_rate * (1 - plan.sample_rate) ** (plan.clients - 1)
        yield (
            "each message of a secret cohort carries noise: if a client is drawn alone (chance "
            f"{alone:.2g} a round), its presence decides between noise and exactly 0; no finite "
            "epsilon holds"
        )
    for name in sorted(names & SPLIT_CLIP):
        count = _parts(frozenset({name}), parameters)
        kind = "tensors" if name == "per_tensor_clip" else "layers"
        yield (
            f"{name}: each of the model's {count} {kind} may be C long, so the effective noise is "
            f"{math.sqrt(count):.3g} times smaller"
        )
    if "public_sampling" in names:
        rounds, _ = _exposure(plan, frozenset({"public_sampling"}), None)
        yield (
            "public_sampling: anyone can compute the cohorts, so sampling hides nothing; the "
            f"client drawn most often, in {rounds} of {plan.rounds} rounds, is counted"
        )
    for name, sentence in _SAID.items():
        if name in names:
            yield sentence.format(rounds=effective.rounds, times=math.sqrt(plan.sample_rate))
