"""Manifests of saved programs: read, changed, written with matching checksums, and refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.compiler.artefact import MANIFEST
from weft.compiler.errors import CompileError
from weft.hdl.errors import ProgramError


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_text().rstrip("\n").rpartition("\n")[0])


def write(folder: Path, manifest: Any) -> None:
    """Write a manifest with matching checksums."""
    if isinstance(manifest, dict) and isinstance(manifest.get("segments"), list):
        for index, entry in enumerate(manifest["segments"]):
            for path in folder.glob(f"segment{index}.*"):
                if isinstance(entry, dict) and entry.get("sha256") == "new":
                    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = json.dumps(manifest)
    (folder / MANIFEST).write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


def refusal(folder: Path) -> str:
    with pytest.raises((CompileError, ProgramError)) as caught:
        weft.load(folder)
    text = str(caught.value)
    assert str(folder) in text
    assert text.isprintable()
    assert len(text) < 700
    assert text.endswith("; compile the model again")
    return text
