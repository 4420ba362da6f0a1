"""Plans, uploads and departures for the tests of the release: six clients, tensors of several
ranks."""

import dataclasses

import numpy as np
import torch
from scipy import stats

from pflpipe.errors import Problems
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.privacy import mechanism
from pflpipe.privacy.plan import Plan
from pflpipe.study.load import read

PARAMETERS = ("a.weight", "a.bias", "b.weight")
"""Of two layers, with two numbers each."""
SHAPES = {"matrix": (3, 4), "vector": (5,), "scalar": (), "long": (70,)}
GAUSSIAN = Plan("gaussian", 2, 0.7, 1.3, sample_rate=1.0, rounds=10, delta=1e-3, clients=6)
# Plans of published experiments, all of C = 1 and sigma = 1.
FEMNIST = Plan("gaussian", 2, 1.0, 1.0, sample_rate=1.0, rounds=30, delta=0.02, clients=50)
SVHN = dataclasses.replace(FEMNIST, rounds=15, delta=0.1, clients=10)
DSU = dataclasses.replace(FEMNIST, rounds=100, delta=1e-5, clients=20)
FEDSIM = dataclasses.replace(FEMNIST, rounds=100, delta=1e-5, clients=100, sample_rate=0.1)
SAMPLED = dataclasses.replace(GAUSSIAN, sample_rate=0.25)
LAPLACE = dataclasses.replace(GAUSSIAN, mechanism="laplace", norm=1, delta=0.0)
NOTHING = Plan("none", 2, None, None, sample_rate=0.5, rounds=10, delta=None, clients=6)


def published():
    """Departures of every private method as published, or as its official code where that departs;
    each combination once."""
    private = {name: about for name in NAMES if (about := registry.info(name).about).private}
    officially = {name: bool(about.official_departures) for name, about in private.items()}
    found = [registry.departures(name, "paper", code) for name, code in officially.items()]
    return list(dict.fromkeys(filter(None, found)))


def generator(seed=0):
    """What a release draws its noise from."""
    return np.random.default_rng(seed)


def torch_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uploads(seed=0, clients=6, lead=(), dtype=torch.float32, size=1.0):
    draw = torch_generator(seed)
    return {
        name: torch.randn(*lead, clients, *shape, generator=draw, dtype=dtype) * size
        for name, shape in SHAPES.items()
    }


def released_often(plan, departures, sizes, seed, *, moving=None, present=None, keep=None):
    """4000 releases of ``PARAMETERS`` in which nobody has anything to say.

    Args:
        moving: a client who sends a long message after all.
        present: who takes part, bool ``[M]``; None: everybody.
        keep: the coordinates that each client's mask keeps, bool ``[M, 6]``; None: no masks.
    """
    lead = 4000, plan.clients
    update = {name: torch.zeros(*lead, 2, dtype=torch.float64) for name in PARAMETERS}
    if moving is not None:
        for value in update.values():
            value[:, moving, 0] = 10.0
    extras = {}
    if "data_size_weights" in departures:
        extras["size"] = torch.from_numpy(sizes).expand(lead)
    if keep is not None:
        masks = zip(PARAMETERS, keep.split(2, dim=1), strict=True)
        extras |= {f"mask.{name}": mask.expand(*lead, 2) for name, mask in masks}
    here = everybody(plan.clients) if present is None else torch.from_numpy(present)
    sent = generator(seed), mechanism.Uploads(update, extras), here.expand(lead), plan
    return mechanism.release(*sent, departures=departures)


def told(change):
    """A release that is told another plan: ``change(plan)``, the fields that differ."""
    original = mechanism.release

    def release(generator, uploads, present, plan, *rest):
        other = dataclasses.replace(plan, **change(plan))
        return original(generator, uploads, present, other, *rest)

    return release


def chance_of(drawn, law):
    """How likely whole numbers are under their law, of as many on both sides of 0 (chi-square)."""
    values = np.arange(len(law)) - len(law) // 2
    counts = (drawn.ravel()[:, None] == values).sum(axis=0)
    assert counts.sum() == drawn.size, "whole numbers, none farther away"
    often = law * drawn.size >= 20
    expected = law[often] / law[often].sum() * counts[often].sum()
    return stats.chisquare(counts[often], expected).pvalue


def cell_of_study(text, words, folder):
    """The first cell of a study in whose text these words are filled in, or its refusal."""
    for blank, word in words.items():
        text = text.replace(blank, word)
    (folder / "asked.yaml").write_text(text)
    problems = Problems()
    outline = read("asked", folder, problems)
    problems.stop()
    return outline.lines[0].candidates[0].rows[0].cell


def flat(tree):
    """What was released of ``PARAMETERS``, side by side."""
    return torch.cat([tree[name] for name in PARAMETERS], dim=-1)


def everybody(clients=6, lead=()):
    return torch.ones(*lead, clients, dtype=torch.bool)


def length(tree, norm=2, lead=1, scale=None):
    """Joint norms of a tree in float64, written out plainly; 0 / 0 counts as 0."""
    rows = []
    for name, tensor in tree.items():
        value = tensor.double()
        if scale is not None and name in scale:
            value = torch.where(scale[name] > 0, value / scale[name].double(), value)
        value = value if value.ndim > lead else value.unsqueeze(-1)
        rows.append(value.flatten(lead))
    return torch.linalg.vector_norm(torch.cat(rows, dim=-1), ord=norm, dim=-1)


def tensors(value):
    """A value of a table in which ``{shape: [6], of: 1.0, dtype: float32}`` is a full tensor."""
    if not isinstance(value, dict):
        return value
    if "shape" not in value:
        return {name: tensors(part) for name, part in value.items()}
    dtype = getattr(torch, value.get("dtype", "float32"))
    return torch.full(value["shape"], value.get("of", 1.0), dtype=dtype)
