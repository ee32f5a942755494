"""The file with what the tools of assurance found: one section each, which the others leave as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Section = dict[str, Any]


def write(path: Path, name: str, section: Section, cores: Iterable[str] = ()) -> None:
    """Put a section into the file; without a date, so that the same results are the same file. If it is one of the
    `cores` only, what the file has of others stays."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    other = whole.get(name, {"with": "", "rows": [], "details": {}})
    whole[name] = _together(other, section, set(cores)) if cores else section
    path.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")


def _together(before: Section, section: Section, cores: set[str]) -> Section:
    """Rows begin with the name of a core. Those that stay have a command of their own if theirs is another one."""
    own = [] if before["with"] == section["with"] else [before["with"]]
    others = [
        [what, count, *(command or own)]
        for what, count, *command in before["rows"]
        if what.split()[0] not in cores
    ]
    rows = sorted([*others, *section["rows"]], key=lambda row: row[0].split()[0])
    details = {core: found for core, found in before["details"].items() if core not in cores}
    return section | {"rows": rows, "details": details | section["details"]}
