"""Base class of the exceptions that weft raises on purpose."""

from __future__ import annotations


class WeftError(Exception):
    """Error for the user. Its message is a sentence: what is wrong, where, and what to do.

    Every subclass is also a `ValueError` (wrong input) or a `RuntimeError` (a tool or a device failed).
    """
