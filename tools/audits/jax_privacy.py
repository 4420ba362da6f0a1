"""JAX Privacy (PyPI: jax-privacy): its own loops, DPExecutionPlan and DP-SGD for Keras.

What it claims:

- ``experimental/execution_plan.py``, lines 78-82 and 221: the parts of a plan, used as its
  pseudo-code says, have the guarantee of its dp_event, and it is calibrated to (epsilon, delta).
- ``clipping.py``, lines 568-570: with nan_safe, the default, NaN and infinity are 0.
- ``keras_api.py``, lines 68-122 and 236-266: (epsilon, delta) for train_steps steps of batches of
  batch_size x gradient_accumulation_steps examples; a noise multiplier of one's own that exceeds
  the budget is refused.

Every call runs its clipped gradient and its noise. The gradient of an example is the message that
the auditor sends, so that the unit, a "client" of the claim, is an example.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax_privacy import keras_api
from jax_privacy.accounting.analysis import DpParams
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from audits import Entry, Untried
from pflpipe import Claim

jax.config.update("jax_cpu_enable_async_dispatch", False)  # a call takes .1 ms, whatever else runs

PROGRAM, VERSION = "JAX Privacy", version("jax-privacy")
EXAMPLES, DIMENSION, DELTA, SECONDS = 8, 6, 1e-5, 0.3
STRATEGY, CYCLES = np.array([1.0, 0.5, 0.2, 0.1]), 2
"""Of matrix factorization, that of its documentation; an example takes part once in a cycle."""
BANDS = len(STRATEGY)
Release = Callable[[np.ndarray, np.ndarray, np.random.Generator], Any]


def key(rng: np.random.Generator) -> np.ndarray:
    """Return the data of a key of jax."""
    return rng.integers(2**32, size=2, dtype=np.uint32)


def padded(messages: np.ndarray, count: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` rows, of which the first are the messages, and which are padding."""
    rows = np.zeros((count, messages.shape[1]), np.float32)
    rows[: len(messages)] = messages
    return rows, np.arange(count) >= len(messages)


def planned(config: BandMFExecutionPlanConfig, cycles: int = 0) -> Release:
    """Return the release of a plan: of one iteration or, if it has cycles, of all iterations, in
    the first of each of which the examples take part."""
    plan = config.plan
    gradient = plan.clipped_grad(lambda model, batch: (batch @ model).sum())
    steps = config.iterations if cycles else 1

    @jax.jit
    def run(rows: jax.Array, padding: jax.Array, seed: jax.Array) -> jax.Array:
        model = jnp.zeros(rows.shape[1])
        _, correlated = plan.noise_addition_transform.init(model)
        state, released = (jax.random.wrap_key_data(seed), correlated), []
        for step in range(steps):
            here = padding | bool(step % BANDS if cycles else 0)
            total = gradient(model, rows, is_padding_example=here)
            noised, state = plan.noise_addition_transform.update(total, state)
            released.append(noised)
        return jnp.concatenate(released)

    return lambda messages, _, rng: np.asarray(run(*padded(messages), key(rng)))


def trained(config: keras_api.DPKerasConfig) -> Release:
    """Return the release of an optimizer step of Keras: the model after it. Examples are dealt to
    the batches that the step accumulates."""
    parts = config.gradient_accumulation_steps
    model = keras.Sequential([keras.Input((DIMENSION,)), keras.layers.Dense(1, use_bias=False)])
    model = keras_api.make_private(model, config)
    several = parts if parts > 1 else None
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=several)
    model.compile(optimizer, loss=lambda _, output: output)
    model.optimizer.build(model.trainable_variables)
    x, y, weight = np.zeros((EXAMPLES, DIMENSION)), np.zeros(EXAMPLES), np.ones(EXAMPLES)
    model._symbolic_build(data_batch=(x, y, weight))
    _, others, optimizing, metrics = (
        [one.value for one in group]
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )

    @jax.jit
    def run(batches: jax.Array, weights: jax.Array, seed: jax.Array) -> jax.Array:
        seeded = [seed, *others[1:]]
        state = ([jnp.zeros((DIMENSION, 1))], seeded, optimizing, metrics)
        for rows, weight in zip(batches, weights, strict=True):
            _, state = model.train_step(state, (rows, jnp.zeros(EXAMPLES), weight))
        return state[0][0].ravel()

    def step(messages: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        batches = [padded(messages[part::parts]) for part in range(parts)]
        rows, padding = map(np.stack, zip(*batches, strict=True))
        return np.asarray(run(rows, np.float32(~padding), key(rng)))

    return step


def of_keras(multiplier: float, batch: int, parts: int, steps: int) -> keras_api.DPKerasConfig:
    """Return the configuration with the least epsilon that the check of a given noise multiplier
    accepts."""
    used = DpParams(
        noise_multipliers=multiplier, batch_size=batch, num_samples=EXAMPLES, delta=DELTA
    )
    return keras_api.DPKerasConfig(
        epsilon=keras_api.DPKerasConfig._accountant.compute_epsilon(steps, used),
        delta=DELTA,
        clipping_norm=1.0,
        batch_size=batch,
        gradient_accumulation_steps=parts,
        train_steps=steps,
        train_size=EXAMPLES,
        poisson_sampling_in_fit=True,
        noise_multiplier=multiplier,
    )


SAMPLED = BandMFExecutionPlanConfig(
    strategy=np.ones(1), iterations=3, epsilon=4.0, delta=DELTA, sampling_prob=0.5
)
BANDED = BandMFExecutionPlanConfig(
    strategy=STRATEGY, iterations=BANDS * CYCLES, epsilon=4.0, delta=DELTA
)
PLAIN, ACCUMULATED = of_keras(1.0, 4, 1, 3), of_keras(1.0, 2, 2, 6)
PLANS = "experimental/execution_plan.py:346-403"
KERAS = "keras_api.py:924-1001"
PLANNED = "experimental/execution_plan.py:78-82 and 221: the desired privacy budget"
BUDGET = "keras_api.py:68-77 and 236-266: the budget, which a given noise multiplier must keep"

AUDITS = [
    Entry(
        title="DPExecutionPlan, one band, Poisson sampling, any gradients",
        release=planned(SAMPLED),
        claim=Claim(
            clients=EXAMPLES,
            dimension=DIMENSION,
            epsilon=4.0,
            delta=DELTA,
            rounds=3,
            sample_rate=0.5,
        ),
        source=PLANS,
        said=PLANNED,
        remark="The unit is an example.",
        seconds=SECONDS,
    ),
    Entry(
        title="DPExecutionPlan, 4 bands, 8 iterations, two participations",
        release=planned(BANDED, CYCLES),
        claim=Claim(clients=4, dimension=2, epsilon=4.0, delta=DELTA),
        source=PLANS,
        said=PLANNED,
        remark="All iterations are one release.",
        seconds=SECONDS,
    ),
    Entry(
        title="Keras, batches drawn by fit, noise multiplier given",
        release=trained(PLAIN),
        claim=Claim(
            clients=EXAMPLES,
            dimension=DIMENSION,
            noise_multiplier=1.0,
            epsilon=PLAIN.epsilon,
            delta=DELTA,
            rounds=3,
            sample_rate=0.5,
            adjacency="add_remove",
        ),
        source=KERAS,
        said=BUDGET,
        seconds=SECONDS,
    ),
    Entry(
        title="Keras, two batches accumulated, noise multiplier given",
        release=trained(ACCUMULATED),
        claim=Claim(
            clients=EXAMPLES,
            dimension=DIMENSION,
            noise_multiplier=1.0,
            epsilon=ACCUMULATED.epsilon,
            delta=DELTA,
            rounds=3,
            sample_rate=0.5,
            adjacency="add_remove",
        ),
        source="keras_api.py:236-245",
        said=BUDGET,
        remark="The check of a given multiplier counts batch_size (line 241); the calibration "
        "without one counts the batch of a step (line 182). Here a step has 4 of 8 examples, and "
        "fit stops after 6 batches, three steps.",
        seconds=SECONDS,
    ),
    Untried(
        title="Keras, fit without poisson_sampling_in_fit, the default",
        source="keras_api.py:145",
        reason="Keras shuffles the examples, so that each is in one batch of an epoch, and Poisson "
        "sampling is counted. An audit of arrays draws by Poisson sampling.",
    ),
]
