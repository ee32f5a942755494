"""The program checker's refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import Instruction
from weft.hdl.isa.config import Config


def refusal(program: Sequence[Instruction], config: Config, **options: Any) -> str | None:
    """Return why `check` refuses a program; None if it does not."""
    try:
        check(program, config, **options)
    except ProgramError as error:
        return str(error)
    return None
