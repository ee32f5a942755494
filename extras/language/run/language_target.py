"""Where language models run, as commands are told."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import report as reports
from weft.errors import FileError
from weft.run.board_run import link_of, link_text, open_board

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.boards.link.host import BoardDevice
    from weft.extras.language.run.language_report import Took
    from weft.extras.language.run.lm import Model
    from weft.hdl.isa.config import Config
    from weft.report import Progress
    from weft.run.devices import Opening
    from weft.sim.device import Device


class Target(enum.StrEnum):
    GOLDEN = "golden"
    RTL = "rtl"
    TIMING = "timing"
    BOARD = "board"


On = Annotated[Target, typer.Option("--on", help="Where to run. timing counts cycles while golden computes.")]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="Compare a board's logits with the golden interpreter's, byte by byte."),
]


@dataclass
class Running:
    """Where a model runs, and what is known of it behind that.

    Attributes
    ----------
    config : str
        What names the configuration.
    on : Target
    latency, bandwidth
        Of the simulated memory, in cycles and in bytes a cycle.
    clock : float, optional
        MHz that the command line says.
    port : str, optional
    baud : int, optional
        Of a board.
    compare : bool
        Whether the command line asks for a board to be compared.
    port_option : str
        The name of the option that `port` comes from.
    """

    config: str
    on: Target = Target.GOLDEN
    latency: int = 30
    bandwidth: float | None = None
    clock: float | None = None
    port: str | None = None
    baud: int | None = None
    compare: bool = False
    port_option: str = "--port"
    _connected: BoardDevice | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raise `FileError` for options that do not go together."""
        if self.clock is not None and self.on is not Target.TIMING:
            raise FileError(f"--clock and --on {self.on} do not go together: only timing takes a clock")
        if self.on is not Target.BOARD:
            given = {self.port_option: self.port, "--baud": self.baud, "--compare": self.compare or None}
            for name, value in given.items():
                if value is not None:
                    raise FileError(f"{name} and --on {self.on} do not go together: it is for a board")

    @property
    def compares(self) -> bool:
        """Whether the golden interpreter computes beside a device that does."""
        return self.on is Target.RTL or self.compare

    def load(self, path: Path, **options: Any) -> Model:
        """The model on the device; says which features a preset has got for it. `options` are those of
        `weft.extras.language.run.lm.load` that this does not say."""
        from weft.extras.language.run import lm
        from weft.run.devices import Simulation

        with reports.progress() as progress:
            progress(
                reports.RTL_STARTS if self.on is Target.RTL else "reading the model, and choosing its steps"
            )
            model = lm.load(
                path, self.config, on=self._device(progress), compare=self.compares,
                simulation=Simulation(latency=self.latency, bandwidth=self.bandwidth), **options,
            )  # fmt: skip
        if model.added:
            reports.say_on_stderr(f"configuration: {self.config} with {', '.join(model.added)}")
        if self._connected is not None:
            reports.say_on_stderr(link_text(link_of(self._connected)))
        for note in model.reference.model.notes:
            reports.warn(note)
        return model

    def _device(self, progress: Progress) -> str | Device | Opening:
        """As `weft.extras.language.run.lm.load` takes it."""
        if self.on is Target.BOARD:
            return functools.partial(self._opened, progress)
        modelled = self._modelled() if self.on is Target.TIMING else None
        return self.on.value if modelled is None else modelled

    @contextlib.contextmanager
    def _opened(self, progress: Progress, config: Config) -> Iterator[Device]:
        """The board, built for a configuration."""
        with open_board(self.port, config, self.baud, progress) as device:
            progress(f"sending the model to {device.identity.board} at {device.port}")
            self._connected = device
            yield device

    def _modelled(self) -> Device | None:
        """The cycle model of the board that is named, behind its memory; None for any other configuration, or
        memory."""
        from weft.run.board_run import board_model

        board = self._named()
        if board is None or self.bandwidth is not None:
            return None
        return board_model(board, board.config, board.clock)

    def took(self, model: Model, prompt: int | None) -> Took | None:
        """What steps took on the cycle model or on a board; `prompt` are tokens that the first of them were for."""
        if self.on not in (Target.TIMING, Target.BOARD):
            return None
        from weft.extras.language.run.language_report import Took

        peak = min(self._peak() or model.decoder.config.bus_bytes, model.decoder.config.bus_bytes)
        return Took.of(model.counted, prompt, peak, self._hertz())

    def lines(self, took: Took | None, seconds: float) -> list[str]:
        """What steps took, as sentences; `seconds` have passed meanwhile."""
        if took is None:
            return []
        if self._connected is None or took.clock is None:
            return took.lines()
        core = (took.prompt.cycles + took.following.cycles) / took.clock
        return [
            *took.lines(),
            f"{seconds:,.2f} s with the link and the host; the core computed for {core:,.2f} s of them",
        ]

    def _peak(self) -> float | None:
        """Bytes that the memory moves in a cycle at most, if it has such a limit."""
        if self.bandwidth is not None:
            return self.bandwidth
        board = self._named()
        return None if board is None else board.memory.peak_bytes_per_cycle

    def _hertz(self) -> float | None:
        if self._connected is not None:
            return float(self._connected.identity.clock)
        if self.clock is not None:
            return self.clock * 1e6
        board = self._named()
        return None if board is None else board.clock

    def _named(self) -> Board | None:
        """The board that it ran on, or that names the configuration."""
        from weft.boards.registry import BOARDS

        return BOARDS.get(self.config if self._connected is None else self._connected.identity.board)

    def compared(self, model: Model) -> None:
        """Say how many bytes of logits differ; leave with exit code 1 if any does."""
        if self.compares:
            reports.say_on_stderr(f"mismatching bytes: {model.mismatches:,}")
            if model.mismatches:
                raise typer.Exit(1)
