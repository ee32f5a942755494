"""Configurations by name: presets, boards, JSON files; and which core their accelerator has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.arguments import BANDWIDTH, number
from weft.errors import InputError
from weft.hdl.isa.config import PRESETS, Config, ConfigError


def configuration(source: str | os.PathLike[str] | Config) -> Config:
    """The configuration that `source` is or names.

    Parameters
    ----------
    source : str, path or Config
        A preset (``small``), a board (``ulx3s-85f``: its own configuration), or a JSON file of fields.

    Raises
    ------
    ConfigError
        If it is none of these, or the file is none of a configuration.
    InputError
        If it is of another type.
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
    """The bytes a cycle of the memory that a program is planned for; None for as many as the bus is wide.

    Parameters
    ----------
    memory : float or str
        Bytes a cycle, or a board's name; if None that of the board whose name `config` is, if it is one.
    config : str, path or Config
        As for `configuration`.

    Raises
    ------
    InputError
        If it is a name of no board, no number, or outside its limits.
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
    """The bytes of the memory that `memory_of` speaks of, if it is inside a board's FPGA and small; else None."""
    from weft.boards.board import MemoryKind

    named = config if memory is None else memory
    board = _boards().get(named) if isinstance(named, str) else None
    return None if board is None or board.memory.kind is MemoryKind.SDRAM else board.memory.size


def names() -> list[str]:
    """Of all presets and boards."""
    return [*PRESETS, *_boards()]


def sequential_boards(config: Config) -> list[str]:
    """Boards whose own configuration this is, and whose core is the sequential one.

    A configuration does not say which core runs it, as both run everything that it allows; but for one that is a
    board's own, the board does. Empty for all others: their accelerator is the pipelined core.
    """
    from weft.boards.board import CoreKind

    return [
        board.name
        for board in _boards().values()
        if board.core is CoreKind.SEQUENTIAL and board.config == config
    ]


def runs_in_turn(device: Any, config: Config | None = None) -> bool:
    """Whether `device` has the sequential core, on which nothing overlaps: a board says which it is, a simulation by
    its attribute ``sequential``, else `config` if it is given."""
    from weft.boards.board import CoreKind

    board = _boards().get(getattr(getattr(device, "identity", None), "board", ""))
    if board is not None:
        return board.core is CoreKind.SEQUENTIAL
    return bool(getattr(device, "sequential", False) or (config and sequential_boards(config)))


def sequential(boards: Sequence[str]) -> str:
    """The sentence that `sequential_boards` asks for."""
    have = "which has" if len(boards) == 1 else "which have"
    return f"this is the configuration of {' and '.join(boards)}, {have} the sequential core"


def _boards() -> dict[str, Any]:
    from weft.boards.registry import BOARDS

    return BOARDS
