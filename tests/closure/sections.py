"""The file with what the tools of assurance found: one section each, which the others leave as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(path: Path, name: str, section: dict[str, Any]) -> None:
    """Put a section into the file; without a date, so that the same results are the same file."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[name] = section
    path.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")
