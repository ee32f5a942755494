"""Programs that share a device by turns: each finds its own code and weights, whatever the others have written."""

from __future__ import annotations

import numpy as np
from support.memory_cases import cases

from weft.hdl.isa.config import PRESETS
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice


class Looking(GoldenDevice):
    """Looks before each start, as boards do, whether memory holds what was loaded; and what is there is not loaded."""

    def __init__(self, memory_bytes: int) -> None:
        super().__init__(PRESETS["tiny"], memory_bytes)
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
        if any(self.read(at, len(region)) != region for at, region in self.regions.items()):
            raise DeviceError("what was loaded is not there any more")
        super().start(program)


def test_programs_by_turns() -> None:
    made = [(image, inputs) for _, image, inputs in cases(PRESETS["tiny"], 3, 2, 8.0)]
    device = Looking(max(image.memory_bytes for image, _ in made))
    alone = []
    for image, inputs in made:
        image.run(own := GoldenDevice(PRESETS["tiny"], image.memory_bytes), inputs)
        outputs = (name for name, buffer in image.program.buffers.items() if buffer.kind == "output")
        alone.append({name: image.read(own, name) for name in outputs})
    rng = np.random.default_rng(4)
    for index in [*range(len(made)), *rng.permutation(len(made)), *np.repeat(rng.permutation(len(made)), 2)]:
        image, inputs = made[index]
        for name, values in alone[
            index
        ].items():  # outputs may have bytes that are not written, as before a first run
            GoldenDevice.write(device, image.address(name), bytes(values.size))
        image.run(device, inputs)
        assert all(np.array_equal(image.read(device, name), values) for name, values in alone[index].items())
    assert device.kept_regions >= 2 * len(made)  # what nobody has written to
