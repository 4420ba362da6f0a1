"""Pages of the site that are made from the program: mkdocs calls this file while it builds.

Nothing that is made here is committed. A page has prose of its own, and a comment where the
program's words go: ``<!-- cards of all methods -->``, ``<!-- keys: partition -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from pflpipe.report import cards

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
from pages import study_page

CARDS = "<!-- cards of all methods -->"
KEYS = re.compile(r"<!-- keys: (\w+) -->")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return a page with the program's words in the places that ask for them."""
    if page.file.src_uri.startswith("results/"):
        page.meta["hide"] = ["toc"]  # for its tables, which are wide
    if CARDS in markdown:
        markdown = markdown.replace(CARDS, cards.page())
    return KEYS.sub(lambda mark: study_page.keys(mark[1]), markdown)
