"""Texts and measured rates of this room (words.yaml). Reading a study needs them, so that they are
not read as strictly as a study (documents.py)."""

from pathlib import Path
from typing import Any

import yaml

_TEXT = Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
WORDS: dict[str, Any] = yaml.load(_TEXT, yaml.CSafeLoader)
