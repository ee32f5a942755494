"""Programs whose proofs are attacked, of every kind that is certified, and what attacks on them come to.

A mutant differs from its program in words, constants, the network that it is compared with, or its manifest. What is
accepted has to compute what the network says, which is tried on 50 inputs (`support.extreme_inputs`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from support import op_cases
from support.certified_cases import CONFIGS, KINDS, compile_random, draw_network
from support.extreme_inputs import Inputs, extreme_inputs
from support.mutated import change_bytes, change_value, change_words
from support.op_cases import split_operators
from support.state_models import Ring, Svdf

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.operators.record import operator_of
from weft.extras.proof.certificate import placement_of
from weft.extras.proof.programs.graph import Graph, GraphError, decode, encode
from weft.extras.proof.programs.network import NOTHING, Network, Unknown
from weft.extras.proof.programs.proof import prove
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.programs.values import CONSTANTS, Values
from weft.extras.proof.tests.support.certified import fill, graph_before, place_program
from weft.hdl.isa import End
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.encoding import INT4_MAX, INT4_MIN
from weft.run.runtime import Image
from weft.sim.compiled.device import golden_device
from weft.sim.device import DeviceError

Rng = np.random.Generator
T = TypeVar("T")
REFUSED, SAME, DIFFERS = "refused", "accepted, the same", "accepted, but differs"


@dataclass(frozen=True)
class Result:
    """Result of a mutant: the changed part, `REFUSED`, `SAME` or `DIFFERS`, and the reason."""

    changed: str
    outcome: str
    reason: str = ""


class Subject(Protocol):
    """A program under attack."""

    def attack(self, rng: Rng) -> Result:
        """Change a part, try to prove it, and run what is accepted."""
        ...


def judge(changed: str, refusal: str, differs: Callable[[], str]) -> Result:
    """Return REFUSED with its reason, or else run the mutant to find a difference."""
    if refusal:
        return Result(changed, REFUSED, refusal)
    where = differs()
    return Result(changed, DIFFERS if where else SAME, where)


def another(draw: Callable[[], T], old: T) -> T:
    """Draw until the value differs from the old one."""
    while (made := draw()) == old:
        pass
    return made


class SegmentSubject:
    """The program of a device segment."""

    def __init__(self, segment: DeviceSegment, config: Config, program: DeviceProgram, rng: Rng) -> None:
        self.config, self.program, self.graph = config, program, graph_before(segment)
        self.whole = _is_whole(self.graph, config)
        self._inputs = _inputs(self.graph, program, rng)
        self._right = self._outputs(program)
        assert all(part is not None for part in self._right)
        assert self._refusal(self.graph, program) == ""

    def attack(self, rng: Rng) -> Result:
        changed = str(rng.choice(["words", "constants", "networks"], p=[0.45, 0.25, 0.3]))
        if changed == "networks":
            stored = msgspec.msgpack.decode(encode(self.graph))
            return self._network(another(lambda: change_value(rng, stored), stored))
        if changed == "constants" and self.program.constants:
            old = self.program.constants
            other = dataclasses.replace(self.program, constants=another(lambda: change_bytes(rng, old), old))
        else:
            changed, items = (
                "words",
                [item for item in self.program.instructions if not isinstance(item, End)],
            )
            code = another(lambda: Code.of([*change_words(rng, items), End()]), self.program.instructions)
            other = dataclasses.replace(self.program, instructions=code)
        return judge(changed, self._refusal(self.graph, other), lambda: self._first_difference(other))

    def _refusal(self, graph: Graph, program: DeviceProgram) -> str:
        try:
            place = placement_of if self.whole else place_program
            prove(graph, self.config, place(program), 1)
        except Unproven as error:
            return str(error)
        except MemoryError:
            return "it takes more memory than there is"
        return ""

    def _network(self, stored: Any) -> Result:
        try:
            graph = decode(msgspec.msgpack.encode(stored))
        except (GraphError, OverflowError) as error:
            return Result("networks", REFUSED, str(error))
        return judge("networks", self._refusal(graph, self.program), lambda: self._find_difference(graph))

    def _find_difference(self, graph: Graph) -> str:
        """Return where a network differs from the program's results."""
        for index, (point, right) in enumerate(zip(self._inputs, self._right, strict=True)):
            assert right is not None
            try:
                meant = numbers(graph, self.config, point)
            except Unknown as error:
                return f"input {index}: {error}"
            for name, part in meant.items():
                if name not in right:  # it only becomes a state
                    continue
                result = np.frombuffer(right[name], np.uint8)
                if (part != NOTHING).any() and (result != part)[part != NOTHING].any():
                    return f"input {index}: {name}"
        return ""

    def _first_difference(self, program: DeviceProgram) -> str:
        for index, (result, right) in enumerate(zip(self._outputs(program), self._right, strict=True)):
            if result != right:
                return f"input {index}"
        return ""

    def _outputs(self, program: DeviceProgram) -> list[dict[str, bytes] | None]:
        """Return outputs and states after runs, the first from arbitrary memory; None where the device refuses the
        program."""
        image, rng = Image(program), np.random.default_rng(1)
        device = golden_device(self.config, image.memory_bytes)
        fill(device, rng)
        names = [name for name, buffer in program.buffers.items() if buffer.kind in ("output", "state")]
        result: list[dict[str, bytes] | None] = []
        for point in self._inputs:
            try:
                image.run(device, point)
            except DeviceError:
                result.append(None)
                continue
            result.append({name: image.read(device, name).tobytes() for name in names})
        return result


def _is_whole(graph: Graph, config: Config) -> bool:
    """Return whether a network computes every byte of its outputs; some random operators leave bytes between."""
    network = Network(Values(1), config)
    for name, size in graph.inputs.items():
        network.buffers[name] = network.values.new_inputs(size)
    network.run(graph)
    return all((network.buffers[name] != NOTHING).all() for name in graph.outputs)


def numbers(graph: Graph, config: Config, point: Inputs) -> dict[str, np.ndarray]:
    """Return a network's output bytes and next states for an input, or `NOTHING`."""
    values = Values(1)
    network = Network(values, config)
    for name in graph.inputs:
        network.buffers[name] = point[name].ravel().view(np.uint8).astype(np.int64)
    network.run(graph)
    result = {name: network.buffers[name] for name in graph.outputs}
    result |= {state: network.buffers[name] for state, name in graph.states.items()}
    assert all((part < CONSTANTS).all() for part in result.values())
    return result


def _inputs(graph: Graph, program: DeviceProgram, rng: Rng) -> list[Inputs]:
    tables = {
        op.sources[0].buffer: op.arrays["values"].shape for op in graph.operators if op.kind == "Embedding"
    }
    shapes = {name: program.input_shape(name) for name in graph.inputs}
    return extreme_inputs(rng, shapes, {name: (rows, pitch) for name, (rows, pitch) in tables.items()})


# --- kinds


def _convolutions(seed: int, rng: Rng) -> SegmentSubject:
    segment, config = draw_network(seed)
    return SegmentSubject(segment, config, compile_segment(segment, config), rng)


def _kernels(kind: str, seed: int, rng: Rng) -> SegmentSubject:
    segment, config = compile_random(kind, seed)
    return SegmentSubject(segment, config, compile_segment(segment, config), rng)


def _int4(seed: int, rng: Rng) -> SegmentSubject:
    """Convolutions and products with 4-bit weights."""
    while True:
        config = PRESETS[("tiny", "small", "default")[int(rng.integers(3))]].replace(int4=1)
        segment = op_cases.random_convolutions(rng, 6, 20)[0]
        if rng.random() < 0.5:
            segment = op_cases.segment_of(op_cases.random_matmul(rng))
        ops = [
            op.replace(weight=np.clip(op.weight, INT4_MIN, INT4_MAX))
            for op in segment.ops
            if isinstance(op, Conv)
        ]
        narrow = dataclasses.replace(segment, ops=tuple(ops))
        if not _supported(narrow, config):
            continue
        program = compile_segment(narrow, config)
        if program.narrow_bytes:
            return SegmentSubject(narrow, config, program, rng)


def _supported(segment: DeviceSegment, config: Config) -> bool:
    ops = [item for op in segment.ops for item in (split_operators(op) if isinstance(op, Conv) else (op,))]
    tables = config.lookup_tables or all(op.lookup is None for op in ops)
    return bool(tables) and not any(operator_of(op).unsupported(op, config) for op in ops)


def _states(seed: int, rng: Rng) -> SegmentSubject:
    """Programs that carry state from run to run."""
    model = (
        Ring(seed, taps=3, channels=4, outputs=3)
        if seed % 2
        else Svdf(seed, inputs=6, units=4, rank=2, memory=3)
    )
    config = CONFIGS[sorted(CONFIGS)[seed // 2 % len(CONFIGS)]]
    segments = import_model(model.build(), config=config).segments
    segment = next(item for item in segments if isinstance(item, DeviceSegment) and item.states)
    return SegmentSubject(segment, config, compile_segment(segment, config), rng)


SEQUENTIAL = [board.config for board in BOARDS.values() if board.core is CoreKind.SEQUENTIAL]


def _sequential(seed: int, rng: Rng) -> SegmentSubject:
    """Programs for the sequential core: boards' own configurations, with kernels and softmax."""
    while True:
        if rng.random() < 0.5:
            segment, config = compile_random(str(rng.choice(sorted(KINDS))), int(rng.integers(1 << 30)))
        else:
            config = SEQUENTIAL[int(rng.integers(len(SEQUENTIAL)))]
            segment = op_cases.random_mixture(rng, 6, 16, products=bool(config.multiply))[0]
        if _supported(segment, config):
            try:
                program = compile_segment(segment, config, sequential=True)
            except CompileError:
                continue
            return SegmentSubject(segment, config, program, rng)


def _compact(seed: int, rng: Rng) -> SegmentSubject:
    """Programs whose inputs and outputs share memory with temporaries."""
    while True:
        config = PRESETS[("tiny", "small")[int(rng.integers(2))]]
        segment = op_cases.random_chain(rng, 7, 12)[0]
        if _supported(segment, config):
            program = compile_segment(segment, config, room=1 << 14)
            assert program.compact
            return SegmentSubject(segment, config, program, rng)


SEGMENTS: dict[str, Callable[[int, Rng], SegmentSubject]] = {
    "convolutions": _convolutions,
    **{kind: partial(_kernels, kind) for kind in KINDS},
    "4-bit weights": _int4,
    "states": _states,
    "sequential core": _sequential,
    "shared memory": _compact,
}
