"""Tables as text: a table of entries as GitHub Markdown and as LaTeX (booktabs)."""

import itertools
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

FORMS = (
    ("table", 3.3, "footnotesize", 8.0),
    ("table", 3.3, "scriptsize", 7.0),
    ("table*", 6.7, "footnotesize", 8.0),
    ("table*", 6.7, "scriptsize", 7.0),
    ("table*", 6.7, "tiny", 5.0),
)
"""Of a page with two columns: environment, width in inches, and a size of letters in points."""
_LETTER, _BOLD, _APART = 0.5, 0.56, 4.0
"""Mean width of a letter in its size, of a bold one, and the points between two columns."""
_HEADING, _ENTRY = 9, 26
"""Letters of a line of a heading, and of an entry, unless a word is longer."""


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
    """Return the table for a page with two columns; the document must load booktabs. It is as wide
    as a column if that is enough for its letters, which are made smaller first, or as a page."""
    environment, size = _form(table)
    body = "\n\\midrule\n".join(
        "\n".join(f"{' & '.join(map(_tex_entry, line, table.sides))} \\\\" for line in section)
        for section in table.sections
    )
    headings = [_tex_heading(*pair) for pair in zip(table.header, table.sides, strict=True)]
    notes = "\\\\\n".join(map(tex_escape, table.notes))
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{{environment}}}[t]\n\\centering\n\\{size}\n"
        f"\\setlength{{\\tabcolsep}}{{{_APART / 2:g}pt}}\n"
        f"\\caption{{{tex_escape(table.caption)}}}\n\\label{{tab:{table.name}}}\n\\smallskip\n"
        f"\\begin{{tabular}}{{@{{}}{table.sides}@{{}}}}\n\\toprule\n{_tex_groups(table.groups)}"
        + " & ".join(headings)
        + f" \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\n"
        f"\\medskip\n\\parbox{{\\linewidth}}{{\\scriptsize\\raggedright\n{notes}}}\n"
        f"\\end{{{environment}}}\n"
    )


def _form(table: Table) -> tuple[str, str]:
    """Return the first environment and size of letters in which a table is not too wide."""
    columns = zip(*itertools.chain(*table.sections), strict=True)
    letters = sum(
        max(_width(heading, _HEADING), *(_width(entry.text, bold=entry.bold) for entry in column))
        for heading, column in zip(table.header, columns, strict=True)
    )
    gaps = _APART * (len(table.header) - 1)
    fitting = (
        (environment, size)
        for environment, inches, size, points in FORMS
        if points * letters + gaps <= 72 * inches
    )
    return next(fitting, (FORMS[-1][0], FORMS[-1][2]))


def _width(text: str, most: int = _ENTRY, *, bold: bool = False) -> float:
    # In units of the size of letters, of the longest line.
    letters = max(len(line) + line.count("±") for line in _lines(text, most))
    return letters * (_BOLD if bold else _LETTER)


def _lines(text: str, most: int = _ENTRY) -> list[str]:
    return textwrap.wrap(text.replace(" ± ", "±"), most, break_long_words=False) or [""]


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
    # Several lines for "personal worst tenth", so that the numbers determine the width of a
    # column; "α = 1" stays in one.
    return _stacked([text] if "=" in text else _lines(text, _HEADING), side)


def _stacked(lines: list[str], side: str) -> str:
    text = "\\\\".join(map(tex_escape, lines))
    return f"\\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text


def _tex_entry(entry: Entry, side: str) -> str:
    text = _stacked(_lines(entry.text), side)
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
