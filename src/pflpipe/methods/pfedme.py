"""pFedMe (Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS
2020), Algorithm 1, under differential privacy.

The clients' losses f are replaced by their Moreau envelopes (Eqs. 2 and 3)

    F(w) = min over theta of h(theta; w),    h(theta; w) = f(theta) + lambda / 2 |theta - w|_2^2,

whose gradient is ``lambda (w - theta(w))``, where theta(w) is the minimiser. A client starts at the
global model. On each minibatch it takes K gradient steps on h from ``theta = w``, then the step
``w <- w - eta lambda (w - theta)``. It uploads the change of w; theta never leaves it.

    minimises: the envelope ``min over theta of f(theta) + weight / 2 |theta - w|_2^2``, E epochs
        from ``w^t``
    sends: ``w - w^t``
    keeps: nothing
    tests: theta(w) at the released w
    code: CharlieDinh/pFedMe caf24b1: FLAlgorithms/users/userpFedMe.py UserpFedMe.train;
        FLAlgorithms/optimizers/fedoptimizer.py pFedMeOptimizer.step;
        FLAlgorithms/servers/serverbase.py Server.persionalized_aggregate_parameters

    weight: lambda [official code]
    steps: K, gradient steps on h for each minibatch [official code]
    inner_lr: learning rate of the steps on h, 0.1 in most of the official commands
        (``personal_learning_rate``) [ours: steps on h with an L-smooth f converge below 2 / (lambda
        + L)]
    beta: the server's step, ``w <- w + beta`` times the released mean change [official commands,
        most of them]

eta is the study's learning rate, and the paper's R is the number of minibatches in E epochs. A
study with Adam, momentum or weight decay applies these to the same gradient. With ``eta lambda =
1`` and K = 1 this is DP-FedAvg with the learning rate ``inner_lr``.

The personal model is theta(w) at the released w: E epochs from w with K steps on h for each
minibatch. It needs no client state, so a client that was never in training has one too. Differences
of the official code: the K steps continue from the theta of the previous minibatch; the steps on h
have a weight decay of 0.001; all clients train in each round and some of them are averaged; the
tested theta is that of the last local step, whose centre is no longer the released w.
"""

from torch import Tensor

from pflpipe import trees
from pflpipe.learning.directions import batch_gradient, surrogate
from pflpipe.learning.task import Batch, Batches, Solver, Task
from pflpipe.methods.base import About, Count, Method, NonNegative, Upload
from pflpipe.methods.fedprox import proximal
from pflpipe.trees import ClientState, Params, ServerState, Tree, Update

ABOUT = About(title="pFedMe", paper="Dinh et al., NeurIPS 2020", cost=5.4)


def pfedme(
    *,
    weight: NonNegative = 15.0,
    steps: Count = 5,
    inner_lr: NonNegative = 0.05,
    beta: NonNegative = 1.0,
) -> Method:
    """Return the method."""

    def local_update(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> tuple[Upload, ClientState]:
        def envelope(w: Tree, batch: Batch) -> tuple[Tree, Tensor]:
            """Return the gradient of the envelope, and h before the last step on it."""
            h, theta = proximal(w, weight, task), w
            for _ in range(steps):
                gradient, value = batch_gradient(h, theta, batch)
                theta = {name: theta[name] - inner_lr * gradient[name] for name in theta}
            # theta is not differentiated by w: at the minimiser the envelope theorem gives this.
            return {name: weight * gap for name, gap in trees.sub(w, theta).items()}, value

        trained, loss = task.minimize(params, batches.train, surrogate(envelope))
        return Upload(update=trees.sub(trained, params), extras={}, loss=loss), state

    def aggregate(
        params: Params, released: Update, server: ServerState, task: Task
    ) -> tuple[Params, ServerState]:
        return trees.add(params, {name: beta * value for name, value in released.items()}), server

    def personalize(
        params: Params, server: ServerState, state: ClientState, batches: Batches, task: Task
    ) -> Params:
        # The same objective K times: every minibatch is used for K steps on h.
        objectives = [proximal(params, weight, task)] * steps
        return task.minimize(params, batches.train, *objectives, solver=Solver("sgd", inner_lr))[0]

    return Method(local_update, aggregate, personalize)
