"""Serial ports with boards behind them: at what rate one answers, who it is, and which port it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from weft.boards.link.frames import (
    IDENTITY_BYTES,
    PROTOCOL,
    FlashState,
    FrameError,
    Identity,
    Operation,
    Request,
)
from weft.boards.link.session import ATTEMPTS, SerialPort, Session, SilenceError, open_port
from weft.boards.sdram.calibration import CalibrationState
from weft.sim.device import DeviceError

PROBE_SECONDS = 0.2
"""Seconds in which a board answers that is asked at its own baud rate."""
PROBE_ATTEMPTS = 2
"""How often it is asked at each."""
START_SECONDS = 60.0
"""Seconds in which a board has started: to copy 14 MB from its flash takes five, to try its SDRAM less than one."""
START_POLL = 0.05
"""Seconds between two questions whether it has."""
BRIDGES = {
    (0x0403, 0x6010): "FT2232: iCEBreaker; what the Tangs have says that it is one",
    (0x0403, 0x6015): "FT231X: ULX3S, Icepi Zero",
    (0x1D50, 0x602B): "iCELink: iCESugar-Pro",
}
"""USB vendor and product of the boards' bridges. At other ports nothing is asked: who knows what is behind them."""


@dataclass(frozen=True)
class Found:
    """A board: its serial port, the rate at which it answers in bits a second, and what it says about itself."""

    port: str
    baud: int
    identity: Identity


def identify(session: Session) -> Identity:
    """What the board at the other end says about itself.

    Raises
    ------
    SilenceError
        If nothing answers.
    DeviceError
        If what answers is no board, or speaks another version of the link.
    """
    answer = session.request(Request(0, Operation.IDENTIFY, size=IDENTITY_BYTES))
    try:
        identity = Identity.decode(answer.payload)
    except FrameError as error:
        raise DeviceError(f"what answers at {session.name} is no weft board: {error}") from None
    if identity.protocol != PROTOCOL:
        raise DeviceError(
            f"the board at {session.name} speaks version {identity.protocol} of the link, this weft version "
            f"{PROTOCOL}: build and flash it again"
        )
    return identity


def identify_ready(session: Session) -> Identity:
    """The same of a board once it has looked for the phase of its SDRAM's clock, and, if it has found one, copied what
    it has in its flash to memory. Raises as `identify`, and `DeviceError` if it never has."""
    until = time.monotonic() + START_SECONDS
    while doing := _starting(identity := identify(session)):
        if time.monotonic() > until:
            raise DeviceError(
                f"the board {identity.board} at {session.name} has {doing} for {START_SECONDS:g} seconds, without an "
                "end: switch it off and on again"
            )
        time.sleep(START_POLL)
    return identity


def _starting(identity: Identity) -> str:
    """What a board has done since it started; empty if it is ready."""
    if identity.calibration.state is CalibrationState.BUSY:
        return "looked for the phase of its SDRAM's clock"
    if identity.calibration.state is CalibrationState.FAILED:
        return ""  # and nothing is copied
    return "copied its flash to memory" if identity.flash is FlashState.COPYING else ""


def sdram_fault(identity: Identity) -> str:
    """A sentence on an SDRAM that does not work at the board's clock; empty if it does, or there is none."""
    found = identity.calibration
    if found.state is not CalibrationState.FAILED:
        return ""
    if found.working is None:
        why = f"in none of {found.phases} phases of its clock it gives back what was written"
    else:
        first, last = found.working
        why = f"it gave back what was written from {first} to {last} degrees of its clock only, which is too little"
    return (
        f"the SDRAM of {identity.board} does not work at {identity.clock / 1e6:g} MHz: {why}; build with a lower clock "
        f"(weft build --board {identity.board} --clock MHZ) and flash that"
    )


def flash_fault(identity: Identity) -> str:
    """A sentence on what is wrong with the program in the board's flash; empty if nothing is."""
    if identity.flash is not FlashState.DAMAGED:
        return ""
    return (
        f"the program in the flash of {identity.board} is damaged, and was not copied to memory as a whole: write it "
        f"again with weft flash --board {identity.board} --program FOLDER"
    )


def open_session(
    port: str, rates: Sequence[int], *, timeout: float | None = None, attempts: int = ATTEMPTS
) -> tuple[Session, int]:
    """A session with the board at a port, at the first of `rates` at which it answers, and that rate; a single one is
    not tried. `timeout` and `attempts` are those of `weft.boards.link.host.BoardDevice.open`.

    Raises
    ------
    DeviceError
        If the port cannot be opened, or no board answers.
    """
    opened = open_port(port, rates[0])
    try:
        rate = rates[0] if len(rates) == 1 else _answering(opened, port, rates, timeout)
    except BaseException:
        opened.close()
        raise
    window = 0.2 + 8192 * 10 / rate
    session = Session(
        opened, port, timeout=timeout or window, adaptive=timeout is None, attempts=attempts
    )  # fmt: skip
    return session, rate


def _answering(opened: SerialPort, port: str, rates: Sequence[int], timeout: float | None) -> int:
    """The first of `rates` at which a board answers. Raises `SilenceError`."""
    silence = SilenceError("")
    for rate in rates:
        try:
            opened.baudrate = rate
        except (ValueError, OSError):  # one that this port cannot do
            continue
        session = Session(opened, port, timeout=timeout or PROBE_SECONDS, attempts=PROBE_ATTEMPTS)
        try:
            session.request(Request(0, Operation.IDENTIFY, size=IDENTITY_BYTES))
        except SilenceError as error:
            silence = error
        else:
            return rate
    tried = ", ".join(f"{rate:,}" for rate in rates)
    raise SilenceError(f"{silence} (tried at {tried} baud)")


def candidates() -> list[str]:
    """Serial ports of this machine that belong to bridges as boards have them, those of one bridge in order."""
    try:
        from serial.tools.list_ports import comports
    except ImportError:
        raise DeviceError("boards need pyserial: pip install 'weft[boards]'") from None
    return sorted(info.device for info in comports() if (info.vid, info.pid) in BRIDGES)


def find(rates: Sequence[int]) -> Found:
    """The one board that is connected. Of bridges with two ports, it answers at one.

    Raises
    ------
    DeviceError
        If there is no port to ask at, nothing answers, or several do.
    """
    ports = candidates()
    if not ports:
        raise DeviceError(
            "no serial port of this machine belongs to a bridge as boards have it: connect the board, or name its port "
            "with --port"
        )
    with ThreadPoolExecutor(len(ports)) as pool:
        answers = list(pool.map(lambda port: _ask(port, rates), ports))
    found = [answer for answer in answers if isinstance(answer, Found)]
    if len(found) == 1:
        return found[0]
    if found:
        told = ", ".join(f"{board.identity.board} at {board.port}" for board in found)
        raise DeviceError(f"{len(found)} boards are connected ({told}): name the port with --port")
    told = "; ".join(str(answer) for answer in answers)
    raise DeviceError(f"no weft board is found: {told}")


def _ask(port: str, rates: Sequence[int]) -> Found | DeviceError:
    try:
        session, rate = open_session(port, rates)
        try:
            return Found(port, rate, identify(session))
        finally:
            session.close()
    except DeviceError as error:
        return error
