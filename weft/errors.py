"""Errors of the API and the command line."""

from __future__ import annotations

from weft.hdl.errors import WeftError


class InputError(WeftError, ValueError):
    """Invalid argument; the message is one sentence with its name, its value and the expected value."""


class FileError(WeftError, ValueError):
    """Invalid contents of a user's file; the message is one sentence with file, array and remedy."""
