"""weft: matrix-multiplication accelerators for open FPGAs, from ONNX to verified Verilog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Config", "Program", "Result", "check", "compile", "load", "verilog"]

if TYPE_CHECKING:
    from weft.api import Program, Result, check, compile, load, verilog
    from weft.hdl.config import Config


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that `weft --help` does not wait for it."""
    if name == "Config":
        from weft.hdl.config import Config

        return Config
    if name in __all__:
        import weft.api

        return getattr(weft.api, name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
