"""What the API and the command line tell their user."""

from __future__ import annotations

from weft.hdl.errors import WeftError


class InputError(WeftError, ValueError):
    """An argument that does not fit; one sentence with name, value and what is expected."""


class FileError(WeftError, ValueError):
    """A file the user named that does not hold what it should; one sentence with file, array and remedy."""
