"""The state of a run between two rounds."""

from dataclasses import dataclass, field

from pflpipe.privacy.run_check import Residuals
from pflpipe.simulation.states import States
from pflpipe.trees import Params, ServerState


@dataclass
class Progress:
    """A run after ``round`` rounds: everything that a resumed run needs, and the diagnostics.

    Attributes:
        round, params, server, states: number of finished rounds, global model, server state, states
            of all clients.
        rows, timing: diagnostics and seconds of each round.
        diverged_round: the first round in which a loss, an upload, a state or the model was not
            finite. The run continues; such uploads count as zero.
        releases: number of calls of the release.
        residuals: differences of the releases from the plan.
        uploaded_bits: bits that one client sends, summed over the rounds; independent of the
            cohorts.
        bound: clip bound of the next round if it adapts, a public number; None is that of the plan.
        checked: whether the witness has no clients to compute again now (witness.py). Without that
            there is no checkpoint, so that no run goes on from rounds that nobody has checked.
    """

    round: int
    params: Params
    server: ServerState
    states: States
    rows: list[dict[str, float]] = field(default_factory=list)
    timing: list[dict[str, float]] = field(default_factory=list)
    diverged_round: int | None = None
    releases: int = 0
    residuals: Residuals = field(default_factory=Residuals)
    uploaded_bits: float = 0.0
    bound: float | None = None
    checked: bool = True
