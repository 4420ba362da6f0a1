"""Are the intervals and the verdicts as sure as they say? Studies of which the truth is known.

A simulated study has personal models and rivals; every run has a mean of the line, an effect of its
seed, luck, and people out of a pool with effects and test rows of their own. Settings differ in the
number of seeds and of lines, the lines' standard deviations, whether a tenth of the runs collapse,
and whether the luck of a seed is common to all personal models, and to all rivals.

In half of the settings all personal models gain exactly the margin over one rival, so that any
"pays" is wrong; in the others one personal model gains exactly the margin over all rivals, so that
any "does not pay" is. No other truth makes these words wrong more often.

    .venv/bin/python tools/benchmarks/bench_verdicts.py [STUDIES]

prints a row for each setting: how often all intervals of the personal models beside one rival held
(the least of all rivals), how often the interval of the first personal model beside the rival with
the largest mean held, which is the one that is shown, and how often each word was said. Then the
same where seeds are added until a word is said.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pflpipe.report import verdicts
from pflpipe.report.verdicts import DOES_NOT, MARGIN, PAYS, UNDECIDED

STUDIES = 2000
POOL, PEOPLE = 80, 50
"""People, and how many of them a seed draws."""
EFFECT, ROWS = 3.0, 2.0
"""Standard deviations over people: of what a line is for a person, and of a person's test rows."""
FAR = 12.0
COLLAPSE, FALL = 0.1, (8.0, 25.0)
"""Probability that a run collapses, and by how much."""


def equal(rng: np.random.Generator, seeds: int, lines: int) -> np.ndarray:
    """All lines are alike."""
    return rng.normal(size=(seeds, lines))


def thrice(rng: np.random.Generator, seeds: int, lines: int) -> np.ndarray:
    """Every third line has three times the standard deviation, the last one among them."""
    return equal(rng, seeds, lines) * np.where(np.arange(lines)[::-1] % 3, 1.0, 3.0)


def spread(rng: np.random.Generator, seeds: int, lines: int) -> np.ndarray:
    """Standard deviations between a third and three times that of the median line, mostly."""
    return equal(rng, seeds, lines) * np.exp(rng.normal(scale=0.6, size=lines))


def tail(rng: np.random.Generator, seeds: int, lines: int) -> np.ndarray:
    """Lognormal luck, with rare bad runs that did not collapse, of standard deviation 3."""
    mean, deviation = math.exp(0.5), math.sqrt(math.e * (math.e - 1))
    return 3 * (mean - np.exp(equal(rng, seeds, lines))) / deviation


@dataclass(frozen=True)
class Setting:
    """How studies are drawn.

    Attributes:
        luck: of a run.
        paying: whether one personal model gains the margin over all rivals, else all of them do
            over one, the last.
        lines: of personal models and of rivals.
        common: standard deviation of what lines of one kind have in common at a seed.
    """

    seeds: int
    luck: Callable[[np.random.Generator, int, int], np.ndarray]
    collapses: bool
    paying: bool
    lines: tuple[int, int] = (8, 6)
    common: float = 0.0

    @property
    def truth(self) -> np.ndarray:
        """The means of the lines."""
        own, others = (np.full(number, -FAR) for number in self.lines)
        if self.paying:
            own[0], others[:] = MARGIN, 0.0
        else:
            own[:], others[-1] = MARGIN, 0.0
        return 60 + np.array([*own, *others])


def drawn(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the means of one study, seeds x lines, and of every seed lines x people."""
    seeds, lines = setting.seeds, sum(setting.lines)
    means = setting.truth + rng.normal(scale=2, size=(seeds, 1)) + setting.luck(rng, seeds, lines)
    shared = rng.normal(scale=setting.common, size=(seeds, 2))
    means += np.repeat(shared, setting.lines, axis=1)
    persons = rng.normal(scale=EFFECT, size=(POOL, lines))
    runs = []
    for seed in range(seeds):
        drawn = rng.permutation(POOL)[:PEOPLE]
        own = persons[drawn] + rng.normal(scale=ROWS, size=(PEOPLE, lines))
        means[seed] += own.mean(axis=0)
        runs.append(own.T)
    if setting.collapses:
        fell = rng.random((seeds, lines)) < COLLAPSE
        means -= fell * rng.uniform(*FALL, size=fell.shape)
    return means, runs


def held(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, bool, str]:
    """Return of one study which rivals' intervals all held, whether the one that is shown did, and
    its word."""
    truth, lines = setting.truth, sum(setting.lines)
    means, runs = drawn(setting, rng)
    personal, rivals = range(setting.lines[0]), range(setting.lines[0], lines)
    people = verdicts.people(range(lines), runs, POOL)
    found = verdicts.decide(pd.DataFrame(means), personal, rivals, people)
    good = np.ones((len(personal), len(rivals)), dtype=bool)
    for line, beside in found.intervals.items():
        for rival, one in beside.items():
            true = truth[line] - truth[rival]
            good[line, rival - len(personal)] = one.low <= true <= one.high
    strongest = max(found.beaten, key=found.model.mean, default=rivals[0])
    return good.all(axis=0), bool(good[found.first, strongest - len(personal)]), found.word


def said(setting: Setting, looks: Sequence[int], rng: np.random.Generator) -> str:
    """Return the word of one study to which seeds are added until it is decided."""
    lines = sum(setting.lines)
    means, runs = drawn(setting, rng)
    word = UNDECIDED
    for seeds in looks:
        people = verdicts.people(range(lines), runs[:seeds], POOL)
        sides = range(setting.lines[0]), range(setting.lines[0], lines)
        found = verdicts.decide(pd.DataFrame(means[:seeds]), *sides, people, len(looks))
        word = found.word
        if word != UNDECIDED:
            break
    return word


def simulate(setting: Setting, studies: int) -> dict[str, float]:
    """Return how often the intervals of one rival held, the least of all, and those shown, and the
    words, in %."""
    rng = np.random.default_rng(20_261_128)
    outcomes = [held(setting, rng) for _ in range(studies)]
    words = [word for *_, word in outcomes]
    return {
        "held": 100 * float(np.mean([one for one, *_ in outcomes], axis=0).min()),
        "shown": 100 * float(np.mean([shown for _, shown, _ in outcomes])),
        **{word: 100 * words.count(word) / studies for word in (PAYS, DOES_NOT)},
    }


STUDIED = (
    *((luck, falls, (8, 6), 0.0) for luck in (equal, thrice) for falls in (False, True)),
    *((luck, False, (8, 6), 0.0) for luck in (spread, tail)),
    *((thrice, falls, few, 0.0) for few in ((1, 1), (2, 2), (3, 3)) for falls in (False, True)),
    *((luck, False, lines, 2.0) for luck, lines in ((equal, (8, 6)), (thrice, (2, 2)))),
)
SETTINGS = tuple(
    Setting(seeds, luck, falls, paying, lines, common)
    for luck, falls, lines, common in STUDIED
    for seeds in (3, 5)
    for paying in (False, True)
)


def main() -> None:
    """Print the table."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    print("| lines | luck | in common | collapses | seeds | truth | held | shown | pays | not |")
    print("|---|---|--:|---|--:|---|--:|--:|--:|--:|")
    for setting in SETTINGS:
        found = simulate(setting, studies)
        words = [
            "{} and {}".format(*setting.lines),
            setting.luck.__name__,
            f"{setting.common:g}",
            "a tenth" if setting.collapses else "none",
            str(setting.seeds),
            "one just pays" if setting.paying else "none pays",
            *(f"{value:.1f}" for value in found.values()),
        ]
        print(f"| {' | '.join(words)} |", flush=True)
    looks = (3, 5, 8)
    print(f"\nSeeds are added until the word is there, read at {looks} seeds:\n")
    print("| lines | luck | truth | pays | not |")
    print("|---|---|---|--:|--:|")
    for lines, paying in itertools.product(((1, 1), (3, 3), (8, 6)), (False, True)):
        added = Setting(looks[-1], equal, False, paying, lines)
        rng = np.random.default_rng(20_261_128)
        words = [said(added, looks, rng) for _ in range(studies)]
        shares = [f"{100 * words.count(word) / studies:.1f}" for word in (PAYS, DOES_NOT)]
        truth = "one just pays" if paying else "none pays"
        named = "{} and {}".format(*lines)
        print(f"| {named} | equal | {truth} | {shares[0]} | {shares[1]} |", flush=True)
    print(f"\n{studies:,} studies a setting, {time.process_time():.0f} CPU seconds.")


if __name__ == "__main__":
    main()
