"""Files that docs/extending.md shows: Python blocks whose first line is a comment with the file's path."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def documented(path: str) -> str:
    """The text of the file `path`, as the page shows it."""
    found = re.search(rf"^```python\n(# {re.escape(path)}\n.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE.name} shows no {path}"
    return found[1]
