"""Print how many lines of code every room of the package has: ``python tools/lines.py``.

A line counts if it holds a token of code. Docstrings, comments and blank lines do not count, so
that explaining the code costs nothing.
"""

import ast
import collections
import io
import pathlib
import sys
import tokenize

SILENT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(source: str) -> int:
    """Return the number of a module's lines of code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in SILENT]
    docstrings = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return len({line for span in spans for line in span} - {n for span in docstrings for n in span})


def main() -> None:
    """Print the rooms of a folder, the largest first; by default those of the package."""
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src/pflpipe")
    rooms: collections.Counter[str] = collections.Counter()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        rooms[parts[0] if len(parts) > 1 else "(hall)"] += code_lines(path.read_text())
    for room, lines in [*rooms.most_common(), ("total", sum(rooms.values()))]:
        print(f"{room:12} {lines:6}  {lines / sum(rooms.values()):6.1%}")


if __name__ == "__main__":
    main()
