"""A device that reads its memory back, as boards do."""

from __future__ import annotations

from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice


class Looking(GoldenDevice):
    """Device that reads back, before each start, whether memory holds the loaded data, and skips loads of data that is
    there."""

    def __init__(self, config: Config, memory_bytes: int) -> None:
        super().__init__(config, memory_bytes)
        self.regions: dict[int, bytes] = {}
        self.kept_regions = 0

    def load(self, address: int, payload: bytes, name: str = "what was loaded") -> None:
        if self.regions.get(address) == payload:
            self.kept_regions += 1
            return
        self.write(address, payload)
        self.regions[address] = payload

    def write(self, address: int, payload: bytes) -> None:
        self.unload(address, len(payload))
        super().write(address, payload)

    def unload(self, address: int, size: int) -> None:
        for at, region in list(self.regions.items()):
            if at < address + size and address < at + len(region):
                del self.regions[at]

    def start(self, program: int) -> None:
        self._look()
        super().start(program)

    def start_list(self, address: int) -> None:
        self._look()
        super().start_list(address)

    def _look(self) -> None:
        if any(self.read(at, len(region)) != region for at, region in self.regions.items()):
            raise DeviceError("what was loaded is not there any more")
