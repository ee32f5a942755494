"""Golden interpreter that logs its requests."""

from __future__ import annotations

import weft
from weft.compiler.backend import DeviceProgram
from weft.hdl.isa.config import PRESETS
from weft.sim.golden.interpreter import GoldenDevice


class Logged(GoldenDevice):
    """Device that computes when it is started or as late as possible, and logs its requests."""

    def __init__(self, memory_bytes: int, *, early: bool, config: weft.Config = PRESETS["tiny"]) -> None:
        super().__init__(config, memory_bytes)
        self.early = early
        self.log: list[str] = []

    def write(self, address: int, payload: bytes) -> None:
        self.log.append("write")
        super().write(address, payload)

    def load(self, address: int, payload: bytes, name: str = "") -> None:
        super().write(address, payload)
        self.log.append("load")

    def read(self, address: int, size: int) -> bytes:
        self.log.append("read")
        return super().read(address, size)

    def start(self, program: int) -> None:
        self.log.append("start")
        super().start(program)
        if self.early:
            self._compute(None)

    def start_list(self, address: int) -> None:
        self.log.append("list")
        super().start_list(address)
        if self.early:
            self._compute(None)

    def wait(self, timeout: int | None = None) -> None:
        self.log.append("wait")
        if not self.early:
            self._compute(timeout)

    def _compute(self, timeout: int | None) -> None:
        log, self.log = self.log, []  # it reads its program itself
        super().wait(timeout)
        self.log = log


def need(program: weft.Program) -> int:
    return max(part.areas.memory_bytes for part in program.segments if isinstance(part, DeviceProgram))
