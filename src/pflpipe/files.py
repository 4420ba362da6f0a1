"""Atomic writes, and JSON and CSV files that contain their own digest.

A file is written next to its target and then renamed, so that an existing file is never lost. A
file whose digest does not match was damaged or edited, and is refused.
"""

import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pflpipe.errors import DataError

DIGEST = "sha256"
"""The key of a JSON object that holds the digest of all others."""
AGAIN = "remove it (of a run the whole folder), and the same command makes it again"
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
    """Yield a temporary path in the target's folder. On success it is renamed to the target, on
    failure it is removed.

    The temporary file has the target's suffix, because ``numpy.savez`` and matplotlib read it.

    Raises:
        DataError: the disk is full or may not be written to.
    """
    path = Path(target)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}.", path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            # Before the rename: otherwise a crash could leave the new name without its content.
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            # mkstemp gives mode 600; restore the mode that ``open`` would have given. The umask can
            # only be read by setting it.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into a DataError of one line.

    A library may report a full disk in other words (torch: "unexpected pos"), so the free space is
    checked too.

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
        what, do = f"{path} cannot be written", f"{_WHY[number]}, then the same command goes on"
        raise DataError(what, got=os.strerror(number), do=do) from error


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder is full; False for a folder that does not exist."""
    return folder.is_dir() and shutil.disk_usage(folder).free < _PAGE


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically (UTF-8)."""
    with atomic(target) as path:
        path.write_text(text, encoding="utf-8")


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, no NaN."""
    return _CANONICAL.encode(value)


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write readable JSON with sorted keys atomically. An object gets a key ``sha256`` with the
    digest of its other keys. The caller writes infinity as the string ``"inf"``."""
    if isinstance(value, dict):
        # The digest is that of the parsed text, in which all keys are strings.
        value = json.loads(canonical_json(value))
        value[DIGEST] = _digest(value)
    write_text(target, json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file, without the digest.

    Raises:
        DataError: the file is no JSON object, or its digest does not match. A file without a digest
            (not written by ``write_json``) is accepted.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read", got=f"no JSON ({error})", do=AGAIN) from None
    if not isinstance(value, dict):
        raise DataError(f"{path} cannot be read", got=type(value).__name__, do=AGAIN)
    if value.pop(DIGEST, None) not in (None, _digest(value)):
        raise DataError(f"{path} is not what was written: it was edited or damaged", do=AGAIN)
    return value


def intact(path: Path) -> Path:
    """Return the path of a CSV or a torch file after a check that it is complete and undamaged.

    Raises:
        DataError: a CSV ends within a line, or does not match its digest (``with_digest``); an
            archive is truncated, or a member does not match its checksum, which torch does not
            check.
    """
    problem = ""
    if path.suffix == ".csv":
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            problem = "a file that ends within a line"
        # Every row carries the digest, so that a file without its first or last rows is noticed.
        elif text.partition(b"\n")[0].endswith(f",{DIGEST}".encode()):
            digest = _of_lines(row for row, _ in _rows(io.BytesIO(text)))
            rows = itertools.islice(_rows(io.BytesIO(text)), 1, None)
            if {last for _, last in rows} != {digest.encode()}:
                problem = "other values than were written"
    elif path.suffix == ".pt":
        try:
            with zipfile.ZipFile(path) as archive:
                problem = archive.testzip() or ""
        # zipfile and zlib have a dozen exceptions for a damaged archive, and no common base.
        except Exception as error:
            problem = str(error) or type(error).__name__
    DataError.unless(not problem, f"{path} is damaged", problem, do=AGAIN)
    return path


def with_digest(text: str) -> str:
    """Return a CSV with one more column, which holds the digest of all other columns in each
    row."""
    digest = _of_lines([text.removesuffix("\n").encode()])
    header, _, rows = text.partition("\n")
    return f"{header},{DIGEST}\n" + rows.replace("\n", f",{digest}\n")


def write_joined(target: Path, parts: Sequence[Path]) -> None:
    """Write CSVs of the same columns, with a digest each, as one with the digest of all its rows.

    Memory holds one of them at a time.

    Raises:
        DataError: one of them is damaged.
    """

    def rows() -> Iterator[bytes]:
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                yield from (row for row, _ in itertools.islice(_rows(file), number > 0, None))

    for part in parts:
        intact(part)
    digest = _of_lines(rows())
    with atomic(target) as path, path.open("wb") as file:
        for number, row in enumerate(rows()):
            file.write(row + b"," + (digest if number else DIGEST).encode() + b"\n")


def _rows(file: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield for each line of a CSV all fields but the last, as they are, and the last."""
    for line in file:
        row, _, last = line.removesuffix(b"\n").rpartition(b",")
        yield row, last


def _of_lines(lines: Iterable[bytes]) -> str:
    # One by one: in a list, the lines of a million clients take six times their text.
    digest = hashlib.sha256()
    for number, line in enumerate(lines):
        digest.update(b"\n" + line if number else line)
    return digest.hexdigest()[:16]


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
