"""The compiled part of the cycle model: how it is built and called. One library serves all configurations."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path

from weft.sim.timing.hardware import header
from weft.sim.verilate import cache_root, compile_objects, compiler, publish, run_tool

_HERE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Werror")


class Request(ctypes.Structure):
    """As in model.cpp."""

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
    ]


class RawInterval(ctypes.Structure):
    """As in common.h."""

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
}


@cache
def library() -> ctypes.CDLL:
    """The compiled model, from the cache if it was built before; one for all configurations.

    Raises
    ------
    weft.sim.verilate.BuildError
        If there is no C++ compiler, or it fails.
    """
    sources = [*sorted(_HERE.glob("*.h")), _HERE / "model.cpp"]
    parts = [header(), compiler(), *_FLAGS, *(source.read_text() for source in sources)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = cache_root() / f"timing-{key}"
    if not (target / "timing.so").exists():
        _build(target, sources)
    loaded = ctypes.CDLL(str(target / "timing.so"))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def _build(target: Path, sources: list[Path]) -> None:
    cache_root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache_root(), prefix="part-"))
    try:
        (folder / "generated.h").write_text(header())
        for source in sources:
            shutil.copy(source, folder)
        flags = [*_FLAGS, f"-I{folder}", "-shared"]
        (built,) = compile_objects([(folder / "model.cpp", "-O2")], folder, [*flags, "-fvisibility=hidden"])
        run_tool([compiler(), "-shared", built, "-o", "timing.so"], folder)
        publish(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
