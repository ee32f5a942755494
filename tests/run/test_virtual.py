"""Whole boards in simulation, driven over their serial line by the host code of real boards."""

from __future__ import annotations

import json
import os
import random
import re
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.deaf_memory import deaf_top
from support.mostly_long import mostly_long
from support.qdq_models import Builder, feeds
from support.small_models import small
from support.state_models import Ring

import weft
from weft.boards import registry, virtual_top
from weft.boards.board import CoreKind
from weft.boards.link import polled
from weft.boards.link.host import BoardDevice
from weft.boards.sdram.model import Phase
from weft.boards.virtual_top import PHASES
from weft.cli import main, probe_command
from weft.cli.board_commands import flash_image
from weft.examples import digits
from weft.hdl import verilog
from weft.hdl.isa import Load, Store, Vec
from weft.hdl.isa.config import PRESETS
from weft.run import virtual
from weft.run.board_run import board_model
from weft.run.runtime import Image
from weft.run.virtual import VirtualBoard, board_at
from weft.sim.device import DeviceError

ULX3S = "ulx3s-85f-lm"
"""Board with the pipelined core. Its configuration is the smallest of its kind, so its simulator builds fastest."""
DEAF = 0x10000
"""First byte address that does not answer."""


@pytest.mark.parametrize("name", mostly_long([ULX3S, "icebreaker"], 1))
def test_digits_on_a_board(name: str) -> None:
    board = registry.find(name)
    config = board.config
    program = weft.compile(digits.model(), config=config)
    inputs = {"image": digits.held_out()[0][:1]}
    golden = program.run(inputs, on="golden")
    with VirtualBoard(board, config) as simulated:
        device = BoardDevice.open(simulated.port, config, timeout=5.0)
        assert device.memory_bytes == board.memory.size
        result = program.run(inputs, on=device)
        assert simulated.violations == []
        assert np.array_equal(result.outputs["logits"], golden.outputs["logits"])
        assert result.memory == golden.memory
        slower = 3 if board.core is CoreKind.PIPELINED else 24
        assert result.report["cycles"] < slower * result.report["macs"] / config.n**2

        _survives_failure(device)
        again = program.run(inputs, on=device)
        assert again.memory == golden.memory
        assert again.report["cycles"] == pytest.approx(result.report["cycles"], rel=0.02)
        assert simulated.violations == []
        device.close()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", [ULX3S, "icebreaker"])
def test_run_on_a_board_from_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    board = registry.find(name)
    program = weft.compile(digits.model(), config=board.config, memory=name)
    program.save("program")
    image = digits.held_out()[0][:1]
    np.savez("in.npz", image=image)
    arguments = ["run", "program", "--input", "in.npz", "--on", "board", "--port"]
    assert _exit_code([*arguments, f"virtual:{name}", "--report", "report.json"]) == 0
    title, *rows, same = capsys.readouterr().out.splitlines()
    assert same == "mismatching bytes: 0"
    source = next(row for row in rows if row.startswith("cycles are what the board counted"))
    report = json.loads(Path("report.json").read_text())
    assert report["counters"]["array_active"] > 0
    exact = board.core is CoreKind.SEQUENTIAL
    device = board_model(board, program.config, board.clock)
    model = program.run({"image": image}, on=device, memory=False).report
    assert [layer["modelled_cycles"] for layer in report["layers"]] == [
        layer["cycles"] for layer in model["layers"]
    ]
    known = {"cycles": model["cycles"], "clock": board.clock, "bandwidth": board.memory.planning_model[1]}
    assert report["modelled"] == known
    assert known["cycles"] == pytest.approx(report["cycles"], rel=0.001 if exact else 0.005)
    assert [layer["cycles"] for layer in report["layers"]] == [None] * len(rows[: len(report["layers"])])
    assert re.split("  +", title)[:4] == ["layer", "cycles", "modelled cycles", "MACs"]
    for row, layer in zip(rows, model["layers"], strict=False):
        assert re.split("  +", row)[1:3] == ["-", f"{layer['cycles']:,}"]
    total = next(row for row in rows if row.startswith("total"))
    assert re.split("  +", total)[1:3] == [f"{report['cycles']:,}", f"{model['cycles']:,}"]
    share = model["cycles"] / report["cycles"] - 1
    assert source.endswith(f"{abs(share):.1%} {'more' if share > 0 else 'fewer'}")


def test_program_runs_from_flash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs from flash, without a byte on the line. Other programs are sent if they fit, and refused if not."""
    monkeypatch.chdir(tmp_path)
    board = registry.find("icebreaker")
    program, image = weft.compile(digits.model(), "icebreaker", memory="icebreaker"), digits.held_out()[0][:1]
    Path("flash.bin").write_bytes(flash_image(program, board))
    written = []
    monkeypatch.setattr(BoardDevice, "write", _record_sizes(BoardDevice.write, written))
    with board_at("virtual:icebreaker:flash.bin", board.config) as device:
        result = program.run({"image": image}, on=device)
        golden = program.run({"image": image})
        assert sum(written) == sum(buffer.size for buffer in program.device_programs[0].buffers.values()
                                   if buffer.kind == "input")  # fmt: skip
        assert (device.transfer.written, device.transfer.kept) == (0, 0)
        assert np.array_equal(result.outputs["logits"], golden.outputs["logits"])
        values = program.device_programs[0].areas.values_bytes
        assert result.memory == golden.memory[-values:]
        model = board_model(board, board.config, board.clock, flash=True)
        cycles = program.run({"image": image}, on=model, memory=False).report["cycles"]
        assert cycles == pytest.approx(result.report["cycles"], rel=0.001)
        other = weft.compile(small(), "icebreaker")
        inputs = feeds(small(), np.random.default_rng(1))
        outputs, expected = other.run(inputs, on=device).outputs, other.run(inputs).outputs
        assert all(np.array_equal(outputs[name], value) for name, value in expected.items())
        loaded = device.transfer.written + device.transfer.kept
        assert loaded > len(other.device_programs[0].code)
        rows = np.zeros((1, 1024), np.float32)
        builder = Builder(np.random.default_rng(0))
        large = weft.compile(builder.finish(builder.dense(builder.input(rows.shape), 512)), "icebreaker")
        needs = large.device_programs[0].areas.memory_bytes
        with pytest.raises(weft.InputError) as refused:
            large.run(dict.fromkeys(large.inputs, rows), on=device)
        assert str(refused.value) == (
            f"the program needs {needs} bytes of memory, the device has 131072: the board's flash holds other "
            "programs; write this program's code and weights there with weft flash --board icebreaker --program FOLDER"
        )


def test_program_is_copied_from_flash_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The board copies its flash at power-up, so nothing is sent. After a flipped bit the host resends the missing
    part."""
    monkeypatch.chdir(tmp_path)
    board, model = registry.find(ULX3S), small()
    config = board.config
    program = weft.compile(model, config, memory=board.name)
    program.save("program")
    content = bytearray(flash_image(program, board))
    Path("good.bin").write_bytes(content)
    content[random.Random(4).randrange(8, 4096)] ^= 0x10
    Path("bad.bin").write_bytes(content)
    size = len(Image(program.device_programs[0]).read_only)
    np.savez("in.npz", **feeds(model, np.random.default_rng(1)))
    arguments = ["run", "program", "--input", "in.npz", "--on", "board", "--report", "r.json", "--port"]
    for name, fault, uploaded in (
        ("good", "", 0),
        ("bad", f"the program in the flash of {ULX3S} is damaged", size),
    ):
        assert _exit_code([*arguments, f"virtual:{board.name}:{name}.bin"]) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[-1] == "mismatching bytes: 0"
        link = json.loads(Path("r.json").read_text())["link"]
        assert (link["written_bytes"], link["kept_bytes"]) == (uploaded, size - uploaded)
        assert link["flash_fault"].startswith(fault)
        assert (f"warning: {fault}" in captured.err) == bool(fault)


def _record_sizes(write: Callable[..., None], sizes: list[int]) -> Callable[..., None]:
    """Wrap a device's `write` to record the sizes written."""

    def record_size(self: BoardDevice, address: int, payload: bytes) -> None:
        sizes.append(len(payload))
        write(self, address, payload)

    return record_size


def test_flash_images_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate((15 << 20) + 1)
    wrong = {
        f"icebreaker:{tmp_path}/none": "there is no file ",
        f"icebreaker:{tmp_path}": "there is no file ",
        f"icebreaker:{large}": f"{large} has 15,728,641 bytes, and the flash of icebreaker has room for 15,728,640",
        f"ulx3s-12f:{large}": f"{large} has 15,728,641 bytes, and the flash of ulx3s-12f has room for 14,680,064",
    }
    for port, message in wrong.items():
        own = registry.find(port.partition(":")[0]).config
        with pytest.raises(DeviceError) as refused, board_at(f"virtual:{port}", own):
            pass
        assert str(refused.value).startswith(message)


def test_simulated_board_refuses_programs_of_another_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is that of a real board, before anything is built; a configuration that does not fit is refused
    too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(virtual, "build_board", pytest.fail)
    weft.compile(digits.model(), config="icebreaker").save("program")
    np.savez("in.npz", image=digits.held_out()[0][:1])
    run = ["run", "program", "--input", "in.npz", "--on", "board", "--port"]
    own, other = (registry.find(name).config for name in ("icebreaker", "ulx3s-85f"))
    refusals = {
        "virtual:ulx3s-85f": (
            "the board ulx3s-85f at virtual:ulx3s-85f is built for configuration ulx3s-85f "
            f"(digest {other.digest:#010x}), "
            f"the program is for configuration icebreaker (digest {own.digest:#010x}): compile for the board or flash"
        ),
        "virtual:ulx3s-85f@tiny": "the board ulx3s-85f at virtual:ulx3s-85f@tiny is built for configuration tiny ",
        "virtual:icebreaker@tiny": "configuration field 'probability_bits' must be 7 or 0 for ice40, ",
        "virtual:ulx3s-12f@ulx3s-85f": "the configuration does not fit ulx3s-12f: it needs an estimated ",
        "virtual:icebreaker@none": "unknown configuration 'none'; choose a preset ",
    }
    for port, message in refusals.items():
        assert _exit_code([*run, port]) != 0
        (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        assert error.startswith(f"error: {message}")


def test_verilog_of_boards_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached by board, configuration and divisor. A board unknown to weft is generated each time."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    made = []

    def generate(component: object, *, name: str, comments: bool = False) -> str:
        made.append(component)
        return f"{name} {len(made)}"

    monkeypatch.setattr(virtual, "VirtualTop", type("Top", (), {"__init__": lambda self, *given: None}))
    for module in (virtual, verilog):
        monkeypatch.setattr(module, "generate", generate)
    board, other = (registry.find(name) for name in ("icebreaker", "tang-nano-9k"))
    config, changed = board.config, replace(board, flash=None)
    cases = [(board, config), (board, config.replace(queue_depth=8)), (other, config), (changed, config)]
    actual = [virtual.board_verilog(*case) for case in (*cases, *cases)]
    assert actual == [f"board {number}" for number in (1, 2, 3, 4, 1, 2, 3, 5)]
    monkeypatch.setattr(virtual, "DIVISOR", 8)
    assert virtual.board_verilog(board, config) == "board 6"
    monkeypatch.setattr(registry, "BOARDS", {})
    assert virtual.board_verilog(board, config) == "board 6"


def test_a_simulated_board_with_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(virtual, "VirtualBoard", lambda *given: built.append(given))
    config = PRESETS["tiny"]
    for port, flash in (("ulx3s-85f@tiny", None), ("ulx3s-85f@tiny:flash.bin", Path("flash.bin"))):
        with pytest.raises(TypeError), virtual.locate_board(f"virtual:{port}", None, config):
            pass
        assert built.pop() == (registry.find("ulx3s-85f"), config, flash)


LFE5U_25F = ("icepi-zero", "icesugar-pro", "ulx3s-25f")


def test_boards_with_an_lfe5u_25f_have_equal_verilog() -> None:
    """Each board has its own configuration. But for names their Verilog is equal, so one simulation covers all."""
    first, *others = map(registry.find, LFE5U_25F)
    tops = [
        virtual.board_verilog(board, board.config)
        for board in (first, *(replace(board, name=first.name) for board in others))
    ]
    assert tops == tops[:1] * len(tops)


@pytest.mark.long
def test_a_board_with_an_lfe5u_25f(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, model = registry.find(LFE5U_25F[0]), small()
    weft.compile(model, config=first.config).save("program")
    np.savez("in.npz", **feeds(model, np.random.default_rng(1)))
    arguments = ["run", "program", "--input", "in.npz", "--on", "board", "--port", f"virtual:{first.name}"]
    assert _exit_code(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mismatching bytes: 0"
    with board_at(f"virtual:{first.name}", first.config) as device:
        assert (device.identity.board, device.memory_bytes) == (first.name, 32 << 20)


def test_sdram_clock_phase_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The board picks the middle of the eye, or refuses before any transfer; then it copies the program from flash."""
    monkeypatch.chdir(tmp_path)
    board, model = registry.find("icepi-zero"), small()
    program = weft.compile(model, board.config, memory=board.name)
    program.save("program")
    np.savez("in.npz", **feeds(model, np.random.default_rng(1)))
    Path("image.bin").write_bytes(flash_image(program, board))
    run = ["run", "program", "--input", "in.npz", "--on", "board", "--port", f"virtual:{board.name}"]
    probe = ["probe", "--memory-test", "none", "--json", "--port", f"virtual:{board.name}"]
    first, width, capture = random.Random(5).randrange(PHASES), 6, 3
    library = virtual.build_board(board, board.config)
    monkeypatch.setattr(virtual, "build_board", lambda *given: library)
    monkeypatch.setattr(probe_command, "LINK_SECONDS", 0.001)
    moved = [Phase(0, lost=True)] * PHASES
    for at in range(width):
        moved[(first + at) % PHASES] = Phase(capture)

    monkeypatch.setattr(virtual, "VirtualBoard", partial(VirtualBoard, eye=moved))
    assert _exit_code([*run[:-1], f"{run[-1]}:image.bin", "--report", "report.json"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mismatching bytes: 0"
    assert json.loads(Path("report.json").read_text())["link"]["written_bytes"] == 0
    assert _exit_code(probe) == 0
    report = json.loads(capsys.readouterr().out)["sdram"]
    assert (report["state"], report["capture_cycles"], report["computed_capture_cycles"]) == (
        "found",
        capture,
        2,
    )
    degrees = [value // (360 / PHASES) for value in (*report["working_degrees"], report["chosen_degrees"])]
    computed = report["computed_degrees"] // (360 / PHASES) - PHASES // 2
    expected = [first, first + width - 1, first + (width - 1) // 2 + 1]
    assert degrees[:2] == [(at + computed) % PHASES for at in expected[:2]]
    assert degrees[2] in {(at + computed) % PHASES for at in (expected[2], expected[2] - 1)}

    sent: list[int] = []
    monkeypatch.setattr(BoardDevice, "write", _record_sizes(BoardDevice.write, sent))
    monkeypatch.setattr(virtual, "VirtualBoard", partial(VirtualBoard, eye=[Phase(0)] * PHASES))
    fault = (
        "the SDRAM of icepi-zero does not work at 80 MHz: it works in none of 16 phases of its "
        "clock; build with a lower clock (weft build --board icepi-zero --clock MHZ) and flash that"
    )
    assert _exit_code([*run[:-1], f"{run[-1]}:image.bin"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"error: {fault}; nothing was sent to it"
    assert sent == []
    assert _exit_code([*probe[:3], *probe[4:-1], f"{probe[-1]}:image.bin"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert fault in lines
    assert "flash: its program was not copied to memory, because the memory does not work" in lines


def test_states_persist_on_a_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """States equal those of the golden interpreter in every run."""
    monkeypatch.chdir(tmp_path)
    ring = Ring(taps=3, channels=4)
    weft.compile(ring.build(), registry.find("icebreaker").config).save("program")
    arguments = []
    for index, feed in enumerate(ring.feeds(3)):
        np.save(f"{index}.npy", feed)
        arguments += ["--input", f"{index}.npy"]
    board = ("--on", "board", "--port", "virtual:icebreaker")
    assert _exit_code(["run", "program", *arguments, *board, "--output", "board.npz"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mismatching bytes: 0"
    assert _exit_code(["run", "program", *arguments, "--output", "golden.npz"]) == 0
    assert np.array_equal(np.load("board.npz")["y"], np.load("golden.npz")["y"])


def test_ports_without_a_board_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    weft.compile(digits.model(), config=registry.find("icebreaker").config).save("program")
    np.savez("in.npz", image=digits.held_out()[0][:1])
    arguments = ["run", "program", "--input", "in.npz", "--on", "board", "--port"]
    assert _exit_code([*arguments, "virtual:icecream"]) == 2
    assert "error: unknown board 'icecream'; choose icebreaker" in capsys.readouterr().err


def test_host_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that the terminal does not accept, or accepts in part, wait."""
    draw = random.Random(1)

    def write(file: int, data: bytes) -> int:
        if draw.random() < 0.5:
            raise BlockingIOError
        return os.write(file, data[: draw.randint(1, len(data))])

    monkeypatch.setattr(virtual, "os", types.SimpleNamespace(**vars(os) | {"write": write}))
    board = registry.find("icebreaker")
    with VirtualBoard(board, board.config) as simulated:
        port = Path(simulated.port)
        with board_at(str(port), board.config) as device:
            before = simulated.cycles
            payload = draw.randbytes(1500)
            device.write(0x100, payload)
            assert device.read(0x100, len(payload)) == payload
        # Ten bits a byte, in both directions.
        assert simulated.cycles - before > 2 * len(payload) * 10 * virtual.DIVISOR
        assert port.exists()
        simulated.close()
        assert not port.exists()


def test_violated_memory_timing_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualBoard, "violations", ["tRP", "tRCD"])
    config = registry.find("icebreaker").config
    message = "^the board broke rules of its memory chips: tRP, tRCD$"
    with pytest.raises(DeviceError, match=message), board_at("virtual:icebreaker", config):
        pass


@pytest.mark.drawn(1)
@pytest.mark.parametrize("core", CoreKind)
def test_memory_that_stops_answering_is_reported(core: CoreKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends, with a report of what waits, long before the host's timeout."""
    monkeypatch.setattr(virtual_top, "Top", deaf_top(DEAF))
    monkeypatch.setattr(polled, "PATIENCE", 200_000)
    board = replace(registry.find("icebreaker"), core=core, flash=None)
    config = board.config.replace(probability_bits=0)
    idle = {"LOAD is idle", "MM is idle", "VEC is idle", "STORE is idle"}
    deadlock = Vec(wait=1).encode() + bytes(64)
    hangs: dict[str, tuple[int, bytes, set[str]]] = {
        "load": (0x400, Load(offset=DEAF).encode() + bytes(64), {"LOAD waits for memory"}),
        "store": (0x400, Store(offset=DEAF).encode() + bytes(64), {"STORE waits for memory"}),
        "fetch": (DEAF - 64, Vec().encode(), {"the next instruction waits for memory"}),
    }
    if core is CoreKind.PIPELINED:  # the sequential core does not use semaphores
        hangs["deadlock"] = (0x400, deadlock, {"VEC waits for semaphore"})
    library = virtual.build_board(board, config)
    monkeypatch.setattr(virtual, "build_board", lambda *given: library)
    for at, program, causes in hangs.values():
        with VirtualBoard(board, config) as simulated:
            device = BoardDevice.open(simulated.port, config, baud=board.baud, timeout=5.0, test_memory=False)
            device.write(at, program)
            device.start(at)
            before = simulated.cycles
            with pytest.raises(DeviceError, match=r"^the program hangs: ") as error:
                device.wait()
            message = set(str(error.value).removeprefix("the program hangs: ").split(", "))
            assert message - idle == causes
            assert simulated.cycles - before < 3_000_000
            device.close()


def _exit_code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code


def _survives_failure(device: BoardDevice) -> None:
    """Interrupt an endless program while memory is busy; the device stays usable."""
    forever = Load(base=0, rows=4000, row_pitch=0, pixels=64, pitch=16, length=16, run=1024)
    device.write(0x8000, forever.encode() * 8 + Load(wait=1).encode())
    device.set_base(0, 0)
    device.start(0x8000)
    with pytest.raises(DeviceError):
        device.wait(timeout=5000)
