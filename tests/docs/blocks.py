"""The fenced blocks of README.md and docs/, and what to do with each.

A block runs as it stands, unless the line above its fence is a comment, which no reader sees:

    <!-- docs: dry-run -->               every snakemake and make in it only plans
    <!-- docs: dry-run: make test -->    only the lines that begin so do
    <!-- docs: run by tests/FILE.py -->  another test runs it
    <!-- docs: not run: REASON -->       nothing runs it

``sh``, ``bash`` and ``console`` blocks are given to bash. A ``python`` block is a program, or the
file that its first line names (``# my_data.py``). A ``yaml`` block replaces keys of the file that
its first line names, or is a study, or words of one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(str(f.relative_to(ROOT)) for f in (ROOT / "docs").rglob("*.md")))
SHELL, RUN = ("sh", "bash", "console"), ("sh", "bash", "console", "python", "yaml")
_BLOCK = re.compile(
    r"^(?:<!-- docs: (?P<mark>.*?) -->\n)?(?P<indent> *)```(?P<language>[^\n`]*)\n"
    r"(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_PLANNED = {"make": "--dry-run", ".venv/bin/snakemake": "--dry-run"}


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        line: of its fence, counted from 1.
        mark: the words of the comment above it.
        text: without the fence's indentation.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str | None:
        """Why nothing runs it."""
        return self.mark.removeprefix("not run:").strip() if self.mark[:7] == "not run" else None

    @property
    def elsewhere(self) -> str | None:
        """The test that runs it instead."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else None

    @property
    def file(self) -> str | None:
        """The file that its first line names."""
        found = re.match(r"# ([\w./]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else None

    @property
    def script(self) -> str:
        """What bash is given."""
        text = re.sub(r"^\$ ", "", self.text, flags=re.MULTILINE)
        if not self.mark.startswith("dry-run"):
            return text
        begin = self.mark.removeprefix("dry-run").lstrip(": ")
        lines = []
        for line in text.splitlines(keepends=True):
            command, gap, words = line.partition(" ")
            planned = command in _PLANNED and line.startswith(begin)
            lines.append(f"{command} {_PLANNED[command]}{gap}{words}" if planned else line)
        return "".join(lines)


def of_page(page: str) -> list[Block]:
    """The blocks of a document, by its path in the repository, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = []
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("indent")) + 1
        content = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        blocks.append(Block(page, line, found["language"].strip(), found["mark"] or "", content))
    return blocks
