"""Digests of what code means, not of how or when it was written.

Snakemake repeats a job if one of its inputs or parameters changes, but it does not look at imported
modules. The rules therefore give every job a parameter that follows from the syntax trees of all
files that the job can reach through import statements. A comment, a docstring, another layout of
the lines or a newer modification time changes nothing. Another operator in a helper changes the
parameter of every job that imports the helper's file.

This module spells syntax trees itself: ``ast.dump`` and ``ast.unparse`` differ between minor
versions of Python, and an upgrade of Python must not repeat a thousand hours of training.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pflpipe.errors import ConfigError

PACKAGE = Path(__file__).parent.parent
WITHOUT_MEANING = ("__init__.py", "_version.py")
"""Files of the package that compute nothing: the names of the Python interface, and the version. A
release of pflpipe that only changes its version repeats nothing."""
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of syntax trees that do not change what is computed."""

DATA = re.compile(r"[\w.-]+\.(json|yaml)")
"""Names of files of data, such as ``words.yaml``."""

Imports = tuple[ast.Import | ast.ImportFrom | str, ...]
"""Import statements of a file, and the names of files of data."""


def closure(start: Path, package: Path, *, own: bool = False) -> list[Path]:
    """Return the files that run when ``start`` does, sorted, ``start`` included.

    Imports inside functions count: a module that is imported late is a dependency as well. So do
    files of data next to a module of the package that names them. Imports
    under ``if TYPE_CHECKING`` do not count, nor do method files, which the registry imports by
    name. Other packages do not count. A file outside the package may import files next to it.

    Args:
        start: a script, a module of the package, a user's file, or a template.
        package: the folder of the package, such as ``src/pflpipe``.
        own: of a user's file, without the files of the package.

    Raises:
        ConfigError: a file is not Python.
    """
    reached: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            found = _imported_files(path, package, _read(path)[1])
            waiting += [file for file in found if not (own and file.is_relative_to(package))]
    return sorted(reached)


def digest(start: Path, package: Path) -> str:
    """Return ten hexadecimal digits that follow from the names and meanings of the files of
    ``closure``, which has the same arguments and errors."""
    return _sha256(closure(start, package), package).hexdigest()[:10]


def sha256(file: Path) -> str:
    """Return 64 such digits of a file of the package; or of a user's file with the files next to it
    that it imports, and not with those of the package: a new version of pflpipe renames no run.

    Raises:
        ConfigError, OSError: as ``closure``.
    """
    if file.is_relative_to(PACKAGE):
        return _sha256(closure(file, PACKAGE), PACKAGE).hexdigest()
    # The name of the file is no code; those of the files next to it are those of modules.
    others = [path for path in closure(file, PACKAGE, own=True) if path != file]
    total = _sha256(others, PACKAGE)
    total.update(_read(file)[0].encode())
    return total.hexdigest()


def _sha256(files: Iterable[Path], package: Path) -> hashlib._Hash:
    total = hashlib.sha256()
    for path in files:
        # Without folders outside the package, which differ between machines.
        name = path.relative_to(package) if path.is_relative_to(package) else path.name
        total.update(f"{name} {_read(path)[0]} ".encode())
    return total


def _read(path: Path) -> tuple[str, Imports]:
    """Return the digest of a file's meaning, and its import statements. All bytes of a file count
    if it is not Python."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest(), ()
    try:
        return _parsed(content)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} is not a Python file", got=str(error)) from None


@cache
def _parsed(content: bytes) -> tuple[str, Imports]:
    pieces: list[str] = []
    imports: list[ast.Import | ast.ImportFrom | str] = []
    _spell(ast.parse(content), pieces, imports)
    found = [node for node in imports if not isinstance(node, str) or DATA.fullmatch(node)]
    return hashlib.sha256("".join(pieces).encode()).hexdigest(), tuple(found)


def _spell(
    value: object, pieces: list[str], imports: list[ast.Import | ast.ImportFrom | str]
) -> None:
    """Append the spelling of a node, a list of nodes or a plain value to ``pieces``, and the import
    statements and names of data in it to ``imports``."""
    if isinstance(value, ast.Import | ast.ImportFrom | str):
        imports.append(value)
    if isinstance(value, ast.AST):
        is_constant = isinstance(value, ast.Constant | ast.MatchSingleton)
        pieces.append(f"{type(value).__name__}(")
        for name in _sorted_fields(value._fields):
            field = getattr(value, name, None)
            items = _items(value, field) if isinstance(field, list) else field
            # Every version of Python adds fields, such as ``type_params`` in 3.12: empty ones are
            # left out. The constant None is no empty field.
            if items != [] and (items is not None or (is_constant and name == "value")):
                pieces.append(f"{name}=")
                _spell(items, pieces, imports)
        pieces.append(")")
    elif isinstance(value, list):
        pieces.append("[")
        for item in value:
            _spell(item, pieces, imports)
            pieces.append(",")
        pieces.append("]")
    else:
        pieces.append(ascii(value))


@cache
def _sorted_fields(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(fields) - _IGNORED))


def _items(node: ast.AST, items: list[ast.AST]) -> list[ast.AST]:
    """Return what has an effect in a list of a node."""
    if items and isinstance(items[0], ast.stmt):
        return list(_effective(items))
    return _joined(items) if isinstance(node, ast.JoinedStr) else items


def _effective(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements that have an effect: no docstring or other lone constant, no ``pass``,
    nothing that only type checkers read."""
    for statement in statements:
        if isinstance(statement, ast.If) and _is_type_checking(statement.test):
            yield from _effective(statement.orelse)
        elif not (
            isinstance(statement, ast.Pass)
            or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        ):
            yield statement


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _joined(parts: list[ast.AST]) -> list[ast.AST]:
    """Return the parts of an f-string with its text in as few pieces as possible: versions of
    Python cut it differently."""
    joined: list[ast.AST] = []
    for part in parts:
        if not isinstance(part, ast.Constant):
            joined.append(part)
        elif joined and isinstance(joined[-1], ast.Constant):
            joined[-1] = ast.Constant(value=f"{joined[-1].value!s}{part.value!s}")
        elif part.value:
            joined.append(part)
    return joined


@cache
def _imported_files(path: Path, package: Path, imports: Imports) -> list[Path]:
    """Return the files that import statements of ``path`` run: modules of the package with the
    packages on the way and, for a file outside the package, files next to it. For a module of the
    package also the files of data next to it that it names."""
    files = []
    for node in imports:
        if isinstance(node, str):
            files += [path.with_name(node)] if path.is_relative_to(package) else []
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            # `from package import module` looks like `from module import name`.
            names = [f"{node.module}.{name}" for name in names]
        for dotted in (name.split(".") for name in names):
            is_ours = dotted[0] == package.name
            if is_ours or not path.is_relative_to(package):
                base = package.parent if is_ours else path.parent
                for depth in range(1, len(dotted) + 1):
                    location = base.joinpath(*dotted[:depth])
                    files += [location / "__init__.py", location.with_suffix(".py")]
    silent = [package / name for name in WITHOUT_MEANING]
    return [file for file in files if file.is_file() and file not in silent]
