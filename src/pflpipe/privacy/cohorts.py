"""Who takes part in a round."""

import numpy as np

from pflpipe.privacy.plan import Plan
from pflpipe.seeds import release_rng


def sample_clients(
    generator: np.random.Generator, plan: Plan, repeats: tuple[int, ...] = ()
) -> np.ndarray:
    """Return a round's cohort, bool ``[*repeats, M]``: each of the M clients is drawn independently
    with probability q (Poisson sampling), and each repeat has an independent cohort.

    At q = 1 all clients take part and the generator is not used.
    """
    shape = (*repeats, plan.clients)
    if plan.sample_rate == 1:
        return np.ones(shape, dtype=bool)
    return generator.random(shape) < plan.sample_rate


def public_cohort(round: int, plan: Plan) -> np.ndarray:
    """Return the cohort of a round (counted from 0) under the departure ``public_sampling``: bool
    ``[M]``.

    A fixed number q M of clients, rounded and at least 1, is drawn by a generator with the public
    round number as seed, as in DP-FedSAM's official code.
    """
    # Seeded by the round number alone, on purpose: the departure imitates this fault.
    cohort = np.zeros(plan.clients, dtype=bool)
    size = max(1, int(np.rint(plan.expected_cohort)))
    cohort[np.random.default_rng(round).choice(plan.clients, size=size, replace=False)] = True
    return cohort


def group_cohort(key: str, round: int, plan: Plan) -> np.ndarray:
    """Return the cohort of a round (counted from 0) of a plan with groups: bool ``[M]``.

    The key of the run divides the clients into groups whose sizes differ by at most one. Nothing
    rests on the division being secret.
    """
    group = release_rng(key, "groups").permutation(plan.clients) % plan.groups
    return np.asarray(group == round % plan.groups)
