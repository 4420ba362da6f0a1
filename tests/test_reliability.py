"""The table of docs/reliability.md says what the tests of faults have seen, and no more."""

from __future__ import annotations

import reliability

HERE = "test_reliability.py::test_a_test_that_ran_renews_its_rows_and_no_others"
OTHER = "test_files.py::test_json_has_one_spelling_and_comes_back"
PAGE = f"""# Title
{reliability.BEGIN}{reliability.HEAD}| a disk, full | told | `{HERE}` |
| a kill | goes on | `{OTHER}` |
| a kill | goes on | `test_files.py::test_that_is_gone` |
{reliability.END}After.
"""


def rows(page: str) -> list[str]:
    table = page.partition(reliability.HEAD)[2].partition(reliability.END)[0]
    return table.splitlines()


def test_a_test_that_ran_renews_its_rows_and_no_others():
    page = reliability.renew(PAGE, {f"tests/{HERE}": [("a disk", "said"), ("a clock", "kept")]})
    assert rows(page) == [
        f"| a kill | goes on | `{OTHER}` |",
        f"| a disk | said | `{HERE}` |",
        f"| a clock | kept | `{HERE}` |",
    ]
    assert page.startswith("# Title\n")
    assert page.endswith("After.\n")
    assert reliability.renew(page, {}) == page


def test_a_test_that_failed_has_no_row():
    assert rows(reliability.renew(PAGE, {f"tests/{HERE}": []})) == [
        f"| a kill | goes on | `{OTHER}` |"
    ]


def test_rows_are_noted_for_the_test_that_runs(request):
    reliability.record("a fault", "an outcome")
    assert reliability.noted(request.node.nodeid) == [("a fault", "an outcome")]
    assert reliability.noted(request.node.nodeid) == []


def test_every_row_of_the_page_is_of_a_test_that_is_there():
    page = reliability.PAGE.read_text(encoding="utf-8")
    assert reliability.renew(page, {}) == page
