"""Pages from jinja2 templates. In HTML, all values are escaped."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2


def filled(template: Path, **values: Any) -> str:
    """Return the text of a template, which may extend others of its folder."""
    return _templates(template.parent).get_template(template.name).render(**values)


@cache
def _templates(folder: Path) -> jinja2.Environment:
    """Return the environment of a folder, which caches compiled templates."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
