"""The law of a run: its cohorts and its noise are those of its key and of the plan on file, to the
bit, and a run of anything else is refused.

The faults are planted where an engine has them: in the release, in what a round takes for its plan,
in the draw of clients. audit/test_residuals.py looks at the law of the noise itself, from outside.
"""

import dataclasses
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pflpipe.errors import DataError
from pflpipe.methods import registry
from pflpipe.privacy import cohorts
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.privacy.plan import Adaptive
from pflpipe.privacy.residuals import of_release
from pflpipe.privacy.run_check import Residuals
from pflpipe.seeds import release_rng
from pflpipe.simulation import rounds
from pflpipe.simulation.simulation import Simulation
from releases import GAUSSIAN, LAPLACE, NOTHING, SAMPLED, published, torch_generator, uploads
from residual_runs import CERTIFIED, NORMS, certified_run, mechanism_of, watch
from simulations import held, plan, simulation

torch.set_num_threads(1)
SOME = torch.tensor([True, True, False, True, False, True])
STRANGERS = "took part undrawn, or were drawn and did not; got [1-9]"
REFUSED = "released numbers without exactly the noise of its plan; got [1-9]"


def run_and_check(world):
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    return done


def small(**changes):
    """A run of five rounds of a few hundred numbers."""
    options = {name: changes.pop(name) for name in ("dtype",) if name in changes}
    rule = plan(4, rounds=5, noise_multiplier=1.0, **changes)
    return simulation("dp_fedavg", plan=rule, shape=(60,), local_epochs=1, **options)


def look(rule, sent, present, released, *, scale=None, key="k", steps=frozenset()):
    """What a check of one release finds."""
    rest = (steps, key, range(6), sent, present, scale or {}, released)
    return of_release(Residuals(), rule, *rest)


def with_noise(world, factor):
    """The same run with noise of another size in its releases than the plan on file has."""

    def changed(generator, uploads, present, plan, *rest):
        other = replace(plan, noise_multiplier=factor * plan.noise_multiplier)
        return release(generator, uploads, present, other, *rest)

    return replace(world, release=changed)


# ---------------------------------------------------------------- what keeps its plan


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rule", [GAUSSIAN, SAMPLED, LAPLACE])
def test_what_was_sent_is_counted_and_one_other_bit_is_found(rule, dtype):
    update = uploads(dtype=dtype, size=2.0)
    scale = {"vector": torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0], dtype=dtype)}
    scale["matrix"] = torch.tensor(0.3, dtype=dtype)
    drawn = cohorts.sample_clients(release_rng("k", "sample", 0), rule)
    present = torch.from_numpy(drawn)
    given = rule, Uploads(update), present
    released = release(release_rng("k", "noise", 0), Uploads(update), present, rule, scale)
    sent = 12 + 3 + 1 + 70  # those with a scale of 0 are not
    assert look(*given, released, scale=scale) == Residuals(releases=1, coordinates=sent)
    for name, value in released.sum.items():
        for place in range(value.numel()):
            other = value.clone()
            flat = other.view(-1)
            flat[place] = torch.nextafter(flat[place], torch.tensor(math.inf, dtype=dtype))
            changed = replace(released, sum=released.sum | {name: other})
            found = look(*given, changed, scale=scale)
            assert found.mismatches == 1, "where the scale is 0 too"
    assert look(*given, released, scale=scale, key="another key").mismatches == sent
    more = replace(released, sum=released.sum | {"raw": update["vector"].sum(0)})
    found = look(*given, more, scale=scale)
    assert found.mismatches == 1, "a tensor that is no part of the update"


def test_without_noise_none_is_drawn():
    for rule in (NOTHING, replace(GAUSSIAN, noise_multiplier=0.0)):
        present = torch.from_numpy(cohorts.sample_clients(release_rng("k", "sample", 0), rule))
        released = release(release_rng("k", "noise", 0), Uploads(uploads()), present, rule)
        assert look(rule, Uploads(uploads()), present, released) == Residuals(releases=1)


def profiles():
    """Methods with the departures of their papers and of their official codes, for networks without
    normalisation."""
    for method in CERTIFIED:
        for official in (False, True):
            about = registry.info(method).about
            steps = about.paper_departures + (about.official_departures if official else ())
            if steps and "norm" not in about.needs and (about.official_departures or not official):
                yield method, tuple(sorted(steps))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), profiles())
def test_published_mechanisms_pass_and_other_noise_in_them_does_not(method, steps):
    mechanism = mechanism_of(method)
    rule = plan(4, rounds=8, sample_rate=0.7, mechanism=mechanism, norm=NORMS[mechanism])
    world = simulation(method, plan=rule, departures=steps, shape=(30,), local_epochs=1)
    assert run_and_check(world).residuals.coordinates > 100
    with pytest.raises(DataError, match=REFUSED):
        run_and_check(with_noise(world, 0.999))


def test_every_combination_of_published_departures_is_among_them():
    assert {steps for _, steps in profiles()} == set(published())


def test_only_messages_of_clients_that_are_there_count():
    update = uploads(dtype=torch.float64)
    draws = {
        n: torch.rand(value.shape, generator=torch_generator(1)) for n, value in update.items()
    }
    mask = {f"mask.{name}": draw < 0.5 for name, draw in draws.items()}
    steps = frozenset({"noise_on_support"})
    sent = Uploads(update, mask)
    released = release(release_rng("k", "noise", 0), sent, SOME, SAMPLED, departures=steps)
    found = look(SAMPLED, sent, SOME, released, steps=steps)
    assert found.coordinates == sum(int(value[SOME].sum()) for value in mask.values())
    assert found.mismatches == 0
    for client, seen in ((0, 1), (2, 0)):
        messages = {name: value.clone() for name, value in released.messages.items()}
        messages["scalar"][client] += 1
        other = replace(released, messages=messages)
        assert look(SAMPLED, sent, SOME, other, steps=steps).mismatches == seen


def test_watching_a_run_is_not_part_of_it():
    world = certified_run("fedaddp", 0.5, torch.float64).world
    plain, watched = rounds.run(world, rounds.start(world)), watch(world).done
    assert plain.residuals == watched.residuals
    assert all(torch.equal(value, watched.params[name]) for name, value in plain.params.items())


# ---------------------------------------------------------------- noise of something else


@pytest.mark.parametrize("mechanism", NORMS)
@pytest.mark.parametrize("factor", [0.0, 0.5, 1 - 1e-12, 1 + 1e-12, 2.0])
def test_noise_of_another_size_is_refused(mechanism, factor):
    world = small(mechanism=mechanism, norm=NORMS[mechanism])
    run_and_check(world)
    with pytest.raises(DataError, match=REFUSED):
        run_and_check(with_noise(world, factor))


def one_other_round(world):
    """In the first round half of the noise."""
    releases = itertools.chain([with_noise(world, 0.5).release], itertools.repeat(release))
    return lambda *arguments: next(releases)(*arguments)


def the_last_round(world):
    numbers = itertools.chain([0], itertools.count())

    def again(generator, *arguments):
        return release(release_rng(world.key, "noise", next(numbers)), *arguments)

    return again


def rounded_apart(world):
    def apart(*arguments):
        released = release(*arguments)
        clean = {name: value.float() for name, value in released.clean.items()}
        noise = {n: (released.sum[n].double() - released.clean[n]).float() for n in clean}
        return replace(released, sum={name: clean[name] + noise[name] for name in clean})

    return apart


def divided_by_the_realised_cohort(world):
    def by_the_cohort(generator, uploads, present, plan, *rest):
        released = release(generator, uploads, present, plan, *rest)
        factor = plan.expected_cohort / max(1, int(present.sum()))
        return replace(released, sum={name: v * factor for name, v in released.sum.items()})

    return by_the_cohort


FAULTS = {one_other_round: {}, the_last_round: {}, rounded_apart: {"dtype": torch.float32}}
FAULTS[divided_by_the_realised_cohort] = {"sample_rate": 0.5}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_noise_of_something_else_is_refused(fault):
    world = small(**FAULTS[fault])
    run_and_check(world)
    with pytest.raises(DataError, match=REFUSED):
        run_and_check(replace(world, release=fault(world)))


# ---------------------------------------------------------------- another plan than that on file


def test_a_plan_in_force_that_follows_private_norms_is_refused():
    """Adaptive clipping, where a round has a plan of its own: clip bound and noise shrink to the
    largest norm of the last round, and methods and releases agree on it."""
    norms = []

    class Shrinking(Simulation):
        def task_in(self, round, bound=None):
            return super().task_in(round, min([bound or self.plan.clip_norm, *norms[-1:]]))

    def noting(*arguments):
        released = release(*arguments)
        norms.extend([float(released.norms.max())] if "bits" not in released.sum else [])
        return released

    world = small(clip_norm=9.0, adaptive=Adaptive(0.5, 0.2, 2.0))
    run_and_check(world)
    fields = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    with pytest.raises(DataError, match=REFUSED):
        run_and_check(Shrinking(**fields | {"release": noting}))


def test_a_bound_that_moves_between_rounds_is_refused():
    world = small(adaptive=Adaptive(0.5, 0.2, 2.0))

    def move(progress):
        progress.bound *= 0.9

    done = rounds.run(world, rounds.start(world), move)
    with pytest.raises(DataError, match=REFUSED):
        held(world, done)


# ---------------------------------------------------------------- other cohorts


@pytest.mark.parametrize("rate", [0.5, 0.51, 1.0])
def test_a_cohort_of_another_rate_is_refused(rate, monkeypatch):
    rule = plan(400, rounds=5, sample_rate=0.505)
    world = simulation("dp_fedavg", plan=rule, sizes=(1,) * 400, local_epochs=1, backend="vmap")
    run_and_check(world)
    original = cohorts.sample_clients

    def other(generator, plan, *rest):
        return original(generator, replace(plan, sample_rate=rate), *rest)

    monkeypatch.setattr(cohorts, "sample_clients", other)
    with pytest.raises(DataError, match=STRANGERS):
        run_and_check(world)


def test_a_cohort_of_the_same_size_is_refused_where_it_is_another(monkeypatch):
    world = simulation("dp_fedavg", plan=plan(rounds=5, sample_rate=0.5), local_epochs=1)
    original = cohorts.sample_clients
    monkeypatch.setattr(cohorts, "sample_clients", lambda *given: np.roll(original(*given), 1))
    with pytest.raises(DataError, match=STRANGERS):
        run_and_check(world)


@pytest.mark.parametrize("steps", [("public_sampling",), ()])
def test_everybody_and_a_public_schedule_are_kept_exactly(steps, monkeypatch):
    rate = 0.5 if steps else 1.0
    world = simulation("dp_fedavg", plan=plan(rounds=5, sample_rate=rate), departures=steps)
    run_and_check(world)

    without_one = np.array([False, True, True, True])
    monkeypatch.setattr(rounds, "cohort", lambda *given: without_one)
    with pytest.raises(DataError, match=STRANGERS):
        run_and_check(world)
