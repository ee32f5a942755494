"""weft: matrix-multiplication accelerators for open FPGAs, from ONNX, TFLite and MLIR to verified Verilog.

>>> import numpy as np, weft
>>> program = weft.compile("digits.onnx", config="small")  # `weft example digits` puts this file where one stands
>>> program.inputs
{'image': ('float32', (1, 1, 8, 8))}
>>> result = program.run({"image": np.zeros((1, 1, 8, 8), np.float32)})  # on="rtl" simulates the Verilog
>>> result.outputs["logits"].shape
(1, 10)

`compile` turns a quantised ONNX, TFLite or MLIR model into a `Program`, and `Program.run` returns a `Result`; its
keyword arguments are the fields of `RunOptions`.
`quantise` turns a float model into a quantised model. `check` lists which nodes of a model run on the device, `convert`
prints a model as MLIR, and `verilog` generates the accelerator. `Program.save` writes a program to a folder, and `load`
reads it. A `Config` holds the accelerator's parameters; the name of a preset or board can replace it everywhere.

All errors are subclasses of `WeftError`: `CompileError` (the model), `ConfigError` (the configuration), `InputError`
(an argument), `FileError` and `ProgramFileError` (a file), `ProgramError` (instructions), `BoardError` (a board),
`BuildError` (building a simulator), `DeviceError` (a device).
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if Path(__file__).with_name("hdl").is_file():
    raise ImportError(
        "weft/hdl must be a link to ../hdl, and this checkout has a file in its place: clone again with "
        "git clone -c core.symlinks=true (on Windows, in developer mode)"
    )

# ONNX Runtime reads this when its library is loaded, so it must be set before: weft sends no telemetry.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__all__ = [
    "BoardError",
    "BuildError",
    "CacheError",
    "CompileError",
    "Config",
    "ConfigError",
    "DeviceError",
    "FileError",
    "InputError",
    "Program",
    "ProgramError",
    "ProgramFileError",
    "Quantised",
    "Result",
    "RunOptions",
    "Trained",
    "WeftError",
    "check",
    "compile",
    "convert",
    "grad",
    "load",
    "quantise",
    "train",
    "verilog",
]

if TYPE_CHECKING:
    from weft.api import check, compile, load, verilog
    from weft.boards.errors import BoardError
    from weft.compiler.errors import CompileError, ProgramFileError
    from weft.errors import FileError, InputError
    from weft.extras.mlir.convert_command import convert_model as convert
    from weft.extras.training.interface import Trained, grad, train
    from weft.hdl.errors import CacheError, ConfigError, ProgramError, WeftError
    from weft.hdl.isa.config import Config
    from weft.quantiser.quantise import Quantised, quantise
    from weft.run.options import RunOptions
    from weft.run.program import Program, Result
    from weft.sim.device import DeviceError
    from weft.sim.verilate import BuildError

# Modules of public names; all other names are in `weft.api` or in `_EXTRAS`
_MODULES = {
    "BoardError": "boards.errors",
    "BuildError": "sim.verilate",
    "CacheError": "hdl.errors",
    "CompileError": "compiler.errors",
    "Config": "hdl.isa.config",
    "ConfigError": "hdl.errors",
    "DeviceError": "sim.device",
    "FileError": "errors",
    "InputError": "errors",
    "Program": "run.program",
    "ProgramError": "hdl.errors",
    "ProgramFileError": "compiler.errors",
    "Quantised": "quantiser.quantise",
    "Result": "run.program",
    "RunOptions": "run.options",
    "WeftError": "hdl.errors",
    "quantise": "quantiser.quantise",
}
# Public names that extras provide
_EXTRAS = ("Trained", "convert", "grad", "train")


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `weft --help` starts quickly."""
    if name not in __all__:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    if name in _EXTRAS:
        from weft.hdl.extras import provider

        return provider(f"weft.{name}")
    return getattr(importlib.import_module(f"weft.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
