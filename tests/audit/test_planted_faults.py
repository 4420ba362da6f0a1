"""Faults, planted one by one; each is caught by the check that is there for it."""

import dataclasses

import pytest
import torch

from audit_plans import DRAWN, KEY, LAPLACE, REFERENCE
from pflpipe.auditing.coupled import FEWER_DRAWS, sensitivity
from pflpipe.auditing.distinguish import distinguish
from pflpipe.auditing.evidence import WIDEST, Sensitivity
from pflpipe.auditing.neighbours import Audited
from pflpipe.errors import DataError
from pflpipe.methods import registry
from pflpipe.privacy import cohorts, mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.seeds import release_rng
from pflpipe.simulation import rounds
from simulations import held, plan, simulation

torch.set_num_threads(1)


def coupled(mechanism: Audited) -> Sensitivity:
    """Return what a quarter of an audit's draws find; an audit finds no less."""
    return sensitivity(mechanism, KEY, FEWER_DRAWS)


def caught_by(found: Sensitivity) -> set[str]:
    """Return the checks of coupled worlds that find something."""
    assert found.noise is not None
    assert found.noise_least is not None
    failed = {"length": found.length > found.length_most, "spread": found.spread > WIDEST}
    failed |= {"noise": found.noise < found.noise_least}
    assert found.flagged == any(failed.values())
    return {name for name, bad in failed.items() if bad}


def told(clip, noise):
    """Return a release that is told other numbers: ``clip(plan)``, the bound, and
    ``noise(plan)``, the multiplier."""

    def release(generator, uploads, present, plan, *rest):
        changes = {"clip_norm": clip(plan), "noise_multiplier": noise(plan)}
        return mechanism.release(
            generator, uploads, present, dataclasses.replace(plan, **changes), *rest
        )

    return release


def less_noise(factor):
    return told(lambda plan: plan.clip_norm, lambda plan: plan.noise_multiplier * factor)


without_clip = told(lambda plan: plan.clip_norm * 1e9, lambda plan: plan.noise_multiplier / 1e9)
clip_at_1 = told(lambda plan: 1.0, lambda plan: plan.noise_multiplier * plan.clip_norm)


def masked_after_the_noise(generator, uploads, present, *rest):
    released = mechanism.release(generator, uploads, present, *rest)
    axis = present.ndim - 1
    kept = {name: (value != 0).any(dim=axis) for name, value in uploads.update.items()}
    sums = {name: value * kept[name] for name, value in released.sum.items()}
    return dataclasses.replace(released, sum=sums)


def with_other_noise(change):
    """Return a release whose noise is changed: ``change(noise [R, *shape], plan, present)``."""

    def release(generator, uploads, present, plan, *rest):
        released = mechanism.release(generator, uploads, present, plan, *rest)
        spoiled = {}
        for name, value in released.sum.items():
            clean = released.clean[name]
            spoiled[name] = (clean + change(value.double() - clean, plan, present)).to(value.dtype)
        return dataclasses.replace(released, sum=spoiled)

    return release


def repeating(noise, plan, present):
    flat = noise.flatten(1).clone()
    half = flat.shape[1] // 2
    flat[:, half : 2 * half] = flat[:, :half]
    return flat.reshape(noise.shape)


def of_the_rows(noise, plan, present):
    """Divided by the number of clients that were drawn, instead of the q M that everybody knows:
    it shows who was, and is too little for many."""
    return noise * plan.expected_cohort / present.shape[1]


RELEASES = {
    "noise x 0.9": (less_noise(0.9), "length"),
    "noise x 0.97": (less_noise(0.97), "noise"),
    "noise / 10": (less_noise(0.1), "length"),
    "noise without C": (with_other_noise(lambda z, plan, _: z / plan.clip_norm), "noise"),
    "noise with C twice": (with_other_noise(lambda z, plan, _: z * plan.clip_norm), "noise"),
    "half of a tensor's noise repeats the other": (with_other_noise(repeating), "length"),
    "clip forgotten": (without_clip, "length"),
    "clip at 1 whatever C is": (clip_at_1, "length"),
    "dense noise, then a private mask": (masked_after_the_noise, "spread"),
}
OF_ALL_PLANS = ("noise x 0.97", "noise without C", "half of a tensor's noise repeats the other")
DRAWN_ONLY = {"noise over the number of rows": (with_other_noise(of_the_rows), "spread")}
PLANS = {"everybody": REFERENCE, "drawn": DRAWN, "laplace": LAPLACE}
FAULTS = [
    *(("everybody", fault) for fault in RELEASES),
    *(("drawn", fault) for fault in (*OF_ALL_PLANS, *DRAWN_ONLY)),
    *(("laplace", fault) for fault in OF_ALL_PLANS),
]


@pytest.fixture(scope="module")
def sound():
    """What is found of the mechanism as it is, under each plan."""
    return {plan: coupled(Audited(plan, plan)) for plan in PLANS.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "fault"), FAULTS)
def test_coupled_worlds_catch_a_patched_release(plan, fault, sound):
    release, check = (RELEASES | DRAWN_ONLY)[fault]
    plan = PLANS[plan]
    assert not sound[plan].flagged
    assert check in caught_by(coupled(Audited(plan, plan, release=release)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_coupled_worlds_catch_the_same_noise_in_every_round(plan, sound):
    def forgets_the_round(key, *name):
        return release_rng(key, name[0])

    assert not sound[plan].flagged
    found = coupled(Audited(plan, plan, rng=forgets_the_round))
    assert found.length == float("inf")
    assert caught_by(found) == {"length"}


@pytest.mark.slow
def test_coupled_worlds_catch_messages_that_share_their_noise():
    local = dataclasses.replace(REFERENCE, noise_multiplier=REFERENCE.noise_multiplier / 2)

    def shared(*given):
        released, messages = mechanism.release(*given), {}
        for name, clean in released.clean.items():
            messages[name] = clean + (released.messages[name] - clean)[:, :1]
        return dataclasses.replace(released, messages=messages)

    sound = Audited(REFERENCE, local, trust="local")
    assert not coupled(sound).flagged
    assert coupled(dataclasses.replace(sound, release=shared)).length == float("inf")


def test_training_gives_every_round_the_generators_that_the_audit_gives_it():
    """So that noise which repeats itself where a round's generator is derived is the audit's to
    find."""
    world, states = simulation("dp_fedavg", plan=plan(rounds=3)), []

    def recording(generator, *rest):
        states.append(str(generator.bit_generator.state))
        return mechanism.release(generator, *rest)

    world = dataclasses.replace(world, release=recording)
    rounds.run(world, rounds.start(world))
    expected = [release_rng(world.key, "noise", round).bit_generator.state for round in range(3)]
    assert states == [str(state) for state in expected]
    assert len(set(states)) == 3
    assert Audited(REFERENCE, REFERENCE).rng is release_rng


def clipped_part_by_part(generator, uploads, present, plan, scale, departures):
    """The parameters to C, and what is sent besides to C as well, under noise for one C."""
    parts = [uploads.update.keys() - scale.keys(), scale.keys()]
    found = []
    for part in parts:
        sent, units = ({k: t[k] for k in t if k in part} for t in (uploads.update, scale))
        given = generator, Uploads(sent), present, plan, units
        found.append(mechanism.release(*given, departures))
    return dataclasses.replace(found[0], sum=found[0].sum | found[1].sum)


def with_private_weights(generator, uploads, present, plan, scale, departures):
    """The budget is divided as the longest upload is: by its parts' own norms."""
    rows = {name: value.flatten(2) for name, value in uploads.update.items()}
    own = {name: torch.linalg.vector_norm(row, dim=2).amax() for name, row in rows.items()}
    shares = {name: value / max(own.values()) for name, value in own.items()}
    return mechanism.release(generator, uploads, present, plan, shares, departures)


def with_parts_outside_of_the_clip(generator, uploads, present, plan, scale, departures):
    """Parameters are clipped; what is sent besides them is released as it is."""
    released = mechanism.release(generator, uploads, present, plan, scale, departures)
    free = without_clip(generator, uploads, present, plan, scale, departures)
    further = {name: free.sum[name] for name in released.sum if name in scale}
    return dataclasses.replace(released, sum=released.sum | further)


JOINT = {
    "each part clipped to C": (clipped_part_by_part, "length"),
    "weights of the parts from the upload's own norms": (with_private_weights, "spread"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dp_scaffold", "pfedfda"])
def test_coupled_worlds_catch_control_variates_or_statistics_outside_of_the_clip(method):
    sound = Audited(REFERENCE, REFERENCE, method=registry.info(method).factory())
    assert not sensitivity(sound, KEY).flagged
    faulty = dataclasses.replace(sound, release=with_parts_outside_of_the_clip)
    assert "length" in caught_by(sensitivity(faulty, KEY))


@pytest.mark.slow
def test_coupled_worlds_catch_a_joint_release_that_is_none():
    sound = Audited(REFERENCE, REFERENCE, method=registry.info("fedpac").factory())
    assert not coupled(sound).flagged
    for release, check in JOINT.values():
        assert check in caught_by(coupled(dataclasses.replace(sound, release=release)))


@pytest.mark.slow
def test_whole_runs_catch_a_wrong_sampling_rate():
    def sample(rng, plan, repeats):
        return cohorts.sample_clients(rng, dataclasses.replace(plan, sample_rate=0.3), repeats)

    wrong = Audited(DRAWN, DRAWN, sample=sample)
    assert not coupled(wrong).flagged  # nothing is wrong with a single release
    assert distinguish(wrong, "dirac", 1000, KEY).flagged


@pytest.mark.slow
def test_whole_runs_catch_a_schedule_that_everybody_knows():
    known = frozenset({"public_sampling"})
    assert distinguish(Audited(DRAWN, DRAWN, known), "dirac", 1000, KEY).flagged


def test_the_count_of_releases_catches_one_round_too_many():
    world = simulation("dp_fedavg", plan=plan(rounds=3))
    done = rounds.run(world, rounds.start(world))
    held(world, done)
    rounds.one_round(world, done)
    with pytest.raises(DataError, match="4"):
        held(world, done)


@pytest.mark.slow
def test_a_patched_release_is_the_only_difference(sound):
    """The faults above are caught for what they do: the same wrapper without a fault passes."""

    def same(*given) -> Released:
        return mechanism.release(*given)

    assert coupled(Audited(REFERENCE, REFERENCE, release=same)) == sound[REFERENCE]
