"""The card of a method: what a client minimises, sends, keeps and tests, what is claimed for it,
its hyper-parameters and what to cite. For ``pflpipe methods NAME`` and the site's page of methods.

All of it is said once, somewhere else: the header of the method's file, the signature of its
factory, its ``ABOUT``, the departures, and ``methods/citations.bib``. In a header the lines

    minimises: ...
    tau: threshold on the Fisher information [official code]

are a card's: four words of its own and the names of hyper-parameters, each indented by four spaces
and its further lines by eight. Brackets at the end hold where a default comes from.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pflpipe.cells import WITHOUT_DEPARTURES, claim_of
from pflpipe.methods import registry
from pflpipe.methods.registry import MethodInfo
from pflpipe.named import DEPARTURES, OF_MESSAGES, WITHOUT_BOUND, WITHOUT_JOINT_CLIP
from pflpipe.options import Declared, bounds

FORMULAS = {
    "minimises": "A client minimises",
    "sends": "It sends",
    "keeps": "It keeps",
    "tests": "Tested as its personal model",
}
"""Words of a header for what a client does in a round, and as they are printed."""

_LACKS = {
    "body": "a network that is nothing but its head",
    "norm": "a network without normalisation layers: of pflpipe's own all but the ResNets",
}
_CITATIONS = Path(registry.__file__).with_name("citations.bib")
_ITEM = re.compile(r"    (\w+): (.*(?:\n {8}.*)*)\n?")


@dataclass(frozen=True)
class Header:
    """What the header of a method's file says.

    Attributes:
        what: the paragraphs before the lines of the card.
        formulas: by the words of ``FORMULAS``.
        knobs: hyper-parameter -> its meaning, and where its default comes from.
        notes: the paragraphs after them: readings of the paper, differences.
    """

    what: str
    formulas: dict[str, str]
    knobs: dict[str, tuple[str, str]]
    notes: str


def header(name: str, source: str = "", knobs: typing.Collection[str] = ()) -> Header:
    """Return what the header of a method's file says; all of it is empty where it says nothing.

    Args:
        name, source: of the method, as ``registry.locate`` has them.
        knobs: names of its hyper-parameters.
    """
    text = registry.file_of(name, source).read_text(encoding="utf-8")
    header = ast.get_docstring(ast.parse(text)) or ""
    formulas: dict[str, str] = {}
    meanings: dict[str, tuple[str, str]] = {}
    ends: list[tuple[int, int]] = []
    for item in _ITEM.finditer(header):
        word, words = item[1], " ".join(item[2].split())
        if word in FORMULAS:
            formulas[word] = words
        elif word in knobs:
            meaning, _, origin = words.partition(" [")
            meanings[word] = (meaning, origin.removesuffix("]"))
        else:
            continue
        ends.append(item.span())
    if not ends:
        return Header(header, {}, {}, "")
    before, after = header[: ends[0][0]], header[ends[-1][1] :]
    return Header(before.strip(), formulas, meanings, after.strip("\n"))


def citations(name: str) -> list[str]:
    """Return the BibTeX entries of a method; none for one that no paper proposes, or that is not
    pflpipe's."""
    entries = re.findall(r"^@.*?^}", _CITATIONS.read_text(encoding="utf-8"), re.M | re.S)
    cited = []
    for entry in entries:
        keywords = re.search(r"\n  keywords = {(.*)},", entry)
        if keywords and name in keywords[1].split(", "):
            cited.append(entry.replace(keywords[0], ""))
    return cited


def card(name: str) -> str:
    """Return the card of a method as Markdown, which a terminal shows as well.

    Args:
        name: as in a study; the path of ``file.py:name`` is relative to the working directory.

    Raises:
        ConfigError: there is no such method.
    """
    name, source = registry.locate(name)
    entry = registry.info(name, source)
    about = entry.about
    parsed = header(name, source, entry.hyperparameters)
    parts = [f"## {name}", parsed.what or f"{about.title} ({about.paper})"]
    if source:
        parts.append(f"From `{source}`.")
    formulas = [f"- {FORMULAS[word]}: {words}" for word, words in parsed.formulas.items()]
    parts.append("\n".join(formulas))
    parts.append("**Claim**\n\n" + "\n".join(f"- {line}" for line in _claims(entry, source)))
    knobs = [f"- {_knob(entry, key, parsed)}" for key in entry.hyperparameters]
    parts.append("**Hyper-parameters**\n\n" + ("\n".join(knobs) or "None of its own."))
    refused = [f"- {line}" for line in _refusals(entry, source)]
    parts.append("**Refuses**\n\n" + "\n".join(refused) if refused else "")
    parts.append(f"**Readings and differences**\n\n{parsed.notes}" if parsed.notes else "")
    cited = "\n\n".join(citations(name))
    parts.append(f"**Cite**\n\n```bibtex\n{cited}\n```" if cited else "")
    return "\n\n".join(filter(None, parts))


def page() -> str:
    """Return the cards of pflpipe's own methods, one below the other."""
    return "\n\n".join(card(name) for name in registry.NAMES)


def _versions(entry: MethodInfo, source: str) -> dict[tuple[str, ...], str]:
    """Return departures -> the words of a study that ask for them."""
    asked = [("`profile: strict`", "strict", False), ("`profile: paper`", "paper", False)]
    if entry.about.official_departures:
        asked.append(("`profile: paper` with `official_code: true`", "paper", True))
    versions: dict[tuple[str, ...], str] = {}
    for words, profile, official in asked:
        departures = registry.departures(entry.name, profile, official, source)
        before = versions.get(departures)
        versions[departures] = f"{before} and {words}" if before else words
    return versions


def _claims(entry: MethodInfo, source: str) -> Iterator[str]:
    about = entry.about
    if not about.sends:
        yield "**none**: nothing leaves a client, so there is nothing to protect."
        return
    if not about.private:
        yield "**none**: what is sent is neither clipped nor noised, so no epsilon holds."
        return
    for departures, words in _versions(entry, source).items():
        claim = claim_of(about.mechanism, departures, source)
        if claim in WITHOUT_DEPARTURES:
            yield (
                f"{words}: **{claim}**. All that a client sends is one message, clipped as a "
                "whole to C; one draw of noise covers the sum, and the plan counts every round."
                + " pflpipe's developers have not reviewed this file."
                * (claim == "unreviewed")
            )
            continue
        steps = "; ".join(f"`{name}`: {DEPARTURES[name]}" for name in departures)
        unbounded = [name for name in departures if name in WITHOUT_BOUND]
        holds = (
            f"No epsilon holds: {WITHOUT_BOUND[unbounded[0]]}."
            if unbounded
            else "The ledger counts these steps; `epsilon_central` is what holds."
        )
        yield f"{words}: **{claim}**. It departs in {steps}. {holds}"


def _knob(entry: MethodInfo, key: str, parsed: Header) -> str:
    parameter = entry.hyperparameters[key]
    meaning, origin = parsed.knobs.get(key, ("", ""))
    words = [f"`{key}` = `{_yaml(parameter)}`, {_values(parameter)}", f": {meaning}."]
    if not meaning:
        words[1] = "."
    if origin:
        words.append(f" Default: {origin}.")
    if not parameter.option.trained:
        words.append(" Read after training alone: other values share the training run.")
    return "".join(words)


def _yaml(parameter: Declared) -> str:
    value = parameter.default
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(parameter: Declared) -> str:
    if parameter.option.choices:
        return " or ".join(f"`{word}`" for word in parameter.option.choices)
    kinds = {bool: "`true` or `false`", str: "text", int: "a whole number", float: "a number"}
    return f"{kinds[parameter.type]} {bounds(parameter.option)}".strip()


def _refusals(entry: MethodInfo, source: str) -> Iterator[str]:
    """Yield what a study may not combine with a method."""
    about = entry.about
    yield from (_LACKS[part] for part in about.needs)
    if any(parameter.option.layers for parameter in entry.hyperparameters.values()):
        yield "a network whose layers do not fit its hyper-parameters"
    for departures, words in _versions(entry, source).items() if about.private else ():
        departing = frozenset(departures)
        if departing & (OF_MESSAGES | WITHOUT_JOINT_CLIP):
            yield f"`privacy.clip_quantile` under {words}"
        if departing & OF_MESSAGES:
            yield f"`privacy.mechanism: laplace` under {words}"
        if "sample_level_calibration" in departing:
            yield f"`training.batch_size: 0` beside an epsilon under {words}"
    if about.sends and not about.has_global_model:
        yield "tests of a global model, which it does not have: the columns `global_*` stay empty"
