"""Errors of the compiler."""

from __future__ import annotations

from weft.hdl.errors import WeftError


class IrError(AssertionError):
    """A graph breaks this module's rules: a bug in a pass, never the user's mistake."""


class CompileError(WeftError, ValueError):
    """A model or configuration cannot be compiled. The message names node or field, value and remedy."""


class NarrowError(CompileError):
    """Operator without a 16-bit form; the message names it."""


class KernelError(CompileError):
    """A kernel that the engine cannot run. The message names the line of Python at fault."""


class EvaluationError(WeftError, RuntimeError):
    """An operator cannot be evaluated on the host, or not for these values. The message is one sentence."""


class NetworkError(WeftError, ValueError):
    """A network is not valid. The message is one sentence."""


class ProgramFileError(CompileError):
    """A saved program is missing, damaged or of another version. The message names file and field."""
