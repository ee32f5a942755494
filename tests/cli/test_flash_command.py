"""`weft flash`: programs written to a board's flash, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import tiny_shapes

import weft
from weft.boards.board import Memory, MemoryKind
from weft.boards.flash.chip import WINDOW, SpiFlash
from weft.boards.flash.image import ALIGN, DIRECTORY, Directory
from weft.boards.link.loader import build_copy_image
from weft.boards.registry import BOARDS, find
from weft.cli import main
from weft.cli.board_commands import flash_image
from weft.compiler.machine.areas import CONSTANTS
from weft.examples import digits
from weft.run.runtime import Image

ICEBREAKER = find("icebreaker")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with a program for the iCEBreaker in ``program``, and one for other boards in ``other``."""
    monkeypatch.chdir(tmp_path)
    weft.compile(digits.model(), ICEBREAKER.config).save("program")
    weft.compile(digits.model(), "ulx3s-12f").save("other")
    return tmp_path


def test_dry_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flash = ("flash", "--board", "icebreaker", "--program", "program")
    assert call(*flash, "--dry-run") == 0
    assert capsys.readouterr().out == "iceprog -o 1048576 program.bin\n"
    assert call(*flash, "--dry-run", "--image", "other.bin") == 0
    assert capsys.readouterr().out == "iceprog -o 1048576 other.bin\n"
    assert call("flash", "--board", "tang-primer-20k", "--program", "program", "--dry-run") == 0
    assert capsys.readouterr().out == (
        "openFPGALoader --board tangprimer20k --write-flash --external-flash --offset 1048576 program.bin\n"
    )
    assert {path.name for path in folder.iterdir()} == {"program", "other"}


def test_image_and_programmer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    flash = ("flash", "--board", "icebreaker", "--program", "program")
    assert call(*flash, "--image", "image.bin") == 0
    content = Path("image.bin").read_bytes()
    (part,) = weft.load("program").device_programs
    blob = Image(part).read_only
    assert content[DIRECTORY : DIRECTORY + len(blob)] == blob
    assert len(content) % ALIGN == 0
    start = WINDOW + (1 << 20)
    directory = Directory(lambda at, size: content[at - start : at - start + size], start)
    assert directory.find(blob) == start + DIRECTORY

    (folder / "iceprog").write_text(f'#!/bin/sh\necho "$1 $2" > {folder}/given; cp "$3" {folder}/written\n')
    (folder / "iceprog").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert call(*flash) == 0
    assert Path("given").read_text() == "-o 1048576\n"
    assert Path("written").read_bytes() == content
    assert "code and weights of program are in the flash of iCEBreaker" in capfd.readouterr().out


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    program = ("--program", "program")
    wrong = {
        ("icebreaker", "x.bit", *program): "a bitstream and --program do not go together: write one after the other",
        ("icebreaker", "--image", "x.bin"): "--image is for --program: name the program's folder",
        ("icebreaker", "--program", "none"): "none is not a folder that `weft compile` wrote",
        ("icebreaker", *program, "--image", "program/program.json"): (
            "--image would overwrite program/program.json, which is read: name another file"
        ),
        ("icebreaker", "--persistent", *program): (
            "--persistent is for bitstreams: programs are always written to the flash chip"
        ),
    }  # fmt: skip
    for (board, *rest), message in wrong.items():
        assert call("flash", "--board", board, *rest) == 2
        text = capsys.readouterr().err
        assert text.startswith(f"error: {message}"), text
        assert text.count("\n") == 1


def test_program_too_large_for_flash_is_refused() -> None:
    program = weft.load("program")
    (part,) = program.device_programs
    values = Image(part, flash_address=0).memory_bytes
    exact = replace(ICEBREAKER, memory=Memory(MemoryKind.BLOCK, values))
    size = len(flash_image(program, exact))
    less = replace(ICEBREAKER, memory=Memory(MemoryKind.BLOCK, values - 1))
    message = (
        rf"^with code and weights in its flash, icebreaker has {values - 1:,} bytes of memory, and the program's "
        rf"values need {values:,}$"
    )
    with pytest.raises(weft.WeftError, match=message):
        flash_image(program, less)
    flash_image(program, replace(ICEBREAKER, flash=SpiFlash(size + 64, 64)))
    with pytest.raises(weft.WeftError, match=f"the flash of icebreaker has room for {size - 1:,}$"):
        flash_image(program, replace(ICEBREAKER, flash=SpiFlash(size + 63, 64)))


def test_program_is_copied_from_flash_to_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flash = ("flash", "--board", "ulx3s-12f", "--program", "other")
    assert call(*flash, "--dry-run") == 0
    assert (
        capsys.readouterr().out == "openFPGALoader --board ulx3s --write-flash --offset 2097152 program.bin\n"
    )
    program, board = weft.load("other"), find("ulx3s-12f")
    (part,) = program.device_programs
    image = Image(part)
    assert image.bases[CONSTANTS] == 0
    content = flash_image(program, board)
    assert content == build_copy_image(image.read_only, len(content), "")
    with pytest.raises(weft.WeftError, match=f"the flash of ulx3s-12f has room for {len(content) - 1:,}$"):
        flash_image(program, replace(board, flash=SpiFlash(len(content) + 63, 64)))
    needs = image.memory_bytes
    less = replace(board, memory=Memory(MemoryKind.SDRAM, needs - 1))
    message = f"^ulx3s-12f has {needs - 1:,} bytes of memory, and the program needs {needs:,}$"
    with pytest.raises(weft.WeftError, match=message):
        flash_image(program, less)
    monkeypatch.setattr(type(program), "device_programs", [part, part])
    with pytest.raises(
        weft.WeftError, match=r"^ulx3s-12f copies one part of a .* this one has 2 that take turns"
    ):
        flash_image(program, board)


def test_bitstream_can_stay_in_flash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("x.bit").touch()
    assert call("flash", "--board", "ulx3s-85f", "x.bit", "--persistent", "--dry-run") == 0
    assert capfd.readouterr().out == "openFPGALoader --board ulx3s --write-flash x.bit\n"
    assert call("flash", "--board", "icebreaker", "x.bit", "--persistent", "--dry-run") == 0
    assert capfd.readouterr().out == "iceprog x.bit\n"
    (folder / "fujprog").write_text(f'#!/bin/sh\necho "$@" > {folder}/given\n')
    (folder / "fujprog").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for options, given in (
        (("x.bit", "--persistent"), "-j flash x.bit"),
        (("x.bit",), "x.bit"),
        (("--program", "other"), "-j flash -T img -f 2097152 "),
    ):
        assert call("flash", "--board", "ulx3s-12f", *options) == 0
        assert Path("given").read_text().startswith(given)


def test_every_board_with_flash_has_a_programmer() -> None:
    from weft.boards.flash.image import IMAGE_PROGRAMMERS, command

    having = [board for board in BOARDS.values() if board.flash is not None]
    assert {board.programmer for board in having} == set(IMAGE_PROGRAMMERS)
    for board in having:
        assert board.flash is not None
        assert board.copies_flash or board.memory.size <= WINDOW
        words = command(board, Path("x.bin"), offset=board.flash.offset, installed=False)
        assert words[-1] == "x.bin"
        assert str(board.flash.offset) in words


FITTING = {
    "icebreaker": tuple(tiny_shapes.NETWORKS),
    "tang-primer-20k": tuple(tiny_shapes.NETWORKS)[:3],
    "tang-primer-25k": tuple(tiny_shapes.NETWORKS)[:3],
}
"""Networks of MLPerf Tiny for which each board has memory beside code and weights."""


@pytest.mark.parametrize("name", FITTING)
def test_networks_that_fit_small_boards(name: str) -> None:
    board = find(name)
    for network, make in tiny_shapes.NETWORKS.items():
        program = weft.compile(make(), name)
        (part,) = program.device_programs
        assert (part.areas.values_bytes <= board.memory.size) is (network in FITTING[name]), network
        if network in FITTING[name]:
            assert part.areas.memory_bytes > board.memory.size
            flash_image(program, board)


def test_sums_after_convolutions_in_scarce_memory() -> None:
    """The image classifier just fits the Primer; results equal those of a program with ample memory."""
    model = tiny_shapes.image_classification()
    tight, plain = (
        weft.compile(model, config) for config in ("tang-primer-20k", find("tang-primer-20k").config)
    )
    assert tight.device_programs[0].areas.values_bytes == 32 << 10
    (name, (dtype, shape)), = tight.inputs.items()  # fmt: skip
    inputs = {name: np.random.default_rng(1).integers(-128, 128, shape).astype(dtype)}
    outputs, expected = tight.run(inputs).outputs, plain.run(inputs).outputs
    assert all(np.array_equal(outputs[key], value) for key, value in expected.items())
