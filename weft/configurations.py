"""Configurations by name (presets, boards, JSON files), with the core and memory of a board's own configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.arguments import BANDWIDTH, number
from weft.errors import InputError
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config


def configuration(source: str | os.PathLike[str] | Config) -> Config:
    """Return the configuration that `source` is or names.

    Parameters
    ----------
    source : str, path or Config
        A preset (``small``), a board (``ulx3s-85f``: its own configuration), or a JSON file of fields.

    Raises
    ------
    ConfigError
        If `source` names no configuration, or the file does not contain one.
    InputError
        If `source` has a wrong type.
    """
    if isinstance(source, Config):
        return source
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"a configuration is a Config, a name or a JSON file, not {type(source).__name__}")
    name = os.fspath(source)
    if name in PRESETS or Path(name).suffix == ".json":
        return Config.load(name)
    boards = _boards()
    if name in boards:
        return boards[name].config
    raise ConfigError(
        f"unknown configuration {name!r}; choose a preset ({', '.join(PRESETS)}), a board ({', '.join(boards)}), "
        "or a .json file"
    )


def memory_of(memory: float | str | None, config: str | os.PathLike[str] | Config) -> float | None:
    """Return the bandwidth of the memory that a program is planned for, in bytes a cycle; None: that of the bus.

    Parameters
    ----------
    memory : float or str
        Bytes a cycle, or a board's name. None: the memory of board `config`, if that is a board's name.
    config : str, path or Config
        See `configuration`.

    Raises
    ------
    InputError
        If `memory` is neither a board's name nor a number within limits.
    """
    boards = _boards()
    if memory is None:
        board = boards.get(config) if isinstance(config, str) else None
    elif isinstance(memory, str):
        board = boards.get(memory)
        if board is None:
            raise InputError(
                f"'memory' is a number of bytes a cycle, or a board ({', '.join(boards)}), not {memory!r}"
            )
    else:
        return number("memory", memory, *BANDWIDTH)
    bandwidth = None if board is None else board.memory.planning_model[1]
    return None if bandwidth is None else float(bandwidth)


def room_of(memory: float | str | None, config: str | os.PathLike[str] | Config) -> int | None:
    """Return the size in bytes of the memory that `memory_of` describes, if it is inside a board's FPGA; else None."""
    from weft.boards.board import MemoryKind

    name = config if memory is None else memory
    board = _boards().get(name) if isinstance(name, str) else None
    return None if board is None or board.memory.kind is MemoryKind.SDRAM else board.memory.size


def names() -> list[str]:
    """Return the names of all presets and boards."""
    return [*PRESETS, *_boards()]


def sequential_boards(config: Config) -> list[str]:
    """Return the boards with the sequential core whose own configuration this is.

    Either core can run any configuration, so a configuration does not determine the core. A board's own configuration
    uses the board's core; every other configuration uses the pipelined core.
    """
    from weft.boards.board import CoreKind

    return [
        board.name
        for board in _boards().values()
        if board.core is CoreKind.SEQUENTIAL and board.config == config
    ]


def runs_in_turn(device: Any, config: Config | None = None) -> bool:
    """Return True if `device` has the sequential core, on which instructions do not overlap.

    A board's identity, a simulation's attribute ``sequential``, or else `config` determines the core.
    """
    from weft.boards.board import CoreKind

    board = _boards().get(getattr(getattr(device, "identity", None), "board", ""))
    if board is not None:
        return board.core is CoreKind.SEQUENTIAL
    return bool(getattr(device, "sequential", False) or (config and sequential_boards(config)))


def sequential_core_sentence(boards: Sequence[str]) -> str:
    """Return the start of an error message for a configuration with `sequential_boards`."""
    have = "which has" if len(boards) == 1 else "which have"
    return f"this is the configuration of {' and '.join(boards)}, {have} the sequential core"


def _boards() -> dict[str, Any]:
    # Importing boards takes time, so it waits until a name needs them.
    from weft.boards.registry import BOARDS

    return BOARDS
