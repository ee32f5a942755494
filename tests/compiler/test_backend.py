"""The back end against the micro-ops, by golden interpreter and program checker; shared tasks of equal operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from support.golden_compare import compare
from support.memories import BANDWIDTHS
from support.op_cases import (
    convolution,
    extend_epilogue,
    random_chain,
    random_conv,
    random_inputs,
    random_op,
    segment_of,
    split_operators,
    whole,
)
from support.recurrent_models import Cell, CellNet

import weft
from weft.compiler.backend import DeviceProgram, Lowering, compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool, Rescale
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.fuse import fuse_epilogue, fuse_lookup, fuse_pool
from weft.compiler.passes.groups import overlap_rows
from weft.compiler.pipeline import PIPELINE, Pass
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.checker.program import check
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.timing import TimingDevice


def run_and_compare(
    segment: DeviceSegment,
    inputs: dict[str, np.ndarray],
    config: Config,
    passes: Sequence[Pass] = PIPELINE,
    bandwidth: float | None = None,
) -> None:
    """With inputs as they are and as the compiler likes them best, compare with the micro-ops."""
    result = [
        compile_segment(segment, config, bandwidth=bandwidth, passes=passes, reuse=False, plain_inputs=plain)
        for plain in (True, False)
    ]
    for program in result if result[1].rows else result[:1]:
        compare(program, segment, inputs, config)


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
@pytest.mark.parametrize("seed", range(8))
def test_random_operators(preset: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(preset)])
    for case in range(15):
        op, bandwidth = random_op(rng), BANDWIDTHS[case % len(BANDWIDTHS)]
        run_and_compare(segment_of(op), random_inputs(rng, op), PRESETS[preset], bandwidth=bandwidth)


@pytest.mark.parametrize("preset", ["tiny", "default"])
@pytest.mark.parametrize(
    ("width", "channels", "step"),
    [
        (9, 30000, (1, 3)),  # further from pixel to pixel than LOAD and STORE step
        (3, 70000, (1, 2)),  # and pixels that are longer than that
        (5000, 3, (7, 1)),
        (3000, 5, (1, 4)),
        (900, 4, (0, 1)),
        (900, 4, (1, 0)),
        (90, 300, (0, 0)),
    ],
)
def test_steps_of_views(preset: str, width: int, channels: int, step: tuple[int, int]) -> None:
    h, w = (-(-size // by) if by else size for size, by in zip((7, width), step, strict=True))
    shape, part = (1, 7, width, channels), (1, h, w, channels)
    stepped = View(Buffer("s", shape, "input"), part, step=step)
    ops = [Rescale("read", stepped, whole("y", part, "output"))]
    if all(step):
        written = dataclasses.replace(stepped, buffer=Buffer("s", shape, "output"))
        ops.append(Rescale("written", whole("x", part, "input"), written))
    for op in ops:
        run_and_compare(segment_of(op), random_inputs(np.random.default_rng(1), op), PRESETS[preset])


FUSING = (fuse_lookup, fuse_pool, fuse_epilogue)
ONE_BY_ONE = tuple(item for item in PIPELINE if item.run is not overlap_rows)
AS_GIVEN = tuple(item for item in ONE_BY_ONE if item.run not in FUSING)


@pytest.mark.parametrize("config", [PRESETS["tiny"], PRESETS["default"]], ids=["tiny", "default"])
@pytest.mark.parametrize("fused", [False, True])
def test_fused_and_one_after_the_other(fused: bool, config: Config) -> None:
    rng = np.random.default_rng([fused, config.n])
    for _ in range(12):
        op = extend_epilogue(rng, random_conv(rng))
        segment = segment_of(*(op,) if fused else split_operators(op))
        program = compile_segment(segment, config, passes=AS_GIVEN, reuse=False)
        assert [layer.name for layer in program.layers] == [item.name for item in segment.ops]
        in_memory = compile_segment(segment, config, passes=AS_GIVEN, reuse=False).buffers
        assert ("m" in in_memory) is not fused
        run_and_compare(segment, random_inputs(rng, op), config, AS_GIVEN)


@pytest.mark.parametrize("config", [PRESETS["tiny"], PRESETS["small"]], ids=["tiny", "small"])
@pytest.mark.parametrize("fused", [False, True])
def test_pooled_and_one_after_the_other(fused: bool, config: Config) -> None:
    rng = np.random.default_rng([fused, config.n])
    ops = [op for _ in range(60) if (op := random_conv(rng)).pool is not None]
    assert len(ops) > 5
    for op in ops:
        segment = segment_of(*(op,) if fused else split_operators(op))
        program = compile_segment(segment, config, passes=AS_GIVEN)
        conv, *pools = [layer.kind for layer in program.layers]
        assert (conv, set(pools)) == ("conv", set() if fused else {"pool"})
        run_and_compare(segment, random_inputs(rng, op), config, AS_GIVEN)


def test_a_pool_is_fused_where_that_is_faster() -> None:
    """Windows that overlap cost products twice on small tiles; those that do not, nothing."""
    for preset, channels, pool, layers in (
        ("tiny", 253, Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), 2),
        ("tiny", 253, Window((2, 2), (2, 2)), 1),
        ("tiny", 3, Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), 1),
        ("default", 253, Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), 1),
    ):
        op = convolution(whole("x", (1, 20, 28, channels), "input"), 80)
        op = dataclasses.replace(op, pool=pool, dst=whole("y", (1, *pool.output(20, 28), 80), "output"))
        result = []
        for ops, passes in (
            (split_operators(op), ONE_BY_ONE),
            (split_operators(op), AS_GIVEN),
            ((op,), AS_GIVEN),
        ):
            program = compile_segment(segment_of(*ops), PRESETS[preset], passes=passes)
            image = Image(program)
            device = TimingDevice(PRESETS[preset], image.memory_bytes, latency=30)
            image.run(device, {})
            result.append((len(program.layers), device.counters()[Counter.CYCLES]))
        assert result[0][0] == layers
        assert result[0][1] == min(cycles for _, cycles in result)


def convolution_and_addition(size: int, kernel: int, cin: int, out: int) -> tuple[Conv, Add]:
    """One after the other."""
    r, y = (whole(name, (1, size, size, out), kind) for name, kind in (("r", "input"), ("y", "output")))
    window = Window((kernel, kernel), pad=(kernel // 2,) * 4)
    conv = convolution(whole("x", (1, size, size, cin), "input"), out, window, name="m", kind="temp")
    return conv, Add("sum", conv.dst, r, y, 0.7, 0.6)


def test_a_result_stays_on_chip_where_that_is_faster() -> None:
    """A deep contraction hides the addition; for one of a single vector the vector unit has too much to do; and on a
    small scratchpad weights would have to be loaded more often."""
    for preset, size, kernel, cin, out, layers in (
        ("default", 28, 1, 256, 256, 1),
        ("default", 28, 1, 16, 256, 2),
        ("tiny", 8, 3, 32, 32, 2),
        ("default", 8, 3, 32, 32, 1),
    ):
        conv, add = convolution_and_addition(size, kernel, cin, out)
        assert len(compile_segment(segment_of(conv, add), PRESETS[preset]).layers) == layers, (preset, cin)


@pytest.mark.parametrize(
    ("preset", "size", "kernel", "channels"),
    [
        ("default", 14, 3, 256),
        ("small", 56, 3, 64),
        ("small", 28, 3, 64),
        ("tiny", 14, 3, 64),
        ("default", 28, 1, 128),
    ],
)
def test_resident_results_move_no_more_data(preset: str, size: int, kernel: int, channels: int) -> None:
    conv, add = convolution_and_addition(size, kernel, channels, channels)
    result = [
        compile_segment(segment_of(conv, add), PRESETS[preset], passes=by) for by in (AS_GIVEN, PIPELINE)
    ]
    moved = [sum(layer.read_bytes + layer.written_bytes for layer in item.layers) for item in result]
    assert moved[1] <= moved[0] * 1.01


def first_layer(kernel: int, cin: int, groups: int = 1, *, plain: bool = False) -> DeviceProgram:
    """A convolution of a 32 x 32 input to 64 channels, and then one of its result, on `default`."""
    x, window = whole("x", (1, 32, 32, cin), "input"), Window((kernel, kernel))
    first = convolution(x, 64, window, name="m", kind="temp")
    first = dataclasses.replace(first, groups=groups, weight=first.weight[..., : cin // groups])
    segment = DeviceSegment("first", (first, convolution(first.dst, 8)))
    inputs = {"x": np.random.default_rng(1).integers(-128, 128, x.shape).astype(np.int8)}
    run_and_compare(segment, inputs, PRESETS["default"])
    return compile_segment(segment, PRESETS["default"], plain_inputs=plain)


def test_rows_of_an_input_of_few_channels_lie_side_by_side() -> None:
    program, plain = first_layer(7, 3), first_layer(7, 3, plain=True)
    assert program.rows == {"x": Rows(32, 7, 1, 1, 0, 26, 0)}
    assert program.buffers["x"].shape == (1, 26, 32, 21)
    assert program.input_shape("x") == (1, 32, 32, 3)
    assert plain.rows == {}
    laid, before = (sum(layer.cycles["MM"] for layer in item.layers) for item in (program, plain))
    # 147 bytes of a window in 10 vectors instead of 7 times 2, for 4 tiles of 676 outputs.
    assert before - laid == 4 * 4 * 26 * 26


@pytest.mark.parametrize(
    ("kernel", "cin", "groups"),
    [
        (1, 3, 1),
        (3, 16, 1),  # vectors are full without that
        (3, 64, 64),
    ],
)
def test_rows_stay_where_that_brings_nothing(kernel: int, cin: int, groups: int) -> None:
    assert first_layer(kernel, cin, groups).rows == {}


def test_rows_stay_where_load_could_not_step_over_them() -> None:
    """A window of one column: its stride is one of pixels."""
    op = convolution(whole("x", (1, 701, 11, 20), "input"), 16, Window((700, 1), (1, 5)))
    op = dataclasses.replace(op, scale=np.full(16, 1e-5))
    run_and_compare(segment_of(op), random_inputs(np.random.default_rng(1), op), PRESETS["default"])
    assert compile_segment(segment_of(op), PRESETS["default"]).rows == {}


@pytest.mark.parametrize("why", ["", "another reader", "a temporary", "a part of a buffer"])
def test_rows_stay_where_others_see_them(why: str) -> None:
    size = (1, 24, 24, 3)
    kind = "temp" if why == "a temporary" else "input"
    x = View(Buffer("x", (1, 24, 24, 4) if why == "a part of a buffer" else size, kind), size)
    ops: list[DeviceOp] = [convolution(x, 64, Window((7, 7)))]
    if why == "another reader":
        ops.append(Rescale("copy", x, whole("z", size, "output")))
    if why == "a temporary":
        ops.insert(0, Rescale("half", whole("i", size, "input"), x, 0.5))
    segment = DeviceSegment("conv", tuple(ops))
    inputs = random_inputs(np.random.default_rng(1), ops[0])  # all read what the first one reads
    assert bool(compile_segment(segment, PRESETS["default"]).rows) is (why == "")
    run_and_compare(segment, inputs, PRESETS["default"])


@pytest.mark.parametrize(("kernel", "stride", "cin"), [(7, 2, 3), (11, 4, 3), (3, 1, 5), (5, 5, 3)])
@pytest.mark.parametrize("plain", [False, True])
def test_bytes_of_a_layer_equal_the_bus_traffic(kernel: int, stride: int, cin: int, plain: bool) -> None:
    window = Window((kernel, kernel), (stride, stride), (1, 1), (kernel // 2,) * 4)
    op = convolution(whole("x", (1, 40, 40, cin), "input"), 40, window)
    config = PRESETS["default"]
    image = Image(compile_segment(segment_of(op), config, plain_inputs=plain))
    device = TimingDevice(config, image.memory_bytes)
    image.run(device, {})
    counters = device.counters()
    (layer,) = image.program.layers
    beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
    # Runs begin and end within words of the bus.
    assert layer.dram_bytes <= beats * config.bus_bytes <= 1.2 * layer.dram_bytes


def test_only_weights_that_there_are_get_loaded() -> None:
    op = convolution(whole("x", (1, 1, 1, 64), "input"), 17)
    (layer,) = compile_segment(segment_of(op), PRESETS["default"]).layers
    parameters = 2 * PARAMETER_VECTORS * 16
    assert layer.read_bytes == 64 + 17 * 64 + parameters


SMALL_MEMORIES = Config(
    n=4,
    lanes=4,
    scratchpad_banks=4,
    scratchpad_depth=64,
    accumulator_banks=2,
    accumulator_depth=16,
    bus_bytes=8,
    mantissa_bits=16,
)


@pytest.mark.parametrize("seed", range(4))
def test_operators_larger_than_the_memories(seed: int) -> None:
    """Everything is cut, down to chunks of the contraction, on 1 KiB of scratchpad."""
    rng = np.random.default_rng([seed, 99])
    for _ in range(10):
        op = random_op(rng)
        run_and_compare(segment_of(op), random_inputs(rng, op), SMALL_MEMORIES)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "depth"),
    [
        ((1, 9, 9, 13), (9, 9), (1, 1), (4, 8, 4, 8), 64),
        ((1, 9, 9, 9), (9, 5), (1, 3), (4, 4, 4, 4), 32),
        ((1, 12, 9, 6), (11, 5), (1, 1), (5, 4, 5, 4), 32),
    ],
)
def test_chunks_of_windows_in_the_padding(
    size: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int, int, int],
    depth: int,
) -> None:
    op = convolution(whole("x", size, "input"), 5, Window(kernel, stride, (1, 1), pad))
    op = dataclasses.replace(op, x_zero=3)
    inputs = random_inputs(np.random.default_rng(3), op)
    run_and_compare(segment_of(op), inputs, SMALL_MEMORIES.replace(scratchpad_depth=depth))


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pooling_over_more_than_the_scratchpad_holds(kind: str) -> None:
    rng = np.random.default_rng(5)
    shape = (1, 40, 40, 3)
    x, y = whole("x", shape, "input"), whole("y", (1, 1, 1, 3), "output")
    op = Pool("pool", x, y, kind, Window((40, 40)), 1.3, 4, -5)
    segment = segment_of(op)
    inputs = random_inputs(rng, op)
    program = compile_segment(segment, PRESETS["tiny"])
    check(program.instructions, PRESETS["tiny"], extents=program.areas.extents)
    image = Image(program)
    device = GoldenDevice(PRESETS["tiny"], image.memory_bytes)
    image.run(device, inputs)
    assert np.array_equal(image.read(device, "y").reshape(-1), run_ops(segment, inputs)["y"])


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
@pytest.mark.parametrize("reuse", [False, True])
def test_chain(preset: str, reuse: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(3):
        segment, inputs = random_chain(rng)
        config = PRESETS[preset]
        program = compile_segment(segment, config, reuse=reuse)
        check(program.instructions, config, extents=program.areas.extents)
        image = Image(program)
        device = GoldenDevice(config, image.memory_bytes)
        image.run(device, inputs)
        assert np.array_equal(image.read(device, "y").reshape(-1), run_ops(segment, inputs)["y"])


def test_reuse_saves_memory() -> None:
    segment, _ = random_chain(np.random.default_rng(1))
    sizes = [
        sum(compile_segment(segment, PRESETS["tiny"], reuse=reuse).areas.sizes.values())
        for reuse in (False, True)
    ]
    assert sizes[1] < sizes[0]


def test_an_operator_that_cannot_be_cut_is_refused_by_name() -> None:
    config = Config(n=16, lanes=16, scratchpad_banks=2, scratchpad_depth=16, accumulator_banks=2, accumulator_depth=16,
                    bus_bytes=16)  # fmt: skip
    x, y = whole("x", (1, 9, 9, 4), "input"), whole("y", (1, 1, 1, 4), "output")
    op = Pool("wide", x, y, "average", Window((9, 9), pad=(0, 0, 0, 0)))
    with pytest.raises(
        CompileError, match=r"^wide: not even one output of this conv fits on chip \(scratchpad 32 vectors"
    ):
        compile_segment(segment_of(op), config)


def test_chunks_of_a_long_contraction_are_even() -> None:
    """Two buffers take turns: one that is loaded faster than the other is used only waits."""
    x, y = whole("x", (1, 1, 1, 18432), "input"), whole("y", (1, 1, 1, 16), "output")
    weight = np.ones((16, 1, 1, 18432), np.int16)
    op = Conv("fc", x, y, weight, np.zeros(16, np.int32), np.full(16, 0.001))
    shape = ConvShape(op, Planner(Target(PRESETS["default"])).site(op))
    for limit, sizes in ((5120, {288}), (6144, {384}), (5000, {288}), (3200, {192}), (18432, {1152})):
        chunks = shape.chunks(shape.pieces[0], limit)
        assert chunks is not None
        assert {chunk.steps for chunk in chunks} == sizes
        assert sum(chunk.steps for chunk in chunks) == 1152


def test_dilation_of_one_element_is_ignored() -> None:
    """A 1x1 convolution is a matrix product, whatever its dilation says."""
    result = [
        compile_segment(
            segment_of(convolution(whole("x", (8, 2, 2, 64), "input"), 64, Window(dilation=(by, by)))),
            PRESETS["default"],
        )
        for by in (1, 2)
    ]
    assert result[0].layers == result[1].layers  # as many instructions, cycles and bytes


CELLS = (
    (Cell("GRU", 8, 1, 4, 4, "bidirectional"), PRESETS["small"].replace(kernel=64, lookup_tables=2)),
    (Cell("LSTM", 6, 2, 4, 20), PRESETS["small"].replace(kernel=64)),
    (Cell("GRU", 6, 1, 12, 16, late=1, rows=True), PRESETS["default"]),
)


def programs(cell: Cell, config: Config) -> list[DeviceProgram]:
    compiled = weft.compile(CellNet(cell).model(), config).compiled
    return [segment for segment in compiled.segments if isinstance(segment, DeviceProgram)]


@pytest.mark.parametrize(
    ("cell", "config"), CELLS, ids=lambda item: item.op if isinstance(item, Cell) else ""
)
def test_shared_tasks_equal_separate_lowering(
    cell: Cell, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than half of the operators are lowered, and no byte differs from when all are."""
    lowered = []
    lower = Lowering._lower
    monkeypatch.setattr(
        Lowering,
        "_lower",
        lambda self, op, *rest, **more: lowered.append(op) or lower(self, op, *rest, **more),
    )
    shared, few = programs(cell, config), len(lowered)
    monkeypatch.setattr(Lowering, "_key", lambda self, form: object())
    alone = programs(cell, config)
    assert 0 < few < (len(lowered) - few) / 2
    assert [(item.code, item.constants, item.layers) for item in shared] == [
        (item.code, item.constants, item.layers) for item in alone
    ]
