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
    "studies": _STUDIES,
    "tables": f"{_STUDIES}; ls *.csv *.tsv *.parquet 2>/dev/null",
    "methods": f"echo {' '.join(NAMES)}",
    "datasets": f"echo {' '.join(DATASETS)}; {_OWN}",
}


def script(
    parser: argparse.ArgumentParser, commands: Iterable[argparse.ArgumentParser], shell: str
) -> str:
    """Return the script; an argument of a command has its kind of names in ``complete``."""
    for command in commands:
        for action in command._actions:
            if kind := getattr(action, "complete", None):
                action.complete = shtab.cmd(_NAMES[kind])  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell)
    return text
