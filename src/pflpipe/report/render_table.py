"""Tables as text: a table of entries as GitHub Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        header: one heading per column.
        sections: groups of lines with a rule between them.
        labels: number of leading columns that hold text; the others hold numbers.
        groups: one heading per column above ``header``, or none at all; equal neighbours share it.
    """

    name: str
    caption: str
    notes: tuple[str, ...]
    header: tuple[str, ...]
    sections: tuple[tuple[tuple[Entry, ...], ...], ...]
    labels: int
    groups: tuple[str, ...] = ()

    @property
    def sides(self) -> str:
        """``l`` for every column of text, ``r`` for every column of numbers."""
        return "l" * self.labels + "r" * (len(self.header) - self.labels)


def markdown(table: Table) -> str:
    """Return the table as a GitHub table between its caption and its notes."""
    groups = table.groups or ("",) * len(table.header)
    header = [", ".join(filter(None, pair)) for pair in zip(groups, table.header, strict=True)]
    rule = "|".join("---" if side == "l" else "--:" for side in table.sides)
    rows = [
        _markdown_row(f"**{entry.text}**" if entry.bold else entry.text for entry in entries)
        for section in table.sections
        for entries in section
    ]
    caption = _escaped(f"**{table.name}**: {table.caption}")
    notes = "\n".join(_escaped(f"- {note}") for note in table.notes)
    return "\n".join([caption, "", _markdown_row(header), f"|{rule}|", *rows, "", notes, ""])


def _markdown_row(texts: Iterable[str]) -> str:
    escaped = (_escaped(text).replace("|", "\\|") for text in texts)
    return f"| {' | '.join(escaped)} |"


def _escaped(text: str) -> str:
    return text.replace("_", "\\_")


def latex(table: Table) -> str:
    """Return the table as a ``table`` environment; the document must load booktabs."""
    body = "\n\\midrule\n".join(
        "\n".join(f"{' & '.join(map(_tex_entry, entries))} \\\\" for entries in section)
        for section in table.sections
    )
    headings = [_tex_heading(*pair) for pair in zip(table.header, table.sides, strict=True)]
    notes = "\\\\\n".join(map(tex_escape, table.notes))
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}[t]\n\\centering\n\\footnotesize\n\\setlength{\\tabcolsep}{3pt}\n"
        f"\\caption{{{tex_escape(table.caption)}}}\n\\label{{tab:{table.name}}}\n\\smallskip\n"
        f"\\begin{{tabular}}{{@{{}}{table.sides}@{{}}}}\n\\toprule\n{_tex_groups(table.groups)}"
        + " & ".join(headings)
        + f" \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\n"
        f"\\medskip\n\\parbox{{\\linewidth}}{{\\scriptsize\\raggedright\n{notes}}}\n\\end{{table}}\n"
    )


def _tex_groups(groups: tuple[str, ...]) -> str:
    if not any(groups):
        return ""
    cells, rules, start = [], [], 1
    for word, members in itertools.groupby(groups):
        width = len(list(members))
        cells.append(f"\\multicolumn{{{width}}}{{c}}{{{tex_escape(word)}}}")
        if word:
            rules.append(f"\\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return " & ".join(cells) + " \\\\\n" + "".join(rules) + "\n"


def _tex_heading(text: str, side: str) -> str:
    # Two lines for "personal worst decile", so that the numbers determine the width of a column;
    # "α = 1" stays in one.
    first, _, rest = tex_escape(text).partition(" ")
    if "=" in text:
        return tex_escape(text)
    return f"\\shortstack[{side}]{{{first}\\\\{rest}}}" if rest else first


def _tex_entry(entry: Entry) -> str:
    text = tex_escape(entry.text)
    return f"\\textbf{{{text}}}" if entry.bold else text


# fmt: off
_MATH = {
    "±": "pm", "∞": "infty", "ε": "varepsilon", "α": "alpha", "β": "beta", "γ": "gamma",
    "δ": "delta", "λ": "lambda", "μ": "mu", "σ": "sigma", "τ": "tau", "×": "times", "≤": "leq",
    "≥": "geq", "↑": "uparrow",
}
# fmt: on
_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"$\\{name}$" for character, name in _MATH.items()}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "†": r"$^\dagger$", "–": "--"}
)


def tex_escape(text: str) -> str:
    """Return text with special characters, Greek letters and signs escaped for LaTeX."""
    return text.translate(_TEX)
