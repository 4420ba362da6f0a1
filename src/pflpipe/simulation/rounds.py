"""The rounds of a federated run: sample -> local update -> release -> aggregate -> log.

All random numbers come from streams named by the round (and the client). A run that resumes after
round t therefore needs only the values at the end of round t and continues with the same bits.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.errors import PrivacyError
from pflpipe.facts.departures import SPLIT_CLIP
from pflpipe.learning.metrics import CURVES
from pflpipe.learning.solvers import Schedule
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import Method
from pflpipe.privacy import adaptive, clip_bits, cohorts, mechanism
from pflpipe.privacy.mechanism import Released, Uploads
from pflpipe.privacy.residuals import of_bits, of_release
from pflpipe.seeds import release_rng, seed_for
from pflpipe.simulation.isolation import CLIENTS, Sample
from pflpipe.simulation.progress import Progress as Progress
from pflpipe.simulation.simulation import Simulation
from pflpipe.simulation.states import States
from pflpipe.simulation.witness import Witness
from pflpipe.trees import ClientState, Params, Tree, Update

OF_MESSAGES = (
    *("update_norm_mean", "update_norm_max", "fraction_clipped", "nonfinite_uploads"),
    *("noise_norm", "signal_norm", "signal_to_noise", "wrapped"),
)
"""Diagnostics that only a server has that sees every message."""

COLUMNS = ("round", "participants", "loss", "clip_norm", *OF_MESSAGES, *CURVES)


def start(simulation: Simulation, states: Path | None = None) -> Progress:
    """Return the progress before the first round: initial parameters from the cell's seed, and
    every client's initial state.

    ``states`` is the file for the clients' states (states.py).
    """
    # Drawn on the CPU from the cell's seed: all runs of a seed start at the same model, on every
    # device.
    generator = torch.Generator().manual_seed(seed_for(simulation.seed, "init"))
    device = simulation.train.x.device
    drawn = simulation.network.init(generator, simulation.dtype)
    params = Params({name: value.to(device) for name, value in drawn.items()})
    task = simulation.task
    with simulation.calls("init_client", params):
        initial = simulation.method.init_client(params, task)
    states_of_clients = States(initial, simulation.plan.clients, states, simulation.processes)
    with simulation.calls("init_server", params):
        server = simulation.method.init_server(params, task)
    return Progress(0, params, server, states_of_clients)


def run(
    simulation: Simulation,
    progress: Progress,
    on_round: Callable[[Progress], object] = lambda progress: None,
) -> Progress:
    """Return the progress after the last round. ``on_round`` is called after each round and may
    return False, which ends the run.

    Raises:
        PrivacyError: a message of a private run depended on other clients (isolation.py), or code
            from outside kept something between its calls (witness.py).
    """
    # The libraries of a GPU choose kernels by shapes and memory: learn after one round, and not
    # after the last one, that some kernel does not keep clients apart. What code from outside keeps
    # between calls may be set in the first round alone.
    early = simulation.recipe is not None or simulation.train.x.device.type == "cuda"
    witness = None
    if simulation.recipe is not None and simulation.processes.is_first:
        witness = Witness(simulation)

    def compute(at: Progress, clients: Sequence[int]) -> Tree:
        return local_updates(simulation, at, clients).tree()

    def check(sample: Sample) -> None:
        if simulation.recipe is None:
            sample.check(compute)
        elif witness is not None:
            witness.clients(sample)

    sample: Sample | None = None
    first: Sample | None = None
    with witness or contextlib.nullcontext():
        while progress.round < simulation.plan.rounds:
            latest = one_round(simulation, progress, witness)
            if early and sample is None and latest is not None:
                check(first := latest)
            sample = latest or sample
            if witness is not None:
                witness.settle()
                progress.checked = witness.has_seen_clients
            if on_round(progress) is False:
                break

        if simulation.plan.mechanism != "none":
            # All cohorts since the run was resumed were empty: compute one round for the check.
            if sample is None:
                clients = range(simulation.plan.clients)[: 2 * CLIENTS]
                sample = Sample.begin(simulation.key, progress, clients)
                sample = sample.among(clients, compute(progress, clients))
            # Not in every round: the check costs the work of its clients again.
            if sample is not first:
                check(sample)
        if witness is not None:
            witness.settle(0)
            progress.checked = True
    return progress


def cohort(simulation: Simulation, round: int) -> np.ndarray:
    """Return the cohort of a round (counted from 0), bool ``[M]``, the same in every call."""
    if "public_sampling" in simulation.departures:
        return cohorts.public_cohort(round, simulation.plan)
    if simulation.plan.groups > 1:
        return cohorts.group_cohort(simulation.key, round, simulation.plan)
    return cohorts.sample_clients(release_rng(simulation.key, "sample", round), simulation.plan)


@dataclass(frozen=True)
class Computed:
    """The results of K clients in one round, stacked ``[K, ...]``. ``images`` counts the examples
    in all steps of each client."""

    update: Update
    extras: Tree
    loss: Tensor
    states: ClientState
    images: list[int]

    def tree(self) -> Tree:
        """Return messages and new states in one tree, with prefixes that keep names distinct."""
        return (
            trees.prefixed("update ", self.update)
            | trees.prefixed("extra ", self.extras)
            | trees.prefixed("state ", self.states)
        )


def local_updates(simulation: Simulation, progress: Progress, clients: Sequence[int]) -> Computed:
    """Return the results of these clients in the next round.

    Each client's part is, to the last bit, a function of its rows, its state and earlier releases.
    It depends neither on other clients in ``clients`` nor on diagnostics in ``progress``.
    """
    method = simulation.method
    task = simulation.task_in(progress.round, progress.bound)
    work = [simulation.work(client, progress.round) for client in clients]

    def hook(
        state: ClientState, batches: Batches, others: Mapping[str, Schedule]
    ) -> tuple[Update, Tree, Tensor, ClientState]:
        upload, new_state = method.local_update(
            progress.params, progress.server, state, batches, task
        )
        return upload.update, upload.extras, upload.loss, new_state

    with simulation.calls("local_update", progress.params, progress.server) as what:
        update, extras, loss, states = simulation.run_clients(
            hook, progress.states, clients, work, what
        )
    images = [int(parts["train"].count.sum()) for parts in work]
    return Computed(update, extras, loss, states, images)


def one_round(
    simulation: Simulation,
    progress: Progress,
    witness: Witness | None = None,
    compute: Callable[[Simulation, Progress, Sequence[int]], Computed] | None = None,
) -> Sample | None:
    """Run one round: replace the values of ``progress`` (never tensors in place) and append its
    diagnostics.

    ``compute`` returns the results of the cohort, in place of ``local_updates``; remote.py gets
    them from other machines.

    Returns:
        A sample of its clients for the check of isolation.py; None if the cohort is empty or the
        plan has no mechanism.
    """
    began = time.perf_counter()
    method, round = simulation.method, progress.round
    task = simulation.task_in(round, progress.bound)
    plan = task.plan
    drawn = cohort(simulation, round)
    # An empty cohort releases noise like any other. Client 0 then computes only to give the
    # shapes, and is not present.
    clients = [int(i) for i in drawn.nonzero()[0]] or [0]
    present = torch.from_numpy(drawn[clients])
    # The sample is taken before the clients compute: afterwards their old states may be gone.
    sample = None
    if present.any() and plan.mechanism != "none":
        sample = Sample.begin(simulation.key, progress, clients)
    computed = (compute or local_updates)(simulation, progress, clients)
    update = computed.update
    if simulation.training.placebo:
        update = Update({name: torch.zeros_like(value) for name, value in update.items()})
    new_states: Tree = computed.states
    # Clients without examples take part, with an update of zeros, but have no loss.
    held = [len(simulation.split.train[client]) > 0 for client in clients]
    trained = present & torch.tensor(held)
    losses = computed.loss.cpu()[trained]
    row = {
        "round": round + 1,
        "participants": int(present.sum()),
        "loss": losses.mean().item() if len(losses) else math.nan,
        "clip_norm": math.nan if plan.clip_norm is None else plan.clip_norm,
    }
    healthy = True
    # By shape and name only, and before anything is released.
    _check_upload(update, method, task)
    if update:
        independent = release_rng(simulation.key, "noise", round)
        noise = simulation.correlated.at(round) if simulation.plan.band > 1 else independent
        fresh = simulation.fresh(round, update) if simulation.plan.grid else None
        # The scale reads the model and the server state: functions of earlier releases.
        public = progress.params, progress.server
        with simulation.calls("scale", *public):
            scale = method.scale(*public, task)
        uploads = Uploads(update, computed.extras)
        rest = uploads, present, plan, scale, simulation.departures
        released = simulation.release(fresh or noise, *rest)
        progress.releases += 1
        of_run = simulation.plan, simulation.departures, simulation.key
        progress.residuals = of_release(
            progress.residuals,
            *(*of_run, clients, uploads, present, scale, released, fresh),
            shared=simulation.backend == "devices",
        )
        new_states = simulation.absorb(new_states, released.messages)
        # ``aggregate`` gets the sum and nothing else of the release: its other fields are private.
        with simulation.calls("aggregate", *public, released.sum):
            stepped = method.aggregate(progress.params, Update(released.sum), progress.server, task)
        if witness is not None:
            inputs = progress.params, Update(released.sum), progress.server
            witness.server(round, progress.bound, inputs, (scale, *stepped))
        progress.params, progress.server = stepped
        progress.uploaded_bits += mechanism.upload_bits(uploads, present, scale, plan)
        row |= _diagnostics(released, present)
        row |= {"wrapped": int(released.wrapped)} if plan.bits else {}
        # The bits say who was clipped to C_t, so they are released after the updates of the round.
        if simulation.plan.adaptive is not None:
            _move_bound(simulation, progress, released, present)
    # With an empty cohort client 0 has computed, but was not drawn: its state stays.
    if present.any():
        healthy = trees.is_finite(new_states)
        progress.states = progress.states.replaced(clients, new_states)
    progress.round += 1
    progress.rows.append({name: row.get(name, math.nan) for name in COLUMNS})
    # Divergence is recorded, not raised: stopping would depend on private values.
    healthy &= (
        bool(losses.isfinite().all())
        and not row.get("nonfinite_uploads")
        and trees.is_finite(progress.params)
    )
    if not healthy and progress.diverged_round is None:
        progress.diverged_round = progress.round
    images = sum(computed.images) if present.any() else 0
    seconds = time.perf_counter() - began
    timing = {"round": progress.round, "seconds": seconds, "images": images}
    progress.timing.append(timing | {"images_per_second": images / seconds})
    return sample and sample.among(clients, computed.tree())


def _move_bound(
    simulation: Simulation, progress: Progress, released: Released, present: Tensor
) -> None:
    """Release the bits of a round, the second part of its release, and set the next clip bound."""
    plan = simulation.plan
    before = plan.clip_norm if progress.bound is None else progress.bound
    assert before is not None
    bits = clip_bits.bits(released)
    noise = release_rng(simulation.key, "bits", progress.round)
    second = simulation.release(noise, bits, present, adaptive.of_bits(plan), {}, frozenset())
    progress.bound = clip_bits.next_bound(plan, before, second.sum).item()
    progress.residuals = of_bits(progress.residuals, plan, simulation.key, second, progress.bound)
    progress.uploaded_bits += mechanism.upload_bits(bits, present, {}, plan)


def _check_upload(update: Tree, method: Method, task: Task) -> None:
    """Raise PrivacyError if an upload holds other tensors than the method declares, such as a
    personal head, or parts that were not audited."""
    declared = method.upload(task)
    sent = {name: tuple(value.shape[1:]) for name, value in update.items()}
    differing = sorted(name for name in declared | sent if declared.get(name) != sent.get(name))
    if differing:
        expected = "exactly those that it says it sends, in their shapes"
        got = ", ".join(differing)
        raise PrivacyError("method: tensors in its upload", got=got, expected=expected)
    split = task.departures & SPLIT_CLIP
    if split and method.parts(task):
        what, got = f"departure {min(split)}: parts of an upload", ", ".join(method.parts(task))
        expected = "only parameters, because the ledger counts each separately clipped part"
        raise PrivacyError(what, got=got, expected=expected)


def _diagnostics(released: Released, present: Tensor) -> dict[str, float]:
    # Private: no epsilon covers these numbers of the clients' own updates.
    norms = released.norms.cpu()[present]
    norms = norms[norms.isfinite()]
    count = max(int(present.sum()), 1)
    signal, noise = released.signal_norm.item(), released.noise_norm.item()
    return {
        "update_norm_mean": norms.mean().item() if len(norms) else math.nan,
        "update_norm_max": norms.max().item() if len(norms) else math.nan,
        "fraction_clipped": released.clipped.sum().item() / count,
        "nonfinite_uploads": int(released.nonfinite.sum()),
        "noise_norm": noise,
        "signal_norm": signal,
        "signal_to_noise": signal / noise if noise > 0 else math.inf,
    }
