"""The Python door: what a notebook needs is there, and is what the pipeline does."""

import dataclasses
import inspect
import math
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pflpipe
import tabled
import warm
from called import called
from pflpipe import Cell, Model, Partition, Privacy, Server, Training, errors
from pflpipe.code.dependencies import START
from pflpipe.data import datasets, partition
from pflpipe.data.contract import STANDARDISED
from pflpipe.errors import ConfigError, DataError, PflpipeError, PrivacyError
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.learning import networks
from pflpipe.methods import registry
from pflpipe.privacy import mechanism
from pflpipe.privacy.noise import normal
from pflpipe.seeds import release_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.evaluation import accuracies
from pflpipe.simulation.runs import Inputs, load_final, simulate
from pflpipe.simulation.runs import train as train_files
from pflpipe.study.plans import CLASSES_FOUND, plan_of
from test_keys import OTHER

ROOT = Path(__file__).resolve().parent.parent
MLP, BUDGET = Model("mlp", (4,)), Privacy(epsilon=8, delta=1e-3, clip_norm=0.5)
OWN_DATASET = TensorDataset(torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64))
LOCAL = Training(rounds=3, local_epochs=1, batch_size=4, optimizer="sgd", lr=0.2)


def clients(count: int = 5, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients with 8 to 12 examples of 6 numbers and 3 classes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [8 + i for i in range(count)]
    draw = {"generator": generator}
    return [(torch.randn(n, 6, **draw), torch.randint(0, 3, (n,), **draw)) for n in sizes]


USUAL = {"model": MLP, "training": LOCAL, "privacy": BUDGET, "classes": 3, "device": "cpu"}
QUIET = {"privacy": Privacy(noise_multiplier=0.0, delta=1e-3, clip_norm=0.5)}


def train(method="dp_fedavg", shards=None, **changes):
    return pflpipe.train(method, clients() if shards is None else shards, **USUAL | changes)


def federation(method="dp_fedavg", shards=None, **changes):
    return pflpipe.federation(method, clients() if shards is None else shards, **USUAL | changes)


def same(one, other):
    """Whether two trees have the same bits."""
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_every_public_name_is_there_and_documented():
    for name in pflpipe.__all__:
        value = getattr(pflpipe, name)
        if callable(value):
            assert inspect.getdoc(value), name
    assert set(pflpipe.__all__) <= set(dir(pflpipe))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pflpipe.nonsense


@pytest.mark.slow
def test_ten_lines_train_feddpa_on_own_tensors_and_print_accuracies_and_ledger(tmp_path):
    example = ROOT / "docs" / "examples" / "own_tensors.py"
    lines = [line for line in example.read_text().splitlines() if line.strip()]
    assert len(lines) <= 10
    assert example.read_text() in (ROOT / "docs/reference/api.md").read_text()
    done = called(warm.interpreter(), example, folder=tmp_path)
    assert "'personal_own': " in done.stdout
    assert "claim='certified'" in done.stdout
    assert "epsilon_central=7.99" in done.stdout


def test_a_result_is_shown_in_three_lines_accuracy_epsilon_and_claim():
    found = train("fedper")
    accuracy, epsilon, claim = repr(found).split("\n")
    own, common = found.accuracies["personal_own"], found.accuracies["personal_common"]
    # FedPer has no global model, whose accuracy is NaN.
    assert accuracy.endswith(f": personal_own {own:.1f}, personal_common {common:.1f}")
    assert "no epsilon covers it" in accuracy
    assert epsilon == "epsilon: 8 at delta 0.001"
    assert claim == "claim: certified"
    assert found.simulation.plan.mechanism == "gaussian", "what a budget alone means"
    assert 7.9 < found.ledger.epsilon_central <= 8
    assert len(found.clients) == len(clients())
    assert repr(found.personal(0)).startswith("personal model: a diagnostic")
    changes = {"claim": "nominal", "epsilon_nominal": 8.0, "epsilon_central": math.inf}
    nominal = dataclasses.replace(found.ledger, **changes)
    lines = repr(dataclasses.replace(found, ledger=nominal)).split("\n")
    assert lines[1:] == ["epsilon: ∞ at delta 0.001, stated as 8.0", "claim: nominal"]
    assert repr(train("fedavg", privacy=None)).endswith("\nepsilon: none\nclaim: none")


def test_two_calls_draw_other_noise_and_a_secret_repeats_a_run():
    one, other = train(), train()
    assert one.simulation.key != other.simulation.key
    assert not same(one.params, other.params)
    assert same(train(secret="mine").params, train(secret="mine").params)


OWN = registry.info("dp_fedavg").factory()
NETWORK = networks.build(MLP, (6,), 3)
OWN_NAMES = {"method": OWN, "model": NETWORK, "method_name": "mine", "model_name": "net"}
ADAPTIVE = dataclasses.replace(BUDGET, clip_quantile=0.5, clip_bit_noise=1.0)
OF_ADAPTIVE = {"clip_quantile", "clip_lr", "clip_bit_noise"}
WHOLE, SUMMED = (Privacy(n, 8, delta=1e-3, clip_norm=0.5) for n in ("discrete_gaussian", "skellam"))
OF_WHOLE, OF_SUMMED = {"noise"}, {"bits", "dropout"}
OF_ANOTHER = {"mechanism", "noise_multiplier", "departures", *OF_WHOLE, *OF_SUMMED}
ERRORS = ("squared", "absolute")
NUMBERS = {"shards": [(x, y.float()) for x, y in clients()], "classes": None}
NO_SETTINGS = {"secret", "device", "backend", "allow_large_delta"}
"""Of the parameters of ``federation``: what a key is made with, how a run is computed, a word."""


def each(block, base, names):
    """Calls with another value of each of these fields of a block."""
    others = {name: OTHER[block][name] for name in sorted(names)}
    return [{block: dataclasses.replace(base, **{name: others[name]})} for name in others]


SETTINGS = {
    "method": [{}, {"method": "feddpa"}, {"method": OWN, "method_name": "dp_fedavg"}],
    "method_name": [OWN_NAMES, OWN_NAMES | {"method_name": "other"}],
    "clients": [{}, {"shards": clients(6)}, {"shards": [(x[:, :5], y) for x, y in clients()]}],
    "model": [
        *({}, {"model": Model("mlp", (5,))}, {"model": NETWORK, "model_name": "mlp"}),
        {"model": networks.build(Model("mlp", (5,)), (6,), 3), "model_name": "mlp of 5"},
    ],
    "model_name": [OWN_NAMES, OWN_NAMES | {"model_name": "other"}],
    "training": [
        *({}, *each("training", LOCAL, set(OTHER["training"]) - {"loss", "augment"})),
        *(NUMBERS | {"training": dataclasses.replace(LOCAL, loss=f"{n}_error")} for n in ERRORS),
    ],
    "privacy": [
        *({}, {"privacy": ADAPTIVE}),
        {"privacy": Privacy("laplace", epsilon=8, delta=1e-3, clip_norm=0.5)},
        {"privacy": Privacy(noise_multiplier=1.0, delta=1e-3, clip_norm=0.5)},
        *each("privacy", BUDGET, set(OTHER["privacy"]) - OF_ADAPTIVE - OF_ANOTHER),
        *each("privacy", ADAPTIVE, OF_ADAPTIVE),
        *({"privacy": WHOLE}, *each("privacy", WHOLE, OF_WHOLE)),
        *({"privacy": SUMMED}, *each("privacy", SUMMED, OF_SUMMED)),
    ],
    "server": [
        *({}, {"server": Server(lr=0.5)}, {"server": Server("momentum", momentum=0.5)}),
        *({"server": Server(name)} for name in ("momentum", "adam", "yogi")),
        *each("server", Server("adam"), set(OTHER["server"]) - {"optimizer", "momentum"}),
    ],
    "hyperparameters": [{"method": "feddpa"}, {"method": "feddpa", "hyperparameters": {"tau": 1}}],
    "tests": [{}, {"tests": clients()}],
    "test_fraction": [{}, {"test_fraction": 0.3}],
    "classes": [{}, {"classes": 4}],
    "seed": [{}, {"seed": 1}],
    "dtype": [{}, {"dtype": torch.float64}],
}
"""For every setting calls that differ in it alone."""


def test_every_parameter_of_a_federation_is_a_setting_or_changes_no_release():
    parameters = set(inspect.signature(pflpipe.federation).parameters)
    assert parameters == {*SETTINGS, *NO_SETTINGS}


@pytest.mark.parametrize("name", SETTINGS)
def test_calls_with_one_secret_that_differ_in_one_setting_share_no_noise(name):
    """Of 1000 numbers each: |r| of independent ones exceeds 0.2 with a chance of 2e-10."""
    keys = [federation(secret="mine", **changes).key for changes in SETTINGS[name]]
    assert len(keys) > 1
    draws = [normal(release_rng(key, "noise", 0), (1000,)) for key in keys]
    found = np.corrcoef(draws)[np.triu_indices(len(keys), 1)]
    assert np.abs(found).max() < 0.2, name


NO_OTHER_RELEASE = [
    *({"backend": "vmap"}, {"allow_large_delta": True}, {"hyperparameters": {}}),
    {"shards": clients(seed=1)},
    {"shards": [(x[:3], y[:3]) for x, y in clients()]},
    {"shards": [(x * math.nan, y + 7) for x, y in clients()]},
    {"privacy": dataclasses.replace(BUDGET, mechanism="gaussian")},
]


@pytest.mark.parametrize("changes", NO_OTHER_RELEASE)
def test_a_key_follows_from_no_value_of_the_data_and_from_nothing_that_changes_no_release(changes):
    assert federation(secret="a", **changes).key == federation(secret="a", backend="loop").key


UNKNOWN = [("method", registry.info("fedprox").factory()), ("model", NETWORK)]


@pytest.mark.parametrize(("name", "what"), [*UNKNOWN, ("model", lambda **to: small_net(**to))])
def test_a_secret_needs_a_name_for_what_cannot_be_known_such_as_closures(name, what):
    federation(**{name: what})  # fresh noise needs none
    with pytest.raises(ConfigError, match=f"{name}_name is missing") as caught:
        federation(secret="mine", **{name: what})
    assert "\n" not in str(caught.value)


def test_without_noise_and_clip_it_is_fedavg_on_each_clients_own_rows():
    """One round of one full-batch step: the mean over clients of the weights after their step."""
    shards = clients(3)
    training = Training(rounds=1, local_epochs=1, batch_size=0, optimizer="sgd", lr=0.2)
    loose = Privacy(noise_multiplier=0.0, delta=1e-3, clip_norm=1e9)
    settings = {"training": training, "privacy": loose, "tests": shards, "dtype": torch.float64}
    result = train("dp_fedavg", shards, model=Model("mlp", ()), **settings)
    begin = rounds.start(result.simulation).params
    steps = []
    for x, y in shards:
        w = {name: value.clone().requires_grad_() for name, value in begin.items()}
        logits = x.double() @ w["head.weight"].T + w["head.bias"]
        torch.nn.functional.cross_entropy(logits, y).backward()
        steps.append({name: value.detach() - 0.2 * value.grad for name, value in w.items()})
    for name, value in result.params.items():
        expected = torch.stack([step[name] for step in steps]).mean(0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_held_out_rows_are_drawn_without_regard_to_class():
    """Class 0 is seen once by each of 500 clients: it is held out as often as any other example."""
    shard = torch.zeros(10, 4), torch.tensor([0] + [1] * 5 + [2] * 4)
    world = federation("fedavg", [shard] * 500, privacy=None)
    rate = (world.test.y[np.concatenate(world.split.test)] == 0).sum() / 500
    assert abs(rate - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 500)


def test_held_out_rows_take_no_part_in_training():
    simulation = federation()
    split = simulation.split
    ends = np.cumsum([len(y) for _, y in clients()])
    labels = [y for _, y in clients()]
    for train_rows, test_rows, end, y in zip(split.train, split.test, ends, labels, strict=True):
        assert len(test_rows) == round(0.2 * len(y))
        assert sorted([*train_rows, *test_rows]) == list(range(end - len(y), end))
    broken = simulation.test.x.clone()
    broken[np.concatenate(split.test)] = math.nan
    simulation.train.x.copy_(broken)
    done = rounds.run(simulation, rounds.start(simulation))
    assert all(bool(torch.isfinite(value).all()) for value in done.params.values())
    assert done.diverged_round is None


def test_products_have_the_precision_that_a_call_asks_for():
    for precision in ("tf32", "float32"):
        federation(training=dataclasses.replace(LOCAL, precision=precision))
        is_less = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        assert is_less == ((precision == "tf32"),) * 2


def test_own_hooks_and_a_network_object_are_taken_as_they_are():
    named = train(**QUIET)
    assert same(named.params, train(OWN, **QUIET).params)
    assert same(named.params, train(model=named.simulation.network, **QUIET).params)


def small_net(image_shape, classes):
    return nn.Sequential(nn.Linear(*image_shape, 4), nn.ReLU(), nn.Linear(4, classes))


def test_a_torch_module_is_taken_as_a_function_that_makes_it_or_as_it_is(here):
    code = f"from torch import nn\n\n\n{inspect.getsource(small_net)}"
    Path("net.py").write_text(code)
    wanted = train(model="net.py:small_net", **QUIET).params
    made = small_net((6,), 3)
    begin = rounds.start(federation(model=small_net)).params
    made.load_state_dict(dict(zip(made.state_dict(), begin.values(), strict=True)))
    for model in (small_net, made):
        found = train(model=model, **QUIET)
        assert same(wanted, found.params)
        assert not found.simulation.reviewed
        assert found.ledger.claim == "unreviewed"
        assert [part.kind for part in found.simulation.code] == ["network", START]
        assert ("given module" in str(found.ledger.warnings)) == (model is made)
    assert torch.equal(made[0].weight, begin["0.weight"]), "a copy is trained"
    with torch.no_grad():
        made[0].weight.add_(1)
    again = rounds.start(federation(model=made)).params
    assert torch.equal(again["0.weight"], made[0].weight), "as it is now"
    before = federation(model=made, secret="mine").key
    with torch.no_grad():
        made[0].weight.add_(1)
    assert federation(model=made, secret="mine").key != before


SOME = torch.arange(4)


CHANGES = {
    "all NaN": lambda x, y: (x * math.nan, y),
    "some NaN": lambda x, y: (x.index_fill(0, SOME[3:], math.nan), y),
    "an infinity": lambda x, y: (x.index_fill(1, SOME[:1], math.inf), y),
    "beyond float32": lambda x, y: (x.double() + 1e300, y),
    "a label that is no class": lambda x, y: (x, y.index_fill(0, SOME, 7)),
    "a negative label": lambda x, y: (x, y.index_fill(0, SOME, -1)),
    "no examples": lambda x, y: (x[:0], y[:0]),
}
"""What one client may hold that nobody can train on."""
HONEST = [0, 1, 3, 4, 6, 8, 10, 12]
ALL_STRANGE = {2: "all NaN", 5: "some NaN", 7: "an infinity", 9: "beyond float32"}
ALL_STRANGE |= {11: "a label that is no class", 13: "a negative label", 14: "no examples"}
"""Client -> what it holds, in a federation of 15."""


def strangers(of=None):
    """Clients of whom some hold what nobody can train on, by default one of each kind."""
    shards = clients(15 if of is None else 5)
    for client, what in (ALL_STRANGE if of is None else {2: of}).items():
        shards[client] = CHANGES[what](*(part.clone() for part in shards[client]))
    return shards


NON_PRIVATE = {"method": "fedavg", "privacy": None}
THREE = np.arange(3)
MASKED = {"shards": [(np.ma.masked_less(np.ones((3, 6)), 0), THREE)]}
TEXT = {"shards": [(np.ones((3, 6)), np.array(["a", "b", "c"], dtype=object))]}
FROM_1 = NON_PRIVATE | {"shards": [(np.zeros((3, 6)), THREE + 1)], "classes": None}
WIDER = {"shards": [*clients(1), (torch.zeros(3, 7), torch.arange(3))]}
REFUSED = tabled.table("test_api")
LARGE_DELTA = dataclasses.replace(BUDGET, delta=0.2)
FLIPPED = dataclasses.replace(LOCAL, augment=("flip",))
COMPLEX = {"shards": [(np.ones((3, 6), np.complex64), THREE)]}


def told(shards, replayed=None, method="dp_fedavg", **changes):
    """Return what clients send in every round, which of them counted as zero, the releases, the
    states and the run, of 2 rounds in which ``replayed``, the releases of another run, are shown
    to the clients."""
    sent, refused, shown = [], [], []

    def release(generator, uploads, *rest):
        found = mechanism.release(generator, uploads, *rest)
        if replayed:
            found = dataclasses.replace(found, sum=replayed[len(shown)])
        sent.append(uploads.update)
        refused.append(found.nonfinite.tolist())
        shown.append(found.sum)
        return found

    changes["training"] = dataclasses.replace(LOCAL, rounds=2)
    world = federation(method, shards, secret="mine", backend="loop", **changes)
    world = dataclasses.replace(world, release=release)
    return sent, refused, shown, rounds.run(world, rounds.start(world))


WIDE = Model("mlp", (6, 5))
PRIVATE = [name for name in registry.NAMES if registry.info(name).about.private]


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
def test_whatever_a_client_holds_a_private_run_ends_and_nobody_elses_message_moves(method):
    """The same releases are shown in both worlds, so that others' messages must be equal to the
    bit."""
    needs = registry.info(method).about.needs
    model = Model("embedding", (4,), items=6) if "items" in needs else WIDE

    def run(shards, replayed=None):
        if "two_classes" in needs:  # the third is the second one
            shards = [(x, y.where(y != 2, 1)) for x, y in shards]
        classes = 2 if "two_classes" in needs else 3
        return told(shards, replayed, method=method, model=model, classes=classes)

    usual = run(clients(15))
    sent, refused, _, done = run(strangers(), usual[2])
    for rows, before in zip(sent, usual[0], strict=True):
        assert rows.keys() == before.keys()
        for name, value in rows.items():
            assert torch.equal(value[HONEST], before[name][HONEST]), name
    assert {client for row in refused for client in np.flatnonzero(row)} <= set(ALL_STRANGE)
    assert all(row[2] and row[9] for row in refused), "all of their rows are not finite"
    assert same(done.params, usual[3].params)
    states = dict(usual[3].states)
    for name, value in dict(done.states).items():
        assert torch.equal(value[HONEST], states[name][HONEST]), name


def test_clients_values_change_no_shape_no_name_and_no_word_of_a_private_run(capfd):
    usual, found = (train(secret="mine", shards=some) for some in (clients(15), strangers()))
    assert found.ledger == usual.ledger
    assert found.simulation.network.shapes == usual.simulation.network.shapes
    assert found.simulation.key == usual.simulation.key
    for name, value in found.params.items():
        assert value.shape == usual.params[name].shape
        assert bool(torch.isfinite(value).all()), "the message counts as zero"
    assert found.accuracies.keys() == usual.accuracies.keys()
    assert [set(row) for row in found.clients] == [set(row) for row in usual.clients]
    assert [set(row) for row in found.progress.rows] == [set(row) for row in usual.progress.rows]
    assert capfd.readouterr() == ("", "")


def test_a_client_trains_on_what_it_has_and_only_what_cannot_be_learned_counts_as_wrong():
    """A label that is no class is a row of NaN: it is in no mean of a loss that is finite, and it
    is never a right answer."""
    shards = clients()
    shards[2][1][0] = 7
    world = federation(tests=shards, **QUIET)
    done = rounds.run(world, rounds.start(world))
    assert done.diverged_round is None
    assert [row["nonfinite_uploads"] for row in done.rows] == [0, 0, 0]
    assert bool(torch.isnan(world.test.x[world.split.test[2][0]]).all())
    rows = accuracies(world, done)
    right = rows[2]["personal_own"] / 100 * len(shards[2][1])
    assert right == pytest.approx(round(right))
    assert right <= len(shards[2][1]) - 1


def test_the_callers_own_tensors_stay_as_they_are():
    shards = strangers("a label that is no class")
    before = [part.clone() for shard in shards for part in shard]
    train(shards=shards)
    after = [part for shard in shards for part in shard]
    assert all(map(torch.equal, after, before))


def test_the_head_of_a_private_run_has_the_classes_that_are_said_or_those_of_the_network():
    for changes in ({}, {"model": NETWORK, "classes": None}):
        for shards in (clients(), strangers("a label that is no class")):
            world = federation(shards=shards, **changes)
            assert world.network.shapes["head.weight"][0] == 3
    open_world = federation("fedavg", privacy=None, classes=None)
    assert open_world.network.shapes["head.weight"][0] == 3, "found, as nothing is private"


REFUSALS = [
    *((changes, getattr(errors, kind), words) for changes, kind, words in REFUSED),
    ({"privacy": Privacy(epsilon=8, clip_norm=1.0)}, ConfigError, "privacy.delta is missing"),
    ({"privacy": Privacy(epsilon=8, delta=1e-3)}, ConfigError, "privacy.clip_norm is missing"),
    ({"privacy": LARGE_DELTA}, PrivacyError, "below 1/M = 0.2; .*all"),
    ({"tests": clients(2)}, DataError, "tests; got '2 pairs'; expected 5"),
    ({"shards": [(torch.zeros(3, 6), torch.zeros(2))]}, DataError, r"clients\[0\]"),
    ({"shards": [(torch.zeros(3, 6), torch.zeros(3))]}, DataError, "whole numbers"),
    (MASKED, DataError, r"clients\[0\]: x; got 'a masked array'; .* \.filled\(value\)"),
    (TEXT, DataError, r"clients\[0\]: y; got 'an array of Python objects \(str\)"),
    (COMPLEX, DataError, r"clients\[0\]: x; got 'complex64'; expected real numbers"),
    (FROM_1, DataError, "got 'labels 1 to 3, none of them 0'; .* the classes .* classes = 4"),
    ({"model": NETWORK, "classes": 4}, ConfigError, "classes; got 4; expected 3, the outputs"),
    (NON_PRIVATE | {"shards": strangers("all NaN")}, DataError, "finite numbers"),
    (NON_PRIVATE | {"shards": strangers("a negative label")}, DataError, "labels; got -1"),
    (WIDER, DataError, "shapes of an example"),
    ({"model": nn.Linear(6, 3)}, ConfigError, "model Linear; got 'no nn.Linear layer'"),
    ({"model": nn.Linear}, ConfigError, r"model Linear cannot be made; .*image_shape=\(6,\)"),
    ({"model": lambda: nn.Linear(6, 3)}, ConfigError, "model <lambda> cannot be made"),
    ({"model": nn.Sequential(nn.Linear(6, 4))}, ConfigError, "a head with 4 outputs"),
    ({"method": pflpipe.Method}, ConfigError, "method; got 'Method'; .* call a function"),
    ({"training": FLIPPED}, ConfigError, r"training.augment; got \['flip'\]; expected none:"),
    ({"shards": dict(enumerate(clients()))}, DataError, r"clients; got 'dict'; .*\.values\(\)"),
    ({"tests": dict(enumerate(clients()))}, DataError, "tests; got 'dict'"),
    ({"shards": OWN_DATASET}, DataError, "clients; got 'TensorDataset'; expected a list with"),
    ({"shards": [TensorDataset(torch.zeros(0))]}, DataError, r"clients\[0\]; .*without items"),
    ({"shards": [TensorDataset(torch.zeros(2))]}, DataError, r"clients\[0\]; got '1 items'"),
    ({"shards": DataLoader(OWN_DATASET)}, DataError, "clients; got 'DataLoader'; .* join"),
    ({"shards": [DataLoader(OWN_DATASET)]}, DataError, r"clients\[0\]; got 'DataLoader'"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), REFUSALS)
def test_what_cannot_be_run_is_refused_in_one_line(changes, kind, words):
    with pytest.raises(kind, match=words) as caught:
        train(**changes)
    assert "\n" not in str(caught.value)
    assert issubclass(kind, PflpipeError)


def test_reversed_rows_another_byte_order_and_datasets_are_taken_as_what_they_are():
    plain = [(x.numpy(), y.numpy()) for x, y in clients()]
    turned = [(x[::-1].copy()[::-1].astype(">f8"), y.astype(">i4")) for x, y in plain]
    expected = federation().train
    for shards in (turned, [TensorDataset(*pair) for pair in clients()]):
        found = federation(shards=shards).train
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.y, expected.y)


def test_a_delta_of_one_over_m_is_accepted_by_those_who_say_so():
    assert federation(privacy=LARGE_DELTA, allow_large_delta=True).plan.delta == 0.2


@pytest.mark.slow
def test_a_cell_of_a_study_has_the_bits_of_the_pipeline(tmp_path):
    study = pflpipe.load_study("quickstart", ROOT / "studies")
    cell = next(cell for cell in study.cells if cell.method == "feddpa")
    file = tmp_path / "digits.npz"
    datasets.prepare("digits", None, tmp_path, file)
    cell = dataclasses.replace(cell, training=dataclasses.replace(cell.training, rounds=2))
    result = pflpipe.run(cell, tmp_path, device="cpu")

    inputs = Inputs(tmp_path / "plan.json", tmp_path / "split.npz", file)
    partition.make(datasets.load_arrays(file), cell.partition, cell.seed).save(inputs.partition)
    write_json(inputs.plan, {"plan": to_json(plan_of(cell, None).plan)})
    how, run = {"device": "cpu", "backend": "auto"}, registry.run_cell(cell)
    train_files(run, inputs, tmp_path / "run", tmp_path, checkpoint_seconds=60, code="", **how)
    trained = load_final(tmp_path / "run", simulate(cell, inputs, **how))
    assert same(trained.params, result.params)
    assert result.ledger.epsilon_central == pytest.approx(cell.privacy.epsilon)


def test_a_cell_is_warned_of_classes_that_labels_and_of_scales_that_rows_have_told(tmp_path):
    rows = np.random.default_rng(0).gamma(2.0, 3.0, (60, 42))
    rows = {"declared": rows / 9.81, "found": (rows - rows.mean(0)) / rows.std(0)}
    arrays = {"train_labels": np.arange(60) % 6, "train_users": np.arange(60) // 12}
    budget = dataclasses.replace(BUDGET, mechanism="gaussian")
    cell = Cell("mine", Partition("natural", 5), MLP, LOCAL, budget, "dp_fedavg")
    warned = [CLASSES_FOUND, STANDARDISED]
    for name, classes in (("declared", {"classes": 6}), ("found", {})):
        place = tmp_path / name
        place.mkdir()
        np.savez(place / "own.npz", train_images=rows[name], **arrays, **classes)
        datasets.prepare("mine", place / "own.npz", place, place / "mine.npz")
        found = pflpipe.run(cell, place, device="cpu").ledger.warnings
        expected = [] if classes else warned
        assert [one for one in found if one in warned] == expected == list(found[: len(expected)])


def test_a_progress_bar_advances_once_a_round_and_changes_neither_bits_nor_when_a_run_stops(
    monkeypatch,
):
    bar = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "tqdm", bar)
    monkeypatch.setitem(sys.modules, "tqdm.auto", bar)
    shown, silent = (train(secret="a", progress_bar=is_shown) for is_shown in (True, False))
    bar.tqdm.assert_called_once_with(total=3, unit="round", disable=None)
    assert same(shown.params, silent.params)
    stopped = train(progress_bar=True, on_round=lambda progress: progress.round < 2)
    assert stopped.progress.round == 2
    drawn = bar.tqdm.return_value
    assert drawn.__enter__.return_value.update.call_count == 3 + 2
    assert drawn.__exit__.call_count == 2, "both are closed"


def test_a_progress_bar_without_tqdm_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ConfigError, match=r"progress_bar.*no tqdm.*pip install tqdm"):
        train(progress_bar=True)
