"""The round: mechanism, sampling, divergence, and a run that resumes with the same bits."""

import dataclasses

import numpy as np
import pytest
import torch

from pflpipe import cells, seeds, trees
from pflpipe.errors import PrivacyError
from pflpipe.learning.solvers import Solver
from pflpipe.methods import base, registry
from pflpipe.methods.base import Upload
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import cohorts, mechanism
from pflpipe.simulation import evaluation, rounds, scores
from pflpipe.simulation.states import States
from simulations import (
    NOTHING_LEARNED,
    SIZES,
    assert_equal,
    hooked,
    open_plan,
    plan,
    simulation,
    snapshot,
    spied,
)


def flat(tree):
    return torch.cat([value.reshape(-1) for value in tree.values()])


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_resumed_run_ends_with_the_same_bits(method, rate):
    make = plan if registry.info(method).about.private else open_plan
    world = simulation(method, plan=make(sample_rate=rate, rounds=4), dtype=torch.float32)
    snapshots = []
    whole = rounds.run(
        world, rounds.start(world), lambda progress: snapshots.append(snapshot(progress))
    )
    for begun in snapshots[:-1]:
        resumed = rounds.run(world, begun)
        assert repr(resumed.rows) == repr(whole.rows)  # NaN is not equal to itself
        assert resumed.uploaded_bits == whole.uploaded_bits
        for left, right in ((whole.params, resumed.params), (whole.states, resumed.states)):
            assert all(torch.equal(left[name], right[name]) for name in left)


def test_without_noise_and_clipping_a_round_is_the_mean_of_updates():
    world = simulation("dp_fedavg", plan=plan(noise_multiplier=0.0, clip_norm=1e9, rounds=1))
    begun = rounds.start(world)
    ends = []
    for client in range(4):
        batches = [simulation_batches(world, client)]
        ends.append(world.task.minimize(begun.params, batches[0], world.task.loss)[0])
    expected = {name: torch.stack([end[name] for end in ends]).mean(0) for name in begun.params}
    done = rounds.run(world, begun)
    for name in expected:
        torch.testing.assert_close(done.params[name], expected[name], rtol=1e-12, atol=1e-14)


def simulation_batches(world, client):
    return world.train.schedule(world.work(client, 0)["train"])


def test_fedavg_weights_clients_by_their_examples():
    world = simulation("fedavg", plan=open_plan(rounds=1))
    begun = rounds.start(world)
    ends = [
        world.task.minimize(begun.params, simulation_batches(world, i), world.task.loss)[0]
        for i in range(4)
    ]
    sizes = [len(rows) for rows in world.split.train]
    done = rounds.run(world, begun)
    for name in done.params:
        expected = sum(size / sum(sizes) * end[name] for size, end in zip(sizes, ends, strict=True))
        torch.testing.assert_close(done.params[name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_the_noise_of_a_round_has_the_std_of_the_plan():
    loud = plan(noise_multiplier=50.0, clip_norm=0.2, rounds=60)
    world = simulation("dp_fedavg", plan=loud, **NOTHING_LEARNED)
    steps = [flat(rounds.start(world).params)]
    rounds.run(world, rounds.start(world), lambda progress: steps.append(flat(progress.params)))
    noise = torch.stack(steps).diff(dim=0)  # lr 0: every upload is zero, what moves is noise
    claimed = 0.2 * 50.0 / 4
    assert abs(noise.std().item() / claimed - 1) < 4 / np.sqrt(2 * noise.numel())


def test_rounds_released_are_the_rounds_accounted():
    world = simulation("dp_fedavg", plan=plan(rounds=5))
    done, seen, _ = spied(world)
    assert (
        len(seen)
        == world.plan.rounds
        == len(done.rows)
        == len(done.timing)
        == done.round
        == done.releases
    )


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("fedper", "head.weight"),
        ("fedper", "head.bias"),
        ("fedbn", "norm1.weight"),
        ("fedbn", "stage1.block2.norm1.bias"),
        ("lg_fedavg", "fc1.bias"),
    ],
)
def test_a_method_that_sends_a_part_it_promises_to_keep_stops_the_run(method, part):
    network = cells.Model("resnet20") if method == "fedbn" else None
    world = simulation(
        method, model=network, shape=(8, 8, 3) if network else (5,), dtype=torch.float32
    )

    def leaking(params, server, state, batches, task):
        upload, state = world.method.local_update(params, server, state, batches, task)
        return dataclasses.replace(upload, update=upload.update | {part: state[part]}), state

    spoiled = hooked(world, local_update=leaking)
    with pytest.raises(PrivacyError, match=part):
        rounds.run(spoiled, rounds.start(spoiled))


def test_an_empty_cohort_releases_noise_and_nobody_changes():
    world = simulation("feddpa", plan=plan(sample_rate=1e-9, rounds=2))
    begun = rounds.start(world)
    params, states = begun.params, begun.states
    done = rounds.run(world, begun)
    assert [row["participants"] for row in done.rows] == [0, 0]
    assert done.diverged_round is None
    assert all(row["noise_norm"] > 0 and row["signal_norm"] == 0 for row in done.rows)
    assert all(np.isnan(row["loss"]) for row in done.rows)
    assert not torch.equal(flat(done.params), flat(params))
    assert all(torch.equal(done.states[name], states[name]) for name in states)


def test_clients_that_are_not_drawn_keep_their_state():
    world = simulation("feddpa", plan=plan(sample_rate=0.5, rounds=1), seed=3)
    begun = rounds.start(world)
    drawn = cohorts.sample_clients(seeds.release_rng(world.key, "sample", 0), world.plan)
    assert 0 < drawn.sum() < 4
    before = {name: value.clone() for name, value in begun.states.items()}
    done = rounds.run(world, begun)
    for name, value in done.states.items():
        changed = (value != before[name]).reshape(4, -1).any(1).numpy()
        assert not changed[~drawn].any()
    assert (
        (done.states["head.weight"] != before["head.weight"]).reshape(4, -1).any(1).numpy() == drawn
    ).all()


@pytest.mark.parametrize("private", [True, False])
def test_a_diverged_run_is_recorded_and_goes_on(private):
    world = simulation(
        "dp_fedavg" if private else "fedavg",
        plan=(plan if private else open_plan)(rounds=4),
        lr=1e200,
    )
    done = rounds.run(world, rounds.start(world))
    assert done.diverged_round == 1
    assert len(done.rows) == 4
    assert done.rows[0]["nonfinite_uploads"] > 0
    assert trees.is_finite(done.params)


def test_the_server_step_is_given_the_noisy_sum_and_nothing_else_of_a_client():
    world = simulation("feddpa")
    seen, sums = [], []

    def release(*args, **options):
        outcome = mechanism.release(*args, **options)
        sums.append(outcome.sum)
        return outcome

    def aggregate(params, released, server, task):
        seen.append((released, server))
        return base.add_released(params, released, server, task)

    heard = hooked(dataclasses.replace(world, release=release), aggregate=aggregate)
    rounds.run(heard, rounds.start(heard))
    assert len(seen) == 3
    for (released, server), noisy_sum in zip(seen, sums, strict=True):
        assert released is noisy_sum
        assert not server
        assert all(value.shape == world.network.shapes[name] for name, value in released.items())


def test_a_private_extra_without_a_departure_is_refused():
    world = simulation("dp_fedavg")

    def leaking(params, server, state, batches, task):
        return Upload(update=params, extras={"size": batches.n}, loss=batches.n * 0.0), state

    leaky = hooked(world, local_update=leaking)
    with pytest.raises(PrivacyError, match="size"):
        rounds.run(leaky, rounds.start(leaky))


def test_diagnostics_tell_norms_before_clipping_and_the_signal_to_noise_ratio():
    world = simulation("dp_fedavg", plan=plan(clip_norm=1e-3, noise_multiplier=2.0, rounds=1))
    row = rounds.run(world, rounds.start(world)).rows[0]
    assert row["fraction_clipped"] == 1
    assert row["update_norm_max"] >= row["update_norm_mean"] > 1e-3
    assert row["signal_norm"] <= 1e-3 * (1 + 1e-6)
    assert row["signal_to_noise"] == row["signal_norm"] / row["noise_norm"]


def test_different_seeds_differ_and_equal_seeds_agree():
    runs = [
        rounds.run(world, rounds.start(world))
        for world in (simulation("dp_fedavg", seed=s) for s in (0, 0, 1))
    ]
    assert torch.equal(flat(runs[0].params), flat(runs[1].params))
    assert not torch.equal(flat(runs[0].params), flat(runs[2].params))


def test_no_random_stream_is_used_twice_in_a_run(monkeypatch):
    names, original = [], seeds._digest

    def spy(*name):
        names.append(name)
        return original(*name)

    monkeypatch.setattr(seeds, "_digest", spy)
    world = simulation("dp_fedavg_fb", plan=plan(rounds=2))
    progress = rounds.start(world)
    for _ in range(2):
        rounds.one_round(world, progress)
    scores.accuracies(world, progress)
    assert {name[1] for name in names} == {"init", "sample", "noise", "batches", "isolation"}
    again = [name for name in names if name[1] == "noise"]  # drawn once more, to be compared
    assert again[::2] == again[1::2]
    assert len(set(names)) == len(names) - len(again) / 2


def test_drawn_clients_work_on_their_own_state():
    world = simulation("fedavg", plan=open_plan(sample_rate=0.5, rounds=8))
    met = []

    def local_update(params, server, state, batches, task):
        met.append((int(state["client"]), int(batches.n)))
        return Upload(
            update=trees.sub(params, params), extras={"size": batches.n}, loss=batches.n * 0.0
        ), state

    noting = hooked(world, local_update=local_update)
    begun = rounds.start(noting)
    begun.states = States({"client": torch.tensor(0)}, 4).replaced(
        range(4), {"client": torch.arange(4)}
    )
    done = rounds.run(noting, begun)
    assert {client for client, _ in met} == {0, 1, 2, 3}
    assert len(met) < 4 * 8
    assert all(n == SIZES[client] for client, n in met)
    assert done.states["client"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("broken", ["loss", "upload", "model"])
def test_a_loss_an_upload_or_a_model_that_is_not_finite_is_a_divergence_and_the_first_round_counts(
    broken,
):
    world = simulation("dp_fedavg", plan=plan(rounds=3))
    method = world.method

    def local_update(params, server, state, batches, task):
        upload, state = method.local_update(params, server, state, batches, task)
        update = {
            name: value * torch.nan if broken == "upload" else value
            for name, value in upload.update.items()
        }
        return Upload(
            update,
            {},
            upload.loss * torch.nan if broken == "loss" else torch.zeros_like(upload.loss),
        ), state

    def aggregate(params, released, server, task):
        if broken == "model":
            return {name: value * torch.inf for name, value in params.items()}, server
        return base.add_released(params, released, server, task)

    sick = hooked(world, local_update=local_update, aggregate=aggregate)
    begun = rounds.start(sick)
    assert rounds.run(sick, begun).diverged_round == 1


def test_a_state_that_is_not_finite_is_a_divergence():
    world = simulation("local_only", plan=open_plan(rounds=2))

    def local_update(params, server, state, batches, task):
        broken = {name: value * torch.inf for name, value in state.items()}
        return Upload({}, {}, torch.zeros((), dtype=torch.float64)), broken

    sick = hooked(world, local_update=local_update)
    assert rounds.run(sick, rounds.start(sick)).diverged_round == 1


def test_the_loss_of_a_round_is_the_mean_over_drawn_clients_with_examples():
    world = simulation("dp_fedavg", sizes=(5, 0, 3), plan=plan(3, rounds=1))
    begun = rounds.start(world)
    losses = [
        world.task.minimize(begun.params, simulation_batches(world, i), world.task.loss)[1]
        for i in (0, 2)
    ]
    assert rounds.run(world, begun).rows[0]["loss"] == pytest.approx(
        torch.stack(losses).mean().item()
    )


def test_the_training_block_of_a_cell_reaches_the_local_solver():
    settings = {"optimizer": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
    world = simulation("dp_fedavg", local_epochs=3, **settings)
    assert world.task.solver == Solver(**settings)
    assert [world.work(client, 0)["train"].count.sum() for client in range(4)] == [
        3 * size for size in SIZES
    ]


def test_the_learning_rate_falls_by_its_factor_from_round_to_round():
    world = simulation("dp_fedavg", lr=0.2, lr_decay=0.5)
    assert [world.task_in(round).solver.lr for round in range(3)] == [0.2, 0.1, 0.05]
    assert world.task.solver.lr == 0.2
    sent = [uploads.update for uploads, _, _ in spied(world)[1]]
    still = [uploads.update for uploads, _, _ in spied(simulation("dp_fedavg", lr=0.2))[1]]
    assert_equal(sent[0], still[0], 0)
    assert not torch.equal(sent[1]["head.bias"], still[1]["head.bias"])


def test_personal_models_are_trained_at_the_learning_rate_of_the_round_after_the_last():
    world, seen = simulation("dp_fedavg", lr=0.2, lr_decay=0.5), []

    def personalize(params, server, state, batches, task):
        seen.append(task.solver.lr)
        return params

    spying = dataclasses.replace(world.method, personalize=personalize)
    world = dataclasses.replace(world, method=spying)
    evaluation.accuracies(world, rounds.run(world, rounds.start(world)))
    assert seen == [0.2 * 0.5**3] * 4


def test_under_public_sampling_the_cohort_is_that_of_the_round_whatever_the_seed():
    seen = []
    for seed in (0, 1):
        world = simulation(
            "feddpa",
            plan=plan(sample_rate=0.5, rounds=6),
            departures=("public_sampling",),
            seed=seed,
        )
        progress, drawn = rounds.start(world), []
        while progress.round < 6:
            before = progress.states
            rounds.one_round(world, progress)
            changed = [
                bool((new != old).any())
                for new, old in zip(
                    progress.states["fc1.weight"], before["fc1.weight"], strict=True
                )
            ]
            drawn.append(changed)
        assert drawn == [cohorts.public_cohort(round, world.plan).tolist() for round in range(6)]
        assert [row["participants"] for row in progress.rows] == [2] * 6
        seen.append(drawn)
    assert seen[0] == seen[1]
    assert len({tuple(cohort) for cohort in seen[0]}) > 1


def scaled(world, scale):
    return hooked(world, scale=scale)


def test_a_methods_scale_is_the_mechanisms_and_asked_for_once_a_round_with_released_values():
    asked, given = [], []

    def scale(params, server, task):
        asked.append(params)
        return {
            "fc1.weight": 1 + params["fc1.weight"].abs(),
            "head.bias": torch.tensor([0.0, 1.0, 2.0]),
        }

    def release(*args):
        given.append(args[4])
        return mechanism.release(*args)

    world = dataclasses.replace(scaled(simulation("dp_fedavg"), scale), release=release)
    begun = rounds.start(world)
    models = [begun.params]
    rounds.run(world, begun, lambda progress: models.append(progress.params))
    assert len(asked) == len(given) == 3
    for params, model, tree in zip(asked, models, given, strict=False):
        assert all(torch.equal(params[name], model[name]) for name in model)
        assert torch.equal(tree["fc1.weight"], 1 + model["fc1.weight"].abs())


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_coordinate_of_scale_zero_is_neither_sent_nor_noised_and_does_not_move(rate):
    keep = {
        "fc1.weight": torch.arange(20).view(4, 5) % 3 == 0,
        "head.bias": torch.tensor([True, False, True]),
    }

    def scale(params, server, task):
        return {name: mask.to(params[name]) for name, mask in keep.items()} | {
            "fc1.bias": params["fc1.bias"].new_zeros(())
        }

    world = scaled(
        simulation("dp_fedavg", plan=plan(noise_multiplier=5.0, sample_rate=rate, rounds=5)), scale
    )
    begun = rounds.start(world)
    before = begun.params
    done = rounds.run(world, begun)
    moved = {name: value != before[name] for name, value in done.params.items()}
    assert all(torch.equal(moved[name], mask) for name, mask in keep.items())
    assert not moved["fc1.bias"].any()
    assert moved["head.weight"].all()
    sent = sum(int(mask.sum()) for mask in keep.values()) + done.params["head.weight"].numel()
    assert done.uploaded_bits == 5 * 32 * sent


@pytest.mark.slow
def test_the_noise_of_a_round_follows_the_scale():
    loud = plan(noise_multiplier=50.0, clip_norm=0.2, rounds=200)
    world = simulation("dp_fedavg", plan=loud, **NOTHING_LEARNED)
    world = scaled(
        world, lambda params, server, task: {"fc1.weight": params["fc1.weight"].new_full((5,), 3.0)}
    )
    steps = []
    rounds.run(world, rounds.start(world), lambda progress: steps.append(progress.params))
    claimed = 0.2 * 50.0 / 4
    for name, factor in (("fc1.weight", 3.0), ("head.weight", 1.0)):
        noise = torch.stack([step[name] for step in steps]).diff(
            dim=0
        )  # lr 0: every upload is zero, what moves is noise
        assert abs(noise.std().item() / (factor * claimed) - 1) < 5 / np.sqrt(2 * noise.numel())


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
    world = listening(
        ("noise_per_participant",), plan=plan(sample_rate=0.25, rounds=12), backend=backend
    )
    done, seen, _ = spied(world)
    expected = {
        name: torch.zeros(4, *shape, dtype=torch.float64)
        for name, shape in world.network.shapes.items()
    }
    for round, (_, _, released) in enumerate(seen):
        drawn = cohorts.sample_clients(
            seeds.release_rng(world.key, "sample", round), world.plan
        ).nonzero()[0]
        for name, sent in expected.items():
            if len(drawn):
                sent[drawn] += released.messages[name]
    assert {int(row["participants"]) for row in done.rows} > {
        0
    }  # a round without anybody changes no state
    for name, sent in expected.items():
        torch.testing.assert_close(done.states[f"sent.{name}"], sent, rtol=1e-12, atol=1e-15)
        assert sent.any()


@pytest.mark.parametrize("departures", [(), ("clip_in_training",)])
def test_without_single_messages_there_is_nothing_to_absorb(departures):
    world = listening(departures)
    done = rounds.run(world, rounds.start(world))
    assert not any(value.any() for value in done.states.values())


def test_a_run_with_messages_resumes_with_the_same_bits():
    world = listening(
        ("noise_per_participant", "public_sampling"), plan=plan(sample_rate=0.5, rounds=4)
    )
    snapshots = []
    whole = rounds.run(
        world, rounds.start(world), lambda progress: snapshots.append(snapshot(progress))
    )
    for begun in snapshots[:-1]:
        resumed = rounds.run(world, begun)
        assert resumed.uploaded_bits == whole.uploaded_bits == 4 * 32 * world.network.parameters
        for left, right in ((whole.params, resumed.params), (whole.states, resumed.states)):
            assert all(torch.equal(left[name], right[name]) for name in left)
