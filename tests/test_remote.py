"""A run whose clients are on other machines releases what this machine would release, and an absent
client is a zero."""

import dataclasses
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import secure_sums
from pflpipe.errors import ConfigError, PrivacyError
from pflpipe.methods import registry
from pflpipe.privacy import mechanism, secure
from pflpipe.privacy.plan import Adaptive
from pflpipe.simulation.remote import Device, Server, refused
from simulations import assert_equal, finished, held, open_plan, plan, simulation

NEEDS_MORE = {
    "fedavg": "its server needs more than the sum of the updates (data_size_weights)",
    "local_only": "it sends nothing, so each device trains it alone",
    "own_constant": "it sends nothing, so each device trains it alone",
}
ADAPTIVE = {"adaptive": Adaptive(0.5, 0.2, 1.0)}
WORKS = [name for name in registry.NAMES if name not in NEEDS_MORE]


def world(method, **changes):
    make = plan if registry.info(method).about.private else open_plan
    shape = {"sample_rate": 0.7, "rounds": 3} | changes
    return simulation(method, plan=make(**shape), dtype=torch.float32)


def devices(run, folder: Path):
    """Return clients 0 and 1 on one machine, and 2 and 3 on another, each without others' rows."""
    found = {}
    for clients in ((0, 1), (2, 3)):
        train = [rows[: len(rows) * (i in clients)] for i, rows in enumerate(run.split.train)]
        alone = dataclasses.replace(run, split=dataclasses.replace(run.split, train=train))
        here = Device(alone, folder / str(clients[0]))
        found |= dict.fromkeys(here.clients, here)
    return found


def trained(run, folder, absent=()):
    """Return the server after all rounds; ``absent`` are clients that never answer."""
    server, places = Server(run), devices(run, folder)
    for _ in range(run.plan.rounds):
        public = server.public
        asked = [client for client in server.cohort if client not in absent]
        server.step({client: places[client].update(client, public) for client in asked})
    return server, places


def test_every_method_works_but_those_whose_server_needs_more_than_the_sum():
    assert {name: why for name in registry.NAMES if (why := refused(world(name)))} == NEEDS_MORE
    assert len(WORKS) >= 25
    with pytest.raises(ConfigError, match="needs more than the sum"):
        Server(world("fedavg"))


@pytest.mark.parametrize("method", WORKS)
def test_devices_and_a_server_release_what_one_machine_releases(method, tmp_path):
    run = world(method)
    alone = finished(run)
    server, _ = trained(run, tmp_path)
    assert_equal(alone.params, server.progress.params, 1e-6)
    assert_equal(alone.server, server.progress.server, 1e-6)
    assert server.progress.residuals == alone.residuals
    assert server.progress.uploaded_bits == alone.uploaded_bits


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("dp_fedavg", {"groups": 2, "sample_rate": 1}),
        ("dp_fedavg", {"band": 2, "groups": 2, "sample_rate": 1}),
        ("blur_lus", ADAPTIVE),
    ],
    ids=["groups", "band", "adaptive"],
)
def test_cohorts_noise_and_bound_are_those_of_the_plan(method, change, tmp_path):
    """Clients of BLUR+LUS train with the bound as well."""
    run = world(method, **change)
    alone = finished(run)
    server, _ = trained(run, tmp_path)
    assert_equal(alone.params, server.progress.params, 0)
    assert server.progress.bound == alone.bound


def test_secure_noise_is_drawn_once_a_round_and_by_the_server_alone(tmp_path, monkeypatch):
    draw = mock.Mock(side_effect=lambda scale, count: np.arange(count) - count // 2)
    monkeypatch.setattr(secure, "draw", draw)
    run = world("dp_fedavg", mechanism="discrete_gaussian", noise="secure", sample_rate=1.0)
    server, _ = trained(run, tmp_path)
    held(run, server.progress)
    assert draw.call_count == run.plan.rounds


def test_an_absent_client_is_a_message_of_zeros_in_a_cohort_that_was_drawn(tmp_path):
    run, release = world("feddpa", sample_rate=1.0), mock.Mock(side_effect=mechanism.release)
    server, _ = trained(dataclasses.replace(run, release=release), tmp_path, absent=(1,))
    assert release.call_count == run.plan.rounds
    for _, uploads, present, *_ in (call.args for call in release.call_args_list):
        assert present.tolist() == [True] * 4
        lengths = [sum(float(v[i].abs().sum()) for v in uploads.update.values()) for i in range(4)]
        assert [length > 0 for length in lengths] == [True, False, True, True]
    held(run, server.progress)  # the check of every table: cohort, noise and number of releases
    assert {file.name for file in tmp_path.rglob("*.pt")} == {"0.pt", "2.pt", "3.pt"}


def test_an_answer_of_another_form_counts_as_zero(tmp_path):
    run = world("dp_fedavg", sample_rate=1.0, rounds=1)
    server, places = trained(run, tmp_path / "a", absent=(1,))
    other, places = Server(run), devices(run, tmp_path / "b")
    updates = {client: places[client].update(client, other.public) for client in range(4)}
    updates[1] = {name: value[..., :1] for name, value in updates[1].items()}
    other.step(updates)
    assert_equal(server.progress.params, other.progress.params, 0)


def test_a_client_answers_a_round_once(tmp_path):
    server, places = trained(world("dp_fedavg", sample_rate=1.0), tmp_path)
    again = server.public._replace(round=2)
    with pytest.raises(PrivacyError, match="client 2: round; got 3; expected one after round 3"):
        places[2].update(2, again)
    places[2].update(2, again._replace(run="another run"))


def test_what_a_client_sends_has_nothing_of_its_state_and_its_model_stays_in_its_folder(tmp_path):
    run = world("fedrep", sample_rate=1.0)
    server, places = trained(run, tmp_path)
    sent = places[2].update(2, server.public)
    assert {*sent} == {*run.method.upload(run.task)}
    file = places[2].keep_model(2, server.public)
    model = torch.load(file, weights_only=True)
    alone = finished(run)
    assert file.is_relative_to(tmp_path / "2")
    assert model["head.weight"].shape == alone.params["head.weight"].shape
    assert not torch.equal(model["head.weight"], server.progress.params["head.weight"])


# ---------------------------------------------------------------- secure aggregation

SUMMED = {"mechanism": "skellam", "bits": 16, "dropout": 0.25, "sample_rate": 1}


@pytest.mark.parametrize(("method", "absent"), [("fedrep", set()), ("dp_fedavg", {(1, 2)})])
def test_the_sum_of_shares_is_the_simulated_one_to_the_bit(method, absent, tmp_path, monkeypatch):
    shares = secure_sums.known(monkeypatch)
    run = world(method, **SUMMED)
    server, places = Server(run), devices(run, tmp_path)
    for round in range(run.plan.rounds):
        public = server.public
        stay = [client for client in server.cohort if (round, client) not in absent]
        sent = [places[client].update(client, public)[""] for client in stay]
        assert all(int(one.min()) >= 0 and int(one.max()) < 2**16 for one in sent)
        server.see(sum(sent) % 2**16, len(sent))
        assert server.step({}) == 4 - len(absent & {(round, 2)})
    assert len(shares) == 12 - len(absent)
    alone = finished(secure_sums.simulated(run, absent))
    assert_equal(alone.params, server.progress.params, 0)
    held(server.simulation, server.progress)
    assert np.isnan(server.progress.rows[-1]["update_norm_max"]), "the server has seen no message"


def test_a_sum_with_too_few_shares_is_not_opened(tmp_path):
    run = world("dp_fedavg", **SUMMED)
    server, places = Server(run), devices(run, tmp_path)
    sent = [places[client].update(client, server.public)[""] for client in (0, 1)]
    server.see(sum(sent), 2)
    with pytest.raises(PrivacyError, match=r"round 1: clients in the sec.* got 2; .* at least 3"):
        server.step({})
    with pytest.raises(PrivacyError, match="got 0"):
        Server(run).step({client: {} for client in range(4)})
    assert server.progress.round == 0


def test_a_release_that_does_not_follow_from_the_sum_is_found(tmp_path):
    run = world("dp_fedavg", **SUMMED)
    server, places = Server(run), devices(run, tmp_path)
    faithful = server.simulation.release

    def other(*given):
        found = faithful(*given)
        return dataclasses.replace(found, sum={name: 2 * v for name, v in found.sum.items()})

    server.simulation = dataclasses.replace(server.simulation, release=other)
    public = server.public
    server.see(sum(places[client].update(client, public)[""] for client in range(4)), 4)
    server.step({})
    assert server.progress.residuals.mismatches > 0
