"""Devices for language models, as command-line options choose them, and the report of cycles per token."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import report as reports
from weft.cli.commands import check_only
from weft.run.options import RunOptions

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.boards.link.host import BoardDevice
    from weft.extras.language.run.lm import Model
    from weft.extras.language.run.lm_machine import StepCost
    from weft.hdl.isa.config import Config
    from weft.report import Progress
    from weft.run.options import Opening
    from weft.sim.device import Device


Compare = Annotated[
    bool,
    typer.Option("--compare", help="Compare a board's logits with the golden interpreter's, byte by byte."),
]


@dataclass
class Running:
    """Device of a model, and the reports that depend on it.

    Parameters
    ----------
    config : str
        Name or file of the configuration.
    options : RunOptions
        The device, which may also be "board", and the simulated memory.
    clock : float, optional
        Clock in MHz, as --clock gives it.
    port : str, optional
        Serial port of a board.
    baud : int, optional
        Baud rate of a board.
    compare : bool
        Whether --compare is set.
    port_option : str
        Option that gives `port`, for messages.
    """

    config: str
    options: RunOptions
    clock: float | None = None
    port: str | None = None
    baud: int | None = None
    compare: bool = False
    port_option: str = "--port"
    _connected: BoardDevice | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_only("timing", self.options.on, {"--clock": self.clock})
        board_options = {self.port_option: self.port, "--baud": self.baud, "--compare": self.compare}
        check_only("board", self.options.on, board_options)

    @property
    def compares_with_golden(self) -> bool:
        """True if the golden interpreter repeats every step for comparison."""
        return self.options.on == "rtl" or self.compare

    def load(self, path: Path, **options: Any) -> Model:
        """Load the model on the device, and report the features that weft adds to a preset.

        `options` are the other options of `weft.extras.language.run.lm.load`.
        """
        from weft.extras.language.run import lm

        with reports.progress() as progress:
            progress(
                reports.RTL_STARTS
                if self.options.on == "rtl"
                else "reading the model, and choosing its steps"
            )
            model = lm.load(
                path, self.config, on=replace(self.options, on=self._device(progress)),
                compare=self.compares_with_golden, **options,
            )  # fmt: skip
        if model.added:
            reports.say_on_stderr(f"configuration: {self.config} with {', '.join(model.added)}")
        if self._connected is not None:
            from weft.run.board_run import link_of, link_text

            reports.say_on_stderr(link_text(link_of(self._connected)))
        for note in model.reference.model.notes:
            reports.warn(note)
        return model

    def _device(self, progress: Progress) -> str | Device | Opening:
        if self.options.on == "board":
            # `load` opens it, once it has chosen the configuration.
            return functools.partial(self._open_board, progress)
        model = self._board_model() if self.options.on == "timing" else None
        return self.options.on if model is None else model

    @contextlib.contextmanager
    def _open_board(self, progress: Progress, config: Config) -> Iterator[Device]:
        """Open the board for a configuration."""
        from weft.run.board_run import open_board

        with open_board(self.port, config, self.baud, progress) as device:
            progress(f"sending the model to {device.identity.board} at {device.port}")
            self._connected = device
            yield device

    def _board_model(self) -> Device | None:
        """Return the cycle model of the board that `config` names, with the board's memory.

        Return None for any other configuration, or if --bandwidth is set.
        """
        from weft.run.board_run import board_model

        board = self._board()
        if board is None or self.options.bandwidth is not None:
            return None
        return board_model(board, board.config, board.clock)

    def timing(self, model: Model, prompt: int | None) -> Timing | None:
        """Return the timing of steps on the cycle model or a board, else None; `prompt` is the number of prompt
        tokens.
        """
        if self.options.on not in ("timing", "board"):
            return None
        # The bus limits a faster memory.
        peak = min(self._bandwidth_limit() or model.decoder.config.bus_bytes, model.decoder.config.bus_bytes)
        return Timing.of(model.step_costs, prompt, peak, self._clock_hz())

    def timing_lines(self, timing: Timing | None, seconds: float) -> list[str]:
        """Return the timing's lines; `seconds` is the elapsed time."""
        if timing is None:
            return []
        if self._connected is None or timing.clock is None:
            return timing.lines()
        core_seconds = (timing.prompt.cycles + timing.following.cycles) / timing.clock
        return [
            *timing.lines(),
            f"{seconds:,.2f} s with the link and the host; the core computed for {core_seconds:,.2f} s of them",
        ]

    def _bandwidth_limit(self) -> float | None:
        """Return the memory's bandwidth limit in bytes per cycle, or None."""
        if self.options.bandwidth is not None:
            return self.options.bandwidth
        board = self._board()
        return None if board is None else board.memory.peak_bytes_per_cycle

    def _clock_hz(self) -> float | None:
        if self._connected is not None:
            return float(self._connected.identity.clock)
        if self.clock is not None:
            return self.clock * 1e6
        board = self._board()
        return None if board is None else board.clock

    def _board(self) -> Board | None:
        """Return the board that the model ran on, or that `config` names, else None."""
        from weft.boards.registry import BOARDS

        return BOARDS.get(self.config if self._connected is None else self._connected.identity.board)

    def report_mismatches(self, model: Model) -> None:
        """Report the number of mismatching logit bytes; exit with code 1 if there are any."""
        if self.compares_with_golden:
            reports.say_on_stderr(f"mismatching bytes: {model.mismatches:,}")
            if model.mismatches:
                raise typer.Exit(1)


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 token``, ``2 tokens``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Part:
    """Sums over several steps.

    Attributes
    ----------
    steps, tokens : int
    cycles, moved : int
        Cycles, and bytes transferred between core and memory, of all steps.
    least, most : int
        Cycles of the fastest and the slowest step.
    """

    steps: int
    tokens: int
    cycles: int
    moved: int
    least: int
    most: int

    @classmethod
    def of(cls, steps: Sequence[StepCost]) -> Part:
        cycles = [step.cycles or 0 for step in steps]
        tokens, moved = sum(step.tokens for step in steps), sum(step.bytes_moved or 0 for step in steps)
        return cls(len(steps), tokens, sum(cycles), moved, min(cycles, default=0), max(cycles, default=0))


@dataclass(frozen=True)
class Timing:
    """Timing of a text's tokens.

    Attributes
    ----------
    prompt : Part
        Steps of the prompt; the last one also produces the first generated token.
    following : Part
        All later steps.
    peak : float
        Peak memory bandwidth in bytes per cycle.
    clock : float or None
        Hz.
    """

    prompt: Part
    following: Part
    peak: float
    clock: float | None

    @classmethod
    def of(cls, steps: Sequence[StepCost], prompt: int | None, peak: float, clock: float | None) -> Timing:
        """Sum up the steps of one text, of which the first compute `prompt` tokens (None: all steps do)."""
        tokens = itertools.accumulate(step.tokens for step in steps)
        # The step that computes the prompt's last token belongs to the prompt.
        first = len(steps) if prompt is None else sum(count < prompt for count in tokens) + 1
        return cls(Part.of(steps[:first]), Part.of(steps[first:]), peak, clock)

    def lines(self) -> list[str]:
        """Return the report's lines."""
        lines = [self._line("prompt", self.prompt)]
        if self.following.tokens:
            lines.append(self._line("following", self.following))
        return lines

    def _line(self, name: str, part: Part) -> str:
        each = part.cycles / part.tokens
        spread = f" (steps of {part.least:,} to {part.most:,})" if part.least != part.most else ""
        share = part.moved / max(part.cycles * self.peak, 1)
        text = (
            f"{name}: {count_text(part.tokens, 'token')} in {count_text(part.steps, 'step')}, {each:,.0f} cycles a "
            f"token{spread}, {part.moved / part.tokens:,.0f} bytes a token, {share:.1%} of the memory's "
            f"{self.peak:g} bytes a cycle"
        )
        if self.clock is None:
            return text
        return f"{text}; at {self.clock / 1e6:g} MHz {self.clock / each:,.1f} tokens a second"
