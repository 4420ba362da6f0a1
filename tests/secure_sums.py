"""Secure sums of clients whose randomness the test knows."""

import dataclasses
import math

import numpy as np
import torch

from pflpipe.privacy import clipping, mechanism, secure_sum
from pflpipe.privacy.mechanisms.skellam import skellam
from pflpipe.seeds import public_name, release_rng
from pflpipe.simulation import remote


def known(monkeypatch):
    """Let every client draw from a generator of its round and number; return what each hands
    out, by round and client."""
    drawn, update, shares = np.random.default_rng, remote.Device.update, {}

    def handed(self, client, public):
        at = (public.round, client)
        monkeypatch.setattr(np.random, "default_rng", lambda *seed: drawn(*seed or (at,)))
        shares[at] = update(self, client, public)
        monkeypatch.setattr(np.random, "default_rng", drawn)
        return shares[at]

    monkeypatch.setattr(remote.Device, "update", handed)
    return shares


def simulated(run, absent=()):
    """Return a run of the loop whose clients have such generators; no share of those ``absent``, by
    round and client, is in a sum."""
    rounds = iter(range(run.plan.rounds))

    def release(generator, uploads, present, plan, scale, departures):
        round = next(rounds)
        shapes = {name: rows.shape[1:] for name, rows in uploads.update.items()}
        of = secure_sum.rule(plan, sum(map(math.prod, shapes.values())))
        signs = secure_sum.signs(release_rng(public_name(run.key), "signs", round), of)
        total = torch.zeros(of.width, dtype=torch.float64)
        for client in range(plan.clients):
            if (round, client) not in absent:
                own = np.random.default_rng((round, client))
                rows = {name: rows[client : client + 1] for name, rows in uploads.update.items()}
                rows, _ = clipping.clip(rows, of.room * of.step, {}, 2, 1)
                total += secure_sum.rounded(own, rows, signs, of, 1)[0]
                total += torch.from_numpy(skellam(own, of.variance / plan.clients, (of.width,)))
        opened, _ = secure_sum.opened(total, signs, of, plan.clients, shapes)
        found = mechanism.release(generator, uploads, present, plan, scale, departures)
        sums = {name: value.to(uploads.update[name]) for name, value in opened.items()}
        return dataclasses.replace(found, sum=sums)

    return dataclasses.replace(run, release=release)
