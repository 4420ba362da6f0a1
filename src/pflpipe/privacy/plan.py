"""The privacy plan: the public inputs of sampling, clipping, noise and accounting, and no value of
the clients' data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

from pflpipe import records
from pflpipe.errors import PrivacyError
from pflpipe.files import read_json

MECHANISMS = ("gaussian", "laplace", "none")
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

    quantile: float
    lr: float
    bit_noise: float

    def __post_init__(self) -> None:
        """Raise PrivacyError for a value out of its range."""
        _number("quantile", self.quantile, lambda value: 0 < value < 1, "a number in (0, 1)")
        for name in ("lr", "bit_noise"):
            _number(name, getattr(self, name), lambda value: value > 0, "a finite number above 0")


@dataclass(frozen=True)
class Plan:
    """Everything that sampling, clipping, noise and accounting need; public values only.

    Attributes:
        mechanism: ``gaussian``, ``laplace`` or ``none``.
        norm: 2 (gaussian) or 1 (laplace), the norm of the joint clip.
        clip_norm: bound C in [1e-30, 1e30] on a client's whole (scaled) update in that norm;
            ``None`` without a mechanism.
        noise_multiplier: Gaussian standard deviation, or Laplace scale b, of the noise on the sum,
            divided by C. 0 clips without noise, with infinite epsilon; otherwise the noise on the
            released sum, C sigma / (q M), is in [1e-30, 1e30]. ``None`` without a mechanism.
        sample_rate: Poisson probability q in (0, 1] that a client takes part in a round.
        rounds: T, each with one release.
        delta: in (0, 1); 0 is allowed for laplace; ``None`` without a mechanism.
        clients: M.
        adaptive: how the bound moves from round to round, starting at ``clip_norm``. The noise
            multiplier is then that of both parts of a release together (adaptive.py). Gaussian
            only; ``None`` for a fixed bound.

    Raises:
        PrivacyError: a value is missing, superfluous or out of its range.
    """

    mechanism: str
    norm: int
    clip_norm: float | None
    noise_multiplier: float | None
    sample_rate: float
    rounds: int
    delta: float | None
    clients: int
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise PrivacyError(
                "privacy plan: mechanism",
                got=self.mechanism,
                expected=f"one of {', '.join(MECHANISMS)}",
            )
        # Laplace noise hides a movement by its L1 length, Gaussian noise by its L2 length.
        wanted_norm = 1 if self.mechanism == "laplace" else 2
        if self.norm != wanted_norm:
            raise PrivacyError(
                f"privacy plan: norm of {self.mechanism}", got=self.norm, expected=str(wanted_norm)
            )
        for name in ("rounds", "clients"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PrivacyError(
                    f"privacy plan: {name}", got=count, expected="a whole number of at least 1"
                )
        if self.adaptive is not None and self.mechanism != "gaussian":
            raise PrivacyError(
                f"privacy plan: adaptive clipping of {self.mechanism}",
                got=f"quantile {self.adaptive.quantile:g}",
                expected="a fixed clip_norm, or mechanism gaussian",
            )
        _number("sample_rate", self.sample_rate, lambda value: 0 < value <= 1, "a number in (0, 1]")
        if self.mechanism == "none":
            for name in ("clip_norm", "noise_multiplier", "delta"):
                if getattr(self, name) is not None:
                    raise PrivacyError(
                        f"privacy plan: {name} of mechanism none",
                        got=getattr(self, name),
                        expected="nothing",
                    )
            return
        between = f"a number from {LEAST:g} to {LARGEST:g}"
        _number("clip_norm", self.clip_norm, _representable, between)
        _number(
            "noise_multiplier",
            self.noise_multiplier,
            lambda value: value >= 0,
            "a finite number, 0 or above",
        )
        if self.clip_norm and self.noise_multiplier:
            # What is added to the model; C and sigma alone may be in range and their product not.
            noise = self.clip_norm * self.noise_multiplier / self.expected_cohort
            _number("noise on a released sum", noise, _representable, between)
        if self.mechanism == "laplace":
            _number("delta", self.delta, lambda value: 0 <= value < 1, "a number in [0, 1)")
        else:
            _number("delta", self.delta, lambda value: 0 < value < 1, "a number in (0, 1)")

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier; 0 without a mechanism."""
        return self.noise_multiplier or 0.0

    @property
    def expected_cohort(self) -> float:
        """Return q M, the public divisor of every released sum."""
        return self.sample_rate * self.clients


def check_delta(delta: float | None, clients: int) -> None:
    """Raise PrivacyError if delta is 1/M or more, for M clients: publishing the data of one client,
    drawn at random, is (0, 1/M)-differentially private. M = 0 is unknown and refuses nothing."""
    if delta is not None and clients and delta >= 1 / clients:
        raise PrivacyError(
            "privacy.delta",
            got=delta,
            expected=f"below 1/M = {1 / clients:g}; from there on one client may be published in "
            "clear",
            do="choose a smaller one, or say that you mean it: allow_large_delta: true",
        )


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
    return records.from_json(Plan, values, f"{path}: plan")


def _representable(value: float) -> bool:
    """Return whether every dtype of an update can hold a clip bound or a noise of this size."""
    return LEAST <= value <= LARGEST


def _number(name: str, value: float | None, accept: Callable[[float], bool], expected: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is None or not number or not accept(value):
        raise PrivacyError(f"privacy plan: {name}", got=value, expected=expected)
