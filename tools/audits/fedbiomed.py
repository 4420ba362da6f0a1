"""Fed-BioMed (PyPI: fedbiomed): its differential privacy on the nodes. It is read, not imported.

``fedbiomed/common/privacy/_dp_controller.py``, lines 44-103: with dp_args a node trains with
Opacus, which clips the gradient of each example to ``clip``. For type "local", sigma is the noise
multiplier of each step. For type "central", the steps have no noise (lines 140-143), and noise of
standard deviation sigma clip is added to the model after the round (lines 216-221).
"""

from __future__ import annotations

from audits import Untried

PROGRAM = "Fed-BioMed"
VERSION = "6.4.1"

AUDITS = [
    Untried(
        title="type central",
        source="fedbiomed/common/privacy/_dp_controller.py:216-221",
        reason="The noise is sigma clip, but clip bounds the gradient of an example and nothing "
        "bounds the model that is sent: how far one example moves it in a round is up to the "
        "optimizer, the learning rate and the number of steps that a user chooses (for SGD, "
        "clip x learning rate / batch size a step). With small ones the noise is ample, with "
        "others not. Its tutorial counts one step with the sampling rate of a batch for each "
        "round, although an epoch visits every example. Issue 1443 of the project lists such "
        "doubts.",
    ),
    Untried(
        title="type local",
        source="fedbiomed/common/privacy/_dp_controller.py:83-92",
        reason="Opacus inside each node, whose step is audited under Opacus. The controller prints "
        "no epsilon: the function that computes one is not called (lines 168-184).",
    ),
]
