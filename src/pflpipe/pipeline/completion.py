"""The completion script of the command line for a shell."""

import argparse
from collections.abc import Iterable

import shtab

from pflpipe.facts.datasets import DATASETS
from pflpipe.methods.registry import NAMES

_OWN = r"sed -n '/^datasets:/,/^[a-z]/s/^  \([a-z0-9_]*\):.*/\1/p' config.yaml 2>/dev/null"
_STUDIES = (
    "ls studies studies/papers 2>/dev/null | sed -n 's/[.]yaml$//p' | grep -v '^paper_results$'"
)
_NAMES = {
    "Study": _STUDIES,
    "Table": f"{_STUDIES}; ls *.csv *.tsv *.parquet 2>/dev/null",
    "Method": f"echo {' '.join(NAMES)}",
    "Dataset": f"echo {' '.join(DATASETS)}; {_OWN}",
}


def script(
    parser: argparse.ArgumentParser, commands: Iterable[argparse.ArgumentParser], shell: str
) -> str:
    """Return the script; ``names`` of an argument of a command is the type of its value."""
    for command in commands:
        for action in command._actions:
            if names := _NAMES.get(getattr(action, "names", "")):
                action.complete = shtab.cmd(names)  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell)
    return text
