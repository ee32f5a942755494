"""Device interface of a board: runs programs on an FPGA behind a serial port."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from weft.boards.bus.memory import BoardMemory, Transfer, expected_checks, sample_memory
from weft.boards.flash.chip import WINDOW
from weft.boards.flash.image import Directory
from weft.boards.link.frames import CHECK_BLOCK, Identity, Operation, Request
from weft.boards.link.polled import PolledDevice
from weft.boards.link.serial_ports import identify_ready, open_session, sdram_fault
from weft.boards.link.session import ATTEMPTS, Session, SilenceError, blocks
from weft.boards.registry import BOARDS, line_rates
from weft.hdl.isa import BASES
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import MAGIC, START, START_LIST, VERSION, Reg, Status, base_register
from weft.sim.device import DeviceError, check_base, check_list, check_program, check_range

CHECK_SHARE = 0.1
"""Largest share of the time that optional checks of memory may take."""


@dataclass
class _Region:
    """Region of memory that was loaded. `checks` are the board's expected CRCs of its pages."""

    name: str
    address: int
    size: int
    digest: bytes
    checks: dict[int, bytes] = field(default_factory=dict)


class Contents:
    """Loaded regions of memory that programs only read.

    All regions are checked before the first start after a load and after a failed run. Before other starts they are
    checked if this keeps the time of checks below `share`.

    Parameters
    ----------
    memory : BoardMemory
    share : float
        Largest share of the time for checks; 1 checks before every start.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    transfer : Transfer
        Bytes written by `load` so far, and bytes that memory already held.
    checked : int
        Bytes checked so far, without the checks made by `load`.
    """

    def __init__(
        self, memory: BoardMemory, *, share: float = CHECK_SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory, self.share = memory, share
        self.transfer, self.checked = Transfer(), 0
        self._clock = clock
        self._regions: dict[int, _Region] = {}
        self._due = False  # check before the next start, whatever time it takes
        self._since = 0  # starts since the last check
        self._next = 0.0

    def load(self, address: int, payload: bytes, name: str) -> None:
        """Make memory hold `payload`, called `name` in messages, unless it was loaded there before.

        Raises `DeviceError` if it is not inside memory, or if the connection is lost.
        """
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if not payload or self._knows(region):
            return
        self.forget(address, len(payload))
        update = self.memory.update(address, payload)
        self.transfer.written += update.written
        self.transfer.kept += update.kept
        self._add(region, payload)

    def adopt(self, address: int, payload: bytes, name: str) -> bool:
        """Check whether the board holds `payload` at `address` in memory or flash; if so, treat it as loaded.

        Raises `DeviceError` if the connection is lost.
        """
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if self._knows(region):
            return True
        self._add(region, payload)
        if not self._wrong(region):
            return True
        del self._regions[address]
        return False

    def _knows(self, region: _Region) -> bool:
        """Return whether the same bytes were loaded there before."""
        known = self._regions.get(region.address)
        return known is not None and (known.size, known.digest) == (region.size, region.digest)

    def _add(self, region: _Region, payload: bytes) -> None:
        pages = list(blocks(region.address, region.size, CHECK_BLOCK))
        region.checks = expected_checks(region.address, payload, pages)
        self._regions[region.address] = region
        self._due = True

    def forget(self, address: int, size: int) -> None:
        """Remove regions that overlap `size` bytes at `address`."""
        for at, region in list(self._regions.items()):
            if at < address + size and address < at + region.size:
                del self._regions[at]

    def clear(self) -> None:
        """Remove all regions."""
        self._regions.clear()

    def distrust(self) -> None:
        """Check all regions before the next start, because anything may have been written to memory."""
        self._due = True

    def before_start(self) -> None:
        """Check all regions if a check is due. Raises `DeviceError` as `check` does."""
        if self._due or self.share >= 1 or self._clock() >= self._next:
            self.check()
        self._since += 1

    def confirm(self) -> None:
        """Check all regions if a program was started since the last check. Raises `DeviceError` as `check` does."""
        if self._since:
            self.check()

    def check(self) -> None:
        """Check all regions now.

        Raises
        ------
        DeviceError
            If a region does not hold its bytes; the next `load` then writes all regions again. Also if the connection
            is lost.
        """
        begun = self._clock()
        for region in self._regions.values():
            if wrong := self._wrong(region):
                self.clear()
                raise DeviceError(self._changed_message(region, wrong))
            self.checked += region.size
        # Wait so long that checks take `share` of the time.
        now = self._clock()
        self._next = now + (now - begun) * (1 / self.share - 1)
        self._due, self._since = False, 0

    def _wrong(self, region: _Region) -> list[tuple[int, int]]:
        pages = list(blocks(region.address, region.size, CHECK_BLOCK))
        return sorted(self.memory.find_differing(region.checks, pages))

    def _changed_message(self, region: _Region, wrong: list[tuple[int, int]]) -> str:
        runs, self._since = self._since, 0
        first, last = wrong[0][0], sum(wrong[-1]) - 1
        size = sum(length for _, length in wrong)
        since = (
            "before the program was started"
            if not runs
            else "before the last run ended, whose result may be wrong"
            if runs == 1
            else f"during the last {runs:,} runs, whose results may be wrong"
        )
        return (
            f"{region.name} on the board at {self.memory.session.name} changed {since}: {size:,} bytes of it, from "
            f"{first:#x} to {last:#x}, differ from what was sent; run again to send them again, and if the error "
            "returns, test the memory with weft probe --memory-test all"
        )


class BoardDevice(PolledDevice):
    """FPGA board on a serial port, as a `weft.sim.device.Device`. Use `open`.

    Parameters
    ----------
    session : Session
        Connection to the board.
    config : Config
        Configuration that programs are for.
    test_memory : bool
        Test a sample of the board's memory now, see `weft.boards.bus.memory.sample_memory`.
    check_share : float
        Largest share of the time for checks before starts, see `weft.boards.link.host.Contents`; 1 checks before every
        start.

    Attributes
    ----------
    identity : Identity
        The board's description of itself.
    contents : Contents
        Loaded regions of memory.

    Raises
    ------
    DeviceError
        If no board answers, if it is built for another configuration or version, or if its memory does not work.
    """

    def __init__(
        self, session: Session, config: Config, *, test_memory: bool = True, check_share: float = CHECK_SHARE
    ) -> None:
        self.config = config
        self._session = session
        self._bases: dict[int, int] = {}  # base registers set by this session
        self._directory: Directory | None = None
        self._starts = 0
        self._failed = self._started = False
        self.identity = self._identify()
        self.memory_bytes = self.identity.memory_bytes
        self._memory = BoardMemory(session, self.memory_bytes)
        self.contents = Contents(self._memory, share=check_share)
        session.buffer = self.identity.buffer
        # A program of an earlier session may still be running.
        self._reset()
        for register, value in {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: config.digest,
        }.items():
            actual = self._read_register(register)
            if actual != value:
                raise DeviceError(
                    f"register {register.name} of the core at {session.name} is {actual:#x}, not {value:#x}: "
                    "build and flash it again"
                )
        if test_memory:
            self._test_memory()

    def _test_memory(self) -> None:
        try:
            result = sample_memory(self._memory)
        except SilenceError as error:
            raise DeviceError(
                f"{error} since its memory was tested: its memory may not respond; switch the board off and on again"
            ) from None
        if result.wrong is not None:
            board = self.identity.board
            raise DeviceError(
                f"the memory of {board} at {self._session.name} does not keep what is written to it: {result}; switch "
                "the board off and on again, and test all of its memory with weft probe --memory-test all"
            )

    @classmethod
    def open(
        cls,
        port: str,
        config: Config,
        *,
        baud: int | None = None,
        timeout: float | None = None,
        attempts: int = ATTEMPTS,
        test_memory: bool = True,
    ) -> Self:
        """Return the board at a serial port, with its core reset.

        Parameters
        ----------
        port : str
            Device such as ``/dev/ttyUSB0`` or ``COM3``, or a URL that pyserial supports.
        config : Config
            Configuration that programs are for.
        baud : int or None
            Baud rate, as in the build's report. None tries the rates of `line_rates`, starting with boards whose own
            configuration is `config`.
        timeout : float or None
            Seconds without an answer after which requests are repeated. None for a real board; simulated boards need
            longer.
        attempts : int
            Number of consecutive timeouts before the connection fails.
        test_memory : bool
            See `BoardDevice`.

        Raises
        ------
        DeviceError
            If the port cannot be opened, if no board answers, if it is built for another configuration or version, or
            if its memory does not work.
        """
        rates = line_rates(config) if baud is None else [baud]
        session, _ = open_session(port, rates, timeout=timeout, attempts=attempts)
        try:
            return cls(session, config, test_memory=test_memory)
        except BaseException:
            session.close()
            raise

    def _identify(self) -> Identity:
        identity = identify_ready(self._session)
        check_configuration(identity.board, self._session.name, identity.digest, self.config)
        if fault := sdram_fault(identity):
            raise DeviceError(f"{fault}; nothing was sent to it")
        return identity

    def close(self) -> None:
        """Close the port. A running program continues until the board is opened again."""
        self._session.close()

    @property
    def port(self) -> str:
        """Name of the serial port."""
        return self._session.name

    @property
    def retries(self) -> int:
        """Number of repeated requests so far; above 0, the line loses bytes."""
        return self._session.retries

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it is not inside memory."""
        self.contents.forget(address, len(payload))
        self._memory.write(address, payload)

    @property
    def transfer(self) -> Transfer:
        """Bytes that `load` has written so far, and bytes that memory already held."""
        return self.contents.transfer

    def load(self, address: int, payload: bytes, name: str = "what was loaded") -> None:
        """Make DRAM hold `payload`, which programs only read. Raises `DeviceError` as `write` does.

        Pages that already match, even from an earlier session, are not written again: the board compares them by CRC. A
        region that was loaded in this session is not even compared, as long as no program has failed. `start` checks
        it.
        """
        if self._failed:
            self.contents.clear()  # the failed program may have written anywhere
        self.contents.load(address, payload, name)

    def unload(self, address: int, size: int) -> None:
        """Stop treating `size` bytes at `address` as loaded, because a program writes to them."""
        self.contents.forget(address, size)

    def confirm(self) -> None:
        """Raise `DeviceError` if a loaded region has changed although programs have run since its last check.

        The results of these programs may be wrong.
        """
        self.contents.confirm()

    def find_in_flash(self, payload: bytes) -> int | None:
        """Return the address of `payload` in the board's flash; None if it is not there, or if programs cannot run from
        flash."""
        # Boards that copy their flash to memory do not run programs from it.
        board = BOARDS.get(self.identity.board)
        if board is None or board.flash_window is None:
            return None
        if self._directory is None:
            self._directory = Directory(self._memory.fetch, WINDOW + board.flash_window.offset)
        address, state = self._directory.find(payload), self._directory.state
        if address is not None and not self.contents.adopt(address, payload, "the program in the flash"):
            address, state = None, "this program, but damaged"
        if address is None:
            self.advice = (
                f": the board's flash holds {state}; write this program's code and weights there with "
                f"weft flash --board {board.name} --program FOLDER"
            )
        return address

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of DRAM. Raises `DeviceError` if they are not inside memory."""
        return self._memory.read(address, size)

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a 32-bit DRAM byte address."""
        check_base(index, address)
        if self._bases.get(index) != address:  # a request takes longer than many programs
            self._bases[index] = address
            self._write_register(base_register(index), address)

    def start(self, program: int) -> None:
        """Start the program at a DRAM address, or at one from `find_in_flash`; a multiple of the bus width.

        Loaded regions are checked first, see `weft.boards.link.host.Contents`. After a failed run the core is reset
        first, because only a reset brings its units to a known state. Raises `DeviceError` if a loaded region or a
        register has changed, or if a program is running.
        """
        check_program(program, self.config)
        if program < WINDOW:
            check_range(program, 0, self.memory_bytes)
        self._begin(Reg.PROGRAM, program, START)

    def start_list(self, address: int) -> None:
        """Start the list of programs at a DRAM byte address, otherwise as `start` does. Base registers must be set
        again afterwards."""
        check_list(address, self.config, self.memory_bytes)
        self._begin(Reg.LIST, address, START_LIST)
        self._bases.clear()  # the list sets its own base registers

    def _begin(self, register: Reg, address: int, command: int) -> None:
        """Write `address` to `register` and start the core with `command`."""
        # A reset clears the base registers, so they are written again.
        if self._failed:
            self._reset()
            for index, base in self._bases.items():
                self._write_register(base_register(index), base)
            self.contents.distrust()
        elif self._status() & Status.BUSY:
            raise DeviceError("a program is still running")
        self.contents.before_start()
        self._write_register(register, address)
        self._check_registers(register, address)
        # The number of starts makes the request safe to repeat, see `weft.boards.link.frames`.
        control = Reg.CONTROL | self._starts << 24
        self._failed = True  # unless the board says that it started
        answer = self._session.request(Request(0, Operation.START, control, 4, command.to_bytes(4, "little")))
        self._starts = (self._starts + 1) % 256
        if answer.starts != self._starts:
            raise self._restarted_error()
        self._failed, self._started, self._in_list = False, True, command == START_LIST

    def _check_registers(self, register: Reg, address: int) -> None:
        """Raise `DeviceError` if a register has lost its value.

        This detects that the board lost power or its bitstream, even if its number of starts happens to match.
        """
        expected: dict[int, int] = {register: address}
        expected |= {base_register(index): base for index, base in self._bases.items()}
        # One request reads all these registers.
        end = max(register, base_register(BASES - 1)) + 4
        words = self._read_registers(Reg.PROGRAM, end - Reg.PROGRAM)
        for register_address, value in expected.items():
            at = register_address - Reg.PROGRAM
            if int.from_bytes(words[at : at + 4], "little") != value:
                self._failed = True
                raise self._restarted_error()

    def _restarted_error(self) -> DeviceError:
        return DeviceError(f"the board at {self._session.name} was configured again meanwhile: open it again")

    @property
    def _at(self) -> str:
        return self._session.name

    def _abandon(self) -> None:
        self._failed = True

    def _reset(self) -> None:
        self._session.request(Request(0, Operation.RESET))
        self._failed = self._started = False
        self._starts = self._session.starts

    def _read_registers(self, address: int, size: int) -> bytes:
        return self._session.request(Request(0, Operation.READ_REGISTERS, address, size)).payload

    def _write_register(self, address: int, value: int) -> None:
        self._session.request(Request(0, Operation.WRITE_REGISTERS, address, 4, value.to_bytes(4, "little")))


def check_configuration(board: str, place: str, digest: int, config: Config) -> None:
    """Raise `DeviceError` if the board at `place` is built for another configuration than `config`."""
    if digest != config.digest:
        raise DeviceError(
            f"the board {board} at {place} is built for {_describe(digest)}, "
            f"the program is for {_describe(config.digest)}: compile for the board or flash the other bitstream"
        )


def _describe(digest: int) -> str:
    known = {**PRESETS, **{board.name: board.config for board in BOARDS.values()}}
    names = [name for name, config in known.items() if config.digest == digest]
    return f"configuration {names[0] if names else 'of your own'} (digest {digest:#010x})"
