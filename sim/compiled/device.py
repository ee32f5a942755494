"""The compiled interpreter as a device."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

import weft.sim.timing.hardware as hardware
from weft.hdl.cache import entry
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    WORD_BYTES,
    Instruction,
    IsaError,
    Kernel,
    Opcode,
    Queue,
    register_fields,
    required_features,
)
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import check_kernel, kernel_at
from weft.sim.golden.interpreter import GoldenDevice, Stretch, Walk
from weft.sim.verilate import BuildError, Tools, compiler

_HERE = Path(__file__).parent
_SHARED = Path(hardware.__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-fwrapv", "-shared", "-fvisibility=hidden")
_OPTIMISE = "-O3"
_NATIVE = ("-march=native", "--param=max-completely-peel-times=1")
"""Flags that not all compilers know. The second one has g++ make vector instructions of loops over the N elements of a
vector, rather than N copies of what is in them."""


class State(ctypes.Structure):
    """As in memories.h."""

    _fields_ = [
        ("dram", ctypes.c_void_p),
        ("dram_bytes", ctypes.c_uint64),
        ("scratchpad", ctypes.c_void_p),
        ("accumulator", ctypes.c_void_p),
        ("alignments", ctypes.c_void_p),
        ("maxima", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("lookup", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("scratchpad_size", ctypes.c_int64),
        ("accumulator_size", ctypes.c_int64),
        ("alignment_count", ctypes.c_int64),
        ("state_count", ctypes.c_int64),
        ("table_depth", ctypes.c_int64),
        ("mantissa_bits", ctypes.c_int64),
        ("depthwise_taps", ctypes.c_int64),
        ("lookup_tables", ctypes.c_int64),
        ("bus_bytes", ctypes.c_int64),
        ("wide_activations", ctypes.c_int64),
        ("words", ctypes.c_void_p),
        ("foreign", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("frames", ctypes.c_void_p),
        ("registers", ctypes.c_void_p),
        ("read_only", ctypes.c_void_p),
        ("read_only_count", ctypes.c_uint64),
        ("order", ctypes.c_void_p * len(Queue)),
        ("order_count", ctypes.c_uint64 * len(Queue)),
        ("next", ctypes.c_uint64 * len(Queue)),
        ("available", ctypes.c_int64 * SEMAPHORES),
        ("executed", ctypes.c_uint64),
        ("bases", ctypes.c_void_p),
    ]


@cache
def library() -> ctypes.CDLL:
    """The compiled interpreter, from the cache if it was built before.

    Raises
    ------
    weft.sim.verilate.BuildError
        If there is no C++ compiler, or it fails.
    """
    sources = [
        *sorted(_HERE.glob("*.h")),
        _HERE / "interpreter.cpp",
        _SHARED / "words.h",
        _SHARED / "common.h",
    ]
    parts = [
        _header(), shlex.join(compiler()), *_FLAGS, _OPTIMISE, *_NATIVE, _processor(),
        *(source.read_text() for source in sources),
    ]  # fmt: skip
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    loaded = ctypes.CDLL(str(entry(f"compiled-{key}", _build) / "compiled.so"))
    loaded.weft_compiled_run.restype = ctypes.c_int64
    loaded.weft_compiled_run.argtypes = [ctypes.POINTER(State)]
    loaded.weft_compiled_kernel.restype = ctypes.c_int64
    loaded.weft_compiled_kernel.argtypes = [
        ctypes.POINTER(State), ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64,
    ]  # fmt: skip
    return loaded


def _header() -> str:
    constant = f"namespace weft {{\nconstexpr int64_t SEMAPHORE_LARGEST = {SEMAPHORE_MAX};\n}}\n"
    return hardware.header() + constant


def _processor() -> str:
    """What decides which instructions the processor has: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _build(folder: Path) -> None:
    (folder / "generated.h").write_text(_header())
    tools, flags = Tools(folder), [*_FLAGS, f"-I{folder}", f"-I{_HERE}", f"-I{_SHARED}"]
    job = [(_HERE / "interpreter.cpp", _OPTIMISE)]
    try:
        built = tools.compile(job, [*flags, *_NATIVE])
    except BuildError:
        tools = Tools(folder)
        built = tools.compile(job, flags)
    tools.link(["-shared", *built], "compiled.so")


_COMPILED = (Opcode.LOAD, Opcode.STORE, Opcode.MM, Opcode.VEC, Opcode.SOFTMAX, Opcode.NORMALISE)
"""The opcodes that interpreter.cpp carries out by itself."""
_TOO_LARGE = "the compiled interpreter needs more memory for this program than there is"
_FETCHED = 1 << 12
"""Words that are looked through for END at a time."""


class CompiledDevice(GoldenDevice):
    """A `GoldenDevice` whose frequent instructions are carried out by compiled code, on the same memories.

    What that leaves alone, `GoldenDevice` carries out: instructions of other opcodes, and those that break a rule, so
    that errors are the same.

    Raises
    ------
    weft.sim.verilate.BuildError
        If there is no C++ compiler, or it fails.
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        super().__init__(config, memory_bytes)
        self._library = library()
        self._state: State | None = None

    def _start(self, program: int) -> None:
        code = self._code(program)
        if code is None:
            super()._start(program)
        else:
            self._carry_out(code)

    def _code(self, address: int) -> Code | None:
        """The words from `address` up to END; None if there is something wrong with them."""
        words = self.memories.dram[address:]
        words = words[: words.size // WORD_BYTES * WORD_BYTES].reshape(-1, WORD_BYTES)
        for first in range(0, len(words), _FETCHED):
            ends = np.flatnonzero(words[first : first + _FETCHED, 0] == int(Opcode.END))
            if ends.size:
                try:
                    return Code.from_bytes(words[: first + int(ends[0]) + 1].tobytes())
                except IsaError:
                    return None
        return None

    def _carry_out(self, code: Code) -> None:
        without = np.flatnonzero(code.queues[:-1] < 0).tolist()
        walk = self._walk({index: code[index] for index in without}, len(code) - 1)
        with self._following(walk):
            self._run_stretches(code, walk)

    def _run_stretches(self, code: Code, walk: Walk) -> None:
        indices, frames = _passed(walk.stretches)
        registers = np.array([stretch.registers for stretch in walk.stretches], np.uint32)
        queues, read_only = code.queues[indices], np.array(walk.reads, np.int64)
        order = [np.flatnonzero(queues == int(queue)).astype(np.uint32) for queue in Queue]
        foreign = _foreign(code, self.config)
        state = self._state = State(
            words=code.words.ctypes.data, foreign=foreign.ctypes.data, registers=registers.ctypes.data,
            indices=indices.ctypes.data, frames=frames.ctypes.data, read_only=read_only.ctypes.data,
            read_only_count=len(walk.reads),
            order=(ctypes.c_void_p * len(Queue))(*(part.ctypes.data for part in order)),
            order_count=(ctypes.c_uint64 * len(Queue))(*(part.size for part in order)), **self._memories(),
        )  # fmt: skip
        try:
            for place in self._left(state):
                index = int(indices[place])
                instruction, self.memories.registers = code[index], walk.stretches[frames[place]].registers
                self._carry_out_one(index, instruction, state.available)
                assert instruction.QUEUE is not None
                state.next[instruction.QUEUE] += 1
                state.executed += 1
        finally:
            self._state = None
            self.instructions = state.executed

    def _memories(self) -> dict[str, int]:
        """Where memories are, and the sizes of things."""
        memories, config = self.memories, self.config
        names = ("dram", "scratchpad", "accumulator", "alignments", "maxima", "sums", "table", "lookup")
        return {name: getattr(memories, name).ctypes.data for name in names} | {
            "dram_bytes": memories.dram.size, "n": config.n, "scratchpad_size": config.scratchpad_size,
            "accumulator_size": config.accumulator_size, "alignment_count": config.alignments,
            "state_count": config.row_states, "table_depth": config.table_depth,
            "mantissa_bits": config.mantissa_bits, "depthwise_taps": config.depthwise_taps,
            "lookup_tables": config.lookup_tables, "bus_bytes": config.bus_bytes,
            "wide_activations": int(config.wide_activations),
        }  # fmt: skip

    def _execute(self, index: int, instruction: Instruction) -> None:
        if not (isinstance(instruction, Kernel) and self._kernel(index, instruction)):
            super()._execute(index, instruction)

    def _kernel(self, index: int, instruction: Kernel) -> bool:
        """Carry out a `Kernel`, if it breaks no rule."""
        try:
            ops = kernel_at(self.memories.kernel, instruction.start)
            check_kernel(ops, instruction, self.config)
        except IsaError:
            return False
        assert self._state is not None
        words = np.array(self.memories.kernel[instruction.start :][: len(ops)], np.uint64)
        outcome = self._library.weft_compiled_kernel(
            ctypes.byref(self._state), index, words.ctypes.data, words.size
        )
        if outcome < -1:
            raise MemoryError(_TOO_LARGE)
        return bool(outcome == 0)

    def _left(self, state: State) -> Iterator[int]:
        """Carry out what is compiled; the instructions in between that are not."""
        while (index := self._library.weft_compiled_run(ctypes.byref(state))) >= 0:
            yield index
        if index < -1:
            raise MemoryError(_TOO_LARGE)


def _passed(stretches: Sequence[Stretch]) -> tuple[np.ndarray, np.ndarray]:
    """Of each instruction in the order of passing fetch, its index and the number of its stretch: (count,) uint32."""
    spans = np.array([(item.first, item.stop) for item in stretches], np.int64).reshape(-1, 2)
    lengths = spans[:, 1] - spans[:, 0]
    frames = np.repeat(np.arange(len(spans)), lengths)
    ahead = np.cumsum(lengths) - lengths
    indices = np.arange(len(frames)) - ahead[frames] + spans[frames, 0]
    return indices.astype(np.uint32), frames.astype(np.uint32)


def _foreign(code: Code, config: Config) -> np.ndarray:
    """Which instructions are left to `GoldenDevice`, those that the configuration does not have among them: uint8."""
    foreign = np.ones(len(code), np.uint8)
    for opcode, rows in code.by_opcode():
        requires = INSTRUCTIONS[opcode].REQUIRES
        if opcode not in _COMPILED or (requires and requires.missing(config)):
            continue
        wrong = np.zeros(rows.size, bool)
        for name, feature in required_features(opcode).items():
            if feature.missing(config):
                wrong |= code.field(name, opcode, rows) != 0
        for name in () if config.loops else register_fields(opcode):
            wrong |= code.field(name, opcode, rows) >= BASES
        foreign[rows] = wrong
    return foreign


def golden_device(config: Config, memory_bytes: int) -> GoldenDevice:
    """A `CompiledDevice` if there is a C++ compiler, else the `GoldenDevice` itself."""
    try:
        return CompiledDevice(config, memory_bytes)
    except BuildError:
        return GoldenDevice(config, memory_bytes)
