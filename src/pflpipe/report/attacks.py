"""The tables and figures of attacks on the cells of a study, setting by setting: how well
membership inference separates members from held-out clients, and the epsilons that guesses about
the canaries of one run refute."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from pflpipe.attacks import jobs
from pflpipe.attacks.membership import SCORES
from pflpipe.attacks.one_run import ERROR, judged
from pflpipe.cells import Cell
from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.errors import DataError
from pflpipe.files import atomic
from pflpipe.methods import registry as methods
from pflpipe.privacy.accounting import delta_of
from pflpipe.privacy.ledger import Planned
from pflpipe.report.figures import rows, style
from pflpipe.report.summary import not_covered
from pflpipe.report.tidy import existing, planned
from pflpipe.report.words import WORDS
from pflpipe.study.settings import Setting, layout
from pflpipe.study.study_spec import Drawing, Study

Bound = Callable[[np.ndarray], np.ndarray]

RATES = (0.01, 0.1)
"""False positive rates at which the table gives the true positive rate, if enough clients were
held out."""
FALSE_POSITIVES = 100
"""Expected number of false positives that a reported rate needs: 10,000 held-out clients for 1 %.
The standard error of such a rate is a tenth of it."""

LOOKS: tuple[dict[str, Any], ...] = tuple(
    {"color": colour, "linestyle": dashes}
    for dashes, colour in itertools.product(("-", "-.", (0, (5, 1, 1, 1, 1, 1))), style.STRONG)
)
"""Lines of settings, in order; plain dashes are the bound of a plan, dots are guessing."""
_FRAME = 6.5 * style.LINE
"""Height of a panel's title, ticks and axis label, in inches."""
_SAMPLE = 0.4
"""Width of a sample of a line in a legend, in inches."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """A setting of a study with the results of an attack. The label of an unreviewed one says so.

    Attributes:
        cells: the attacked cells of the setting, one or more.
        results: folder with ``attacks/`` and ``plans/``.
    """

    attack: str
    setting: Setting
    cells: tuple[Cell, ...]
    results: Path

    @cached_property
    def planned(self) -> Planned:
        """Plan and ledger, which all seeds share. DataError when they do not exist."""
        return planned(self.cells[0].plan_id, self.results)

    @cached_property
    def arrays(self) -> list[dict[str, np.ndarray]]:
        """The arrays of the attack on each cell. DataError when they do not exist."""
        loaded = []
        for cell in self.cells:
            file = self.results / "attacks" / self.attack / f"{cell.id}.npz"
            with np.load(existing(file, file), allow_pickle=False) as bundle:
                loaded.append(dict(bundle))
        return loaded

    def pooled(self, name: str) -> np.ndarray:
        """Return an array, concatenated over all cells."""
        return np.concatenate([arrays[name] for arrays in self.arrays])

    @property
    def identity(self) -> dict[str, Any]:
        """The first columns of a table."""
        return {"method": self.setting.label, "budget": self.setting.budget, **self.setting.facet}

    @property
    def name(self) -> str:
        """The name of the setting in a figure."""
        setting = self.setting
        label = methods.in_print(setting.label, self.cells[0])
        return ", ".join(filter(None, [label, setting.budget, setting.facet_text]))


def attacked(attack: str, study: Study, results: Path) -> list[Attacked]:
    """Return the settings of a study with cells to which an attack applies, in order."""
    ids = {cell.id for cell in jobs.cells(attack, study)}
    settings = []
    for setting in layout(study).settings:
        cells = tuple(study.cells[i] for i in setting.indices if study.cells[i].id in ids)
        if cells and cells[0].claim == "unreviewed":
            setting = dataclasses.replace(setting, label=f"{setting.label} (unreviewed)")
        if cells:
            settings.append(Attacked(attack, setting, cells, results))
    return settings


# ---------------------------------------------------------------- membership inference


def membership_table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting and score: how well members are separated from held-out clients,
    pooled over the seeds.

    ``auc`` is the area under the pooled ROC curve, ``auc_deviation`` the standard deviation of the
    areas of single seeds. ``tpr_at_0.01`` is the largest true positive rate at a false positive
    rate of at most 1 %, ``bound_at_0.01`` the largest that the plan allows any attack; both are
    fractions. ``held_out`` does not count clients that calibrate. If 1 % of it are fewer than
    ``FALSE_POSITIVES``, ``tpr_at_0.01`` is NaN (an empty field), because it would depend on a few
    clients.
    """
    records = []
    for one in attacked("membership", study, results):
        limit = _bound(one.planned)
        for score in SCORES:
            games = list(_games(one, score))
            member, values = _pooled(one, score)
            false, true = _curve(member, values)
            areas = [roc_auc_score(*game) for game in games if 0 < game[0].sum() < len(game[0])]
            held_out = int((~member).sum())
            record = {
                **one.identity,
                "score": score,
                "seeds": len(games),
                "members": int(member.sum()),
                "held_out": held_out,
                "auc": roc_auc_score(member, values),
                "auc_deviation": float(np.std(areas, ddof=1)) if len(areas) > 1 else np.nan,
            }
            for rate in RATES:
                resolved = held_out >= _trials(rate)
                record[f"tpr_at_{rate:g}"] = true[false <= rate].max() if resolved else np.nan
                most = np.nan if limit is None else float(limit(np.array([rate]))[0])
                record[f"bound_at_{rate:g}"] = most
            records.append(record)
    return pd.DataFrame(records)


def membership_figure(study: Study, results: Path, width: float) -> Figure:
    """Draw the ROC curves, one panel for each score and condition, pooled over seeds. The legend
    has the areas under the curves of a setting (AUC), in the order of the panels.

    Dashed: the most that the plan of a certified setting allows any attack. Dotted: guessing. The
    axes are logarithmic and begin where ``FALSE_POSITIVES`` are expected; with too few held-out
    clients for any of ``RATES`` they are linear.
    """
    settings = attacked("membership", study, results)
    names = list(dict.fromkeys(map(_name, settings)))
    looks: dict[Attacked, dict[str, Any]] = {}
    for one in settings:
        areas = [f"{roc_auc_score(*_pooled(one, score)):.2f}" for score in SCORES]
        text = f"{one.name} ({', '.join(areas)})"
        label = "\n".join(style.lines_of(text, width / style.columns(width) - _SAMPLE))
        looks[one] = LOOKS[names.index(_name(one)) % len(LOOKS)] | {"label": label}
    facets = list(dict.fromkeys(one.setting.facet_text for one in settings))
    panels = list(itertools.product(facets, SCORES))
    columns = 2 * style.columns(width)
    lines = math.ceil(len(panels) / columns)
    heading = WORDS["headings"]["membership"]
    height = lines * (0.75 * width / columns + _FRAME)
    drawing, grid = style.panels(len(panels), (lines, columns), width, heading, height)
    for axes, (facet, score) in zip(grid.flat, panels, strict=True):
        shown = {one: look for one, look in looks.items() if one.setting.facet_text == facet}
        _panel(axes, score, shown)
        title = ": ".join(filter(None, [facet, SCORES[score]]))
        axes.set_title("\n".join(style.lines_of(title, 0.8 * width / columns)), loc="left")
    for axes in grid[:, 0]:
        axes.set_ylabel("true positive rate")
    for axes in grid[-1]:
        axes.set_xlabel("false positive rate")
    style.legend(drawing, *grid.flat, columns=style.columns(width))
    return drawing


def _name(one: Attacked) -> str:
    return f"{one.setting.label}, {one.setting.budget}"


def _panel(axes: Axes, score: str, looks: Mapping[Attacked, Mapping[str, Any]]) -> None:
    rates, fewest = np.logspace(-4, 0, 200), math.inf
    axes.plot(rates, rates, color=style.PLAIN, linestyle=":", linewidth=1)
    for one, look in looks.items():
        member, values = _pooled(one, score)
        false, true = _curve(member, values)
        axes.plot(np.maximum(false, rates[0]), true, drawstyle="steps-post", **look)
        limit = _bound(one.planned)
        if limit is not None:
            axes.plot(rates, limit(rates), color=look["color"], linestyle="--", linewidth=0.7)
        fewest = min(fewest, (~member).sum())
    if fewest >= _trials(max(RATES)):
        least = FALSE_POSITIVES / fewest
        axes.set(xscale="log", yscale="log", xlim=(least, 1.0), ylim=(least, 1.0))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
    else:
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))


def _trials(rate: float) -> int:
    """Return how many held-out clients a reported false positive rate needs."""
    return math.ceil(FALSE_POSITIVES / rate)


def _games(one: Attacked, score: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield membership and score of the clients that tossed a coin, for each run."""
    for game in one.arrays:
        judged = ~game["calibration"]
        yield game["member"][judged], game[score][judged]


def _pooled(one: Attacked, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return membership and score of the clients that tossed a coin, of all runs."""
    judged = ~one.pooled("calibration")
    return one.pooled("member")[judged], one.pooled(score)[judged]


def _curve(member: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ROC curve's false and true positive rates, ascending."""
    if member.all() or not member.any():
        raise DataError(
            "membership", got="members or held-out clients only", do="give the study more seeds"
        )
    false, true, _ = roc_curve(member, values, drop_intermediate=False)
    return false, true


def _bound(planned: Planned) -> Bound | None:
    """Return a function from false positive rates to the largest true positive rates that a plan
    allows; None without a guarantee.

    The trade-off curve of mu-GDP for Gaussian noise without sampling, else the line of the ledger's
    (epsilon, delta). A nominal row has no guarantee: its departures may let a client without
    examples change the messages of others. If the curve of an unreviewed row is above the line, its
    file does so.
    """
    plan, central = planned.plan, planned.ledger.epsilon_central
    departs = planned.ledger.claim not in WITHOUT_DEPARTURES
    if departs or not plan.noise_multiplier or central is None:
        return None
    if plan.mechanism == "gaussian" and plan.sample_rate == 1:
        mu = math.sqrt(plan.rounds) / plan.noise_multiplier
        return lambda rates: norm.cdf(norm.ppf(rates) + mu)
    factor, delta = math.exp(min(central, 700.0)), delta_of(plan)
    return lambda rates: np.clip(
        np.minimum(factor * rates + delta, 1 - (1 - delta - rates) / factor), 0, 1
    )


# ---------------------------------------------------------------- the canaries of one run


def one_run_table(study: Study, results: Path) -> pd.DataFrame:
    """Return one row per setting, with the canaries of all its seeds.

    ``epsilon_claimed`` is the epsilon of a certified or unreviewed row, or the nominal epsilon, at
    ``delta``. ``verdict`` is ``refuted`` if the bound exceeds it, ``out of reach`` if no guesses
    could have refuted it, else ``not refuted``.
    """
    records = []
    for one in attacked("one_run", study, results):
        plan, ledger = one.planned.plan, one.planned.ledger
        asked = ledger.epsilon_nominal
        claimed = ledger.epsilon_central if asked is None else asked
        assert claimed is not None  # the attack applies to runs with noise only
        judgement = judged(one.pooled("heads"), one.pooled("scores"), delta_of(plan))
        record = {**one.identity, "seeds": len(one.cells), **judgement}
        record |= {"epsilon_claimed": claimed, "delta": plan.delta}
        records.append(record | {"verdict": _verdict(judgement, claimed)})
    return pd.DataFrame(records)


def _verdict(judgement: Mapping[str, float], claimed: float) -> str:
    if judgement["epsilon_lower"] > claimed:
        return "refuted"
    return "not refuted" if judgement["epsilon_highest"] > claimed else "out of reach"


def one_run_figure(study: Study, results: Path, width: float) -> Figure:
    """Draw for each setting the bound, the largest possible bound, and the claim, at the right edge
    if it is beyond the scale."""
    numbers = one_run_table(study, results)
    heading = WORDS["headings"]["one_run"].format(confidence=1 - ERROR)
    names = dict(enumerate(one.name for one in attacked("one_run", study, results)))
    drawing, (place,) = rows.draw([rows.Block("", [names])], width, heading)
    axes, heights = place.axes[0], np.array(list(place.heights.values()))
    edge = max(1.0, 1.3 * numbers["epsilon_highest"].max())
    highest, lower = numbers["epsilon_highest"], numbers["epsilon_lower"]
    axes.hlines(heights, 0, highest, color=style.REST, linewidth=5, label="reach of a bound")
    refuted = (numbers["verdict"] == "refuted").to_numpy()
    for shown, colour, label in (
        (~refuted, style.CERTIFIED, "bound"),
        (refuted, style.NOMINAL, "bound that refutes"),
    ):
        axes.plot(lower[shown], heights[shown], "o", color=colour, label=label)
    claims = numbers["epsilon_claimed"].clip(upper=edge)
    axes.plot(claims, heights, "|", color="#000000", ms=9, mew=1.5, label="claimed")
    axes.set_xlim(-0.02 * edge, 1.02 * edge)
    axes.set_xlabel("ε")
    style.legend(drawing, axes, columns=2 * style.columns(width))
    return drawing


# ---------------------------------------------------------------- both


SHOWN: Mapping[str, tuple[Callable[..., pd.DataFrame], Callable[..., Figure]]] = {
    "membership": (membership_table, membership_figure),
    "one_run": (one_run_table, one_run_figure),
}
"""Name in ``attacks.jobs`` -> the function of its numbers (study, results) and that of its figure
(study, results, width in inches), which read ``results/attacks`` and ``results/plans``."""


def draw(study: Study, drawing: Drawing, results: Path) -> Figure:
    """Draw an attack's figure, with a note on what no epsilon covers."""
    figure: Figure = SHOWN[drawing.kind][1](study, results, drawing.width)
    style.foot(figure, not_covered(study))
    return figure


def write(study: Study, drawing: Drawing, results: Path, target: Path, bare: bool = False) -> None:
    """Draw as ``draw`` does and write the numbers (.csv) and the files of ``style.save``.

    Raises:
        ConfigError: the study has no run for the attack. DataError: results are missing.
    """
    with atomic(target.with_suffix(".csv")) as path:
        SHOWN[drawing.kind][0](study, results).to_csv(path, index=False)
    style.save(lambda: draw(study, drawing, results), target, bare)
