"""What the program means: digests of what code does, not of how or when it was written.

Snakemake repeats a job when one of its inputs or parameters changes; an imported module is neither
by itself. The rules therefore give every job a parameter that follows from the syntax trees of the
files that it can reach through import statements. A comment, a docstring, another layout of the
lines or a newer modification time change nothing; another operator in a helper changes the
parameter of whatever imports the helper's file.

The spelling of a tree is this module's own: ``ast.dump`` and ``ast.unparse`` differ between minor
versions of Python, and an upgrade of Python must not repeat a thousand hours of training.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pflpipe.errors import ConfigError

WITHOUT_MEANING = ("__init__.py", "_version.py")
"""Files of the package that compute nothing: the names of the Python interface, and the version. A
release of pflpipe that only changes its version repeats nothing."""

#: Fields of syntax trees that say nothing about what is computed. Empty fields are left out as
#: well, because every version of Python adds some (``type_params`` in 3.12).
_SILENT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def closure(start: Path, package: Path, known: dict[Path, list[Path]] | None = None) -> list[Path]:
    """Return the files that run when ``start`` does, sorted, ``start`` included.

    Imports inside functions count, because a module that is imported late is a dependency as well;
    those under ``if TYPE_CHECKING`` do not, nor do method files that the registry imports by name.
    Of other packages nothing counts; a file outside the package may import its neighbours.

    Args:
        start: a script, a module of the package, a file of a user's, or a template.
        package: the folder of the package, such as ``src/pflpipe``.
        known: what files import, as far as it was found before; what is found now is added. Many
            scripts reach the same files, so that looking again for each was a fifth of a dry run.

    Raises:
        ConfigError: a file that is not Python.
    """
    imports = {} if known is None else known
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            if path not in imports:
                imports[path] = _imports(path, package)
            waiting.extend(imports[path])
    return sorted(found)


def digest(start: Path, package: Path, known: dict[Path, list[Path]] | None = None) -> str:
    """Return ten hexadecimal digits that follow from the names and meanings of the files of
    ``closure``, whose arguments these are; raises as it does."""
    total = hashlib.sha256()
    for path in closure(start, package, known):
        # A path outside the package is that of one machine.
        name = path.relative_to(package) if path.is_relative_to(package) else path.name
        total.update(f"{name} {_read(path).meaning} ".encode())
    return total.hexdigest()[:10]


@dataclass(frozen=True)
class _Source:
    """What is needed of a file: a digest of its meaning, and its import statements."""

    meaning: str
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def _read(path: Path) -> _Source:
    """Read a file, of which all counts unless it is Python; raises ConfigError when a file of
    Python cannot be read as such."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return _Source(hashlib.sha256(content).hexdigest(), ())
    try:
        return _source(content)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} is not a Python file", got=str(error)) from None


@cache
def _source(content: bytes) -> _Source:
    tree = ast.parse(content)
    pieces: list[str] = []
    _spell(tree, pieces)
    meaning = hashlib.sha256("".join(pieces).encode()).hexdigest()
    return _Source(meaning, tuple(_import_statements(tree.body)))


# ---------------------------------------------------------------- what a file means


def _effective(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that do something: no docstring or other lone constant, no ``pass``,
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


def _spell(value: object, pieces: list[str]) -> None:
    """Append the spelling of a node, a list of nodes or a plain value to ``pieces``."""
    if isinstance(value, ast.AST):
        is_constant = isinstance(value, ast.Constant | ast.MatchSingleton)
        pieces.append(f"{type(value).__name__}(")
        for name in _telling(value._fields):
            field = getattr(value, name, None)
            items = _items(value, field) if isinstance(field, list) else field
            if items != [] and (items is not None or (is_constant and name == "value")):
                pieces.append(f"{name}=")
                _spell(items, pieces)
        pieces.append(")")
    elif isinstance(value, list):
        pieces.append("[")
        for item in value:
            _spell(item, pieces)
            pieces.append(",")
        pieces.append("]")
    else:
        pieces.append(ascii(value))


@cache
def _telling(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(fields) - _SILENT))


def _items(node: ast.AST, items: list[ast.AST]) -> list[ast.AST]:
    """Return what counts of a list of a node."""
    if items and isinstance(items[0], ast.stmt):
        return list(_effective(item for item in items if isinstance(item, ast.stmt)))
    return _joined(items) if isinstance(node, ast.JoinedStr) else items


def _joined(parts: list[ast.AST]) -> list[ast.AST]:
    """Return the parts of an f-string with its text in as few pieces as possible, however the
    parser cut it."""
    found: list[ast.AST] = []
    for part in parts:
        if not isinstance(part, ast.Constant):
            found.append(part)
        elif found and isinstance(found[-1], ast.Constant):
            found[-1] = ast.Constant(value=f"{found[-1].value!s}{part.value!s}")
        elif part.value:
            found.append(part)
    return found


# ---------------------------------------------------------------- what a file imports


def _import_statements(
    statements: Iterable[ast.stmt],
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Walk over the import statements that run, those inside functions included."""
    for statement in _effective(statements):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        for node in ast.iter_child_nodes(statement):
            # Handlers and cases are no statements, but hold some; expressions hold none.
            if isinstance(node, ast.ExceptHandler | ast.match_case):
                yield from _import_statements(node.body)
        inside = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
        yield from _import_statements(inside)


def _imports(path: Path, package: Path) -> list[Path]:
    """Return the files that ``path`` imports itself."""
    found: list[Path] = []
    for node in _read(path).imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _files(alias.name.split("."), path, package)
        else:
            module = _absolute(node, path, package)
            found += _files(module, path, package)
            # `from package import module` looks like `from module import name`
            for alias in node.names:
                found += _files([*module, alias.name], path, package)
    return found


def _absolute(node: ast.ImportFrom, path: Path, package: Path) -> list[str]:
    """Return the dotted name after ``from`` in pieces, relative imports resolved."""
    named = node.module.split(".") if node.module else []
    if node.level == 0 or not path.is_relative_to(package):
        return named
    folder = [package.name, *path.parent.relative_to(package).parts]
    return [*folder[: len(folder) - (node.level - 1)], *named]


def _files(dotted: list[str], importer: Path, package: Path) -> list[Path]:
    """Return the files that importing ``dotted`` runs, if they are ours: packages on the way and
    the module. Python finds the neighbours of a script, so they are ours as well."""
    if dotted[:1] == [package.name]:
        base = package.parent
    elif importer.is_relative_to(package):
        return []
    else:
        base = importer.parent
    found = []
    for depth in range(1, len(dotted) + 1):
        location = base.joinpath(*dotted[:depth])
        candidates = (location / "__init__.py", location.with_suffix(".py"))
        found += [path for path in candidates if path.is_file()]
    return [path for path in found if path not in [package / name for name in WITHOUT_MEANING]]
