"""A new study, or a release to audit, from a commented template (``pflpipe init``)."""

from __future__ import annotations

from pathlib import Path

from pflpipe.errors import ConfigError
from pflpipe.files import write_text
from pflpipe.study.config import STUDIES
from pflpipe.study.load import check_name

TEMPLATE = Path(__file__).with_name("template.yaml")
RELEASE = Path(__file__).with_name("release_template.txt")


def write(name: str) -> list[Path]:
    """Write ``studies/<name>.yaml`` and, if there is none, a ``config.yaml`` that names it; return
    the written files.

    Raises:
        ConfigError: not a name for a study, or the study exists.
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


def write_release(name: str) -> Path:
    """Write ``<name>.py``, a release for ``pflpipe audit``, and return it.

    Raises:
        ConfigError: not a name for a file, or the file exists.
    """
    check_name(name, "a release's name")
    file = Path(f"{name}.py")
    if file.exists():
        raise ConfigError(f"{file} exists already", do="choose another name, or remove it first")
    write_text(file, RELEASE.read_text(encoding="utf-8").replace("{name}", name))
    return file
