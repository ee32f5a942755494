"""Confirmation of Pareto-optimal points: the cycle model by the RTL, estimates by synthesis, several at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from weft.boards.build.build import synthesised_resources
from weft.boards.errors import BoardError, ToolError
from weft.boards.families.family import Resources
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention, DeviceOp, DeviceSegment
from weft.compiler.ir.views import View
from weft.configurations import room_of
from weft.extras.search.explore import workers as results
from weft.extras.search.explore.evaluate import Models, device_segments
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.point import Measured
from weft.extras.search.explore.workers import DIED, Workers
from weft.hdl.isa import Opcode
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.compiled.device import golden_device
from weft.sim.device import DeviceError
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import SequentialTimingDevice, TimingDevice
from weft.sim.timing.hardware import NORMALISING
from weft.sim.verilate import BuildError

PREFERRED_CYCLES = 100_000
"""Cycles of the largest layer to run on the RTL, if any layer is that short."""
MAX_CYCLES = 2_000_000
"""Limit for the shortest layer otherwise; small arrays simulate fast."""
MAX_DEVIATION = 0.10
"""Largest deviation of synthesis from the estimate, as a fraction of the estimate."""


@dataclass(frozen=True)
class Run:
    """Run of a layer on the RTL.

    Attributes
    ----------
    layer : str
        Its name; empty if no layer with multiplications takes `MAX_CYCLES` or less, so that nothing is confirmed.
    mismatches : int
        Bytes of memory in which RTL and golden interpreter differ.
    rtl, model : int
        Cycles on the RTL, and by the cycle model.
    tolerance : int
        Cycles by which they may differ: 0, unless they depend on data.
    """

    layer: str
    mismatches: int = 0
    rtl: int = 0
    model: int = 0
    tolerance: int = 0

    @property
    def good(self) -> bool:
        return bool(self.layer) and self.mismatches == 0 and abs(self.rtl - self.model) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "layer": self.layer, "differ": self.mismatches, "rtl": self.rtl, "model": self.model,
            "within": self.tolerance, "good": self.good,
        }  # fmt: skip

    @property
    def summary(self) -> str:
        """One line for the user."""
        if not self.layer:
            return f"nothing to run: no layer with multiplications takes {MAX_CYCLES:,} cycles or fewer"
        if self.mismatches:
            return f"{self.mismatches:,} bytes of {self.layer} differ"
        equal = self.rtl == self.model
        return f"{self.layer}: {self.rtl:,} cycles" + ("" if equal else f", the model's {self.model:,}")


@dataclass(frozen=True)
class Synthesis:
    """Resources by synthesis and by estimate; `lacking` names the resources that exceed the board's."""

    counted: Resources
    estimated: Resources
    lacking: tuple[str, ...] = ()

    @property
    def deviations(self) -> dict[str, float]:
        """Relative deviation of synthesis from the estimate, by resource."""
        estimates = dict(self.estimated.items())
        return {name: count / max(estimates[name], 1) - 1 for name, count in self.counted.items()}

    @property
    def good(self) -> bool:
        """True if LUTs and flip-flops are within `MAX_DEVIATION` of the estimate, and the board has all resources."""
        return not self.lacking and all(abs(self.deviations[name]) <= MAX_DEVIATION for name in ("lut", "ff"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file."""
        counted = dict(self.counted.items())
        return {
            "counted": counted,
            "apart": self.deviations,
            "lacking": list(self.lacking),
            "good": self.good,
        }

    @property
    def summary(self) -> str:
        """One line for the user."""
        return ", ".join(
            f"{Resources.NAMES[name]} {count:,} ({self.deviations[name]:+.1%}"
            f"{', more than the board has' if name in self.lacking else ''})"
            for name, count in self.counted.items()
        )


def run_layer(item: Measured, models: Models, seed: int = 0) -> Run:
    """Run one layer with random inputs on RTL, golden interpreter and cycle model.

    It is the largest layer of at most `PREFERRED_CYCLES` or, if none is that short, the one with the fewest cycles, at
    most `MAX_CYCLES`. Attention is chosen last, because its cycles depend on data. The memory is a plain one with the
    latency and bandwidth for which programs are planned, because the RTL simulation has no SDRAM.

    Raises
    ------
    weft.sim.device.DeviceError
        If the RTL simulation fails.
    weft.sim.verilate.BuildError
        If the RTL, or the cycle model, cannot be built.
    """
    layer = min(_candidate_layers(item, models, seed), key=lambda layer: layer.cycles, default=None)
    if layer is None or layer.cycles > MAX_CYCLES:
        return Run("")
    mismatches, rtl = _compare(item, layer.image, layer.contents)
    return Run(layer.op.name, mismatches, rtl, layer.cycles, _cycle_tolerance(item, layer.program))


def synthesise(item: Measured) -> Synthesis:
    """Synthesise the configuration for the point's board, at the board's clock.

    Without a board, use the board whose estimates apply.

    Raises
    ------
    weft.boards.errors.ToolError
        If a tool fails, or is not installed.
    """
    place = item.point.place
    counted = synthesised_resources(place.estimate_board, item.point.config)
    available = None if place.board is None else place.board.available
    lacking = (name for name, count in counted.items() if available and count > getattr(available, name))
    return Synthesis(counted, item.need, tuple(lacking))


class _Layer(NamedTuple):
    op: DeviceOp
    program: DeviceProgram
    image: Image
    contents: dict[str, np.ndarray]
    cycles: int


def _candidate_layers(item: Measured, models: Models, seed: int) -> Iterator[_Layer]:
    """Yield layers with their cycles by the model, up to the first one of at most `PREFERRED_CYCLES`.

    Layers that certainly take longer, and attention, come only if no earlier layer takes `MAX_CYCLES` or less.
    """
    found_short = False
    for op, program in _layers(item, models):
        if found_short and (isinstance(op, Attention) or _is_long(op, item)):
            return
        image, contents = Image(program), _contents(program, seed)
        model = _timing(item, image)
        image.run(model, contents)
        cycles = model.counters()[Counter.CYCLES]
        yield _Layer(op, program, image, contents, cycles)
        if cycles <= PREFERRED_CYCLES:
            return
        # A layer of at most `MAX_CYCLES` will do if no shorter one follows.
        found_short |= cycles <= MAX_CYCLES


def _is_long(op: DeviceOp, item: Measured) -> bool:
    # The array does at most n * n multiplications per cycle.
    return op.macs > PREFERRED_CYCLES * item.point.config.n**2


def _layers(item: Measured, models: Models) -> Iterator[tuple[DeviceOp, DeviceProgram]]:
    """Yield operators with multiplications and their programs, if the array can finish them in `MAX_CYCLES`.

    Convolutions come first, of these the largest that the array can finish in `PREFERRED_CYCLES`, then the others by
    size.
    """
    config, board = item.point.config, item.point.place.board
    bandwidth, room = item.point.place.memory[1], None if board is None else room_of(board.name, config)
    ops = [op for graph in models.graphs(config) for segment in device_segments(graph) for op in segment.ops]
    ops = [op for op in ops if 0 < op.macs <= MAX_CYCLES * config.n**2]
    ops.sort(key=lambda op: (isinstance(op, Attention), op.macs if _is_long(op, item) else -op.macs))
    for op in ops:
        try:
            program = compile_segment(
                DeviceSegment(op.name, (_isolate(op),)),
                config,
                bandwidth=bandwidth,
                room=room,
                sequential=item.point.place.sequential,
            )
        except CompileError:
            # It fits only when fused with another operator.
            continue
        yield op, program


def _cycle_tolerance(item: Measured, program: DeviceProgram) -> int:
    """Return the number of cycles by which the cycle model may be wrong.

    The pipelined core's division for a softmax row takes a time that depends on the row's sum, which is data. The
    sequential core's model knows the data.
    """
    if item.point.place.sequential:
        return 0
    code, opcode = program.instructions, Opcode.NORMALISE
    indices = np.flatnonzero(code.opcodes == int(opcode))
    rows = code.field("ob", opcode, indices) * code.field("oy", opcode, indices)
    return NORMALISING * int(rows.sum())


def _isolate(op: DeviceOp) -> DeviceOp:
    """Turn results of other operators into inputs and outputs."""

    def isolate_view(view: View) -> View:
        kind = view.buffer.kind
        if kind not in ("table", "pages", "state"):
            kind = "output" if view.buffer.name == op.dst.buffer.name else "input"
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind=kind))

    return op.map_views(isolate_view)


def _timing(item: Measured, image: Image) -> TimingDevice:
    latency, bandwidth = item.point.place.memory
    kind = SequentialTimingDevice if item.point.place.sequential else TimingDevice
    return kind(item.point.config, image.memory_bytes, latency=latency, bandwidth=bandwidth)


def _contents(program: DeviceProgram, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-128, 128, program.input_shape(name), np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


def _compare(item: Measured, image: Image, contents: dict[str, np.ndarray]) -> tuple[int, int]:
    """Return the number of mismatching bytes, and the RTL's cycles."""
    config, (latency, bandwidth) = item.point.config, item.point.place.memory
    golden = golden_device(config, image.memory_bytes)
    image.run(golden, contents)
    expected = np.frombuffer(golden.read(0, image.memory_bytes), np.uint8)
    with RtlDevice(
        config,
        image.memory_bytes,
        latency=latency,
        bandwidth=bandwidth,
        sequential=item.point.place.sequential,
    ) as device:
        image.run(device, contents)
        memory = np.frombuffer(device.read(0, image.memory_bytes), np.uint8)
        return int(np.count_nonzero(memory != expected)), device.counters()[Counter.CYCLES]


VERIFIED, SYNTHESISED = "verified", "synthesised"
"""Kinds of checks: run a layer on the RTL, or synthesise the hardware."""
POLL_INTERVAL = 0.5
"""Seconds between polls for finished checks."""
Name = tuple[int, str]
"""Number of a point on the front, from 1 on, and kind of the check."""
Outcomes = dict[tuple[Config, str], dict[str, Any]]
"""Details of finished checks, by `Point.key` and kind."""


# Files call the fields "told" and "described".
class Outcome(msgspec.Struct, frozen=True, rename={"summary": "told", "details": "described"}):
    """Outcome of a check.

    Attributes
    ----------
    summary : str
        One line for the user.
    details : dict
        Plain values; ``good`` tells whether the check passed.
    """

    summary: str
    details: dict[str, Any]

    @classmethod
    def of(cls, result: Run | Synthesis) -> Outcome:
        return cls(result.summary, result.to_dict())

    @classmethod
    def failure(cls, reason: str) -> Outcome:
        return cls(reason, {"failed": reason, "good": False})


ABANDONED = Outcome.failure(DIED)


@dataclass(frozen=True)
class Check:
    """Check that a worker runs.

    Attributes
    ----------
    kind : str
        `VERIFIED` or `SYNTHESISED`.
    seed : int
        Seed of a layer's inputs.
    folder : str
        Folder for outcomes, shared by all workers.
    """

    kind: str
    item: Measured
    models: Models
    seed: int
    folder: str

    @property
    def key(self) -> str:
        """Hash of everything that the outcome of an RTL run depends on."""
        point = self.item.point
        return results.result_key(
            __file__, self.models.digests, self.models.shapes, point.config.to_dict(),
            point.place.name, point.place.memory, self.seed,
        )  # fmt: skip


def run_check(check: Check) -> Outcome:
    """Run a check and return its outcome.

    The check's folder keeps outcomes of RTL runs, and weft's cache keeps synthesis results. Failed checks run again the
    next time.
    """
    try:
        return _run(check) if check.kind == VERIFIED else Outcome.of(synthesise(check.item))
    except (BoardError, BuildError, DeviceError, ToolError) as error:
        return Outcome.failure(str(error))


def _run(check: Check) -> Outcome:
    path = Path(check.folder) / f"run-{check.key}" / "outcome.json"
    return results.run_once(
        path, Outcome, lambda: Outcome.of(run_layer(check.item, check.models, check.seed))
    )


def make_checks(
    exploration: Exploration, models: Models, seed: int, kinds: Sequence[str], folder: Path
) -> dict[Name, Check]:
    """Return the checks of the kinds in `kinds` for each point of the front."""
    return {
        (number, kind): Check(kind, item, models, seed, str(folder.resolve()))
        for number, item in enumerate(exploration.pareto_front, 1)
        for kind in kinds
    }


def confirm_all(
    checks: Mapping[Name, Check],
    workers: Workers[Check, Outcome],
    report: Callable[[Name, Check, Outcome, Outcomes], None],
    progress: Callable[[str], None] = lambda text: None,
) -> bool:
    """Run checks on workers; return whether all of them passed.

    Parameters
    ----------
    report : callable
        Called with each outcome, and with all outcomes so far.

    Raises
    ------
    weft.extras.search.explore.workers.WorkersError
        If the scheduler is lost.
    """
    outcomes: Outcomes = {}
    good, count = True, 0
    for name, check in checks.items():
        workers.add(name, check)
    try:
        while workers.running:
            progress(f"confirming points of the front: {count:,} of {len(checks):,} checks done")
            for name, outcome in workers.collect(POLL_INTERVAL):
                check, count = checks[name], count + 1
                outcomes.setdefault(check.item.point.key, {})[check.kind] = outcome.details
                good &= outcome.details["good"]
                report(name, check, outcome, outcomes)
    finally:
        workers.close()
    return good
