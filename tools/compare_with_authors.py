"""A step of the authors' own code beside ours, without clip and noise.

    python tools/compare_with_authors.py FOLDER [METHOD ...]

takes a clone of the official code of the methods, by default of those of ``ORIGINALS`` whose
repository it is. Its commit must be that of the method's card (``pflpipe methods NAME``). The
definitions that the table names are read from that commit and executed, without the rest of their
files and their imports. Both sides get the same numbers in float64; a line for each quantity says
how far the two are apart, in parts of its length. The exit code is 1 if that is more than rounding.

What is executed is their code, with your rights.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import math
import random
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflpipe import cells, trees
from pflpipe.errors import ConfigError, nearest
from pflpipe.learning import networks, solvers
from pflpipe.learning.solvers import Schedule, Solver
from pflpipe.learning.task import Batches, Task
from pflpipe.methods.base import Method
from pflpipe.methods.dp_fedpgn import dp_fedpgn, smoothed
from pflpipe.methods.dp_fedsam import dp_fedsam
from pflpipe.methods.dp_fedsofim import dp_fedsofim
from pflpipe.methods.fedala import fedala
from pflpipe.methods.feddpa import feddpa
from pflpipe.methods.pfedme import pfedme
from pflpipe.privacy.plan import Plan
from pflpipe.program import run_script
from pflpipe.report import cards
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ROUNDING = 1e-8
"""What the 1e-8 that DP-FedSOFIM's code adds to a denominator stays below."""
ROWS, INPUTS, HIDDEN, CLASSES, STEPS, LR, BOUND = 7, 5, 4, 3, 3, 0.1, 0.5
"""Of one client, whose steps are on all of its rows."""
Theirs = Mapping[str, Any]
Pairs = Iterator[tuple[str, Tree, Tree]]
"""Names of quantities, ours and theirs."""


def drawn(seed: int) -> Params:
    """Return parameters of the network."""
    rng = np.random.default_rng(seed)
    return Params(
        {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in NETWORK.shapes.items()}
    )


NETWORK = networks.build(cells.Model("mlp", (HIDDEN,)), (INPUTS,), CLASSES)
X = torch.from_numpy(np.random.default_rng(1).normal(size=(ROWS, INPUTS)))
Y = torch.arange(ROWS) % CLASSES


def task(solver: Solver, *departures: str, bound: float = BOUND) -> Task:
    """Return what our side shares: the network, a plan without noise, and the local optimizer."""
    plan = Plan("gaussian", 2, bound, 0.0, sample_rate=1.0, rounds=3, delta=1e-3, clients=1)
    return Task(NETWORK, plan, solver, STEPS, frozenset(departures), solvers.minimize_loop)


def batches(steps: int) -> Batches:
    """Return the client's rows as steps on all of them."""

    def taken(count: int) -> Schedule:
        index, sizes = torch.arange(ROWS).expand(count, ROWS), (ROWS,) * count
        return Schedule(X, Y, index, torch.tensor(sizes), sizes)

    train = dataclasses.replace(taken(steps), keys=torch.arange(steps))
    return Batches(torch.tensor(ROWS), train, taken(steps), taken(1))


def sent(
    method: Method, params: Params, server: Tree, state: Tree, shared: Task, steps: int = STEPS
) -> Update:
    """Return what our client sends."""
    upload, _ = method.local_update(
        params, ServerState(server), ClientState(state), batches(steps), shared
    )
    return upload.update


class Perceptron(nn.Sequential):
    """The network as their code knows it."""

    def __init__(self, params: Tree) -> None:
        super().__init__(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self.double()
        for own, value in zip(self.parameters(), params.values(), strict=True):
            own.data = value.clone()

    def get_weights(self) -> dict[str, Tensor]:
        """Return copies of the parameters by name."""
        return {name: value.detach().clone() for name, value in self.named_parameters()}

    def set_weights(self, weights: Tree) -> None:
        """Take parameters by name."""
        self.load_state_dict(weights)


class Rows(list[tuple[Tensor, Tensor]]):
    """Their loader of the client's rows: one batch."""

    dataset = X

    def __init__(self) -> None:
        super().__init__([(X, Y)])


def named(values: Any) -> Tree:
    """Return their list of tensors under our names."""
    return dict(zip(NETWORK.shapes, (value.detach() for value in values), strict=True))


# ---------------------------------------------------------------- the comparisons


def of_feddpa(theirs: Theirs) -> Pairs:
    """A client's update from its last model, which is not the global one."""
    params, last = drawn(2), drawn(3)
    ours = feddpa(lambda_1=0.1, lambda_2=0.05, schedule="two_phase")
    shared = task(Solver("adam", LR), "update_against_global")
    options = {"fisher_threshold": 0.4, "lambda_1": 0.1, "lambda_2": 0.05, "lr": LR}
    theirs["args"].__dict__.update(options, clipping_bound=BOUND, local_epoch=STEPS)
    update = theirs["local_update"](Perceptron(last), Rows(), Perceptron(params))
    yield "update", sent(ours, params, {}, last, shared), named(update)


def of_dp_fedsam(theirs: Theirs) -> Pairs:
    """A client's local steps with the adaptive ascent."""
    params, model = drawn(2), Perceptron(drawn(2))
    solver = Solver("sgd", LR, momentum=0.5, weight_decay=5e-4)
    settings = {"lr": LR, "momentum": solver.momentum, "weight_decay": solver.weight_decay}
    steps = theirs["SAM"](model.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, **settings)
    for _ in range(STEPS):
        for step in (steps.first_step, steps.second_step):
            torch.autograd.backward(F.cross_entropy(model(X), Y))
            step(zero_grad=True)
    update = sent(dp_fedsam(rho=0.5, adaptive=True), params, {}, {}, task(solver))
    yield "update", update, trees.sub(named(model.parameters()), params)


def of_fedala(theirs: Theirs) -> Pairs:
    """Where a client starts that has learned its weights for one pass over all rows."""
    params, last = drawn(2), drawn(3)
    head = ("head.weight", "head.bias")
    weights = {name: drawn(4)[name].sigmoid() for name in head}
    ala = theirs["ALA"](0, F.cross_entropy, list(zip(X, Y, strict=True)), ROWS, 100, len(head))
    ala.weights, ala.start_phase = [value.clone() for value in weights.values()], False
    mixed = Perceptron(last)
    ala.adaptive_local_aggregation(Perceptron(params), mixed)
    state = trees.prefixed("local.", {name: last[name] for name in head})
    state |= trees.prefixed("weight.", weights) | {"rounds": torch.tensor(2)}
    update = sent(fedala(share=1.0), params, {}, state, task(Solver("sgd", 0.0)))
    yield "start", update, trees.sub(named(mixed.parameters()), params)


def of_pfedme(theirs: Theirs) -> Pairs:
    """A client's change on one minibatch; their weight decay of 0.001 is 0 here."""
    params, model, weight, inner, eta = drawn(2), Perceptron(drawn(2)), 15.0, 0.02, 0.05
    user = types.SimpleNamespace(model=model, loss=F.cross_entropy, lamda=weight, K=5)
    user.local_epochs, user.learning_rate = 1, eta
    user.local_model = [value.detach().clone() for value in model.parameters()]
    user.get_next_train_batch = lambda: (X, Y)
    user.update_parameters = lambda values: None
    user.optimizer = theirs["pFedMeOptimizer"](model.parameters(), inner, weight, 0.0)
    theirs["UserpFedMe.train"](user, 1)
    ours = pfedme(weight=weight, inner_lr=inner)
    update = sent(ours, params, {}, {}, task(Solver("sgd", eta)), steps=1)
    yield "change", update, trees.sub(named(user.local_model), params)


def of_dp_fedpgn(theirs: Theirs) -> Pairs:
    """A client's local steps with a common direction, and the smoothing of a step."""
    gamma, params, last = 0.6, drawn(2), drawn(3)
    model = Perceptron(params)
    theirs["args"].__dict__.update(gamma=gamma, momentum=0, privacy=0)
    worker = types.SimpleNamespace(model=model, criterion=F.cross_entropy, data_iterator=[(X, Y)])
    worker.data_id_loader = lambda index: None
    slope = {name: -value / (STEPS * LR) for name, value in last.items()}
    direction = dict(zip(model.get_weights(), slope.values(), strict=True))
    change, _ = theirs["DataWorker.update_FedPGN"](
        worker, model.get_weights(), STEPS, 0, direction, LR
    )
    shared = task(Solver("sgd", LR, weight_decay=1e-3))  # theirs is in the code
    own = sent(dp_fedpgn(gamma=gamma), params, last, {}, shared)
    common = {name: (1 - gamma) * value for name, value in last.items()}
    yield "change", trees.add(own, common), named(change.values())
    smooth = {name: smoothed(value, 0.7) for name, value in params.items()}
    given = (theirs["LaplacianSmoothing"](value, 0.7, "cpu") for value in params.values())
    yield "smoothed step", smooth, named(given)


def of_dp_fedsofim(theirs: Theirs) -> Pairs:
    """The server's model after three releases, at clip norm 1; rho is our factor on the step."""
    rho, beta, shared = 0.5, 0.9, task(Solver("sgd", LR), bound=1.0)
    whole = drawn(2)
    params = Params({name: whole[name] for name in ("head.weight", "head.bias")})
    server = theirs["DPFedGDServerSOFIM"](HIDDEN, CLASSES, rho, "cpu", beta=beta, rho=rho)

    def flat(tree: Tree) -> Tensor:
        return torch.cat([tree["head.weight"].T, tree["head.bias"][None]]).flatten()

    server.global_model.set_weights(flat(params))
    ours = dp_fedsofim(rho=rho, beta=beta)
    state = ours.init_server(params, shared)
    for count in range(1, 4):
        released = Update({name: drawn(10 + count)[name] for name in params})
        server.aggregate_and_update([-flat(released)], None, count)
        params, state = ours.aggregate(params, released, state, shared)
    theirs_now = {"model": server.get_global_weights()}
    yield "model", {"model": flat(params)}, theirs_now


@dataclass(frozen=True)
class Original:
    """What is executed of a method's official code: the definitions of each file, a method of a
    class as ``Class.name``, and the comparison."""

    definitions: Mapping[str, tuple[str, ...]]
    compared: Callable[[Theirs], Pairs]


ORIGINALS = {
    "dp_fedpgn": Original(
        {"DP_new.py": ("DataWorker.update_FedPGN", "LaplacianSmoothing")}, of_dp_fedpgn
    ),
    "dp_fedsam": Original({"fedml_api/dpfedsam/sam.py": ("SAM",)}, of_dp_fedsam),
    "dp_fedsofim": Original(
        {"train.py": ("DPFedGDServerSOFIM", "LinearClassifier")}, of_dp_fedsofim
    ),
    "fedala": Original({"system/utils/ALA.py": ("ALA",)}, of_fedala),
    "feddpa": Original(
        {"utils.py": ("compute_fisher_diag",), "ours.py": ("local_update",)}, of_feddpa
    ),
    "pfedme": Original(
        {
            "FLAlgorithms/optimizers/fedoptimizer.py": ("pFedMeOptimizer",),
            "FLAlgorithms/users/userpFedMe.py": ("UserpFedMe.train",),
        },
        of_pfedme,
    ),
}


# ---------------------------------------------------------------- their files


def commit_of(method: str) -> str:
    """Return the commit that a method's card names."""
    return cards.header(method).formulas["code"].split()[1].rstrip(":")


def git(folder: Path, *command: str) -> str:
    """Return what git prints.

    Raises:
        ConfigError: it fails.
    """
    program = shutil.which("git") or "git"
    done = subprocess.run([program, "-C", folder, *command], capture_output=True, text=True)
    found = (done.stderr.strip().splitlines() or [""])[-1]
    ConfigError.unless(done.returncode == 0, f"{folder}: git {command[0]}", found, "a clone")
    return done.stdout


def executed(folder: Path, method: str) -> Theirs:
    """Return the definitions of a method's official code, and the names that they use.

    Raises:
        ConfigError: the folder is at another commit, or lacks a definition.
    """
    wanted, found = commit_of(method), git(folder, "rev-parse", "HEAD").strip()
    do = f"git -C {folder} checkout {wanted}"
    ConfigError.unless(found.startswith(wanted), f"{folder}: commit", found[:7], wanted, do)
    names: dict[str, Any] = {
        "args": types.SimpleNamespace(),
        "autograd": torch.autograd,
        "copy": copy,
        "DataLoader": torch.utils.data.DataLoader,
        "deepcopy": copy.deepcopy,
        "device": "cpu",
        "F": F,
        "math": math,
        "nn": nn,
        "np": np,
        "optim": torch.optim,
        "Optimizer": torch.optim.Optimizer,
        "random": random,
        "torch": torch,
    }
    for file, definitions in ORIGINALS[method].definitions.items():
        parsed = ast.parse(git(folder, "show", f"{found.strip()}:{file}"))
        for name in definitions:
            kept = list(_defined(parsed, name))
            ConfigError.unless(bool(kept), f"{folder}: {file}", "no such definition", name)
            future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
            module = ast.fix_missing_locations(ast.Module([future, *kept], []))
            exec(compile(module, file, "exec", dont_inherit=True), names)  # noqa: S102
            names[name] = names[name.rpartition(".")[2]]
    return names


def _defined(tree: ast.Module, name: str) -> Iterator[ast.stmt]:
    """Yield the definitions of a name, without decorators; those of a class's method as
    functions."""
    owner, _, last = name.rpartition(".")
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            inside = statement.body if statement.name == owner else [statement] * (not owner)
            for one in inside:
                if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == last:
                    one.decorator_list = []
                    yield one


def apart(ours: Tree, theirs: Tree) -> float:
    """Return the distance of two trees in parts of the length of the second."""
    return float(trees.norm(trees.sub(ours, theirs)) / trees.norm(theirs))


def main() -> int:
    """Compare, and return the exit code."""
    ConfigError.unless(len(sys.argv) > 1, "command", "no folder", "FOLDER [METHOD ...]")
    folder, asked = Path(sys.argv[1]), sys.argv[2:]
    for name in asked:
        ConfigError.unless(name in ORIGINALS, "method", name, do=nearest(name, ORIGINALS))
    worst = 0.0
    torch.set_default_dtype(torch.float64)
    for method in asked or ORIGINALS:
        for quantity, ours, theirs in ORIGINALS[method].compared(executed(folder, method)):
            distance = apart(ours, theirs)
            worst = max(worst, distance)
            print(f"{method} {commit_of(method)}: {quantity}: {distance:.1e} apart")
    return int(not worst < ROUNDING)


if __name__ == "__main__":
    run_script(lambda: sys.exit(main()))
