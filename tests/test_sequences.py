"""Recurrent layers and attention of a user's module: they compute what torch's compute, and train
with the same numbers for one client and for many at once."""

import copy
import functools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tabled
from pflpipe import cells
from pflpipe.code import user_files
from pflpipe.learning import sequences
from pflpipe.simulation import rounds
from simulations import CLASSES, finished, open_plan, plan, simulation

STEPS, CHANNELS = 4, 5
SMALL = {"shape": (STEPS, CHANNELS), "sizes": (3, 1), "local_epochs": 1}
TABLES = tabled.table("test_sequences")
NETWORKS = TABLES["NETWORKS"]


@pytest.fixture
def network(tmp_path, monkeypatch):
    """Return a function that writes a file with one of the networks and gives its model."""
    monkeypatch.chdir(tmp_path)

    def network(name):
        Path("net.py").write_text(TABLES["TEXT"].format(**NETWORKS[name]))
        return cells.Model("net.py:Net")

    return network


def of_torch(layer):
    """The layer in float64 and the one that it is turned into, both in evaluation."""
    layer = layer.double().eval()
    ours = copy.deepcopy(layer)
    for part in list(ours.modules()):
        sequences.adapt(part, nn.Dropout)
    return layer, ours.eval()


check_same = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("settings", TABLES["settings of recurrent layers"])
def test_a_recurrent_layer_computes_what_torch_computes(kind, settings):
    plain, ours = of_torch(kind(CHANNELS, 4, **settings))
    assert type(ours) is sequences.Recurrent
    x = random(3, STEPS, CHANNELS)
    check_same(plain(x), ours(x))
    states = plain.num_layers * (1 + plain.bidirectional)
    begin = random(states, 3 if plain.batch_first else STEPS, 4, seed=1)
    given = (begin, 2 * begin) if kind is nn.LSTM else begin
    check_same(plain(x, given), ours(x, given))


def test_a_projection_and_another_activation_are_those_of_torch():
    for layer in (nn.LSTM(CHANNELS, 4, 2, proj_size=2), nn.RNN(CHANNELS, 4, nonlinearity="relu")):
        plain, ours = of_torch(layer)
        check_same(plain(random(3, STEPS, CHANNELS)), ours(random(3, STEPS, CHANNELS)))


@pytest.mark.parametrize("settings", [{"batch_first": True}, {"bias": False, "dropout": 0.5}])
def test_attention_computes_what_torch_computes(settings):
    plain, ours = of_torch(nn.MultiheadAttention(8, 2, **settings))
    assert type(ours) is sequences.Attention
    q, kv = random(3, STEPS, 8), random(3, 4, 8, seed=1)
    if not plain.batch_first:
        q, kv = q.transpose(0, 1), kv.transpose(0, 1)
    ahead, padded = torch.ones(STEPS, STEPS).triu(1).bool(), torch.zeros(3, 4).bool()
    padded[1, 2:] = True
    for given, options in (
        ((q, kv, kv), {}),
        ((q, kv, kv), {"need_weights": False}),
        ((q, kv, kv), {"average_attn_weights": False, "key_padding_mask": padded}),
        ((q, q, q), {"attn_mask": ahead, "is_causal": True}),
        ((q, kv, kv), {"attn_mask": random(3 * 2, STEPS, 4)}),
    ):
        check_same(plain(*given, **options), ours(*given, **options))


def test_attention_to_other_sizes_and_a_stack_of_layers_are_those_of_torch():
    plain, ours = of_torch(nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True))
    given = random(3, STEPS, 8), random(3, 4, 5), random(3, 4, 3)
    check_same(plain(*given), ours(*given))
    for first in (False, True):
        layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=first, batch_first=True)
        plain, ours = of_torch(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        check_same(plain(given[0]), ours(given[0]))


@pytest.mark.parametrize(
    ("method", "name"), [*(("dp_fedavg", name) for name in NETWORKS), ("feddpa", "gru")]
)
def test_a_network_trains_with_the_same_numbers_for_one_client_and_for_many(network, name, method):
    given = SMALL | {"model": network(name), "plan": plan(2, rounds=2)}
    worlds = [simulation(method, backend=backend, **given) for backend in ("loop", "vmap")]
    left, right = map(finished, worlds)
    start = rounds.start(worlds[0]).params
    assert all(not torch.equal(left.params[key], start[key]) for key in start)
    for one, other in ((left.params, right.params), (dict(left.states), dict(right.states))):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["lstm", "gru", "transformer"])
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_without_dropout_it_trains_as_plain_torch(network, name, backend, monkeypatch):
    """FedAvg of one client is gradient descent."""
    layer = NETWORKS[name]["layer"].replace("8, batch", "8, dropout=0.0, batch")
    monkeypatch.setitem(NETWORKS[name], "layer", layer)
    one = {"shape": (STEPS, CHANNELS), "sizes": (7,), "plan": open_plan(1, rounds=2)}
    steps = {"batch_size": 0, "local_epochs": 2, "lr": 0.5}
    world = simulation("fedavg", model=network(name), backend=backend, **one, **steps)
    params = rounds.start(world).params
    plain = user_files.load("net.py:Net")((CHANNELS, STEPS), CLASSES).double()
    paths = list(dict(plain.named_parameters()))
    plain.load_state_dict(dict(zip(paths, params.values(), strict=True)))
    rows = torch.from_numpy(world.split.train[0])
    x, y = world.train.x[rows].movedim(-1, 1), world.train.y[rows]
    steps = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(4):
        steps.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        steps.step()
    done = finished(world).params
    for path, value in zip(paths, done.values(), strict=True):
        torch.testing.assert_close(value, plain.get_parameter(path).data, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["lstm in two layers", "attention", "transformer"])
def test_dropout_follows_from_the_key_and_is_left_out_of_evaluation(network, name):
    world = simulation("dp_fedavg", model=network(name), shape=(STEPS, CHANNELS))
    params, x = rounds.start(world).params, world.train.x[:4]
    one, again, other = (world.network.body(params, x, torch.tensor(key)) for key in (7, 7, 8))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    tested = world.network.body(params, x, None)
    assert not torch.equal(one, tested)
    assert torch.equal(tested, world.network.body(params, x, None))
    fewer = world.network.body(params, x[:2], torch.tensor(7))
    torch.testing.assert_close(fewer, one[:2], rtol=1e-12, atol=1e-12)
