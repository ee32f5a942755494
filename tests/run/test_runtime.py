"""Programs that alternate on a device: each finds its own code and weights."""

from __future__ import annotations

import numpy as np
from support.looking_device import Looking
from support.memory_cases import cases

from weft.hdl.isa.config import PRESETS
from weft.sim.golden.interpreter import GoldenDevice


def test_alternating_programs() -> None:
    images = [(image, inputs) for _, image, inputs in cases(PRESETS["tiny"], 3, 2, 8.0)]
    device = Looking(PRESETS["tiny"], max(image.memory_bytes for image, _ in images))
    alone = []
    for image, inputs in images:
        image.run(own := GoldenDevice(PRESETS["tiny"], image.memory_bytes), inputs)
        outputs = (name for name, buffer in image.program.buffers.items() if buffer.kind == "output")
        alone.append({name: image.read(own, name) for name in outputs})
    rng = np.random.default_rng(4)
    for index in [
        *range(len(images)),
        *rng.permutation(len(images)),
        *np.repeat(rng.permutation(len(images)), 2),
    ]:
        image, inputs = images[index]
        # Bytes of outputs that the program does not write stay as before its first run.
        for name, values in alone[index].items():
            GoldenDevice.write(device, image.address(name), bytes(values.size))
        image.run(device, inputs)
        assert all(np.array_equal(image.read(device, name), values) for name, values in alone[index].items())
    assert device.kept_regions >= 2 * len(images)  # bytes that no program has written
