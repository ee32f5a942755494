"""Helper that runs commands as a shell does."""

from __future__ import annotations

import pytest

from weft.cli import main


def code(arguments: list[str]) -> object:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code or 0
