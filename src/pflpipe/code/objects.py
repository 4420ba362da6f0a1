"""What is known of an object of the calling program: its code and its state, as two digests.

The key of a run is made of them, so that runs of different messages share no noise. The code is
what runs, bytecode and not a file that may have been edited since, together with everything of the
program that it names: functions, classes, constants. What an installed library has counts by name
and version. Whoever reads a result after an upgrade of Python finds another key, never an equal one
for other code.

Of some objects nobody can know everything: of a function that keeps variables of another one (a
closure, a lambda), of an object that is written in C, or of arrays that a function takes from its
module, which may be somebody's data and are not read. Then ``complete`` is false, and a name has to
stand for the rest.
"""

import dis
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (
    *(type(None), type(...), bool, int, float, complex, str, bytes, range, slice),
    *(torch.dtype, torch.device, torch.Size, np.dtype, np.generic, np.ufunc, types.GenericAlias),
)
_DESCRIPTORS = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
_OF_CLASSES = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
        *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"),
        "_abc_impl",
    }
)
"""Attributes of a class that do nothing, or that the interpreter makes of the others."""
_BY_CALL = "training"
"""Attribute of a torch module that every call sets."""
_ABSENT = types.ModuleType("absent")
"""Stands for a module that is imported later: nothing is known of it."""
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Known:
    """What is known of an object.

    Attributes:
        code: SHA-256 of its code, and of all values but arrays.
        state: SHA-256 of its arrays, such as a module's parameters and buffers.
        complete: whether nothing else can change what it computes.
    """

    code: str
    state: str
    complete: bool


def known(value: object) -> Known:
    """Return what is known of a function, a class, an instance, or a value of these."""
    walk = _Walk()
    walk.visit(value)
    return Known(walk.code.hexdigest(), walk.state.hexdigest(), walk.complete)


class _Walk:
    """Visits an object and all that it names, each once."""

    def __init__(self) -> None:
        self.code, self.state, self.complete = hashlib.sha256(), hashlib.sha256(), True
        self._given = True  # whether arrays belong to the object, and not to the program around it
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # so that no id is used again

    def visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._note(str(type(value)), f"{value!r}")
            return
        if id(value) in self._seen:
            self._note("again", str(self._seen[id(value)]))
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if isinstance(value, Tensor | np.ndarray):
            self._array(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.FunctionType) and (value.__closure__ or not _library(value)):
            self._function(value)
        elif found := _library(value):
            self._note("library", *found)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif not self._container(value):
            self._instance(value)

    def _note(self, *words: str) -> None:
        self.code.update("\0".join((*words, "\n")).encode())

    def _all(self, kind: str, values: Any) -> None:
        listed = list(values)
        self._note(kind, str(len(listed)))
        for value in listed:
            self.visit(value)

    def _array(self, value: Tensor | np.ndarray) -> None:
        kind = f"{value.dtype} {[*value.shape]}"
        self._note("array", kind)
        if isinstance(value, Tensor):
            plain = value.layout == torch.strided
        else:
            plain = not value.dtype.hasobject
        if not (self._given and plain):
            self.complete = False
            return
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        self.state.update(f"{kind}\n".encode() + value.tobytes())

    def _code(self, value: types.CodeType) -> None:
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        table = getattr(value, "co_exceptiontable", b"")
        self._note("code", repr((value.co_name, counts, value.co_flags, names)))
        self._note(value.co_code.hex(), table.hex())
        self._all("constants", value.co_consts)

    def _function(self, value: types.FunctionType) -> None:
        self.visit(value.__code__)
        self._all("defaults", [value.__defaults__, value.__kwdefaults__, vars(value)])
        given, self._given = self._given, False
        names = () if _library(value) else _global_names(value.__code__)
        for name in sorted(names):
            if name in value.__globals__:
                self._note("global", name)
                self.visit(value.__globals__[name])
        for name in sorted(_imports(value.__code__)):
            self._note("import", name)
            self.visit(sys.modules.get(name.partition(".")[0], _ABSENT))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name == "__class__":  # of a method that calls super(), whose class is visited
                continue
            self.complete = False
            self._note("closure", name)
            try:
                self.visit(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                self._note("empty")
        self._given = given
        if value.__name__ == "<lambda>":
            self.complete = False

    def _class(self, value: type) -> None:
        self._note("class", value.__qualname__)
        self._all("bases", value.__bases__)
        for name, part in value.__dict__.items():
            if name not in _OF_CLASSES:
                self._note("attribute", name)
                self.visit(part)

    def _module(self, value: types.ModuleType) -> None:
        """A module counts by its file: which of its functions are called is unknown."""
        file = Path(getattr(value, "__file__", None) or "absent")
        self.complete &= file.is_file()
        content = file.read_bytes() if file.is_file() else b""
        self._note("module", value.__name__, hashlib.sha256(content).hexdigest())

    def _container(self, value: Any) -> bool:
        """Visit what a container of Python holds, or a wrapper wraps; return whether it is one."""
        if isinstance(value, tuple | list):
            self._all(type(value).__name__, value)
        elif isinstance(value, set | frozenset):
            self._all(type(value).__name__, sorted(value, key=repr))
        elif isinstance(value, Mapping):
            self._all(type(value).__name__, [*value.keys(), *value.values()])
        elif isinstance(value, functools.partial):
            self._all("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self._all("method", [value.__func__, value.__self__])
        elif isinstance(value, staticmethod | classmethod):
            self._all(type(value).__name__, [value.__func__])
        elif isinstance(value, property):
            self._all("property", [value.fget, value.fset, value.fdel])
        elif isinstance(value, functools.cached_property):
            self._all("property", [value.func])
        else:
            return False
        return True

    def _instance(self, value: Any) -> None:
        """An object counts by its class and its attributes. Of a class of a library only this
        package's records and torch's modules are known to have nothing else."""
        if isinstance(value, weakref.ReferenceType):
            self._all("reference", [value()])
            return
        ours = type(value).__module__.startswith("pflpipe.")
        if _library(type(value)) and not (ours or isinstance(value, nn.Module)):
            self.complete = False
        self.visit(type(value))
        attributes = getattr(value, "__dict__", None)
        if attributes is None or hasattr(type(value), "__slots__"):
            self.complete = False
        for name, part in (attributes or {}).items():
            if not (name == _BY_CALL and isinstance(value, nn.Module)):
                self._note("attribute", name)
                self.visit(part)


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names that a function and those in it may look up in their module."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_global_names, inner))


def _imports(code: types.CodeType) -> set[str]:
    """Return the modules that a function and those in it import when they are called."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    found = {one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"}
    return found.union(*map(_imports, inner))


def _library(value: Any) -> tuple[str, str] | None:
    """Return name and version of a function, class or module of Python, of this package or of an
    installed one; None for any other object."""
    module = None
    if isinstance(value, types.ModuleType):
        module = value.__name__
    elif isinstance(value, _DESCRIPTORS):
        module = value.__objclass__.__module__
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        # Those of torch, written in C, belong to a class.
        owner = getattr(value, "__self__", None)
        owner = owner if isinstance(owner, type) else type(owner)
        module = value.__module__ or owner.__module__
    top = str(module or "").partition(".")[0]
    found = sys.modules.get(top)
    folders = Path(getattr(found, "__file__", None) or "").parts
    ours = top in ("pflpipe", *sys.stdlib_module_names) and top != "__main__"
    if not ours and _LIBRARIES.isdisjoint(folders):
        return None
    version = "" if top == "pflpipe" else str(getattr(found, "__version__", "")).partition("+")[0]
    return f"{module}.{getattr(value, '__qualname__', '')}", version
