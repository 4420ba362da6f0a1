"""Tables of cases beside the tests: what is data and no code stands in ``cases/<name>.yaml``."""

from pathlib import Path
from typing import Any

import yaml


def table(name: str) -> dict[Any, Any]:
    """Return the tables of a test file."""
    file = Path(__file__).parent / "cases" / f"{name}.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))
