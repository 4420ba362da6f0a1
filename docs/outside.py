"""A hook of mkdocs: what the documents say of files that are no pages, which a site does not have.

A link to one of ``PAGES`` leads to its page in the site, a link to another file of the repository
becomes its words. Links are relative to where a document lies, so that they work on GitHub too.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "studies/README.md": "reference/studies.md",
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    "src/pflpipe/checking/certificate-2.schema.json": "reference/certificate-2.schema.json",
    "docs/notebook.ipynb": "notebook.md",
    "workflow/report/tables.js": "assets/tables.js",
}
"""Files that are pages or files of the site under another path, by their paths in both."""
LINK = re.compile(r"\[([^]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.outside")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with links that lead somewhere in the site; one that leads nowhere in
    the repository is a warning, which ends a strict build."""
    uri = page.file.src_uri
    place = {page: source for source, page in PAGES.items()}.get(uri, f"docs/{uri}")

    def link(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        inside = PAGES.get(target, target.removeprefix("docs/"))
        if inside != target:
            return f"[{words}]({posixpath.relpath(inside, posixpath.dirname(uri))}{anchor})"
        if not (ROOT / target).exists():
            _log.warning("Doc file '%s' contains a link '%s', which leads nowhere", uri, path)
        return words

    return LINK.sub(link, markdown)
