"""The generated Verilog is clean for other people's tools, and says what the netlist says."""

from __future__ import annotations

import gc
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from fuzz.configurations import random_configuration

import weft
from weft.hdl.errors import PrefixError, YosysError
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.verilog import check_prefix, generate, run_yosys
from weft.sim.rtl.library import core_verilog
from weft.sim.verilate import verilator_root

CONFIGS = {
    "tiny": PRESETS["tiny"],
    "small": PRESETS["small"],
    "default": PRESETS["default"],
    "default with kernels": PRESETS["default"].replace(kernel=64),
    "one lane with kernels": PRESETS["tiny"].replace(n=2, lanes=1, lookup_tables=0, kernel=16),
    "all lanes at once": PRESETS["tiny"].replace(
        n=2, lanes=2, lookup_tables=0, kernel=0, multiply=0, probability_bits=0, depthwise_taps=0
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_verilator_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    """Lint with Verilator's default warnings and no waiver, in the file or outside."""
    lint(CONFIGS[name], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_verilator_has_nothing_to_say_of_any(seed: int, tmp_path: Path) -> None:
    lint(random_configuration(np.random.default_rng(seed), sequential=False), tmp_path)


def lint(config: Config, tmp_path: Path) -> None:
    text = core_verilog(config)
    assert "lint_off" not in text
    (tmp_path / "weft.v").write_text(text)
    process = subprocess.run(
        [
            verilator_root() / "bin" / "verilator_bin",
            "--lint-only",
            "--quiet",
            "--top-module",
            "weft",
            "weft.v",
        ],
        cwd=tmp_path,
        env=os.environ | {"VERILATOR_ROOT": str(verilator_root())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout + process.stderr) == (0, "")


@pytest.mark.long
def test_yosys_synthesises_for_ecp5(tmp_path: Path) -> None:
    """Synthesis of the whole core; the array's multipliers become DSPs and the memories block RAMs."""
    (tmp_path / "weft.v").write_text(core_verilog(PRESETS["tiny"]))
    log = run_yosys("read_verilog weft.v", "synth_ecp5 -top weft", "stat", cwd=tmp_path)
    stat = log[log.rindex("Printing statistics") :]
    assert "MULT18X18D" in stat
    assert "DP16KD" in stat
    assert "$mul" not in stat


class Broken(wiring.Component):
    def __init__(self) -> None:
        super().__init__({"out": Out(1)})

    def elaborate(self, platform: object) -> Module:
        assert not gc.isenabled()
        raise ZeroDivisionError


def test_garbage_collection_resumes_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        generate(Broken(), name="broken")
    assert gc.isenabled()


def test_yosys_errors_carry_the_log(tmp_path: Path) -> None:
    with pytest.raises(YosysError, match=r"(?s)^yosys failed: .*nowhere\.il"):
        run_yosys("read_rtlil nowhere.il", cwd=tmp_path)


class Mixed(wiring.Component):
    """Operands of all widths and signs, whose meaning `weft.hdl.isa.encoding` must keep."""

    def __init__(self) -> None:
        super().__init__({"a": In(signed(5)), "b": In(9), "c": In(3), "out": Out(160)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b, c = self.a, self.b, self.c
        results = [
            a + b, a - c, a * b, a & b, a | b, a ^ c, ~a, -a, -b, a == b, a < b, a >= c, b > c, b <= 511, c >= 0,
            ~b.any(), a >> c, b >> c, (b << c)[:9], b.bit_select(c, 4), a.as_unsigned() == 31, (a + 1)[2:],
            b.word_select(c, 2),
        ]  # fmt: skip
        wide = [Signal(len(result), name=f"r{index}") for index, result in enumerate(results)]
        m.d.comb += [signal.eq(result) for signal, result in zip(wide, results, strict=True)]
        m.d.comb += self.out.eq(Cat(*wide))
        return m


def test_widening_keeps_the_meaning(tmp_path: Path) -> None:
    """A proof: the netlist before and after is equivalent."""
    from amaranth.back import rtlil

    (tmp_path / "before.il").write_text(rtlil.convert(Mixed(), name="before", emit_src=False))
    (tmp_path / "after.v").write_text(generate(Mixed(), name="after"))
    run_yosys(
        "read_rtlil before.il",
        "read_verilog after.v",
        "proc",
        "miter -equiv -flatten -make_outputs before after miter",
        "sat -verify -prove trigger 0 -set-def-inputs miter",
        cwd=tmp_path,
    )


def test_two_configurations_in_one_design(tmp_path: Path) -> None:
    """Verilator elaborates cores with different prefixes side by side; with one prefix they collide."""
    small, _ = weft.verilog("icebreaker", prefix="left_")
    other, description = weft.verilog("tang-nano-9k", prefix="right_")
    assert description["module"] == "right_weft"
    assert set(re.findall(r"^module \\?([^\s.(]+)", small + other, re.MULTILINE)) == {
        "left_weft",
        "right_weft",
    }
    top = "module top(input clk, input rst);\n  left_weft left(.clk(clk), .rst(rst));\n"
    top += "  right_weft right(.clk(clk), .rst(rst));\nendmodule\n"
    (tmp_path / "top.v").write_text(top + small + other)
    assert "%Error" not in elaborate("top", tmp_path)
    (tmp_path / "top.v").write_text(top + small + other.replace("right_", "left_"))
    assert "%Error" in elaborate("top", tmp_path)


def elaborate(top: str, folder: Path) -> str:
    return subprocess.run(
        [
            verilator_root() / "bin" / "verilator_bin",
            "--lint-only",
            "-Wno-fatal",
            "--top-module",
            top,
            "top.v",
        ],
        cwd=folder,
        env=os.environ | {"VERILATOR_ROOT": str(verilator_root())},
        capture_output=True,
        text=True,
        check=False,
    ).stderr


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("9a", "the prefix '9a' cannot begin a Verilog identifier: use letters, digits and underscores"),
        *(
            (text, "cannot begin a Verilog identifier")
            for text in ("a.b", "a b", "\\a", "é", "a$", "a\n", "-", "a;")
        ),
        ("a" * 65, "has 65 characters: use at most 64"),
        (b"a", "a prefix of module names is a str, not bytes"),
    ],
)
def test_prefixes_that_are_refused(prefix: str, message: str) -> None:
    with pytest.raises(PrefixError, match=re.escape(message)):
        weft.verilog("tiny", prefix=prefix)


@pytest.mark.parametrize("prefix", ["", "a", "_", "A9_", "a" * 64])
def test_prefixes_that_are_accepted(prefix: str) -> None:
    check_prefix(prefix)
