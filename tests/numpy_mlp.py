"""Rounds of federated learning on a multilayer perceptron with ReLU, by hand in NumPy: the slow
twin of golden tests.

Without hidden layers it is softmax regression.
"""

import numpy as np

from pflpipe.simulation import rounds

HEAD = ("head.weight", "head.bias")
BODY = ("fc1.weight", "fc1.bias")


def errors(head, z, y):
    """Slope of the mean cross-entropy with respect to the scores of a head on features."""
    scores = z @ head["head.weight"].T + head["head.bias"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return (scores / scores.sum(1, keepdims=True) - np.eye(scores.shape[1])[y]) / len(y)


def gradient(w, x, y):
    """Gradient of the mean cross-entropy with respect to every parameter ``{"fc1.weight": [H, D],
    "fc1.bias": [H], ...}``."""
    layers = [name.removesuffix(".weight") for name in w if name.endswith(".weight")]
    inputs = [x]
    for layer in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0))
    error, slopes = errors(w, inputs[-1], y), {}
    for layer, z in zip(reversed(layers), reversed(inputs), strict=True):
        slopes |= {f"{layer}.weight": error.T @ z, f"{layer}.bias": error.sum(0)}
        error = (error @ w[f"{layer}.weight"]) * (z > 0)
    return {name: slopes[name] for name in w}


def fisher(w, x, y):
    """Mean of the squares of each example's gradient."""
    each = [gradient(w, x[[row]], y[[row]]) for row in range(len(y))]
    return {name: np.mean([slope[name] ** 2 for slope in each], 0) for name in w}


def sharp(rho, *, adaptive=False):
    """Slope of sharpness-aware minimisation: the gradient at w + rho s^2 g / (|s g|_2 + 1e-12),
    where g is the gradient at w, and s is |w| if the ascent is adaptive, else 1."""

    def slope(w, x, y):
        g = gradient(w, x, y)
        scale = {name: np.abs(value) if adaptive else 1.0 for name, value in w.items()}
        reach = rho / (np.sqrt(sum(((scale[n] * g[n]) ** 2).sum() for n in w)) + 1e-12)
        return gradient({name: w[name] + reach * scale[name] ** 2 * g[name] for name in w}, x, y)

    return slope


def pulled(weight, anchor):
    """Slope of the loss and of ``weight / 2`` times the squared distance to a model."""

    def slope(w, x, y):
        g = gradient(w, x, y)
        return {name: g[name] + weight * (w[name] - anchor[name]) for name in w}

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
        length = np.linalg.norm(flat(change), order)
        w = {name: w[name] + min(1.0, bound / length) * value for name, value in change.items()}
        shortened.append(length > bound)
    return w, shortened


def flat(tree):
    """All numbers of a tree."""
    return np.concatenate([np.ravel(value) for value in tree.values()])


def clipped(update, bound, order=2):
    """The update, shortened to the bound over all tensors together."""
    length = np.linalg.norm(flat(update), order)
    factor = min(1.0, bound / length) if length else 1.0
    return {name: factor * value for name, value in update.items()}


def less(left, right):
    """The difference of two trees, of the names of the first."""
    return {name: value - right[name] for name, value in left.items()}


def arrays(tree, *place):
    """The numbers of a tree of tensors, or of one client in a tree of all clients'."""
    return {name: value[place].numpy() for name, value in tree.items()}


def start(world):
    """The start of a simulation, and its model."""
    begun = rounds.start(world)
    return begun, arrays(begun.params)


def weights(world, by_size):
    """The share of each client in a mean, by its number of examples or the same for all."""
    sizes = np.array([len(rows) for rows in world.split.train])
    return sizes / sizes.sum() if by_size else np.full(len(sizes), 1 / len(sizes))


def assert_golden(world, update, *, begun=None, server=None, shares=None, clip=clipped, clips=True):
    """Hold the model of a run without noise against rounds by hand.

    Args:
        update: ``(w, client, round) ->`` what a client would send if nothing was clipped.
        begun: where the run begins, if not at its start.
        server: what is released besides the model, at its start; a part of ``w``.
        shares: of the clients' messages in what is added; by default 1 / the expected cohort.
        clip: ``(message, bound) ->`` what is sent of it.
        clips: whether the mechanism shortens a message in every round (True) or in none (False).

    Returns:
        the end of the run, and its model by hand.
    """
    begun, rule = begun or rounds.start(world), world.plan
    w = arrays(begun.params) | (server or {})
    if shares is None:
        shares = np.full(rule.clients, 1 / (rule.sample_rate * rule.clients))
    for round in range(rule.rounds):
        drawn = np.flatnonzero(rounds.cohort(world, round)).tolist()
        sent = {client: clip(update(w, client, round), rule.clip_norm) for client in drawn}
        for client, message in sent.items():
            w = w | {name: w[name] + shares[client] * value for name, value in message.items()}
    done = rounds.run(world, begun)
    found = {row["fraction_clipped"] > 0 for row in done.rows if row["participants"]}
    assert clips is None or found == {clips}
    assert_close(done.params, {name: w[name] for name in done.params})
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


def local_pass(world, client, round, w, slope=gradient, schedule="train", **how):
    """A client's model after its minibatches of a round, by ``descend``."""
    return descend(w, steps(world, client, round, schedule), slope, **how)


def assert_close(found, expected):
    """Compare a tree of tensors with arrays, or that of all clients with a list of theirs, up to
    the rounding of float64."""
    if isinstance(expected, list):
        expected = {name: np.stack([own[name] for own in expected]) for name in expected[0]}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-10, atol=1e-13)
