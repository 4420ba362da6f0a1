"""Tables of Hugging Face's hub, or of a folder in its layout, read by its library ``datasets``."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflpipe.code import guard
from pflpipe.data import limits
from pflpipe.errors import DataError

INSTALL = "pip install 'datasets>=4'"


def load(block: Mapping[str, Any], split: str, cache: Path) -> Any:
    """Return a split of a block's data set, of which ``tables.frame`` makes a DataFrame. A program
    in the data set is never run: the library has refused them since its version 4.

    Args:
        block: ``hub``, a name or a folder, with ``revision`` and ``config``.
        split: such as ``train``.
        cache: folder of what is downloaded.

    Raises:
        DataError: the library is not installed, or the data set cannot be read or is too large.
    """
    place = f"hub: {block['hub']}"
    try:
        datasets = importlib.import_module("datasets")  # no part of pflpipe[all]
    except ImportError:
        raise DataError(place, got="no Python package datasets", do=INSTALL) from None
    try:
        table = datasets.load_dataset(
            block["hub"],
            block.get("config"),
            split=split,
            revision=block.get("revision"),
            cache_dir=str(cache),
        )
    except Exception as error:  # of the library, or of the network: there is no common base
        do = "mend hub, revision, config and split, or give the folder of a copy"
        what = f"{place}, split {split}, cannot be read"
        raise DataError(what, got=guard.described(error), do=do) from None
    limits.check(table.data.nbytes, place)
    return table
