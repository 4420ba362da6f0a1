"""The fixture ``assert_private`` of pytest, which finds this module by its entry point."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pflpipe.auditing.audit import Audited


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting with the time of an attack."""
    parser.addini("private_seconds", "seconds of an attack by assert_private", default="10")


@pytest.fixture
def assert_private(pytestconfig: pytest.Config) -> Callable[..., Audited]:
    """``pflpipe.testing.assert_private`` with the seconds of the setting ``private_seconds``."""
    from pflpipe import testing

    seconds = float(pytestconfig.getini("private_seconds"))
    return functools.partial(testing.assert_private, seconds=seconds)
