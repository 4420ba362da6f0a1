"""How well membership inference separates members from held-out clients, in each setting."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from pflpipe.attacks.membership import SCORES
from pflpipe.code.dependencies import WITHOUT_DEPARTURES
from pflpipe.errors import DataError
from pflpipe.privacy.accounting import delta_of
from pflpipe.privacy.ledger import Planned
from pflpipe.report.attacks.results import Attacked, attacked
from pflpipe.report.figures import style
from pflpipe.study.study_spec import Study

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


def table(study: Study, results: Path) -> pd.DataFrame:
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


def figure(study: Study, results: Path, width: float) -> Figure:
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
    heading = (
        "Separation of members from held-out clients, pooled over the seeds. Dashed: the most that "
        "a plan without departures allows any attack; dotted: guessing. In brackets: areas "
        "under the curves (AUC), in the order of the panels."
    )
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
