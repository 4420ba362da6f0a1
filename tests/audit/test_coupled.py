"""Level 0: every sound release passes, every published one is caught, in seconds."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from audit_plans import KEY, REFERENCE
from pflpipe.auditing import cases, neighbours
from pflpipe.auditing.coupled import longest, sensitivity
from pflpipe.auditing.evidence import WIDEST, Sensitivity
from pflpipe.auditing.neighbours import Audited, directions, drawn_rows, uploads
from pflpipe.privacy.departures import check_extras
from pflpipe.privacy.mechanism import Uploads, release
from pflpipe.seeds import derived_key

CASES = cases.cases()
# Nothing in a single release is wrong: two protect no less, one tells who takes part.
HARMLESS_ALONE = {"noise_not_divided", "update_against_global", "public_sampling"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.departures])
def test_certified_releases_keep_their_claim(name):
    worst = sensitivity(CASES[name].audited(), KEY)
    assert not worst.flagged
    assert 0.98 <= worst.length <= 1.03  # the bound is reached, so the audit looks where it should
    assert worst.length_most < 1.06
    assert worst.spread < 1e-5
    assert worst.noise == pytest.approx(1, abs=0.006)
    assert 0.99 < worst.detects < worst.noise_least < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.departures])
def test_published_releases_are_flagged(name):
    departures = set(CASES[name].departures)
    # Fewer draws than an audit makes, which finds no less.
    worst = sensitivity(CASES[name].audited(), KEY, 1_500)
    assert worst.flagged == (not departures <= HARMLESS_ALONE)


# Of six tensors, three layers, and four clients; with weights p it is p_k^2 m / |p|^2.
SQUARES = {"per_tensor_clip": 6, "per_layer_clip_unscaled": 3, "noise_not_divided": 1 / 4}
SQUARES["data_size_weights"] = 0.5**2 * 4 / (0.5**2 + 3 / 6**2)


@pytest.mark.parametrize("departure", SQUARES)
def test_lengths_are_those_of_the_ledger(departure):
    length = math.sqrt(SQUARES[departure])
    mechanism = Audited(REFERENCE, REFERENCE, frozenset({departure}))
    assert sensitivity(mechanism, KEY).length == pytest.approx(length, rel=0.04)


@pytest.mark.slow
def test_more_noise_is_never_flagged():
    more = dataclasses.replace(REFERENCE, noise_multiplier=2.105 * 1.5)
    worst = sensitivity(Audited(more, REFERENCE), derived_key(KEY, 7))
    assert not worst.flagged
    assert worst.length == pytest.approx(1 / 1.5, rel=0.03)
    assert worst.noise == pytest.approx(1.5, rel=0.006)


@pytest.mark.slow
def test_too_little_noise_is_flagged_from_the_factor_on_that_the_audit_says_it_detects():
    factor = sensitivity(Audited(REFERENCE, REFERENCE), KEY).detects
    assert factor > 0.99
    less = dataclasses.replace(REFERENCE, noise_multiplier=2.105 * factor)
    found = [sensitivity(Audited(less, REFERENCE), derived_key(KEY, seed)) for seed in range(6)]
    assert sum(one.flagged for one in found) >= 4  # nine of ten; the benchmark counts more of them
    assert not any(one.length > one.length_most for one in found)


def test_limits_are_exclusive():
    assert not Sensitivity("dirac", 1.04, 1.04, WIDEST, 0.99, 0.99).flagged
    assert Sensitivity("dirac", 1.041, 1.04, 0.0).flagged
    assert Sensitivity("dirac", 0.0, 1.04, WIDEST * 1.001).flagged
    assert Sensitivity("dirac", math.inf, 1.04, 0.0).flagged
    assert Sensitivity("dirac", 0.0, 1.04, 0.0, 0.989, 0.99).flagged


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.01, 0.5, 0.9])
def test_lengths_by_an_estimated_covariance_vary_as_it_is_said_that_they_do(probability):
    rng, draws, coordinates = np.random.default_rng(0), 200, 20
    noise = rng.standard_normal((4000, draws, coordinates))
    noise -= noise.mean(axis=1, keepdims=True)
    n = draws - 1
    inverse = np.linalg.inv(noise.transpose(0, 2, 1) @ noise / n)[:, 0, 0]
    lengths = np.sqrt(inverse * (n - coordinates - 1) / n)
    longer = (lengths > longest(draws, coordinates, probability)).mean()
    assert longer == pytest.approx(probability, abs=0.02)


@pytest.mark.slow
def test_a_release_without_any_noise_has_no_finite_length():
    silent = dataclasses.replace(REFERENCE, noise_multiplier=0.0)
    assert sensitivity(Audited(silent, REFERENCE), KEY).length == math.inf


def test_rows_of_clients_that_were_not_drawn_go_no_further_as_in_training():
    present = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    rows = torch.arange(12.0).reshape(3, 4, 1)
    sent, here, clients = drawn_rows(Uploads({"w": rows}, {"size": rows[:, :, 0]}), present)
    assert clients.tolist() == [[1, 3], [0, 1], [0, 1]]
    assert here.tolist() == [[True, True], [False, False], [True, False]]
    for value in (sent.update["w"][:, :, 0], sent.extras["size"]):
        assert value.tolist() == [[1, 3], [4, 5], [8, 9]]
    nobody = drawn_rows(Uploads({"w": rows}), torch.zeros_like(present))
    assert nobody[1].tolist() == [[False]] * 3
    assert nobody[2].tolist() == [[0]] * 3


@pytest.mark.slow
def test_a_secret_canary_is_looked_at_in_cohorts_of_fewer_clients_than_the_plan_has():
    counts = set()

    def counting(generator, sent, present, *rest):
        counts.add((present.shape[1], int(present[0].sum())))
        return release(generator, sent, present, *rest)

    mechanism = CASES["gaussian-drawn-central"].audited()
    assert not sensitivity(dataclasses.replace(mechanism, release=counting), KEY).flagged
    assert counts == {(5, 5), (4, 4), (1, 1), (1, 0)}  # of 24; with the canary and without


def audited(name):
    """Return the mechanism of a case, and the model that it releases."""
    mechanism = CASES[name].audited()
    return mechanism, mechanism.network.init(torch.Generator().manual_seed(0))


LAWS = ("gaussian", "gaussian-scaled_by_fedaddp", "gaussian-scaled_by_fedpac", "laplace")


@pytest.mark.parametrize("law", LAWS)
def test_canaries_are_as_long_as_they_say_in_public_units(law):
    mechanism, params = audited(f"{law}-central")
    further = ("parts",) if "fedpac" in law else ()
    scale = mechanism.scale(params, mechanism.init_server(params))
    library = directions(mechanism, params)
    assert tuple(library) == neighbours.CANARIES + further
    assert all(tree.keys() == mechanism.shapes.keys() for tree in library.values())
    tensors = len(mechanism.shapes)
    norm, lengths = mechanism.plan.norm, {"long": math.sqrt(tensors), "huge": 1e6}
    for canary, tree in library.items():
        sent = uploads(mechanism, tree, True, scale, 2)
        rows = [sent.update[name][0, 0] / scale.get(name, torch.ones(())) for name in tree]
        flat = torch.cat([row.reshape(-1) for row in rows])
        expected = lengths.get(canary, 1.0) * mechanism.plan.clip_norm
        assert torch.linalg.vector_norm(flat, ord=norm).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_worlds_differ_in_the_canary_alone_and_have_the_side_entries_that_are_read(name):
    mechanism, params = audited(name)
    tree = directions(mechanism, params)["exclusive"]
    there, absent = (uploads(mechanism, tree, here, {}, 3) for here in (True, False))
    clients = mechanism.plan.clients
    others = torch.arange(clients) != mechanism.canary
    for left, right in ((there.update, absent.update), (there.extras, absent.extras)):
        assert left.keys() == right.keys()
        for key in left:
            assert left[key].shape[:2] == (3, clients)
            assert torch.equal(left[key][:, others], right[key][:, others])
    # Where a bit is released beside the update, who is absent is not finite: zeros would have one.
    for value in absent.update.values():
        assert not value[:, mechanism.canary].nan_to_num(0).any()
    for key, mask in neighbours.exclusive(tree).items():
        assert not there.update[key][:, others][:, :, mask].any(), "nobody else keeps them"
    how = torch.ones(3, clients, dtype=torch.bool), mechanism.plan, mechanism.release_departures
    for world in (there, absent):
        check_extras(world.update, world.extras, *how)


def test_a_method_that_sends_further_parts_is_audited_with_them_alone_and_together():
    mechanism, params = audited("gaussian-scaled_by_fedpac-central")
    library = directions(mechanism, params)
    assert mechanism.shapes == mechanism.network.shapes | {"centroids": (2, 4)}
    touched = {canary: {k for k in tree if tree[k].any()} for canary, tree in library.items()}
    assert touched["parts"] == {"centroids"}
    assert touched["aligned"] == set(params)
    assert all(touched[canary] == set(mechanism.shapes) for canary in ("exclusive", "long", "huge"))
