"""States between runs, in place or copied: always equal to the micro-ops, run after run."""

from __future__ import annotations

import numpy as np
import pytest
from support.op_cases import convolution, draw, whole
from support.repeated import repeated

from weft.compiler.backend import compile_segment
from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Rescale
from weft.compiler.ir.model import dump_segment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.areas import Areas
from weft.compiler.machine.target import Target
from weft.compiler.passes.views import store_states
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_segment
from weft.hdl.checker.program import check
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

TINY = PRESETS["tiny"]
SHAPE = (1, 3, 4, 6)
X, Y = whole("x", SHAPE, "input"), whole("y", SHAPE, "output")
S, T, NEW = whole("s", SHAPE, "state"), whole("t", SHAPE, "state"), whole("new", SHAPE, "output")


def store(*ops: DeviceOp, **states: str) -> DeviceSegment:
    segment = DeviceSegment("device0", ops, states=states or {"s": "new"})
    verify_segment(segment)
    actual = store_states(segment, Planner(Target(TINY)))
    verify_segment(actual)
    assert not actual.states
    return actual


def copies(segment: DeviceSegment) -> list[str]:
    return [op.name for op in segment.ops if op.name.endswith(":kept")]


def test_state_is_in_place_if_its_old_value_is_dead() -> None:
    """Readers of the new value read it in place, too."""
    result = store(Add("a", X, S, Y, 1.0, 1.0), Rescale("b", X, NEW), Rescale("c", NEW, Y))
    assert not copies(result)
    assert [op.dst.buffer.name for op in result.ops] == ["y", "s", "y"]
    assert result.ops[2].sources[0].buffer == S.buffer


def test_state_is_copied_if_its_old_value_is_read_later() -> None:
    assert copies(store(Add("a", X, S, NEW, 1.0, 1.0))) == ["s:kept"]
    assert copies(store(Rescale("b", X, NEW), Add("a", X, S, Y, 1.0, 1.0))) == ["s:kept"]
    result = store(Rescale("b", X, NEW), Add("a", X, S, Y, 1.0, 1.0))
    assert {view.buffer for op in result.ops for view in (*op.sources, op.dst) if view.buffer.name == "new"} == {
        Buffer("new", SHAPE, "temp"), Buffer("new", (1, 1, 1, 72), "temp"),
    }  # fmt: skip


def test_an_epilogue_that_reads_the_old_value_is_a_reader_of_it() -> None:
    conv = convolution(X, 6, Window((1, 1)), name="product", kind="temp")
    fused = conv.replace(dst=NEW, epilogue=Add("sum", conv.dst, S, NEW, 1.0, 1.0))
    result = store(fused, Rescale("c", NEW, Y))
    assert copies(result) == ["s:kept"]
    conv = result.ops[0]
    assert isinstance(conv, Conv)
    assert conv.epilogue is not None
    assert conv.dst.buffer == conv.epilogue.dst.buffer == Buffer("new", SHAPE, "temp")


def test_an_epilogue_that_reads_the_new_value_reads_it_in_its_place() -> None:
    conv = convolution(X, 6, Window((1, 1)), name="product", kind="temp")
    fused = conv.replace(dst=Y, epilogue=Add("sum", conv.dst, NEW, Y, 1.0, 1.0))
    result = store(Rescale("b", S, whole("other", SHAPE, "temp")), Rescale("c", X, NEW), fused)
    assert not copies(result)
    conv = result.ops[2]
    assert isinstance(conv, Conv)
    assert conv.sources[1].buffer == S.buffer


def test_one_value_that_two_states_become() -> None:
    ops = (Add("a", S, T, Y, 1.0, 1.0), Rescale("b", X, NEW))
    result = store(*ops, s="new", t="new")
    assert copies(result) == ["t:kept"]
    assert result.ops[2].sources[0].buffer.name == "s"
    # Where the first one is read late, the second takes the place.
    late = (Rescale("a", T, Y), Rescale("b", X, NEW), Rescale("c", S, whole("z", SHAPE, "output")))
    assert copies(store(*late, s="new", t="new")) == ["s:kept"]


def test_parts_by_several_writers_are_in_place_after_all_readers() -> None:
    buffer = Buffer("new", (1, 3, 8, 6), "output")
    halves = [View(buffer, SHAPE, x=at) for at in (0, 4)]
    state = View(Buffer("s", buffer.shape, "state"), SHAPE, x=4)
    first, second = Rescale("a", state, halves[0]), Rescale("b", X, halves[1])
    assert copies(store(first, second)) == ["s:kept"]
    middle = whole("middle", SHAPE, "temp")
    assert not copies(store(Rescale("a", state, middle), Rescale("c", middle, halves[0]), second))


def test_copies_beside_resident_results_use_the_whole_scratchpad() -> None:
    ops = (Add("a", X, S, NEW, 1.0, 1.0),)
    segment = DeviceSegment("device0", ops, regions=((3, 5),), states={"s": "new"})
    assert store_states(segment, Planner(Target(TINY))).regions == ((3, 5), (0, TINY.scratchpad_size))


def test_segments_list_next_states() -> None:
    text = dump_segment(DeviceSegment("d", (Add("a", X, S, NEW, 1.0, 1.0),), states={"s": "new"}))
    assert "  s becomes new at the end\n" in text


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ((Add("a", X, S, Y, 1.0, 1.0),), "state 's': buffer 'new' is no output that is written"),
        ((Add("a", X, S, whole("new", SHAPE, "temp"), 1.0, 1.0),), "buffer 'new' is no output"),
        (
            (Rescale("a", whole("s", SHAPE, "input"), NEW),),
            r"state 's' is \(1, 3, 4, 6\) input, but becomes \(1, 3, 4, 6\)",
        ),
        (
            (Rescale("a", whole("s", (1, 3, 4, 5), "state"), whole("y", (1, 3, 4, 5), "output")), Rescale("b", X, NEW)),
            r"state 's' is \(1, 3, 4, 5\) state, but becomes \(1, 3, 4, 6\)",
        ),
    ],
)  # fmt: skip
def test_states_that_are_wrong(ops: tuple[DeviceOp, ...], why: str) -> None:
    with pytest.raises(IrError, match=why):
        verify_segment(DeviceSegment("d", ops, states={"s": "new"}))


def test_only_programs_with_states_have_an_area_for_them() -> None:
    buffers = {"x": X.buffer, "y": Y.buffer}
    offsets = dict.fromkeys(("x", "y", "s"), 0)
    without = Areas(64, 64, buffers, offsets)
    areas = Areas(64, 64, buffers | {"s": S.buffer}, offsets)
    assert set(areas.bases) - set(without.bases) == {7}
    assert areas.memory_bytes - without.memory_bytes == 256
    assert areas.address("s") == without.memory_bytes


def draw_segment(seed: int) -> DeviceSegment:
    """Operators that read and make states in any order."""
    rng = np.random.default_rng(seed)
    shape = (1, draw(rng, 1, 4), draw(rng, 1, 9), draw(rng, 1, 20))
    known = [whole("x", shape, "input"), *(whole(f"s{at}", shape, "state") for at in range(draw(rng, 1, 3)))]
    count, ops = draw(rng, len(known), 7), list[DeviceOp]()
    for index in range(count):
        a, b = (known[int(at)] for at in rng.integers(len(known), size=2))
        kind = "output" if index >= count - len(known) else "temp"
        dst = whole(f"v{index}", shape, kind)
        match draw(rng, 0, 4):
            case 0:
                op: DeviceOp = Rescale(f"op{index}", a, dst, float(rng.uniform(0.2, 1)))
            case 1:
                op = Rescale(f"op{index}", a, dst)
            case 2 if a.buffer.name != b.buffer.name:
                op = Multiply(f"op{index}", a, b, dst, 0.01)
            case 3:
                op = convolution(a, shape[3], Window((3, 3), pad=(1, 1, 1, 1))).replace(
                    name=f"op{index}", dst=dst
                )
            case _:
                op = Add(f"op{index}", a, b, dst, 0.6, -0.7)
        ops.append(op)
        known.append(dst)
    result = [op.dst.buffer.name for op in ops if op.dst.buffer.kind == "output"]
    ops[-1] = ops[-1].replace(dst=whole("y", shape, "output"))
    states = {
        view.buffer.name: str(rng.choice(result[:-1] or ["y"]))
        for view in known
        if view.buffer.kind == "state"
        and any(view.buffer.name == read.buffer.name for op in ops for read in op.sources)
    }
    return DeviceSegment("device0", tuple(ops), states=states)


def run(device: Device, image: Image, segment: DeviceSegment, seed: int, config: Config) -> None:
    """Three runs, of which each finds in memory what the one before left."""
    rng, program = np.random.default_rng(seed), image.program
    names = {view.buffer.name: view.buffer for op in segment.ops for view in op.sources}
    kept = {name: rng.integers(-128, 128, names[name].size).astype(np.int8) for name in segment.states}
    for name, value in kept.items():
        device.write(image.address(name), value.tobytes())
    for _ in range(3):
        inputs = {
            name: rng.integers(-128, 128, buffer.size).astype(np.int8)
            for name, buffer in names.items()
            if buffer.kind == "input"
        }
        image.run(device, {name: value for name, value in inputs.items() if name in program.buffers})
        memory = run_ops(segment, {**inputs, **kept}, config.mantissa_bits)
        kept = {name: memory[name] for name in segment.states}
        for name, buffer in program.buffers.items():
            if buffer.kind in ("output", "state"):
                assert np.array_equal(image.read(device, name).reshape(-1), memory[name]), name


@repeated("seed", range(60))
def test_drawn_on_golden(seed: int) -> None:
    config = PRESETS[("tiny", "small")[seed % 2]]
    segment = draw_segment(seed)
    program = compile_segment(segment, config, reuse=seed % 5 > 0)
    check(program.instructions, config, extents=program.areas.extents)
    image = Image(program)
    run(GoldenDevice(config, image.memory_bytes), image, segment, seed, config)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_on_rtl(seed: int) -> None:
    segment = draw_segment(100 + seed)
    image = Image(compile_segment(segment, TINY))
    with RtlDevice(TINY, image.memory_bytes, latency=7, stall_probability=0.3, stall_seed=seed) as device:
        run(device, image, segment, seed, TINY)


def test_drawn_segments_are_of_both_kinds() -> None:
    planner = Planner(Target(TINY))
    actual = [copies(store_states(draw_segment(seed), planner)) for seed in range(60)]
    assert 5 < sum(map(bool, actual)) < 55


def test_segments_without_states_stay_as_they_are() -> None:
    segment = DeviceSegment("device0", (Rescale("a", X, Y),))
    assert store_states(segment, Planner(Target(TINY))) is segment
