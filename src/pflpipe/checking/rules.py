"""What the parts of a certificate's row must say, given the other parts: methods, code, audits,
warnings and diagnostics. The numbers are those of recomputed.py.

As there, nothing of pflpipe is imported (the import contract says so). The names that may occur
come from the schema's file, which a test compares with the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pflpipe.checking import recomputed

TOUCHES = {
    **dict.fromkeys(("method", "loss", "network", "transform", "initial weights"), "messages"),
    **dict.fromkeys(("data", "features"), "rows"),
    "metric": "scores",
}
"""Kind of a part of the code -> what it may touch."""
READER = "pflpipe"
"""Name of the data part where the package reads the rows."""
FIRST = {
    **dict.fromkeys(("cross_entropy", "binary"), "accuracy"),
    "squared_error": "mean_squared_error",
    "absolute_error": "mean_absolute_error",
}
"""Loss of the package -> the first metric of a table, whose columns do not have its name."""
OF_METRICS = ("personal_own", "global_own", "personal_new", "global_new")
"""Ends of the columns of every other metric."""
DEALT = "dealt client"
CLOSE, ROUNDED = 1e-6, 1 + 1e-9
SILENT = {"data_size_weights", "noise_per_participant", "update_against_global"}
"""Departures of which no warning begins with the name."""


class Names(NamedTuple):
    """The names that the schema's file lists (``$defs``)."""

    certified: frozenset[str]
    others: frozenset[str]
    scaled: frozenset[str]
    published: Mapping[str, frozenset[str]]
    measured: frozenset[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Names:
        """Return the names of a schema."""
        lists = schema["$defs"]
        published = lists["published"]["properties"]
        return cls(
            certified=frozenset(lists["certified"]["enum"]),
            others=frozenset(lists["others"]["enum"]),
            scaled=frozenset(lists["scaled"]["enum"]),
            published={name: frozenset(one["enum"]) for name, one in published.items()},
            measured=frozenset(lists["measured"]["enum"]),
        )


def contradictions(row: dict[str, Any], names: Names) -> Iterator[str]:
    """Yield one sentence for each part that contradicts the rest of a row.

    Args:
        row: a row of a certificate that satisfies its schema.
        names: of the schema.
    """
    yield from _method(row, names)
    yield from _code(row)
    yield from _unit(row)
    yield from _audits(row, names)
    yield from _warnings(row)
    yield from _diagnostics(row, names)
    yield from _search(row)


def not_run(row: dict[str, Any]) -> list[str]:
    """Return one sentence if a claim rests on audits that were not run."""
    missing = [one["audit"] for one in row["audits"] if one["verdict"] is None]
    return [f"audits that were not run: {', '.join(missing)}"] if missing else []


def _method(row: dict[str, Any], names: Names) -> Iterator[str]:
    settings = row["settings"]
    name, is_private = settings["method"], "mechanism" in settings["privacy"]
    if settings.get("source"):
        if name in names.certified | names.others:
            yield f"{name} of {settings['source']} has the name of one of pflpipe's methods"
    elif name not in (names.certified if is_private else names.certified | names.others):
        yield f"{name} is not one of pflpipe's {'private ' * is_private}methods"


def _code(row: dict[str, Any]) -> Iterator[str]:
    settings, digests = row["settings"], row["settings"].get("digests", {})
    model, training = settings["model"], settings["training"]
    features, source = settings.get("features", {}), settings.get("source")
    given = {"loss": training.get("loss", "cross_entropy"), "network": model["name"]}
    expected = {
        "method": [f"{source}:{settings['method']}" if source else settings["method"]],
        **{kind: [name] for kind, name in given.items()},
        "transform": training.get("augment", []),
        "initial weights": [model["init"]] if "init" in model else [],
        "features": [features.get("file", features["kind"])] if "kind" in features else [],
    }
    theirs = {kind for kind, name in given.items() if ".py:" in name}
    theirs |= {"method"} if source else set()
    theirs |= {"initial weights"} | ({"features"} if "file" in features else set())
    found: dict[str, list[str]] = {kind: [] for kind in TOUCHES}
    for part in row["code"]:
        kind, name = part["kind"], part["name"]
        found[kind].append(name)
        is_theirs = {
            "data": name != READER,
            "metric": ".py:" in name,
        }.get(kind, kind in theirs)
        if part["touches"] != TOUCHES[kind]:
            yield f"code: {kind} {name} touches {TOUCHES[kind]}"
        if part["package"] == is_theirs:
            yield f"code: {kind} {name} is {'not ' * is_theirs}of pflpipe"
        digest = model.get("init_digest") if kind == "initial weights" else digests.get(kind)
        if (digest or kind == "initial weights") and digest != part["sha256"]:
            yield f"code: {kind} {name} has another digest in the settings"
    for kind, wanted in expected.items():
        if sorted(found[kind]) != sorted(wanted):
            stated = ", ".join(found[kind]) or "nothing"
            yield f"code: {kind} is {stated}, but {', '.join(wanted) or 'nothing'} by the settings"
    if missing := theirs.intersection(("method", *given)) - digests.keys():
        yield f"settings: no digest of {', '.join(sorted(missing))}"
    if len(found["data"]) != 1 or not found["metric"]:
        yield "code: one data part and at least one metric are needed"


def _unit(row: dict[str, Any]) -> Iterator[str]:
    partition, person = row["settings"]["partition"], row["person"]
    privacy, departures = row["settings"]["privacy"], row["departures"]
    if not set(privacy.get("departures", ())) <= set(departures):
        yield "departures: without those of the privacy that was asked for"
    is_dealt = "users" in partition
    if (row["unit"] == DEALT) != is_dealt or (person is None) == is_dealt:
        yield f"unit: users are {'' if is_dealt else 'not '}ignored by the settings"
    elif person and person["max_clients_per_user"] != partition.get("max_clients_per_user"):
        yield "person: the settings have another max_clients_per_user"


def audits(row: dict[str, Any], names: Names) -> list[str]:
    """Return the ids of the audits of the release that a row makes."""
    settings = row["settings"]
    privacy, rate = settings["privacy"], settings["training"].get("sample_rate", 1)
    if "mechanism" not in privacy:
        return []
    mechanism = privacy["mechanism"]
    method = "" if settings.get("source") else settings["method"]
    trusts = ("central", "local") if mechanism == "gaussian" else ("central",)
    if departures := "+".join(sorted(settings.get("departures", ()))):
        starts = (f"{mechanism}{drawn}-{departures}" for drawn in ("", "-drawn"))
        known = names.published.get(method, frozenset())
        return [one for start in starts for one in _each(start, trusts) if one in known]
    drawn = mechanism == "gaussian" and rate < 1
    scaled = f"-scaled_by_{method}" * (method in names.scaled)
    found = _each(f"{mechanism}{scaled}", trusts) + [f"{mechanism}-drawn-central"] * drawn
    if "clip_quantile" in privacy:
        found += _each(f"{mechanism}-adaptive", trusts)
        found += [f"{mechanism}-drawn-adaptive-central"] * drawn
    groups = settings["training"].get("groups", 1)
    if groups > 1 or privacy.get("band", 1) > 1 or "buffers" in privacy:
        found.append(f"gaussian-correlated{'-buffered' * ('buffers' in privacy)}-central")
    return found


def _each(start: str, trusts: tuple[str, ...]) -> list[str]:
    return [f"{start}-{trust}" for trust in trusts]


def _audits(row: dict[str, Any], names: Names) -> Iterator[str]:
    stated, expected = [one["audit"] for one in row["audits"]], audits(row, names)
    if stated != expected:
        yield (
            f"audits are {', '.join(stated) or 'none'}, but {', '.join(expected) or 'none'} by the "
            "settings"
        )
    for one in row["audits"]:
        values = [value for name, value in one.items() if name != "audit"]
        if any(value is None for value in values):
            if not all(value is None for value in values):
                yield f"audit {one['audit']}: a part is missing"
        else:
            yield from (f"audit {one['audit']}: {why}" for why in _audit(one, row))


def _audit(audit: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    plan, words = audit["plan"], audit["audit"].split("-")
    if plan["norm"] != 1 + (plan["mechanism"] != "laplace"):
        yield "its plan has the norm of another mechanism"
    if (plan["bits"], plan["dropout"]) != (32 * (plan["mechanism"] == "skellam"), 0):
        yield "its plan has the secure aggregation of another audit"
    if plan["buffers"] and plan["band"] != plan["rounds"]:
        yield "its plan has buffers, and a band of fewer or more than all rounds"
    said = {
        "adaptive": plan["adaptive"] is not None,
        "buffered": plan["buffers"] is not None,
        "correlated": plan["groups"] > 1,
        "drawn": plan["sample_rate"] < 1,
        "secure": plan["noise"] == "secure",
        plan["mechanism"]: True,
    }
    if any(holds != (word in words) for word, holds in said.items()):
        yield "its plan is not of the kind that its id says"
        return
    if audit["this_plan"] != (plan == row["plan"]):
        yield f"its plan is {'not ' * audit['this_plan']}this row's"
    claimed, lower = claimed_by(plan, words[-1]), _number(audit["epsilon_lower"])
    if not math.isclose(_number(audit["epsilon_claimed"]), claimed, rel_tol=CLOSE):
        yield f"epsilon_claimed is {audit['epsilon_claimed']}, but {claimed} by its plan"
    if audit["verdict"] == "kept" and lower > claimed * ROUNDED:
        yield f"kept, but epsilon_lower {lower} is above the claim {claimed}"
    elif audit["this_plan"] and lower > _number(row["epsilons"][words[-1]]) * ROUNDED:
        yield f"epsilon_lower {lower} is above the row's own epsilon"
    if row["claim"] in ("certified", "unreviewed") and audit["verdict"] != "kept":
        yield f"{audit['verdict']}, under a claim that needs it kept"


def claimed_by(plan: dict[str, Any], trust: str) -> float:
    """Return the epsilon that an audited plan claims for its sums, or for single messages that each
    have their share of the noise (``local``)."""
    noise = recomputed.release(plan)
    if trust == "local":
        share = noise.multiplier / math.sqrt(plan["sample_rate"] * plan["clients"])
        noise = noise._replace(multiplier=share, rate=1.0)
    return recomputed.central((noise,), plan["delta"])


def _number(epsilon: float | str) -> float:
    return math.inf if epsilon == "inf" else float(epsilon)


def _warnings(row: dict[str, Any]) -> Iterator[str]:
    """Yield what a row must warn of by its settings and its plan; other warnings follow from the
    data."""
    settings, plan, said = row["settings"], row["plan"], row["warnings"]
    if plan["mechanism"] == "none":
        if said:
            yield "warnings: there is nothing to warn of without privacy"
        return
    training, privacy = settings["training"], settings["privacy"]
    needed = [f"{name}:" for name in settings.get("departures", ()) if name not in SILENT]
    needed += ["delta "] * (10 * plan["clients"] * plan["delta"] > 1)
    fixed = training.get("groups", 1) > 1 or privacy.get("band", 1) > 1 or "buffers" in privacy
    needed += ["cohorts are fixed in advance"] * fixed
    needed += ["clients are dealt"] * ("users" in settings["partition"])
    needed += ["secure noise"] * ("noise" in privacy)
    needed += ["secure aggregation"] * (plan["mechanism"] == "skellam")
    for start in needed:
        if not any(warning.startswith(start) for warning in said):
            yield f"warnings: none begins with {start!r}"
    for name in recomputed.unreviewed(row["code"]):
        if not any(name in warning for warning in said):
            yield f"warnings: none is about {name}"


def _diagnostics(row: dict[str, Any], names: Names) -> Iterator[str]:
    stated = set(row["diagnostics"])
    if missing := names.measured - stated:
        yield f"diagnostics: without {', '.join(sorted(missing))}, which every table has"
    metrics = {part["name"].split(":")[-1] for part in row["code"] if part["kind"] == "metric"}
    columns = {name: {f"{name}_{end}" for end in OF_METRICS} for name in metrics}
    without = {name for name in metrics if not columns[name] <= stated}
    first = FIRST.get(row["settings"]["training"].get("loss", "cross_entropy"))
    if len(without) != 1 or first not in (None, *without):
        yield f"diagnostics: not the columns of {', '.join(sorted(metrics))}"
    for column in sorted(stated - names.measured - set().union(*columns.values())):
        if not column.startswith("best_round_"):
            yield f"diagnostics: {column} is no column of a metric"


def _search(row: dict[str, Any]) -> Iterator[str]:
    settings, search = row["settings"], row["search"]
    if not search:
        return
    if any((part["runs"] is None) != bool(search["private"]) for part in search["plans"]):
        yield "search: the runs of a private search are not published, those of any other are"
    is_covered = "mechanism" in settings["privacy"] and not row["departures"]
    is_uncounted = is_covered and settings["partition"]["kind"] != "natural"
    if (search["search_not_counted"] is not None) != is_uncounted:
        yield "search: only with clients that were dealt is there a reason not to count it"
