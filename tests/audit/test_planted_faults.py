"""Faults, planted one by one; each is caught by the check that is there for it."""

import dataclasses

import pytest
import torch

from audit_plans import DRAWN, KEY, LAPLACE, REFERENCE
from pflpipe.auditing.coupled import FEWER_DRAWS, sensitivity
from pflpipe.auditing.distinguish import distinguish
from pflpipe.auditing.evidence import WIDEST, Sensitivity
from pflpipe.auditing.neighbours import Audited
from pflpipe.methods import registry
from pflpipe.privacy import cohorts, mechanism
from pflpipe.seeds import release_rng
from releases import told

pytestmark = pytest.mark.slow


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


def other(clip=1.0, noise=1.0):
    """A release that is told so many times the clip bound and the multiplier."""

    def change(plan):
        multiplier = noise * plan.noise_multiplier
        return {"clip_norm": clip * plan.clip_norm, "noise_multiplier": multiplier}

    return told(change)


without_clip = other(clip=1e9, noise=1e-9)
clip_at_1 = told(
    lambda plan: {"clip_norm": 1.0, "noise_multiplier": plan.noise_multiplier * plan.clip_norm}
)


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
    "noise x 0.9": (other(noise=0.9), "length"),
    "noise x 0.97": (other(noise=0.97), "noise"),
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


@pytest.mark.parametrize(("plan", "fault"), FAULTS)
def test_coupled_worlds_catch_a_patched_release(plan, fault, sound):
    release, check = (RELEASES | DRAWN_ONLY)[fault]
    plan = PLANS[plan]
    assert not sound[plan].flagged
    assert check in caught_by(coupled(Audited(plan, plan, release=release)))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_coupled_worlds_catch_the_same_noise_in_every_round(plan, sound):
    def forgets_the_round(key, *name):
        return release_rng(key, name[0])

    assert not sound[plan].flagged
    assert Audited(plan, plan).rng is release_rng, "as in training (test_residuals.py)"
    found = coupled(Audited(plan, plan, rng=forgets_the_round))
    assert found.length == float("inf")
    assert caught_by(found) == {"length"}


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


def clipped_part_by_part(generator, uploads, present, plan, scale, departures):
    """The parameters to C, and what is sent besides to C as well, under noise for one C."""
    parts = [uploads.update.keys() - scale.keys(), scale.keys()]
    found = []
    for part in parts:
        sent, units = ({k: t[k] for k in t if k in part} for t in (uploads.update, scale))
        given = generator, mechanism.Uploads(sent), present, plan, units
        found.append(mechanism.release(*given, departures))
    return dataclasses.replace(found[0], sum=found[0].sum | found[1].sum)


def with_private_weights(generator, uploads, present, plan, scale, departures):
    """The budget is divided as the longest upload is: by its parts' own norms."""
    rows = {name: value.flatten(2) for name, value in uploads.update.items()}
    own = {name: torch.linalg.vector_norm(row, dim=2).amax() for name, row in rows.items()}
    shares = {name: value / max(own.values()) for name, value in own.items()}
    return mechanism.release(generator, uploads, present, plan, shares, departures)


def parts_unclipped(generator, uploads, present, plan, scale, departures):
    """Parameters are clipped; what is sent besides them is released as it is."""
    released = mechanism.release(generator, uploads, present, plan, scale, departures)
    free = without_clip(generator, uploads, present, plan, scale, departures)
    further = {name: free.sum[name] for name in released.sum if name in scale}
    return dataclasses.replace(released, sum=released.sum | further)


JOINT = {
    "control variates outside of the clip": ("dp_scaffold", parts_unclipped, "length"),
    "statistics outside of the clip": ("pfedfda", parts_unclipped, "length"),
    "each part clipped to C": ("fedpac", clipped_part_by_part, "length"),
    "weights of the parts from the upload's own norms": ("fedpac", with_private_weights, "spread"),
}


@pytest.mark.parametrize("fault", JOINT)
def test_coupled_worlds_catch_a_joint_release_that_is_none(fault):
    method, release, check = JOINT[fault]
    sound = Audited(REFERENCE, REFERENCE, method=registry.info(method).factory())
    assert not coupled(sound).flagged
    assert check in caught_by(coupled(dataclasses.replace(sound, release=release)))


def test_whole_runs_catch_a_wrong_sampling_rate():
    def sample(rng, plan, repeats):
        return cohorts.sample_clients(rng, dataclasses.replace(plan, sample_rate=0.3), repeats)

    wrong = Audited(DRAWN, DRAWN, sample=sample)
    assert not coupled(wrong).flagged  # nothing is wrong with a single release
    assert distinguish(wrong, "dirac", 1000, KEY).flagged


def test_whole_runs_catch_a_schedule_that_everybody_knows():
    known = frozenset({"public_sampling"})
    assert distinguish(Audited(DRAWN, DRAWN, known), "dirac", 1000, KEY).flagged
