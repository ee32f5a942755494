"""Programs for small memories that share addresses compute equal results; first fit over time against a full search."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.op_cases import convolution, random_chain, random_convolutions, whole

from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, DeviceOp
from weft.compiler.ir.views import Buffer, View
from weft.compiler.machine.memory import Allocation, Packing, in_place
from weft.compiler.passes.keep_resident import keep_resident
from weft.compiler.pipeline import PIPELINE
from weft.compiler.verify import run_ops
from weft.hdl.checker.program import check
from weft.hdl.isa.config import PRESETS
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice

CONFIG = PRESETS["tiny"]
IN_MEMORY = tuple(item for item in PIPELINE if item.run is not keep_resident)
"""Passes that leave all results in memory."""
SHAPE = (1, 4, 4, 8)


def outputs(program: DeviceProgram, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    check(program.instructions, CONFIG, extents=program.areas.extents)
    image = Image(program)
    device = GoldenDevice(CONFIG, image.memory_bytes)
    image.run(device, inputs)
    kinds = {name: buffer.kind for name, buffer in program.buffers.items()}
    return {name: image.read(device, name).reshape(-1) for name, kind in kinds.items() if kind == "output"}


def count_shared_memory(program: DeviceProgram) -> Counter[str]:
    """Count pairs of buffers that share memory, by their kinds."""
    counts: Counter[str] = Counter()
    spans = [(program.areas.address(name), buffer) for name, buffer in program.buffers.items()]
    for index, (a, first) in enumerate(spans):
        for b, second in spans[:index]:
            if a < b + second.size and b < a + first.size:
                counts["-".join(sorted((first.kind, second.kind)))] += 1
                counts["same"] += a == b and first.shape == second.shape
    return counts


@pytest.mark.parametrize("draw", [random_chain, random_convolutions])
def test_reuse_keeps_outputs(draw) -> None:
    """Outputs equal the micro-ops', with reuse and without."""
    met: Counter[str] = Counter()
    less = 0
    for seed in range(9):
        segment, inputs = draw(np.random.default_rng(seed))
        expected = run_ops(segment, inputs, CONFIG.mantissa_bits)
        plain = compile_segment(segment, CONFIG, passes=IN_MEMORY)
        for room in (1 << 20, 1):
            program = compile_segment(segment, CONFIG, passes=IN_MEMORY, room=room)
            for name, shared in outputs(program, inputs).items():
                assert np.array_equal(shared, expected[name]), (seed, room, name)
            assert program.areas.values_bytes <= plain.areas.values_bytes
            less += program.areas.values_bytes < plain.areas.values_bytes
            met += count_shared_memory(program)
    assert less > 12
    assert met["input-temp"] > 3
    assert met["output-temp"] > 3
    assert met["same"] > 3


def test_without_reuse_every_value_stays() -> None:
    segment, _ = random_chain(np.random.default_rng(1))
    program = compile_segment(segment, CONFIG, passes=IN_MEMORY, reuse=False, room=1)
    assert not program.compact
    assert not count_shared_memory(program)


def add_values(*names: str, dst: str = "y", kind: str = "temp") -> Add:
    a, b = (whole(name, SHAPE, kind) for name in names)
    return Add("add", a, b, whole(dst, SHAPE, "temp"), 0.5, 0.5)


def replaced_operands(
    *ops: DeviceOp, resident: tuple[str, ...] = (), overlapped: tuple[int, ...] = ()
) -> dict[str, str]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for view in (*op.sources, op.dst):
            first.setdefault(view.buffer.name, index)
            last[view.buffer.name] = index
    return in_place(ops, resident, overlapped, first, last)


def test_which_operands_are_replaced() -> None:
    """The last reader replaces a whole buffer of equal shape, and nothing else."""
    value = whole("y", SHAPE, "temp")
    behind = convolution(value, 8).replace(dst=whole("z", SHAPE, "temp"))
    assert replaced_operands(add_values("a", "b")) == {"y": "a"}
    assert replaced_operands(add_values("a", "a")) == {}  # because an operand is read twice
    again = convolution(whole("a", SHAPE, "temp"), 8).replace(dst=whole("z", SHAPE, "temp"))
    assert replaced_operands(add_values("a", "b"), again) == {"y": "b"}
    assert replaced_operands(add_values("a", "b", kind="input")) == {}
    assert replaced_operands(add_values("a", "b"), resident=("a",)) == {"y": "b"}
    assert replaced_operands(add_values("a", "b"), behind, overlapped=(0,)) == {}
    assert replaced_operands(behind, add_values("z", "b", dst="w"), overlapped=(0,)) == {}
    assert replaced_operands(behind) == {}
    part = View(Buffer("a", (1, 4, 4, 16), "temp"), SHAPE)
    assert replaced_operands(add_values("a", "b").replace(a=part)) == {"y": "b"}
    fused = behind.replace(
        epilogue=Add("sum", whole("m", SHAPE, "temp"), whole("c", SHAPE, "temp"), behind.dst, 0.5, 0.5)
    )
    assert replaced_operands(fused) == {"z": "c"}
    own = fused.replace(epilogue=fused.epilogue.replace(b=value))
    assert replaced_operands(own) == {}  # the convolution reads its input repeatedly


def test_places_of_sums_in_turn() -> None:
    """A sum of a sum takes its first operand's place while any of them is in use."""
    ops = [
        add_values("a", "b", dst="s0"),
        add_values("s0", "c", dst="s1"),
        convolution(whole("s1", SHAPE, "temp"), 8).replace(dst=whole("d", SHAPE, "temp")),
        convolution(whole("d", SHAPE, "temp"), 8).replace(dst=whole("e", SHAPE, "output")),
    ]
    result = Allocation(ops, compact=True)
    assert result.offsets["a"] == result.offsets["s0"] == result.offsets["s1"]
    size = ops[0].dst.buffer.size
    assert abs(result.offsets["d"] - result.offsets["s1"]) >= size
    assert abs(result.offsets["c"] - result.offsets["s0"]) >= size
    assert max(result.offsets.values()) == size


def test_orders_of_packing() -> None:
    """By size alone the second result would lie between two larger ones."""
    sizes = (27, 18, 18, 36, 9)
    views = [
        whole(f"v{index}", (1, 1, size, 64), "temp" if index else "input") for index, size in enumerate(sizes)
    ]
    ops = [convolution(views[index], 64).replace(dst=views[index + 1]) for index in range(len(views) - 1)]
    result = Allocation(ops, compact=True)
    assert max(at + result.buffers[name].size for name, at in result.offsets.items()) == 64 * (18 + 36)


def test_saved_programs_stay_compact(tmp_path) -> None:
    import weft
    from weft.examples import digits

    program = weft.compile(digits.model(), "tang-primer-20k")
    plain = weft.compile(digits.model(), program.config)
    assert program.device_programs[0].compact
    assert not plain.device_programs[0].compact
    assert not weft.compile(digits.model(), "ulx3s-85f").device_programs[0].compact
    program.save(tmp_path / "program")
    image = {"image": digits.held_out()[0][:1]}
    results = [
        item.run(image).outputs["logits"] for item in (program, plain, weft.load(tmp_path / "program"))
    ]
    assert all(np.array_equal(results[0], result) for result in results)
    assert dataclasses.replace(program.device_programs[0], compact=False).areas.bases != (
        program.device_programs[0].areas.bases
    )


def test_inputs_and_outputs_are_not_overwritten() -> None:
    """Inputs live from the start until their last read; outputs live until the end."""
    x, late = whole("x", SHAPE, "input"), whole("late", SHAPE, "input")
    t0, t1, t2 = (whole(f"t{index}", SHAPE, "temp") for index in range(3))
    early, y = whole("early", SHAPE, "output"), whole("y", SHAPE, "output")
    ops = [
        convolution(x, 8).replace(dst=t0),
        convolution(t0, 8).replace(dst=early),
        convolution(t0, 8).replace(dst=t1),
        Add("add", t1, late, t2, 0.5, 0.5),
        convolution(t2, 8).replace(dst=y),
    ]
    result = Allocation(ops, compact=True).offsets
    size = t0.buffer.size
    for name, others in {
        "late": ("x", "t0", "t1", "early"),
        "early": ("t0", "t1", "t2", "late", "y"),
    }.items():
        assert all(abs(result[name] - result[other]) >= size for other in others), name


def lowest(size: int, first: int, last: int, placed: list[tuple[int, int, int, int]]) -> int:
    """Lowest free address by a full search of placed (start, size, first, last)."""
    start = 0
    for other, length, since, until in sorted(placed):
        if since <= last and first <= until and start < other + length and other < start + size:
            start = other + length
    return start


def test_first_fit() -> None:
    """Ranges of many sizes and lifetimes, most of them short."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        times = int(rng.integers(1, 60))
        packing, placed = Packing(times), list[tuple[int, int, int, int]]()
        for _ in range(60):
            size, first = int(rng.integers(1, 9)), int(rng.integers(times))
            last = min(times - 1, first + int(rng.integers(1 + int(rng.choice([2, times])))))
            start = packing.place(size, first, last)
            assert start == lowest(size, first, last, placed)
            placed.append((start, size, first, last))


def test_consecutive_ranges_share_addresses() -> None:
    packing = Packing(4)
    assert [packing.place(3, time, time) for time in range(4)] == [0] * 4
    assert packing.place(2, 0, 3) == 3
    assert packing.place(1, 2, 2) == 5
