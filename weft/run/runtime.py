"""One compiled device program on a device: how it is written to memory, started and read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.machine.memory import CONSTANTS
from weft.configurations import runs_in_turn
from weft.hdl.checker.order import check_sequence
from weft.sim.device import Device


def zeros(program: DeviceProgram) -> dict[str, np.ndarray]:
    """Inputs of bytes of 0, for devices that only count cycles."""
    return {
        name: np.zeros(program.input_shape(name), np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


class Image:
    """A device program placed in memory: the areas of its base registers, one after the other from address 0, but for
    what the device keeps elsewhere.

    Parameters
    ----------
    program : DeviceProgram
        The program.
    kept : int, optional
        Where the device has its constants and code, if not in memory: what `weft.sim.device.Device.kept` says of
        `fixed`.
    moved : mapping of int to int, optional
        Base registers whose areas lie elsewhere, with their addresses.

    Attributes
    ----------
    bases : dict of int to int
        Address in each base register.
    memory_bytes : int
        Memory that a device needs.
    """

    def __init__(
        self, program: DeviceProgram, kept: int | None = None, moved: Mapping[int, int] | None = None
    ) -> None:
        self.program, self.kept = program, kept
        areas = program.areas
        self.bases = {**areas.placed(kept), **(moved or {})}
        self.memory_bytes = areas.memory_bytes if kept is None else areas.values_bytes

    @property
    def fixed(self) -> bytes:
        """What the program only reads: its constants, and behind them its code."""
        return self.program.constants + self.program.code

    def address(self, name: str) -> int:
        """DRAM byte address of a buffer."""
        return self.program.areas.address(name, self.bases)

    def run(
        self,
        device: Device,
        contents: dict[str, np.ndarray],
        timeout: int | None = None,
        *,
        registers: Mapping[int, int] | None = None,
    ) -> None:
        """Load the program and the `contents` (int8, NHWC) of its input buffers, start it and wait for its end.

        Contents are what operators were compiled for: they are laid out here where the program wants rows side by side.
        `registers` are base registers that hold something else than an address of the program's memory.
        """
        self.load(device)
        self.write(device, contents)
        self.start(device, registers)
        device.wait(timeout)

    def load(self, device: Device) -> None:
        """Load the program, unless the device has kept it.

        Raises
        ------
        ProgramError
            If the device has the sequential core, and the order of the program is not for it.
        """
        if runs_in_turn(device):
            check_sequence(self.program.instructions)
        if self.kept is None:
            constants, code = self.program.constants, self.program.code
            device.load(self.bases[CONSTANTS], constants, "the weights")
            device.load(self.bases[CONSTANTS] + len(constants), code, "the code")

    def unload(self, device: Device) -> None:
        """What other programs have loaded where this one writes counts no more: they have to be loaded anew."""
        for base, size in self.program.areas.sizes.items():
            if base != CONSTANTS:
                device.unload(self.bases[base], size)

    def write(self, device: Device, contents: dict[str, np.ndarray]) -> None:
        """Write the contents of input buffers."""
        for name, array in contents.items():
            device.write(self.address(name), self.laid_out(name, array))

    def start(self, device: Device, registers: Mapping[int, int] | None = None) -> None:
        """Start the program, which is loaded and has its inputs."""
        program = self.program
        self.unload(device)
        for base, value in ({**self.bases, **(registers or {})}).items():
            device.set_base(base, value)
        device.mark_writes(np.cumsum([layer.written_bytes for layer in program.timed.values()]).tolist())
        device.start(self.bases[CONSTANTS] + program.entry)

    def laid_out(self, name: str, array: np.ndarray) -> bytes:
        """The bytes of an input buffer for what its operator reads (int8, NHWC)."""
        array = np.ascontiguousarray(array, np.int8).reshape(self.program.input_shape(name))
        rows = self.program.rows.get(name)
        return (array if rows is None else rows.gather(array)).tobytes()

    def read(self, device: Device, name: str) -> np.ndarray:
        """The contents of a buffer as they lie there: int8, in the buffer's shape."""
        buffer = self.program.buffers[name]
        return np.frombuffer(device.read(self.address(name), buffer.size), np.int8).reshape(buffer.shape)
