"""Virtual boards: a board's whole top component in Verilator, with its serial line on a pseudo-terminal."""

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
from weft.boards.sdram.model import EYE_ARGUMENT, EYE_VERILOG, Phase, encode
from weft.boards.sdram.model import Rule as SdramRule
from weft.boards.virtual_top import VirtualTop
from weft.configurations import configuration
from weft.hdl.isa.config import Config
from weft.hdl.verilog import generate, generate_cached
from weft.sim import memories
from weft.sim.device import Closable, DeviceError
from weft.sim.verilate import Model, load_library

DIVISOR = 4
"""Clock cycles per bit on the serial line: the fewest that the link supports, which saves simulated cycles."""
CHUNK = 4000
"""Cycles to simulate between accesses to the pseudo-terminal."""
PREFIX = "virtual:"
"""Prefix of the port names of virtual boards."""
ANSWER = 5.0
"""Seconds to wait for the answer of a virtual board, enough on a busy machine."""
QUIET = 50
"""Chunks without a byte in either direction after which the simulation sleeps between chunks."""

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
    """Build the shared library of a board's simulation unless the cache has it, and return its path.

    Raises
    ------
    weft.sim.verilate.BuildError
        If Verilator or the C++ compiler fails.
    """
    return Model(
        verilog=board_verilog(board, config) + ARRAY_VERILOG + EYE_VERILOG + FLASH_ARRAY_VERILOG,
        top="board",
        driver=Path(__file__).with_name("virtual_board.cpp"),
        output="board.so",
        link=["-Wl,-Bsymbolic"],
    ).build()


def board_verilog(board: Board, config: Config) -> str:
    """Return the Verilog of a board's simulation without its memory chips.

    It takes seconds to generate, so it is cached for the boards of `weft.boards.targets`.
    """

    def make() -> VirtualTop:
        return VirtualTop(board, config, DIVISOR)

    if not any(board is known for known in load_boards().values()):
        return generate(
            make(), name="board"
        )  # the cache's key depends on weft's files, which do not define this board
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
class BoardLocation:
    """Serial port of a board, its possible baud rates, and the seconds to wait for an answer (None: the default)."""

    port: str
    rates: list[int]
    timeout: float | None = None


@contextmanager
def locate_board(port: str | None, baud: int | None, config: Config | None = None) -> Iterator[BoardLocation]:
    """Return the location of the board at a serial port; for None, search all serial ports.

    Port ``virtual:NAME`` runs a virtual board meanwhile, with the board's own configuration and an empty flash.
    ``virtual:NAME@CONFIG:FILE`` runs it with configuration CONFIG (`weft.configurations.configuration`) and flash image
    FILE (`weft.boards.flash.image`); ``@CONFIG`` and ``:FILE`` are both optional. Without `baud`, the rates to try
    follow from `config`, the program's configuration.

    Raises
    ------
    weft.boards.errors.BoardError
        If the board does not exist, or CONFIG does not fit it.
    weft.hdl.errors.ConfigError
        If CONFIG is not a configuration.
    weft.sim.device.DeviceError
        If no board answers, a virtual board has another configuration than `config`, or the design broke the rules of
        a simulated memory chip.
    """
    rates = line_rates(config) if baud is None else [baud]
    if port is None:
        board_port = serial_ports.find_board(rates)
        yield BoardLocation(board_port.port, [board_port.baud])
        return
    if not port.startswith(PREFIX):
        yield BoardLocation(port, rates)
        return
    names, _, image = port.removeprefix(PREFIX).partition(":")
    name, _, built_for = names.partition("@")
    board = find(name)
    built = _board_config(board, built_for) if built_for else board.config
    if config is not None:
        check_configuration(board.name, port, built.digest, config)
    with VirtualBoard(board, built, Path(image) if image else None) as virtual:
        yield BoardLocation(virtual.port, [board.baud], ANSWER)
        if virtual.violations:
            raise DeviceError(f"the board broke rules of its memory chips: {', '.join(virtual.violations)}")


@contextmanager
def board_at(port: str | None, config: Config, baud: int | None = None) -> Iterator[BoardDevice]:
    """Open the board at a port (see `locate_board`) as a device.

    Raises
    ------
    weft.boards.errors.BoardError
        If the board does not exist.
    weft.sim.device.DeviceError
        If the port cannot be opened, nothing answers, or the board is built for another configuration.
    """
    with locate_board(port, baud, config) as location:
        session, _ = serial_ports.open_session(location.port, location.rates, timeout=location.timeout)
        try:
            yield BoardDevice(session, config)
        finally:
            session.close()


def _board_config(board: Board, name: str) -> Config:
    """Return a configuration by name. Raises `ConfigError` or `BoardError` if it does not fit the board."""
    config = configuration(name)
    board.family.fabric.multipliers.check(config)
    check_estimate(board, config)
    return config


class VirtualBoard(Closable):
    """Virtual board that runs in a thread until it is closed.

    Parameters
    ----------
    board : Board
    config : Config
    flash : Path, optional
        File with the contents of the board's flash from `SpiFlash.offset` on; without it, flash is empty.
    eye : sequence of Phase, optional
        Operations that work in each phase of the SDRAM's clock; by default, they follow from nominal delays.
    faults : ArrayFaults, optional
        Faults of the board's SDRAM.

    Attributes
    ----------
    port : str
        Name of the pseudo-terminal that a host opens as serial port.

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
        self._library = load_library(build_board(board, config), _SIGNATURES)
        arguments = [] if flash is None else [f"+{FLASH_ARGUMENT}={flash.resolve()}"]
        arguments += [] if eye is None else [f"+{EYE_ARGUMENT}={encode(eye):x}"]
        arguments += [] if faults is None else faults.arguments()
        encoded = [text.encode() for text in ("board", *arguments)]
        argv = (ctypes.c_char_p * len(encoded))(*encoded)
        self._model: int = self._library.board_open(DIVISOR, len(encoded), argv)
        if not self._model:
            raise MemoryError(f"no room for a simulation of {board.name}")
        self._master, self._slave = os.openpty()  # keep the slave open, so that hosts may open and close it
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
        """Rules of the memory chips that the design has broken so far."""
        rules = broken_rules(SdramRule, self._library.board_violation(self._model))
        return rules + broken_rules(FlashRule, self._library.board_flash_violation(self._model))

    def close(self) -> None:
        """End the simulation and remove the port."""
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
            # Take bytes from the host only as fast as the line can send them.
            sent = self._from_host() if self._library.board_waiting(self._model) < CHUNK else b""
            count = self._library.board_run(self._model, CHUNK, sent, len(sent), got, len(got))
            if count > len(got):
                return  # out of memory: the board stops answering
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
        except BlockingIOError:  # the pseudo-terminal's buffer is full because the host does not read
            return 0


def _check_flash(board: Board, path: Path) -> None:
    """Raise `DeviceError` unless the file exists and fits the board's flash."""
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
