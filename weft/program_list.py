"""Device programs that lie in memory and run one after the other by one start: `weft.hdl.isa.program_lists`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.compiler.machine.memory import CONSTANTS
from weft.errors import InputError
from weft.hdl.checker.accesses import ProgramError
from weft.hdl.checker.lists import ListedProgram, check_places
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Record, encode_list, pitch
from weft.runtime import Image

if TYPE_CHECKING:
    from weft.compiler.backend import DeviceProgram
    from weft.sim.device import Device


def side_by_side(programs: Sequence[DeviceProgram]) -> list[Image]:
    """Images of programs that lie in memory one behind the other, from address 0 on. The last one's `memory_bytes` is
    what they take together."""
    images: list[Image] = []
    at = 0
    for program in programs:
        images.append(Image(program, moved={base: at + to for base, to in program.areas.bases.items()}))
        at += program.areas.memory_bytes
        images[-1].memory_bytes = at
    return images


class ProgramList:
    """Images on one device, which runs them in their order by itself.

    Images may share memory, be it code, buffers or all: they run one after the other. Only code and the list itself no
    program may write.

    Parameters
    ----------
    images : sequence of Image
        Placed in the device's memory; one may be there more than once.
    config : Config
        The device's, with `descriptors`.
    address : int
        Where the list goes, a multiple of `weft.hdl.isa.program_lists.pitch`; `bytes_of` tells how much it takes.
    memory_bytes : int
        Of the device.
    registers : sequence of mapping of int to int, optional
        For each image base registers that hold something else than an address of its memory.

    Raises
    ------
    InputError
        For no image, an address that is not aligned or beyond memory, or programs that may write to the list or to
        code; the sentence says which.
    """

    def __init__(
        self,
        images: Sequence[Image],
        config: Config,
        address: int,
        memory_bytes: int,
        registers: Sequence[Mapping[int, int]] | None = None,
    ) -> None:
        self.images, self.config, self.address = list(images), config, address
        more = [{}] * len(self.images) if registers is None else list(registers)
        if len(more) != len(self.images):
            raise InputError(f"there are registers for {len(more)} images, not for {len(self.images)}")
        self._programs = [
            ListedProgram(
                image.bases[CONSTANTS] + image.program.entry,
                image.program.instructions,
                {**image.bases, **given},
                image.program.areas.extents,
            )
            for image, given in zip(self.images, more, strict=True)
        ]
        try:
            check_places(address, self._programs, config, memory_bytes)
        except ProgramError as error:
            raise InputError(str(error)) from None

    @staticmethod
    def bytes_of(count: int, config: Config) -> int:
        """What a list of `count` programs takes in memory."""
        return count * pitch(config)

    def load(self, device: Device) -> None:
        """Load the programs, each once, unless the device has kept them."""
        loaded: set[tuple[int, int]] = set()
        for image in self.images:
            key = id(image.program), image.bases[CONSTANTS]
            if key not in loaded:
                image.load(device)
            loaded.add(key)

    def start(self, device: Device) -> None:
        """Write the list, with empty records, and start it; programs are loaded and have their inputs.

        Raises
        ------
        weft.sim.device.DeviceError
            As `weft.sim.device.Device.start_list` does.
        """
        runs = [
            (
                device.origin + program.address,
                [device.origin + program.bases.get(base, 0) for base in range(BASES)],
            )
            for program in self._programs
        ]
        for image in self.images:
            image.unload(device)
        device.write(self.address, encode_list(runs, self.config))
        device.start_list(self.address)

    def records(self, device: Device) -> list[Record]:
        """What the device has told about each program, as far as they are done."""
        raw, step = (
            device.read(self.address, self.bytes_of(len(self.images), self.config)),
            pitch(self.config),
        )
        return [Record.decode(raw[index * step :]) for index in range(len(self.images))]
