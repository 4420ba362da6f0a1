"""Private FedRep: rounds against an independent NumPy program, its reduction to FedRep, and what
becomes of the rows of U."""

import numpy as np
import pytest
import torch

import numpy_mlp
import simulations
from pflpipe import cells
from pflpipe.methods.private_fedrep import batches_of, moment, orthonormalised
from pflpipe.simulation import rounds
from simulations import assert_equal, params_after, plan, quiet, simulation, spied, with_rows

PENALTY, LR, CLIP, SCALE = 0.05, 4.0, 0.2, 0.5
LINEAR, U = cells.Model("embedding", (2,), items=5), "embedding.weight"


def rows_of(world, client):
    x, y = numpy_mlp.rows(world, client)
    return x, np.eye(3)[y]


def ridge(z, y):
    """The head (W, b) of squared loss, without a penalty on b."""
    rows = np.hstack([z, np.ones((len(z), 1))])
    system = rows.T @ rows / len(z) + PENALTY * np.diag([1, 1, 0])
    head = np.linalg.solve(system, rows.T @ y / len(z)).T
    return head[:, :2], head[:, 2]


def statistic(x, y):
    """Z by its definition: a sum over pairs of rows."""
    n, centred = len(x), y - 1 / 3
    pairs = [(j, k) for j in range(n) for k in range(n) if j != k]
    products = [centred[j] @ centred[k] * np.outer(x[j], x[k]) for j, k in pairs]
    return sum(products, np.zeros((5, 5))) / max(n * (n - 1), 1)


def orthonormal_rows(u):
    q, r = np.linalg.qr(u.T)
    return (q * np.sign(np.diag(r))).T


def test_golden_rounds_and_personal_model():
    """The first round finds U, the others train it."""
    values = {"penalty": PENALTY, "halves": False, "moment_scale": SCALE}
    settings = {"clip_norm": CLIP, "lr": LR, "model": LINEAR}
    world = quiet("private_fedrep", values, rounds=3, **settings)
    z = 0.0
    for client in range(4):
        sent = numpy_mlp.clipped({"": statistic(*rows_of(world, client)) / SCALE}, CLIP)
        z = z + SCALE * sent[""] / 4
    u = np.linalg.svd((z + z.T) / 2)[0][:, :2].T
    u = u * np.where(u.sum(1, keepdims=True) < 0, -1, 1)
    for _ in range(2):
        change = 0.0
        for client in range(4):
            x, y = rows_of(world, client)
            weight, bias = ridge(x @ u.T, y)
            error = (x @ u.T @ weight.T + bias - y) / len(x)
            slope = weight.T @ error.T @ x
            change = change + numpy_mlp.clipped({"": -LR * slope}, CLIP)[""] / 4
        u = orthonormal_rows(u + change)
    done = simulations.finished(world)
    assert all(row["fraction_clipped"] > 0 for row in done.rows[:2])
    np.testing.assert_allclose(done.params[U].numpy(), u, rtol=1e-9, atol=1e-12)
    models = simulations.personal_models(world, done)
    for client in range(4):
        x, y = rows_of(world, client)
        for name, value in zip(numpy_mlp.HEAD, ridge(x @ u.T, y), strict=True):
            np.testing.assert_allclose(models[name][client], value, rtol=1e-8, atol=1e-10)


def test_without_its_own_parts_it_is_fedrep_with_heads_by_newton_steps():
    """Of one full-batch epoch."""
    off = dict.fromkeys(("halves", "orthonormal", "spectral"), False)
    settings = {"backend": "vmap", "local_epochs": 1, "batch_size": 0}
    values = {"loss": "logistic", "penalty": PENALTY} | off
    found = params_after(simulation("private_fedrep", values, **settings))
    values = {"head_solver": "newton", "head_weight_decay": PENALTY}
    expected = params_after(simulation("fedrep", values, **settings))
    assert_equal(*({k: one[k] for k in numpy_mlp.BODY} for one in (found, expected)))


def test_the_halves_share_no_row_and_are_drawn_anew():
    """Half of a client's nine rows and a row more is for the head."""
    world = simulation("private_fedrep", backend="vmap")

    def drawn(round):
        def hook(state, batches, others):
            of_head, of_body = batches_of(batches, True)
            return torch.cat([of_head.index[0], of_body.index[0], of_head.count, of_body.count])

        work = [world.work(0, round)]
        return world.run_clients(hook, rounds.start(world).states, [0], work)[0].tolist()

    def parts(found):
        width = (len(found) - 2) // 2
        head, body = found[: found[-2]], found[width : width + found[-1]]
        assert sorted(head + body) == list(range(9))
        assert len(head) == 5
        return set(head)

    assert parts(drawn(0)) != parts(drawn(2))


@pytest.mark.parametrize("spectral", [True, False])
@pytest.mark.parametrize(
    "model", [LINEAR, cells.Model("gru", (2, 3), items=5)], ids=["embedding", "tokens"]
)
def test_who_has_no_row_for_the_body_sends_none_of_it(model, spectral):
    """One client has no rows, and one has a single row, which is for the head; weight decay moves
    the bodies of the others."""
    settings = {"sizes": (5, 0, 1), "shape": (4,) if model.name == "gru" else (5,)}
    settings |= {"model": model, "backend": "vmap", "weight_decay": 0.1}
    world = simulation("private_fedrep", {"spectral": spectral}, **settings)
    done, seen, _ = spied(world)
    for value in seen[-1][0].update.values():
        assert not value[1:].any()
    assert seen[-1][0].update[next(iter(done.params))][0].any()


def test_inputs_that_are_an_index_have_the_moment_of_their_one_hot_rows():
    found = []
    for shape in ((1,), (5,)):
        world = simulation("private_fedrep", model=LINEAR, shape=shape)
        index = torch.arange(len(world.train.x)) % 5
        x = index.double()[:, None] if shape == (1,) else torch.eye(5).double()[index]
        world = with_rows(world, x, torch.arange(len(x)) // 2 % 3)
        start = rounds.start(world)

        def hook(state, batches, others, start=start, world=world):
            return moment(start.params, batches, world.task)

        work = [world.work(client, 0) for client in range(4)]
        found.append(world.run_clients(hook, start.states, range(4), work))
    assert found[0].abs().max() > 0.01
    assert_equal({"": found[0]}, {"": found[1]}, 0)


def test_the_moment_is_sent_once_and_the_rows_of_u_stay_orthonormal():
    world = simulation("private_fedrep", model=LINEAR, plan=plan(noise_multiplier=2.0))
    done, seen, models = spied(world)
    assert [bool(scale["moment"] > 0) for _, scale, _ in seen] == [True, False, False]
    for uploads, scale, released in seen:
        first = bool(scale["moment"] > 0)
        assert uploads.update["moment"].any() == released.sum["moment"].any() == first
        assert uploads.update[U].any() == (not first)
    assert done.uploaded_bits == 32 * (5 * 5 + 3 * 2 * 5)
    for params, _ in models[1:]:
        torch.testing.assert_close(params[U] @ params[U].T, torch.eye(2).double())


def test_a_matrix_with_orthonormal_rows_stays_as_it_is():
    draw = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).double()
    once = orthonormalised(draw)
    torch.testing.assert_close(orthonormalised(once), once)
    torch.testing.assert_close(orthonormalised(draw.T), once.T)
