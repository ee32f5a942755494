"""Estimates for boards without hardware, against programs, the cycle model, and bytes on a serial line."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import qdq_models
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal

import weft
from weft import BoardError, CompileError, InputError
from weft import __main__ as command
from weft.boards.flash.chip import SpiFlash
from weft.boards.link.frames import PAYLOAD, Operation, transfer_bytes
from weft.boards.link.host import BoardDevice
from weft.boards.registry import BOARDS
from weft.cli.board_commands import flash_image
from weft.cli.estimate_command import _show
from weft.compiler.backend import DeviceProgram
from weft.examples import digits
from weft.run.board_run import board_model
from weft.run.estimate import Estimate, estimate
from weft.run.runtime import Image

MODEL = digits.model()


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def estimates() -> dict[str, Estimate]:
    return {item.board: item for item in estimate(MODEL)}


def test_all_boards(estimates: dict[str, Estimate]) -> None:
    assert list(estimates) == list(BOARDS)
    for name, item in estimates.items():
        board = BOARDS[name]
        assert (item.config, item.clock, item.available) == (board.config, board.clock, board.memory.size)
        assert item.fits == (item.needed <= item.available), name


@pytest.mark.parametrize("name", BOARDS)
def test_memory_needs_equal_those_of_the_program(estimates: dict[str, Estimate], name: str) -> None:
    item, program = estimates[name], weft.compile(MODEL, name)
    (part,) = [segment for segment in program.segments if isinstance(segment, DeviceProgram)]
    assert (item.code, item.constants) == (len(part.code), len(part.constants))
    assert Image(part).memory_bytes == item.code + item.constants + item.working
    kept = Image(part, flash_address=0)
    if item.flash:  # because memory has too little room
        assert item.flash == len(flash_image(program, BOARDS[name])) > len(kept.read_only)
        assert item.needed == kept.memory_bytes <= item.available < Image(part).memory_bytes
    else:
        assert item.needed == Image(part).memory_bytes
    assert (item.nodes, item.on_device) == (12, 10)
    inputs = {"image": np.zeros((1, 1, 8, 8), np.float32)}
    size = BOARDS[name].memory.size if item.flash else 1 << 25
    device = board_model(BOARDS[name], program.config, BOARDS[name].clock, size, flash=item.flash > 0)
    report = program.run(inputs, on=device, memory=False).report
    assert item.cycles == report["cycles"]
    assert item.moved == report["dram_bytes"]
    assert item.macs == report["macs"]
    assert item.seconds == report["cycles"] / BOARDS[name].clock
    assert math.isclose(item.macs_per_second, item.macs / item.seconds)
    assert not item.bound or math.isclose(sum(item.bound.values()), 1)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000, 65_536])
def test_bytes_on_the_line_equal_a_count(size: int) -> None:
    """Count random transfers as a board model receives and sends them."""
    counts = [0, 0]
    model = BoardModel(CONFIG, 1 << 17)

    def count_bytes(data: bytes) -> bytes:
        reply = model.feed(data)
        counts[0] += len(data)
        counts[1] += len(reply)
        return reply

    terminal = Terminal(count_bytes)
    try:
        with BoardDevice.open(terminal.path, CONFIG, timeout=5.0) as device:
            for operation in (Operation.WRITE_MEMORY, Operation.READ_MEMORY):
                counts[:] = [0, 0]
                if operation is Operation.WRITE_MEMORY:
                    device.write(PAYLOAD, np.random.default_rng(size).bytes(size))
                else:
                    device.read(PAYLOAD, size)
                for found, expected in zip(counts, transfer_bytes(operation, size), strict=True):
                    assert abs(found - expected) <= max(0.01 * expected, 4), (operation, found, expected)
    finally:
        terminal.unplug()


def test_link_seconds(estimates: dict[str, Estimate]) -> None:
    item = estimates["ulx3s-85f"]
    rate = 3_000_000 / 10
    assert item.upload > (item.code + item.constants) / rate
    assert item.upload < 1.2 * (item.code + item.constants) / rate
    assert 0 < item.link < 0.01


def test_board_without_tables_is_last_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The 85F computes faster, but leaves SiLU to the host; the Icepi Zero runs it on the device."""
    monkeypatch.chdir(tmp_path)
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.input((1, 8, 32, 32))
    for _ in range(3):
        value = builder.conv(value, 8, kernel=(3, 3), pads=(1, 1, 1, 1))
        real = builder.dequantise(value)
        gate = builder.like(builder.node("Sigmoid", [real]), value.shape, value)
        value = builder.like(builder.node("Mul", [real, builder.dequantise(gate)]), value.shape, value)
    Path("silu.onnx").write_bytes(builder.finish(value).SerializeToString())
    slow, quick = estimate("silu.onnx", ["ulx3s-85f", "icepi-zero"])
    assert slow.seconds < quick.seconds
    assert slow.sample_seconds == slow.seconds + slow.link > quick.sample_seconds
    assert (slow.sensible, quick.sensible) == (False, True)
    # Two convolutions send outputs to the host, and two receive inputs from it.
    crossing = 4 * 8 * 32 * 32 / (BOARDS["ulx3s-85f"].baud / 10)
    assert crossing < slow.between < 1.2 * crossing
    assert slow.between < slow.link
    assert quick.between == 0
    boards = ["--board", "ulx3s-85f", "--board", "icepi-zero"]
    assert call("estimate", "silu.onnx", *boards, "--json") == 0
    assert [item["board"] for item in json.loads(capsys.readouterr().out)["boards"]] == [
        "icepi-zero",
        "ulx3s-85f",
    ]
    monkeypatch.setenv("COLUMNS", "250")
    assert call("estimate", "silu.onnx", *boards) == 0
    _, first, second, *notes = capsys.readouterr().out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("icepi-zero", "ulx3s-85f")
    assert "(not sensible)" in second
    assert "(not sensible)" not in first
    message = "\n".join(notes)
    assert (
        f"ulx3s-85f: not sensible: for {slow.between * 1e3:,.2f} ms of each sample, nodes on the host"
        in message
    )
    assert re.search(
        r"^ulx3s-85f: 8 of 11 nodes run on the host; the reason for 6: .* look-up tables", message, re.M
    )


def test_selected_boards() -> None:
    assert [item.board for item in estimate(MODEL, ["ulx3s-12f", "ulx3s-12f"])] == ["ulx3s-12f"]
    assert estimate(MODEL, []) == []
    with pytest.raises(BoardError, match=r"^unknown board 'vast'; choose "):
        estimate(MODEL, ["ulx3s-12f", "vast"])
    for boards in ("ulx3s-12f", [1], [None]):
        with pytest.raises(InputError, match=r"^'boards' is a collection of names, not "):
            estimate(MODEL, boards)  # type: ignore[arg-type]


def test_models_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of 512 KB on boards with 32 MB, and with 128 KB and enough, too little, or no flash."""
    builder = qdq_models.Builder(np.random.default_rng(0))
    model = builder.finish(builder.dense(builder.input((1, 1024)), 512))
    board = BOARDS["icebreaker"]
    monkeypatch.setitem(BOARDS, "less", replace(board, name="less", flash=SpiFlash(1 << 19, 0)))
    monkeypatch.setitem(BOARDS, "none", replace(board, name="none", flash=None))
    large, flash, *small = estimate(model, ["ulx3s-45f", "icebreaker", "less", "none"])
    assert large.fits
    assert not large.flash
    assert large.upload > 0
    assert flash.fits
    assert flash.flash > 1024 * 512 > flash.available
    assert flash.upload == 0
    for item in small:
        assert not item.fits
        assert not item.flash
        assert item.needed > 1024 * 512 > item.available


def test_values_that_do_not_fit_beside_flash(capsys: pytest.CaptureFixture[str]) -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    model = builder.finish(builder.dense(builder.input((200, 128)), 8))
    (item,) = estimate(model, ["tang-nano-9k"])
    assert not item.fits
    assert item.flash > 0
    _show([item])
    assert (
        f"tang-nano-9k: {item.needed - 16384:,} bytes too many: {item.needed:,} of values, with code, weights and "
        "parameters in its flash\n"
    ) in capsys.readouterr().out


def test_models_that_cannot_be_compiled() -> None:
    with pytest.raises(CompileError):
        estimate(b"no model")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"]),
        helper.make_node("TopK", ["d", "k"], ["y", "places"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2)) for name in "xy"]
    constants = [
        numpy_helper.from_array(np.array([2]), "k"),
        numpy_helper.from_array(np.float32(0.5), "scale"),
    ]
    model = helper.make_model(helper.make_graph(nodes, "top", ends[:1], ends[1:], constants))
    (item,) = estimate(model, ["icebreaker"])
    assert item.refused == "nothing of this model runs on the device: `weft check` says why"
    assert not item.fits


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    Path("digits.onnx").write_bytes(MODEL)
    assert call("estimate", "digits.onnx") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in BOARDS)
    assert call("estimate", "digits.onnx", "--board", "ulx3s-85f", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "weft estimate 1"
    (actual,) = document["boards"]
    (item,) = estimate(MODEL, ["ulx3s-85f"])
    assert actual["seconds"] == item.seconds
    assert actual["memory"]["needed"] == item.needed
    assert actual["link"] == {
        "upload_seconds": item.upload,
        "sample_seconds": item.link,
        "between_seconds": 0,
    }
    assert actual["sample_seconds"] == item.seconds + item.link
    assert actual["sensible"]
    assert call("estimate", "digits.onnx", "--board", "vast") == 2
    assert capsys.readouterr().err.startswith("error: unknown board 'vast'; choose ")
    assert call("estimate", "none.onnx") == 2
    assert capsys.readouterr().err.count("\n") == 1
