"""Machine of a language model: its configuration, a main device, and the golden interpreter beside it.

The golden interpreter serves for results or for comparison.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.configurations import configuration
from weft.extras.language.compiler.contents import plan_ring
from weft.extras.language.compiler.layout import Form, Places
from weft.extras.language.compiler.model import Sizes
from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Row
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import MAX_BLOCK_COLUMNS, PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.report import mismatches
from weft.run.options import RunOptions, open_device


@dataclass(frozen=True)
class StepCost:
    """Cost of a step: tokens, cycles, and bytes between core and memory (None on devices without counters)."""

    tokens: int
    cycles: int | None
    bytes_moved: int | None


def min_prompt_tokens(memory: DecoderMemory, options: RunOptions) -> int:
    """Return the number of prompt tokens from which the prompt program is faster than steps side by side.

    The cycle model decides. Return 0 if the decoder has no prompt program.
    """
    if memory.prompts is None:
        return 0
    cycles, places = [], memory.decoder.places
    timing = RunOptions("timing", **options.memory)
    with open_device(timing, memory.decoder.config, memory.memory_bytes) as device:
        run, pages = DecoderRun(memory, device), range(memory.pages)
        # Cycles of a step with all rows, and of a step of the prompt program.
        for start, rows in ((run.step, places.rows), (run.prompt, memory.prompts.decoder.places.rows)):
            start([Row(0, at, pages) for at in range(min(rows, places.sizes.context))])
            cycles.append(device.counters()[Counter.CYCLES])
    # While a prompt step runs, steps side by side compute this many tokens.
    return max(2, cycles[1] // cycles[0] * places.rows + 1)


class Machine:
    """Backend of `weft.extras.language.run.batch.Batch`: one or two devices that run the same steps.

    Parameters
    ----------
    memory : DecoderMemory
    options : RunOptions
        On "timing", and any other device without results, the golden interpreter computes the same steps.
    compare : bool
        Run the golden interpreter as well, and compare logits byte by byte.

    Attributes
    ----------
    step_costs : list of StepCost
        Costs of each step so far.
    mismatches : int
        Number of logit bytes that differ.

    Raises
    ------
    weft.errors.InputError
        If the device is unsuitable or has too little memory.
    """

    def __init__(
        self,
        memory: DecoderMemory,
        options: RunOptions,
        *,
        compare: bool = False,
    ) -> None:
        self._memory = memory
        self.step_costs: list[StepCost] = []
        self.mismatches = 0
        with contextlib.ExitStack() as stack:
            self._main = self._run(stack, options)
            computes = self._main.device.computes
            needs_golden = (compare or not computes) and options.on != "golden"
            self._golden = self._run(stack, RunOptions("golden")) if needs_golden else None
            self._computing = self._main if computes or self._golden is None else self._golden
            # Until here, the stack closes a device if the other one cannot be opened.
            self._open = stack.pop_all()

    def _run(self, stack: contextlib.ExitStack, options: RunOptions) -> DecoderRun:
        memory = self._memory
        hint = "; fewer pages, or a shorter context, take less"
        device = stack.enter_context(open_device(options, memory.decoder.config, memory.memory_bytes, hint))
        return DecoderRun(memory, device)

    def close(self) -> None:
        """Free the devices that this object opened."""
        self._open.close()

    def prompt(self, rows: Sequence[Row]) -> None:
        self._main.prompt(rows)
        self._record_cost(len(rows))
        if self._golden is not None:
            # Prompts have no logits to compare; `compare_memory` covers their keys and values.
            self._golden.prompt(rows)

    def _record_cost(self, tokens: int) -> None:
        counters = self._main.device.counters()
        cycles = counters.get(Counter.CYCLES)
        beats = counters.get(Counter.READ_BEATS, 0) + counters.get(Counter.WRITE_BEATS, 0)
        bytes_moved = None if cycles is None else beats * self._memory.decoder.config.bus_bytes
        self.step_costs.append(StepCost(tokens, cycles, bytes_moved))

    def step(self, rows: Sequence[Row]) -> None:
        self._main.step(rows)
        self._record_cost(len(rows))
        if self._golden is not None:
            self._golden.step(rows)
            if self._main.device.computes:
                self._compare(len(rows))

    def _compare(self, count: int) -> None:
        assert self._golden is not None
        for row in range(count):
            self.mismatches += mismatches(self._golden.logit_bytes(row), self._main.logit_bytes(row))

    def compare_memory(self) -> int:
        """Return the number of memory bytes that differ from the golden interpreter's, or 0 without a comparison."""
        if self._golden is None or not self._main.device.computes:
            return 0
        golden, main = (run.device.read(0, self._memory.memory_bytes) for run in (self._golden, self._main))
        return mismatches(golden, main)

    def logits(self, row: int) -> np.ndarray:
        return self._computing.logits(row)

    def copy(self, page: int, to: int) -> None:
        for run in {self._main, self._golden} - {None}:
            assert run is not None
            run.copy(page, to)


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
    # If none leaves that much room, take the smallest, for which `Places` may raise an error.
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
