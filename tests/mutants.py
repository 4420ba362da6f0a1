"""Faults planted in a copy of the package, one at a time: do the tests notice?

    python tests/mutants.py [NAME ...] [--fast] [--list]

Every mutant is one small change that somebody might make by mistake, with the test files that
should notice it. A mutant that survives is a promise without a test. Faults of the mechanism and of
training that need more than a changed line are planted by tests/audit/test_planted_faults.py and
tests/audit/test_training_faults.py. ``--fast``: only the tests of ``make test-fast`` may notice it.
The idea is mutation testing (DeMillo, Lipton and Sayward, "Hints on test data selection", 1978).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Otherwise whatever is in a mutant's files may notice it, tests of other rooms among them.
FAST = "not docs and not faults and not cluster and not pipeline and not slow"


class Mutant(NamedTuple):
    """``before`` occurs once in ``src/pflpipe/<file>`` and becomes ``after``."""

    file: str
    before: str
    after: str
    tests: str


MUTANTS = {
    # privacy
    "score of a trial without its clip": Mutant(
        "privacy/private_search.py",
        "np.clip(np.nan_to_num(accuracies), 0, 1).sum()",
        "np.nan_to_num(accuracies).sum()",
        "test_private_search.py",
    ),
    "stopping that looks at scores without noise": Mutant(
        "privacy/private_search.py",
        "return total + self.score_noise * float(rng.standard_normal())",
        "return total",
        "test_private_search.py",
    ),
    "trials of a private search that share their noise": Mutant(
        "study/load.py",
        "[first + own for of, own in trials",
        "[first for of, own in trials",
        "test_private_search.py",
    ),
    # searches: what may be composed, and what stays unknown
    "search on other clients that is composed": Mutant(
        "study/search.py",
        "if {one.clients_id for one in runs.values()} != {cell.clients_id}:",
        "if {one.dataset for one in runs.values()} != {cell.dataset}:",
        "test_search.py test_private_search.py",
    ),
    "verifier that composes a search on other clients": Mutant(
        "checking/recomputed.py",
        'not departures and settings["partition"]["kind"] == "natural":',
        "not departures:",
        "test_certificate.py",
    ),
    "trials that follow from what everybody knows": Mutant(
        "study/load.py",
        "release_rng(derived_key(*map(registry.key, tried)),",
        "release_rng(str(first),",
        "test_private_search.py",
    ),
    "trials that all points of the axes share": Mutant(
        "study/load.py",
        '"trials", settings, *lines)',
        '"trials", settings)',
        "test_private_search.py",
    ),
    "number of trials in what validate prints": Mutant(
        "study/study_spec.py",
        "after a private search each ({private.trials:g} trials",
        "after a private search each ({len(self.search.rows)} trials",
        "test_private_search.py",
    ),
    "number of trials in the cost": Mutant(
        "study/catalog.py",
        "private = outline.private_search",
        "private = None",
        "test_private_search.py",
    ),
    "number of trials in the progress": Mutant(
        "pipeline/status.py",
        "if name in trials:",
        "if not name:",
        "test_private_search.py",
    ),
    "tried candidates in the plans of a private search": Mutant(
        "study/search.py",
        '"plans": {best.trials[0].cell.plan_id: None} if private else plans,',
        '"plans": dict.fromkeys(plans) if private else plans,',
        "test_private_search.py",
    ),
    "number of trials that costs nothing": Mutant(
        "privacy/private_search.py",
        " + math.log(self.trials) / (orders - 1)",
        "",
        "test_private_search.py",
    ),
    "cohort drawn twice as often": Mutant(
        "privacy/cohorts.py",
        "generator.random(shape) < plan.sample_rate",
        "generator.random(shape) < 2 * plan.sample_rate",
        "test_privacy.py",
    ),
    "sum divided by the realised cohort": Mutant(
        "privacy/mechanism.py",
        "signal[name] = total / plan.expected_cohort",
        "signal[name] = total / max(int(present.sum()), 1)",
        "test_privacy.py",
    ),
    "noise without C": Mutant(
        "privacy/mechanism.py",
        "spread = plan.clip_norm * plan.noise_multiplier / plan.expected_cohort",
        "spread = plan.noise_multiplier / plan.expected_cohort",
        "test_privacy.py",
    ),
    "scale not applied to the noise": Mutant(
        "privacy/mechanism.py",
        "noise[name] = noise[name] * scale[name].to(total)",
        "noise[name] = noise[name]",
        "test_privacy.py",
    ),
    "counts as held by one too many": Mutant(
        "privacy/mechanism.py",
        "torch.where(held > 0, part[name] / held, 0)",
        "torch.where(held > 0, part[name] / (held + 1), 0)",
        "test_departures.py",
    ),
    "clip without slack for rounding": Mutant(
        "privacy/clipping.py",
        "(1 - SPARE * digits.eps)",
        "(1 + SPARE * digits.eps)",
        "test_clipping.py",
    ),
    "updates that are not finite kept": Mutant(
        "privacy/clipping.py",
        "short = torch.where(finite.reshape(per_client), short, 0)",
        "short = torch.where(finite.reshape(per_client), short, short)",
        "test_clipping.py test_privacy.py",
    ),
    "noise that ends": Mutant(
        "privacy/noise.py",
        "good = 2 * chance > step**2",
        "good = 2 * chance > 0 * step**2",
        "test_noise.py",
    ),
    "laplace noise of one side": Mutant(
        "privacy/noise.py",
        "drawn -= exponential(generator, shape)",
        "drawn -= 0.5 * exponential(generator, shape)",
        "test_noise.py",
    ),
    "size weights squared": Mutant(
        "privacy/plan.py",
        "return 1 / math.sqrt(plan.expected_cohort)",
        "return 1 / plan.expected_cohort",
        "test_departures.py",
    ),
    "bands shifted by one": Mutant(
        "privacy/noise_laws/band.py",
        "self.coefficients(0)[1:]",
        "self.coefficients(0)[:-1]",
        "test_correlated.py",
    ),
    "sensitivity of one participation": Mutant(
        "privacy/noise_laws/independent.py",
        "np.arange(rounds) % groups == 0",
        "np.arange(rounds) == 0",
        "test_correlated.py",
    ),
    "correlated noise not reused on resume": Mutant(
        "privacy/correlated.py",
        "for earlier in range(self._round, round + 1):",
        "for earlier in [round]:",
        "test_correlated.py",
    ),
    "a buffer that keeps all its noise": Mutant(
        "privacy/noise_laws/buffers.py",
        "old *= decay",
        "old *= 1",
        "test_correlated.py",
    ),
    "coefficients of buffers shifted by one": Mutant(
        "privacy/noise_laws/buffers.py",
        "np.power.outer(self.decays, np.arange(rounds - 1))",
        "np.power.outer(self.decays, np.arange(1, rounds))",
        "test_correlated.py",
    ),
    "buffers of a later round in a round that is drawn again": Mutant(
        "privacy/correlated.py",
        "self._round, self._kept = 0, []",
        "self._round = round",
        "test_correlated.py",
    ),
    "a band that is shorter than the run under buffers": Mutant(
        "privacy/plan.py",
        "if self.buffers and self.band != self.rounds:",
        "if self.buffers and self.band > self.rounds:",
        "test_correlated.py",
    ),
    "a group that is another one's in the law of the run": Mutant(
        "privacy/residuals.py",
        "turns % plan.groups == 0",
        "turns % plan.groups == 1",
        "test_correlated.py",
    ),
    "whitened releases of the audit without the last rounds": Mutant(
        "privacy/correlated.py",
        "sum(weight * one for weight, one in zip(weights, latest, strict=False))",
        "sum(weight * one for weight, one in zip(weights[:1], latest, strict=False))",
        "test_correlated.py",
    ),
    "a certificate counts one participation": Mutant(
        "checking/recomputed.py",
        "rows.append(weight + (rows[row - groups] if row >= groups else 0))",
        "rows.append(weight)",
        "test_certificate.py",
    ),
    "delta of one minus": Mutant(
        "privacy/mechanisms/gaussian.py",
        "math.exp(log_ndtr(mu / 2 - epsilon / mu))",
        "math.exp(log_ndtr(mu / 2 - epsilon))",
        "test_accounting.py",
    ),
    "rounds composed linearly": Mutant(
        "privacy/mechanisms/gaussian.py",
        "return math.sqrt(of.rounds) / of.multiplier",
        "return of.rounds / of.multiplier",
        "test_accounting.py",
    ),
    "single messages share nothing": Mutant(
        "privacy/accounting.py",
        "shared = plan.multiplier / math.sqrt(participants or plan.expected_cohort)",
        "shared = plan.multiplier",
        "test_accounting.py test_ledger.py",
    ),
    "half of the learning rate in APPFL's noise": Mutant(
        "privacy/accounting.py",
        "2 * lr * calibrated.multiplier",
        "lr * calibrated.multiplier",
        "methods/test_appfl_steps.py",
    ),
    "noise over all clients is that of a cohort": Mutant(
        "privacy/accounting.py",
        "multiplier = plan.multiplier * math.sqrt(sample_rate)",
        "multiplier = plan.multiplier",
        "test_accounting.py",
    ),
    "declared departures are certified": Mutant(
        "study/load.py",
        "departures = tuple(sorted({*departures, *declared}))",
        "departures = tuple(sorted(departures))",
        "test_config.py",
    ),
    "a certificate counts noise over all clients as a cohort's": Mutant(
        "checking/recomputed.py",
        "noise = noise._replace(multiplier=noise.multiplier / math.sqrt(rate))",
        "noise = noise",
        "test_certificate.py",
    ),
    "layers clipped apart but counted as one": Mutant(
        "privacy/ledger.py",
        "noise_multiplier=plan.noise_multiplier / math.sqrt(parts)",
        "noise_multiplier=plan.noise_multiplier",
        "test_ledger.py",
    ),
    "a loose delta without warning": Mutant(
        "privacy/ledger.py",
        "elif delta_of(plan) > 1 / (10 * plan.clients):",
        "elif delta_of(plan) > 10 / plan.clients:",
        "test_ledger.py",
    ),
    "Laplace replace-one counts half of the move": Mutant(
        "privacy/mechanisms/laplace.py",
        "np.exp(epsilons - 2 * shift)",
        "np.exp(epsilons - shift)",
        "test_laplace.py",
    ),
    "Laplace replace-one loses in one direction": Mutant(
        "privacy/mechanisms/laplace.py",
        "np.logaddexp(away, here + shift) - np.logaddexp(away, here - shift)",
        "np.logaddexp(away, here + shift)",
        "test_laplace.py",
    ),
    "the law of the noise looks at the last round alone": Mutant(
        "privacy/residuals.py",
        "mismatches=residuals.mismatches + mismatches,",
        "mismatches=mismatches,",
        "test_run_law.py test_run_check.py",
    ),
    "other noise is accepted": Mutant(
        "privacy/run_check.py",
        "residuals.mismatches, 0)",
        "min(residuals.mismatches, 0), 0)",
        "test_run_check.py test_run_law.py",
    ),
    "clients are known by their number alone": Mutant(
        "privacy/residuals.py",
        "strangers=residuals.strangers + len(strangers),",
        "strangers=residuals.strangers,",
        "test_run_law.py",
    ),
    "message and noise are rounded apart": Mutant(
        "privacy/mechanism.py",
        "name: (value + noise.get(name, 0.0)).to(clipped[name].dtype)",
        "name: value.to(t := clipped[name].dtype) + torch.as_tensor(noise.get(name, 0.0)).to(t)",
        "test_run_law.py",
    ),
    "the sampling rate is rounded": Mutant(
        "privacy/cohorts.py",
        "return generator.random(shape) < plan.sample_rate",
        "return generator.random(shape) < round(plan.sample_rate, 2)",
        "test_run_law.py",
    ),
    "the cohort of the first round in every round": Mutant(
        "simulation/rounds.py",
        'release_rng(simulation.key, "sample", round)',
        'release_rng(simulation.key, "sample", 0)',
        "test_run_law.py",
    ),
    # isolation
    "the learning rate halves when the loss rose": Mutant(
        "simulation/rounds.py",
        "    work = [simulation.work(client, progress.round) for client in clients]",
        "    losses = [row['loss'] for row in progress.rows[-2:]]\n"
        "    if len(losses) == 2 and losses[1] > losses[0]:\n"
        "        import dataclasses as d\n"
        "        task = d.replace(task, solver=d.replace(task.solver, lr=task.solver.lr / 2))\n"
        "    work = [simulation.work(client, progress.round) for client in clients]",
        "test_isolation.py",
    ),
    "the learning rate follows the size of the cohort": Mutant(
        "simulation/rounds.py",
        "    work = [simulation.work(client, progress.round) for client in clients]",
        "    import dataclasses as d\n"
        "    slower = task.solver.lr / (1 + 1e-6 * len(clients))\n"
        "    task = d.replace(task, solver=d.replace(task.solver, lr=slower))\n"
        "    work = [simulation.work(client, progress.round) for client in clients]",
        "test_isolation.py",
    ),
    "no proof of isolation": Mutant(
        "simulation/rounds.py",
        "                check(sample)\n",
        "                del sample\n",
        "test_isolation.py",
    ),
    "the proof of isolation looks at the first client alone": Mutant(
        "simulation/isolation.py",
        "min(CLIENTS, len(drawn))",
        "min(1, len(drawn))",
        "test_isolation.py",
    ),
    "the proof of isolation compares nothing of the message": Mutant(
        "simulation/isolation.py",
        "        if differing:",
        "        if differing := [name for name in differing if name[:5] == 'state']:",
        "test_isolation.py",
    ),
    # the proof of isolation, and its witness
    "the proof of isolation compares only what is sent": Mutant(
        "simulation/isolation.py",
        "        if differing:",
        "        if differing := [name for name in differing if name[:6] == 'update']:",
        "test_isolation.py",
    ),
    "the proof of isolation does not compare what clients keep": Mutant(
        "simulation/isolation.py",
        "        if differing:",
        "        if differing := [name for name in differing if name[:5] != 'state']:",
        "test_isolation.py",
    ),
    "the witness computes nothing of the first round": Mutant(
        "simulation/rounds.py",
        "if early and sample is None and latest is not None:",
        "if early and sample is not None and latest is None:",
        "test_witness.py",
    ),
    "the witness computes nothing of the last round": Mutant(
        "simulation/rounds.py",
        "                check(sample)\n",
        "                check(sample) if witness is None else None\n",
        "test_witness.py",
    ),
    "the witness computes all clients in one process": Mutant(
        "simulation/second_process.py",
        'if kind == b"server":\n                    server = fork',
        "if kind:\n                    server = fork",
        "test_witness.py",
    ),
    "the witness tries a network on made-up rows": Mutant(
        "simulation/second_process.py",
        'of_module(model, shape, run["outputs"], tried=False)',
        'of_module(model, shape, run["outputs"])',
        "test_witness.py",
    ),
    "padded by another client's row": Mutant(
        "simulation/clients.py",
        "places = starts[:, None] + _first_places(sizes, rows)",
        "places = np.where(np.arange(rows) < sizes[:, None], starts[:, None] + np.arange(rows), 0)",
        "test_clients.py",
    ),
    "a group without an empty place": Mutant(
        "simulation/clients.py",
        "return (clients // engine.places + 1) * engine.places",
        "return -(-clients // engine.places) * engine.places",
        "test_clients.py",
    ),
    "groups on several threads": Mutant(
        "simulation/clients.py",
        "    torch.set_num_threads(1)",
        "    torch.set_num_threads(before)",
        "test_clients.py",
    ),
    "groups on a GPU of as many places as clients": Mutant(
        "simulation/clients.py",
        "    return _most(device, engine, parts)",
        "    return clients",
        "test_clients.py",
    ),
    "few places for what nobody has reviewed": Mutant(
        "simulation/simulation.py",
        "PLACES if self.reviewed else PLACES_UNREVIEWED",
        "PLACES",
        "test_clients.py",
    ),
    "vmap is always said to keep clients apart": Mutant(
        "simulation/simulation.py",
        "        return all(\n            trees.same_bits(among",
        "        return bool(sample) or all(\n            trees.same_bits(among",
        "test_isolation.py",
    ),
    "no client trains alone when vmap is tried": Mutant(
        "simulation/simulation.py",
        "for group in (sample, sample[:2], sample[:1])",
        "for group in (sample, sample[:2])",
        "test_isolation.py",
    ),
    "hooks may write into what they are given": Mutant(
        "simulation/clients.py",
        "            if not trees.same_bits(value, kept[name]):",
        "            if value.shape != kept[name].shape:",
        "test_outside_hooks.py",
    ),
    "the model may be changed in place": Mutant(
        "simulation/rounds.py",
        'calls("local_update", progress.params, progress.server) as what:',
        'calls("local_update", progress.server) as what:',
        "test_outside_hooks.py",
    ),
    "the server's step is not computed again": Mutant(
        "simulation/witness.py",
        "zip(hooks, parts, results, strict=True)",
        'zip(hooks, ("scale",) * 3, (results[0],) * 3, strict=True)',
        "test_outside_hooks.py",
    ),
    "the scale is not computed again": Mutant(
        "simulation/witness.py",
        "zip(hooks, parts, results, strict=True)",
        'zip(hooks, ("params", "params", "server"), (results[1], *results[1:]), strict=True)',
        "test_outside_hooks.py",
    ),
    "methods from outside without a second process": Mutant(
        "simulation/build.py",
        'dependencies.unreviewed(code) and plan.mechanism != "none"',
        'if dependencies.unreviewed(code) and plan.mechanism == "none"',
        "test_outside_hooks.py",
    ),
    "features are standardised by the clients' own images": Mutant(
        "data/features.py",
        "own.collection == collection",
        "own.collection != collection",
        "test_extraction.py",
    ),
    "the ledger does not name the reference of features": Mutant(
        "study/plans.py",
        "REFERENCE.format(features.public): features.public,",
        "REFERENCE.format(features.public): not features.public,",
        "test_extraction.py",
    ),
    "an image's features depend on the others": Mutant(
        "data/extraction.py",
        "normalize(roots, dim=1)",
        "normalize(roots, dim=0)",
        "test_extraction.py",
    ),
    "noise of messages at rates above a half": Mutant(
        "privacy/ledger.py",
        '        plan.sample_rate < 1\n        and "public_sampling"',
        '        plan.sample_rate < 0.5\n        and "public_sampling"',
        "test_ledger.py",
    ),
    "the audit looks at one statistic": Mutant(
        "auditing/distinguish.py",
        "    names = list(world[True])",
        "    names = list(world[True])[:1]",
        "audit/test_distinguish.py",
    ),
    "a secret without the seed": Mutant(
        "interface/training.py",
        '        "seed": seed,\n',
        "",
        "test_api.py",
    ),
    "labels that cannot be are kept": Mutant(
        "interface/training.py",
        "    x[invalid], y[invalid] = math.nan, 0",
        "    y[invalid] = 0",
        "test_api.py",
    ),
    "classes read from labels without a word": Mutant(
        "study/plans.py",
        "CLASSES_FOUND: not declared,",
        "CLASSES_FOUND: declared,",
        "test_plans.py test_data.py",
    ),
    "rows that standardise each other without a word": Mutant(
        "study/plans.py",
        "STANDARDISED: standardised,",
        "STANDARDISED: not standardised,",
        "test_api.py",
    ),
    "the ledger does not name a file of features": Mutant(
        "study/plans.py",
        "FILE.format(features.file, features.made_by): features.file,",
        "FILE.format(features.file, features.made_by): not features.file,",
        "test_extraction.py",
    ),
    "people 7 and 007 of a table are one": Mutant(
        "data/tables.py",
        '        "dtype": str,\n',
        "",
        "test_sources.py",
    ),
    "a file of initial weights is not read again after a change": Mutant(
        "learning/initial.py",
        "settled = time.time_ns() - changed > _SETTLED",
        "settled = True",
        "test_initial.py",
    ),
    "the ledger does not say that the start is the study's word": Mutant(
        "study/plans.py",
        "START.format(model.init, model.init_digest[:12]): model.init,",
        "START.format(model.init, model.init_digest[:12]): not model.init,",
        "test_initial.py",
    ),
    "initial weights of a file that changed are taken": Mutant(
        "learning/initial.py",
        "!= model.init_digest:",
        "== model.init:",
        "test_initial.py",
    ),
    "features of other rows are taken": Mutant(
        "data/features.py",
        "    if found != expected:",
        "    if len(found) != len(expected):",
        "test_extraction.py",
    ),
    "a method from outside is certified": Mutant(
        "code/dependencies.py",
        'else "unreviewed" if unreviewed(code) else "certified"',
        'else "certified"',
        "test_unreviewed.py",
    ),
    "a loss from outside is certified": Mutant(
        "code/dependencies.py",
        'if item.touches == "messages" and item.kind != START',
        'if item.kind == "method"',
        "test_row_code.py",
    ),
    "where a network of one's own starts is not in its key": Mutant(
        "simulation/build.py",
        "key = derived_key(key, START, network.start_digest(seed))",
        "pass",
        "test_row_code.py",
    ),
    "a run trained with another loss counts": Mutant(
        "methods/row_code.py",
        "if found.get(kind) != wanted.get(kind):",
        "if found.keys() != wanted.keys():",
        "test_row_code.py",
    ),
    # data
    "held-out share rounded down": Mutant(
        "data/apportion.py",
        "int(fraction * size + 0.5)",
        "int(fraction * size)",
        "test_partition.py",
    ),
    "small clients below the least size": Mutant(
        "data/partition.py",
        "for client in np.flatnonzero(sizes < min_size):",
        "for client in np.flatnonzero(sizes < min_size - 1):",
        "test_partition.py",
    ),
    "normalised by another mean": Mutant(
        "data/datasets.py",
        "scaled -= np.asarray(mean, dtype=np.float32)",
        "scaled += np.asarray(mean, dtype=np.float32)",
        "test_data.py",
    ),
    # a trained model
    "a run goes on beyond its plan": Mutant(
        "interface/trained.py",
        "if not 1 <= rounds <= left:",
        "if not 1 <= rounds:",
        "test_trained.py",
    ),
    "a saved model of other weights is loaded": Mutant(
        "interface/trained.py",
        "init_digest=digest)",
        "init_digest=hashlib.sha256(file.read_bytes()).hexdigest())",
        "test_trained.py",
    ),
    "frozen layers are forgotten by saved models": Mutant(
        "interface/trained.py",
        "self.network.frozen | self.params",
        "self.params",
        "test_initial.py",
    ),
    # learning
    "a recurrent layer runs backwards and returns so": Mutant(
        "learning/sequences.py",
        "outputs.append(out.flip(1) if direction else out)",
        "outputs.append(out)",
        "test_sequences.py",
    ),
    "attention drops no weights": Mutant(
        "learning/sequences.py",
        "shares = self.drop(scores.softmax(-1))",
        "shares = scores.softmax(-1)",
        "test_sequences.py",
    ),
    "biases of zero": Mutant(
        "learning/networks.py",
        "bound = 1 / math.sqrt(",
        "bound = 2 / math.sqrt(",
        "test_networks.py",
    ),
    "dropout without rescaling": Mutant(
        "learning/counter_rng.py",
        "return z * (keep.to(z.dtype) / (1 - rate))",
        "return z * keep.to(z.dtype)",
        "test_networks.py",
    ),
    "the penalty pulls the wrong way": Mutant(
        "learning/penalties.py",
        "pull = self.weight * excess.sign()",
        "pull = -self.weight * excess.sign()",
        "test_solvers.py",
    ),
    "padded steps are taken": Mutant(
        "learning/solvers.py",
        "torch.where(real.unsqueeze(-1), vector, before, out=vector)",
        "torch.where(real.unsqueeze(-1), vector, vector, out=vector)",
        "test_clients.py",
    ),
    "images flipped three times in four": Mutant(
        "learning/augment.py",
        "counter_rng.uniform(key, counter_rng.FLIP, (x.shape[0],)) < 0.5",
        "counter_rng.uniform(key, counter_rng.FLIP, (x.shape[0],)) < 0.75",
        "test_augment.py",
    ),
    "Fisher information of sums": Mutant(
        "learning/fisher.py",
        "(at * F.group_norm(x, groups, eps=eps)).sum((2, 3)).square().sum(0)",
        "(at * F.group_norm(x, groups, eps=eps)).square().sum((2, 3)).sum(0)",
        "test_fisher.py",
    ),
    "keys shifted": Mutant(
        "learning/counter_rng.py",
        "word = _hash(word + stream)",
        "word = _hash(word)",
        "test_counter_rng.py",
    ),
    # methods
    "FedDPA: both penalties on the same part": Mutant(
        "methods/feddpa.py",
        "DistancePenalty(0.5 * lambda_1, origin, None if whole else personal, 0.0, whole)",
        "DistancePenalty(0.5 * lambda_1, origin, None if whole else shared, 0.0, whole)",
        "methods/test_feddpa.py",
    ),
    "APPFL: each step as long as all together": Mutant(
        "methods/appfl.py",
        "step_bound=task.clip_norm / steps",
        "step_bound=task.clip_norm",
        "methods/test_appfl_steps.py",
    ),
    "ridge: a penalty on the bias": Mutant(
        "learning/heads.py",
        "torch.diag(max(penalty, LEAST_PENALTY) * (1 - free))",
        "torch.diag(max(penalty, LEAST_PENALTY) * (1 + free))",
        "test_heads.py",
    ),
    "DP-FedAvg, global model: fine-tuned before it is tested": Mutant(
        "methods/dp_fedavg_global.py",
        "return params",
        "return task.minimize(params, batches.train, task.loss)[0]",
        "methods/test_reductions.py",
    ),
    "MR-MTL: the mean moves as if all clients were drawn": Mutant(
        "methods/mr_mtl.py",
        "rate = task.plan.sample_rate",
        "rate = 1.0",
        "methods/test_mr_mtl.py",
    ),
    "DP-SCAFFOLD: the correction without the client's own control variate": Mutant(
        "methods/dp_scaffold.py",
        "gap = trees.within(CONTROL, trees.sub(server, state))",
        "gap = trees.within(CONTROL, server)",
        "methods/test_dp_scaffold.py",
    ),
    "DP-SCAFFOLD: control variates in the units of the model": Mutant(
        "methods/dp_scaffold.py",
        "unit = control_scale / (task.local_epochs * task.solver.lr)",
        "unit = control_scale",
        "methods/test_dp_scaffold.py",
    ),
    "Private FedRep: head and body on the same rows": Mutant(
        "methods/private_fedrep.py",
        "return batch(0 * n, first), batch(first, n - first)",
        "return batch(0 * n, first), batch(0 * n, first)",
        "methods/test_private_fedrep.py",
    ),
    "Private FedRep: a row paired with itself": Mutant(
        "methods/private_fedrep.py",
        "return (cross @ cross.T - same)",
        "return (cross @ cross.T)",
        "methods/test_private_fedrep.py",
    ),
    "Private FedRep: the moment released in every round": Mutant(
        "methods/private_fedrep.py",
        'moment_scale * (1 - server["begun"])',
        'moment_scale * (1 + server["begun"])',
        "methods/test_private_fedrep.py",
    ),
    "one-shot ridge: noise that makes eigenvalues negative stays": Mutant(
        "methods/one_shot_ridge.py",
        "values.clamp(min=0) + penalty",
        "values + penalty",
        "methods/test_one_shot_ridge.py",
    ),
    "one-shot ridge: rounds added up": Mutant(
        "methods/one_shot_ridge.py",
        "value / task.plan.rounds",
        "value",
        "methods/test_one_shot_ridge.py",
    ),
    "DP-FedPGN: the public drift inside of the clip": Mutant(
        "methods/dp_fedpgn.py",
        "name: value - common[name].where(moved, 0.0)",
        "name: value",
        "methods/test_dp_fedpgn.py",
    ),
    "DP-FedPGN: a client without steps drifts": Mutant(
        "methods/dp_fedpgn.py",
        "name: value - common[name].where(moved, 0.0)",
        "name: value - common[name]",
        "methods/test_dp_fedpgn.py",
    ),
    "MR-MTL: a client without steps sends its distance from the mean": Mutant(
        "methods/mr_mtl.py",
        "name: value.where(stepped, 0.0)",
        "name: value",
        "methods/test_mr_mtl.py",
    ),
    "Private FedRep: a body decays without rows": Mutant(
        "learning/solvers.py",
        "if batch.valid is None or batch.valid.any():",
        "if batch.valid is None or batch.valid.sum() >= 0:",
        "methods/test_private_fedrep.py",
    ),
    "tokens of no rows have a width to guess": Mutant(
        "learning/networks.py",
        "found.mT.reshape(*x.shape, vectors.shape[1])",
        "found.mT.reshape(*x.shape, -1)",
        "test_networks.py",
    ),
    "networks compute batches without rows": Mutant(
        "learning/task.py",
        "        if not len(x):",
        "        if len(x) < 0:",
        "test_task.py",
    ),
    "BatchNorm has a variance of a single number": Mutant(
        "learning/networks.py",
        "correction = int(z[:, 0].numel() > 1)",
        "correction = 1",
        "test_batch_norm.py",
    ),
    "DP-FedSOFIM: the moving average of the first rounds too short": Mutant(
        "methods/dp_fedsofim.py",
        "server[name] / server[WEIGHT]",
        "server[name]",
        "methods/test_dp_fedsofim.py",
    ),
    "DP-FedSOFIM: the regularisation in the units of the model": Mutant(
        "methods/dp_fedsofim.py",
        "rho * task.clip_norm**2",
        "rho",
        "methods/test_dp_fedsofim.py",
    ),
    "pFedFDA: statistics that trust a client's rows whole": Mutant(
        "methods/pfedfda.py",
        "beta = betas[loss.argmin()].where(batches.n > 1, 0.0)",
        "beta = betas[-1].where(batches.n > 1, 0.0)",
        "methods/test_pfedfda.py",
    ),
    "pFedFDA: beta chosen on the rows that gave the statistics": Mutant(
        "methods/pfedfda.py",
        "other = real & ~half",
        "other = half",
        "methods/test_pfedfda.py",
    ),
    "FedDPA's official code with dropout": Mutant(
        "methods/feddpa.py",
        "dropout=not official(task)",
        "dropout=True",
        "methods/test_feddpa.py",
    ),
    "a learning rate that stays": Mutant(
        "simulation/simulation.py",
        "training.lr * training.lr_decay**round",
        "training.lr",
        "methods/test_dp_fedsam.py",
    ),
    "adaptive SAM that is scaled by the weights once": Mutant(
        "learning/solvers.py",
        "return scale * scaled * (",
        "return scaled * (",
        "test_solvers.py",
    ),
    "noise of a former default for the messages of another one": Mutant(
        "methods/registry.py",
        "FORMER.get((cell.method, name), item.default)",
        "item.default",
        "test_keys.py",
    ),
    "a best round in a certified row": Mutant(
        "report/tidy.py",
        "if not column or claim in WITHOUT_DEPARTURES:",
        "if not column:",
        "test_best_round.py",
    ),
    "nothing dropped": Mutant(
        "simulation/clients.py",
        "whole._where(whole.count == batch_size)",
        "whole._where(whole.count > 0)",
        "test_clients.py",
    ),
    "DP-FedSim: shares that do not add up": Mutant(
        "methods/dp_fedsim.py",
        "cosine = (row * other).sum() / lengths",
        "cosine = (row * other).abs().sum() / lengths",
        "methods/test_dp_fedsim.py",
    ),
    "DP-FedSim: another normalisation than the printed one": Mutant(
        "methods/dp_fedsim.py",
        'fisher_norm: Literal["sum", "minmax"] = "sum"',
        'fisher_norm: Literal["sum", "minmax"] = "minmax"',
        "methods/test_dp_fedsim.py",
    ),
    "FedGLP-ADP: the certified mask is chosen without noise": Mutant(
        "methods/fedglp_adp.py",
        "masks = next_masks(personal, perturbed(message, server, batches, task), count, task)",
        "masks = next_masks(personal, message, count, task)",
        "methods/test_fedglp_adp.py",
    ),
    "FedGLP-ADP: every tensor has the same noise of the device": Mutant(
        "methods/fedglp_adp.py",
        "counter_rng.OWN + place",
        "counter_rng.OWN",
        "methods/test_fedglp_adp.py",
    ),
    "FedALA: weights beyond 1": Mutant(
        "methods/fedala.py",
        'Solver("sgd", eta, low=0.0, high=1.0)',
        'Solver("sgd", eta)',
        "methods/test_fedala.py",
    ),
    "FedALA: measured from the start": Mutant(
        "methods/fedala.py",
        "trees.sub(end, params)",
        "trees.sub(end, start)",
        "methods/test_fedala.py",
    ),
    "FedPAC: a client speaks of classes that it lacks": Mutant(
        "methods/fedpac.py",
        "(means - centroids).where(counts.unsqueeze(1) > 0, 0.0)",
        "means - centroids",
        "methods/test_fedpac.py",
    ),
    "a method's range is open": Mutant(
        "options.py",
        '"<=", operator.le)',
        '"<=", lambda value, most: value <= most + 1)',
        "methods/test_registry.py test_config.py",
    ),
    # simulation
    "large networks under vmap": Mutant(
        "simulation/clients.py",
        'return "vmap" if parameters <= VMAP_PARAMETERS[device] else "loop"',
        'return "vmap" if parameters >= VMAP_PARAMETERS[device] else "loop"',
        "test_clients.py",
    ),
    "rounds counted from zero": Mutant(
        "simulation/rounds.py",
        '"round": round + 1,',
        '"round": round,',
        "test_rounds.py test_runs.py",
    ),
    "one round too many": Mutant(
        "simulation/rounds.py",
        "while progress.round < simulation.plan.rounds:",
        "while progress.round <= simulation.plan.rounds:",
        "test_rounds.py",
    ),
    "states that are overwritten while held": Mutant(
        "simulation/states.py",
        "self._holders[slots] += 1",
        "self._holders[slots] += 0",
        "test_states.py",
    ),
    "batches of one seed for all clients": Mutant(
        "simulation/simulation.py",
        'numpy_rng(self.seed, "batches", "train", round, client)',
        'numpy_rng(self.seed, "batches", "train", round, 0)',
        "test_clients.py test_rounds.py test_seeds.py",
    ),
    "a server's optimizer starts at tau": Mutant(
        "simulation/server.py",
        "_SECOND: server.tau**2}",
        "_SECOND: server.tau}",
        "test_server.py",
    ),
    "moments of what was not sent": Mutant(
        "simulation/server.py",
        "new = trees.where(dict.fromkeys(new, sent), new, old)",
        "pass",
        "test_server.py",
    ),
    "yogi is adam": Mutant(
        "simulation/server.py",
        'if server.optimizer == "yogi":',
        'if server.optimizer == "adam":',
        "test_server.py",
    ),
    "an adaptive bound moves the wrong way": Mutant(
        "privacy/clip_bits.py",
        "torch.exp(-plan.adaptive.lr",
        "torch.exp(plan.adaptive.lr",
        "test_adaptive.py",
    ),
    "the bits are for nothing": Mutant(
        "privacy/adaptive.py",
        "return plan.multiplier / math.sqrt(1 - share**2)",
        "return plan.multiplier",
        "test_adaptive.py",
    ),
    "a client that is not finite tells a bit": Mutant(
        "privacy/clip_bits.py",
        "torch.where(released.nonfinite, 0.0, below)",
        "below",
        "test_adaptive.py",
    ),
    "the bound's movement is taken on trust": Mutant(
        "privacy/residuals.py",
        " + (bound != following),",
        ",",
        "test_adaptive.py",
    ),
    "clip and noise shrink to the last round's largest norm": Mutant(
        "simulation/rounds.py",
        "task = simulation.task_in(round, progress.bound)",
        "task = simulation.task_in(round, progress.bound and min(progress.bound, "
        'progress.rows[-1]["update_norm_max"]))',
        "test_run_law.py",
    ),
    # words that everybody uses
    "a key of the seed alone": Mutant(
        "seeds.py",
        'hashlib.sha256("/".join(map(str, name)).encode()).digest()',
        'hashlib.sha256("/".join(map(str, name[:1])).encode()).digest()',
        "test_seeds.py",
    ),
    "defaults in ids": Mutant(
        "cells.py",
        'return {"streams": MEANING, **without_defaults(cell)}',
        'return {"streams": MEANING, **cell.to_dict()}',
        "test_cells.py",
    ),
    "files written in place": Mutant(
        "files.py",
        "temporary.replace(path)",
        "path.write_bytes(temporary.read_bytes())",
        "test_files.py",
    ),
    # study
    "an axis of the study wins over a method's own": Mutant(
        "study/expansion.py",
        "base, *_nest(study_point), blocks, *_nest",
        "base, blocks, *_nest(study_point), *_nest",
        "test_config.py",
    ),
    "every candidate is the first": Mutant(
        "study/candidates.py",
        "numpy_rng(0, study, label, index, path)",
        "numpy_rng(0, study, label, path)",
        "test_candidates.py",
    ),
    "the worst candidate is chosen": Mutant(
        "study/search.py",
        "max(values, key",
        "min(values, key",
        "test_search.py",
    ),
    "of a loss the largest is chosen": Mutant(
        "study/search.py", "metric.sign * value", "value", "test_metrics.py"
    ),
    "an answer that is not finite is left as it is": Mutant(
        "simulation/evaluation.py",
        "torch.where(finite, logits.double().softmax(-1), wrong)",
        "logits.double().softmax(-1)",
        "test_metrics.py",
    ),
    # audit
    "what is sent besides parameters is not audited": Mutant(
        "auditing/neighbours.py",
        "self.network.shapes | self.method.parts(self.task)",
        "self.network.shapes",
        "audit/test_coupled.py",
    ),
    "an audit of arrays looks at the first round only": Mutant(
        "auditing/audit.py",
        "rounds = min(claim.rounds, ROUNDS) if program.remembers else 1",
        "rounds = 1",
        "audit/test_claims.py",
    ),
    "an audit of arrays does not vary the others": Mutant(
        "auditing/worlds.py",
        '("apart",) if lonely else OTHERS',
        '("apart",)',
        "audit/test_worst_worlds.py",
    ),
    "half the audit's runs unseen": Mutant(
        "auditing/distinguish.py",
        "middle = (values[True].mean() + values[False].mean()) / 2",
        "middle = values[False].mean()",
        "audit/test_distinguish.py audit/test_planted_faults.py",
    ),
    "a violation in single releases is forgiven": Mutant(
        "auditing/cases.py",
        "if runs or (coupled and (not case.departures or true > claimed)):",
        "if runs or (coupled and true > claimed):",
        "audit/test_cases.py",
    ),
    "anyone's release is tried with equal weights only": Mutant(
        "auditing/worlds.py",
        'ROWS = ("equal", "most", "another", "none", "mixed")',
        'ROWS = ("equal",)',
        "audit/test_claims.py",
    ),
    "a refuted claim may be printed": Mutant(
        "auditing/verdict.py",
        'result["claim"] == "certified" and result["verdict"] != "kept"',
        'result["claim"] == "certified" and result["verdict"] == "unsound"',
        "audit/test_cases.py test_released.py",
    ),
    # attacks
    "the strongest adversary forgets the message's length": Mutant(
        "attacks/membership.py",
        "total = torch.zeros(clients + 1, clients + 1, dtype=torch.float64)",
        "total = torch.ones(clients + 1, clients + 1, dtype=torch.float64)",
        "attacks/test_membership.py",
    ),
    "canaries estimate too much noise": Mutant(
        "attacks/canaries.py",
        "mu = float(x.mean() / ((1 + x.std(ddof=1)) / 2))",
        "mu = float(x.mean() / (1 + x.std(ddof=1)))",
        "attacks/test_canaries.py",
    ),
    # report
    "population standard deviation": Mutant(
        "report/comparison.py",
        "np.std(values, ddof=1)",
        "np.std(values)",
        "test_tables.py",
    ),
    "Holm's procedure without its steps": Mutant(
        "report/statistics.py",
        "level = ALPHA / left",
        "level = ALPHA",
        "test_statistics.py",
    ),
    "called better where the interval includes 0": Mutant(
        "report/statistics.py",
        "return int(self.low > 0) - int(self.high < 0)",
        "return int(self.mean > 0) - int(self.mean < 0)",
        "test_statistics.py",
    ),
    "epsilon rounded down": Mutant(
        "study/settings.py",
        "return _rounded(epsilon, math.ceil, 1 - 1e-6)",
        "return _rounded(epsilon, math.floor, 1 - 1e-6)",
        "test_tables.py",
    ),
    "printed numbers beside every variant": Mutant(
        "study/printed.py",
        'method = block["methods"].get(label)',
        'method = block["methods"].get(label, block["methods"].get(cell.method))',
        "test_config.py",
    ),
    "printed numbers of another metric": Mutant(
        "study/printed.py",
        "return bool(printed == ours)",
        "return bool(printed is not ours)",
        "test_config.py",
    ),
    "an infinite epsilon as a number": Mutant(
        "study/epsilon_as_published.py",
        "return math.inf if is_private and _is_countable(cell, departures(cell)) else None",
        "return 0.0",
        "test_epsilon_as_published.py",
    ),
    "runs of one day in MLflow": Mutant(
        "pipeline/mlflow_runs.py",
        'end = int(files["run.json"].stat().st_mtime * 1000)',
        'end = int(files["run.json"].stat().st_mtime)',
        "test_tracking.py",
    ),
    # certificates
    "two messages of a client one bound apart": Mutant(
        "checking/recomputed.py",
        '("local_replace_one", 2.0)',
        '("local_replace_one", 1.0)',
        "test_certificate.py",
    ),
    "keys of a certificate given twice": Mutant(
        "checking/verify.py",
        "if content.get(DIGEST) != _digest(body) or text != written:",
        "if content.get(DIGEST) != _digest(body):",
        "test_certificate.py",
    ),
    "rows of a table left out of its certificate": Mutant(
        "pipeline/evidence.py",
        'if left_out := set(self.cells) - {row["cell"] for row in rows}:',
        "if left_out := set(self.cells) - set(self.cells):",
        "test_certificate.py",
    ),
}


def survives(mutant: Mutant, *, fast: bool) -> bool:
    """Whether the mutant's tests pass on a copy of the package with the fault in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        file = source / "pflpipe" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.before) != 1:
            sys.exit(f"{mutant.file}: found {text.count(mutant.before)} times: {mutant.before}")
        file.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-m", FAST] if fast else []
        command += [f"tests/{name}" for name in mutant.tests.split()]
        paths = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1):  # no test ran to its end
            sys.exit(f"pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def main() -> None:
    """Plant the named mutants, or all, and say which survive; exit code 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--fast", action="store_true", help="only the tests of make test-fast")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    if args.list:
        print("\n".join(MUTANTS))
        return
    survivors = []
    for name in args.names or MUTANTS:
        began = time.monotonic()
        alive = survives(MUTANTS[name], fast=args.fast)
        survivors += [name] * alive
        print(f"{'SURVIVES' if alive else 'caught':8}  {time.monotonic() - began:5.1f} s  {name}")
    print(f"{len(survivors)} of {len(args.names or MUTANTS)} survive")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
