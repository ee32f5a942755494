"""The table of what was proven, run and broken: the page has what was counted."""

from __future__ import annotations

import assurance


def test_the_page_has_the_table() -> None:
    """``python benchmarks/assurance.py write`` makes it."""
    page = assurance.PAGE.read_text()
    begin, end = page.index(assurance.BEGIN) + len(assurance.BEGIN), page.index(assurance.END)
    assert page[begin:end] == assurance.table(assurance.read_results())


def test_a_table() -> None:
    sections = {
        "b": {"with": "make b", "rows": [["two", "2"]]},
        "a": {"with": "make a", "rows": [["one", "1"]]},
    }
    assert assurance.table(sections).splitlines()[2:] == ["| one | 1 | `make a` |", "| two | 2 | `make b` |"]
