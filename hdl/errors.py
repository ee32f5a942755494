"""Exceptions that weft raises on purpose: the base class, and those of the hardware."""

from __future__ import annotations


class WeftError(Exception):
    """Error for the user. Its message is a sentence: what is wrong, where, and what to do.

    Every subclass is also a `ValueError` (wrong input) or a `RuntimeError` (a tool or a device failed).
    """


class PrefixError(WeftError, ValueError):
    """A prefix cannot begin the names of Verilog modules."""


class YosysError(WeftError, RuntimeError):
    """Yosys failed; the message is the end of its log."""


class ProgramError(WeftError, ValueError):
    """The hardware must not run the program; the message has the instruction's index and the reason."""


class ConfigError(WeftError, ValueError):
    """Invalid configuration; the message names the field, the value and the rule."""


class AsmError(WeftError, ValueError):
    """Invalid assembly text; the message names line, field and value."""


class IsaError(WeftError, ValueError):
    """A value does not fit its instruction field, or a word is no valid instruction."""


class SchemaError(WeftError, ValueError):
    """Invalid file contents. The message says what is wrong and where in the file; callers add the file's name."""


class CacheError(WeftError, RuntimeError):
    """The cache folder cannot be used."""


class ExtraError(WeftError, ValueError):
    """A required extra is not installed."""
