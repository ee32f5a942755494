"""Build the C++ library that simulates the Verilog of a core with a memory model."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from weft.hdl.core import Core
from weft.hdl.isa.config import Config
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate_cached
from weft.sim.verilate import Model, Trace

TOP = "weft"
Observed = Mapping[str, Sequence[str]]
"""Signals by Verilog module that rtl_observe.h reads."""

SIGNATURES = {
    "weft_open": (
        ctypes.c_void_p,
        [*[ctypes.c_uint64] * 2, *[ctypes.c_double] * 2, ctypes.c_uint64, ctypes.c_char_p,
         *[ctypes.c_uint32] * 2, ctypes.POINTER(ctypes.c_int)],
    ),
    "weft_close": (None, [ctypes.c_void_p]),
    "weft_reset": (None, [ctypes.c_void_p]),
    "weft_idle": (None, [ctypes.c_void_p, ctypes.c_uint64]),
    "weft_reorder": (None, [ctypes.c_void_p]),
    "weft_fault": (
        None,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, *[ctypes.c_uint32] * 3],
    ),
    "weft_no_faults": (None, [ctypes.c_void_p]),
    "weft_memory": (ctypes.c_void_p, [ctypes.c_void_p]),
    "weft_cycles": (ctypes.c_uint64, [ctypes.c_void_p]),
    "weft_begun": (ctypes.c_uint64, [ctypes.c_void_p]),
    "weft_window": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]),
    "weft_observed": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))]),
    "weft_error": (ctypes.c_char_p, [ctypes.c_void_p]),
    "weft_exhausted": (ctypes.c_int, [ctypes.c_void_p]),
    "weft_write_register": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
    "weft_read_register": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)],
    ),
    "weft_mark": (None, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64]),
    "weft_marks": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "weft_run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
}  # fmt: skip
"""Functions of the library: result type and argument types by name."""


@lru_cache(maxsize=8)
def core_verilog(config: Config, *, sequential: bool = False) -> str:
    """Return the Verilog of the core of `config`, from the cache unless its sources have changed."""
    kind = SequentialCore if sequential else Core
    return generate_cached(lambda: kind(config), name=TOP, of=f"{config} {sequential}").read_text()


def build_model(
    config: Config,
    *,
    trace: Trace = False,
    observed: Observed | None = None,
    verilog: str | None = None,
    driver: str = "rtl_model.cpp",
    coverage: bool = False,
) -> Path:
    """Build the shared library of the core of `config` unless the cache has it, and return its path.

    The library records the changes of `observed` signals, which must be those of `weft.sim.rtl.trace`.

    Raises
    ------
    weft.sim.verilate.BuildError
        If Verilator or the C++ compiler fails.
    """
    return Model(
        verilog=verilog if verilog is not None else core_verilog(config),
        top=TOP,
        driver=Path(__file__).with_name(driver),
        output="model.so",
        visible=observed,
        defines=[f"WEFT_BUS_BYTES={config.bus_bytes}", *(["WEFT_OBSERVE=1"] if observed else [])],
        link=["-Wl,-Bsymbolic"],
        trace=trace,
        # Models with waveforms or coverage take more than twice the time to compile, and rarely run for long.
        optimise="-O0" if trace else "-O1" if coverage else "-O2",
        coverage=coverage,
    ).build()
