"""APPFL's personalization (Argonne Privacy-Preserving Federated Learning; its documentation and
official code) for clients that take a number of steps, ``PersonalizedClientStepOptim``. The clients
of appfl.py train for epochs.

As in appfl.py, personal layers stay on the client and the shared layers are averaged with Laplace
noise. In a round a client takes S steps on minibatches, passing over its examples repeatedly. The
change of each step, personal layers included, is shortened to clip_value / S, so that S steps
together are at most clip_value long.

    minimises: ``f(w)`` over all layers in S steps, each at most ``clip_value / S`` long
    sends: the change of the shared layers
    keeps: the personal layers
    tests: the model after S more such steps
    code: APPFL/APPFL 11006c1: src/appfl/algorithm/personalized_client_step_optimizer.py
        PersonalizedClientStepOptim.update

    personal_layers: prefixes of layer names, separated by commas (p_layers); empty shares
        everything [ours]
    local_steps: S (num_local_steps), instead of the study's local epochs [ours]

This bounds the message without a clip, so the release is certified. (The joint clip of the
mechanism stays; it shortens by rounding only.) The published version errs in the noise. Its scale
is 2 lr clip_value / epsilon, although the bounded change contains the learning rate already
(``learning_rate_in_noise``), and the epsilon of one round is quoted for all T rounds
(``no_composition``). The ledger counts both: under zero-out the epsilon is T epsilon / (2 lr). Not
imitated: every client adds all of the noise to its message.
"""

from dataclasses import replace
from typing import Annotated

from pflpipe.methods.appfl import bounded, keep_layers
from pflpipe.methods.base import About, Count, Method, Option

ABOUT = About(
    title="APPFL (steps)",
    paper="APPFL documentation, personalization",
    has_global_model=False,
    mechanism="laplace",
    paper_departures=("learning_rate_in_noise", "no_composition"),
)


def appfl_steps(
    *, personal_layers: Annotated[str, Option(layers=True)] = "head", local_steps: Count = 10
) -> Method:
    """Return the method."""
    method = keep_layers("appfl_steps", personal_layers, lambda task: bounded(task, local_steps))
    return replace(method, local_steps=local_steps)
