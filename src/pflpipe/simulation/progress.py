"""A run between two rounds: everything that the next round needs, and the diagnostics so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from pflpipe.privacy.residuals import Residuals
from pflpipe.simulation.states import States
from pflpipe.trees import Params, ServerState


@dataclass
class Progress:
    """A run after ``round`` rounds: everything a resumed run needs, and the diagnostics so far.

    ``diverged_round`` is the first round in which a loss, an upload, a state or the model was not
    finite (the run goes on: such uploads count as zero). ``releases`` counts calls of the release
    and ``residuals`` says what in them differs from the plan. ``uploaded_bits`` adds up what
    one client sends in each round, whoever was drawn. ``bound`` is the clip bound of the next round
    where it adapts, a public number (None: that of the plan).
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
