"""Where MLflow is, whether anybody answers there, and what to do if nobody does."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pflpipe.errors import ConfigError

CONNECT_SECONDS = 5
ARTIFACTS = "mlartifacts"
"""The folder, beside a database or in the results, where a server looks for the files of runs."""
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_MOVE_AWAY = "move that file away; the next run writes everything again"
# What libraries say -> what to do about it; the first that fits.
_ADVICE = (
    (r"\b401\b|UNAUTHENTICATED", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    (r"\b403\b|PERMISSION_DENIED", "ask whoever runs it for the right to write there"),
    (r"(?i)read-?only", "whoever runs it has to make its database writable"),
    (r"(?i)is locked", "wait until nobody else writes to it"),
    (r"(?i)disk is full|no space left", "make room on its disk"),
    (r"(?i)refused|not known|resolution|unreachable", "start it, or correct its address"),
    (
        r"too many 5\d\d error|\b50[0-4]\b",
        "it answers with errors: its log says why, such as a database that is read-only or full",
    ),
    (r"(?i)timed out|timeout", "it accepts connections and does not answer: look at its log"),
)


def check(address: str) -> None:
    """Raise ConfigError for an address that MLflow 3 cannot use."""
    parts = urlsplit(address)
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite" or kind.startswith("databricks"):
        return
    if kind not in _PORTS or not parts.hostname:
        raise ConfigError(
            "the MLflow tracking address",
            got=without_credentials(address),
            expected="http(s)://host[:port], sqlite:///file.db or another database",
            do="set MLFLOW_TRACKING_URI or tracking_uri in config.yaml",
        )
    try:
        _ = parts.port
    except ValueError as error:
        raise ConfigError(
            "the MLflow tracking address",
            got=without_credentials(address),
            expected="a port number",
        ) from error


def probe(address: str) -> None:
    """Connect to the host of an address that ``check`` passed, so that a dead one costs
    CONNECT_SECONDS and not minutes. Raises OSError when nothing answers."""
    parts = urlsplit(address)
    kind = parts.scheme.partition("+")[0]
    if parts.hostname and kind in _PORTS:
        port = parts.port or _PORTS[kind]
        socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS).close()


def keeps_files(address: str) -> bool:
    """Whether a server is there that keeps the files of runs itself, and not a database alone."""
    return urlsplit(address).scheme.startswith(("http", "databricks"))


def database_file(address: str) -> Path | None:
    """Return the file of a SQLite address, sqlite:///relative.db or sqlite:////absolute.db as
    SQLAlchemy reads them; None for any other."""
    prefix, _, path = address.partition(":///")
    return (
        Path(path.partition("?")[0].removeprefix("file:")).resolve()
        if prefix.partition("+")[0] == "sqlite" and path
        else None
    )


def is_outage(error: Exception) -> bool:
    """Whether an error is MLflow's or its server's, and none of ours."""
    # MLflow wraps most of what its libraries raise; artifacts over http raise requests' own errors,
    # which are OSErrors.
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, OSError | MlflowException | SQLAlchemyError)


def is_collision(error: Exception) -> bool:
    """Whether another writer was faster: MLflow does not serialise those who make the same tag,
    data set or experiment at once, and no run can be written that somebody deleted."""
    pattern = r"(?i)unique constraint|already exists|current state is deleted"
    return bool(re.search(pattern, str(error)))


def advice(error: Exception, address: str) -> str:
    """Return what a user can do about an outage."""
    text = f"{type(error).__name__} {error}"
    found = next((do for pattern, do in _ADVICE if re.search(pattern, text)), "")
    if database_file(address) is not None:
        return "make that file writable" if "writable" in found else found or _MOVE_AWAY
    return found or "look at its log"


def reason(error: Exception) -> str:
    """Return the first line of an error, or what it says that it was caused by, without
    credentials."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    caused = re.search(r"\(Caused by (.*)\)$", line)
    return without_credentials((caused[1] if caused else line)[:200])


def without_credentials(text: str) -> str:
    """Return a text whose addresses, ``scheme://user:password@host/path?token=...``, are cut to
    ``scheme://host/path``."""
    return re.sub(
        r"([a-z][a-z0-9+.-]*://)(?:[^/\s'\"]*@)?([^\s'\"?#<>]*)(?:[?#][^\s'\"<>]*)?", r"\1\2", text
    )
