"""Configurations for language models."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass

from weft.compiler.errors import CompileError
from weft.configurations import configuration
from weft.extras.language.compiler.contents import plan_ring
from weft.extras.language.compiler.form import Form
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.compiler.places import Places
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import MAX_BLOCK_COLUMNS, PRESETS, Config

_MIN_FIELDS = {"loops": 1, "kernel": 256, "lookup_tables": 4}
"""Smallest values of the fields that every model depends on."""
_MAX_PAGE = 32
"""Keys of a page, if the chip has room and the array is not wider."""
_MIN_PROMPT_ROWS = 2
_MAX_GROWTH_OF_PARTS = 1.1
"""Factor by which a prompt program may increase the number of parts into which products are split."""
_LLAMA = Form()


@dataclass(frozen=True)
class ExtendedConfig:
    """Configuration, and the fields that were added to its preset, as ``name=value``."""

    config: Config
    added: tuple[str, ...] = ()


def language_configuration(
    source: str | os.PathLike[str] | Config, *, blocks: bool = False
) -> ExtendedConfig:
    """Return the configuration that `source` is or names, with the features for language models.

    Parameters
    ----------
    source : str, path or Config
        See `weft.configurations.configuration`. Missing features are added to presets only; any other configuration
        describes existing hardware.
    blocks : bool
        Whether the model has matrices in blocks of 4 bits. Presets that support these get a LOAD with 4-bit blocks.

    Raises
    ------
    ConfigError
        If existing hardware lacks features; the message lists all of them.
    """
    config = configuration(source)
    missing = _missing_fields(config)
    if isinstance(source, str) and source in PRESETS:
        if blocks and config.bus_bytes == config.n <= MAX_BLOCK_COLUMNS:
            missing["int4"] = 2
        added = tuple(f"{name}={minimum}" for name, minimum in missing.items())
        return ExtendedConfig(config.replace(**missing), added)
    lacks = [f"{name}={minimum} (it has {getattr(config, name)})" for name, minimum in missing.items()]
    if not config.softmax:
        lacks.append("probability_bits=7 or 8 (it has 0)")
    if lacks:
        subject = "the configuration" if isinstance(source, Config) else f"configuration {os.fspath(source)}"
        raise ConfigError(
            f"language models do not run on {subject}: they need {', '.join(lacks)}; choose a preset, which gets these "
            f"features, or a board ({', '.join(_suitable_boards())}) or file of a configuration that has them"
        )
    return ExtendedConfig(config)


def _missing_fields(config: Config) -> dict[str, int]:
    """Return the minimum of each field that is below it."""
    return {name: minimum for name, minimum in _MIN_FIELDS.items() if getattr(config, name) < minimum}


def _suitable_boards() -> list[str]:
    """Return the boards whose own configurations have all features."""
    from weft.boards.registry import BOARDS

    return [
        name for name, board in BOARDS.items() if board.config.softmax and not _missing_fields(board.config)
    ]


def choose_page_size(sizes: Sizes, config: Config, rows: int = 1, form: Form = _LLAMA) -> int:
    """Return the number of keys of a page, for `rows` tokens side by side.

    It is the largest multiple of the array size up to `_MAX_PAGE` for which attention fits on the chip and half of the
    scratchpad stays free for weights.
    """
    pages = range(max(_MAX_PAGE // config.n, 1) * config.n, 0, -config.n)
    return next((page for page in pages if _fits(sizes, config, rows, page, form)), pages[-1])


def _fits(sizes: Sizes, config: Config, rows: int, page: int, form: Form) -> bool:
    try:
        return Places(sizes, config, rows, page, form).room >= config.scratchpad_size // 2
    except CompileError:
        return False


def choose_prompt_rows(places: Places) -> int:
    """Return the number of prompt tokens that a decoder's second program computes together.

    It is the largest divisor of the page size for which weights still come in parts of about the same size; 0 if there
    is none.
    """
    parts = len(plan_ring(places).parts)
    for rows in range(places.page, _MIN_PROMPT_ROWS - 1, -1):
        if places.page % rows == 0:
            with contextlib.suppress(CompileError):
                other = dataclasses.replace(places, rows=rows, consecutive=True)
                if len(plan_ring(places, other).parts) <= _MAX_GROWTH_OF_PARTS * parts:
                    return rows
    return 0
