"""Local solvers: equal to torch.optim, to numbers by hand and to each other, neutral to padding,
honest about masks."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import tabled
from pflpipe import cells, trees
from pflpipe.learning import networks, solvers
from pflpipe.learning.penalties import DistancePenalty
from pflpipe.learning.solvers import Objective, Schedule, Solver
from simulations import CLASSES, assert_equal, simulation

TABLES = tabled.table("test_solvers")

SOLVERS, SPECIAL = ([Solver(**one) for one in TABLES[name]] for name in ("SOLVERS", "SPECIAL"))
PROJECTED = Solver("sgd", 0.1, momentum=0.9, low=-0.2, high=0.3)
BOTH = [solvers.minimize_loop, solvers.minimize_functional]
CLOSE = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture
def problem():
    """Parameters, a ragged schedule of the first ten rows (the last step has 2 of 4) and the mean
    cross-entropy of a small network."""
    world = simulation("dp_fedavg")
    params = world.network.init(torch.Generator().manual_seed(1), torch.float64)
    index = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 8, 8]])
    schedule = Schedule(world.train.x, world.train.y, index, torch.tensor([4, 4, 2]), (4, 4, 2))
    return params, schedule, world.task


def first(schedule, steps):
    """The first steps of the problem's schedule."""
    index, count = schedule.index[:steps], schedule.count[:steps]
    return dataclasses.replace(schedule, index=index, count=count, sizes=(4, 4, 2)[:steps])


def multiples(number, params):
    """A mask of the coordinates whose place is a multiple of the number."""
    places = {name: torch.arange(v.numel()).view(v.shape) for name, v in params.items()}
    return {name: place % number == 0 for name, place in places.items()}


def by_torch(params, schedule, loss, solver):
    """What torch.optim trains, and the mean of the losses."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[solver.optimizer]
    extra = {"momentum": solver.momentum} if solver.optimizer == "sgd" else {}
    optimizer = kind(leaves.values(), lr=solver.lr, weight_decay=solver.weight_decay, **extra)
    losses = []
    for batch in schedule:
        optimizer.zero_grad()
        losses.append(loss(leaves, batch))
        losses[-1].backward()
        optimizer.step()
    trained = {name: leaf.detach() for name, leaf in leaves.items()}
    return trained, torch.stack(losses).mean().detach()


def padded(schedule):
    """The same steps with padded rows, a padded width and two padded steps, as a group under vmap
    has them."""
    index = torch.zeros(5, 6, dtype=torch.int64)
    index[:3, :4] = schedule.index
    return Schedule(schedule.x, schedule.y, index, torch.tensor([4, 4, 2, 0, 0]))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("minimize", BOTH)
def test_solver_equals_torch_optim_on_a_module(problem, solver, minimize):
    params, schedule, task = problem
    layers = torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, CLASSES)
    module = torch.nn.Sequential(*layers).double()

    def loss(leaves, batch):
        named = dict(zip(module.state_dict(), leaves.values(), strict=True))
        return F.cross_entropy(functional_call(module, named, batch.x), batch.y)

    trained, mean = minimize(params, schedule, [Objective(task.loss)], solver)
    expected, expected_mean = by_torch(params, schedule, loss, solver)
    torch.testing.assert_close(trained, expected, **CLOSE)
    torch.testing.assert_close(mean, expected_mean, **CLOSE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("solver", SOLVERS + SPECIAL, ids=str)
def test_the_loop_on_a_gpu_equals_the_loop_on_a_cpu(problem, solver):
    params, schedule, task = problem
    there = Schedule(*(part.cuda() for part in dataclasses.astuple(schedule)[:4]), schedule.sizes)
    on_gpu = {name: value.cuda() for name, value in params.items()}
    objectives = [Objective(task.loss)]
    expected, loss = solvers.minimize_loop(params, schedule, objectives, solver)
    trained, mean = solvers.minimize_loop(on_gpu, there, objectives, solver)
    back = {name: value.cpu() for name, value in trained.items()}
    torch.testing.assert_close(mean.cpu(), loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(back, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", [*SOLVERS, *SPECIAL, PROJECTED], ids=str)
def test_padding_changes_nothing(problem, solver):
    params, schedule, task = problem
    plain, more = (
        solvers.minimize_functional(params, steps, [Objective(task.loss)], solver)
        for steps in (schedule, padded(schedule))
    )
    torch.testing.assert_close(plain, more, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("solver", SOLVERS + SPECIAL, ids=str)
@pytest.mark.parametrize("minimize", BOTH)
def test_only_masked_coordinates_move_even_with_weight_decay(problem, solver, minimize):
    params, schedule, task = problem
    mask = multiples(2, params)
    trained, _ = minimize(params, schedule, [Objective(task.loss, mask)], solver)
    for name, value in params.items():
        assert torch.equal(trained[name][~mask[name]], value[~mask[name]])
        assert not torch.equal(trained[name][mask[name]], value[mask[name]])


@pytest.mark.parametrize("solver", SOLVERS + SPECIAL, ids=str)
def test_alternating_objectives_agree_in_loop_and_functional(problem, solver):
    params, schedule, task = problem
    mask = multiples(3, params)

    def pulled(tree, batch):
        return task.loss(tree, batch) + 0.1 * trees.norm(trees.sub(tree, params))

    others = {name: ~value for name, value in mask.items()}
    objectives = [Objective(pulled, mask), Objective(task.loss, others)]
    loop = solvers.minimize_loop(params, schedule, objectives, solver)
    functional = solvers.minimize_functional(params, padded(schedule), objectives, solver)
    torch.testing.assert_close(loop, functional, **CLOSE)


@pytest.mark.parametrize("length", [0.0, 0.3, torch.tensor(50.0).double(), math.inf], ids=str)
@pytest.mark.parametrize("by_tensor", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("minimize", BOTH)
def test_a_pull_is_the_penalty_that_autograd_differentiates(
    problem, minimize, away, masked, by_tensor, length
):
    params, schedule, task = problem
    origin = {name: value + 0.1 * away for name, value in params.items()}
    mask = multiples(3, params)

    def penalised(tree, batch):
        gaps = trees.sub(tree, origin)
        gaps = trees.mul(gaps, mask) if masked else gaps
        lengths = [torch.linalg.vector_norm(gap) for gap in gaps.values()]
        distance = sum(lengths) if by_tensor else trees.norm(gaps)
        return task.loss(tree, batch) + 0.2 * (distance - length).abs()

    solver = Solver("sgd", 0.1, momentum=0.9, rho=0.05)
    pull = DistancePenalty(0.2, origin, mask if masked else None, length, by_tensor)
    expected = minimize(params, schedule, [Objective(penalised)], solver)
    found = minimize(params, schedule, [Objective(task.loss, penalty=pull)], solver)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("solver", [SOLVERS[0], *SPECIAL], ids=str)
@pytest.mark.parametrize("minimize", BOTH)
def test_solvers_leave_their_inputs_bit_identical(problem, minimize, solver):
    params, schedule, task = problem
    before = {name: value.clone() for name, value in params.items()}
    minimize(params, schedule, [Objective(task.loss)], solver)
    assert_equal(params, before, 0)
    assert all(value.grad is None for value in params.values())


@pytest.mark.parametrize("minimize", BOTH)
def test_matrices_come_back_in_the_memory_order_of_the_start(problem, minimize):
    params, schedule, task = problem
    trained, _ = minimize(params, schedule, [Objective(task.loss)], Solver("sgd", 0.1))
    slope = solvers.gradient(params, schedule, task.loss)
    for name, value in params.items():
        assert trained[name].stride() == slope[name].stride() == value.stride()


@pytest.mark.parametrize("minimize", BOTH)
def test_a_client_without_steps_keeps_its_parameters(problem, minimize):
    params, schedule, task = problem
    trained, loss = minimize(params, first(schedule, 0), [Objective(task.loss)], SOLVERS[0])
    assert_equal(trained, params, 0)
    assert loss == 0


@pytest.mark.parametrize("minimize", BOTH)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_without_real_rows_moves_nothing_and_counts_in_no_mean(problem, minimize, optimizer):
    """Momentum and weight decay move parameters without a gradient."""
    params, schedule, task = problem
    momentum = 0.9 if optimizer == "sgd" else 0.0
    solver = Solver(optimizer, 0.1, momentum=momentum, weight_decay=0.1)
    padded = dataclasses.replace(schedule, sizes=None)
    index, count = schedule.index.repeat(2, 1), torch.cat([schedule.count, 0 * schedule.count])
    longer = dataclasses.replace(padded, index=index, count=count)
    both = padded, longer
    short, long = (minimize(params, rows, [Objective(task.loss)], solver) for rows in both)
    assert_equal(long[0], short[0], 0)
    assert torch.equal(long[1], short[1])


def bowl(tree, batch):
    """(x^2 + 4 y^2) / 2: at (3, 1) the gradient is (3, 4), of length 5."""
    return 0.5 * (tree["a.weight"].square() + 4 * tree["b.weight"].square()).sum()


R = math.sqrt(97)
BY_HAND = TABLES["BY_HAND"]
# The gradient (3, 4) times the weights (3, 1) has the length R, so the ascent of rho 0.5 is
# 0.5 (27, 4) / R.
BY_HAND["an adaptive ascent is that of DP-FedSAM's code"] = {
    "solver": {"rho": 0.5, "adaptive": True},
    "end": [3 - 0.1 * (3 + 13.5 / R), 1 - 0.1 * (4 * (1 + 2 / R)), 6.5],
}
# (3, 4) gives -(0.15, 0.2), then (2.85, 3.2) + 0.5 (3, 4) gives 0.955.
BY_HAND["momentum gathers gradients and no shortened steps"] = {
    "solver": {"momentum": 0.5, "step_bound": 0.35},
    "steps": 2,
    "end": [2.85 - 0.435 * 0.35 / 0.955, 0.8 - 0.52 * 0.35 / 0.955],
}


@pytest.mark.parametrize("case", BY_HAND)
@pytest.mark.parametrize("minimize", BOTH)
def test_a_step_in_a_bowl_is_that_by_hand(minimize, case):
    """Where it goes from (3, 1), and the mean loss."""
    given = BY_HAND[case]
    steps, expected = given.get("steps", 1), given["end"]
    solver = Solver(**({"optimizer": "sgd", "lr": 0.1} | given["solver"]))
    mask = {"a.weight": torch.tensor([True]), "b.weight": torch.tensor([False])}
    params = {"a.weight": torch.tensor([3.0]).double(), "b.weight": torch.tensor([1.0]).double()}
    index, count = torch.zeros(steps, 1, dtype=torch.int64), torch.ones(steps, dtype=torch.int64)
    schedule = Schedule(torch.zeros(1, 1), torch.zeros(1), index, count, (1,) * steps)
    objective = Objective(bowl, mask if "masked" in given else None)
    trained, loss = minimize(params, schedule, [objective], solver, given.get("names"))
    found = [value.item() for value in (*trained.values(), loss)]
    assert found[: len(expected)] == pytest.approx(expected)


@pytest.mark.parametrize("solver", [one for one in SPECIAL if one.step_bound < math.inf], ids=str)
@pytest.mark.parametrize("minimize", BOTH)
def test_no_step_is_longer_than_its_bound(problem, solver, minimize):
    params, schedule, task = problem
    steps, bites = [params], 0
    for count in (1, 2, 3):
        trained, _ = minimize(params, first(schedule, count), [Objective(task.loss)], solver)
        steps.append(trained)
        length = sum(value.abs().sum().item() for value in trees.sub(steps[-1], steps[-2]).values())
        assert length <= solver.step_bound * (1 + 1e-12)
        bites += length > solver.step_bound * (1 - 1e-12)
    assert bites == 3


def test_gradient_is_that_of_the_mean_loss_over_all_examples(problem):
    params, schedule, task = problem
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    F.cross_entropy(task.network.apply(leaves, schedule.x[:10]), schedule.y[:10]).backward()
    expected = {name: leaf.grad for name, leaf in leaves.items()}
    for steps in (schedule, padded(schedule)):
        found = task.gradient(params, steps)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    empty = task.gradient(params, first(schedule, 0))
    assert not any(value.any() for value in empty.values())


@pytest.mark.parametrize("minimize", BOTH)
def test_every_step_sees_its_own_key(problem, minimize):
    params, schedule, _ = problem
    seen = []

    def loss(tree, batch):
        seen.append(batch.key)
        return sum(value.sum() for value in tree.values()) * batch.key

    keyed = dataclasses.replace(schedule, keys=torch.tensor([7, 0, 2**31 - 1]))
    trained, _ = minimize(params, keyed, [Objective(loss)], Solver("sgd", 1e-9))
    assert [key.dtype for key in seen] == [torch.int64] * 3
    for name, value in params.items():
        torch.testing.assert_close(trained[name], value - 1e-9 * (2**31 + 6), rtol=1e-12, atol=0)
    assert [batch.key for batch in schedule] == [None] * 3


def test_convolutions_in_flat_memory_train_like_a_module():
    """The loop stores kernels as [out, height, width, in]; that must be invisible in the
    numbers."""
    network = networks.build(cells.Model("cnn_cifar"), (32, 32, 3), 10)
    params = network.init(torch.Generator().manual_seed(0), torch.float64)
    x = torch.randn(6, 32, 32, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(6)
    schedule = Schedule(x, y, torch.arange(6).view(2, 3), torch.tensor([3, 3]), (3, 3))

    def loss(tree, batch):
        return F.cross_entropy(network.apply(tree, batch.x), batch.y)

    solver = Solver("sgd", 0.05, momentum=0.9)
    trained, _ = solvers.minimize_loop(params, schedule, [Objective(loss)], solver)
    expected, _ = by_torch(params, schedule, loss, solver)
    torch.testing.assert_close(trained, expected, rtol=1e-10, atol=1e-13)


def test_norm_has_zero_gradient_at_zero_and_the_joint_value_elsewhere():
    tree = {"a": torch.zeros(3, requires_grad=True), "b": torch.zeros(2, requires_grad=True)}
    trees.norm(tree).backward()
    assert torch.equal(tree["a"].grad, torch.zeros(3))
    assert trees.norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}) == 5
