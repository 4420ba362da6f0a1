"""pflpipe: honest comparison of user-level differentially private personalized federated learning
methods.

The names below are the public Python interface; each is imported when it is first used, so that
``import pflpipe`` costs nothing. ``train`` runs a method on your own tensors (docs/notebook.ipynb),
``run`` a cell of a study.
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any

from pflpipe._version import __version__ as __version__

# MKL, which reads this when it is first used: products of matrices whose bits follow neither from
# where the matrices lie in memory nor from the number of threads ("conditional numerical
# reproducibility"). Without it a client's rounding follows from its place among others
# (simulation/clients.py).
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# The library lazy_loader reads only stubs with relative imports, and code/meaning.py follows only
# absolute ones.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_IMPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_HOME = {name: home for home, name in _IMPORT.findall(_STUB)}
"""Public name -> its module, as the stub beside this file says."""

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'pflpipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
