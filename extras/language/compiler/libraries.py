"""Import of the libraries of the extra ``lm`` at their first use."""

from __future__ import annotations

import importlib
from types import ModuleType

from weft.compiler.errors import CompileError

HOW_TO_INSTALL = "pip install 'weft[lm]'"


def import_library(name: str) -> ModuleType:
    """Import the library `name`.

    Raises
    ------
    CompileError
        If it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CompileError(
            f"language models need the Python package {name!r}, which is not installed: {HOW_TO_INSTALL}"
        ) from None
