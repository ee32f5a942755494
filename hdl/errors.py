"""The base class of all that weft raises on purpose."""

from __future__ import annotations


class WeftError(Exception):
    """Something that weft tells its user: a sentence with what is wrong, where, and what to do.

    Every class below it is also a `ValueError` (what the user gave is wrong) or a `RuntimeError` (a tool or a device
    failed).
    """
