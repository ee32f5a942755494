"""`weft probe`, and runs on a board whose port is detected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serial.tools import list_ports
from support.board_model import BoardModel
from support.board_terminal import Terminal
from support.qdq_models import feeds
from support.small_models import small

import weft
from weft.boards.link import probe as probing
from weft.boards.link import serial_ports
from weft.boards.link.frames import FlashState
from weft.boards.link.session import Session
from weft.boards.registry import find
from weft.boards.sdram.calibration import Calibration, CalibrationState
from weft.cli import main, probe_command
from weft.compiler.backend import DeviceProgram
from weft.hdl.isa.memmap import Reg
from weft.run.stream import alternate_images
from weft.run.virtual import VirtualBoard

OWN = find("icebreaker")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture
def model() -> BoardModel:
    board_model = BoardModel(OWN.config, clock=24_000_000)
    board_model.identity = replace(board_model.identity, board="icebreaker")
    board_model.memory[:] = bytes(range(256)) * (len(board_model.memory) // 256)
    return board_model


@pytest.fixture
def terminal(model: BoardModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """The only board connected to this machine."""
    serial_port = Terminal(model.feed)
    listed = [SimpleNamespace(device=serial_port.path, vid=0x0403, pid=0x6010)]
    monkeypatch.setattr(list_ports, "comports", lambda: listed)
    monkeypatch.setattr(serial_ports, "PROBE_SECONDS", 0.05)
    yield serial_port
    serial_port.unplug()


def probe_as_json(terminal: Terminal, capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    """Return the JSON that `weft probe --json` prints without a memory test; check its exit code."""
    assert call("probe", "--port", terminal.path, "--memory-test", "none", "--json") == code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("rate", [4_000, 12_000])
def test_tested_memory_follows_the_link_speed(
    rate: int, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measured link speed counts, not the rate of the line."""
    link = probing.LinkQuality((0.1, 0.1, 0.1), rate, 2 * rate, 1, 0, 0, 0.0)
    monkeypatch.setattr(probing, "measure_link", lambda *given, **named: link)
    assert call("probe", "--port", terminal.path, "--baud", "3000000", "--json") == 0
    moved = 4 * json.loads(capsys.readouterr().out)["memory_test"]["tested"]
    assert 0.8 < moved / (probe_command.PART_SECONDS * rate) <= 1


@pytest.mark.parametrize("given", [True, False])
def test_working_board_passes(
    given: bool, terminal: Terminal, model: BoardModel, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes(model.memory)
    where = ["--port", terminal.path, "--baud", "3000000"] if given else []
    assert call("probe", *where) == 0
    board, configuration, core, memory, link = capsys.readouterr().out.splitlines()
    assert board == f"board: iCEBreaker (icebreaker) at {terminal.path}, 3,000,000 baud"
    digest = f"{OWN.config.digest:#010x}"
    assert configuration == f"configuration: the board's own: 4 x 4, 1 lane, bus of 4 bytes (digest {digest})"
    assert core == "core: sequential, 24 MHz, registers correct"
    assert memory.startswith("memory: 65,536 bytes of spram; all tested in ")
    assert memory.endswith(" MB/s: no errors, contents restored")
    assert link.startswith("link: round trip ")
    assert "of 300 KB/s; " in link
    assert model.memory == before
    assert (model.resets, model.runs) == (1, 0)


@pytest.mark.parametrize(
    ("state", "message", "code"),
    [
        (FlashState.EMPTY, "no program to copy to memory", 0),
        (FlashState.COPIED, "its program was copied to memory when the board started", 0),
        (FlashState.DAMAGED, "its program is DAMAGED, and was not copied completely", 1),
    ],
)
def test_flash_copy_is_reported(
    state: FlashState,
    message: str,
    code: int,
    terminal: Terminal,
    model: BoardModel,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.identity = replace(model.identity, flash=state)
    assert call("probe", "--port", terminal.path, "--memory-test", "none") == code
    assert f"flash: {message}" in capsys.readouterr().out.splitlines()
    assert probe_as_json(terminal, capsys, code)["flash"] == state.name.lower()


FOUND = Calibration(CalibrationState.FOUND, 2, 2, 56, 39, last=38, count=20, chosen=28)
"""Phase 39 of 56 is 251 degrees, the 28th phase that is tried."""


@pytest.mark.parametrize(
    ("actual", "message", "code"),
    [
        (
            FOUND,
            "SDRAM: phases from 193 to 315 degrees work, 251 is chosen (calculated: 251), and words are taken after "
            "CAS latency + 2 (calculated: + 2)",
            0,
        ),
        (
            replace(FOUND, capture=3, last=50, count=30, chosen=36),
            "SDRAM: phases from 206 to 32 degrees work, 302 is chosen (calculated: 251), and words are taken after CAS "
            "latency + 3 (calculated: + 2)",
            0,
        ),
        (
            replace(FOUND, count=56, last=55),
            "SDRAM: all phases work, 251 is chosen (calculated: 251), and words are taken after CAS latency + 2 "
            "(calculated: + 2)",
            0,
        ),
        (
            replace(FOUND, state=CalibrationState.FAILED, count=0, last=0),
            "the SDRAM of icebreaker does not work at 24 MHz: it works in none of 56 phases of its "
            "clock; build with a lower clock (weft build --board icebreaker --clock MHZ) and flash that",
            1,
        ),
        (
            replace(FOUND, state=CalibrationState.FAILED, count=3),
            "the SDRAM of icebreaker does not work at 24 MHz: it works only from 302 to 315 degrees of "
            "its clock, which is too little; build with a lower clock (weft build --board icebreaker --clock MHZ) "
            "and flash that",
            1,
        ),
    ],
)
def test_sdram_calibration_is_reported(
    actual: Calibration,
    message: str,
    code: int,
    terminal: Terminal,
    model: BoardModel,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A board whose memory does not work is not tested."""
    model.identity = replace(model.identity, calibration=actual)
    assert call("probe", "--port", terminal.path) == code
    lines = capsys.readouterr().out.splitlines()
    assert message in lines
    assert any(", not tested" in line for line in lines) == bool(code)
    report = probe_as_json(terminal, capsys, code)
    assert report["sound"] is not bool(code)
    assert report["sdram"]["state"] == actual.state.name.lower()


def test_json(terminal: Terminal, model: BoardModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.identity = replace(model.identity, board="another")
    report = probe_as_json(terminal, capsys, 0)
    assert report["format"] == "weft probe 1"
    assert (report["board"], report["title"], report["core"]) == ("another", None, None)
    assert (report["config_name"], report["config"]) == ("icebreaker", OWN.config.to_dict())
    assert (report["clock_hz"], report["memory_bytes"], report["digest"]) == (
        24e6,
        1 << 16,
        OWN.config.digest,
    )
    assert report["memory_test"] is None
    assert report["link"]["requests"] > 50
    assert report["sound"] is True
    assert model.checks == 0


def test_memory_fault_is_reported(
    terminal: Terminal, model: BoardModel, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stuck(bytearray):
        def __setitem__(self, key: slice, value: bytes) -> None:
            super().__setitem__(key, value)
            super().__setitem__(0x1234, 0xFF)

    own = OWN.config.replace(accumulator_depth=128)
    model.identity = replace(model.identity, digest=own.digest)
    model.memory = Stuck(model.memory)
    assert call("probe", "--port", terminal.path) == 1
    out = capsys.readouterr().out
    assert f"without a name in this weft (digest {own.digest:#010x})" in out
    assert f"registers report another configuration than the link: {OWN.config.digest:#010x}" in out
    assert "ERROR at 0x1234 0xff is read instead of 0x" in out
    model.set(Reg.VERSION, 1)
    assert probe_as_json(terminal, capsys, 1)["registers"]["sound"] is False


def test_port_without_a_board_is_refused(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.board = lambda data: b"login: "
    for arguments in (["--port", terminal.path], [], ["--port", "/dev/null"], ["--port", "virtual:icecream"]):
        assert call("probe", *arguments) in (1, 2)
        captured = capsys.readouterr()
        assert captured.out == ""
        *progress, error = captured.err.splitlines()
        assert error.startswith("error: ")
        assert all(line.endswith("...") for line in progress)


def test_runs_detect_the_port_and_upload_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second command finds code and weights on the simulated board. Transfers of inputs and outputs overlap
    computation."""
    monkeypatch.chdir(tmp_path)
    network = small()
    program = weft.compile(network, config=OWN.config)
    program.save("program")
    arguments = []
    for seed in range(3):
        np.savez(f"{seed}.npz", **feeds(network, np.random.default_rng(seed)))
        arguments += ["--input", f"{seed}.npz"]
    assert alternate_images(program, OWN.memory.size) is not None
    wait = Session.__init__
    monkeypatch.setattr(
        Session, "__init__", lambda *arguments, **options: wait(*arguments, **options | {"timeout": 5.0})
    )
    with VirtualBoard(OWN, OWN.config) as simulated:
        listed = [SimpleNamespace(device=simulated.port, vid=0x0403, pid=0x6010)]
        monkeypatch.setattr(list_ports, "comports", lambda: listed)
        size = sum(
            len(item.constants + item.code) for item in program.segments if isinstance(item, DeviceProgram)
        )
        for kept in (0, size):
            where = ("--on", "board", "--baud", "1500000", "--report", "r.json")
            assert call("run", "program", *arguments, *where) == 0
            out = capsys.readouterr().out
            assert out.splitlines()[-1] == "mismatching bytes: 0"
            link = json.loads(Path("r.json").read_text())["link"]
            assert (link["written_bytes"], link["kept_bytes"]) == (size - kept, kept)
            assert f"code and weights: {size - kept:,} bytes uploaded" in out
            assert ("were on the board already" in out) == bool(kept)
