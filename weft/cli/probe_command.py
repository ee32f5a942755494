"""The command that identifies the connected board, and tests its memory and the link to it."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import report as reports
from weft.cli.commands import Baud, Group, Json, Port, command

if TYPE_CHECKING:
    from weft.boards.bus.memory import BoardMemory, MemoryTest
    from weft.boards.link.frames import Identity
    from weft.boards.link.probe import LinkQuality, Registers
    from weft.hdl.isa.config import Config

FORMAT = "weft probe 1"
"""Format of what `weft probe --json` prints."""
PART_SECONDS = 5
"""Time limit of a test of part of the memory."""
LINK_SECONDS = 0.5
"""Time to measure the rate of the link, for each direction."""


_FLASH = {
    "COPYING": "its program was not copied to memory, because the memory does not work",
    "EMPTY": "no program to copy to memory",
    "COPIED": "its program was copied to memory when the board started",
    "DAMAGED": "its program is DAMAGED, and was not copied completely",
}
"""Descriptions of the states in `weft.boards.link.frames.FlashState`, by name."""


class Part(enum.StrEnum):
    PART = "part"
    ALL = "all"
    NONE = "none"


@command(Group.HARDWARE)
def probe(
    port: Port = None,
    baud: Baud = None,
    memory: Annotated[
        Part,
        typer.Option(
            "--memory-test",
            help="How much of the memory to test: a part, in about five seconds; all; or none. Boards with SDRAM test "
            "all of it themselves, which overwrites its contents.",
        ),
    ] = Part.PART,
    as_json: Json = False,
) -> None:
    """Identify the connected board and its configuration, and test its memory and the link to it.

    A program that runs on the board is stopped. A test of part of the memory restores its contents afterwards.
    """
    with reports.progress() as progress:
        result = _probe(port, baud, memory, progress)
    if as_json:
        print(json.dumps({"format": FORMAT, **result.as_json()}, indent=1))
    else:
        result.show()
    if not result.sound:
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class _Probed:
    port: str
    baud: int
    identity: Identity
    registers: Registers
    link: LinkQuality
    memory: MemoryTest | None

    @property
    def sound(self) -> bool:
        from weft.boards.link.serial_ports import flash_fault, sdram_fault

        # The core's registers and the link report the configuration independently.
        registers = self.registers.sound and self.registers.digest == self.identity.digest
        memory = self.memory is None or (self.memory.wrong is None and self.memory.restored is not False)
        return registers and memory and not sdram_fault(self.identity) and not flash_fault(self.identity)

    def as_json(self) -> dict[str, Any]:
        from weft.boards.registry import BOARDS

        identity, board = self.identity, BOARDS.get(self.identity.board)
        name, config = _named_config(identity)
        return {
            "port": self.port, "baud": self.baud, "board": identity.board, "title": board and board.title,
            "core": board and board.core.value, "clock_hz": identity.clock,
            "digest": identity.digest, "config_name": name, "config": config and config.to_dict(),
            "memory_bytes": identity.memory_bytes, "memory_kind": board and board.memory.kind.value,
            "sdram": identity.calibration.as_dict(), "flash": identity.flash.name.lower(),
            "registers": {"sound": self.registers.sound, "digest": self.registers.digest,
                          "version": self.registers.version, "status": self.registers.status.value},
            "link": dataclasses.asdict(self.link),
            "memory_test": self.memory and dataclasses.asdict(self.memory), "sound": self.sound,
        }  # fmt: skip

    def show(self) -> None:
        from weft.boards.link.frames import FlashState
        from weft.boards.link.serial_ports import sdram_fault

        values = self.as_json()
        title = (
            f"{values['title']} ({values['board']})"
            if values["title"]
            else f"{values['board']}, unknown to this version of weft"
        )
        reports.say(f"board: {title} at {self.port}, {self.baud:,} baud")
        reports.say(f"configuration: {_configuration(self.identity)}")
        core = f"{values['core']}, " if values["core"] else ""
        reports.say(f"core: {core}{self.identity.clock / 1e6:g} MHz, {self._registers()}")
        kind = f" of {values['memory_kind']}" if values["memory_kind"] else ""
        reports.say(f"memory: {self.identity.memory_bytes:,} bytes{kind}{self._memory()}")
        if values["sdram"]:
            reports.say(sdram_fault(self.identity) or f"SDRAM: {self.identity.calibration}")
        if self.identity.flash is not FlashState.NONE:
            reports.say(f"flash: {_FLASH[self.identity.flash.name]}")
        link, limit = self.link, self.baud / 10
        least, median, most = (1e3 * seconds for seconds in link.round_trip)
        reports.say(
            f"link: round trip {median:.1f} ms ({least:.1f} to {most:.1f}), writes {link.write_rate / 1e3:,.0f} KB/s, "
            f"reads {link.read_rate / 1e3:,.0f} KB/s of {limit / 1e3:,.0f} KB/s; {link.requests:,} requests, "
            f"{link.repeated:,} of them sent again, {link.damaged:,} damaged answers"
        )
        if link.repeated:
            reports.say(f"the line damages about {link.error_rate:.2%} of bytes")

    def _registers(self) -> str:
        from weft.hdl.isa.memmap import MAGIC, VERSION

        registers = self.registers
        if registers.magic != MAGIC:
            return f"registers are not those of a weft core: MAGIC is {registers.magic:#x}"
        if registers.version != VERSION:
            return f"version {registers.version}, but this weft needs {VERSION}: build and flash it again"
        if registers.digest != self.identity.digest:
            return f"registers report another configuration than the link: {registers.digest:#010x}"
        return "registers correct"

    def _memory(self) -> str:
        test = self.memory
        if test is None:
            return ", not tested"
        extent = "all" if test.tested == test.size else f"{test.tested:,}"
        rate = test.tested / max(test.seconds, 1e-9) / 1e6
        contents = {True: "restored", False: "LOST", None: "overwritten"}[test.restored]
        result = "no errors" if test.wrong is None else f"ERROR {test}"
        return f"; {extent} tested in {test.seconds:.1f} s, {rate:.2g} MB/s: {result}, contents {contents}"


def _probe(port: str | None, baud: int | None, part: Part, progress: reports.Progress) -> _Probed:
    from weft.boards.bus.memory import BoardMemory
    from weft.boards.link.frames import Operation, Request
    from weft.boards.link.probe import measure_link, read_registers
    from weft.boards.link.serial_ports import identify_ready, open_session, sdram_fault
    from weft.run.virtual import PREFIX, locate_board

    progress("asking the serial ports for a board" if port is None else f"asking at {port}")
    if port is not None and port.startswith(PREFIX):
        progress("building the board's simulator (about a minute, the first time only)")
    with locate_board(port, baud) as location:
        session, rate = open_session(location.port, location.rates, timeout=location.timeout)
        try:
            identity = identify_ready(session)
            session.buffer = identity.buffer
            registers = read_registers(session)
            session.request(Request(0, Operation.RESET))  # a running program would write to memory meanwhile
            progress(f"trying the link to {identity.board}")
            memory = BoardMemory(session, identity.memory_bytes)
            most = min(identity.memory_bytes, int(LINK_SECONDS * rate / 10))
            link = measure_link(memory, most, seconds=LINK_SECONDS)
            test = None if sdram_fault(identity) else _test_memory(memory, identity, part, link, progress)
        finally:
            session.close()
    return _Probed(location.port, rate, identity, registers, link, test)


def _test_memory(
    memory: BoardMemory, identity: Identity, part: Part, link: LinkQuality, progress: reports.Progress
) -> MemoryTest | None:
    """Test part of the memory or all of it, by the board itself if it can; return None for `Part.NONE`.

    The part is as large as the link can move in `PART_SECONDS` at its measured rate: simulated links are slow.
    """
    from weft.boards.bus.memory import fill_memory
    from weft.boards.link.frames import Feature
    from weft.boards.link.probe import PASSES, check_memory

    if part is Part.NONE:
        return None
    if part is Part.ALL and identity.features & Feature.FILLS:
        return fill_memory(memory, progress)
    # Each pass writes and reads every byte, so the slower direction counts.
    rate = min(link.write_rate, link.read_rate)
    most = memory.size if part is Part.ALL else int(PART_SECONDS * rate / PASSES)
    return check_memory(memory, most, progress)


def _named_config(identity: Identity) -> tuple[str | None, Config | None]:
    """Find the configuration by its digest: the board's own, a preset, or another board's; else (None, None)."""
    from weft.boards.registry import BOARDS
    from weft.hdl.isa.config import PRESETS

    own = BOARDS.get(identity.board)
    # In order of preference: the board's own name, presets, other boards.
    named = {**({own.name: own.config} if own else {}), **PRESETS}
    named |= {board.name: board.config for board in BOARDS.values() if board.name not in named}
    return next(
        ((name, config) for name, config in named.items() if config.digest == identity.digest), (None, None)
    )


def _configuration(identity: Identity) -> str:
    name, config = _named_config(identity)
    if config is None:
        return f"without a name in this weft (digest {identity.digest:#010x})"
    title = "the board's own" if name == identity.board else name
    return (
        f"{title}: {config.n} x {config.n}, {config.lanes} {'lane' if config.lanes == 1 else 'lanes'}, "
        f"bus of {config.bus_bytes} bytes (digest {identity.digest:#010x})"
    )
