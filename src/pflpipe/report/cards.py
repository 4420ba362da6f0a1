"""The card of a method: what a client minimises, sends, keeps and tests, its claims, its
hyper-parameters and its citation. For ``pflpipe methods NAME`` and the site's page of methods.

Its sources are the docstring of the method's file (its header), the signature of its factory, its
``ABOUT``, the departures, and ``methods/citations.bib``. A header has lines such as

    minimises: ...
    tau: threshold on the Fisher information [official code]

for the keys of ``FORMULAS`` and the names of hyper-parameters. They are indented by four spaces,
their further lines by eight. Brackets at the end hold the source of a default.
"""

import ast
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pflpipe.code.dependencies import claim_of
from pflpipe.facts.departures import DEPARTURES, OF_MESSAGES, WITHOUT_BOUND, WITHOUT_JOINT_CLIP
from pflpipe.methods import plugins, registry, row_code
from pflpipe.methods.registry import MethodInfo
from pflpipe.options import Declared, bounds, items_of
from pflpipe.report.templates import filled

FORMULAS = {
    "minimises": "A client minimises",
    "sends": "It sends",
    "keeps": "It keeps",
    "tests": "Tested as its personal model",
    "code": "Official code that was read",
}
"""Keys of a header for the steps of a client in a round, and for the repository, commit and
functions that its file goes by -> their text in a card."""

_LACKS = {
    "body": "a network that is nothing but its head",
    "norm": "a network without normalisation layers: of pflpipe's own all but the ResNets",
    "classes": "`training.loss` other than cross_entropy",
    "two_classes": "labels of other than two classes, `training.loss` other than cross_entropy",
    "items": "a network other than `embedding`: its data are no answers of people to items",
}
_CITATIONS = Path(registry.__file__).with_name("citations.bib")


@dataclass(frozen=True)
class Header:
    """The parsed header of a method's file.

    Attributes:
        what: the paragraphs before the lines of the card.
        formulas: by the keys of ``FORMULAS``.
        knobs: hyper-parameter -> its meaning and the source of its default.
        notes: the paragraphs after these lines: readings of the paper, differences.
    """

    what: str
    formulas: dict[str, str]
    knobs: dict[str, tuple[str, str]]
    notes: str


def header(name: str, source: str = "", knobs: typing.Collection[str] = ()) -> Header:
    """Return the parsed header of a method's file; without lines of a card, only ``what``.

    Args:
        name, source: of the method, as ``registry.locate`` returns them.
        knobs: names of its hyper-parameters.
    """
    text = plugins.file_of(name, source).read_bytes()
    header = ast.get_docstring(ast.parse(text)) or ""
    formulas: dict[str, str] = {}
    meanings: dict[str, tuple[str, str]] = {}
    ends: list[tuple[int, int]] = []
    for key, value, span in items_of(header):
        if key in FORMULAS:
            formulas[key] = value
        elif key in knobs:
            # Brackets inside of a meaning are intervals.
            meaning, _, origin = value.removesuffix("]").rpartition(" [")
            meanings[key] = (meaning, origin) if value.endswith("]") else (value, "")
        else:
            continue
        ends.append(span)
    if not ends:
        return Header(header, {}, {}, "")
    # The card's lines stand between the introduction and the notes.
    before, after = header[: ends[0][0]], header[ends[-1][1] :]
    return Header(before.strip(), formulas, meanings, after.strip("\n"))


def citations(name: str) -> list[str]:
    """Return the BibTeX entries of a method of the package; none if no paper proposes it."""
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
    text = filled(
        Path(__file__).with_name("card.md"),
        entry=entry,
        source=source,
        header=header(name, source, entry.hyperparameters),
        formulas=FORMULAS,
        versions=_versions(entry, source),
        steps=DEPARTURES,
        unbounded=WITHOUT_BOUND,
        default=_yaml,
        values=_values,
        refusals=list(_refusals(entry, source)),
        citations=citations(name),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n")


def page() -> str:
    """Return the cards of the package's methods, one below the other."""
    return "\n\n".join(card(name) for name in registry.NAMES)


def _versions(entry: MethodInfo, source: str) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return departures -> the keys of a study that ask for them, and the claim."""
    if not entry.about.private:
        return {}
    asked = [("`profile: strict`", "strict", False), ("`profile: paper`", "paper", False)]
    if entry.about.official_departures:
        asked.append(("`profile: paper` with `official_code: true`", "paper", True))
    keys: dict[tuple[str, ...], list[str]] = {}
    for text, profile, official in asked:
        departures = registry.departures(entry.name, profile, official, source)
        keys.setdefault(departures, []).append(text)
    code = row_code.of_method(entry.name, source)
    return {
        departures: (" and ".join(texts), claim_of(entry.about.mechanism, departures, code))
        for departures, texts in keys.items()
    }


def _yaml(parameter: Declared) -> str:
    value = parameter.default
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(parameter: Declared) -> str:
    if parameter.option.choices:
        return " or ".join(f"`{choice}`" for choice in parameter.option.choices)
    kinds = {bool: "`true` or `false`", str: "text", int: "a whole number", float: "a number"}
    return f"{kinds[parameter.type]} {bounds(parameter.option)}".strip()


def _refusals(entry: MethodInfo, source: str) -> Iterator[str]:
    """Yield what a study may not combine with a method."""
    about = entry.about
    yield from (_LACKS[part] for part in about.needs)
    if any(parameter.option.layers for parameter in entry.hyperparameters.values()):
        yield "a network whose layers do not fit its hyper-parameters"
    for departures, (keys, _) in _versions(entry, source).items():
        departing = frozenset(departures)
        if departing & (OF_MESSAGES | WITHOUT_JOINT_CLIP):
            yield f"`privacy.clip_quantile` under {keys}"
        if departing & OF_MESSAGES:
            yield f"`privacy.mechanism: laplace` under {keys}"
        if "sample_level_calibration" in departing:
            yield f"`training.batch_size: 0` with an epsilon under {keys}"
    if about.sends and not about.has_global_model:
        yield "tests of a global model, which it does not have: the columns `global_*` stay empty"
