"""A new study, or a release to audit, from a commented template (``pflpipe init``)."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from pflpipe.data import blocks
from pflpipe.errors import ConfigError
from pflpipe.files import write_text
from pflpipe.study import config as configuration
from pflpipe.study.config import STUDIES
from pflpipe.study.load import check_name, load_outline

TEMPLATE = Path(__file__).with_name("template.yaml")
NATURAL = Path(__file__).with_name("natural.yaml")
RELEASE = Path(__file__).with_name("release_template.txt")


def write(name: str) -> list[Path]:
    """Write ``studies/<name>.yaml`` and, if there is none, a ``config.yaml`` that names it; return
    the written files. The study has the first data set of config.yaml whose block declares users,
    each of whom is a client, if there is one.

    Raises:
        ConfigError: not a name for a study, the study exists, or config.yaml is not in order.
    """
    study, config = _new(name, STUDIES, "yaml"), Path("config.yaml")
    text = TEMPLATE.read_text(encoding="utf-8").replace("{name}", name)
    for dataset, block in list(_with_users(config).items())[:1]:
        text = re.sub("^dataset: .*", f"dataset: {dataset}", text, flags=re.M)
        text = re.sub("^partition: .*", "partition: {kind: natural}", text, flags=re.M)
        if "target" in block:
            text = re.sub("^(training: .*)}", r"\1, loss: squared_error}", text, flags=re.M)
    texts = {study: text}
    if not config.exists():
        texts[config] = f"studies: [{name}]  # joined in results/tables/all.csv\n"
    for file, text in texts.items():
        write_text(file, text)
    return list(texts)


def write_natural(
    name: str, block: dict[str, Any], origin: str, epsilons: Sequence[float], people: int
) -> list[Path]:
    """Write ``studies/<name>.yaml``, in which every user of a block is a client, and put the block
    into ``config.yaml``; return the written files, none where the same are there.

    Args:
        origin: a sentence about the block.
        epsilons: the budgets.
        people: how many users there are; delta is a tenth of one over them, or less.

    Raises:
        ConfigError: there are others of these names.
    """
    study, config = STUDIES / f"{name}.yaml", Path("config.yaml")
    known = configuration.load(config).datasets if config.exists() else {}
    if name in known or study.exists():
        do = f"pflpipe run {name} goes on with them as they are; or take another folder or --name"
        fits = known.get(name) == block and study.exists()
        what = f"{name} of {config if name in known else study} is for other rows"
        ConfigError.unless(fits, what, do=do)
        given = load_outline(name).document.get("axes", {}).get("privacy.epsilon")
        what = f"{study} exists already: privacy.epsilon"
        ConfigError.unless(given == list(epsilons), what, given, f"{list(epsilons)}", do)
        return []
    check_name(name, "a study's name")
    numbers = "target" in block
    text = NATURAL.read_text(encoding="utf-8")
    for word, value in {
        "name": name,
        "dataset": name,
        "origin": origin,
        "lr": "0.1" if numbers else "1.0",
        "loss": ", loss: squared_error" * numbers,
        "delta": f"{10.0 ** -math.ceil(math.log10(10 * people)):g}",
        "epsilons": ", ".join(f"{epsilon:g}" for epsilon in epsilons),
    }.items():
        text = text.replace(f"{{{word}}}", value)
    before = config.read_text(encoding="utf-8") if config.exists() else f"studies: [{name}]\n"
    texts = {study: text, config: _with_block(before, name, block, origin)}
    for file, text in texts.items():
        write_text(file, text)
    return list(texts)


def _with_block(text: str, name: str, block: dict[str, Any], origin: str) -> str:
    """Return the text of config.yaml with one more block; all else stays, comments too."""
    expected = {**((yaml.safe_load(text) or {}).get("datasets") or {}), name: block}
    line = re.compile(r"^datasets:(?: *\{\})? *$", re.M)
    if not line.search(text):
        text += "\ndatasets:\n"
    listed = f"# {origin}\n{yaml.safe_dump({name: block}, sort_keys=False)}"
    text = line.sub(lambda _: f"datasets:\n{indent(listed, '  ').rstrip()}", text, count=1)
    try:
        fits = yaml.safe_load(text)["datasets"] == expected
    except yaml.YAMLError:
        fits = False
    do = f"write them so, or take another folder, and give the command again to add {name}"
    ConfigError.unless(
        fits, "config.yaml: datasets", expected="each on a line, by two spaces", do=do
    )
    return text


def _with_users(config: Path) -> dict[str, dict[str, Any]]:
    sources = configuration.load(config).datasets if config.exists() else {}
    found = {name: block for name, block in sources.items() if isinstance(block, dict)}
    return {name: block for name, block in found.items() if blocks.has_users(block)}


def write_release(name: str) -> Path:
    """Write ``<name>.py``, a release for ``pflpipe audit``, and return it.

    Raises:
        ConfigError: not a name for a file, or the file exists.
    """
    file = _new(name, Path(), "py")
    write_text(file, RELEASE.read_text(encoding="utf-8").replace("{name}", name))
    return file


def _new(name: str, folder: Path, kind: str) -> Path:
    check_name(name, "a study's name" if kind == "yaml" else "a release's name")
    file = folder / f"{name}.{kind}"
    do = "choose another name, or remove it first"
    ConfigError.unless(not file.exists(), f"{file} exists already", do=do)
    return file
