"""Are the intervals and the verdicts as sure as they say? Studies of which the truth is known.

A simulated study has personal models and rivals; every run has a mean of the line, an effect of its
seed, luck, and people out of a pool with effects and test rows of their own. Settings differ in the
number of seeds, the lines' standard deviations, and whether a tenth of the runs collapse.

In half of the settings all personal models gain exactly the margin over one rival, so that any
"pays" is wrong; in the others one personal model gains exactly the margin over all rivals, so that
any "does not pay" is. No other truth makes these words wrong more often.

    .venv/bin/python tools/benchmarks/bench_verdicts.py [STUDIES]

prints a row for each setting: how often all intervals of the personal models beside one rival held
(the least of all rivals), and how often each word was said.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pflpipe.report import verdicts
from pflpipe.report.verdicts import DOES_NOT, MARGIN, PAYS

STUDIES = 2000
PERSONAL, RIVALS = tuple("ABCDEFGH"), ("alone", "constant", "r1", "r2", "r3", "r4")
LINES = (*PERSONAL, *RIVALS)
POOL, PEOPLE = 80, 50
"""People, and how many of them a seed draws."""
EFFECT, ROWS = 3.0, 2.0
"""Standard deviations over people: of what a line is for a person, and of a person's test rows."""
FAR = 12.0
COLLAPSE, FALL = 0.1, (8.0, 25.0)
"""Probability that a run collapses, of lines that can, and by how much."""


def equal(rng: np.random.Generator) -> np.ndarray:
    """All lines are alike."""
    return np.ones(len(LINES))


def thrice(rng: np.random.Generator) -> np.ndarray:
    """Every third line has three times the standard deviation."""
    return np.where(np.arange(len(LINES)) % 3, 1.0, 3.0)


def spread(rng: np.random.Generator) -> np.ndarray:
    """Standard deviations between a third and three times that of the median line, mostly."""
    return np.exp(rng.normal(scale=0.6, size=len(LINES)))


@dataclass(frozen=True)
class Setting:
    """How studies are drawn.

    Attributes:
        paying: whether one personal model gains the margin over all rivals, else all of them do
            over one.
    """

    seeds: int
    deviations: Callable[[np.random.Generator], np.ndarray]
    collapses: bool
    paying: bool

    @property
    def truth(self) -> np.ndarray:
        """The means of the lines."""
        if self.paying:
            own, others = [MARGIN] + [-FAR] * (len(PERSONAL) - 1), [0.0] * len(RIVALS)
        else:
            own, others = [MARGIN] * len(PERSONAL), [0.0] + [-FAR] * (len(RIVALS) - 1)
        return 60 + np.array([*own, *others])


def held(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Return of one study which rivals' intervals all held, and its word."""
    truth, lines = setting.truth, len(LINES)
    luck = rng.normal(size=(setting.seeds, lines)) * setting.deviations(rng)
    means = truth + rng.normal(scale=2, size=(setting.seeds, 1)) + luck
    persons = rng.normal(scale=EFFECT, size=(POOL, lines))
    runs = []
    for seed in range(setting.seeds):
        drawn = rng.permutation(POOL)[:PEOPLE]
        own = persons[drawn] + rng.normal(scale=ROWS, size=(PEOPLE, lines))
        means[seed] += own.mean(axis=0)
        runs.append(own.T)
    if setting.collapses:
        fell = rng.random((setting.seeds, lines)) < COLLAPSE
        fell[:, len(PERSONAL) : len(PERSONAL) + 2] = False  # learning alone and a constant
        means -= fell * rng.uniform(*FALL, size=fell.shape)
    values = pd.DataFrame(means, columns=list(LINES))
    found = verdicts.decide(values, PERSONAL, RIVALS, verdicts.people(LINES, runs, POOL))
    true = dict(zip(LINES, truth, strict=True))
    good = [
        all(
            beside[rival].low <= true[line] - true[rival] <= beside[rival].high
            for line, beside in found.intervals.items()
        )
        for rival in found.beaten
    ]
    return np.array([*good, *[True] * (len(RIVALS) - len(good))]), found.word


def simulate(setting: Setting, studies: int) -> dict[str, float]:
    """Return how often the intervals of one rival held, the least of all, and the words, in %."""
    rng = np.random.default_rng(20_261_128)
    outcomes = [held(setting, rng) for _ in range(studies)]
    words = [word for _, word in outcomes]
    return {
        "held": 100 * float(np.mean([one for one, _ in outcomes], axis=0).min()),
        **{word: 100 * words.count(word) / studies for word in (PAYS, DOES_NOT)},
    }


SETTINGS = tuple(
    itertools.starmap(
        Setting, itertools.product((3, 5), (equal, thrice, spread), (False, True), (False, True))
    )
)


def main() -> None:
    """Print the table."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    print("| seeds | deviations | collapses | truth | held | pays | does not pay |")
    print("|--:|---|---|---|--:|--:|--:|")
    for setting in SETTINGS:
        found = simulate(setting, studies)
        words = [
            str(setting.seeds),
            setting.deviations.__name__,
            "a tenth" if setting.collapses else "none",
            "one just pays" if setting.paying else "none pays",
            *(f"{value:.1f}" for value in found.values()),
        ]
        print(f"| {' | '.join(words)} |", flush=True)
    print(f"\n{studies:,} studies a setting, {time.process_time():.0f} CPU seconds.")


if __name__ == "__main__":
    main()
