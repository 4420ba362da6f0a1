"""``file.py:name``: objects in files of the user that a study or config.yaml names.

Such a file may import any installed package, but no file next to it: results that depend on it are
repeated if this one file changes.
"""

import functools
import hashlib
import importlib
import os
import symtable
import sys
import tokenize
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pflpipe.code.guard import described, in_one_line
from pflpipe.code.reference import REFERENCE
from pflpipe.errors import ConfigError, PflpipeError, nearest


def file_of(reference: str) -> Path:
    """Return the file of ``file.py:name``."""
    return Path(_parts(reference)[0])


def beside(reference: str, folder: str | os.PathLike[str]) -> str:
    """Return a reference relative to ``folder`` as a reference relative to the working directory,
    where jobs run."""
    file, name = _parts(reference)
    return f"{file_beside(file, folder)}:{name}"


def file_beside(file: str, folder: str | os.PathLike[str]) -> str:
    """Return a path relative to ``folder`` as a path relative to the working directory."""
    return Path(os.path.relpath(Path(folder) / file)).as_posix()


def check(reference: str, error: type[PflpipeError] = ConfigError) -> None:
    """Check that the file exists and has the name, without running it.

    Raises:
        ConfigError, or the class ``error``: no such file, not Python, no such name.
    """
    file, name = _parts(reference)
    symbols = _symbols(file, _text(file, error), error)
    # A definition, an assignment or an import gives a name a value.
    bound = [s.get_name() for s in symbols if s.is_assigned() or s.is_imported()]
    _check_has(file, name, bound, error)


def load(reference: str, error: type[PflpipeError] = ConfigError) -> Any:
    """Run the file and return the object with the name.

    Raises:
        ConfigError, or the class ``error``: as ``check``, or the file itself fails.
    """
    file, name = _parts(reference)
    values = vars(module(file, error))
    _check_has(file, name, values, error)
    return values[name]


def module(file: str, error: type[PflpipeError] = ConfigError) -> types.ModuleType:
    """Run a file, once in a process for each of its contents, and return it as a module.

    Raises:
        ConfigError, or the class ``error``: no such file, not Python, or it fails.
    """
    text = _text(file, error)
    _symbols(file, text, error)
    path = str(Path(file).resolve())
    if "torch" in text:
        importlib.import_module("torch")  # so that its switches can be restored
    with in_one_line(file, path, error):
        return _run(path, text)


@functools.cache
def _run(path: str, text: str) -> types.ModuleType:
    # Not importlib: it would write bytecode next to the user's file, and reuse it if the file
    # changes within a second.
    name = f"pflpipe_outside_{hashlib.sha256(path.encode()).hexdigest()[:10]}"
    made = types.ModuleType(name)
    made.__file__ = path
    sys.modules[name] = made  # dataclasses look up their module there
    try:
        code, names = compile(text, path, "exec", dont_inherit=True), vars(made)
        # The user's own program, which the study names as such (SECURITY.md).
        exec(code, names)  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _parts(reference: str) -> tuple[str, str]:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError("a name from outside", got=reference, expected="file.py:name")
    return match["file"], match["name"]


def _text(file: str, error: type[PflpipeError]) -> str:
    try:
        with tokenize.open(file) as source:  # which reads a BOM and a line "coding:" as Python does
            return source.read()
    except (OSError, UnicodeDecodeError, SyntaxError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise error(f"{file}: no such file", do="mend the path, or make it") from None
        raise error(f"{file} cannot be read", got=described(problem)) from None


def _symbols(file: str, text: str, error: type[PflpipeError]) -> list[symtable.Symbol]:
    """Return the module-level names of a file."""
    try:
        return symtable.symtable(text, file, "exec").get_symbols()
    except (SyntaxError, ValueError) as problem:
        line = f":{problem.lineno}" if isinstance(problem, SyntaxError) else ""
        message = problem.msg if isinstance(problem, SyntaxError) else problem
        raise error(f"{file}{line}: not valid Python: {message}") from None


def _check_has(file: str, name: str, names: Collection[str], error: type[PflpipeError]) -> None:
    if name not in names:
        public = [other for other in names if not other.startswith("_")]
        raise error(f"{file} has no {name!r}", do=nearest(name, public) if public else "define it")
