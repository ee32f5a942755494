"""The compiled interpreter: how it is built and called. One library serves all configurations."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shlex
from functools import cache
from pathlib import Path

import weft.sim.timing.hardware as hardware
from weft.hdl.files.cache import entry
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Queue
from weft.sim.verilator.verilate import BuildError, Tools, compiler

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
    weft.sim.verilator.verilate.BuildError
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
