"""Serial ports of boards: finds the connected board, its port, its baud rate and its identity."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from weft.boards.errors import FrameError
from weft.boards.link.frames import IDENTITY_BYTES, PROTOCOL, FlashState, Identity, Operation, Request
from weft.boards.link.session import ATTEMPTS, SerialPort, Session, SilenceError, open_port
from weft.boards.sdram.calibration import CalibrationState
from weft.sim.device import DeviceError

PROBE_SECONDS = 0.2
"""Seconds within which a board answers at its own baud rate."""
PROBE_ATTEMPTS = 2
"""Requests sent at each baud rate."""
START_SECONDS = 60.0
"""Seconds within which a board starts: copying 14 MB from flash takes five, calibrating the SDRAM less than one."""
START_POLL = 0.05
"""Seconds between two requests while the board starts."""
BRIDGES = {
    (0x0403, 0x6010): "FT2232: iCEBreaker; the bridges of the Tangs use the same ids",
    (0x0403, 0x6015): "FT231X: ULX3S, Icepi Zero",
    (0x1D50, 0x602B): "iCELink: iCESugar-Pro",
}
"""USB vendor and product ids of the boards' bridges. Other ports are not probed, because the devices there are
unknown."""


@dataclass(frozen=True)
class ConnectedBoard:
    """Connected board: its serial port, its baud rate, and its identity."""

    port: str
    baud: int
    identity: Identity


def identify(session: Session) -> Identity:
    """Return the identity of the board at the other end.

    Raises
    ------
    SilenceError
        If nothing answers.
    DeviceError
        If the answer is not from a board, or the board has another version of the link.
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
    """Return the identity of the board once it has started.

    Start-up includes calibration of the SDRAM's clock and, if that succeeds, the copy from flash to memory. Raises
    errors as `identify` does, and `DeviceError` if start-up does not end.
    """
    until = time.monotonic() + START_SECONDS
    while activity := _start_up_activity(identity := identify(session)):
        if time.monotonic() > until:
            raise DeviceError(
                f"the board {identity.board} at {session.name} has {activity} for {START_SECONDS:g} seconds and did "
                "not finish: switch it off and on again"
            )
        time.sleep(START_POLL)
    return identity


def _start_up_activity(identity: Identity) -> str:
    """Return the current activity of a starting board; empty if it is ready."""
    if identity.calibration.state is CalibrationState.BUSY:
        return "calibrated its SDRAM's clock"
    if identity.calibration.state is CalibrationState.FAILED:
        return ""  # the copy from flash does not begin
    return "copied its flash to memory" if identity.flash is FlashState.COPYING else ""


def sdram_fault(identity: Identity) -> str:
    """Return a message if the SDRAM does not work at the board's clock; empty if it works, or without SDRAM."""
    calibration = identity.calibration
    if calibration.state is not CalibrationState.FAILED:
        return ""
    if calibration.working is None:
        why = f"it works in none of {calibration.phases} phases of its clock"
    else:
        first, last = calibration.working
        why = f"it works only from {first} to {last} degrees of its clock, which is too little"
    return (
        f"the SDRAM of {identity.board} does not work at {identity.clock / 1e6:g} MHz: {why}; build with a lower clock "
        f"(weft build --board {identity.board} --clock MHZ) and flash that"
    )


def flash_fault(identity: Identity) -> str:
    """Return a message if the program in the board's flash is damaged; else empty."""
    if identity.flash is not FlashState.DAMAGED:
        return ""
    return (
        f"the program in the flash of {identity.board} is damaged, and was not fully copied to memory: write it again "
        f"with weft flash --board {identity.board} --program FOLDER"
    )


def open_session(
    port: str, rates: Sequence[int], *, timeout: float | None = None, attempts: int = ATTEMPTS
) -> tuple[Session, int]:
    """Open a session at the first of `rates` at which a board answers; return it and its baud rate.

    A single rate is used without a probe. `timeout` and `attempts` are as in `weft.boards.link.host.BoardDevice.open`.

    Raises
    ------
    DeviceError
        If the port cannot be opened, or no board answers.
    """
    serial_port = open_port(port, rates[0])
    try:
        rate = rates[0] if len(rates) == 1 else _find_rate(serial_port, port, rates, timeout)
    except BaseException:
        serial_port.close()
        raise
    # Time of 8192 bytes on the line, with some margin.
    window = 0.2 + 8192 * 10 / rate
    adaptive = timeout is None
    return Session(serial_port, port, timeout=timeout or window, adaptive=adaptive, attempts=attempts), rate


def _find_rate(serial_port: SerialPort, port: str, rates: Sequence[int], timeout: float | None) -> int:
    """Return the first of `rates` at which a board answers. Raises `SilenceError`."""
    silence = SilenceError("")
    for rate in rates:
        try:
            serial_port.baudrate = rate
        except (ValueError, OSError):  # the port does not support this rate
            continue
        session = Session(serial_port, port, timeout=timeout or PROBE_SECONDS, attempts=PROBE_ATTEMPTS)
        try:
            session.request(Request(0, Operation.IDENTIFY, size=IDENTITY_BYTES))
        except SilenceError as error:
            silence = error
        else:
            return rate
    tried = ", ".join(f"{rate:,}" for rate in rates)
    raise SilenceError(f"{silence} (tried at {tried} baud)")


def bridge_ports() -> list[str]:
    """Return the serial ports of this machine that belong to the boards' USB bridges, in order."""
    try:
        from serial.tools.list_ports import comports
    except ImportError:
        raise DeviceError("boards need pyserial: pip install 'weft[boards]'") from None
    return sorted(info.device for info in comports() if (info.vid, info.pid) in BRIDGES)


def find_board(rates: Sequence[int]) -> ConnectedBoard:
    """Find the connected board. A bridge with two ports answers at one of them.

    Raises
    ------
    DeviceError
        If there is no candidate port, if nothing answers, or if several boards do.
    """
    ports = bridge_ports()
    if not ports:
        raise DeviceError(
            "no serial port of this machine belongs to a board's USB bridge: connect the board, or name its port with "
            "--port"
        )
    # Ports are probed in parallel, because a silent port costs a timeout at every rate.
    with ThreadPoolExecutor(len(ports)) as pool:
        answers = list(pool.map(lambda port: _ask(port, rates), ports))
    boards = [answer for answer in answers if isinstance(answer, ConnectedBoard)]
    if len(boards) == 1:
        return boards[0]
    if boards:
        names = ", ".join(f"{board.identity.board} at {board.port}" for board in boards)
        raise DeviceError(f"{len(boards)} boards are connected ({names}): name the port with --port")
    reasons = "; ".join(str(answer) for answer in answers)
    raise DeviceError(f"no weft board was found: {reasons}")


def _ask(port: str, rates: Sequence[int]) -> ConnectedBoard | DeviceError:
    try:
        session, rate = open_session(port, rates)
        try:
            return ConnectedBoard(port, rate, identify(session))
        finally:
            session.close()
    except DeviceError as error:
        return error
