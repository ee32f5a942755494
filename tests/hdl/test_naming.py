"""Names in the generated Verilog: those of units, ports and signals, without numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import convert_named, generate, run_yosys
from weft.sim.rtl.library import core_verilog

LARGE = ("large", "xlarge")
CORES = {
    **{name: (config, False) for name, config in PRESETS.items() if name not in (*LARGE, "huge")},
    **{name: (board.config, board.core is CoreKind.SEQUENTIAL) for name, board in BOARDS.items()},
}
INTERMEDIATE = r"\$\d+(\$whole)?|\$(procmux|auto\$)\S*|_\d+_"
"""Results of expressions, which have no name in the sources, and registers that Yosys puts into memories."""
DECLARATION = re.compile(
    r"^ *(?:input|output|wire|reg|module) (?:reg |wire )?(?:signed )?(?:\[[^]]*\] )?\\?([^\s;(]+)",
    re.MULTILINE,
)
# Words that begin directives to tools in comments.
DIRECTIVE = re.compile(r"^// *(verilator|synthesis|synopsys|pragma|translate|cadence)\b", re.MULTILINE)


def unnamed_declarations(verilog: str) -> set[str]:
    """Return the names of declarations with a ``$``, except for intermediate results."""
    names = set(DECLARATION.findall(verilog))
    assert len(names) > 500
    return {name for name in names if "$" in name and not re.fullmatch(INTERMEDIATE, name)}


@pytest.mark.parametrize("name", CORES)
def test_no_name_is_made_up(name: str) -> None:
    config, sequential = CORES[name]
    assert unnamed_declarations(core_verilog(config, sequential=sequential)) == set()


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_no_name_of_a_large_core_is_made_up(name: str) -> None:
    """Look at the RTLIL, because Verilog takes minutes. Preset huge differs from xlarge only in sizes."""
    text, _ = convert_named(Core(PRESETS[name]), name="weft")
    names = re.findall(r"^(?:  (?:wire|cell|memory) .*|module )\\(\S+)$", text, re.MULTILINE)
    assert len(names) > 5000
    assert [name for name in names if "$" in name] == []


class Inner(wiring.Component):
    """Unit with a register.

    Its second paragraph is not part of the comment.
    """

    def __init__(self) -> None:
        super().__init__({"start": In(1), "value": In(8), "busy": Out(1), "low": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = Signal(8)
        m.d.sync += [self.busy.eq(self.start), count.eq(count + self.value)]
        m.d.comb += self.low.eq(count[:4])
        return m


class Outer(wiring.Component):
    """Two units whose ports have equal names."""

    def __init__(self) -> None:
        super().__init__({"start": In(1), "value": In(8), "busy": Out(1), "low": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.first = first = Inner()
        m.submodules.second = second = Inner()
        above = Signal(4)
        below = Signal(4)
        m.d.sync += [above.eq(self.value[:4]), below.eq(~above)]
        m.d.comb += [first.start.eq(self.start), second.start.eq(first.busy), self.busy.eq(second.busy)]
        m.d.comb += [first.value.eq(self.value), second.value.eq(Cat(below, above))]
        m.d.comb += self.low.eq(first.low + second.low)
        return m


def test_signals_are_named_after_members_and_submodules() -> None:
    text = generate(Outer(), name="outer")
    assert "port$" in rtlil.convert(Outer(), name="outer")
    modules = {
        part.split("(")[0].strip(): part for part in re.split(r"^module \\?", text, flags=re.MULTILINE)
    }
    names = {
        name: set(DECLARATION.findall(modules[name])) for name in ("outer", "outer.first", "outer.second")
    }
    names = {name: {item for item in found if "$" not in item} for name, found in names.items()}
    own = {"clk", "rst", "start", "value", "busy", "low", "above", "below"}
    assert names["outer"] == own | {"second_start", "first_low", "second_low"}
    assert names["outer.first"] == {"clk", "rst", "start", "value", "busy", "low", "count"}
    # The value comes from two registers, so that it enters by two ports.
    assert names["outer.second"] == names["outer.first"] | {"value_3_0", "value_7_4"}


class Crowded(Outer):
    """Units of which one has the name that another one's port would get."""

    def elaborate(self, platform: object) -> Module:
        m = super().elaborate(platform)
        m.submodules.first_low = third = Inner()
        m.d.comb += third.start.eq(self.start & third.low.any())
        return m


def test_signals_and_submodules_have_different_names(tmp_path: Path) -> None:
    (tmp_path / "crowded.v").write_text(generate(Crowded(), name="crowded"))
    run_yosys(
        "read_verilog crowded.v", "hierarchy -check -top crowded", "proc", "check -assert", cwd=tmp_path
    )


def test_comments_say_what_modules_are() -> None:
    text = generate(Outer(), name="outer", comments=True)
    assert "// outer (Outer): Two units whose ports have equal names.\nmodule outer(" in text
    assert "// outer.second (Inner): Unit with a register.\nmodule \\outer.second (" in text
    assert re.sub(r"^//.*\n", "", text, flags=re.MULTILINE) == generate(Outer(), name="outer")


@pytest.mark.parametrize(
    ("config", "kind"), [(PRESETS["tiny"], Core), (BOARDS["icebreaker"].config, SequentialCore)]
)
def test_each_unit_has_a_comment(config: Config, kind: type[wiring.Component]) -> None:
    text = generate(kind(config), name="weft", comments=True)  # type: ignore[call-arg]
    heads = re.findall(r"^(// .*\n)?module", text, re.MULTILINE)
    assert len(heads) > 5
    assert all(heads)
    assert not DIRECTIVE.search(text)
