"""The releases of the package's methods as programs of arrays, for the door that is open to
everybody.

What a departure reads besides the update, it computes from the message here, as published code
does: masks from its zeros, thresholds and centres from its values. Run as a program, it audits
every distinct release through the door and compares the verdicts with those of a table:

    python tests/own_releases.py results/tables/audit.csv [NAME ...]
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd
import torch

from pflpipe.auditing import cases
from pflpipe.auditing.audit import audit
from pflpipe.auditing.cases import Case
from pflpipe.auditing.claim import Claim
from pflpipe.privacy import adaptive, clip_bits
from pflpipe.privacy.departures import groups
from pflpipe.privacy.mechanism import Uploads
from pflpipe.seeds import derived_key
from pflpipe.trees import Params, Update, layers


def claim_of(case: Case) -> Claim:
    """What the case claims of its release."""
    mechanism = case.mechanism_under_audit()
    claimed = mechanism.claimed
    # A zero message still sends a bit, and of a secret cohort an absent client is no part.
    leaves = mechanism.secret or mechanism.executed.adaptive is not None
    return Claim(
        clients=claimed.clients,
        noise_multiplier=claimed.multiplier,
        delta=claimed.delta,
        mechanism=claimed.mechanism,
        clip_norm=claimed.clip_norm,
        rounds=claimed.rounds,
        sample_rate=claimed.sample_rate,
        adjacency="add_remove" if leaves and case.trust == "central" else "zero_out",
        trust=case.trust,
        dimension=sum(int(np.prod(shape)) for shape in mechanism.shapes.values()),
    )


def release_of(case: Case):
    """The release of a case: a class where a method's server step or a bound has a state between
    rounds, else a function."""
    release = OwnRelease(case)
    if release.mechanism.scaled or release.mechanism.executed.adaptive is not None:
        return release
    claim = claim_of(case)
    release.start(claim.clients, claim.dimension)
    return release.step


class OwnRelease:
    """The release of a case, with the server step of its method between rounds."""

    def __init__(self, case: Case) -> None:
        self.mechanism = case.mechanism_under_audit()
        self.shapes = self.mechanism.shapes
        self.first = self.mechanism.start(derived_key("audit", "own"))
        self.of_zeros = self.mechanism.init_server(Params(self.first))

    def __deepcopy__(self, memo: object) -> OwnRelease:
        run = object.__new__(OwnRelease)
        vars(run).update(vars(self))
        return run

    def start(self, clients: int, dimension: int) -> None:
        self.params, self.server = Params(self.first), self.of_zeros
        self.plan = self.mechanism.executed

    def step(self, messages: np.ndarray, weights: np.ndarray, rng: np.random.Generator):
        mechanism, count = self.mechanism, len(messages)
        parts, done = {}, 0
        rows = torch.from_numpy(messages)
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            parts[name] = rows[:, done : done + size].reshape(count, *shape)
            done += size
        scale = mechanism.scale(self.params, self.server)
        uploads = Uploads(parts, self.extras(parts, weights))
        present = torch.ones(count, dtype=torch.bool)
        plan = adaptive.of_updates(self.plan, None)
        released = mechanism.release(
            rng, uploads, present, plan, scale, mechanism.executed_departures
        )
        views = released.sum if mechanism.trust == "central" else released.messages
        lead = 0 if mechanism.trust == "central" else 1
        flat = [
            value.flatten(lead) if value.ndim > lead else value[None] for value in views.values()
        ]
        if self.plan.adaptive is not None:
            rule = adaptive.of_bits(self.plan)
            second = mechanism.release(
                rng, clip_bits.bits(released), present, rule, {}, mechanism.executed_departures
            )
            bits = second.sum if mechanism.trust == "central" else second.messages
            flat += [value.reshape(-1, 1) if lead else value.reshape(-1) for value in bits.values()]
            bound = torch.tensor(self.plan.clip_norm, dtype=torch.float64)
            moved = clip_bits.next_bound(self.plan, bound, second.sum)
            self.plan = dataclasses.replace(self.plan, clip_norm=float(moved))
        if mechanism.scaled:
            self.params, self.server = mechanism.aggregate(
                self.params, Update(released.sum), self.server
            )
        return torch.cat(flat, dim=lead)

    def extras(self, parts: dict, weights: np.ndarray) -> dict:
        departures = self.mechanism.departures
        finite = {name: value.nan_to_num(0, 0, 0) for name, value in parts.items()}
        count, found = len(weights), {}

        def norms(names):
            flat = torch.cat([finite[name].reshape(count, -1).double() for name in names], dim=1)
            return torch.linalg.vector_norm(flat, dim=1).float()

        if "data_size_weights" in departures:
            found["size"] = torch.from_numpy(weights).float()
        if "raw_similarity_weights" in departures:
            length = norms(finite)
            found["similarity"] = length / (1 + length)
        if "client_clip_weights" in departures:
            energy = torch.stack([norms(names) ** 2 for names in layers(finite).values()], dim=1)
            total = energy.sum(dim=1, keepdim=True)
            equal = torch.full_like(energy, 1 / energy.shape[1])
            found["clip_weights"] = torch.where(total > 0, energy / total, equal)
        if "data_dependent_clip" in departures:
            bounds = [norms(names) for names in groups(finite, departures)]
            found["bounds"] = torch.stack(bounds, dim=1).clamp(min=1e-6)
        for name, value in finite.items():
            if departures & {"noise_on_support", "divide_by_counts"}:
                found[f"mask.{name}"] = value != 0
            if departures & {"private_clamp", "data_dependent_noise"}:
                found[f"radius.{name}"] = value.abs() / 2
            if "private_clamp" in departures:
                found[f"centre.{name}"] = value
        return found


def untried(case: Case) -> str | None:
    """Return why the door cannot try a case, or None."""
    executed = case.mechanism_under_audit().executed
    if "public_sampling" in case.departures:
        return "a release does not draw its cohort"
    if case.trust == "local" and executed.adaptive:
        return "a message of zeros still sends its bit"
    if executed.band > 1:
        return "a claim has independent noise in each round"
    return None


def main(table: str, *names: str) -> None:
    """Print the verdict of every distinct release, or of the named ones, through the door, and that
    of a table."""
    torch.set_num_threads(1)
    before = pd.read_csv(table).groupby("audit")["verdict"].first()
    differ = 0
    for name, case in cases.cases().items():
        if names and name not in names:
            continue
        if reason := untried(case):
            print(f"{name}: {before[name]} | not tried: {reason}", flush=True)
            continue
        # The fewest draws: what a single release shows decides all of these verdicts.
        found = audit(release_of(case), claim_of(case), seconds=0.05)
        differ += found.verdict != before[name]
        print(
            f"{name}: {before[name]} | {found.verdict}: {found.sentence} "
            f"[{found.situation}; {found.row['canary']}; {found.row['seconds']:.0f} s]",
            flush=True,
        )
    print(f"{differ} verdicts differ")


if __name__ == "__main__":
    main(*sys.argv[1:])
