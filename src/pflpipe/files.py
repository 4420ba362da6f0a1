"""Atomic files: written beside the target, then renamed, so that nothing that existed before is
ever lost; and JSON that knows its own digest, so that what was damaged or edited is not believed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pflpipe.errors import DataError

DIGEST = "sha256"
"""The key of a JSON object for the digest of all others."""
AGAIN = "remove it (of a run the whole folder), and the same command makes it again"
DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and numpy raise for an archive that is damaged, encrypted or of an unknown kind."""
_WHY = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "let yourself write there",
    errno.EPERM: "let yourself write there",
}
_PAGE = 2**16
"""Bytes; a disk with less room than that is full."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


@contextmanager
def atomic(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the target's folder; on success it becomes the target, on failure
    it is removed.

    The temporary file keeps the target's suffix, because ``numpy.savez`` and matplotlib look at it.

    Raises:
        DataError: the disk is full or may not be written to.
    """
    path = Path(target)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line why a file could not be written, if it is the disk's fault.

    A library that writes by itself may say "unexpected pos" for a full disk (torch), so the disk is
    asked as well.

    Raises:
        DataError: the disk is full or may not be written to.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in _WHY and is_full(path.parent):
            number = errno.ENOSPC
        if number not in _WHY:
            raise
        raise DataError(
            f"{path} cannot be written",
            got=os.strerror(number),
            do=f"{_WHY[number]}, then the same command goes on",
        ) from error


def is_full(folder: Path) -> bool:
    """Return whether the disk that a folder is on has no room; a folder that does not exist is on
    none."""
    return folder.is_dir() and shutil.disk_usage(folder).free < _PAGE


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically (UTF-8)."""
    with atomic(target) as path:
        path.write_text(text, encoding="utf-8")


def canonical_json(value: Any) -> str:
    """Return the one JSON spelling of a value: sorted keys, no spaces, NaN refused."""
    return _CANONICAL.encode(value)


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write readable JSON with sorted keys atomically; an object gets a key ``sha256`` with the
    digest of its others. Infinity is written as the string ``"inf"`` by the caller."""
    if isinstance(value, dict):
        value = json.loads(canonical_json(value))  # with the keys that a reader will see
        value[DIGEST] = _digest(value)
    write_text(target, json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file, an object without its digest.

    Raises:
        DataError: it is not JSON, or an object that is not the one that was written. One without a
            digest, which was not written by ``write_json``, is taken as it is.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read", got=f"no JSON ({error})", do=AGAIN) from None
    if isinstance(value, dict) and value.pop(DIGEST, None) not in (None, _digest(value)):
        raise DataError(f"{path} is not what was written: it was edited or damaged", do=AGAIN)
    return value


def intact(path: Path) -> Path:
    """Return the path of a CSV or a torch file that is whole, as far as it tells by itself.

    Raises:
        DataError: a CSV ends within a line, or has other values than ``with_digest`` was given; an
            archive is cut off or has a member with another checksum than it notes, which torch
            does not look at.
    """
    found = ""
    if path.suffix == ".csv":
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            found = "a file that ends within a line"
        elif text.partition(b"\n")[0].endswith(f",{DIGEST}".encode()):
            lines = [line.rpartition(b",") for line in text.splitlines()]
            digest = _of_lines(line for line, _, _ in lines)
            if {last.decode(errors="replace") for _, _, last in lines[1:]} != {digest}:
                found = "other values than were written"
    elif path.suffix == ".pt":
        try:
            with zipfile.ZipFile(path) as archive:
                found = archive.testzip() or ""
        except DAMAGE as error:
            found = str(error) or type(error).__name__
    if found:
        raise DataError(f"{path} is damaged", got=found, do=AGAIN)
    return path


def with_digest(text: str) -> str:
    """Return a CSV with one more column, in which each row has the digest of all others."""
    header, *rows = text.splitlines()
    digest = _of_lines(line.encode() for line in (header, *rows))
    return "".join(f"{line}\n" for line in [f"{header},{DIGEST}", *(f"{r},{digest}" for r in rows)])


def _of_lines(lines: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
