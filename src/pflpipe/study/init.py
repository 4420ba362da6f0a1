"""A study to begin with (``pflpipe init``): the commented template under a name of one's own."""

from __future__ import annotations

from pathlib import Path

from pflpipe.errors import ConfigError
from pflpipe.files import write_text
from pflpipe.study.config import STUDIES
from pflpipe.study.load import check_name

TEMPLATE = Path(__file__).with_name("template.yaml")


def write(name: str) -> list[Path]:
    """Write ``studies/<name>.yaml``, and a ``config.yaml`` that names it where there is none;
    return what was written.

    Raises:
        ConfigError: the name is none for a study, or there is one of that name.
    """
    check_name(name, "a study's name")
    study, config = STUDIES / f"{name}.yaml", Path("config.yaml")
    if study.exists():
        raise ConfigError(f"{study} exists already", do="choose another name, or remove it first")
    texts = {study: TEMPLATE.read_text(encoding="utf-8").replace("{name}", name)}
    if not config.exists():
        texts[config] = f"studies: [{name}]  # joined in results/tables/all.csv\n"
    for file, text in texts.items():
        write_text(file, text)
    return list(texts)
