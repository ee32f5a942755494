"""AXI allows no path from an input of a port to an output but through a register: no core has any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from closure.cores import CORES
from fuzz.configurations import random_configuration
from support.configurations import every
from support.input_paths import outputs_that_follow_inputs
from support.mostly_long import mostly_long

from weft.boards.families.family import GENERIC
from weft.boards.registry import BOARDS
from weft.boards.top import Top
from weft.hdl.isa.config import Config
from weft.hdl.sequential.core import check_config
from weft.hdl.verilog import generate
from weft.sim.rtl.library import core_verilog

LARGEST = 16
"""Ports do not know how large the array is: instead of larger ones, arrays of this size are looked at."""


class Paths(wiring.Component):
    """Outputs of all kinds, with and without a register between them and `a`."""

    def __init__(self) -> None:
        names = ("gated", "looked_up", "direct", "registered", "read")
        super().__init__({"a": In(4), "b": In(4), **{name: Out(4) for name in names}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.inner = inner = Module()
        m.submodules.memory = memory = Memory(shape=4, depth=16, init=range(16))
        asynchronous, synchronous = memory.read_port(domain="comb"), memory.read_port()
        inner.d.comb += self.gated.eq(self.b & self.registered)
        m.d.comb += [asynchronous.addr.eq(self.a), synchronous.addr.eq(self.a)]
        m.d.comb += [
            self.looked_up.eq(asynchronous.data + 1),
            self.read.eq(synchronous.data),
            self.direct.eq(self.a),
        ]
        m.d.sync += self.registered.eq(self.a)
        return m


def test_finds_paths(tmp_path: Path) -> None:
    found = outputs_that_follow_inputs(generate(Paths(), name="weft"), tmp_path)
    assert found == {"gated", "looked_up", "direct"}


def small(config: Config, sequential: bool) -> Config:
    """Return a configuration with an array of `LARGEST` at most, without features that the core lacks."""
    if config.n > LARGEST:
        bus = LARGEST * config.bus_bytes // config.n
        config = config.replace(n=LARGEST, lanes=min(config.lanes, LARGEST), bus_bytes=bus)
    if sequential:
        config = config.replace(loops=0, descriptors=0, depthwise_taps=0, int4=min(config.int4, 1))
        check_config(config)
    return config


def check(config: Config, folder: Path, *, sequential: bool) -> None:
    verilog = core_verilog(small(config, sequential), sequential=sequential)
    assert not outputs_that_follow_inputs(verilog, folder)


BOTH = pytest.mark.parametrize("sequential", [False, True], ids=["pipelined", "sequential"])


@BOTH
@pytest.mark.parametrize("name", ["full", "small"])
def test_cores_with_every_unit_and_with_few(name: str, sequential: bool, tmp_path: Path) -> None:
    check(CORES["sequential" if sequential else "pipelined"][name].config, tmp_path, sequential=sequential)


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("name", every())
def test_every_configuration(name: str, sequential: bool, tmp_path: Path) -> None:
    check(every()[name], tmp_path, sequential=sequential)


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_any_configuration(seed: int, sequential: bool, tmp_path: Path) -> None:
    config = random_configuration(np.random.default_rng(seed), sequential=sequential)
    check(config, tmp_path, sequential=sequential)


@pytest.mark.parametrize("name", mostly_long(BOARDS, list(BOARDS).index("icebreaker")))
def test_tops_of_boards(name: str, tmp_path: Path) -> None:
    """Pads have a register each way."""
    board = BOARDS[name]
    top = Top(board, CORES["sequential"]["small"].config, board.clock, 8, GENERIC)
    assert not outputs_that_follow_inputs(generate(top, name="weft"), tmp_path)
