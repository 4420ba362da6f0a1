"""Server optimizers: what the server makes of a released update, for every method.

Sources: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019 (``momentum``, FedAvgM); Reddi, Charles, Zaheer, Garrett, Rush,
Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (``adam``,
``yogi``). With Delta the step that a method's own ``aggregate`` makes of the release, in each
coordinate

    sgd:        w <- w + eta Delta
    momentum:   m <- beta m + Delta,                                  w <- w + eta m
    adam:       m <- beta_1 m + (1 - beta_1) Delta,
                v <- beta_2 v + (1 - beta_2) Delta^2,
                w <- w + eta m / (sqrt(v) + tau)
    yogi:       as adam, but v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)

from m = 0 and v = tau^2, without bias correction, as in Algorithm 2.

Why around ``aggregate``, and not on the release before it: a method's server may keep what was
released (DP-FedSim compares directions with it, FedGLP-ADP sets its clip weights by it), which is
no pseudo-gradient and must stay what was released. So ``aggregate`` sees the release as ever, keeps
what it keeps, and only its step is replaced. Whoever writes a method knows nothing of optimizers.

Delta, m, v and what was sent follow from releases alone: all of this is post-processing, which
costs no privacy, and the state is public.

A coordinate that is not sent in a round (no tensor of the release, or of scale 0) keeps its value,
and its m and v too, as in lazy updates of sparse gradients: it would otherwise go on moving by what
was released of it before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pflpipe import trees
from pflpipe.cells import Server
from pflpipe.learning.task import Task
from pflpipe.methods.base import Method
from pflpipe.trees import Params, ServerState, Tree, Update

_OWN, _FIRST, _SECOND = "method.", "first.", "second."


def with_optimizer(method: Method, server: Server) -> Method:
    """Return the method whose server takes its steps by an optimizer; itself for steps as they are.

    Its server state has three parts: ``method.<name>``, which alone the method's hooks are given,
    and ``first.<parameter>`` and ``second.<parameter>`` ``[*shape]``, the moments m and v of what
    the method sends (as far as the optimizer has them).
    """
    if server == Server():
        return method
    moments = {"momentum": (_FIRST,), "adam": (_FIRST, _SECOND), "yogi": (_FIRST, _SECOND)}
    kept = moments.get(server.optimizer, ())

    def init_server(params: Params, task: Task) -> ServerState:
        starts = {_FIRST: 0.0, _SECOND: server.tau**2}
        return ServerState(
            trees.prefixed(_OWN, method.init_server(params, task))
            | {
                prefix + name: torch.full_like(params[name], starts[prefix])
                for prefix in kept
                for name in method.sends(task)
            }
        )

    def aggregate(
        params: Params, released: Update, state: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        own = _own(state)
        stepped, new_own = method.aggregate(params, released, own, task)
        scale = method.scale(params, own, task)
        new_params, new_state = Params(dict(params)), trees.prefixed(_OWN, new_own)
        for name in filter(params.__contains__, released):  # further parts are the method's own
            old = {prefix: state[prefix + name] for prefix in kept}
            step, new = _step(stepped[name] - params[name], old, server)
            if name in scale:
                sent = scale[name] > 0
                step = torch.where(sent, step, 0)
                new = trees.where(dict.fromkeys(new, sent), new, old)
            new_params[name] = params[name] + step
            new_state |= {prefix + name: value for prefix, value in new.items()}
        return new_params, ServerState(new_state)

    return dataclasses.replace(
        method,
        aggregate=aggregate,
        init_server=init_server,
        local_update=_for_own(method.local_update),
        personalize=_for_own(method.personalize),
        scale=_for_own(method.scale),
    )


def _step(delta: Tensor, moments: Tree, server: Server) -> tuple[Tensor, Tree]:
    """Return the step of one tensor and its next moments, from those before."""
    if server.optimizer == "sgd":
        return server.lr * delta, {}
    if server.optimizer == "momentum":
        first = server.momentum * moments[_FIRST] + delta
        return server.lr * first, {_FIRST: first}
    first = server.beta1 * moments[_FIRST] + (1 - server.beta1) * delta
    square, second = delta.square(), moments[_SECOND]
    if server.optimizer == "yogi":
        second = second - (1 - server.beta2) * square * torch.sign(second - square)
    else:
        second = server.beta2 * second + (1 - server.beta2) * square
    step = server.lr * first / (second.sqrt() + server.tau)
    return step, {_FIRST: first, _SECOND: second}


def _own(state: ServerState) -> ServerState:
    """Return what a method's own hooks keep of the state."""
    return ServerState(trees.within(_OWN, state))


def _for_own(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook ``(params, server, ...)`` that is given a whole state and sees its own part."""

    def called(params: Params, server: ServerState, *rest: Any) -> Any:
        return hook(params, _own(server), *rest)

    return called
