"""differentiate and below: the gradients of torch.func.grad, alone, for many clients at once and
for their examples."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from pflpipe.learning.gradients import below, differentiate

CLIENTS, EXAMPLES, P = 4, 5, 3


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def bend(point: Tensor, x: Tensor, pull: Tensor) -> Tensor:
    """A scalar whose gradient depends on everything."""
    return ((point * x).sum() - 1).tanh() + 0.1 * (point * pull).square().sum()


def train(start: Tensor, x: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """Three steps of descent: the point is shared by all clients in the first only."""
    for _ in range(3):
        (slope,), (value,) = differentiate(lambda point, x: (bend(point, x, pull),), [start], x)
        start = start - slope
    return start, value


def test_one_function_is_differentiated_in_all_its_points():
    a, b, x = numbers(P), numbers(1, P), numbers(P, P)
    slopes, (value, twice) = differentiate(lambda a, b, x: ((a @ x * b).sum(), 2 * x), [a, b], x)
    torch.testing.assert_close(slopes, (x @ b[0], (a @ x)[None]))
    torch.testing.assert_close(value, (a @ x * b).sum())
    assert torch.equal(twice, 2 * x)


@pytest.mark.parametrize("shared_start", [True, False])
def test_clients_together_take_the_steps_of_each_alone(shared_start):
    starts, x, pull = numbers(CLIENTS, P), numbers(CLIENTS, 1, P), numbers(P, CLIENTS).T
    if shared_start:
        starts = starts[:1].expand(CLIENTS, P)
    begin, place = (starts[0], None) if shared_start else (starts, 0)
    found, values = vmap(train, (place, 0, 0))(begin, x, pull)
    for client in range(CLIENTS):
        point = starts[client]
        for _ in range(3):
            value = bend(point, x[client], pull[client])
            point = point - grad(bend)(point, x[client], pull[client])
        torch.testing.assert_close(found[client], point, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(values[client], value, rtol=1e-13, atol=1e-15)


def test_gradients_of_every_example_of_every_client():
    points, x = numbers(CLIENTS, P), numbers(CLIENTS, EXAMPLES, P)

    def of_client(point: Tensor, rows: Tensor) -> Tensor:
        def of_row(x: Tensor) -> Tensor:
            return differentiate(lambda w, x: (bend(w, x, point),), [point], x)[0][0]

        return vmap(of_row)(rows)

    found = vmap(of_client)(points, x)
    for client in range(CLIENTS):
        for row in range(EXAMPLES):
            expected = grad(bend)(points[client], x[client, row], points[client])
            torch.testing.assert_close(found[client, row], expected, rtol=1e-13, atol=1e-15)


def test_nothing_is_recorded_for_the_caller():
    (slope,), (value,) = differentiate(lambda w: (w.square().sum(),), [numbers(P).requires_grad_()])
    assert not slope.requires_grad
    assert not value.requires_grad


def descend(start: Tensor, x: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """The three steps of ``train``, below vmap in one go."""

    def steps(lift, point: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(3):
            leaf = point.detach().requires_grad_()
            with torch.enable_grad():
                value = lift(lambda point, x: bend(point, x, pull))(leaf, x)
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            point = point - slope
        return point, value.detach()

    return below(steps, start, x)


@pytest.mark.parametrize("dims", [(None, 0, 0), (0, None, 0), (0, 0, None), (1, 0, 0)])
def test_a_loop_below_vmap_takes_the_steps_of_each_client_alone(dims):
    values = [numbers(CLIENTS, P), numbers(CLIENTS, P) + 1, numbers(CLIENTS, P) - 1]
    of_client = [
        [value[0 if dim is None else client] for value, dim in zip(values, dims, strict=True)]
        for client in range(CLIENTS)
    ]
    pairs = zip(values, dims, strict=True)
    stacked = [value[0] if dim is None else value.movedim(0, dim) for value, dim in pairs]
    found = vmap(descend, dims)(*stacked)
    expected = [train(*each) for each in of_client]
    for both in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(both[0], torch.stack(both[1]), rtol=1e-13, atol=1e-15)
    alone = descend(*of_client[0])
    torch.testing.assert_close(alone, expected[0], rtol=1e-13, atol=1e-15)


def test_a_loop_below_two_vmaps_takes_the_steps_of_each_client_alone():
    start, x, pull = numbers(2, CLIENTS, P), numbers(CLIENTS, P), numbers(2, P)
    found, _ = vmap(lambda start, pull: vmap(descend, (0, 0, None))(start, x, pull))(start, pull)
    for group in range(2):
        for client in range(CLIENTS):
            alone, _ = train(start[group, client], x[client], pull[group])
            torch.testing.assert_close(found[group, client], alone, rtol=1e-13, atol=1e-15)
