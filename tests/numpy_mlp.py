"""Rounds of federated learning on a multilayer perceptron with ReLU, by hand in NumPy: the slow
twin of golden tests.

Without hidden layers it is softmax regression.
"""

import numpy as np

from pflpipe.simulation import rounds

HEAD = ("head.weight", "head.bias")


def gradient(w, x, y):
    """Gradient of the mean cross-entropy with respect to every parameter ``{"fc1.weight": [H, D],
    "fc1.bias": [H], ...}``."""
    layers = [name.removesuffix(".weight") for name in w if name.endswith(".weight")]
    inputs = [x]
    for layer in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0))
    scores = inputs[-1] @ w["head.weight"].T + w["head.bias"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    error = (scores / scores.sum(1, keepdims=True) - np.eye(scores.shape[1])[y]) / len(y)
    slopes = {}
    for layer, z in zip(reversed(layers), reversed(inputs), strict=True):
        slopes |= {f"{layer}.weight": error.T @ z, f"{layer}.bias": error.sum(0)}
        error = (error @ w[f"{layer}.weight"]) * (z > 0)
    return {name: slopes[name] for name in w}


def sharp(rho, *, adaptive=False):
    """Slope of sharpness-aware minimisation: the gradient at w + rho s^2 g / (|s g|_2 + 1e-12),
    where g is the gradient at w, and s is |w| if the ascent is adaptive, else 1."""

    def slope(w, x, y):
        g = gradient(w, x, y)
        scale = {name: np.abs(value) if adaptive else 1.0 for name, value in w.items()}
        reach = rho / (np.sqrt(sum(((scale[n] * g[n]) ** 2).sum() for n in w)) + 1e-12)
        return gradient({name: w[name] + reach * scale[name] ** 2 * g[name] for name in w}, x, y)

    return slope


def descend(w, steps, slope, *, lr, momentum=0.0, decay=0.0, names=None):
    """SGD on the parameters ``names`` (default: all) over ``steps`` of (x, y); ``slope(w, x, y)``
    is the gradient."""
    w = dict(w)
    names = tuple(w) if names is None else names
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for x, y in steps:
        slopes = slope(w, x, y)
        for name in names:
            velocity[name] = momentum * velocity[name] + slopes[name] + decay * w[name]
        w |= {name: w[name] - lr * velocity[name] for name in names}
    return w


def bounded(w, steps, bound, order, *, lr):
    """SGD whose every step is shortened to a bound in a norm, all parameters together; and whether
    each step was."""
    shortened = []
    for x, y in steps:
        change = {name: -lr * slope for name, slope in gradient(w, x, y).items()}
        length = np.linalg.norm(np.concatenate([value.ravel() for value in change.values()]), order)
        w = {name: w[name] + min(1.0, bound / length) * value for name, value in change.items()}
        shortened.append(length > bound)
    return w, shortened


def clipped(update, bound):
    """The update, shortened to the bound over all tensors together."""
    length = np.sqrt(sum((value**2).sum() for value in update.values()))
    return {
        name: value * min(1.0, bound / length) if length else value
        for name, value in update.items()
    }


def less(left, right):
    """The difference of two trees, of the names of the first."""
    return {name: value - right[name] for name, value in left.items()}


def moved(w, updates, share=None):
    """The model and the mean of clipped updates, which need not be of all its tensors."""
    share = 1 / len(updates) if share is None else share
    mean = {name: share * sum(one[name] for one in updates) for name in updates[0]}
    return w | {name: w[name] + value for name, value in mean.items()}


def start(world):
    """The start of a simulation, and its model."""
    begun = rounds.start(world)
    return begun, {name: value.numpy() for name, value in begun.params.items()}


def assert_golden(world, update):
    """Hold the model of a run without noise against rounds by hand.

    Args:
        update: ``(w, client, round) ->`` what a client would send if nothing was clipped.

    Returns:
        the end of the run, and its model by hand.
    """
    begun, w = start(world)
    for round in range(world.plan.rounds):
        sent = [update(w, client, round) for client in range(world.plan.clients)]
        w = moved(w, [clipped(one, world.plan.clip_norm) for one in sent])
    done = rounds.run(world, begun)
    assert done.rows[-1]["fraction_clipped"] > 0
    assert_close(done.params, w)
    return done, w


def rows(world, client):
    """All training examples of a client."""
    own = world.split.train[client]
    return world.train.x[own].numpy(), world.train.y[own].numpy()


def steps(world, client, round, schedule):
    """One client's minibatches of a round in a simulation: ``train`` or ``head``, as a list of (x,
    y)."""
    cut = world.work(client, round)[schedule]
    own = [index[:count] for index, count in zip(cut.index, cut.count, strict=True)]
    x, y = world.train.x[cut.row_indices].numpy(), world.train.y[cut.row_indices].numpy()
    return [(x[places], y[places]) for places in own]


def assert_close(found, expected):
    """Compare a tree of tensors with arrays, or that of all clients with a list of theirs, up to
    the rounding of float64."""
    if isinstance(expected, list):
        expected = {name: np.stack([own[name] for own in expected]) for name in expected[0]}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-10, atol=1e-13)
