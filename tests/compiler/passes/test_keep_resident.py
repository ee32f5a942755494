"""Results that stay on chip: right outputs under every plan, placement, and savings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from support.chain_cases import conv, random_operators
from support.configurations import every
from support.golden_compare import compare
from support.mostly_long import mostly_long
from support.op_cases import random_convolutions, random_mixture, whole

from weft.boards.registry import BOARDS
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool, Softmax
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.keep_resident import cost_of, keep_resident, placements, with_resident
from weft.compiler.passes.order import choose_plans
from weft.compiler.pipeline import Pass
from weft.compiler.plan.conv_plan import ConvPlan, candidates, unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.configurations import sequential_boards
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

DEFAULT = PRESETS["default"]


def add_value(op: Conv, other: View) -> Conv:
    """With another value added to the result."""
    epilogue = Add("sum", whole(f"{op.name}/m", op.dst.shape, "temp"), other, op.dst, 0.7, 0.6, 5, 5, 5)
    return dataclasses.replace(op, epilogue=epilogue)


def compare_outputs(program: DeviceProgram, ops: tuple[DeviceOp, ...], config: Config) -> None:
    rng = np.random.default_rng(1)
    inputs = {
        name: rng.integers(-128, 128, program.input_shape(name)).astype(np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }
    compare(program, DeviceSegment("s", ops), inputs, config, temps=False)


@pytest.mark.parametrize("seeds", mostly_long([range(24), range(24, 72)], 0))
@pytest.mark.parametrize(("preset", "least"), [("tiny", 0.25), ("small", 0.4), ("default", 0.4)])
def test_random_convolutions(preset: str, least: float, seeds: range) -> None:
    config, temps, held = PRESETS[preset], 0, 0
    for seed in seeds:
        rng = np.random.default_rng([seed, config.n])
        segment, _ = random_convolutions(rng)

        def any_plan(shape: ConvShape, rng: np.random.Generator = rng) -> ConvPlan | None:
            """Choose any tiling with the best one's estimates, so that decisions stay as usual."""
            actual = candidates(shape)
            if not actual:
                return None
            chosen = actual[int(rng.integers(len(actual)))]
            return dataclasses.replace(chosen, cycles=actual[0].cycles, traffic=actual[0].traffic)

        program = compile_segment(segment, config, **({} if seed % 3 else {"choose": any_plan}))
        compare_outputs(program, segment.ops, config)
        names = {op.dst.buffer.name for op in segment.ops if op.dst.buffer.kind == "temp"}
        temps, held = temps + len(names), held + len(names - set(program.buffers))
    assert held >= least * temps


@pytest.mark.long
@pytest.mark.parametrize("name", BOARDS)
def test_random_convolutions_on_boards(name: str) -> None:
    board = BOARDS[name]
    own = board.memory.planning_model[1] or board.config.bus_bytes
    for seed, bandwidth in enumerate((own, own, 0.2, 2.0, float(board.config.bus_bytes))):
        rng = np.random.default_rng([seed, board.config.digest])
        segment, _ = random_convolutions(rng)
        sequential = bool(sequential_boards(board.config))
        program = compile_segment(segment, board.config, bandwidth=bandwidth, sequential=sequential)
        compare_outputs(program, segment.ops, board.config)


def kept_all(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Every result on chip that can stay there, whatever that costs."""
    for index in range(len(segment.ops)):
        segment = with_resident(segment, index, planner) or segment
    return segment


@pytest.mark.parametrize("preset", every())
def test_operators_of_all_kinds(preset: str) -> None:
    """Held wherever that is possible: the operands and results of every operator that the vector unit does as well."""
    whole_config, kinds = every()[preset], set[type[DeviceOp]]()
    # A smaller scratchpad too, in which operators are cut into tiles beside what is held.
    small = whole_config.replace(
        scratchpad_banks=4, scratchpad_depth=max(32, 2 * whole_config.table_depth // whole_config.n // 4)
    )
    for seed in range(16):
        config = (whole_config, small)[seed % 2]
        rng = np.random.default_rng([seed, config.n, config.scratchpad_size])
        segment, _ = random_mixture(rng, 9 + 9 * (seed % 4), products=bool(config.multiply))
        if not config.lookup_tables:
            segment = dataclasses.replace(segment, ops=tuple(op.replace(lookup=None) for op in segment.ops))
        planner = Planner(Target(config))
        actual = kept_all(segment, planner)
        kinds |= {
            type(op)
            for op in actual.ops
            for view in (*op.sources, op.dst)
            if view.buffer.name in actual.resident
        }
        if all(
            planner.plan(op, actual.resident, actual.regions[at] if actual.regions else None)
            for at, op in enumerate(actual.ops)
        ):
            program = compile_segment(actual, config, passes=(Pass(choose_plans),))
            assert not actual.resident.keys() & set(program.buffers)
            compare_outputs(program, segment.ops, config)
    assert {Conv, Pool, Add} <= kinds


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_operators_of_all_kinds_on_rtl(preset: str) -> None:
    config = PRESETS[preset]
    for seed in range(5):
        segment, inputs = random_mixture(np.random.default_rng([seed, 7]), 7, 20, products=True)
        program = compile_segment(segment, config)
        image = Image(program)
        memories = []
        for device in (
            GoldenDevice(config, image.memory_bytes),
            RtlDevice(
                config, image.memory_bytes, latency=9, stall_probability=0.3 * (seed % 2), stall_seed=seed
            ),
        ):
            with contextlib.closing(device):
                image.run(device, inputs)
                memories.append(device.read(0, image.memory_bytes))
        assert memories[0] == memories[1], seed


def test_resident_results_are_not_transferred() -> None:
    """The first layer reads its input and weights and stores nothing, the second reads its weights alone."""
    first = conv("a", whole("x", (1, 14, 14, 64), "input"), 96, 3)
    second = conv("y", first.dst, 32, 3, "output", stride=2)
    kept, moved = (
        compile_segment(DeviceSegment("s", (first, second)), DEFAULT, reuse=reuse) for reuse in (True, False)
    )
    compare_outputs(kept, (first, second), DEFAULT)
    assert ("a" in kept.buffers, "a" in moved.buffers) == (False, True)
    a, y = kept.layers
    assert (a.written_bytes, y.written_bytes) == (0, 7 * 7 * 32)
    assert moved.layers[0].written_bytes == 14 * 14 * 96
    assert y.read_bytes == 3 * 3 * 96 * 32 + 2 * PARAMETER_VECTORS * DEFAULT.n
    assert sum(kept.areas.sizes.values()) < sum(moved.areas.sizes.values())


def test_rows_of_resident_results_are_read() -> None:
    first = conv("a", whole("x", (1, 12, 12, 32), "input"), 40, 3)
    parts = (View(first.dst.buffer, (1, 5, 12, 40), y=4), View(first.dst.buffer, (1, 5, 12, 40)))
    last = conv("y", parts[1], 24, kind="output")
    middle = conv("b", parts[0], 24, 3)
    ops = (first, middle, add_value(last, middle.dst))
    assert set(resident(ops)) == {"a", "b"}
    compare_outputs(compile_segment(DeviceSegment("s", ops), DEFAULT), ops, DEFAULT)


def residual_blocks() -> tuple[Conv, ...]:
    """Two blocks whose input is read twice, the second time for an addition."""
    ops = [conv("c", whole("x", (1, 14, 14, 32), "input"), 64)]
    for index in range(2):
        inner = conv(f"inner{index}", ops[-1].dst, 64, 3)
        ops += [inner, add_value(conv(f"sum{index}", inner.dst, 64, 3), ops[-1].dst)]
    return *ops, conv("y", ops[-1].dst, 10, kind="output")


def test_late_addends_stay_on_chip() -> None:
    ops = residual_blocks()
    assert set(resident(ops)) == {"c", "inner0", "sum0", "inner1", "sum1"}
    program = compile_segment(DeviceSegment("s", ops), DEFAULT)
    compare_outputs(program, ops, DEFAULT)
    assert set(program.buffers) == {"x", "y"}
    (whole_program,) = program.timed_layers.values()
    assert (whole_program.name, whole_program.written_bytes) == ("c .. y", 14 * 14 * 10)
    assert whole_program.macs == sum(op.macs for op in ops)
    assert whole_program.dram_bytes == sum(layer.dram_bytes for layer in program.layers)


@pytest.mark.parametrize(("config", "bandwidth"), [(DEFAULT, None), (BOARDS["ulx3s-85f"].config, 1.0)])
def test_resident_results_do_not_overlap(config: Config, bandwidth: float | None) -> None:
    ops = residual_blocks()
    actual = keep_resident(DeviceSegment("s", ops), Planner(Target(config, bandwidth)))
    assert len(actual.resident) == 5
    alive = {name: [index for index, op in enumerate(ops) if touches(op, name)] for name in actual.resident}
    for index in range(len(ops)):
        sizes = {name: 4 * 14 * 14 for name, at in alive.items() if at[0] <= index <= at[-1]}
        taken = [(actual.resident[name], actual.resident[name] + size) for name, size in sizes.items()]
        taken = sorted([*taken, actual.regions[index]])
        assert all(a[1] <= b[0] for a, b in pairwise(taken))
        assert taken[-1][1] <= config.scratchpad_size
        assert all(edge % unit(config) == 0 for edge in actual.regions[index])


def test_few_banks_are_shared() -> None:
    """Four banks: two for weights and parameters, one for what the array reads, and one for what is added and made."""
    config = BOARDS["ulx3s-85f"].config
    actual = keep_resident(DeviceSegment("s", residual_blocks()), Planner(Target(config, 1.0)))
    assert len({at // unit(config) for at in actual.resident.values()}) == 2


def test_array_and_vector_unit_share_a_bank_if_not_slower() -> None:
    """A cycle for each vector of a result in the bank of what it is made of."""
    config = BOARDS["ulx3s-85f"].config
    ops = (
        conv("a", whole("x", (1, 14, 14, 32), "input"), 64),
        second := conv("b", whole("a", (1, 14, 14, 64), "temp"), 64, 3),
        conv("y", second.dst, 8, kind="output"),
    )
    planner, segment = Planner(Target(config, 1.0)), DeviceSegment("s", ops)
    first = with_resident(segment, 0, planner)
    assert first is not None
    apart, together = placements(first, 1, planner)
    for item, meetings in ((apart, 0), (together, 14 * 14 * 4)):
        cost = cost_of(item, range(1, 2), planner)
        alone = planner.cost(item.ops[1], item.resident, item.regions[1])
        assert cost
        assert alone
        assert (cost.cycles - alone.cycles, cost.traffic) == (meetings, alone.traffic)
    for item in (apart, together):
        program = compile_segment(item, config, passes=(Pass(choose_plans),))
        compare_outputs(program, ops, config)


def test_three_in_a_bank() -> None:
    """Each is behind the one before it, though the first has room behind it for all of them."""
    config = BOARDS["ulx3s-85f"].config
    ops = [
        conv("v0", whole("x", (1, 8, 8, 16), "input"), 16),
        conv("v1", whole("v0", (1, 8, 8, 16), "temp"), 16),
    ]
    for index in range(2, 6):
        ops.append(add_value(conv(f"v{index}", ops[-1].dst, 16, 3), ops[-2].dst))
    ops.append(conv("y", ops[-1].dst, 8, kind="output"))
    segment, planner = DeviceSegment("s", tuple(ops)), Planner(Target(config, 1.0))
    for index in range(6):
        places = list(placements(segment, index, planner))
        segment = next((place for place in places if place.resident[f"v{index}"] % unit(config)), places[0])
    assert len({at // unit(config) for at in segment.resident.values()}) == 1
    for index in range(2, 6):
        starts = sorted(segment.resident[f"v{at}"] for at in range(index - 2, index + 1))
        assert min(b - a for a, b in pairwise(starts)) >= 8 * 8
    program = compile_segment(segment, config, passes=(Pass(choose_plans),))
    compare_outputs(program, tuple(ops), config)


@pytest.mark.parametrize("name", ["tiny", "default"])
def test_vector_unit_uses_resident_results(name: str) -> None:
    """Pooling, sums, products and requantisation of what is on chip, wherever it is."""
    config, held = PRESETS[name], 0
    planner = Planner(Target(config))
    for seed in range(30):
        segment, _ = random_operators(np.random.default_rng([seed, config.n, 13]))
        kept = segment
        for index in range(len(segment.ops)):
            kept = with_resident(kept, index, planner) or kept
        if cost_of(kept, range(len(kept.ops)), planner) is not None:
            program = compile_segment(kept, config, passes=(Pass(choose_plans),))
            compare_outputs(program, segment.ops, config)
            held += len(kept.resident)
    assert held > 60


@pytest.mark.parametrize("name", ["ulx3s-85f", "default", "tiny"])
def test_every_placement_computes_right_results(name: str) -> None:
    config, shared = (PRESETS | {"ulx3s-85f": BOARDS["ulx3s-85f"].config})[name], 0
    planner = Planner(Target(config))
    for seed in range(16):
        rng = np.random.default_rng([seed, config.n, 9])
        segment, _ = random_convolutions(rng)
        held = segment
        for index in range(len(segment.ops)):
            places = list(placements(held, index, planner))
            held = places[[-1, int(rng.integers(len(places)))][seed % 2]] if places else held
        banks = [at // unit(config) for at in held.resident.values()]
        shared += len(banks) - len(set(banks))
        if cost_of(held, range(len(held.ops)), planner) is not None:
            program = compile_segment(held, config, passes=(Pass(choose_plans),))
            compare_outputs(program, segment.ops, config)
    assert shared > 2


def resident(ops: tuple[DeviceOp, ...], config: Config = DEFAULT) -> Mapping[str, int]:
    return keep_resident(DeviceSegment("s", ops), Planner(Target(config))).resident


def both_ways(ops: tuple[DeviceOp, ...]) -> list[DeviceProgram]:
    """Programs with the first result on chip, whatever that costs, and with it in DRAM."""
    moved = DeviceSegment("s", ops)
    kept = with_resident(moved, 0, Planner(Target(DEFAULT)))
    assert kept is not None
    return [compile_segment(segment, DEFAULT, passes=(Pass(choose_plans),)) for segment in (kept, moved)]


def touches(op: Conv, name: str) -> bool:
    return name in {view.buffer.name for view in (*op.sources, op.dst)}


def test_coordinates_of_tall_images() -> None:
    """Coordinates count from a tile's first row, because an image may exceed their range."""
    config = dataclasses.replace(PRESETS["tiny"], scratchpad_banks=16, scratchpad_depth=4096)
    first = conv("a", whole("x", (1, 40000, 1, 4), "input"), 4)
    second = dataclasses.replace(
        conv("y", first.dst, 4, kind="output"), weight=np.ones((4, 3, 1, 4), np.int16),
        window=Window((3, 1), pad=(1, 0, 1, 0)), scale=np.full(4, 0.05),
    )  # fmt: skip
    ops = (first, second)
    program = compile_segment(DeviceSegment("s", ops), config)
    assert "a" not in program.buffers
    compare_outputs(program, ops, config)


def test_two_convolutions_read_one_result() -> None:
    squeeze = conv("squeeze", whole("x", (1, 14, 14, 64), "input"), 16)
    both = whole("both", (1, 14, 14, 128), "output")
    expand = [
        dataclasses.replace(op, dst=View(both.buffer, (1, 14, 14, 64), c=64 * index))
        for index, op in enumerate((conv("e1", squeeze.dst, 64), conv("e3", squeeze.dst, 64, 3)))
    ]
    ops = (squeeze, *expand)
    program = compile_segment(DeviceSegment("s", ops), DEFAULT)
    assert "squeeze" not in program.buffers
    compare_outputs(program, ops, DEFAULT)


def test_every_second_pixel_of_a_resident_result() -> None:
    first = conv("a", whole("x", (1, 10, 14, 64), "input"), 96)
    ops = (first, conv("y", first.dst, 32, kind="output", stride=2))
    program = compile_segment(DeviceSegment("s", ops), DEFAULT)
    assert "a" not in program.buffers
    compare_outputs(program, ops, DEFAULT)


def test_a_matrix_read_as_an_image_of_the_same_channels() -> None:
    """Buffers of one name may have other shapes for those who read them: the order of pixels is the same."""
    first = conv("a", whole("x", (1, 1, 36, 24), "input"), 36)
    image = dataclasses.replace(first.dst.buffer, shape=(1, 6, 6, 36))
    second = conv("y", View(image, image.shape), 20, 3, "output")
    program = compile_segment(DeviceSegment("s", (first, second)), DEFAULT)
    assert "a" not in program.buffers
    compare_outputs(program, (first, second), DEFAULT)


def never_held() -> dict[str, tuple[DeviceOp, ...]]:
    x = whole("x", (1, 12, 12, 32), "input")
    first = conv("a", x, 32, 3)
    wide = whole("wide", (1, 12, 12, 64), "temp")
    part = dataclasses.replace(first, dst=View(wide.buffer, first.dst.shape))
    rest = dataclasses.replace(conv("b", x, 32), dst=View(wide.buffer, first.dst.shape, c=32))
    flat = View(dataclasses.replace(first.dst.buffer, shape=(1, 1, 1, 12 * 12 * 32)), (1, 1, 1, 12 * 12 * 32))
    even = conv("a", x, 48, 3)
    groups = dataclasses.replace(
        conv("y", even.dst, 48, 3, "output"), weight=np.ones((48, 3, 3, 12), np.int16), groups=4
    )
    uneven = dataclasses.replace(
        conv("a", x, 40, 3), weight=np.ones((40, 3, 3, 8), np.int16), groups=4, scale=np.full(40, 0.01)
    )
    return {
        "an output": (conv("a", x, 32, kind="output"), conv("y", first.dst, 8, kind="output")),
        "read by a softmax": (
            rows := conv("a", whole("x", (1, 1, 12, 32), "input"), 32),
            Softmax("softmax", rows.dst, whole("y", rows.dst.shape, "output"), 0.02, 0.004),
        ),
        "part of a buffer": (part, rest, conv("y", wide, 8, kind="output")),
        "written twice": (
            wider := conv("a", x, 64), dataclasses.replace(rest, dst=View(wider.dst.buffer, first.dst.shape, c=32)),
            conv("y", wider.dst, 8, kind="output"),
        ),
        "also added to what is made of it": (
            first, add_value(conv("y", first.dst, 32, kind="output"), first.dst)
        ),
        "part of what is read": (
            first, conv("y", View(first.dst.buffer, (1, 12, 12, 8)), 8, kind="output")
        ),
        "columns of what is read": (
            first, conv("y", View(first.dst.buffer, (1, 12, 6, 32), x=3), 8, kind="output")
        ),
        "every other row of what is read": (
            first, conv("y", View(first.dst.buffer, (1, 6, 12, 32), step=(2, 1)), 8, kind="output")
        ),
        "rows of two images": (
            two := conv("a", whole("x", (2, 12, 12, 32), "input"), 32),
            conv("y", View(two.dst.buffer, (2, 6, 12, 32), y=3), 8, kind="output"),
        ),
        "other channels": (first, conv("y", flat, 8, kind="output")),
        "pieces that are no vectors": (even, groups),
        "tiles that are no vectors": (uneven, conv("y", uneven.dst, 8, kind="output")),
        "too large": (
            big := conv("a", whole("x", (1, 60, 60, 16), "input"), 96), conv("y", big.dst, 8, kind="output")
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", never_held())
def test_results_that_cannot_stay_on_chip(case: str) -> None:
    ops = never_held()[case]
    if case == "an output":  # all agree about its kind
        ops = (ops[0], dataclasses.replace(ops[1], src=ops[0].dst))
    assert not resident(ops)
    compare_outputs(compile_segment(DeviceSegment("s", ops), DEFAULT), ops, DEFAULT)


def test_repeated_weights_prevent_residency() -> None:
    """Beside a result that stays there may be too little room for weights to stay."""
    first = conv("a", whole("x", (1, 14, 14, 1024), "input"), 256)
    ops = (first, conv("y", first.dst, 256, 3, "output"))
    assert not resident(ops)
    kept, moved = (sum(layer.dram_bytes for layer in program.layers) for program in both_ways(ops))
    assert kept > moved


def test_strides_that_no_field_holds() -> None:
    """In the largest scratchpad, rows may be farther apart than the stride field holds."""
    config = dataclasses.replace(DEFAULT, scratchpad_depth=8192)
    first = conv("a", whole("x", (1, 8, 5000, 16), "input"), 16)
    weight = np.ones((16, 2, 1, 16), np.int16)
    second = dataclasses.replace(
        conv("y", first.dst, 16), weight=weight, window=Window((2, 1), dilation=(7, 1)),
        dst=whole("y", (1, 1, 5000, 16), "output"),
    )  # fmt: skip
    ops = (first, second)
    assert not resident(ops, config)
    compare_outputs(compile_segment(DeviceSegment("s", ops), config), ops, config)


def cycles(program: DeviceProgram) -> int:
    image = Image(program)
    device = TimingDevice(DEFAULT, image.memory_bytes, latency=30)
    image.run(device, {})
    return device.counters()[Counter.CYCLES]


def test_few_channels_are_faster_from_dram() -> None:
    """Only LOAD lays windows of few channels side by side."""
    first = conv("a", whole("x", (1, 14, 14, 24), "input"), 4)
    second = conv("y", first.dst, 64, 3, "output")
    ops = (first, second)
    assert not resident(ops)
    kept, moved = both_ways(ops)
    compare_outputs(kept, ops, DEFAULT)
    assert cycles(kept) > 1.3 * cycles(moved)
