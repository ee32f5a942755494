"""A board as a device: programs run on an FPGA behind a serial port."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from weft.boards.bus.memory import BoardMemory, Transfer, expected_checks, sample_memory
from weft.boards.flash.chip import WINDOW
from weft.boards.flash.image import Directory
from weft.boards.link.frames import CHECKED, Identity, Operation, Request
from weft.boards.link.polled import PolledDevice
from weft.boards.link.serial_ports import identify_ready, open_session, sdram_fault
from weft.boards.link.session import ATTEMPTS, Session, SilenceError, blocks
from weft.boards.registry import BOARDS, line_rates
from weft.hdl.isa import BASES
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import MAGIC, START, START_LIST, VERSION, Reg, Status, base_register
from weft.sim.device import DeviceError, check_base, check_list, check_program, check_range

SHARE = 0.1
"""Of the time, what checks take at most, but for those that are always made."""


@dataclass
class _Region:
    """Memory that was loaded: `checks` are what the board should answer to checks of its pages."""

    name: str
    address: int
    size: int
    digest: bytes
    checks: dict[int, bytes] = field(default_factory=dict)


class Contents:
    """Regions of memory that programs only read.

    Before the first start behind a change, and behind a failed run, all of them are checked; before others they are if
    checks have taken less than `share` of the time since the last one.

    Parameters
    ----------
    memory : BoardMemory
    share : float
        1: before every start.
    clock : callable
        The time in seconds.

    Attributes
    ----------
    transfer : Transfer
        What was written so far, and what was there.
    checked : int
        Bytes that were checked so far, but for those that were looked at when they were loaded.
    """

    def __init__(
        self, memory: BoardMemory, *, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory, self.share = memory, share
        self.transfer, self.checked = Transfer(), 0
        self._clock = clock
        self._regions: dict[int, _Region] = {}
        self._due = False  # whatever time it takes
        self._since = 0  # starts since the last check
        self._next = 0.0

    def load(self, address: int, payload: bytes, name: str) -> None:
        """Let memory hold `payload`, called `name`, unless it was loaded there before. Raises `DeviceError` if it does
        not lie inside memory, or the board is lost."""
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if not payload or self._knows(region):
            return
        self.forget(address, len(payload))
        moved = self.memory.bring(address, payload)
        self.transfer.written += moved.written
        self.transfer.kept += moved.kept
        self._add(region, payload)

    def adopt(self, address: int, payload: bytes, name: str) -> bool:
        """Whether the board has `payload` at `address`, in memory or in flash; if so, it counts as loaded. Raises
        `DeviceError` if the board is lost."""
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if self._knows(region):
            return True
        self._add(region, payload)
        if not self._wrong(region):
            return True
        del self._regions[address]
        return False

    def _knows(self, region: _Region) -> bool:
        """Whether the same was loaded there before."""
        known = self._regions.get(region.address)
        return known is not None and (known.size, known.digest) == (region.size, region.digest)

    def _add(self, region: _Region, payload: bytes) -> None:
        pages = list(blocks(region.address, region.size, CHECKED))
        region.checks = expected_checks(region.address, payload, pages)
        self._regions[region.address] = region
        self._due = True

    def forget(self, address: int, size: int) -> None:
        """What was loaded there is there no more."""
        for at, region in list(self._regions.items()):
            if at < address + size and address < at + region.size:
                del self._regions[at]

    def clear(self) -> None:
        """Nothing that was loaded is there any more."""
        self._regions.clear()

    def distrust(self) -> None:
        """Nobody knows what was written to memory: look at all of it before the next start."""
        self._due = True

    def before_start(self) -> None:
        """Check all regions if that is due. Raises `DeviceError` as `check`."""
        if self._due or self.share >= 1 or self._clock() >= self._next:
            self.check()
        self._since += 1

    def confirm(self) -> None:
        """Check all regions if a program was started since they were. Raises `DeviceError` as `check`."""
        if self._since:
            self.check()

    def check(self) -> None:
        """Check all regions now.

        Raises
        ------
        DeviceError
            If one does not hold what was loaded: all is loaded anew then by the next `load`. If the board is lost.
        """
        begun = self._clock()
        for region in self._regions.values():
            if wrong := self._wrong(region):
                self.clear()
                raise DeviceError(self._told(region, wrong))
            self.checked += region.size
        now = self._clock()
        self._next = now + (now - begun) * (1 / self.share - 1)
        self._due, self._since = False, 0

    def _wrong(self, region: _Region) -> list[tuple[int, int]]:
        pages = list(blocks(region.address, region.size, CHECKED))
        return sorted(self.memory.differing(region.checks, pages))

    def _told(self, region: _Region, wrong: list[tuple[int, int]]) -> str:
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
            f"{first:#x} to {last:#x}, are not what was sent; run it again, which sends them again, and if this comes "
            "back, test the memory with weft probe --memory-test all"
        )


class BoardDevice(PolledDevice):
    """A `weft.sim.device.Device` that is an FPGA board on a serial port. Use `open`.

    Parameters
    ----------
    session : Session
        The line to the board.
    config : Config
        The accelerator that programs are for.
    test_memory : bool
        Whether to test some of the board's memory now, see `weft.boards.bus.memory.sample_memory`.
    check_share : float
        Of the time, what it may take to check before starts that what was loaded is still there, see
        `weft.boards.link.host.Contents`; 1: before every start.

    Attributes
    ----------
    identity : Identity
        What the board says about itself.
    contents : Contents
        What was loaded.

    Raises
    ------
    DeviceError
        If no board answers, or one that is built for another configuration or version, or whose memory does not work.
    """

    def __init__(
        self, session: Session, config: Config, *, test_memory: bool = True, check_share: float = SHARE
    ) -> None:
        self.config = config
        self._session = session
        self._bases: dict[int, int] = {}  # as this session has set them
        self._directory: Directory | None = None
        self._starts = 0
        self._failed = self._started = False
        self.identity = self._identify()
        self.memory_bytes = self.identity.memory_bytes
        self._memory = BoardMemory(session, self.memory_bytes)
        self.contents = Contents(self._memory, share=check_share)
        session.buffer = self.identity.buffer
        # Whatever a program before left behind.
        self._reset()
        for register, value in {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: config.digest,
        }.items():
            found = self._read_register(register)
            if found != value:
                raise DeviceError(
                    f"register {register.name} of the core at {session.name} is {found:#x}, not {value:#x}: "
                    "build and flash it again"
                )
        if test_memory:
            self._test_memory()

    def _test_memory(self) -> None:
        try:
            found = sample_memory(self._memory)
        except SilenceError as error:
            raise DeviceError(
                f"{error} since its memory was tested: memory that does not answer may hold it up; switch it off and "
                "on again"
            ) from None
        if found.wrong is not None:
            board = self.identity.board
            raise DeviceError(
                f"the memory of {board} at {self._session.name} does not keep what is written to it: {found}; switch "
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
        """The board at a serial port; its core is reset.

        Parameters
        ----------
        port : str
            As ``/dev/ttyUSB0`` or ``COM3``, or a URL that pyserial knows.
        config : Config
            The accelerator that programs are for.
        baud : int or None
            Bits a second on the line, as the build's report says. None: those of `line_rates` are tried, first those of
            boards that have `config` of their own.
        timeout : float or None
            Seconds without an answer after which requests are sent again. None for a real board; a simulated one takes
            longer.
        attempts : int
            How often in a row that may happen.
        test_memory : bool
            See `BoardDevice`.

        Raises
        ------
        DeviceError
            If the port cannot be opened, no board answers, or one that is built for another configuration or version,
            or whose memory does not work.
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
        """Close the port. A program that runs goes on until the board is opened again."""
        self._session.close()

    @property
    def port(self) -> str:
        """The serial port."""
        return self._session.name

    @property
    def repeated(self) -> int:
        """Requests so far that had to be sent again: above 0, the line loses bytes."""
        return self._session.repeated

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""
        self.contents.forget(address, len(payload))
        self._memory.write(address, payload)

    @property
    def transfer(self) -> Transfer:
        """What `load` has written so far, and what was there."""
        return self.contents.transfer

    def load(self, address: int, payload: bytes, name: str = "what was loaded") -> None:
        """Let DRAM hold `payload`, which programs only read; raises as `write`.

        What is the same there, be it from an earlier session, is not written again: the board tells by CRCs. What has
        been loaded in this session is not even looked at, as long as no program has failed; but `start` looks at it.
        """
        if self._failed:
            self.contents.clear()  # Nobody knows what such a program has written.
        self.contents.load(address, payload, name)

    def unload(self, address: int, size: int) -> None:
        """What was loaded there counts no more: a program writes to this memory."""
        self.contents.forget(address, size)

    def confirm(self) -> None:
        """Raise `DeviceError` if what was loaded is not there any more, though programs have run since that was looked
        at: then their results may be wrong."""
        self.contents.confirm()

    def kept(self, payload: bytes) -> int | None:
        """Where `payload` lies in the board's flash; None if it does not, or there is none that programs run from."""
        board = BOARDS.get(self.identity.board)
        if board is None or board.window is None:
            return None
        if self._directory is None:
            self._directory = Directory(self._memory.fetch, WINDOW + board.window.offset)
        found, state = self._directory.find(payload), self._directory.state
        if found is not None and not self.contents.adopt(found, payload, "the program in the flash"):
            found, state = None, "this program, but damaged"
        if found is None:
            self.advice = (
                f": the board's flash holds {state}; write this one's code and weights there with "
                f"weft flash --board {board.name} --program FOLDER"
            )
        return found

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of DRAM. Raises `DeviceError` if they do not lie inside memory."""
        return self._memory.read(address, size)

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a 32-bit DRAM byte address."""
        check_base(index, address)
        if self._bases.get(index) != address:  # a request takes longer than many a program
            self._bases[index] = address
            self._write_register(base_register(index), address)

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, or one that `kept` gives, a multiple of the bus width.

        What was loaded is checked before that, see `weft.boards.link.host.Contents`. After a failed run the core is
        reset first, as nothing else brings its units to a known state. Raises `DeviceError` if what was loaded, or the
        registers that were set, are not there any more, or a program is still running.
        """
        check_program(program, self.config)
        if program < WINDOW:
            check_range(program, 0, self.memory_bytes)
        self._begin(Reg.PROGRAM, program, START)

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`; all else is as of `start`. Base registers must be
        set anew behind it."""
        check_list(address, self.config, self.memory_bytes)
        self._begin(Reg.LIST, address, START_LIST)
        self._bases.clear()  # the list's own values are there

    def _begin(self, register: Reg, address: int, command: int) -> None:
        """Start what lies at an address, which belongs to a register."""
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
        control = Reg.CONTROL | self._starts << 24
        self._failed = True  # unless the board says that it started
        answer = self._session.request(Request(0, Operation.START, control, 4, command.to_bytes(4, "little")))
        self._starts = (self._starts + 1) % 256
        if answer.starts != self._starts:
            raise self._anew()
        self._failed, self._started, self._in_list = False, True, command == START_LIST

    def _check_registers(self, register: Reg, address: int) -> None:
        """Raise `DeviceError` if a register that was set holds something else: so a board tells that power or its
        bitstream were lost meanwhile, even one that has counted as many starts as before."""
        expected: dict[int, int] = {register: address}
        expected |= {base_register(index): base for index, base in self._bases.items()}
        end = max(register, base_register(BASES - 1)) + 4
        words = self._read_registers(Reg.PROGRAM, end - Reg.PROGRAM)
        for place, value in expected.items():
            at = place - Reg.PROGRAM
            if int.from_bytes(words[at : at + 4], "little") != value:
                self._failed = True
                raise self._anew()

    def _anew(self) -> DeviceError:
        return DeviceError(f"the board at {self._session.name} was loaded anew meanwhile: open it again")

    @property
    def _at(self) -> str:
        return self._session.name

    def _abandon(self) -> None:
        self._failed = True

    def _reset(self) -> None:
        """Reset the core."""
        self._session.request(Request(0, Operation.RESET))
        self._failed = self._started = False
        self._starts = self._session.starts

    def _read_registers(self, address: int, size: int) -> bytes:
        return self._session.request(Request(0, Operation.READ_REGISTERS, address, size)).payload

    def _write_register(self, address: int, value: int) -> None:
        self._session.request(Request(0, Operation.WRITE_REGISTERS, address, 4, value.to_bytes(4, "little")))


def check_configuration(board: str, place: str, digest: int, config: Config) -> None:
    """Raise `DeviceError` if the board at `place` is built for another configuration than a program's."""
    if digest != config.digest:
        raise DeviceError(
            f"the board {board} at {place} is built for {_describe(digest)}, "
            f"the program is for {_describe(config.digest)}: compile for the one or flash the other"
        )


def _describe(digest: int) -> str:
    known = {**PRESETS, **{board.name: board.config for board in BOARDS.values()}}
    names = [name for name, config in known.items() if config.digest == digest]
    return f"configuration {names[0] if names else 'of your own'} (digest {digest:#010x})"
