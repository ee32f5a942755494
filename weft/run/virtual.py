"""A board that is simulated: its whole top component in Verilator, its serial line behind a pseudo-terminal."""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weft import boards
from weft.boards.board import Board
from weft.boards.build.estimate import check_estimate
from weft.boards.flash.model import ARRAY_VERILOG as FLASH_ARRAY_VERILOG
from weft.boards.flash.model import FLASH_ARGUMENT, broken_rules
from weft.boards.flash.model import Rule as FlashRule
from weft.boards.link import serial_ports
from weft.boards.link.host import BoardDevice, check_configuration
from weft.boards.registry import find, line_rates, load_boards
from weft.boards.sdram.chip import ARRAY_VERILOG, ArrayFaults
from weft.boards.sdram.model import Rule as SdramRule
from weft.boards.sdram.phased_chip import EYE_ARGUMENT, EYE_VERILOG, Phase, encode
from weft.boards.virtual_top import VirtualTop
from weft.configurations import configuration
from weft.hdl.isa.config import Config
from weft.hdl.verilog import generate, generate_cached
from weft.sim import memories
from weft.sim.device import Closing, DeviceError
from weft.sim.verilate import Model

DIVISOR = 4
"""Clock cycles a bit: the fastest line that the link manages, so that most of the time goes into computing."""
CHUNK = 4000
"""Cycles between looks at the terminal."""
PREFIX = "virtual:"
"""Begins the names of serial ports of boards that are simulated."""
ANSWER = 5.0
"""Seconds in which a simulated board answers, however busy the machine is."""
QUIET = 50
"""Chunks without a byte either way after which the simulation waits a little between two of them."""

_SIGNATURES = {
    "board_open": (ctypes.c_void_p, [ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]),
    "board_close": (None, [ctypes.c_void_p]),
    "board_run": (
        ctypes.c_uint64,
        [
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_uint64,
        ],
    ),
    "board_waiting": (ctypes.c_uint64, [ctypes.c_void_p]),
    "board_cycles": (ctypes.c_uint64, [ctypes.c_void_p]),
    "board_violation": (ctypes.c_uint32, [ctypes.c_void_p]),
    "board_flash_violation": (ctypes.c_uint32, [ctypes.c_void_p]),
}


def build_board(board: Board, config: Config) -> Path:
    """The shared library of a board's simulation, from the cache if it was built before.

    Raises
    ------
    weft.sim.verilate.BuildError
        If the Verilog does not pass Verilator or the C++ compiler.
    """
    return Model(
        verilog=board_verilog(board, config) + ARRAY_VERILOG + EYE_VERILOG + FLASH_ARRAY_VERILOG,
        top="board",
        driver=Path(__file__).with_name("virtual_board.cpp"),
        output="board.so",
        link=["-Wl,-Bsymbolic"],
    ).build()


def board_verilog(board: Board, config: Config) -> str:
    """Generate the Verilog of a board's simulation without its chips.

    For boards of `weft.boards.targets` it is kept in the cache: generating it takes seconds.
    """

    def make() -> VirtualTop:
        return VirtualTop(board, config, DIVISOR)

    if not any(board is known for known in load_boards().values()):
        return generate(make(), name="board")  # files of weft do not say what this board is
    return generate_cached(
        make,
        name="board",
        of=f"{VirtualTop.__module__} {board.name} {config} {DIVISOR}",
        sources=[
            *sorted(Path(boards.__file__).parent.rglob("*.py")),
            Path(memories.__file__),
        ],
    ).read_text()


@dataclass(frozen=True)
class Place:
    """Where a board is: its serial port, the rates at which it may answer, and how long to wait for an answer; None for
    a real board."""

    port: str
    rates: list[int]
    timeout: float | None = None


@contextmanager
def place_of(port: str | None, baud: int | None, config: Config | None = None) -> Iterator[Place]:
    """The place of the board at a serial port; for ``virtual:NAME`` of a simulation of the board called so, which runs
    meanwhile; for None of the one that is connected.

    A simulation has the board's own configuration, and an empty flash. ``virtual:NAME@CONFIG:FILE`` has the
    configuration that CONFIG names (`weft.configurations.configuration`), and an image of `weft.boards.flash.image`
    in its flash; each of the two may be left out. Without `baud`, the rate that the board runs at is found out;
    `config`, which is the program's, says what is likely.

    Raises
    ------
    weft.boards.board.BoardError
        If there is no board of that name, or CONFIG does not fit it.
    weft.hdl.isa.config.ConfigError
        If CONFIG is none.
    weft.sim.device.DeviceError
        If no board is found, a simulated one has another configuration than `config`, or a simulated memory was used
        against its rules.
    """
    rates = line_rates(config) if baud is None else [baud]
    if port is None:
        found = serial_ports.find_board(rates)
        yield Place(found.port, [found.baud])
        return
    if not port.startswith(PREFIX):
        yield Place(port, rates)
        return
    names, _, image = port.removeprefix(PREFIX).partition(":")
    name, _, built_for = names.partition("@")
    board = find(name)
    built = _fitting(board, built_for) if built_for else board.config
    if config is not None:
        check_configuration(board.name, port, built.digest, config)
    with VirtualBoard(board, built, Path(image) if image else None) as virtual:
        yield Place(virtual.port, [board.baud], ANSWER)
        if virtual.violations:
            raise DeviceError(f"the board broke rules of its memory chips: {', '.join(virtual.violations)}")


@contextmanager
def board_at(port: str | None, config: Config, baud: int | None = None) -> Iterator[BoardDevice]:
    """The board at the place that `place_of` tells, as a device.

    Raises
    ------
    weft.boards.board.BoardError
        If there is no board of that name.
    weft.sim.device.DeviceError
        If the port cannot be opened, nothing answers, or the board is built for another configuration.
    """
    with place_of(port, baud, config) as place:
        session, _ = serial_ports.open_session(place.port, place.rates, timeout=place.timeout)
        try:
            yield BoardDevice(session, config)
        finally:
            session.close()


def _fitting(board: Board, name: str) -> Config:
    """A configuration by its name. Raises `ConfigError` or `BoardError` if `weft build` would refuse it too."""
    config = configuration(name)
    board.family.fabric.multipliers.check(config)
    check_estimate(board, config)
    return config


class VirtualBoard(Closing):
    """Simulates a board until it is closed; `port` is the device that a host opens as its serial port.

    Parameters
    ----------
    board : Board
    config : Config
    flash : Path, optional
        What the board's flash holds from `SpiFlash.offset` on; else it is empty.
    eye : sequence of Phase, optional
        What works in each phase of the clock of the board's SDRAM; else what the delays on paper say.
    faults : ArrayFaults, optional
        What is wrong with the board's SDRAM.

    Attributes
    ----------
    port : str
        Name of the pseudo-terminal.

    Raises
    ------
    weft.sim.device.DeviceError
        If `flash` cannot be read or has no room, or the board has no flash.
    """

    def __init__(
        self,
        board: Board,
        config: Config,
        flash: Path | None = None,
        eye: Sequence[Phase] | None = None,
        faults: ArrayFaults | None = None,
    ) -> None:
        if flash is not None:
            _check_flash(board, flash)
        self._library = ctypes.CDLL(str(build_board(board, config)))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        arguments = [] if flash is None else [f"+{FLASH_ARGUMENT}={flash.resolve()}"]
        arguments += [] if eye is None else [f"+{EYE_ARGUMENT}={encode(eye):x}"]
        arguments += [] if faults is None else faults.arguments()
        given = [text.encode() for text in ("board", *arguments)]
        made = (ctypes.c_char_p * len(given))(*given)
        self._model: int = self._library.board_open(DIVISOR, len(given), made)
        if not self._model:
            raise MemoryError(f"no room for a simulation of {board.name}")
        self._master, self._slave = os.openpty()  # the slave stays open, so that hosts may come and go
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        self.port = os.ttyname(self._slave)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._simulate, name="virtual board", daemon=True)
        self._thread.start()

    @property
    def cycles(self) -> int:
        """Clock cycles simulated so far."""
        return int(self._library.board_cycles(self._model))

    @property
    def violations(self) -> list[str]:
        """Rules of the memory chips that their controllers have broken so far."""
        found = broken_rules(SdramRule, self._library.board_violation(self._model))
        return found + broken_rules(FlashRule, self._library.board_flash_violation(self._model))

    def close(self) -> None:
        """End the simulation; the port is gone."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self._library.board_close(self._model)
        os.close(self._master)
        os.close(self._slave)

    def _simulate(self) -> None:
        got = ctypes.create_string_buffer(CHUNK)
        backlog, quiet = b"", 0
        while not self._stop.is_set():
            sent = self._from_host() if self._library.board_waiting(self._model) < CHUNK else b""
            count = self._library.board_run(self._model, CHUNK, sent, len(sent), got, len(got))
            if count > len(got):
                return  # out of memory: to the host, the board is silent from now on
            backlog += got.raw[:count]
            if backlog:
                backlog = backlog[self._to_host(backlog) :]
            quiet = 0 if sent or count else quiet + 1
            if quiet > QUIET:
                time.sleep(0.0005)

    def _from_host(self) -> bytes:
        readable, _, _ = select.select([self._master], [], [], 0)
        return os.read(self._master, CHUNK) if readable else b""

    def _to_host(self, backlog: bytes) -> int:
        try:
            return os.write(self._master, backlog)
        except BlockingIOError:  # the host does not read
            return 0


def _check_flash(board: Board, path: Path) -> None:
    """Raise `DeviceError` if the board's flash cannot hold a file."""
    if board.flash is None:
        raise DeviceError(f"{board.name} has no flash for programs: leave {path} out")
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise DeviceError(f"cannot read {path}: {error.strerror}") from None
    if size is None:
        raise DeviceError(
            f"there is no file {path}: write one with weft flash --program FOLDER --image {path}"
        )
    if size > (room := board.flash.room):
        raise DeviceError(f"{path} has {size:,} bytes, and the flash of {board.name} has room for {room:,}")
