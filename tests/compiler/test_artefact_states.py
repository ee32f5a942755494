"""Compiled models whose states contradict their other parts: in memory, and as files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.state_models import Ring

import weft
from weft.compiler.artefact import MANIFEST, STATES, Compiled, load
from weft.compiler.artefact_verify import verify
from weft.compiler.errors import CompileError
from weft.compiler.ir.network import State
from weft.hdl.errors import ProgramError
from weft.hdl.isa.config import PRESETS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("ring")
    weft.compile(Ring(taps=3, channels=4).build(), PRESETS["tiny"]).save(result)
    return result


def _change_state(compiled: Compiled, **changes: Any) -> tuple[State, ...]:
    return tuple(dataclasses.replace(state, **changes) for state in compiled.states)


CHANGES: dict[str, Callable[[Compiled], dict[str, Any]]] = {
    "state 'x' is also an input, or is listed twice": lambda c: {"states": _change_state(c, source="x")},
    "state 'ring' is also an input, or is listed twice": lambda c: {"states": c.states * 2},
    "the new value of state 'ring' is never computed": lambda c: {"states": _change_state(c, target="none")},
    "the device's 'ring' is int8 of shape (1, 3, 5), but int8 of shape (1, 3, 4) is expected": lambda c: {
        "states": _change_state(c, initial=np.zeros((1, 3, 5), np.int8))
    },
    "the device's 'ring' is uint8 of shape (1, 3, 4), but int8 of shape (1, 3, 4) is expected": lambda c: {
        "states": _change_state(c, initial=np.zeros((1, 3, 4), np.uint8))
    },
    "the new value of state 'ring' is int8 of shape (1, 1, 4), but int8 of shape (1, 3, 4) is expected": lambda c: {
        "states": _change_state(c, target="x")
    },
    "the device's 'ring' is never computed": lambda c: {"states": ()},
    "'device0': no value is transferred for input 'ring'": lambda c: {
        "to_device": tuple(item for item in c.to_device if item.value != "ring")
    },
}  # fmt: skip


@pytest.mark.parametrize("why", CHANGES)
def test_states_that_do_not_fit(folder: Path, why: str) -> None:
    compiled = load(folder)
    verify(compiled)
    with pytest.raises(CompileError) as caught:
        verify(dataclasses.replace(compiled, **CHANGES[why](compiled)))
    assert str(caught.value) == why


def copy_with_manifest(folder: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """The files with another manifest, whose checksum fits."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((folder / MANIFEST).read_text().rstrip("\n").rpartition("\n")[0])
    change(manifest)
    text = json.dumps(manifest)
    (target / MANIFEST).write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    return target


def test_a_state_that_is_said_to_be_an_input_is_not_written(folder: Path, tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        for item in (*manifest["to_device"], *manifest["from_device"]):
            if item["buffer"]["kind"] == "state":
                item["buffer"]["kind"] = "input"
        manifest["segments"][0]["buffers"]["ring"]["kind"] = "input"
        manifest["from_device"] = [item for item in manifest["from_device"] if item["value"] == "y"]
        manifest["states"]["targets"]["ring"] = "ring"
        manifest["segments"][0]["offsets"]["ring"] = 4096

    with pytest.raises(ProgramError, match=r"base register 7"):
        weft.load(copy_with_manifest(folder, tmp_path, change))


def test_states_must_match_the_file(folder: Path, tmp_path: Path) -> None:
    def change(manifest: Any) -> None:
        manifest["states"]["targets"] = {"other": "ring:next"}

    with pytest.raises(CompileError, match=r"states\.bin holds other states than program\.json; compile"):
        weft.load(copy_with_manifest(folder, tmp_path, change))


def test_a_file_of_states_that_is_no_network(folder: Path, tmp_path: Path) -> None:
    raw = b"\x93abc"

    def change(manifest: Any) -> None:
        manifest["states"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    copy_with_manifest(folder, tmp_path, change)
    (tmp_path / STATES).write_bytes(raw)
    with pytest.raises(CompileError, match=r"states\.bin: .*; compile the model again"):
        weft.load(tmp_path)


def test_programs_without_states_have_no_file_of_them(tmp_path: Path) -> None:
    weft.compile(Ring(taps=3, channels=4, assigned=()).build(), PRESETS["tiny"]).save(tmp_path)
    assert not (tmp_path / STATES).exists()
    assert weft.load(tmp_path).states == {}
