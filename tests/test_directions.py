"""Steps along given directions: any solver takes them as it takes those along a gradient."""

import dataclasses

import pytest
import torch

from pflpipe import trees
from pflpipe.learning import solvers
from pflpipe.learning.directions import batch_gradient, surrogate
from pflpipe.learning.solvers import Objective, Solver
from simulations import simulation

BOTH = [solvers.minimize_loop, solvers.minimize_functional]
SOLVERS = [Solver("sgd", 0.2, 0.5, 0.1), Solver("adam", 0.05, weight_decay=0.1)]
RHO = 0.3


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("minimize", BOTH)
def test_steps_along_the_gradient_at_an_ascended_point_are_those_of_sam(minimize, solver):
    world = simulation("dp_fedavg")
    params = world.network.init(torch.Generator().manual_seed(1), torch.float64)
    schedule = world.train.schedule(world.work(0, 0)["train"])
    loss = world.task.loss

    def sharp(w, batch):
        g, height = batch_gradient(loss, w, batch)
        reach = RHO / (trees.norm(g) + 1e-12)
        ascended = {name: w[name] + reach * g[name] for name in w}
        return batch_gradient(loss, ascended, batch)[0], height

    before = {name: value.clone() for name, value in params.items()}
    found, value = minimize(params, schedule, [Objective(surrogate(sharp))], solver)
    twin = dataclasses.replace(solver, rho=RHO)
    expected, height = minimize(params, schedule, [Objective(loss)], twin)
    assert all(torch.equal(params[name], before[name]) for name in params)
    torch.testing.assert_close(value, height, rtol=1e-12, atol=0)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-14)
