"""The privacy plan: the public inputs of sampling, clipping, noise and accounting, and no value of
the clients' data."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Annotated

from pflpipe import json_records, options
from pflpipe.cells import MECHANISMS
from pflpipe.errors import PrivacyError
from pflpipe.files import read_json
from pflpipe.options import Option
from pflpipe.privacy import mechanisms
from pflpipe.privacy.mechanisms.base import Mechanism
from pflpipe.privacy.noise_laws.band import Band
from pflpipe.privacy.noise_laws.buffers import Buffers
from pflpipe.privacy.noise_laws.independent import Independent
from pflpipe.privacy.secure import Grid, grid

LEAST, LARGEST = 1e-30, 1e30
"""Range of clip bounds, and of the noise on a released sum if it has any. float32 holds such
numbers with all their digits, and a model stays finite after many of them."""


@dataclass(frozen=True)
class Adaptive:
    """The rule by which a clip bound follows a quantile of the clients' norms (adaptive.py).

    Attributes:
        quantile: gamma in (0, 1).
        lr: eta_C > 0, learning rate of the bound's logarithm.
        bit_noise: sigma_b > 0, standard deviation of the noise on the sum of the bits.
    """

    quantile: Annotated[float, Option(above=0, below=1)]
    lr: Annotated[float, Option(above=0)]
    bit_noise: Annotated[float, Option(above=0)]

    def __post_init__(self) -> None:
        """Raise PrivacyError for a value out of its range."""
        options.check(self, "privacy plan", PrivacyError)


_NOISY = ("mechanism", *MECHANISMS)


@dataclass(frozen=True)
class Plan:
    """Everything that sampling, clipping, noise and accounting need; public values only.

    Attributes:
        mechanism: ``gaussian``, ``laplace``, another file of mechanisms/, or ``none``.
        norm: 2 or 1 (laplace), the norm of the joint clip.
        clip_norm: bound C in [1e-30, 1e30] on a client's whole (scaled) update in that norm;
            ``None`` without a mechanism.
        noise_multiplier: Gaussian standard deviation, or Laplace scale b, of the noise on the sum,
            divided by C. 0 clips without noise, with infinite epsilon; otherwise the noise on the
            released sum, C sigma / (q M), is in [1e-30, 1e30]. ``None`` without a mechanism.
        sample_rate: Poisson probability q in (0, 1] that a client takes part in a round.
        rounds: T, each with one release.
        delta: in (0, 1); 0 is allowed for a pure mechanism; ``None`` without a mechanism.
        clients: M.
        adaptive: how the bound moves from round to round, starting at ``clip_norm``. The noise
            multiplier is then that of both parts of a release together (adaptive.py). Gaussian
            only; ``None`` for a fixed bound.
        groups: number b of public groups of clients that take part in turn; 1 without them.
        band: number of rounds over which Gaussian noise is correlated; 1 for independent noise.
            The noise multiplier is that of the independent noise of which the correlated one is
            made (correlated.py).
        buffers: what correlates the noise of a band of all rounds; ``None`` for the square root of
            the prefix sums.
        noise: of a simulated run: ``reproducible``, or ``secure`` (secure.py; discrete_gaussian
            only). An app of ``pflpipe flower`` draws its own, from its key or on the devices.
        bits, dropout: of secure aggregation (secure_sum.py); 0 for other mechanisms than skellam.

    Raises:
        PrivacyError: a value is missing, superfluous or out of its range.
    """

    mechanism: Annotated[str, Option(choices=(*MECHANISMS, "none"))]
    norm: int
    clip_norm: Annotated[float | None, Option(least=LEAST, most=LARGEST, only=_NOISY, needed=True)]
    noise_multiplier: Annotated[float | None, Option(least=0, only=_NOISY, needed=True)]
    sample_rate: Annotated[float, Option(above=0, most=1)]
    rounds: Annotated[int, Option(least=1)]
    delta: Annotated[float | None, Option(least=0, below=1, only=_NOISY, needed=True)]
    clients: Annotated[int, Option(least=1)]
    adaptive: Adaptive | None = None
    groups: Annotated[int, Option(least=1)] = 1
    band: Annotated[int, Option(least=1, only=("mechanism", "gaussian"))] = 1
    buffers: Buffers | None = None
    noise: Annotated[
        str, Option(choices=("reproducible", "secure"), only=("mechanism", "discrete_gaussian"))
    ] = "reproducible"
    bits: int = 0
    dropout: Annotated[float, Option(least=0, below=1)] = 0.0

    def __post_init__(self) -> None:
        options.check(self, "privacy plan", PrivacyError)
        self.check_fixed()
        if self.buffers and self.band != self.rounds:
            expected = f"that of all rounds, {self.rounds}"
            raise PrivacyError("privacy plan: band of buffers", got=self.band, expected=expected)
        unless, law, name = PrivacyError.unless, self.law, self.mechanism
        what = f"privacy plan: norm of {name}"
        unless(self.norm == law.norm, what, self.norm, str(law.norm))
        if self.adaptive is not None:
            what, got = f"privacy plan: adaptive clipping of {name}", self.adaptive.quantile
            expected = "a fixed clip_norm, or mechanism gaussian"
            unless(name == "gaussian", what, f"quantile {got:g}", expected)
        what, do = f"privacy plan.sample_rate of {name}", "no curve of it is known under sampling"
        unless(self.sample_rate == 1 or law.sampled, what, self.sample_rate, "1", do)
        what, do = "privacy plan.sample_rate of secure noise", "anyone can draw the cohorts again"
        unless(self.sample_rate == 1 or self.noise != "secure", what, self.sample_rate, "1", do)
        unless(self.delta != 0 or law.pure, f"privacy plan.delta of {name}", 0, "a number > 0")
        if self.clip_norm and self.noise_multiplier:
            # What is added to the model; C and sigma alone may be in range and their product not.
            noise = self.clip_norm * self.noise_multiplier / self.expected_cohort
            what, expected = "noise on a released sum", f"a number from {LEAST:g} to {LARGEST:g}"
            unless(LEAST <= noise <= LARGEST, f"privacy plan: {what}", noise, expected)
        _ = self.grid

    @cached_property
    def grid(self) -> Grid | None:
        """Return the whole numbers of releases with secure noise, else None."""
        if self.noise != "secure" or not (self.clip_norm and self.noise_multiplier):
            return None
        return grid(self.clip_norm, self.noise_multiplier, self.clients)

    @property
    def law(self) -> Mechanism:
        """Return the class of the mechanism."""
        return mechanisms.of(self.mechanism)

    @property
    def noise_law(self) -> Independent:
        """Return what correlates the noise of the rounds."""
        return self.buffers or (Band(self.band) if self.band > 1 else Independent())

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier; 0 without a mechanism."""
        return self.noise_multiplier or 0.0

    @property
    def expected_cohort(self) -> float:
        """Return q M / b, the public divisor of every released sum."""
        return self.sample_rate * self.clients / self.groups

    @property
    def staying(self) -> int:
        """Return how many clients' shares make the noise of a secure sum, ceil((1 - f) M)."""
        return math.ceil((1 - self.dropout) * self.clients)

    @property
    def fixed(self) -> bool:
        """Return whether cohorts are fixed in advance or noise is correlated, so that all rounds
        are accounted as one release (correlated.py)."""
        return self.groups > 1 or self.band > 1 or self.buffers is not None

    def check_fixed(self, departures: Collection[str] = ()) -> None:
        """Raise PrivacyError as ``check_fixed`` does."""
        quantile = self.adaptive.quantile if self.adaptive else None
        buffers = len(self.buffers.decays) if self.buffers else 0
        of_rounds = self.groups, self.band, buffers, self.sample_rate, self.clients
        check_fixed(*of_rounds, self.mechanism, quantile, departures)


def check_fixed(
    groups: int,
    band: int,
    buffers: int,
    sample_rate: float,
    clients: int,
    mechanism: str,
    quantile: float | None,
    departures: Collection[str],
) -> None:
    """Raise PrivacyError for settings that no proof of correlated.py covers, if there are groups, a
    band or buffers. M = 0 clients are unknown and refuse nothing."""
    if groups == band == 1 and not buffers:
        return
    noise = f"privacy.buffers {buffers}" if buffers else f"privacy.band {band}"
    if mechanism == "none":  # nothing is claimed of its steps
        departures = ()
    for what, got, expected in (
        ("training.sample_rate", sample_rate, 1),
        ("privacy.mechanism", mechanism, "gaussian"),
        ("privacy.clip_quantile", quantile, None),
        ("departures", ", ".join(sorted(departures)), ""),
    ):
        do = "no proof covers them together: change it, or remove groups, band and buffers"
        together = f"{what} with training.groups {groups} and {noise}"
        PrivacyError.unless(got in (expected, "none"), together, got, str(expected or "none"), do)
    most = f"at most M = {clients}, the number of clients"
    PrivacyError.unless(not clients or groups <= clients, "training.groups", groups, most)


def message_share(plan: Plan, departures: Collection[str]) -> float:
    """Return the share of the sum's noise C sigma that each message carries.

    With 1 / sqrt(q M) the shares of all messages add up to C sigma at q = 1. (At q < 1 FedDPA's
    official code would divide by all M clients; its experiments have q = 1.)
    """
    if "noise_not_divided" in departures:
        return 1.0
    # Variances of independent draws add: q M of them with C sigma / sqrt(q M) have C sigma.
    return 1 / math.sqrt(plan.expected_cohort)


def check_delta(delta: float | None, clients: int) -> None:
    """Raise PrivacyError if delta is 1/M or more, for M clients: publishing the data of one client,
    drawn at random, is (0, 1/M)-differentially private. M = 0 is unknown and refuses nothing."""
    if delta is not None and clients:
        below = f"below 1/M = {1 / clients:g}; from there on one client may be published in clear"
        do = "choose a smaller one, or say that you mean it: allow_large_delta: true"
        PrivacyError.unless(delta < 1 / clients, "privacy.delta", delta, below, do)


def read(path: str | PathLike[str]) -> Plan:
    """Return the plan in a cell's plan file.

    The ledger in the same file is not read (``ledger.Planned`` reads both), so that training, which
    needs only the plan, does not depend on accounting.

    Raises:
        DataError: there is no plan in the file, or a key of it is missing or unknown.
        PrivacyError: a value is not allowed in a plan.
    """
    content = read_json(path)
    values = content.get("plan") if isinstance(content, dict) else content
    return json_records.from_json(Plan, values, f"{path}: plan")
