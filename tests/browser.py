"""Pages in a headless Chromium, as a reader's browser shows them."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

WIDTHS = (390, 1400)
"""Of a phone and of a desk, in CSS pixels."""

# Boxes beyond the right edge, but for those inside a box that scrolls; cutting off is not fitting.
_BEYOND = """(within) => {
  const scrolls = (node) => node && node !== document.body && (
    ['auto', 'scroll'].includes(getComputedStyle(node).overflowX) || scrolls(node.parentElement));
  return [...document.querySelectorAll(`${within} *`)]
    .filter((node) => node.getClientRects().length && !scrolls(node.parentElement)
      && node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map((node) => node.outerHTML.slice(0, 120));
}"""


_CUT = """(boxes) => [...document.querySelectorAll(boxes)]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.scrollWidth} of ${box.clientWidth}: ${box.innerText.slice(0, 60)}`)"""


@dataclass
class Heard:
    """What a page said and asked for while it was open.

    Attributes:
        errors: of the console, and exceptions of its programs.
        requests: addresses on a network; a file and what is written into the page are none.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; without one that starts the test is skipped."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here; Debian's package chromium has it")
    with sync_playwright() as driver:
        # Its sandbox wants user namespaces, which containers lack; the pages are our own.
        try:
            browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except Error as error:  # such as a stub that asks to install a snap
            pytest.skip(f"{program} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, address: str | Path, width: int) -> Iterator[tuple[Page, Heard]]:
    """Open an address or a file in a window of a width, and listen from the beginning."""
    heard = Heard()
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda line: heard.errors.append(line.text) if line.type == "error" else 0)
    page.on("pageerror", lambda error: heard.errors.append(str(error)))
    page.on(
        "request",
        lambda one: heard.requests.append(one.url) if one.url.startswith(("http", "ws")) else 0,
    )
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    yield page, heard
    page.close()


def beyond(page: Page, within: str = "body") -> list[str]:
    """Return the beginnings of the elements that are wider than the page, none of them inside a
    box that scrolls by itself.

    Args:
        within: selector of the part of the page that is looked at.
    """
    found: list[str] = page.evaluate(_BEYOND, within)
    return found


def cut(page: Page, boxes: str) -> list[str]:
    """Return the beginnings of the boxes, given by a selector, that show a part of their content
    and scroll to the rest."""
    found: list[str] = page.evaluate(_CUT, boxes)
    return found
