"""Configurations that language models run on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass

from weft.compiler.ir.graph import CompileError
from weft.configurations import configuration
from weft.extras.language.compiler.contents import ring_of
from weft.extras.language.compiler.form import Form
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.compiler.places import Places
from weft.hdl.isa.config import MAX_BLOCK_COLUMNS, PRESETS, Config, ConfigError

_NEEDED = {"loops": 1, "kernel": 256, "lookup_tables": 4}
"""The least that it takes, for every model."""
_PAGE = 32
"""Keys of a page, where there is room on the chip and arrays are not wider."""
_PROMPT_LEAST = 2
"""Tokens of a prompt that are worth a program of their own."""
_MORE_PARTS = 1.1
"""How many times more parts products may have for its sake."""
_LLAMA = Form()


@dataclass(frozen=True)
class Chosen:
    """A configuration, and the fields that were added to the preset of which it is, as ``name=value``."""

    config: Config
    added: tuple[str, ...] = ()


def language_configuration(source: str | os.PathLike[str] | Config, *, blocks: bool = False) -> Chosen:
    """The configuration that `source` is or names, with what language models take.

    Parameters
    ----------
    source : str, path or Config
        As for `weft.configurations.configuration`. A preset gets the features that it has not; all others are hardware
        as it is.
    blocks : bool
        The model has matrices in blocks of 4 bits: presets that can have them get a LOAD for these.

    Raises
    ------
    ConfigError
        If hardware as it is lacks something; the sentence names all of it.
    """
    config = configuration(source)
    missing = _missing(config)
    if isinstance(source, str) and source in PRESETS:
        if blocks and config.bus_bytes == config.n <= MAX_BLOCK_COLUMNS:
            missing["int4"] = 2
        added = tuple(f"{name}={least}" for name, least in missing.items())
        return Chosen(config.replace(**missing), added)
    lacks = [f"{name}={least} (it has {getattr(config, name)})" for name, least in missing.items()]
    if not config.softmax:
        lacks.append("probability_bits=7 or 8 (it has 0)")
    if lacks:
        named = "the configuration" if isinstance(source, Config) else f"configuration {os.fspath(source)}"
        raise ConfigError(
            f"language models do not run on {named}: they need {', '.join(lacks)}; choose a preset, which gets these "
            f"features, or a board ({', '.join(_boards())}) or file of a configuration that has them"
        )
    return Chosen(config)


def _missing(config: Config) -> dict[str, int]:
    """The least of each field that is less."""
    return {name: least for name, least in _NEEDED.items() if getattr(config, name) < least}


def _boards() -> list[str]:
    """Boards whose own configurations have all of it."""
    from weft.boards.registry import BOARDS

    return [name for name, board in BOARDS.items() if board.config.softmax and not _missing(board.config)]


def page_of(sizes: Sizes, config: Config, rows: int = 1, form: Form = _LLAMA) -> int:
    """How many keys a page of a model has, with so many tokens side by side: as many as attention has room for on the
    chip, up to `_PAGE`, and as leave half of the scratchpad to weights."""
    pages = range(max(_PAGE // config.n, 1) * config.n, 0, -config.n)
    return next((page for page in pages if _roomy(sizes, config, rows, page, form)), pages[-1])


def _roomy(sizes: Sizes, config: Config, rows: int, page: int, form: Form) -> bool:
    try:
        return Places(sizes, config, rows, page, form).room >= config.scratchpad_size // 2
    except CompileError:
        return False


def prompt_rows_of(places: Places) -> int:
    """How many tokens of a prompt a decoder's second program works on together: as many as a page has, or a part of
    them, as long as weights still come in parts that are as large as without it; 0 if that is never so."""
    parts = len(ring_of(places).parts)
    for rows in range(places.page, _PROMPT_LEAST - 1, -1):
        if places.page % rows == 0:
            with contextlib.suppress(CompileError):
                other = dataclasses.replace(places, rows=rows, consecutive=True)
                if len(ring_of(places, other).parts) <= _MORE_PARTS * parts:
                    return rows
    return 0
