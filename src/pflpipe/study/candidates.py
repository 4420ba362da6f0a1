"""The candidates of a search: every combination of the listed values, or values drawn at random.

If values are drawn, every method has the same number of candidates, however many values it has to
choose. Each value has its own random stream, named by the study, the method's label, the
candidate's number and the path. More candidates, another value or another method therefore change
neither the earlier draws nor their runs.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pflpipe import options
from pflpipe.errors import ConfigError
from pflpipe.options import Option
from pflpipe.seeds import numpy_rng

_EDGE = 0.1  # of a range: if the best value is in this outer part, a better one may be outside


@dataclass(frozen=True)
class SearchRange:
    """A range of candidate values, rounded to three significant digits."""

    low: Annotated[float, Option()]
    """the smallest"""
    high: Annotated[float, Option()]
    """the largest"""
    scale: Annotated[str, Option(choices=("log", "linear"))] = "log"
    """draws are uniform on it"""
    wider: Annotated[tuple[float, ...], Option()] = ()
    """[low, high] of a wider range, from which the same number is drawn again"""

    def check(self, location: str) -> None:
        """Raise ConfigError if nothing can be drawn from the range."""
        low, high = self.widest
        fits, got = self.low < self.high, [self.low, self.high]
        ConfigError.unless(fits, f"{location}: low and high", got, "low < high")
        fits = not self.wider or (len(self.wider) == 2 and low <= self.low < self.high <= high)
        expected = f"[low, high] around {self.low:g} and {self.high:g}"
        ConfigError.unless(fits, f"{location}.wider", list(self.wider), expected)
        fits, do = self.scale != "log" or low > 0, "or ask for `scale: linear`"
        ConfigError.unless(fits, f"{location}: a log scale", low, "numbers > 0", do)

    @property
    def widest(self) -> tuple[float, float]:
        """Smallest and largest value that can be drawn."""
        return (self.wider[0], self.wider[-1]) if self.wider else (self.low, self.high)

    def at(self, position: float, *, wider: bool) -> float:
        """Return the value at a position in [0, 1), rounded to three significant digits."""
        low, high = self.widest if wider else (self.low, self.high)
        is_log = self.scale == "log"
        value = low * (high / low) ** position if is_log else low + (high - low) * position
        # Three digits, so that a value copied from a table is the same run.
        return min(max(float(f"{value:.3g}"), low), high)

    def edge(self, value: float) -> str:
        """Return ``low`` or ``high`` if a value is in that outer tenth of the range, else empty."""
        low, high = self.widest
        if self.scale == "log":
            value, low, high = map(math.log, (value, low, high))
        position = (value - low) / (high - low)
        return "low" if position < _EDGE else "high" if position > 1 - _EDGE else ""


def read(values: Mapping[str, Any]) -> dict[str, list[Any] | SearchRange]:
    """Return dotted path -> list or range, from the values of a file."""
    return {
        path: options.build(SearchRange, value) if isinstance(value, dict) else value
        for path, value in values.items()
    }


def product(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of listed values, the last path varying fastest."""
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def drawn(
    values: Mapping[str, list[Any] | SearchRange],
    number: int,
    study: str,
    label: str,
    *,
    again: bool,
) -> Iterator[dict[str, Any]]:
    """Yield candidates; each value is drawn from its range or list.

    Args:
        number: number of candidates.
        label: the method's name with its variant.
        again: whether the same number follows from the wider ranges.
    """
    # Seed 0 and not the study's seeds: the candidates must not change with them.
    for index in range(number * (2 if again else 1)):
        yield {
            path: _draw(value, numpy_rng(0, study, label, index, path).random(), index >= number)
            for path, value in values.items()
        }


def _draw(value: list[Any] | SearchRange, position: float, wider: bool) -> Any:
    if isinstance(value, SearchRange):
        return value.at(position, wider=wider)
    return value[int(position * len(value))]
