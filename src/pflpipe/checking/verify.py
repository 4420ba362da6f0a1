"""A check of a certificate at two levels.

Alone: its schema, its own digest, the digests of its settings, what its parts say of each other
(rules.py), and every number that follows from others in it (recomputed.py). ``UNCHECKED`` lists
what a file alone cannot show. With results: every row is made again from plans, runs, audits and
searches and compared, and no row of the table may be missing. docs/certificates.md says what
neither level can show. The command ``pflpipe verify`` adds what the package says of a row's
settings (pipeline/settled.py) and, with results, the evidence (pipeline/certificate.py).
"""

import collections
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jsonschema import Draft202012Validator

from pflpipe.checking import recomputed, rules

VERIFIED, REFUTED, NOT_CHECKABLE = "verified", "refuted", "not checkable"
SCHEMA = Path(__file__).with_name("certificate-2.schema.json")
FORMAT = "pflpipe-certificate-2"
DIGEST = "sha256"
"""The key of the digest of all other keys."""
TOLERANCE = 1e-6
"""Largest relative difference of a number to the recomputed one."""
ELSEWHERE = {"dataset.sha256", "accountant.version"}
"""What results do not tell: data sets are checked by themselves, and a version is that of the
program that wrote the certificate."""


class UnreadableError(Exception):
    """A file cannot be read as a certificate of this version."""


class Finding(NamedTuple):
    """The verdict on a part of a certificate, and why it is not ``verified``."""

    part: str
    verdict: str
    why: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


_REACH: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("reach.json").read_text(encoding="utf-8")
)
SETTINGS = tuple(_REACH["checked_settings"])
"""The settings on which something else in a file depends, which can therefore be checked."""
OF_FILES = tuple(_REACH["unchecked_of_files"])
"""What a file alone cannot check of all rows together."""
UNCHECKED = tuple(_REACH["unchecked_of_rows"])
"""What a file alone cannot check in rows, some of it in some rows only, besides settings that are
not in ``SETTINGS``. A test holds both against what is refuted."""


def unchecked() -> str:
    """Return the fields that a file alone cannot check, as one line."""
    listed = (*OF_FILES, *UNCHECKED, f"settings besides {', '.join(SETTINGS)}")
    return f"a file alone cannot check: {'; '.join(listed)}"


class Evidence(Protocol):
    """What a certificate is compared with (pipeline/certificate.py)."""

    def of(self, row: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return what is refuted in a row, and what is missing for a check."""

    def of_all(self, rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
        """Yield the findings on all rows together."""


def findings(
    file: Path,
    given: Callable[[str], Evidence] | None = None,
    refused: Callable[[dict[str, Any]], list[str]] = lambda row: [],
) -> list[Finding]:
    """Return the verdict on every row of a certificate, and on what concerns all of them.

    Args:
        file: the certificate.
        given: returns the evidence on a study; None checks the file alone.
        refused: returns what else refutes the settings of a row.

    Raises:
        UnreadableError: the file cannot be read as a certificate of this version.
    """
    content, wrong = _read(file)
    if wrong:
        return [Finding("file", REFUTED, why) for why in wrong]
    rows, found = content["rows"], []
    names = collections.Counter(row["cell"] for row in rows)
    if twice := [name for name, number in names.items() if number > 1]:
        found.append(Finding("file", REFUTED, f"rows that occur twice: {', '.join(twice)}"))
    found += [Finding("file", REFUTED, why) for why in _disagreements(rows)]
    evidence = given and given(content["study"])
    for row in rows:
        refuted, unknown = refused(row), list[str]()
        if not refuted:
            refuted, unknown = _alone(row)
        if evidence and not refuted:
            refuted, unknown = evidence.of(row)
        verdict = REFUTED if refuted else NOT_CHECKABLE if unknown else VERIFIED
        found.append(Finding(row["cell"], verdict, "; ".join(refuted or unknown)))
    return found + (list(evidence.of_all(rows)) if evidence else [])


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a certificate, and what makes it no certificate."""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        written = json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n"
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{file} cannot be read; got {str(error)!r}") from None
    stated = content.get("format") if isinstance(content, dict) else None
    if stated != FORMAT:
        raise UnreadableError(f"{file}: format; got {stated!r}; expected {FORMAT}")
    body = {name: value for name, value in content.items() if name != DIGEST}
    # A repeated key leaves the content alone, but a reader may see the other value.
    if content.get(DIGEST) != _digest(body) or text != written:
        return content, ["it is not what was written: it was edited or damaged"]
    validator, _ = _schema()
    errors = validator.iter_errors(content)
    return content, [f"{error.json_path}: {error.message}" for error in errors]


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON without spaces, keys sorted."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _schema() -> tuple[Draft202012Validator, rules.Names]:
    """Return what checks the form of a certificate, and the names that may occur."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return Draft202012Validator(schema), rules.Names.of(schema)


def _disagreements(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield what rows say differently of the same audit, data set or part of the code."""
    said: dict[tuple[str, ...], Any] = {}
    for row in rows:
        about: dict[tuple[str, ...], Any] = {
            ("data set", row["dataset"]["name"]): row["dataset"]["sha256"]
        }
        for audit in row["audits"]:
            about["audit", audit["audit"]] = audit | {"this_plan": None}
        for part in row["code"]:
            about["code", part["kind"], part["name"]] = part["sha256"]
        for what, value in about.items():
            if said.setdefault(what, value) != value:
                yield f"rows differ in {' '.join(what)}"


def _alone(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what the rest of a row refutes, and what cannot be checked without results."""
    digest = _digest(row["settings"])[:10]
    if not row["cell"].endswith(f"-{digest}"):
        return [f"its settings have the digest {digest}"], []
    try:
        expected, unknown = recomputed.expected(row)
        refuted = list(rules.contradictions(row, _schema()[1]))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return [f"its epsilons cannot be recomputed: {error or type(error).__name__}"], []
    refuted += differences(row, expected, "the rest of the row")
    return refuted, unknown + rules.not_run(row)


def differences(row: Mapping[str, Any], expected: Mapping[str, Any], of: str) -> Iterator[str]:
    """Yield one sentence for each value of a row, by its dotted path, that is not the expected
    one; ``of`` says where that is from."""
    for path, value in expected.items():
        stated: Any = row
        for key in path.split("."):
            stated = stated.get(key) if isinstance(stated, dict) else None
        if not _agree(stated, value):
            yield f"{path} is {stated}, but {value} by {of}"


def _agree(stated: Any, value: Any) -> bool:
    pair = [math.inf if one == "inf" else one for one in (stated, value)]
    if all(isinstance(one, int | float) for one in pair) and float in map(type, pair):
        return math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    return bool(pair[0] == pair[1])
