"""The round: mechanism, sampling, divergence, and a run that resumes with the same bits."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

import simulations
from pflpipe import cells, seeds, trees
from pflpipe.errors import PrivacyError
from pflpipe.methods import base, registry
from pflpipe.methods.base import Upload
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import cohorts
from pflpipe.simulation import evaluation, rounds, scores
from simulations import finished, hooked, open_plan, plan, simulation, spied


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_resumed_run_ends_with_the_same_bits(method, rate):
    make = plan if registry.info(method).about.private else open_plan
    assert_resumes(simulation(method, plan=make(sample_rate=rate, rounds=4), dtype=torch.float32))


def assert_resumes(world):
    """Compare a whole run with those that go on after each of its rounds, and return its end."""
    seen = []
    whole = rounds.run(
        world, rounds.start(world), lambda now: seen.append(simulations.snapshot(now))
    )
    for begun in seen[:-1]:
        resumed = rounds.run(world, begun)
        assert repr(resumed.rows) == repr(whole.rows)  # NaN is not equal to itself
        assert resumed.uploaded_bits == whole.uploaded_bits
        assert resumed.residuals == whole.residuals
        simulations.assert_equal(whole.params, resumed.params, 0)
        assert all(torch.equal(value, resumed.states[key]) for key, value in whole.states.items())
    return whole


KEPT = [("fedper", "head.weight"), ("fedper", "head.bias"), ("lg_fedavg", "fc1.bias")]
KEPT += [("fedbn", "norm1.weight"), ("fedbn", "stage1.block2.norm1.bias")]


@pytest.mark.parametrize(("method", "part"), KEPT)
def test_a_method_that_sends_a_part_it_promises_to_keep_stops_the_run(method, part):
    images = {"model": cells.Model("resnet20"), "shape": (8, 8, 3)}
    world = simulation(method, dtype=torch.float32, **images if method == "fedbn" else {})

    def leaking(params, server, state, batches, task):
        upload, state = world.method.local_update(params, server, state, batches, task)
        return replace(upload, update=upload.update | {part: state[part]}), state

    with pytest.raises(PrivacyError, match=part):
        finished(hooked(world, local_update=leaking))


def test_an_empty_cohort_releases_noise_and_nobody_changes():
    world = simulation("feddpa", plan=plan(sample_rate=1e-9, rounds=2))
    begun = rounds.start(world)
    params, states = begun.params, begun.states
    done = rounds.run(world, begun)
    assert [row["participants"] for row in done.rows] == [0, 0]
    assert done.diverged_round is None
    assert all(row["noise_norm"] > 0 and row["signal_norm"] == 0 for row in done.rows)
    assert all(np.isnan(row["loss"]) for row in done.rows)
    assert not torch.equal(done.params["fc1.weight"], params["fc1.weight"])
    assert all(torch.equal(done.states[name], states[name]) for name in states)


@pytest.mark.parametrize(("method", "make"), [("dp_fedavg", plan), ("fedavg", open_plan)])
def test_a_diverged_run_is_recorded_and_goes_on(method, make):
    world = simulation(method, plan=make(rounds=4), lr=1e200)
    done = finished(world)
    assert done.diverged_round == 1
    assert len(done.rows) == 4
    assert done.rows[0]["nonfinite_uploads"] > 0
    assert trees.is_finite(done.params)


def test_the_server_step_is_given_the_noisy_sum_and_nothing_else_of_a_client():
    world, heard = simulation("feddpa"), []
    told = simulations.overheard(world, lambda *given: heard.append(given), "aggregate")
    _, seen, _ = spied(told)
    assert len(heard) == 3
    for (_, released, server, _), (_, _, outcome) in zip(heard, seen, strict=True):
        assert released is outcome.sum
        assert not server
        assert all(value.shape == world.network.shapes[name] for name, value in released.items())


def test_a_private_extra_without_a_departure_is_refused():
    def leaking(params, server, state, batches, task):
        return Upload(update=params, extras={"size": batches.n}, loss=batches.n * 0.0), state

    with pytest.raises(PrivacyError, match="size"):
        finished(hooked(simulation("dp_fedavg"), local_update=leaking))


def test_diagnostics_tell_norms_before_clipping_and_the_signal_to_noise_ratio():
    world = simulation("dp_fedavg", plan=plan(clip_norm=1e-3, noise_multiplier=2.0, rounds=1))
    row = finished(world).rows[0]
    assert row["fraction_clipped"] == 1
    assert row["update_norm_max"] >= row["update_norm_mean"] > 1e-3
    assert row["signal_norm"] <= 1e-3 * (1 + 1e-6)
    assert row["signal_to_noise"] == row["signal_norm"] / row["noise_norm"]


def test_no_random_stream_is_used_twice_in_a_run(monkeypatch):
    digest = mock.Mock(side_effect=seeds._digest)
    monkeypatch.setattr(seeds, "_digest", digest)
    world = simulation("dp_fedavg_fb", plan=plan(rounds=2))
    progress = rounds.start(world)
    for _ in range(2):
        rounds.one_round(world, progress)
    scores.accuracies(world, progress)
    names = [call.args for call in digest.call_args_list]
    assert {name[1] for name in names} == {"init", "sample", "noise", "batches", "isolation"}
    again = [name for name in names if name[1] == "noise"]  # drawn once more, to be compared
    assert again[::2] == again[1::2]
    assert len(set(names)) == len(names) - len(again) / 2


@pytest.mark.parametrize("broken", ["loss", "upload", "model"])
def test_a_loss_an_upload_or_a_model_that_is_not_finite_is_a_divergence_and_the_first_round_counts(
    broken,
):
    world = simulation("dp_fedavg", plan=plan(rounds=3))
    method = world.method

    def local_update(params, server, state, batches, task):
        upload, state = method.local_update(params, server, state, batches, task)
        of_update = torch.nan if broken == "upload" else 1.0
        update = {name: value * of_update for name, value in upload.update.items()}
        loss = torch.zeros_like(upload.loss)
        return Upload(update, {}, loss * torch.nan if broken == "loss" else loss), state

    def aggregate(params, released, server, task):
        if broken == "model":
            return {name: value * torch.inf for name, value in params.items()}, server
        return base.add_released(params, released, server, task)

    sick = hooked(world, local_update=local_update, aggregate=aggregate)
    assert finished(sick).diverged_round == 1


def test_a_state_that_is_not_finite_is_a_divergence():
    def local_update(params, server, state, batches, task):
        broken = {name: value * torch.inf for name, value in state.items()}
        return Upload({}, {}, torch.zeros((), dtype=torch.float64)), broken

    world = simulation("local_only", plan=open_plan(rounds=2))
    assert finished(hooked(world, local_update=local_update)).diverged_round == 1


def test_the_loss_of_a_round_is_the_mean_over_drawn_clients_with_examples():
    world = simulation("dp_fedavg", sizes=(5, 0, 3), plan=plan(3, rounds=1))
    params, task, losses = rounds.start(world).params, world.task, []
    for client in (0, 2):
        batches = world.train.schedule(world.work(client, 0)["train"])
        losses.append(task.minimize(params, batches, task.loss)[1].item())
    assert finished(world).rows[0]["loss"] == pytest.approx(sum(losses) / 2)


def test_personal_models_are_trained_at_the_learning_rate_of_the_round_after_the_last():
    tasks = []
    world = simulation("dp_fedavg", lr=0.2, lr_decay=0.5)
    world = simulations.overheard(world, lambda *given: tasks.append(given[-1]), "personalize")
    evaluation.accuracies(world, finished(world))
    assert [task.solver.lr for task in tasks] == [0.2 * 0.5**3] * 4


def test_a_methods_scale_is_the_mechanisms_and_asked_for_once_a_round_with_released_values():
    asked = []

    def scale(params, server, task):
        asked.append(params)
        bias = torch.tensor([0.0, 1.0, 2.0])
        return {"fc1.weight": 1 + params["fc1.weight"].abs(), "head.bias": bias}

    _, seen, ends = spied(hooked(simulation("dp_fedavg"), scale=scale))
    assert len(asked) == 3
    for params, (model, _), (_, tree, _) in zip(asked, ends[:3], seen, strict=True):
        simulations.assert_equal(params, model, 0)
        assert torch.equal(tree["fc1.weight"], 1 + model["fc1.weight"].abs())


def listening(departures, **changes):
    """A simulation of DP-FedAvg whose clients keep the sum of all messages they have sent."""
    world = simulation("dp_fedavg", departures=departures, **changes)

    def init_client(params, task):
        return {f"sent.{name}": torch.zeros_like(value) for name, value in params.items()}

    def absorb(state, message, task):
        return {f"sent.{name}": state[f"sent.{name}"] + value for name, value in message.items()}

    return hooked(world, init_client=init_client, absorb=absorb)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_clients_absorb_their_own_noised_messages(backend):
    rule = plan(sample_rate=0.25, rounds=12)
    world = listening(("noise_per_participant",), plan=rule, backend=backend)
    done, seen, _ = spied(world)
    shapes = world.network.shapes.items()
    expected = {name: torch.zeros(4, *shape, dtype=torch.float64) for name, shape in shapes}
    for round, (_, _, released) in enumerate(seen):
        stream = seeds.release_rng(world.key, "sample", round)
        drawn = cohorts.sample_clients(stream, rule).nonzero()[0]
        for name, sent in expected.items():
            if len(drawn):
                sent[drawn] += released.messages[name]
    # A round without anybody changes no state.
    assert {int(row["participants"]) for row in done.rows} > {0}
    for name, sent in expected.items():
        torch.testing.assert_close(done.states[f"sent.{name}"], sent, rtol=1e-12, atol=1e-15)
        assert sent.any()


@pytest.mark.parametrize("departures", [(), ("clip_in_training",)])
def test_without_single_messages_there_is_nothing_to_absorb(departures):
    assert not any(value.any() for value in finished(listening(departures)).states.values())


def test_a_run_with_messages_resumes_with_the_same_bits():
    departures = ("noise_per_participant", "public_sampling")
    world = listening(departures, plan=plan(sample_rate=0.5, rounds=4))
    assert assert_resumes(world).uploaded_bits == 4 * 32 * world.network.parameters
