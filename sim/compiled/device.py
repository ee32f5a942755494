"""The compiled golden interpreter as a device."""

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
from weft.hdl.errors import IsaError
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    WORD_BYTES,
    Instruction,
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
# Flags that not all compilers know. The second has g++ vectorise loops over N elements instead of unrolling them.
_NATIVE = ("-march=native", "--param=max-completely-peel-times=1")


class State(ctypes.Structure):
    """Mirror of ``State`` in memories.h."""

    _fields_ = [
        # Memories
        ("dram", ctypes.c_void_p),
        ("dram_bytes", ctypes.c_uint64),
        ("scratchpad", ctypes.c_void_p),
        ("accumulator", ctypes.c_void_p),
        ("alignments", ctypes.c_void_p),
        ("maxima", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("lookup", ctypes.c_void_p),
        # Sizes
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
        # The program, and its execution
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
    """Build the interpreter unless the cache has it, and load it.

    Raises
    ------
    weft.sim.verilate.BuildError
        If no C++ compiler is installed, or it fails.
    """
    sources = [
        *sorted(_HERE.glob("*.h")),
        _HERE / "interpreter.cpp",
        _SHARED / "words.h",
        _SHARED / "common.h",
    ]
    # Everything that the built library depends on, because the cache is shared.
    parts = [
        _header(),
        shlex.join(compiler()),
        *_FLAGS,
        _OPTIMISE,
        *_NATIVE,
        _processor(),
        *(source.read_text() for source in sources),
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    loaded = ctypes.CDLL(str(entry(f"compiled-{key}", _build) / "compiled.so"))
    loaded.weft_compiled_run.restype = ctypes.c_int64
    loaded.weft_compiled_run.argtypes = [ctypes.POINTER(State)]
    loaded.weft_compiled_kernel.restype = ctypes.c_int64
    loaded.weft_compiled_kernel.argtypes = [
        ctypes.POINTER(State),
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_uint64,
    ]
    return loaded


def _header() -> str:
    constant = f"namespace weft {{\nconstexpr int64_t SEMAPHORE_LARGEST = {SEMAPHORE_MAX};\n}}\n"
    return hardware.header() + constant


def _processor() -> str:
    """Return the processor's flags, which ``-march=native`` depends on: machines may share a cache."""
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
    except BuildError:  # this compiler may not know _NATIVE
        tools = Tools(folder)
        built = tools.compile(job, flags)
    tools.link(["-shared", *built], "compiled.so")


# Opcodes that interpreter.cpp executes
_COMPILED = (Opcode.LOAD, Opcode.STORE, Opcode.MM, Opcode.VEC, Opcode.SOFTMAX, Opcode.NORMALISE)
_TOO_LARGE = "the compiled interpreter needs more memory for this program than there is"
# Words that are searched for END at a time
_WORDS_PER_SEARCH = 1 << 12


class CompiledDevice(GoldenDevice):
    """A `GoldenDevice` that executes frequent instructions in compiled code, on the same memories.

    `GoldenDevice` itself executes rare opcodes, and instructions that break a rule, so that both raise the same errors.

    Raises
    ------
    weft.sim.verilate.BuildError
        If no C++ compiler is installed, or it fails.
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
        """Return the program at `address` up to END, or None if it has no END or an invalid word."""
        words = self.memories.dram[address:]
        words = words[: words.size // WORD_BYTES * WORD_BYTES].reshape(-1, WORD_BYTES)
        for first in range(0, len(words), _WORDS_PER_SEARCH):
            ends = np.flatnonzero(words[first : first + _WORDS_PER_SEARCH, 0] == int(Opcode.END))
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
        indices, frames = _execution_order(walk.stretches)
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
        # `state` borrows the arrays above, which must stay alive until the end of the run.
        try:
            for place in self._uncompiled(state):
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
        """Return the addresses of memories and the sizes in `State`."""
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
        """Execute a `Kernel` in compiled code. Return False if it breaks a rule."""
        try:
            ops = kernel_at(self.memories.kernel, instruction.start)
            check_kernel(ops, instruction, self.config)
        except IsaError:
            return False
        assert self._state is not None
        # The C++ takes only checked words.
        words = np.array(self.memories.kernel[instruction.start :][: len(ops)], np.uint64)
        outcome = self._library.weft_compiled_kernel(
            ctypes.byref(self._state), index, words.ctypes.data, words.size
        )
        if outcome < -1:
            raise MemoryError(_TOO_LARGE)
        return bool(outcome == 0)

    def _uncompiled(self, state: State) -> Iterator[int]:
        """Run compiled code, and yield the place of each instruction that it leaves to the caller."""
        while (index := self._library.weft_compiled_run(ctypes.byref(state))) >= 0:
            yield index
        if index < -1:
            raise MemoryError(_TOO_LARGE)


def _execution_order(stretches: Sequence[Stretch]) -> tuple[np.ndarray, np.ndarray]:
    """Return the index and the stretch of each instruction, in the order of passing fetch: two (count,) uint32."""
    spans = np.array([(item.first, item.stop) for item in stretches], np.int64).reshape(-1, 2)
    lengths = spans[:, 1] - spans[:, 0]
    # Expand the spans [first, stop) to single indices without a loop in Python.
    frames = np.repeat(np.arange(len(spans)), lengths)
    starts = np.cumsum(lengths) - lengths
    indices = np.arange(len(frames)) - starts[frames] + spans[frames, 0]
    return indices.astype(np.uint32), frames.astype(np.uint32)


def _foreign(code: Code, config: Config) -> np.ndarray:
    """Return a mask (uint8) of the instructions left to `GoldenDevice`, among them all that the configuration lacks."""
    foreign = np.ones(len(code), np.uint8)
    for opcode, rows in code.by_opcode():
        requires = INSTRUCTIONS[opcode].REQUIRES
        if opcode not in _COMPILED or (requires and requires.missing(config)):
            continue
        unsupported = np.zeros(rows.size, bool)
        for name, feature in required_features(opcode).items():
            if feature.missing(config):
                unsupported |= code.field(name, opcode, rows) != 0
        # Without loops there are only the host's base registers.
        for name in () if config.loops else register_fields(opcode):
            unsupported |= code.field(name, opcode, rows) >= BASES
        foreign[rows] = unsupported
    return foreign


def golden_device(config: Config, memory_bytes: int) -> GoldenDevice:
    """Return a `CompiledDevice`, or a `GoldenDevice` without a C++ compiler."""
    try:
        return CompiledDevice(config, memory_bytes)
    except BuildError:
        return GoldenDevice(config, memory_bytes)
