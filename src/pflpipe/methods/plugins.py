"""Methods from outside the package: a file beside a study, or an installed package's entry point.

Either is a module with a function of the method's name and ``ABOUT``, exactly as a method file of
the package. What is wrong with one is said in one line before anything runs, since its author has
neither our tests nor our type checker at hand.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import typing
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pflpipe import outside
from pflpipe.errors import ConfigError, nearest
from pflpipe.methods.about import About

if TYPE_CHECKING:
    from pflpipe.methods.base import Method

GROUP = "pflpipe.methods"
"""Group of the entry points by which a package offers methods: ``name = "package.module:name"``."""

HOOKS = {
    "local_update": ("params", "server", "state", "batches", "task"),
    "aggregate": ("params", "released", "server", "task"),
    "personalize": ("params", "server", "state", "batches", "task"),
    "init_server": ("params", "task"),
    "init_client": ("params", "task"),
    "scale": ("params", "server", "task"),
    "sends": ("task",),
    "absorb": ("state", "message", "task"),
}
"""What each hook is called with, in this order."""


def in_file(written: str, folder: str | os.PathLike[str]) -> tuple[str, str]:
    """Return name and source of ``file.py:name`` as a study writes it.

    Args:
        written: the file's path is relative to ``folder``.
        folder: of the study's file.

    Returns:
        the function's name, and the file's path relative to the working directory: the project's
        folder, in which every command and job runs, so that a project may be moved.
    """
    path, _, name = written.rpartition(":")
    if not path.endswith(".py") or not _is_name(name) or os.path.isabs(path):
        raise ConfigError(
            "method",
            got=written,
            expected="a method's name, or file.py:name with a path relative to the study's file",
        )
    return name, os.path.relpath(os.path.join(folder, path))


@functools.cache  # 11 ms, and a study asks for every method that it names
def _points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=GROUP)


def offered() -> tuple[str, ...]:
    """Return the names of all methods that installed packages offer, sorted."""
    return tuple(sorted(_points().names))


def module_of(name: str) -> str:
    """Return the module in which an installed package has the method, empty when none offers it.

    Raises:
        ConfigError: several do, or the entry point has another name than its function.
    """
    points = _points().select(name=name)
    modules = sorted({point.value for point in points})
    if len(modules) > 1:
        raise ConfigError(
            f"two methods have the name {name!r}",
            got=", ".join(modules),
            do="uninstall one of the packages",
        )
    for point in points:
        if point.attr != name or not _is_name(name):
            raise ConfigError(
                f"entry point {name!r} of group {GROUP}",
                got=point.value,
                expected=f"a function of the method's name, such as {point.module}:{name}",
            )
        return point.module
    return ""


def load(name: str, source: str) -> tuple[Callable[..., Method], About]:
    """Return factory and ABOUT of a method, checked.

    Args:
        name: of the function.
        source: path of a file, ending in ``.py``, or the dotted name of a module.

    Raises:
        ConfigError: no such file or module, it does not run, or it is not a method.
    """
    module = (
        outside.module(os.path.relpath(source))
        if source.endswith(".py")
        else _of_package(name, source)
    )
    location = os.path.relpath(source) if source.endswith(".py") else source
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    if name not in functions:
        raise ConfigError(
            f"{location}: there is no function {name!r}",
            do=nearest(name, functions) if functions else "it has none",
        )
    about = getattr(module, "ABOUT", None)
    if not isinstance(about, About):
        raise ConfigError(
            f"{location}: there is no ABOUT",
            do='add ABOUT = About(title="...", paper="...") from pflpipe.methods.base',
        )
    factory = getattr(module, name)
    _check_factory(factory, name, location)
    return factory, about


def _is_name(word: str) -> bool:
    """Whether a word is safe as a column, a file name and a wildcard."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word) is not None


def _of_package(name: str, source: str) -> ModuleType:
    with outside.in_one_line(f"method {name}: {source}"):
        return importlib.import_module(source)


def _check_factory(factory: Any, name: str, file: str) -> None:
    """Check the hyper-parameters and the hooks of the method with its defaults."""
    location = f"{file}: {name}"
    with outside.in_one_line(location):
        parameters = inspect.signature(factory, eval_str=True).parameters
    for parameter in parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise ConfigError(
                f"{location}: hyper-parameter",
                got=str(parameter),
                expected=f"it by keyword and with a default: *, {parameter.name}: float = 0.1",
            )
        kind = parameter.annotation
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        if kind not in (int, float, bool, str) and typing.get_origin(kind) is not typing.Literal:
            raise ConfigError(
                f"{location}: type of hyper-parameter {parameter.name}",
                got="none" if kind is parameter.empty else inspect.formatannotation(kind),
                expected="int, float, bool, str or Literal, perhaps Annotated with an Option",
            )
    from pflpipe.methods.base import Method

    with outside.in_one_line(file, factory.__code__.co_filename):
        method = factory()
    if not isinstance(method, Method):
        raise ConfigError(f"{location}: returns", got=type(method).__name__, expected="a Method")
    for hook, wanted in HOOKS.items():
        function = getattr(method, hook)
        if function is not None:
            _check_hook(function, wanted, f"{location}: hook {hook}")


def _check_hook(function: Any, wanted: tuple[str, ...], location: str) -> None:
    """Check that a hook takes what it is given; a parameter may have any name but that of another
    one, which would be a swap."""
    expected = f"({', '.join(wanted)})"
    if not callable(function):
        raise ConfigError(location, got=function, expected=f"a function {expected}")
    signature = inspect.signature(function)
    try:
        taken = list(signature.bind(*wanted).arguments)
    except TypeError:
        taken = []
    pairs = zip(taken, wanted, strict=False)
    if not taken or any(mine != its and mine in wanted for mine, its in pairs):
        got = f"({', '.join(signature.parameters)})"
        raise ConfigError(f"{location}: parameters", got=got, expected=expected)
