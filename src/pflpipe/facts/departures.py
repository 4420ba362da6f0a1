"""Departures: steps of published mechanisms that the certified mechanism lacks, and what is known
of each before anything is computed (departures.json)."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pflpipe.errors import PrivacyError, nearest

_KNOWN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("departures.json").read_text(encoding="utf-8")
)


def _with(fact: str, *values: Any) -> dict[str, Any]:
    """Return departure -> value of a fact, of those that have it, with one of these values."""
    having = {name: known[fact] for name, known in _KNOWN.items() if fact in known}
    return {name: value for name, value in having.items() if not values or value in values}


DEPARTURES: dict[str, str] = _with("text")
"""Steps of published methods that the certified mechanism lacks. A cell names them; its claim is
then at most ``nominal``."""

OF_MESSAGES = frozenset(_with("of_messages"))
"""Departures under which every client's message carries noise of its own."""

EXTRAS: dict[str, list[str]] = _with("extras")
"""Departures that read private values of the clients, and the names of these extras; a name that
ends in a dot stands for one extra of each tensor (privacy/departures.py)."""

OF_CALIBRATION = frozenset(_with("of_calibration"))
"""Departures of the way from an epsilon to the noise; a run whose multiplier is given has none of
them. They read nothing private and change no step of a method, so a study may declare them for any
(``privacy.departures``)."""

OF_SIZES = frozenset(_with("of_sizes"))
"""Departures whose ledger counts the examples of each client."""

OF_LEARNING_RATE = frozenset(_with("of_learning_rate"))
"""Departures whose noise depends on the learning rate."""

SPLIT_CLIP = frozenset(_with("clip", "split"))
"""Departures that clip the parts of an update to C by themselves."""

WITHOUT_JOINT_CLIP = frozenset(_with("clip"))
"""Departures that put something else, or nothing, in the place of the joint clip."""

WITHOUT_BOUND: dict[str, str] = _with("without_bound")
"""Departures under which no finite epsilon holds at any delta below 1, with the reason."""


def check_departures(departures: Iterable[str]) -> frozenset[str]:
    """Return the departures as a set; raise PrivacyError for one that is unknown."""
    names = frozenset(departures)
    for name in sorted(names):
        if name not in DEPARTURES:
            raise PrivacyError(
                "departure", got=name, expected="a known one", do=nearest(name, DEPARTURES)
            )
    return names


def check_adaptive(departures: Collection[str]) -> None:
    """Raise PrivacyError for departures with which there is no joint norm to adapt to, or no sum in
    which the bits could hide."""
    without = (OF_MESSAGES | WITHOUT_JOINT_CLIP).intersection(departures)
    if without:
        raise PrivacyError(
            f"departure {min(without)}: privacy.clip_quantile",
            got="adaptive clipping",
            expected="a fixed clip_norm",
            do="adaptive clipping is for one noised sum of jointly clipped updates",
        )
