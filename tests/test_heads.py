"""Heads solved exactly: equal to scikit-learn's ridge regression and to NumPy programs, one client
at a time."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.func import vmap

import numpy_mlp
from pflpipe.errors import ConfigError
from pflpipe.learning import heads
from simulations import assert_equal, plan, simulation

torch.set_num_threads(1)


def examples(rows=40, features=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(loc=2.0, size=(rows, features)))
    return z, torch.from_numpy(rng.permutation(np.arange(rows) % classes))


def solved(solver, z, y, classes=3, penalty=0.02):
    found = getattr(heads, solver)(z, y, torch.tensor(len(z)), classes, penalty)
    return found["head.weight"], found["head.bias"]


PENALTIES = pytest.mark.parametrize("penalty", [1e-3, 0.02, 1.0])
SOLVERS = pytest.mark.parametrize("solver", heads.EXACT)


@PENALTIES
def test_ridge_is_that_of_scikit_learn_on_one_hot_targets(penalty):
    z, y = examples()
    known = Ridge(alpha=len(z) * penalty).fit(z.numpy(), np.eye(3)[y.numpy()])
    weight, bias = solved("ridge", z, y, penalty=penalty)
    np.testing.assert_allclose(weight.numpy(), known.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(bias.numpy(), known.intercept_, rtol=1e-9, atol=1e-12)


@PENALTIES
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_newton_ends_where_the_gradient_vanishes(classes, penalty):
    """That of logistic regression, whose biases may be shifted together: they have the mean 0."""
    z, y = examples(classes=classes)
    weight, bias = solved("newton", z, y, classes, penalty)
    w = {"head.weight": weight.numpy(), "head.bias": bias.numpy()}
    slope = numpy_mlp.gradient(w, z.numpy(), y.numpy())
    np.testing.assert_allclose(slope["head.weight"] + penalty * weight.numpy(), 0, atol=1e-12)
    np.testing.assert_allclose(slope["head.bias"], 0, atol=1e-12)
    np.testing.assert_allclose(bias.mean(), 0, atol=1e-12)


@SOLVERS
def test_rows_of_padding_count_for_nothing(solver):
    z, y = examples(20)
    wide, labels = torch.cat([z, z[:1] * torch.nan]), torch.cat([y, y[:1]])
    found = getattr(heads, solver)(wide, labels, torch.tensor(20), 3, 0.02)
    for value, expected in zip(found.values(), solved(solver, z, y), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)


@SOLVERS
@pytest.mark.parametrize("features", [4, 16, 32])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_client_has_the_same_bits_at_every_place_and_beside_anybody(solver, features, classes):
    z, y = examples(20, features, classes)
    solve = vmap(lambda *rows: getattr(heads, solver)(*rows, classes, 0.02))
    seen = []
    for places in (2, 3, 5):
        for place in range(places - 1):  # the last one is empty (clients.py)
            others = [examples(20, features, classes, seed=1 + i) for i in range(places)]
            others[place] = (z, y)
            n = torch.full((places,), 20)
            n[place] = 17
            x, labels = (torch.stack(tensors) for tensors in zip(*others, strict=True))
            found = solve(x, labels, n)
            seen.append({name: value[place] for name, value in found.items()})
    for other in seen[1:]:
        assert_equal(other, seen[0], 0)


@SOLVERS
def test_a_single_row_and_a_single_class_give_that_class(solver):
    z, _ = examples(5)
    for rows in (z, z[:1]):
        weight, bias = solved(solver, rows, torch.ones(len(rows), dtype=torch.int64))
        assert weight.isfinite().all()
        assert bias.isfinite().all()
        assert ((rows @ weight.T + bias).argmax(1) == 1).all()


@SOLVERS
@pytest.mark.parametrize("sick", [torch.nan, torch.inf])
def test_a_client_whose_features_are_not_finite_has_no_head(solver, sick):
    z, y = examples()
    z[3, 2] = sick
    for value in solved(solver, z, y):
        assert value.isnan().all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("penalty", [0.0, 1e-4])
def test_newton_on_separable_rows_is_finite_and_right(scale, penalty):
    z, y = examples(30, features=3)
    z = scale * (z + 10 * torch.nn.functional.one_hot(y, 3))
    weight, bias = solved("newton", z, y, penalty=penalty * scale**2)
    assert ((z @ weight.T + bias).argmax(1) == y).all()


def test_newton_refuses_a_head_that_is_too_large():
    z, y = examples(features=heads.LARGEST // 3)
    with pytest.raises(ConfigError, match="head of 513 numbers; expected at most 512"):
        solved("newton", z, y)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_golden_round_of_fedrep_with_ridge(backend):
    """Ridge by centred normal equations, then two epochs of the body under that head."""
    lr, penalty = 0.2, 0.05
    values = {"head_solver": "ridge", "head_weight_decay": penalty}
    quiet = plan(noise_multiplier=0.0, clip_norm=0.05, rounds=1)
    world = simulation("fedrep", values, plan=quiet, backend=backend, lr=lr)

    def update(w, client, round):
        x, y = numpy_mlp.rows(world, client)
        z = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
        targets = np.eye(3)[y]
        near, wanted = z - z.mean(0), targets - targets.mean(0)
        system = near.T @ near + len(z) * penalty * np.eye(z.shape[1])
        weight = np.linalg.solve(system, near.T @ wanted).T
        start = w | {"head.weight": weight, "head.bias": targets.mean(0) - weight @ z.mean(0)}
        body = numpy_mlp.BODY
        end = numpy_mlp.local_pass(world, client, round, start, lr=lr, names=body)
        return {name: end[name] - w[name] for name in body}

    numpy_mlp.assert_golden(world, update)
