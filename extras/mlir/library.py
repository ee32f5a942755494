"""xDSL, imported when it is needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from weft.compiler.ir.graph import CompileError

HOW_TO_INSTALL = "pip install 'weft[mlir]'"


def module(name: str) -> ModuleType:
    """A module of this package that is made of xDSL's classes.

    Raises
    ------
    CompileError
        If xDSL is not installed: the sentence says how to install it.
    """
    try:
        importlib.import_module("xdsl")
    except ImportError:
        raise CompileError(
            f"MLIR needs the Python package 'xdsl', which is not installed: {HOW_TO_INSTALL}"
        ) from None
    return importlib.import_module(f"weft.extras.mlir.{name}")
