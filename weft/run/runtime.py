"""Load one device program into a device's memory, start it, and read its results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.machine.memory import CONSTANTS
from weft.configurations import runs_in_turn
from weft.hdl.checker.order import check_sequence
from weft.sim.device import Device


def zeros(program: DeviceProgram) -> dict[str, np.ndarray]:
    """Return inputs of zeros, for devices that only count cycles."""
    return {
        name: np.zeros(program.input_shape(name), np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


class Image:
    """A device program placed in memory, by default with the areas of its base registers one after the other from 0.

    Parameters
    ----------
    program : DeviceProgram
    flash_address : int, optional
        Address of `read_only` in flash, from `weft.sim.device.Device.find_in_flash`; None if it is in memory.
    moved : mapping of int to int, optional
        Addresses of areas that lie elsewhere, by base register.

    Attributes
    ----------
    bases : dict of int to int
        Address in each base register.
    memory_bytes : int
        Bytes of memory that the program needs.
    """

    def __init__(
        self,
        program: DeviceProgram,
        flash_address: int | None = None,
        moved: Mapping[int, int] | None = None,
    ) -> None:
        self.program, self.flash_address = program, flash_address
        areas = program.areas
        self.bases = {**areas.assign_bases(flash_address), **(moved or {})}
        self.memory_bytes = areas.memory_bytes if flash_address is None else areas.values_bytes

    @property
    def read_only(self) -> bytes:
        """Read-only data of the program: constants followed by code."""
        return self.program.constants + self.program.code

    def address(self, name: str) -> int:
        """Return the DRAM byte address of a buffer."""
        return self.program.areas.address(name, self.bases)

    def run(
        self,
        device: Device,
        contents: dict[str, np.ndarray],
        timeout: int | None = None,
        *,
        registers: Mapping[int, int] | None = None,
    ) -> None:
        """Load the program and the `contents` (int8, NHWC) of its input buffers, start it, and wait for its end.

        `registers` are values of base registers that do not hold addresses of the program's areas.
        """
        self.load(device)
        self.write(device, contents)
        self.start(device, registers)
        device.wait(timeout)

    def load(self, device: Device) -> None:
        """Load the program, unless it is in flash.

        Raises
        ------
        ProgramError
            If the device has the sequential core, and the program needs instructions to overlap.
        """
        if runs_in_turn(device):
            check_sequence(self.program.instructions)
        if self.flash_address is None:
            constants, code = self.program.constants, self.program.code
            device.load(self.bases[CONSTANTS], constants, "the weights")
            device.load(self.bases[CONSTANTS] + len(constants), code, "the code")

    def unload(self, device: Device) -> None:
        """Mark the memory that the program writes, so that programs loaded there are loaded again before they run."""
        for base, size in self.program.areas.sizes.items():
            if base != CONSTANTS:
                device.unload(self.bases[base], size)

    def write(self, device: Device, contents: dict[str, np.ndarray]) -> None:
        """Write the contents of input buffers."""
        for name, array in contents.items():
            device.write(self.address(name), self.input_bytes(name, array))

    def start(self, device: Device, registers: Mapping[int, int] | None = None) -> None:
        """Start the program, after it was loaded and its inputs were written."""
        program = self.program
        self.unload(device)
        for base, value in ({**self.bases, **(registers or {})}).items():
            device.set_base(base, value)
        # STOREs are in order: the written bytes so far identify the end of each layer.
        device.mark_writes(
            np.cumsum([layer.written_bytes for layer in program.timed_layers.values()]).tolist()
        )
        device.start(self.bases[CONSTANTS] + program.entry)

    def input_bytes(self, name: str, array: np.ndarray) -> bytes:
        """Return the bytes of an input buffer for an array (int8, NHWC), with rows interleaved if necessary."""
        array = np.ascontiguousarray(array, np.int8).reshape(self.program.input_shape(name))
        rows = self.program.rows.get(name)
        return (array if rows is None else rows.gather(array)).tobytes()

    def read(self, device: Device, name: str) -> np.ndarray:
        """Return the contents of a buffer: int8, in the buffer's shape."""
        buffer = self.program.buffers[name]
        return np.frombuffer(device.read(self.address(name), buffer.size), np.int8).reshape(buffer.shape)
