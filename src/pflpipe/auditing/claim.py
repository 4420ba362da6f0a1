"""What is claimed of anyone's release. The command line reads its options here, so this module does
not import torch."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pflpipe import options
from pflpipe.cells import MECHANISMS, Privacy
from pflpipe.errors import PrivacyError
from pflpipe.options import Option
from pflpipe.privacy import mechanisms
from pflpipe.privacy.plan import Plan

Adjacency = Literal["zero_out", "add_remove", "replace_one"]
WIDEST = 46
"""Coordinates of a result that are all looked at; of Laplace noise no more can be."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed of a release, field by field.

    Raises:
        PrivacyError: nobody can have such a claim, or it cannot be tried.
    """

    clients: Annotated[int, Option(least=1)]
    """M, of which all take part in a round, or each with the probability sample_rate"""
    noise_multiplier: Annotated[float | None, Option(above=0)] = None
    """noise on the sum over what one client can change of it; on a mean of m messages of length at
    most C the noise is C z / m; under local trust, the noise on one message over C"""
    epsilon: Annotated[float | None, Option(above=0)] = None
    """the claimed one; by default that of the multiplier; alone it is read as equal noise in all
    rounds, with the least multiplier that reaches it"""
    delta: Annotated[float | None, Option(least=0, below=1)] = None
    """at which epsilon is claimed; needed for Gaussian noise"""
    mechanism: Annotated[str, Option(choices=MECHANISMS)] = "gaussian"
    """the noise"""
    clip_norm: Annotated[float, Option(above=0)] = 1.0
    """C, the length of the auditor's messages; the release knows its own bound"""
    rounds: Annotated[int, Option(least=1)] = 1
    """T, the number of rounds"""
    sample_rate: Annotated[float, Option(above=0, most=1)] = 1.0
    """q, the probability of a client to take part in a round (Poisson sampling)"""
    adjacency: Annotated[Adjacency, Option()] = "zero_out"
    """what neighbouring runs differ in: a client whose messages are zero in one of them (zero_out)
    or that is left out of it (add_remove), or that has any other messages (replace_one)"""
    trust: Annotated[Literal["central", "local"], Option()] = "central"
    """central: an attacker sees results; local: it sees single noised messages"""
    dimension: Annotated[int, Option(least=1, most=10**9)] = 40
    """d, the length of a message"""

    def __post_init__(self) -> None:
        options.check(self, "claim", PrivacyError)
        unless, local, sampled = PrivacyError.unless, self.trust == "local", self.sample_rate < 1
        multiplier = self.noise_multiplier is not None
        got = "neither a noise multiplier nor an epsilon"
        unless(multiplier or self.epsilon is not None, "claim", got, "one of them")
        what, is_wide = f"claim: dimension under {self.mechanism}", self.dimension > WIDEST
        is_summed = mechanisms.of(self.mechanism).norm == 1
        unless(not (is_summed and is_wide), what, self.dimension, f"at most {WIDEST}")
        what = "claim: adjacency under local trust"
        expected = "zero_out or replace_one: a client that is left out sends no message"
        unless(not local or self.adjacency != "add_remove", what, self.adjacency, expected)
        what, expected = "claim: sample_rate under local trust", "1: who sees a message sees who "
        do = "claim the rounds in which the client takes part"
        unless(not (local and sampled), what, self.sample_rate, f"{expected}takes part", do)
        what = "claim: noise_multiplier of replace_one under sampling"
        expected = "the multiplier that was used; an epsilon alone does not say it"
        unless(multiplier or not (self._replaced and sampled), what, None, expected)

    @property
    def _replaced(self) -> bool:
        return self.adjacency == "replace_one"

    @cached_property
    def plan(self) -> Plan:
        """The plan with the claimed noise."""
        from pflpipe.privacy import accounting

        request = Privacy(
            self.mechanism,
            epsilon=self.epsilon if self.noise_multiplier is None else None,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            clip_norm=self.clip_norm,
        )
        plan = accounting.make_plan(
            request, rounds=self.rounds, sample_rate=self.sample_rate, clients=self.clients
        )
        if self._replaced and self.noise_multiplier is None:
            return dataclasses.replace(plan, noise_multiplier=2 * plan.multiplier)
        return plan

    def epsilon_of(self, multiplier: float) -> float:
        """Return epsilon at the claim's delta with another multiplier; infinite below 1e-6, where
        accounting ends."""
        from pflpipe.privacy import accounting

        if multiplier < 1e-6:
            return math.inf
        plan = dataclasses.replace(self.plan, noise_multiplier=multiplier)
        count = accounting.epsilon_replace_one if self._replaced else accounting.epsilon
        return count(plan, accounting.delta_of(plan))

    @property
    def covered(self) -> Plan:
        """The plan whose noise is counted by what neighbouring runs differ in. Two messages of
        length C are up to 2 C apart; under sampling half the multiplier claims less than
        ``epsilon_of``, so what refutes it refutes the claim."""
        plan = self.plan
        halves = 2 if self._replaced else 1
        return dataclasses.replace(plan, noise_multiplier=plan.multiplier / halves)
