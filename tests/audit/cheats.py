"""Releases that do not keep their claim, by kind: each is a slip that somebody could make.

Ten clients send 40 numbers each and the claim is a noise multiplier of 1 at delta 1e-5, unless a
cheat has its own. All forget something that only other messages, signs, lengths, numbers of rows,
orders or rounds show.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

C = 1.0
CLAIM: dict[str, Any] = {"clients": 10, "noise_multiplier": 1.0, "delta": 1e-5}
DRAWN: dict[str, Any] = CLAIM | {"sample_rate": 0.3, "rounds": 4}
RUNS: dict[str, Any] = CLAIM | {"rounds": 4}
LEFT_OUT: dict[str, Any] = CLAIM | {"adjacency": "add_remove"}
CHEATS: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {}


def cheat(kind: str, **claim: Any) -> Callable[[Any], Any]:
    """Enter a release under its kind, with fields of its claim that differ."""

    def enter(release: Any) -> Any:
        CHEATS.setdefault(kind, {})[release.__name__] = (release, CLAIM | claim)
        return release

    return enter


def finite(messages):
    return np.nan_to_num(messages, nan=0, posinf=0, neginf=0).astype(float)


def scaled(rows, norms, bound=C):
    return rows * np.minimum(1, bound / np.maximum(norms, 1e-12))[:, None]


def clipped(messages, bound=C):
    rows = finite(messages)
    return scaled(rows, np.linalg.norm(rows, axis=1), bound)


def noise(rng, size, multiplier=1.0):
    return rng.normal(0, C * multiplier, size)


def mean_of(total, rng):
    return (total + noise(rng, len(total))) / 10


def of_rows_alone(change: Callable[[Any], Any]) -> Any:
    """Return the release of a sum of rows, each changed by a slip after numbers are repaired."""

    def release(messages, weights, rng):
        return mean_of(change(finite(messages)).sum(axis=0), rng)

    return release


def lengths(rows):
    return np.linalg.norm(rows, axis=1)


def to_bound(bound_of: Callable[[Any], float]) -> Callable[[Any], Any]:
    """Return the clip to a bound that follows the norms of the round."""
    return lambda rows: scaled(rows, lengths(rows), bound_of(lengths(rows)))


def to_sum(change: Callable[[Any, Any], Any]) -> Any:
    """Return the release of the sum of clipped messages, with what a slip calls noise."""
    return lambda messages, weights, rng: change(clipped(messages).sum(axis=0), rng)


def seeded(seed_of: Callable[[Any, Any], Any]) -> Any:
    """Return the slip whose noise is that of such a seed."""
    return lambda total, rng: mean_of(total, np.random.default_rng(seed_of(total, rng)))


ONE_SIDED, NORMS, PARTS = "one-sided clips", "wrong norms", "norms of parts"
WEIGHTS, ORDER, COUNTS = "weights", "order and duplicates", "counts and divisors"
BOUNDS, GRIDS = "bounds that follow the round", "grids before the noise"
ODD, NOISE, STATE = "numbers that are not finite", "too little noise", "state"
REUSED, WHEN = "noise that is no noise", "noise or clip under a condition"
OF_ROWS = {
    ONE_SIDED: {
        "no_upper_bound": lambda rows: np.maximum(rows, -C / np.sqrt(rows.shape[1])),
        "bound_of_the_sum_of_numbers": lambda rows: scaled(rows, rows.sum(axis=1)),
        "clipped_where_the_mean_is_positive": lambda rows: np.where(
            (rows.mean(axis=1) > 0)[:, None], clipped(rows), rows
        ),
        "numbers_of_half_the_bound_each": lambda rows: np.clip(rows, -C / 2, C / 2),
    },
    NORMS: {
        "largest_without_sign": lambda x: scaled(x, x.max(axis=1) * np.sqrt(x.shape[1])),
        "of_the_positive_part": lambda rows: scaled(rows, lengths(np.maximum(rows, 0))),
        "largest_number": lambda rows: scaled(rows, np.abs(rows).max(axis=1)),
        "root_mean_square": lambda rows: scaled(rows, np.sqrt((rows**2).mean(axis=1))),
        "standard_deviation": lambda x: scaled(x, x.std(axis=1) * np.sqrt(x.shape[1])),
    },
    PARTS: {
        "without_the_last": lambda rows: scaled(rows, lengths(rows[:, :-1])),
        "of_the_first_half": lambda rows: scaled(rows, lengths(rows[:, :20])),
        "of_every_other_number": lambda rows: scaled(rows, np.sqrt(2) * lengths(rows[:, ::2])),
        "each_of_four_layers": lambda x: np.hstack([clipped(p) for p in np.split(x, 4, axis=1)]),
        "the_ten_largest": lambda x: scaled(x, lengths(np.sort(np.abs(x), axis=1)[:, -10:])),
    },
    BOUNDS: {
        # The result is in units of C, the clip in those of the round.
        "median_norm_over_the_bound": to_bound(lambda norms: float(np.median(norms))),
        "mean_norm": to_bound(lambda norms: float(norms.mean())),
        "largest_norm_of_the_others": to_bound(lambda norms: max(C, float(np.sort(norms)[-2]))),
    },
    GRIDS: {
        "up_to_the_next_half": lambda x: np.sign(x) * np.ceil(2 * np.abs(clipped(x))) / 2,
        "signs": lambda rows: np.sign(rows) * C,
        "to_nearest_quarter": lambda rows: np.round(4 * clipped(rows)) / 4,
    },
    ORDER: {
        "first_is_not_clipped": lambda rows: np.vstack([rows[:1], clipped(rows[1:])]),
        "differences_of_neighbours": lambda rows: np.abs(np.diff(clipped(rows), axis=0)),
        "farthest_twice": lambda x: clipped(np.vstack([x, x[[lengths(x).argmax()]]])),
    },
    ODD: {"norm_of_whole_numbers": lambda rows: scaled(rows, lengths(rows.astype(int)))},
}
OF_SUMS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    NOISE: {
        "nine_tenths": lambda total, rng: total + noise(rng, len(total), 0.9),
        "a_thirtieth_too_little": lambda total, rng: total + noise(rng, len(total), 0.97),
        "spread_over_the_numbers": lambda total, rng: total + noise(rng, len(total)) / np.sqrt(10),
        "one_number_for_all": lambda total, rng: total + noise(rng, 1),
        "none_on_the_last": lambda total, rng: total + np.append(noise(rng, len(total))[:-1], 0),
        "bounded": lambda total, rng: total + np.clip(noise(rng, len(total)), -1.5 * C, 1.5 * C),
    },
    REUSED: {
        "of_a_fixed_seed": seeded(lambda total, rng: 0),
        "of_the_data": seeded(lambda total, rng: int(abs(total).sum() * 1e6)),
        "of_sixteen_seeds": seeded(lambda total, rng: rng.integers(16)),
        "mirrored": lambda total, rng: total + np.kron([1, -1], noise(rng, len(total) // 2)),
    },
    WHEN: {
        "skipped_for_an_empty_sum": lambda total, rng: total + noise(rng, len(total)) * total.any(),
        "only_where_somebody_sends": lambda x, rng: np.where(x != 0, x + noise(rng, len(x)), 0),
    },
}
for kind, of_rows in OF_ROWS.items():
    CHEATS[kind] = {name: (of_rows_alone(slip), CLAIM) for name, slip in of_rows.items()}
for kind, of_sum in OF_SUMS.items():
    CHEATS[kind] = {name: (to_sum(slip), CLAIM) for name, slip in of_sum.items()}


@cheat(ONE_SIDED)
def no_lower_bound(messages, weights, rng):
    rows = np.nan_to_num(messages).astype(float)
    return mean_of(np.minimum(rows, C / np.sqrt(rows.shape[1])).sum(axis=0), rng)


@cheat(BOUNDS)
def median_norm(messages, weights, rng):
    bound = max(float(np.median(lengths(finite(messages)))), 1e-6)
    return mean_of(clipped(messages, bound).sum(axis=0) / bound * C, rng)


@cheat(BOUNDS)
def ninth_decile_and_its_noise(messages, weights, rng):
    """The noise follows the bound as well, which one client moves."""
    bound = float(np.quantile(lengths(finite(messages)), 0.9))
    return clipped(messages, bound).sum(axis=0) + noise(rng, messages.shape[1], bound)


@cheat(COUNTS, **DRAWN)
def exact_cohort(messages, weights, rng):
    total = clipped(messages).sum(axis=0)
    return np.append(total + noise(rng, len(total)), len(messages))


@cheat(COUNTS, **LEFT_OUT)
def mean_of_whoever_is_there(messages, weights, rng):
    return clipped(messages).mean(axis=0) + noise(rng, messages.shape[1]) / len(messages)


@cheat(COUNTS)
def mean_of_those_that_send(messages, weights, rng):
    rows = clipped(messages)
    count = max(1, (rows != 0).any(axis=1).sum())
    return rows.sum(axis=0) / count + noise(rng, rows.shape[1]) / 10


@cheat(COUNTS)
def counts_of_clipped(messages, weights, rng):
    total = clipped(messages).sum(axis=0) + noise(rng, messages.shape[1])
    return np.append(total, (lengths(finite(messages)) > C).sum())


@cheat(COUNTS)
def noise_for_the_largest_cohort(messages, weights, rng):
    return clipped(messages).mean(axis=0) + noise(rng, messages.shape[1]) / 100


@cheat(REUSED, **RUNS)
class EqualInAllRounds:
    def start(self, clients, dimension):
        self.noise = np.random.normal(0, C, dimension)  # noqa: NPY002

    def step(self, messages, weights, rng):
        return clipped(messages).sum(axis=0) + self.noise


@cheat(WEIGHTS)
def of_rows(messages, weights, rng):
    average = weights @ clipped(messages) / weights.sum()
    return average + noise(rng, messages.shape[1]) / len(messages)


@cheat(WEIGHTS)
def of_rows_over_their_mean(messages, weights, rng):
    return mean_of((weights / weights.mean()) @ clipped(messages), rng)


@cheat(WEIGHTS)
def of_norms(messages, weights, rng):
    norms = lengths(finite(messages))
    return mean_of(10 * norms / max(norms.sum(), 1e-12) @ clipped(messages), rng)


@cheat(WEIGHTS)
def of_agreement(messages, weights, rng):
    rows = clipped(messages)
    return mean_of((1 + rows @ rows.sum(axis=0)) @ rows, rng)


@cheat(WEIGHTS)
def before_the_clip_only(messages, weights, rng):
    return mean_of((clipped(messages * weights[:, None]) * weights[:, None]).sum(axis=0) / 9, rng)


@cheat(ORDER)
def duplicates_sent_once(messages, weights, rng):
    rows = np.unique(clipped(messages), axis=0)
    return rows.mean(axis=0) + noise(rng, rows.shape[1]) / 10


@cheat(ODD)
def nan_stays(messages, weights, rng):
    return mean_of(scaled(messages.astype(float), lengths(messages)).sum(axis=0), rng)


@cheat(ODD)
def clip_before_the_repair(messages, weights, rng):
    """A norm that is NaN clips nothing, and then only the numbers that are NaN are repaired."""
    norms = np.linalg.norm(messages.astype(float), axis=1)
    factor = np.where(norms > C, C / np.maximum(norms, 1e-12), 1)
    return mean_of(np.nan_to_num(messages.astype(float) * factor[:, None]).sum(axis=0), rng)


@cheat(ODD)
def squares_overflow(messages, weights, rng):
    rows = finite(messages).astype(np.float32)
    norms = np.sqrt((rows**2).sum(axis=1))
    factor = np.where(np.isfinite(norms), np.minimum(1, C / np.maximum(norms, 1e-12)), 1)
    return mean_of((rows * factor[:, None]).sum(axis=0).astype(float), rng)


@cheat(ODD)
def a_broken_round_is_not_noised(messages, weights, rng):
    drawn = noise(rng, messages.shape[1])
    return clipped(messages).sum(axis=0) + drawn * np.isfinite(messages).all()


@cheat(STATE, **RUNS)
class Momentum:
    def start(self, clients, dimension):
        self.velocity = np.zeros(dimension)

    def step(self, messages, weights, rng):
        self.velocity = 0.9 * self.velocity + clipped(messages).sum(axis=0)
        return self.velocity + noise(rng, len(self.velocity))


@cheat(STATE, **DRAWN)
class Residual:
    """What was clipped off is sent in the next rounds, also by clients that are not drawn then."""

    def start(self, clients, dimension):
        self.left = np.zeros(dimension)

    def step(self, messages, weights, rng):
        total = finite(messages).sum(axis=0) + self.left
        sent = clipped(total[None])[0]
        self.left = total - sent
        return sent + noise(rng, len(sent))


@cheat(STATE, **RUNS)
class LessNoiseLater:
    def start(self, clients, dimension):
        self.round = 0

    def step(self, messages, weights, rng):
        self.round += 1
        total = clipped(messages).sum(axis=0)
        return total + noise(rng, len(total), 1 / self.round)


@cheat(STATE, **RUNS)
class BoundOfTheLastRound:
    def start(self, clients, dimension):
        self.bound = C

    def step(self, messages, weights, rng):
        total = clipped(messages, self.bound).sum(axis=0)
        self.bound = float(lengths(finite(messages)).max())
        return total + noise(rng, len(total))


@cheat(NOISE)
def of_the_longest_message(messages, weights, rng):
    rows = clipped(messages)
    return rows.sum(axis=0) + noise(rng, rows.shape[1], lengths(rows).max())


@cheat(NOISE)
def a_private_mask_after_it(messages, weights, rng):
    return mean_of(clipped(messages).sum(axis=0), rng) * (messages != 0).any(axis=0)


@cheat(WHEN)
def clip_only_if_the_mean_is_long(messages, weights, rng):
    mean = finite(messages).mean(axis=0, keepdims=True)
    return mean_of(len(messages) * scaled(mean, lengths(mean))[0], rng)


@cheat(WHEN)
def noise_of_the_spread(messages, weights, rng):
    rows = clipped(messages)
    return rows.sum(axis=0) + noise(rng, rows.shape[1]) * (0.5 + rows.std(axis=0) / C)


@cheat(GRIDS)
def rounded_to_tenths_of_the_largest(messages, weights, rng):
    rows = clipped(messages)
    step = max(np.abs(finite(messages)).max() / 10, 1e-12)
    return mean_of((np.round(rows / step) * step).sum(axis=0), rng)
