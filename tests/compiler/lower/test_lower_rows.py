"""Operators of the kernel engine: programs on golden and RTL against their micro-ops."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import convolution, draw, random_lookup, random_source, random_view
from support.op_cases import whole as tensor

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.expressions import Rows
from weft.compiler.kernel.operators import GroupNorm, LayerNorm, RowFunction
from weft.compiler.lower.rows import kernel_cycles
from weft.compiler.operators.record import operator_of
from weft.hdl.isa import Kernel
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

CONFIGS = {name: PRESETS[name].replace(kernel=64) for name in ("tiny", "small", "default")}


def random_layer_norm(rng: np.random.Generator, most: int) -> LayerNorm:
    shape = draw(rng, 1, 2), draw(rng, 1, 5), draw(rng, 1, 30), draw(rng, 1, most)
    channels = shape[3]
    weight = rng.normal(1, 0.4, channels) * rng.choice([-1, 1, 1], channels) * 10.0 ** rng.integers(-3, 3)
    zeros = [draw(rng, -128, 127) for _ in range(2)]
    clamp = (draw(rng, -128, 0), draw(rng, 0, 127)) if rng.random() < 0.3 else (-128, 127)
    return LayerNorm(
        "norm", random_source(rng, "x", shape), random_view(rng, "y", shape, "output"), weight,
        rng.normal(0, 1, channels), float(10.0 ** rng.integers(-12, 7)), float(10.0 ** rng.uniform(-3, 3)), *zeros,
        *clamp, centre=bool(rng.integers(2)),
    )  # fmt: skip


def random_group_norm(rng: np.random.Generator, n: int) -> GroupNorm:
    norm = random_layer_norm(rng, 3)
    group = 1 << draw(rng, 0, n.bit_length() - 1)
    shape = (*norm.src.shape[:3], group * draw(rng, 1, 9))
    fields = {"weight": rng.normal(1, 0.4, shape[3]), "bias": rng.normal(0, 1, shape[3])}
    kept = {
        name: getattr(norm, name)
        for name in ("epsilon", "scale", "x_zero", "y_zero", "low", "high", "centre")
    }
    views = random_source(rng, "x", shape), random_view(rng, "y", shape, "output")
    return GroupNorm("norm", *views, **fields, **kept, group=group)


def exact(op: LayerNorm, x: np.ndarray) -> np.ndarray:
    values = x.astype(np.float64) - (0 if op.centre else op.x_zero)
    if op.centre:
        values -= values.mean(-1, keepdims=True)
    root = np.sqrt((values**2).mean(-1, keepdims=True) + op.epsilon)
    result = values / np.where(root == 0, 1, root) * op.weight * op.scale + op.bias * op.scale
    return np.clip(np.rint(result) + op.y_zero, op.low, op.high)


@pytest.mark.parametrize("name", CONFIGS)
def test_layer_norm(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(7)
    for case in range(35):
        op = random_group_norm(rng, config.n) if case % 3 == 2 else random_layer_norm(rng, 90)
        segment = DeviceSegment("norm", (op,))
        x = rng.integers(-128, 128, op.src.buffer.shape).astype(np.int8)
        compare(compile_segment(segment, config), segment, {op.src.buffer.name: x}, config)


def whole(shape: tuple[int, int, int, int], **fields: float) -> LayerNorm:
    """Whole buffers, with weights around 1 and results around 30."""
    rng = np.random.default_rng(shape)
    views = [View(Buffer(name, shape, kind), shape) for name, kind in (("x", "input"), ("y", "output"))]
    weight, bias = rng.normal(1, 0.3, shape[3]), rng.normal(0, 0.3, shape[3])
    arguments = {"epsilon": 1e-2, "scale": 30.0, "x_zero": 3, "y_zero": -8} | fields
    return LayerNorm("norm", *views, weight, bias, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [1, 2, 3, 16, 100, 768, 3072, 20000])
@pytest.mark.parametrize("centre", [True, False])
def test_accuracy(channels: int, centre: bool) -> None:
    """At most one step from the exact result, for any spread of the input."""
    rng = np.random.default_rng(channels)
    op = whole((1, 1, 60, channels), centre=centre)
    spread = rng.choice([0.3, 1, 5, 40, 200], (1, 1, 60, 1))
    x = np.clip(np.rint(rng.normal(rng.uniform(-60, 60, (1, 1, 60, 1)), spread, op.src.shape)), -128, 127)
    actual = operator_of(op).evaluate(op, (x.astype(np.int8),), 24).astype(int)
    assert np.abs(actual - exact(op, x)).max() <= 1
    assert (actual != exact(op, x)).mean() < 0.1


def test_clamped() -> None:
    """Results reach both ends of the clamp."""
    op = whole((1, 1, 20, 40), low=-20, high=30)
    x = np.random.default_rng(3).integers(-128, 128, op.src.shape).astype(np.int8)
    actual = operator_of(op).evaluate(op, (x,), 24).astype(int)
    assert (actual.min(), actual.max()) == (-20, 30)
    assert np.abs(actual - exact(op, x)).max() <= 1


def test_images_in_parts_of_channels() -> None:
    """Channels do not all fit with all pixels; each part has its own weights."""
    config, rng, shape = CONFIGS["tiny"], np.random.default_rng(4), (2, 16, 16, 40)
    views = [View(Buffer(name, shape, kind), shape) for name, kind in (("x", "input"), ("y", "output"))]
    op = GroupNorm("norm", *views, rng.normal(1, 0.4, 40), rng.normal(0, 1, 40), 1e-2, 30.0, group=2)
    segment = DeviceSegment("norm", (op,))
    x = rng.integers(-128, 128, shape).astype(np.int8)
    program = compile_segment(segment, config)
    assert sum(isinstance(item, Kernel) for item in program.instructions) > 2
    compare(program, segment, {"x": x}, config)


def test_rows_of_one_number() -> None:
    """Without spread the result is the bias."""
    op = whole((1, 1, 4, 40), epsilon=0.0)
    x = np.broadcast_to(np.array([-128, 0, 3, 127]).reshape(1, 1, 4, 1), op.src.shape).astype(np.int8)
    assert (operator_of(op).evaluate(op, (x,), 24) == exact(op, x)).all()


def test_on_rtl() -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(9)
    for case in range(8):
        op = random_group_norm(rng, config.n) if case % 4 > 1 else random_layer_norm(rng, 30)
        segment = DeviceSegment("norm", (op,))
        inputs = {op.src.buffer.name: rng.integers(-128, 128, op.src.buffer.shape).astype(np.int8)}
        compare_on_rtl(segment, inputs, config, case)


def with_tables(
    rng: np.random.Generator, src: View, dst: View, pool: list[np.ndarray], count: int
) -> RowFunction:
    """Kernel that reads `count` consecutive tables of a pool."""
    chosen = [pool[index] for index in rng.permutation(len(pool))[:count]]

    def function(rows: Rows) -> None:
        x = rows.read(0)
        for table in chosen:
            x = x.look_up(table)
        rows.store(x - 3)

    return RowFunction(dst.buffer.name, (src,), dst, function)


def random_tables(rng: np.random.Generator, config: Config) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Kernels, convolutions and requantisations in turn, with look-up tables of few contents."""
    pool = [random_lookup(rng) for _ in range(config.lookup_tables + 2)]
    shape = draw(rng, 1, 2), draw(rng, 1, 4), draw(rng, 1, 40), draw(rng, 1, 40)
    value, ops, count = tensor("x", shape, "input"), list[DeviceOp](), draw(rng, 2, 7)
    for index in range(count):
        dst = tensor("y", shape, "output") if index == count - 1 else tensor(f"t{index}", shape, "temp")
        kind = rng.random()
        if kind < 0.6:
            ops.append(with_tables(rng, value, dst, pool, draw(rng, 0, config.lookup_tables)))
        elif kind < 0.8:
            ops.append(Rescale(f"r{index}", value, dst, lookup=pool[draw(rng, 0, len(pool) - 1)]))
        else:
            result = convolution(value, shape[3], name=dst.buffer.name, kind=dst.buffer.kind)
            scale = np.full(shape[3], 0.01 / shape[3] ** 0.5)
            ops.append(result.replace(scale=scale, lookup=pool[draw(rng, 0, len(pool) - 1)]))
        value = ops[-1].dst
    return DeviceSegment("tables", tuple(ops)), {"x": rng.integers(-128, 128, shape).astype(np.int8)}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tables", [1, 2, 4])
def test_tables(name: str, tables: int) -> None:
    """Kernels, convolutions and others share the look-up tables; each finds its contents."""
    config, rng = CONFIGS[name].replace(lookup_tables=tables), np.random.default_rng(tables)
    for _ in range(15):
        segment, inputs = random_tables(rng, config)
        compare(compile_segment(segment, config), segment, inputs, config, temps=False)


def test_tables_on_rtl() -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(5)
    for case in range(4):
        segment, inputs = random_tables(rng, config)
        compare_on_rtl(segment, inputs, config, case)


def test_tables_pass_where_rows_are_loaded() -> None:
    """A scratchpad with room for one row and its result takes a table in parts."""
    config = Config(
        n=2, lanes=1, scratchpad_banks=2, scratchpad_depth=16, bus_bytes=4, kernel=16, mantissa_bits=16
    )
    rng, shape = np.random.default_rng(3), (1, 1, 3, 29)
    pool = [random_lookup(rng)]
    op = with_tables(rng, tensor("x", shape, "input"), tensor("y", shape, "output"), pool, 1)
    segment = DeviceSegment("rows", (op,))
    x = rng.integers(-128, 128, shape).astype(np.int8)
    compare(compile_segment(segment, config), segment, {"x": x}, config)


def test_too_few_tables_are_refused() -> None:
    """The configuration has to have as many as the kernel reads."""
    rng, config = np.random.default_rng(8), CONFIGS["tiny"].replace(lookup_tables=1)
    views = tensor("x", (1, 1, 3, 4), "input"), tensor("y", (1, 1, 3, 4), "output")
    op = with_tables(rng, *views, [random_lookup(rng) for _ in range(2)], 2)
    message = "y: the kernel reads 2 look-up tables, but the configuration has 1: set 'lookup_tables' to more"
    with pytest.raises(CompileError, match=message):
        compile_segment(DeviceSegment("rows", (op,)), config)


def test_cycles() -> None:
    """Within 1.3 times a cycle per micro-operation and lane group, for rows as long as BERT's."""
    config = CONFIGS["default"]
    op = whole((1, 1, 128, 768))
    program = compile_segment(DeviceSegment("norm", (op,)), config)
    image = Image(program)
    device = TimingDevice(config, image.memory_bytes)
    image.run(device, {"x": np.zeros(op.src.shape, np.int8)})
    ops = generate(op.rows(), config.n)
    inner = sum(
        1 for index in range(len(ops)) if any(later.again and later.target <= index for later in ops[index:])
    )
    least = inner * 128 * 768 // config.lanes
    cycles = device.counters()[Counter.CYCLES]
    assert cycles < 1.3 * least
    tiles = [item for item in program.instructions if isinstance(item, Kernel)]
    estimate = sum(kernel_cycles(ops, tile.oy, tile.ox, config) for tile in tiles)
    assert abs(estimate - device.counters()[Counter.VEC_BUSY]) < 0.01 * estimate


def test_rows_that_do_not_fit_are_refused() -> None:
    config = Config(n=2, lanes=1, scratchpad_banks=2, scratchpad_depth=16, bus_bytes=4, kernel=32)
    with pytest.raises(CompileError):
        compile_segment(DeviceSegment("norm", (whole((1, 1, 3, 400)),)), config)
    with pytest.raises(CompileError, match="no kernel engine; set 'kernel' to 64"):
        compile_segment(DeviceSegment("norm", (whole((1, 1, 3, 4)),)), PRESETS["tiny"])
    with pytest.raises(CompileError, match="has room for 16: set 'kernel' to more"):
        compile_segment(DeviceSegment("norm", (whole((1, 1, 3, 4)),)), PRESETS["tiny"].replace(kernel=16))


def plain_kernel(rows: Rows) -> None:
    """Store each result in place, from two tensors and a constant per channel."""
    rows.store((rows.read(0).times(rows.read(1), 6) + rows.wide(2)).maximum(-100))


SHAPES: dict[str, tuple[tuple[int, int, int, int], tuple[int, int, int, int], tuple[int, int, int]]] = {
    "one row": ((1, 1, 1, 300), (1, 1, 1, 300), (1, 38, 1)),
    "few rows": ((1, 1, 3, 300), (1, 1, 3, 300), (3, 38, 1)),
    "few rows, one of them repeated": ((1, 1, 3, 300), (1, 1, 1, 300), (3, 38, 1)),
    "rows enough": ((1, 1, 8, 300), (1, 1, 8, 300), (1, 8, 38)),
    "short rows": ((1, 1, 5, 7), (1, 1, 5, 7), (1, 5, 1)),
}
"""Shapes of two operands, and loops of the instruction on N = 8, with rows shorter than eight or not."""


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("constant", [True, False])
def test_few_rows_of_elements(name: str, constant: bool) -> None:
    """Few rows are processed by vectors of a row side by side, of all rows without constants."""
    config, rng = CONFIGS["small"], np.random.default_rng(11)
    first, second, loops = SHAPES[name]
    views = [View(Buffer(at, shape, "input"), shape) for at, shape in (("a", first), ("b", second))]
    constants = (rng.integers(-90, 90, first[3]).astype(np.int16),) if constant else ()

    def kernel(rows: Rows) -> None:
        if constant:
            plain_kernel(rows)
        else:
            rows.store(rows.read(0).times(rows.read(1), 6).maximum(-100))

    op = RowFunction("f", tuple(views), View(Buffer("y", first, "output"), first), kernel, constants)
    segment = DeviceSegment("f", (op,))
    inputs = {view.buffer.name: rng.integers(-128, 128, view.shape).astype(np.int8) for view in views}
    program = compile_segment(segment, config)
    compare(program, segment, inputs, config)
    (actual,) = {(item.ob, item.oy, item.ox) for item in program.instructions if isinstance(item, Kernel)}
    if not constant and first == second and loops[2] == 1 and loops[0] > 1:
        loops = (1, loops[0] * loops[1], 1)
    assert actual == loops
    compare_on_rtl(segment, inputs, config, int(constant))


def test_totals_of_few_rows_stay_rows() -> None:
    op = whole((1, 1, 2, 300))
    program = compile_segment(DeviceSegment("norm", (op,)), CONFIGS["small"])
    (actual,) = (item for item in program.instructions if isinstance(item, Kernel))
    assert (actual.ob, actual.oy, actual.ox, actual.tail) == (1, 2, 38, 300 % 8)
