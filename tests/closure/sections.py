"""File of results of the assurance tools: one section each, which the others preserve."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Section = dict[str, Any]


def write(path: Path, name: str, section: Section, cores: Iterable[str] = ()) -> None:
    """Write a section, without a date, so that equal results give equal files. A section of some `cores` only preserves
    the others' rows."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    other = whole.get(name, {"with": "", "rows": [], "details": {}})
    whole[name] = _together(other, section, set(cores)) if cores else section
    path.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")


def _together(before: Section, section: Section, cores: set[str]) -> Section:
    """Merge rows, which begin with a core's name. Preserved rows get a command of their own if it differs."""
    own = [] if before["with"] == section["with"] else [before["with"]]
    others = [
        [what, count, *(command or own)]
        for what, count, *command in before["rows"]
        if what.split()[0] not in cores
    ]
    rows = sorted([*others, *section["rows"]], key=lambda row: row[0].split()[0])
    details = {core: found for core, found in before["details"].items() if core not in cores}
    return section | {"rows": rows, "details": details | section["details"]}
