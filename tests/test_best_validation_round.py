"""tools/best_validation_round.py: the round that CENTAUR's rule reports, on the surrogate."""

import copy

import pytest
import torch
from torch import nn

import best_validation_round as program


@pytest.fixture
def client():
    draw = torch.Generator().manual_seed(0)
    images = [torch.randn(rows, 8, generator=draw) for rows in (40, 20, 20)]
    labels = [torch.randint(10, (len(x),), generator=draw) for x in images]
    return program.Client(images, labels, nn.Linear(8, 10))


def run(client, deviation, monkeypatch, rounds=3):
    """Run the rounds; return the accuracies and the parameters whose features heads saw. In round 0
    these features are the images."""
    network = nn.Linear(8, 8, bias=False)
    nn.init.eye_(network.weight)
    seen, original = [], program.features

    def features(network, *images):
        seen.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        return original(network, *images)

    monkeypatch.setattr(program, "features", features)
    monkeypatch.setattr(program, "ROUNDS", rounds)
    return list(program.rounds(network, [client], deviation)), seen


def test_round_0_has_no_noise_and_each_later_round_adds_its_own(client, monkeypatch):
    scores, seen = run(client, 0.5, monkeypatch, rounds=40)
    assert len(scores) == len(seen) == 40
    assert torch.equal(seen[0], torch.eye(8).flatten())
    steps = torch.stack(seen).diff(dim=0)
    assert float(steps.std()) == pytest.approx(0.5, rel=0.05)
    correlation = torch.corrcoef(steps[:2])[0, 1]
    assert abs(float(correlation)) < 0.5, "a round draws new noise"


def test_without_noise_all_rounds_see_the_same_extractor_and_heads_go_on_learning(
    client, monkeypatch
):
    once = program.Client(client.images, client.labels, copy.deepcopy(client.head))
    once.step(*client.images)
    _, seen = run(client, 0.0, monkeypatch)
    assert len(seen) == 1

    def loss(head):
        with torch.no_grad():
            return float(nn.functional.cross_entropy(head(client.images[0]), client.labels[0]))

    assert loss(client.head) < loss(once.head), "three rounds train the head three times"


def test_each_part_of_the_rows_is_scored_with_its_own_labels(client):
    """The head answers 3 for the images of validation rows and 4 for those of test rows."""
    client.images[1][:], client.images[2][:] = 1.0, -1.0
    client.labels[1][:], client.labels[2][:] = 3, 4
    client.labels[2][:10] = 5
    with torch.no_grad():
        client.head.weight.zero_()
        client.head.weight[3], client.head.weight[4] = 1e6, -1e6
    assert client.step(*client.images) == (100.0, 50.0)
