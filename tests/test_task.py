"""What a task computes in a lower precision when a study asks for it, and what it does not."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from pflpipe import cells
from pflpipe.learning.solvers import Batch
from pflpipe.simulation import evaluation, rounds
from simulations import simulation


def listening(task, seen):
    """The same task, with a network that notes the type of what it computes."""
    body = task.network.body

    def noted(params, x, key):
        z = body(params, x, key)
        seen.append(z.dtype)
        return z

    return dataclasses.replace(task, network=dataclasses.replace(task.network, body=noted))


@pytest.fixture
def batch():
    stream = torch.Generator().manual_seed(0)
    return Batch(torch.randn(6, 5, generator=stream), torch.arange(6) % 3)


KINDS = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(("precision", "kind"), KINDS.items())
def test_bf16_is_the_forward_pass_of_the_loss_and_nothing_else(batch, precision, kind):
    seen: list[torch.dtype] = []
    task = listening(simulation("dp_fedavg", dtype=torch.float32, precision=precision).task, seen)
    params = task.network.init(torch.Generator().manual_seed(0))
    for value in params.values():
        value.requires_grad_()
    loss = task.loss(params, batch)
    loss.backward()
    assert seen == [kind]
    assert {loss.dtype, *(value.grad.dtype for value in params.values())} == {torch.float32}
    plain = dataclasses.replace(task, precision="float32").loss(params, batch)
    assert (loss == plain) == (kind == torch.float32)
    torch.testing.assert_close(loss, plain, rtol=2e-2, atol=2e-2)


def test_a_batch_without_rows_is_not_given_to_the_network(batch):
    seen: list[torch.dtype] = []
    task = listening(simulation("dp_fedavg", dtype=torch.float32).task, seen)
    params = task.network.init(torch.Generator().manual_seed(0))
    none, some = (task.forward(params, Batch(batch.x[:n], batch.y[:n])) for n in (0, 1))
    assert len(seen) == 1
    assert [value.shape[1:] for value in none] == [value.shape[1:] for value in some]
    assert not any(map(len, none))


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 62])
@pytest.mark.parametrize("clients", [0, 3])
def test_the_loss_and_its_gradient_are_the_mean_cross_entropy_of_the_real_examples(
    classes, clients
):
    stream = torch.Generator().manual_seed(classes)
    shape = (clients, 7) if clients else (7,)
    logits = torch.randn(*shape, classes, generator=stream, dtype=torch.float64)
    labels = torch.randint(classes, shape, generator=stream)
    valid = torch.arange(7) < 5
    task = simulation("dp_fedavg").task

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return task.logits_loss(logits, Batch(logits, labels, valid))

    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    found = (torch.vmap(loss) if clients else loss)(ours, labels)
    each = F.cross_entropy(theirs.flatten(0, -2), labels.flatten(), reduction="none")
    expected = each.view(shape)[..., :5].mean(-1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_bf16_tests_models_and_takes_fisher_information_in_float32():
    seen: list[torch.dtype] = []
    world = simulation("feddpa", dtype=torch.float32, precision="bf16")
    world = dataclasses.replace(world, network=listening(world.task, seen).network)
    progress = rounds.start(world)
    task, schedule = world.task, world.train.schedule(world.work(0, 0)["all"])
    task.fisher(progress.params, schedule)
    task.score(progress.params, schedule)
    assert set(seen) == {torch.float32}
    evaluation.accuracies(world, progress)
    assert torch.bfloat16 in seen, "a personal model is trained"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn_cifar", "resnet20"])
def test_bf16_in_loop_and_vmap_agree_to_its_rounding(model):
    network = {"model": cells.Model(model), "shape": (32, 32, 3)}
    if model == "mlp":
        network = {"model": cells.Model("mlp", (4,)), "shape": (5,)}
    ends = []
    for backend, precision in (("loop", "bf16"), ("vmap", "bf16"), ("loop", "float32")):
        words = {"backend": backend, "precision": precision, "dtype": torch.float32, "lr": 0.01}
        world = simulation("dp_fedavg", **words, **network, sizes=(4, 3), local_epochs=1)
        progress = rounds.start(world)
        rounds.one_round(world, progress)
        ends.append(torch.cat([value.reshape(-1) for value in progress.params.values()]))
    loop, grouped, plain = ends
    assert not torch.equal(loop, plain)
    assert (loop - grouped).abs().max() < 2e-3
    assert (loop - plain).abs().max() < 1e-2


def test_networks_of_float64_are_not_rounded():
    world = simulation("dp_fedavg", precision="bf16")
    params = world.network.init(torch.Generator().manual_seed(0), torch.float64)
    batch = next(iter(world.train.schedule(world.work(0, 0)["train"])))
    plain = simulation("dp_fedavg").task.loss(params, batch)
    assert torch.equal(world.task.loss(params, batch), plain)
