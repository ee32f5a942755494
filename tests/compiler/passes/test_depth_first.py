"""Chains that run strip by strip, and their savings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, random_convolutions, whole

from weft.boards.registry import BOARDS
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pad
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost
from weft.compiler.passes.depth_first import _Chains, depth_first
from weft.compiler.pipeline import PIPELINE
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

SMALL = PRESETS["small"]
WITHOUT = tuple(item for item in PIPELINE if item.run is not depth_first)


def conv(name: str, src: View, out: int, kernel: int = 1, kind: str = "temp", groups: int = 1) -> Conv:
    """With padding, so that the size stays."""
    window = Window((kernel, kernel), pad=(kernel // 2,) * 4)
    op = convolution(src, out, window, name=name, kind=kind)
    op = op.replace(
        weight=np.ascontiguousarray(op.weight[..., : op.weight.shape[3] // groups]), groups=groups
    )
    scale = np.full(out, 60 / (np.sqrt(op.weight[0].size) * 127 * 40))
    return dataclasses.replace(op, name=name, scale=scale, x_zero=5, y_zero=5)


def inverted_bottleneck(side: int = 40, channels: int = 8, kind: str = "output") -> tuple[Conv, Conv, Conv]:
    """Six times the channels between two products, as in MobileNetV2, and the input added at the end."""
    x = whole("x", (1, side, side, channels), "input")
    expand = conv("expand", x, 6 * channels)
    depthwise = conv("depthwise", expand.dst, 6 * channels, 3, groups=6 * channels)
    project = conv("project", depthwise.dst, channels, kind=kind)
    own = whole("project/m", project.dst.shape, "temp")
    return expand, depthwise, project.replace(epilogue=Add("sum", own, x, project.dst, 0.7, 0.6, 5, 5, 5))


def inputs(program: DeviceProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: rng.integers(-128, 128, program.input_shape(name)).astype(np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


def measure(program: DeviceProgram, config: Config, bandwidth: float) -> tuple[int, int]:
    """Cycles by the cycle model, and beats of the bus."""
    image = Image(program)
    device = TimingDevice(config, image.memory_bytes, latency=30, bandwidth=bandwidth)
    image.run(device, {})
    counters = device.counters()
    return counters[Counter.CYCLES], counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]


def chains(side: int = 40) -> _Chains:
    return _Chains(DeviceSegment("s", inverted_bottleneck(side)), Planner(Target(SMALL, 1.0)))


def test_a_chain_saves_cycles_and_a_tenth_of_the_traffic() -> None:
    """It runs in strips only if it takes no more cycles, and if the bus has less to do."""
    known = chains()
    assert not known.usual.resident
    cycles, traffic = (sum(item[at] for item in known.costs) for at in (0, 1))
    assert known._savings(0, 2, Cost(cycles - 100, traffic - 50)) == pytest.approx(105)
    assert known._savings(0, 2, Cost(cycles, traffic - 50)) == pytest.approx(5)
    assert known._savings(0, 2, Cost(cycles + 1, 0)) == 0
    assert known._savings(0, 2, Cost(1, traffic)) == 0
    assert known._savings(0, 2, Cost(cycles + 1, traffic + 1)) == 0


@pytest.mark.parametrize("side", [5, 17, 40])
def test_each_height_of_strips_is_looked_at_once(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def roughly(self: _Chains, first: int, chain: object, rows: int) -> Cost:
        seen.append(rows)
        return Cost(0, 0)

    monkeypatch.setattr(_Chains, "_estimate", roughly)
    actual = chains(side)._heights(0, 2)
    assert seen == sorted(set(seen), reverse=True)
    assert (seen[0], seen[-1]) == (-(-side // 2), 1)
    assert [item.height for item in actual] == seen[:2]


def test_strips_keep_large_values_on_chip() -> None:
    """An expansion of 77 KB on a scratchpad of 32 KB, behind a memory of 1 byte a cycle."""
    ops = inverted_bottleneck()
    strips, plain = (
        compile_segment(DeviceSegment("s", ops), SMALL, bandwidth=1.0, passes=passes)
        for passes in (PIPELINE, WITHOUT)
    )
    compare(strips, DeviceSegment("s", ops), inputs(strips), SMALL, temps=False)
    assert set(strips.buffers) == {"x", "project"}
    cycles, beats = measure(strips, SMALL, 1.0)
    before, moved = measure(plain, SMALL, 1.0)
    assert cycles < 0.5 * before
    assert beats < 0.4 * moved


def test_a_chain_is_a_layer() -> None:
    """Its multiplications are those of the model; what strips compute again does not count."""
    ops = inverted_bottleneck()
    program = compile_segment(DeviceSegment("s", ops), SMALL, bandwidth=1.0)
    (layer,) = program.layers
    assert (layer.name, layer.macs) == ("expand .. project", sum(op.macs for op in ops))
    assert layer.written_bytes == 40 * 40 * 8
    assert layer.queued.keys() == {"LOAD", "MM", "VEC", "STORE"}
    assert sum(layer.queued.values()) == len(program.instructions) - 1  # and END
    assert list(program.timed_layers) == [0]


def test_results_that_are_wanted_in_memory_are_there() -> None:
    ops = inverted_bottleneck()
    program = compile_segment(DeviceSegment("s", ops), SMALL, bandwidth=1.0, reuse=False)
    compare(program, DeviceSegment("s", ops), inputs(program), SMALL)
    assert {"expand", "depthwise"} <= set(program.buffers)


def not_cut() -> dict[str, tuple[DeviceOp, ...]]:
    expand, depthwise, _ = inverted_bottleneck()
    rows = View(expand.dst.buffer, (1, 39, 40, 48), y=1)
    outside = conv("other", expand.dst, 8, kind="output")
    kept, last = (whole(name, expand.dst.shape, "output") for name in ("expand", "y"))
    return {
        "read by an operator behind": (expand, depthwise, outside.replace(dst=whole("z", outside.dst.shape, "output"))),
        "an output": (expand.replace(dst=kept), depthwise.replace(src=kept, dst=last)),
        "read in part": (expand, conv("y", rows, 8, kind="output")),
    }  # fmt: skip


@pytest.mark.parametrize("case", not_cut())
def test_other_chains_are_not_cut(case: str) -> None:
    segment = DeviceSegment("s", not_cut()[case])
    actual = depth_first(segment, Planner(Target(SMALL, 1.0)))
    names = {op.name for at in actual.strips for op in actual.ops[at.first : at.stop]}
    assert names <= ({"expand", "depthwise"} if case == "read by an operator behind" else set())
    program = compile_segment(segment, SMALL, bandwidth=1.0)
    compare(program, segment, inputs(program), SMALL, temps=False)


@pytest.mark.parametrize("pad", [(1, 0, 1, 0), (2, 2, 1, 1)])
def test_padding_is_part_of_a_chain(pad: tuple[int, int, int, int]) -> None:
    """Rows around an image belong to the strips at its ends."""
    expand, depthwise, _ = inverted_bottleneck()
    shape = (1, 40 + pad[0] + pad[2], 40 + pad[1] + pad[3], 48)
    padded = Pad("pad", depthwise.dst, whole("p", shape, "output"), Window(pad=pad), 3)
    segment = DeviceSegment("s", (expand, depthwise, padded))
    actual = depth_first(segment, Planner(Target(SMALL, 1.0)))
    assert "pad" in {op.name for at in actual.strips for op in actual.ops[at.first : at.stop]}
    program = compile_segment(segment, SMALL, bandwidth=1.0)
    compare(program, segment, inputs(program), SMALL, temps=False)


def test_nothing_is_cut_where_all_fits() -> None:
    segment = DeviceSegment("s", inverted_bottleneck(side=8))
    assert depth_first(segment, Planner(Target(SMALL, 1.0))) is segment


def two_blocks(side: int, channels: int) -> tuple[DeviceOp, ...]:
    first = inverted_bottleneck(side, channels, kind="temp")
    second = inverted_bottleneck(side, channels)
    middle = first[-1].dst
    expand = second[0].replace(name="expand2", src=middle, dst=whole("e2", second[0].dst.shape, "temp"))
    depthwise = second[1].replace(
        name="depthwise2", src=expand.dst, dst=whole("d2", second[1].dst.shape, "temp")
    )
    last = second[2]
    assert last.epilogue is not None
    dst = whole("out", last.dst.shape, "output")
    own = whole("out/m", dst.shape, "temp")
    epilogue = last.epilogue.replace(a=own, b=middle, dst=dst)
    return (
        *first,
        expand,
        depthwise,
        last.replace(name="project2", src=depthwise.dst, dst=dst, epilogue=epilogue),
    )


@pytest.mark.parametrize("name", ["small", "default", "ulx3s-85f"])
@pytest.mark.parametrize("bandwidth", [1.0, 4.0, 64.0])
def test_blocks_in_a_row(name: str, bandwidth: float) -> None:
    config = BOARDS[name].config if name in BOARDS else PRESETS[name]
    side = 36 if name == "small" else 64
    segment = DeviceSegment("s", two_blocks(side, 8 if name == "small" else 16))
    program = compile_segment(segment, config, bandwidth=bandwidth)
    compare(program, segment, inputs(program), config, temps=False)
    plain = compile_segment(segment, config, bandwidth=bandwidth, passes=WITHOUT)
    cycles, before = (measure(item, config, bandwidth)[0] for item in (program, plain))
    assert cycles <= 1.02 * before
    assert bandwidth > 1 or cycles < 0.6 * before


@pytest.mark.long
@pytest.mark.parametrize("name", [*PRESETS, *BOARDS])
def test_random_networks(name: str) -> None:
    config, cut = PRESETS.get(name) or BOARDS[name].config, 0
    for seed in range(24):
        rng = np.random.default_rng([seed, config.n, 11])
        segment, given = random_convolutions(rng, side=40, channels=64)
        bandwidth = float(rng.choice([1, 2, 4, 16, 64]))
        program = compile_segment(segment, config, bandwidth=bandwidth)
        compare(program, segment, given, config, temps=False)
        cut += bool(depth_first(segment, Planner(Target(config, bandwidth))).strips)
    assert cut or name not in ("tiny", "small", "icebreaker")


def test_results_that_cannot_stay_on_chip_meanwhile_cost_their_bytes() -> None:
    """A result that is alive while a chain runs goes to memory, and comes back for each operator that reads it."""
    x = whole("x", (1, 8, 8, 8), "input")
    kept = conv("kept", x, 8)
    first = conv("first", kept.dst, 16)
    last = conv("last", first.dst, 8)
    again = conv("again", kept.dst, 8, kind="output")
    ops = (kept, first, last, again)
    chains = _Chains(DeviceSegment("kept", ops), Planner(Target(SMALL)))
    chains.usual = dataclasses.replace(chains.segment, resident={kept.dst.buffer.name: 0})
    moved = chains.planner.target.transfer_cycles(3 * 8 * 8 * 8)
    assert chains._displaced_traffic(1, 2) == moved > 0
    assert chains._displaced_traffic(3, 3) == moved
    assert chains._displaced_traffic(0, 3) == 0.0  # it is a part of the chain
    none = _Chains(chains.segment, chains.planner)
    none.usual = dataclasses.replace(chains.segment, resident={})
    assert none._displaced_traffic(1, 2) == 0.0
