"""Verdicts that survive an interrupted run: JSON lines in the build folder, appended one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weft.hdl.cache import cache_root


class Kept:
    """Map from a key, a list of strings and numbers, to a verdict; its name identifies what verdicts depend on."""

    def __init__(self, name: str) -> None:
        self._path: Path = cache_root() / f"{name}.jsonl"
        self.verdicts: dict[tuple[Any, ...], Any] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                if line.endswith("]"):  # else a run was ended within the line
                    *key, verdict = json.loads(line)
                    self.verdicts[tuple(key)] = verdict

    def add(self, key: tuple[Any, ...], verdict: Any) -> None:
        self.verdicts[key] = verdict
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write("\n" + json.dumps([*key, verdict]))
