"""Build and load the cycle models' C++ library, which serves all configurations."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import shlex
import shutil
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from weft.hdl.cache import entry
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MULTIPLIER_BITS, REGISTERS
from weft.hdl.sequential import assembler, processor
from weft.hdl.sequential import processor as lanes
from weft.hdl.sequential.microprogram import Microprogram
from weft.sim.timing import hardware
from weft.sim.timing.hardware import struct
from weft.sim.verilate import Tools, compiler, load_library

# Enumerations of fields in words of the microprogram, by the prefix of their names in C++
_ENUMERATIONS: dict[str, type[enum.IntEnum]] = {
    "FUNCTION": assembler.Function,
    "SOURCE": assembler.Source,
    "PORT": assembler.Port,
    "OUT": assembler.Out,
    "TO_MEMORY": assembler.MemoryOut,
    "CONDITION": assembler.Condition,
    "PART": assembler.Part,
}
_CONSTANTS = {
    "FUNCTION_WIDTH": assembler.FUNCTION_BITS,
    "SOURCE_WIDTH": assembler.SOURCE_BITS,
    "OUT_WIDTH": assembler.OUT_BITS,
    "CONDITION_WIDTH": assembler.CONDITION_BITS,
    "PART_WIDTH": assembler.PART_BITS,
    "OPERAND_LOW": assembler.OPERAND_LOW,
    "COMPARED_WIDTH": processor.COMPARED_BITS,
    "LANE_REGISTERS": REGISTERS,
    "LANE_ROW_BITS": lanes.ROW_BITS,
    "LANE_PREDICATES": lanes._PREDICATES,
    "LANE_STAGED": lanes._STAGED,
}


@lru_cache(maxsize=8)
def microprogram(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of the microprogram (uint64) and the initial data memory (uint32)."""
    program = Microprogram(config)
    memory = np.zeros(program.depth, np.uint32)
    memory[: len(program.constants)] = program.constants
    return np.array(program.words, np.uint64), memory


def core_parameters(config: Config) -> dict[str, int]:
    """Return the parameters of the sequential core's model for a configuration."""
    kernel = bool(config.kernel)
    return {
        "n": config.n,
        "bus_bytes": config.bus_bytes,
        "operand_bits": Microprogram(config).operand_bits,
        "scratchpad_size": config.scratchpad_size,
        "accumulator_size": config.accumulator_size,
        "mantissa_bits": config.mantissa_bits,
        "multiplier_bits": MULTIPLIER_BITS,
        "signed_bits": MULTIPLIER_BITS if kernel else 0,
        "wide_activations": int(config.wide_activations),
        "table_entries": assembler.entries(config),
        "table_step": assembler.address_step(config),
        "lanes": config.n if kernel else 0,
    }


def header() -> str:
    """Return C++ with the definitions of `weft.hdl.sequential`: enumerations, widths and core parameters."""
    enumerations = [
        f"enum {''.join(part.title() for part in prefix.split('_'))}Number "
        f"{{ {', '.join(f'{prefix}_{item.name} = {int(item)}' for item in kind)} }};\n"
        for prefix, kind in _ENUMERATIONS.items()
    ]
    constants = ", ".join(f"{name} = {value}" for name, value in _CONSTANTS.items())
    return "".join([
        "namespace weft {\n",
        struct("CoreParameters", list(core_parameters(Config(depthwise_taps=0)))),
        "namespace sequential {\n",
        *enumerations,
        f"constexpr unsigned {constants};\n",
        f"constexpr uint8_t FIELD_WIDTHS[] = {{ {', '.join(map(str, assembler.WIDTHS))} }};\n",
        "}  // namespace sequential\n}  // namespace weft\n",
    ])  # fmt: skip


_HERE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Werror")


class Request(ctypes.Structure):
    """Mirror of ``Request`` in model.cpp."""

    _fields_ = [
        ("parameters", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("dram", ctypes.c_void_p),
        ("dram_bytes", ctypes.c_uint64),
        ("latency", ctypes.c_uint64),
        ("bytes_per_cycle", ctypes.c_double),
        ("tokens", ctypes.c_double),
        ("entry", ctypes.c_uint32),
        ("traced", ctypes.c_uint32),
        ("marks", ctypes.c_void_p),
        ("mark_count", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        ("most", ctypes.c_uint64),
        ("sdram", ctypes.c_void_p),
        ("listed", ctypes.c_void_p),
        ("listed_count", ctypes.c_uint64),
    ]


class ListedProgram(ctypes.Structure):
    """Mirror of ``Listed`` in descriptors.h."""

    _fields_ = [
        ("entry", ctypes.c_uint32),
        ("bases", ctypes.c_uint32 * BASES),
        ("pad", ctypes.c_uint32),
        ("cycles", ctypes.c_uint64),
        ("waited", ctypes.c_uint64),
    ]


class SequentialRequest(ctypes.Structure):
    """Mirror of ``Request`` in sequential.cpp."""

    _fields_ = [
        ("parameters", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("word_count", ctypes.c_uint64),
        ("memory", ctypes.c_void_p),
        ("memory_words", ctypes.c_uint64),
        ("dram", ctypes.c_void_p),
        ("dram_bytes", ctypes.c_uint64),
        ("latency", ctypes.c_uint64),
        ("bytes_per_cycle", ctypes.c_double),
        ("tokens", ctypes.c_double),
        ("marks", ctypes.c_void_p),
        ("mark_count", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        ("flash_window", ctypes.c_uint64),
        ("flash_page", ctypes.c_uint64),
        ("flash_jump", ctypes.c_uint64),
        ("flash_word", ctypes.c_uint64),
    ]


class RawInterval(ctypes.Structure):
    """Mirror of ``Interval`` in common.h."""

    _fields_ = [
        ("unit", ctypes.c_int32),
        ("instruction", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    ]


_SIGNATURES = {
    "weft_timing_run": (ctypes.c_void_p, [ctypes.POINTER(Request), ctypes.POINTER(ctypes.c_int64)]),
    "weft_timing_tokens": (ctypes.c_double, [ctypes.c_void_p]),
    "weft_timing_counters": (None, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "weft_timing_marks": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "weft_timing_intervals": (
        ctypes.c_uint64,
        [ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(RawInterval))],
    ),
    "weft_timing_samples": (
        ctypes.c_uint64,
        [ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint32))],
    ),
    "weft_timing_free": (None, [ctypes.c_void_p]),
    "weft_timing_check": (ctypes.c_int64, [ctypes.POINTER(Request)]),
    "weft_sequential_run": (
        ctypes.c_void_p,
        [ctypes.POINTER(SequentialRequest), ctypes.POINTER(ctypes.c_int64)],
    ),
    "weft_sequential_tokens": (ctypes.c_double, [ctypes.c_void_p]),
    "weft_sequential_counters": (None, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "weft_sequential_marks": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "weft_sequential_free": (None, [ctypes.c_void_p]),
}


@cache
def library() -> ctypes.CDLL:
    """Build the models of both cores unless the cache has them, and load them.

    Raises
    ------
    weft.sim.verilate.BuildError
        If no C++ compiler is installed, or it fails.
    """
    sources = [*sorted(_HERE.glob("*.h")), *_units()]
    # The key covers everything that the library depends on, because the cache is shared.
    parts = [_header(), shlex.join(compiler()), *_FLAGS, *(source.read_text() for source in sources)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    built = entry(f"timing-{key}", lambda folder: _build(folder, sources))
    return load_library(built / "timing.so", _SIGNATURES)


def _header() -> str:
    return hardware.header() + header()


def _units() -> list[Path]:
    return sorted(_HERE.glob("*.cpp"))


def _build(folder: Path, sources: list[Path]) -> None:
    (folder / "generated.h").write_text(_header())
    for source in sources:
        shutil.copy(source, folder)
    tools, flags = Tools(folder), [*_FLAGS, f"-I{folder}", "-shared"]
    jobs = [(folder / unit.name, "-O2") for unit in _units()]
    built = tools.compile(jobs, [*flags, "-fvisibility=hidden"])
    tools.link(["-shared", *built], "timing.so")
