"""Server optimizers, which turn a released update into the server's step, for every method.

Sources: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019 (``momentum``, FedAvgM); Reddi, Charles, Zaheer, Garrett, Rush,
Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (``adam``,
``yogi``). With Delta the step of the method's ``aggregate``, in each coordinate

    sgd:        w <- w + eta Delta
    momentum:   m <- beta m + Delta,                                  w <- w + eta m
    adam:       m <- beta_1 m + (1 - beta_1) Delta,
                v <- beta_2 v + (1 - beta_2) Delta^2,
                w <- w + eta m / (sqrt(v) + tau)
    yogi:       as adam, but v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)

from m = 0 and v = tau^2, without bias correction, as in Algorithm 2.

The optimizer wraps ``aggregate`` instead of changing the release before it. A method's server may
store the release (DP-FedSim compares directions with it, FedGLP-ADP sets its clip weights by it)
and needs it unchanged. So ``aggregate`` receives the release, keeps its state, and only its step is
replaced. Methods do not know about optimizers.

Delta, m, v and the set of sent coordinates follow from releases alone. All of this is
post-processing, which costs no privacy, and the state is public.

A coordinate that is not sent in a round (no tensor of the release, or scale 0) keeps its value, m
and v, as in lazy updates of sparse gradients. Otherwise it would continue to move by its earlier
releases.
"""

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

_METHOD, _FIRST, _SECOND = "method.", "first.", "second."


def with_optimizer(method: Method, server: Server) -> Method:
    """Return the method with a server optimizer; the method itself if the server adds the release.

    The server state has three parts: ``method.<name>``, the only part that the method's hooks
    receive, and ``first.<parameter>`` and ``second.<parameter>`` ``[*shape]``, the moments m and v
    of the sent parameters, if the optimizer has them.
    """
    if server == Server():
        return method
    moments = {"momentum": (_FIRST,), "adam": (_FIRST, _SECOND), "yogi": (_FIRST, _SECOND)}
    kept = moments.get(server.optimizer, ())

    def init_server(params: Params, task: Task) -> ServerState:
        starts = {_FIRST: 0.0, _SECOND: server.tau**2}
        state = trees.prefixed(_METHOD, method.init_server(params, task))
        for prefix in kept:
            for name in method.sends(task):
                state[prefix + name] = torch.full_like(params[name], starts[prefix])
        return ServerState(state)

    def aggregate(
        params: Params, released: Update, state: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        inner = _of_method(state)
        stepped, new_inner = method.aggregate(params, released, inner, task)
        scale = method.scale(params, inner, task)
        new_params, new_state = Params(dict(stepped)), trees.prefixed(_METHOD, new_inner)
        # Parts that are no parameters, such as centroids, are left to the method.
        for name in filter(params.__contains__, released):
            old = {prefix: state[prefix + name] for prefix in kept}
            # Delta is the step that the method itself would take.
            step, new = _step(stepped[name] - params[name], old, server)
            if name in scale:
                sent = scale[name] > 0
                step = torch.where(sent, step, 0)
                new = trees.where(dict.fromkeys(new, sent), new, old)
            new_params[name] = params[name] + step
            new_state |= {prefix + name: value for prefix, value in new.items()}
        return new_params, ServerState(new_state)

    wrapped = ("local_update", "personalize", "scale")
    hooks: dict[str, Any] = {name: _for_method(getattr(method, name)) for name in wrapped}
    return dataclasses.replace(method, aggregate=aggregate, init_server=init_server, **hooks)


def _step(delta: Tensor, moments: Tree, server: Server) -> tuple[Tensor, Tree]:
    """Return the step of one tensor and its next moments, from the step of ``aggregate`` and the
    previous moments."""
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


def _of_method(state: ServerState) -> ServerState:
    """Return the part of the state that belongs to the method's hooks."""
    return ServerState(trees.within(_METHOD, state))


def _for_method(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook ``(params, server, ...)`` that takes a whole state and passes on the method's
    part."""

    def wrapped(params: Params, server: ServerState, *rest: Any) -> Any:
        return hook(params, _of_method(server), *rest)

    return wrapped
