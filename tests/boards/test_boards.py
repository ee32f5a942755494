"""The boards: their numbers against the tools', their constraints, what a top component is given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from amaranth.hdl import Fragment, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import RATES, Board, MemoryKind
from weft.boards.build.build import elaborate
from weft.boards.build.flow import slow_link_notes
from weft.boards.build.tools import run
from weft.boards.bus.axi import AxiBridge
from weft.boards.bus.port import Arbiter
from weft.boards.errors import BoardError
from weft.boards.families.ecp5 import ECP5
from weft.boards.families.ecp5_sdram import pll
from weft.boards.families.family import GENERIC
from weft.boards.families.ice40 import ICE40
from weft.boards.flash.chip import spi_flash_pads
from weft.boards.registry import BOARDS, find, line_rates
from weft.boards.sdram.chip import sdram_pads
from weft.boards.sdram.controller import ReadWords, SdramController
from weft.boards.sdram.eye import CAS_LATENCY, arrival, best_eye
from weft.boards.top import Top
from weft.hdl.isa.config import Config
from weft.hdl.verilog import yosys_command

CONFIG = Config.load("tiny")
PINS = {
    "ulx3s-85f": {
        "clk25_0__io": "G2",
        "uart_0__rx__io": "M1",
        "uart_0__tx__io": "L4",
        "esp32_0__gpio0__io": "L2",
    },
    "icepi-zero": {"clk50_0__io": "M1", "uart_0__rx__io": "K16", "uart_0__tx__io": "K15"},
    "icesugar-pro": {"clk25_0__io": "P6", "uart_0__rx__io": "A9", "uart_0__tx__io": "B9"},
    "icebreaker": {"clk12_0__io": "35", "uart_0__rx__io": "6", "uart_0__tx__io": "9"},
    "tang-nano-9k": {"clk27_0__io": "52", "uart_0__rx__io": "18", "uart_0__tx__io": "17"},
    "tang-primer-20k": {"clk27_0__io": "H11", "uart_0__rx__io": "T13", "uart_0__tx__io": "M11"},
    "tang-primer-25k": {"clk50_0__io": "E2", "uart_0__rx__io": "B3", "uart_0__tx__io": "C3"},
}
LOCATION = re.compile(r'^(?:LOCATE COMP|set_io|IO_LOC) "?([\w\[\]]+)"? (?:SITE )?"?(\w+)', re.M)


class Echo(wiring.Component):
    """The smallest top component; with pads that do nothing, of SDRAM if `sdram`, and of a chip of flash if `flash`."""

    def __init__(self, sdram: bool = False, flash: bool = False, step: bool = False) -> None:
        chips = ({"sdram": Out(sdram_pads())} if sdram else {}) | (
            {"flash": Out(spi_flash_pads())} if flash else {}
        )
        super().__init__({"rx": In(1), "tx": Out(1)} | chips | ({"sdram_step": Out(1)} if step else {}))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.tx.eq(self.rx)
        if hasattr(self, "sdram"):
            m.d.sync += [self.sdram.dq_o.eq(self.sdram.dq_i), self.sdram.a.eq(self.sdram.dq_i)]
        if hasattr(self, "sdram_step"):
            m.d.sync += self.sdram_step.eq(self.rx)
        if hasattr(self, "flash"):
            m.d.sync += [self.flash.clk.eq(self.flash.dq_i[0]), self.flash.dq_o.eq(self.flash.dq_i[1])]
        return m


def constraints(board: Board, top: Echo) -> str:
    design = elaborate(board, CONFIG, board.clock, lambda *given: top)
    return next(text for name, text in design.files.items() if not name.endswith(".il"))


@pytest.mark.parametrize("name", PINS)
def test_pins_and_clocks_are_constrained(name: str) -> None:
    text = constraints(BOARDS[name], Echo())
    assert dict(LOCATION.findall(text)) == PINS[name]
    board = BOARDS[name]
    if board.family is ECP5:
        clock, *_ = PINS[name]
        assert f'FREQUENCY PORT "{clock}" {clock[3:5]}000000.0 HZ;' in text
    if board.family is ICE40:
        assert "set_frequency clk12_0__io 12.0" in text
        assert f"set_frequency clk {1e3 / (1e9 / board.clock - 2.4):.3f}" in text


@pytest.mark.parametrize(
    ("name", "clk", "dq"),
    [("ulx3s-85f", "F19", "J16"), ("icepi-zero", "A3", "B16"), ("icesugar-pro", "R15", "F16")],
)
def test_all_pads_of_the_sdram_are_constrained(name: str, clk: str, dq: str) -> None:
    pins = dict(LOCATION.findall(constraints(BOARDS[name], Echo(sdram=True))))
    pads = {pad.split("[")[0] for pad in pins if pad.startswith("sdram")}
    names = ("clk", "clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm", "dq")
    assert pads == {f"sdram_0__{name}__io" for name in names}
    assert sum(pad.startswith("sdram") for pad in pins) == 1 + 1 + 4 + 2 + 13 + 2 + 16
    assert (pins["sdram_0__clk__io"], pins["sdram_0__dq__io[0]"]) == (clk, dq)
    assert len(set(pins.values())) == len(pins)


@pytest.mark.parametrize("clock", [25e6, 50e6, 70e6, 80e6, 100e6])
@pytest.mark.parametrize(("name", "source"), [("ulx3s-85f", 25e6), ("icepi-zero", 50e6)])
def test_the_sdram_gets_a_shifted_clock(name: str, source: float, clock: float) -> None:
    made = elaborate(BOARDS[name], CONFIG, clock, lambda *given: Echo(sdram=True))
    design, phase = made.files["top.il"], best_eye(made.clock).phase
    assert "cell \\EHXPLLL" in design
    ratio = [int(re.search(rf"\\{name}_DIV [\w']*?(\d+)$", design, re.M)[1]) for name in ("CLKFB", "CLKI")]
    assert source * ratio[0] / ratio[1] == pytest.approx(clock, rel=0.005)
    first, second = (
        int(re.search(rf"\\{name}_CPHASE [\w']*?(\d+)$", design, re.M)[1]) for name in ("CLKOP", "CLKOS")
    )
    divider = int(re.search(r"\\CLKOS_DIV [\w']*?(\d+)$", design, re.M)[1])
    fine = int(re.search(r"\\CLKOS_FPHASE [\w']*?(\d+)$", design, re.M)[1])
    assert (second - first + fine / 8) / divider * 360 == pytest.approx(phase, abs=45 / divider / 2)
    assert made.eye is not None
    assert made.eye.min_margin == pytest.approx(best_eye(made.clock).min_margin, abs=0.2)


def test_boards_that_calibrate_can_move_the_phase() -> None:
    """As in ecppll (see test_pll): the second output, to later phases."""
    board = BOARDS["ulx3s-85f"]
    for step in (False, True):
        design = elaborate(board, CONFIG, board.clock, lambda *given, step=step: Echo(sdram=True, step=step))
        cell = design.files["top.il"].split("cell \\EHXPLLL")[1].split("\n  end\n")[0]
        assert re.search(r'\\DPHASE_SOURCE "(\w+)"', cell)[1] == ("ENABLED" if step else "DISABLED")
        ports = dict(re.findall(r"connect \\(PHASE\w+) (.*)", cell))
        constant = {name for name, value in ports.items() if re.fullmatch(r"\d+'\d+", value)}
        assert constant == ports.keys() - ({"PHASESTEP"} if step else set())
        if step:
            assert {name: int(value[2:]) for name, value in ports.items() if name in constant} == {
                "PHASESEL0": 0, "PHASESEL1": 0, "PHASEDIR": 0, "PHASELOADREG": 0,
            }  # fmt: skip


@pytest.mark.parametrize("clock", [25e6, 60e6, 62e6, 80e6, 133e6])
def test_the_controller_takes_words_when_the_phase_brings_them(
    clock: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.boards.top.SdramController", lambda *given, capture, sweep: capture)
    top: Any = SimpleNamespace(config=CONFIG, board=BOARDS["ulx3s-85f"], clock=clock, fabric=GENERIC)
    assert Top._memory(top) == arrival(clock, pll(25e6, clock).phase) - CAS_LATENCY + 1


def test_a_clock_that_the_sdram_cannot_have_is_refused() -> None:
    with pytest.raises(
        BoardError, match=r"^the SDRAM cannot run at 150 MHz: .* nearest clock .* is 142 MHz$"
    ):
        elaborate(BOARDS["ulx3s-85f"], CONFIG, 150e6, lambda *given: Echo(sdram=True))


def test_pads_that_must_not_float_are_held(tmp_path: Path) -> None:
    """The ESP32 of a ULX3S restarts the board when its pin 0 is low."""
    assert {board.name: board.driven_pads for board in BOARDS.values() if board.driven_pads} == {
        f"ulx3s-{kind}": (("esp32", "gpio0", 1),) for kind in ("12f", "25f", "45f", "85f", "85f-lm")
    }
    board = BOARDS["ulx3s-85f"]
    design = elaborate(board, CONFIG, board.clock, lambda *given: Echo())
    (tmp_path / "top.il").write_text(design.files["top.il"])
    commands = ("read_rtlil top.il", "hierarchy -top top", "proc", "flatten", "opt", "write_json top.json")
    run("yosys", yosys_command(*commands), tmp_path)
    top = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]
    pad = top["ports"]["esp32_0__gpio0__io"]["bits"]
    drivers = [cell for cell in top["cells"].values() if cell["connections"].get("O") == pad]
    assert [driver["connections"]["I"] for driver in drivers] == [["1"]]
    assert [driver["connections"].get("T", ["0"]) for driver in drivers] == [["0"]]


@pytest.mark.parametrize(
    ("name", "pads"),
    [
        ("ulx3s-85f", {"cs": "R2", "dq[0]": "W2", "dq[1]": "V2", "wp": "Y2", "hold": "W1"}),
        ("icepi-zero", {"cs": "N8", "dq[0]": "T8", "dq[1]": "T7", "wp": "M7", "hold": "N7"}),
        ("icesugar-pro", {"cs": "N8", "dq[0]": "T8", "dq[1]": "T7", "wp": "M7", "hold": "N7"}),
    ],
)
def test_the_flash_that_holds_the_bitstream(name: str, pads: dict[str, str], tmp_path: Path) -> None:
    """Its clock goes through the ECP5's cell for that, and what would put it on hold is high."""
    board = BOARDS[name]
    design = elaborate(board, CONFIG, board.clock, lambda *given: Echo(flash=True))
    found = dict(LOCATION.findall(design.files["top.lpf"]))
    prefix = "configuration_flash_0__"
    assert {pad.removeprefix(prefix): site for pad, site in found.items() if pad.startswith(prefix)} == {
        f"{pad.split('[')[0]}__io{pad[len(pad.split('[')[0]) :]}": site for pad, site in pads.items()
    }
    (tmp_path / "top.il").write_text(design.files["top.il"])
    commands = (
        "read_rtlil top.il",
        "read_verilog -lib +/lattice/cells_bb_ecp5.v",
        "hierarchy -top top",
        "proc",
        "flatten",
        "opt",
        "write_json top.json",
    )
    run("yosys", yosys_command(*commands), tmp_path)
    top = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]
    placed = list(top["cells"].values())
    (clock,) = (cell["connections"] for cell in placed if cell["type"] == "USRMCLK")
    assert clock["USRMCLKTS"] == ["0"]
    (level,) = (cell for cell in placed if cell["connections"].get("Q") == clock["USRMCLKI"])
    assert "dff" in level["type"]
    for off in ("wp", "hold"):
        pad = top["ports"][f"{prefix}{off}__io"]["bits"]
        (driver,) = (cell["connections"] for cell in placed if cell["connections"].get("O") == pad)
        assert (driver["I"], driver.get("T", ["0"])) == (["1"], ["0"])


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_serial_link_is_within_two_per_cent_at_every_clock(board: Board) -> None:
    """And it is the fastest that is: for no higher rate is there a divisor."""
    for clock in (*range(3_125_000, 20_000_000, 62_500), *range(20_000_000, 200_000_001, 500_000)):
        line = board.line(clock)
        assert line.baud in RATES
        assert abs(clock / line.divisor / line.baud - 1) <= 0.02
        assert 4 <= line.divisor == board.divisor(clock) < 1 << 16
        for rate in RATES:
            if line.baud < rate <= board.baud:
                near = {max(4, count) for count in (clock // rate, clock // rate + 1)}
                assert all(abs(clock / divisor / rate - 1) > 0.02 for divisor in near)


@pytest.mark.parametrize("clock", [10, 17, 19, 20, 22, 25, 28, 31, 34, 37, 38, 41])
def test_a_rate_that_a_clock_does_not_make_is_not_taken(clock: int) -> None:
    board = BOARDS["ulx3s-25f"]
    line = board.line(clock * 1e6)
    assert line.baud < board.baud == 3_000_000
    assert slow_link_notes(board, clock * 1e6) == [
        f"the serial link runs at {line.baud:,} baud: {clock} MHz does not make 3,000,000 within 2%"
    ]


def test_a_clock_without_any_rate_is_refused() -> None:
    with pytest.raises(BoardError, match=r"^at 0.19 MHz icebreaker makes no baud rate up to 1,500,000"):
        BOARDS["icebreaker"].line(190e3)


def test_rates_to_try_begin_with_the_boards_own() -> None:
    for board in BOARDS.values():
        rates = line_rates(board.config)
        own = sorted({other.baud for other in BOARDS.values() if other.config == board.config}, reverse=True)
        assert board.baud in own
        assert rates[: len(own)] == own
        assert sorted(rates) == sorted(RATES)
    every = {board.baud for board in BOARDS.values()}
    assert set(line_rates(CONFIG)[: len(every)]) == every


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_can_do_what_it_says(board: Board) -> None:
    board.family.fabric.multipliers.check(board.config)
    source = board.platform().default_clk_frequency
    assert board.pll(source, board.clock).output == pytest.approx(board.clock, rel=0.005)
    assert board.line(board.clock).baud == board.baud
    assert slow_link_notes(board, board.clock) == []
    words = board.memory.size // board.config.bus_bytes
    assert words & (words - 1) == 0
    if board.memory.kind is MemoryKind.BLOCK:
        assert board.memory.size * 8 < board.available.ram * 18 * 1024
    assert find(board.name) is board


def test_refusal_of_an_unknown_board_lists_all_boards() -> None:
    with pytest.raises(BoardError, match=r"^unknown board 'arty'; choose icebreaker, .*, ulx3s-85f-lm$"):
        find("arty")


def test_optional_units_that_boards_have() -> None:
    """From docs/boards.md: a change of a preset must not change a board's hardware."""
    kernels = {name: board.config.kernel for name, board in BOARDS.items() if board.config.kernel}
    assert kernels == dict.fromkeys(("tang-primer-20k", "tang-primer-25k", "ulx3s-85f-lm"), 256)
    taps = {
        name: board.config.depthwise_taps for name, board in BOARDS.items() if board.config.depthwise_taps
    }
    assert taps == {"ulx3s-85f": 3}
    without = {name for name, board in BOARDS.items() if not board.config.lookup_tables}
    assert (
        without
        == {"ulx3s-45f", "ulx3s-85f"}
        == {name for name, board in BOARDS.items() if not board.config.multiply}
    )


@pytest.fixture
def build_components(monkeypatch: pytest.MonkeyPatch) -> dict[type, Any]:
    """Return the last component of each of these classes."""
    components: dict[type, Any] = {}

    def spy(kind: type) -> None:
        original = kind.__init__

        def init(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            components[kind] = self

        monkeypatch.setattr(kind, "__init__", init)

    for kind in (SdramController, ReadWords, AxiBridge, Arbiter):
        spy(kind)
    return components


@pytest.mark.parametrize("clock", [25e6, 66e6, 80e6, 130e6])
def test_the_cycle_model_has_the_boards_sdram(clock: float, build_components: dict[type, Any]) -> None:
    board = find("ulx3s-12f")
    sdram = board.sdram(clock)
    assert sdram is not None
    Fragment.get(Top(board, board.config, clock, 400, board.family.fabric), None)
    controller = build_components[SdramController]
    for name in ("rcd", "rp", "ras", "rc", "rrd", "rfc", "wr", "refresh"):
        assert getattr(sdram, name) == getattr(controller.cycles, name), name
    assert 2 << (sdram.row_bits + sdram.column_bits + 2) == controller.size == board.memory.size
    assert (sdram.row_bits, sdram.column_bits) == (controller.row_bits, controller.column_bits)
    assert sdram.cas_latency == controller.cas_latency
    assert controller.calibrator is not None
    begins = controller.calibrator.signature.members["late"].init
    assert sdram.read_latency == build_components[ReadWords].latency + begins
    assert (sdram.pieces, sdram.commands) == (
        build_components[AxiBridge].pieces,
        build_components[Arbiter].commands,
    )


def test_boards_without_sdram() -> None:
    for board in BOARDS.values():
        assert (board.sdram(board.clock) is None) == (board.memory.kind is not MemoryKind.SDRAM), board.name


def test_a_clock_that_the_sdram_cannot_have() -> None:
    with pytest.raises(BoardError, match=r"^the SDRAM cannot run at 300 MHz: "):
        find("ulx3s-85f").sdram(300e6)
