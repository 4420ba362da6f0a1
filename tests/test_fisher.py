"""Fisher information from the layers' inputs and slopes is that of one gradient for every example,
for every network."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tabled
from pflpipe import cells, options
from pflpipe.learning import networks
from pflpipe.learning.fisher import fisher
from pflpipe.learning.solvers import Batch, Schedule
from pflpipe.trees import Tree
from simulations import simulation

NETWORKS = {
    name: (options.build(cells.Model, model), tuple(shape))
    for name, (model, shape) in tabled.table("test_fisher").items()
}
ROWS = ((0, 1, 2), (3, 4, 0))
"""Two steps; the last place of the second is padding."""


def problem(name: str) -> tuple[networks.Network, Tree, Tensor, Tensor]:
    model, shape = NETWORKS[name]
    network = networks.build(model, shape, 10)
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    begun = network.init(generator, torch.float64)
    # Norms are not all 1.
    params = {key: value + 0.1 * draw(value.shape) for key, value in begun.items()}
    return network, params, draw(5, *shape), torch.tensor([0, 3, 9, 1, 1])


def likelihoods(network: networks.Network):
    return lambda params, batch: (
        -F.cross_entropy(network.apply(params, batch.x), batch.y, reduction="none")
    )


def by_hand(network: networks.Network, params: Tree, x: Tensor, y: Tensor) -> Tree:
    total = dict.fromkeys(params, torch.zeros(()))
    for image, label in zip(x.split(1), y.split(1), strict=True):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        F.cross_entropy(network.apply(leaves, image), label).backward()
        total = {name: total[name] + leaf.grad**2 / len(y) for name, leaf in leaves.items()}
    return total


def schedule(x: Tensor, y: Tensor, *, true_sizes: bool) -> Schedule:
    return Schedule(x, y, torch.tensor(ROWS), torch.tensor([3, 2]), (3, 2) if true_sizes else None)


@pytest.mark.parametrize("true_sizes", [True, False], ids=["true sizes", "padded"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_mean_of_the_squares_of_each_examples_gradient(name, true_sizes):
    network, params, x, y = problem(name)
    found = fisher(params, schedule(x, y, true_sizes=true_sizes), likelihoods(network))
    expected = by_hand(network, params, x, y)
    assert found.keys() == params.keys()
    for key, value in expected.items():
        assert value.abs().max() > 0
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12 * value.max().item())


def test_a_parameter_that_is_not_one_layers_is_refused():
    params = {"w": torch.ones(3), "head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2)}
    x, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    batches = Schedule(x, y, torch.arange(4)[None], torch.tensor([4]), (4,))

    def unknown(params: Tree, batch: Batch) -> Tensor:
        return F.linear(batch.x * params["w"], params["head.weight"], params["head.bias"])[:, 0]

    def twice(params: Tree, batch: Batch) -> Tensor:
        features = F.linear(batch.x, params["w"].diag())
        return F.linear(features, params["head.weight"], params["head.bias"])[:, 0]

    for network in (unknown, twice):
        with pytest.raises(ValueError, match=r"\['w'\]"):
            fisher(params, batches, network)


def test_an_index_has_the_information_of_its_one_hot_row():
    items, found = torch.tensor([4, 0, 2, 2, 1]), []
    index, one_hot = items.double()[:, None], F.one_hot(items, 5).double()
    model = cells.Model("embedding", (3,), items=5)
    for x in (index, one_hot):
        world = simulation("feddpa", model=model, shape=tuple(x.shape[1:]))
        params = world.network.init(torch.Generator().manual_seed(0), torch.float64)
        rows = schedule(x, torch.tensor([0, 2, 1, 1, 0]), true_sizes=True)
        found.append(world.task.fisher(params, rows))
    for name, value in found[1].items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-12, atol=0)
        assert value.max() > 0
