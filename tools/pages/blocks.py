"""Pages of which a part is written by hand and a part by a program: a block is everything between a
line ``<!-- NAME -->`` and the next line ``<!-- end -->``."""

from __future__ import annotations

import re
from pathlib import Path

from pflpipe.errors import ConfigError

END = "<!-- end -->"
NOTE = "note"
"""The block of a page that somebody writes; on one of a study, below the verdict."""


def split(text: str, name: str, location: str) -> tuple[str, str, str]:
    """Return what stands before a block, between its markers, and after it.

    Raises:
        ConfigError: there is not exactly one such block, or another one begins before it ends.
    """
    begin = f"<!-- {name} -->"
    before, *found = re.split(rf"^{re.escape(begin)}\n", text, flags=re.MULTILINE)
    if len(found) != 1:
        expected = f"one such line, and {END} after it"
        raise ConfigError(
            f"{location}: marker {begin}", got=f"{len(found)} of it", expected=expected
        )
    inside, *rest = re.split(rf"^{END}\n", found[0], maxsplit=1, flags=re.MULTILINE)
    if not rest or re.search(r"^<!-- \w+: \w+ -->$", inside, re.MULTILINE):
        raise ConfigError(
            f"{location}: marker {begin} has no {END} of its own",
            do="put that line after the block",
        )
    return before, inside, rest[0]


def replaced(text: str, name: str, content: str, location: str) -> str:
    """Return a page with another block."""
    before, _, after = split(text, name, location)
    return f"{before}{block(name, content)}\n{after}"


def block(name: str, content: str) -> str:
    """Return a block with its markers."""
    inside = f"\n{content.strip()}\n\n" if content.strip() else ""
    return f"<!-- {name} -->\n{inside}{END}"


def written(page: Path, name: str) -> str:
    """Return what somebody wrote into a block of a page; empty where there is none."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return split(text, name, str(page))[1].strip() if f"<!-- {name} -->\n" in text else ""


def kept(page: Path, name: str) -> str:
    """Return a block of a page as it is; an empty one where there is none."""
    return block(name, written(page, name))
