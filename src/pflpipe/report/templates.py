"""One way to make a page: a template filled with values, which are escaped where it is HTML."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2


def filled(template: Path, **values: Any) -> str:
    """Return the text of a template, which may extend others of its folder."""
    return _templates(template.parent).get_template(template.name).render(**values)


@cache
def _templates(folder: Path) -> jinja2.Environment:
    """Return what keeps the folder's templates; one is compiled when it is first asked for, and
    when its file has changed."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
