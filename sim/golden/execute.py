"""The functions that carry out instructions on the golden interpreter's memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft.hdl.isa import Instruction
from weft.sim.golden.memories import Memories

_Function = TypeVar("_Function", bound=Callable[[Memories, Any], None])

EXECUTE: dict[type[Instruction], Callable[[Memories, Any], None]] = {}
"""A function an instruction: it changes memories as the instruction does."""


def executes(kind: type[Instruction]) -> Callable[[_Function], _Function]:
    """Decorate the function that carries out instructions of a kind."""

    def register(function: _Function) -> _Function:
        EXECUTE[kind] = function
        return function

    return register
