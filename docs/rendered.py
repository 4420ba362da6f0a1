"""Pages of the site that are made from the program: mkdocs calls this file while it builds.

Nothing that is made here is committed. A page has prose of its own, and a comment where the
program's words go: ``<!-- cards of all methods -->``, ``<!-- overview of all methods -->``,
``<!-- keys: partition -->``, ``<!-- table: FILE.csv -->``. The notebook is a page with the outputs
that are stored in it.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from pflpipe.report import cards

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
from pages import overview, shown, study_page

CARDS = "<!-- cards of all methods -->"
OVERVIEW = "<!-- overview of all methods -->"
TABLE = re.compile(r"<!-- table: (\S+) -->")
KEYS = re.compile(r"<!-- keys: (\w+) -->")

GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "eta": "η", "theta": "θ", "lambda": "λ"},
    **{"mu": "μ", "rho": "ρ", "sigma": "σ", "Sigma": "Σ"},
}
WORDS = {
    *("change", "clients", "clip", "cross", "dCE", "drawn", "dw", "end", "global", "grad"),
    *(
        "gradient",
        "gram",
        "head",
        "local",
        "max",
        "mean",
        "min",
        "noise",
        "of",
        "over",
        "penalty",
        "sqrt",
        "start",
    ),
    *("std", "sum", "the", "tw", "weight"),
}
"""Words in formulas; all others are names in code."""
_NAME = r"(?<![A-Za-z])[A-Za-z]+(?![A-Za-z])"
_SIGNS = {"<-": "←", "<=": "≤", ">=": "≥", "sqrt(": "√(", "grad ": "∇", "*": "∗", " - ": " − "}
_CELL = re.compile(r"<t[hd]\b.*?</t[hd]>", re.DOTALL)
_TEXT = re.compile(r"(?<=>)[^<]+")
_CODE = re.compile(
    # Fenced blocks, a hyper-parameter with its default, and other code.
    r"^```.*?^```$|^- `\w+` = `[^`]*`|`{1,2}((?:[^`\n]|\n(?!\n))+)`{1,2}",
    re.MULTILINE | re.DOTALL,
)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return a page with the program's words in the places that ask for them."""
    if page.file.src_uri == "notebook.md":
        return "\n\n".join(_blocks(json.loads(markdown)))
    if page.file.src_uri.startswith(("results", "audit_others")):
        page.meta["hide"] = ["toc"]  # for its tables, which are wide
    folder = Path(page.file.abs_src_path or "").parent
    if CARDS in markdown:
        methods = overview.table(folder.parent / "results")
        cards_too = markdown.replace(OVERVIEW, methods).replace(CARDS, cards.page())
        markdown = _CODE.sub(_formula, cards_too)
    markdown = TABLE.sub(lambda mark: shown.tables(folder / mark[1]), markdown)
    return KEYS.sub(lambda mark: study_page.keys(mark[1]), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Return a page whose tables may break a name after an underscore."""
    return _CELL.sub(lambda cell: _TEXT.sub(_breaks, cell[0]), content)


def _breaks(text: re.Match[str]) -> str:
    return text[0].replace("_", "_<wbr>")


def _blocks(notebook: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a notebook as Markdown, with the text of their outputs."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", []):
            text = output.get("text") or output["data"]["text/plain"]
            yield f"```text\n{''.join(text).rstrip()}\n```"


def _formula(code: re.Match[str]) -> str:
    """Return code as it is, unless it is a formula: its words are letters, Latin or Greek, and
    ``WORDS``, and it has a letter or an operator."""
    text = code[1]
    if text is None or re.search(r"[:{}]", text):
        return code[0]
    names = re.findall(_NAME, re.sub(r"_(?:[a-z0-9]|min)\b", "", text))
    letters = [name for name in names if len(name) == 1 or name in GREEK]
    has_sign = letters or " - " in text or " * " in text
    if not has_sign or not {*names} <= {*letters} | WORDS:
        return code[0]
    return f'<span class="formula">{_typeset(code[1])}</span>'


def _typeset(text: str) -> str:
    """Return a formula as HTML: letters are italic, and have their subscripts and superscripts."""
    for sign, replaced in _SIGNS.items():
        text = text.replace(sign, replaced)
    text = re.sub(r"<(?=\S)(.*?\S)>", r"⟨\1⟩", text)  # an inner product
    text = re.sub(r"\^(?=[ |])", "\u0302", text)  # a hat
    text = html.escape(text, quote=False)
    text = re.sub(r"_([a-z0-9]+)(\+)?", r"<sub>\1</sub><sup>\2</sup>", text)
    text = re.sub(r"\^(?:\((.*?)\)|(\w))", r"<sup>\1\2</sup>", text).replace("<sup></sup>", "")
    letters = "|".join(GREEK)
    text = re.sub(rf"(?<![A-Za-z])({letters})(?![A-Za-z])", lambda one: GREEK[one[1]], text)
    return re.sub(r"(?<![<A-Za-z/&])([A-Za-zα-ωΣ]\u0302?)(?![A-Za-z])", r"<i>\1</i>", text)
