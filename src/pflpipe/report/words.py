"""Lists of columns and texts of this room (words.yaml)."""

from pathlib import Path
from typing import Any

from pflpipe.study import documents

WORDS: dict[str, Any] = documents.read_yaml(Path(__file__).with_name("words.yaml"))
