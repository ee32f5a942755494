"""Commands as a shell runs them."""

from __future__ import annotations

import pytest

from weft.cli import main


def code(arguments: list[str]) -> object:
    """What a command ends with."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code or 0
