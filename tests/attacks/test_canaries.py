"""Canaries: the estimate is that of the mechanism, an alarm means too little noise, and nobody
else's upload is touched."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fake_attacks
from pflpipe import cells
from pflpipe.attacks import canaries
from pflpipe.attacks import registry as attacks
from pflpipe.errors import ConfigError
from pflpipe.privacy import mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.plan import Plan
from pflpipe.report.attacks import canaries as shown
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from pflpipe.study.study_spec import Row, Study
from releases import length
from simulations import assert_equal, plan, simulation, spied

ROUNDS = 10


def idle(noise: float, method: str = "dp_fedavg", **changes: Any) -> Simulation:
    """A run of four clients who learn next to nothing, so that releases are noise (and canaries)
    alone; 8,023 parameters."""
    still = plan(4, noise_multiplier=noise, rounds=ROUNDS, **changes)
    model, choice = cells.Model("mlp", (20,)), {"keep_ratio": 0.7} if method == "dp_pfeddsu" else {}
    options = {"model": model, "lr": 1e-12, "dtype": torch.float32, "seed": 1}
    return simulation(method, choice, plan=still, sizes=(2,) * 4, shape=(397,), **options)


@functools.cache
def estimated(noise: float, method: str = "dp_fedavg") -> tuple[int, float, float]:
    """The number of canaries in an idle run, their estimate of mu and its error."""
    told = canaries.attack(idle(noise, method))
    return len(told["x"]), *canaries.estimate(told["x"])


def heard(world: Simulation) -> list[tuple[Uploads, Plan, dict[str, torch.Tensor], Released]]:
    """What the mechanism itself is given in a run with canaries, and what it returns."""
    seen = []
    flock = canaries.Canaries(seed=5)
    original = mechanism.release

    def spy(
        generator: Any, uploads: Uploads, present: Any, plan: Plan, scale: Any, departures: Any
    ) -> Released:
        seen.append(
            (uploads, plan, scale, original(generator, uploads, present, plan, scale, departures))
        )
        return seen[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "release", spy)
        run = dataclasses.replace(world, release=flock.release)
        rounds.run(run, rounds.start(run))
    return seen


# ---------------------------------------------------------------- the estimate


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "fedaddp", "dp_pfeddsu"])
def test_on_a_run_of_noise_the_estimate_is_the_true_mu(method):
    """fedaddp has a public scale, dp_pfeddsu one that sends seven in ten coordinates."""
    count, mu, error = estimated(2.0, method)
    assert count == canaries.MOST
    assert error == pytest.approx(0.08, abs=0.01)
    assert abs(mu - math.sqrt(ROUNDS) / 2.0) < 3 * error


@pytest.mark.slow
def test_under_a_very_uneven_public_scale_the_estimate_is_the_true_mu_as_well():
    world = idle(2.0)
    scale = {"fc1.weight": torch.tensor([1.0, 100.0]).repeat(20 * 397 // 2).reshape(20, 397)}
    uneven = dataclasses.replace(
        world, method=dataclasses.replace(world.method, scale=lambda params, server, task: scale)
    )
    mu, error = canaries.estimate(canaries.attack(uneven)["x"])
    assert abs(mu - math.sqrt(ROUNDS) / 2.0) < 3 * error


@pytest.mark.slow
def test_half_the_noise_is_twice_the_mu():
    whole, half = (estimated(noise)[1:] for noise in (2.0, 1.0))
    assert abs(half[0] - 2 * whole[0]) < 3 * math.hypot(half[1], 2 * whole[1])
    assert half[0] - whole[0] > 3 * half[1]


@pytest.mark.slow
def test_directions_that_took_no_part_are_standard_normal():
    flock = canaries.Canaries(seed=3)
    run = dataclasses.replace(idle(2.0), release=flock.release)
    rounds.run(run, rounds.start(run))
    other = canaries.Canaries(seed=4)
    other._draw(flock.total, run.plan, flock.sent)
    other.total = flock.total
    x = other.statistics()
    assert len(x) == 200
    assert abs(x.mean()) < 4 / math.sqrt(200)
    assert x.std(ddof=1) == pytest.approx(1, abs=4 / math.sqrt(400))


def test_the_number_of_canaries_leaves_room_between_them():
    assert canaries.number(plan(4, noise_multiplier=2.0, rounds=10), 5000) == 200
    assert canaries.number(plan(4, noise_multiplier=2.0, rounds=10), 2500) == 100
    assert canaries.number(plan(4, noise_multiplier=0.1, rounds=10), 5000) == 10
    assert canaries.number(plan(4, noise_multiplier=9.0, rounds=10), 1_000_000) == 67
    assert canaries.number(plan(4, noise_multiplier=9.0, rounds=10), 50_000_000) == 10


# ---------------------------------------------------------------- the run


def test_clients_send_what_they_send_without_canaries():
    """Before the first release, which then is the same sum and noise, with the canaries, over a
    larger divisor."""
    world = simulation("dp_fedavg", plan=plan(4, noise_multiplier=0.5))
    (given, larger, _, released), *_ = heard(world)
    _, ((uploads, _, expected), *_), _ = spied(world)
    count = larger.clients - 4
    assert count == 10
    assert_equal({name: value[:4] for name, value in given.update.items()}, dict(uploads.update), 0)
    assert dataclasses.replace(larger, clients=4) == world.plan
    flown = {name: value[4:].sum(0) for name, value in given.update.items()}
    assert_equal(
        {name: released.sum[name] * (4 + count) for name in flown},
        {name: expected.sum[name] * 4 + flown[name] for name in flown},
        1e-6,
    )


def test_the_diagnostics_are_about_the_clients_alone():
    world = simulation("dp_fedavg", plan=plan(4, noise_multiplier=0.5))
    run = dataclasses.replace(world, release=canaries.Canaries(seed=5).release)
    with_canaries, plain = (rounds.run(one, rounds.start(one)).rows[0] for one in (run, world))
    for name in ("participants", "update_norm_mean", "update_norm_max", "fraction_clipped"):
        assert with_canaries[name] == plain[name], name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_fedavg", "fedaddp", "dp_pfeddsu"])
def test_every_canary_is_as_long_as_the_clip_allows_in_every_round(method):
    for given, larger, scale, released in heard(idle(2.0, method)):
        rows = {name: value[4:] for name, value in given.update.items()}
        assert length(rows, scale=scale).numpy() == pytest.approx(larger.clip_norm, rel=1e-5)
        for name, value in scale.items():
            assert (rows[name][:, value.expand(rows[name].shape[1:]) == 0] == 0).all()
        assert larger.clients == 204
        assert not released.nonfinite.any()


def test_canaries_of_a_seed_are_the_same_and_point_anywhere():
    first, again, other = (canaries.Canaries(seed) for seed in (1, 1, 2))
    shapes = {"a": torch.ones(30, 20), "b": torch.ones(400)}
    for flock in (first, again, other):
        flock._draw(shapes, plan(4, noise_multiplier=9.0), 1000)
    assert_equal(first.directions, again.directions, 0)
    assert length(first.directions).numpy() == pytest.approx(1, abs=1e-6)
    rows = torch.cat(
        [
            torch.cat([value.flatten(1) for value in flock.directions.values()], 1)
            for flock in (first, other)
        ]
    )
    assert (rows @ rows.T - torch.eye(len(rows))).abs().max() < 6 / math.sqrt(1000)


# ---------------------------------------------------------------- whom they are for

BUDGET = cells.Privacy("gaussian", noise_multiplier=2.0, delta=1e-3, clip_norm=1.0)
CELL = dataclasses.replace(fake_attacks.CELL, privacy=BUDGET, method="dp_fedavg")


def test_sampled_clients_are_refused():
    with pytest.raises(ConfigError, match=r"canaries: training\.sample_rate; got 0\.5; expected 1"):
        canaries.attack(idle(2.0, sample_rate=0.5))


@pytest.mark.parametrize(
    "changes",
    [
        {"training": dataclasses.replace(CELL.training, sample_rate=0.5)},
        {"privacy": dataclasses.replace(BUDGET, mechanism="laplace")},
        {"privacy": cells.Privacy(), "method": "fedavg", "departures": ("data_size_weights",)},
        {"departures": ("noise_on_support",)},
        {"departures": ("per_tensor_clip",)},
    ],
)
def test_a_run_without_one_gaussian_sum_is_refused_and_left_out(changes, tmp_path):
    cell = dataclasses.replace(CELL, **changes)
    study = Study("made", "Made", "Made up.", (Row(cell), Row(CELL)))
    assert attacks.cells("canaries", study) == [CELL]
    with pytest.raises(
        ConfigError, match=r"attack canaries: .*expected one draw of Gaussian noise"
    ):
        attacks.run("canaries", cell, None, tmp_path / "x.npz", device="cpu", backend="loop")
    with pytest.raises(ConfigError, match="study made: no run for attack canaries"):
        attacks.cells("canaries", dataclasses.replace(study, rows=(Row(cell),)))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- figure and table


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Study, Path]:
    """Two settings of two seeds: canaries around the claimed mu of 1, and around 2 where 1 is
    claimed."""
    tight = dataclasses.replace(BUDGET, delta=1e-4)
    rows = [
        dataclasses.replace(CELL, seed=seed, privacy=privacy)
        for privacy in (BUDGET, tight)
        for seed in (0, 1)
    ]
    for cell in rows:
        x = np.random.default_rng(cell.seed).normal(1 + (cell.privacy is tight), 1, 60)
        fake_attacks.store(cell, tmp_path, "canaries", x=x, coordinates=np.array(1000))
    return Study("made", "Made", "Made up.", tuple(Row(cell) for cell in rows)), tmp_path


def test_the_table_raises_an_alarm_only_when_the_estimate_is_far_above_the_claim(stored):
    table = shown.table(*stored)
    assert table["mu_claimed"].tolist() == [1.0, 1.0]
    assert table["canaries"].tolist() == [120, 120]
    assert table["mu_estimate"].tolist() == pytest.approx([1, 2], abs=0.35)
    assert table["crowding"].tolist() == pytest.approx([60 * 4 / (4 * 1000)] * 2)
    assert table["alarm"].tolist() == [False, True]


def test_the_figure_has_estimate_and_claim_of_each_setting_and_marks_an_alarm(stored):
    (axes,) = shown.figure(*stored, 6.7).axes
    assert len(axes.get_yticklabels()) == 2
    marks = {mark.get_label(): mark for mark in axes.get_legend_handles_labels()[0]}
    quiet, alarm = marks["estimate ± 3 standard errors"][0], marks["alarm"][0]
    assert [*quiet.get_ydata(), *alarm.get_ydata()] == list(axes.get_yticks())
    table = shown.table(*stored)
    assert [*quiet.get_xdata(), *alarm.get_xdata()] == list(table["mu_estimate"])
    assert list(marks["claimed"].get_xdata()) == [1.0, 1.0]


@pytest.mark.slow
def test_where_little_is_sent_there_are_few_canaries():
    world = idle(2.0, "dp_pfeddsu")
    _, rounds, _ = spied(world)
    sent = sum(int(torch.count_nonzero(value)) for value in rounds[0][2].sum.values())
    assert 0.6 < sent / world.network.parameters < 0.7
    told = canaries.attack(
        dataclasses.replace(world, plan=dataclasses.replace(world.plan, noise_multiplier=0.6))
    )
    assert (int(told["coordinates"]), len(told["x"])) == (sent, int(0.1 * 0.36 * sent / ROUNDS))
