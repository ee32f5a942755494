"""Lists of random programs, each with code and data in its own part of memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.faulty_runs import Filling
from support.loop_programs import WORDS, LoopProgram
from support.random_programs import MEMORY, PROGRAM, Generator, WithoutDivision
from weft.hdl.isa import End
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import ListProgress
from weft.hdl.isa.program_lists import DESCRIPTOR_BYTES, RECORD_READ_BYTES, Record, encode_list, pitch
from weft.sim.device import Device

TIME = range(RECORD_READ_BYTES + 4, DESCRIPTOR_BYTES)
"""Bytes of a descriptor that depend on time."""


class ProgramList:
    """A list of `count` runs of some of `made` programs, in any order, each program in its own `MEMORY` bytes.  A
    program may run several times, on its own results. The list follows them in memory. With `Filling` no program has
    loops.

    Attributes
    ----------
    order : list of int
        Index of each run's program.
    address : int
        Address of the list.
    memory_bytes : int
        Size of memory that a device needs.
    """

    def __init__(
        self,
        config: Config,
        seed: int,
        count: int,
        *,
        made: type[Generator] = WithoutDivision,
        length: int = 10,
    ) -> None:
        self.config = config
        pick = random.Random(seed)
        self.parts = []
        for number in range(min(count, pick.choice([1, 2, 3]))):
            if config.loops and made is not Filling and pick.random() < 0.4:
                looped = LoopProgram(config, seed + number, max(6, length // 2), divides=False)
                registers = b"".join(word.to_bytes(4, "little") for word in looped.words)
                image, program, bases = looped.generator.image, looped.program, looped.generator.bases
                image = image[:WORDS] + registers + image[WORDS + len(registers) :]
            else:
                generator = made(config, seed + number, serial=pick.random() < 0.25)
                generator.build(length)
                image, program, bases = generator.image, [*generator.program, End()], generator.bases
            words = b"".join(item.encode() for item in program)
            self.parts.append((image[:PROGRAM] + words + image[PROGRAM + len(words) :], bases))
        self.order = [*range(len(self.parts))]
        self.order += [pick.randrange(len(self.parts)) for _ in range(count - len(self.parts))]
        pick.shuffle(self.order)
        self.runs = [
            (place * MEMORY + PROGRAM, [place * MEMORY + base for base in self.parts[place][1]])
            for place in self.order
        ]
        step = pitch(config)
        self.address = len(self.parts) * MEMORY + step * pick.randrange(100)
        self.frames = encode_list(self.runs, config)
        self.memory_bytes = -(-(self.address + len(self.frames)) // 4096) * 4096

    def place(self, device: Device) -> None:
        """Write programs, data and the list."""
        for place, (image, _) in enumerate(self.parts):
            device.write(place * MEMORY, image)
        device.write(self.address, self.frames)

    def run(self, device: Device, *, timeout: int | None = None) -> bytes:
        """Run the list; return all of memory, except what depends on time."""
        self.place(device)
        device.start_list(self.address)
        device.wait(timeout)
        assert device.list_progress() == ListProgress(len(self.order))
        return self.timeless(device)

    def timeless(self, device: Device) -> bytes:
        """Return all of memory, with 0 where records hold times."""
        found = bytearray(device.read(0, self.memory_bytes))
        for index in range(len(self.order)):
            at = self.address + index * pitch(self.config)
            found[at + TIME.start : at + TIME.stop] = bytes(len(TIME))
        return bytes(found)

    def run_one_by_one(self, device: Device, count: int | None = None) -> None:
        """Start the first `count` programs one by one, as a host does without lists."""
        for program, bases in self.runs[:count]:
            set_bases(device, bases)
            device.start(program)
            device.wait()

    def records(self, device: Device) -> list[Record]:
        """Return the list's records of its programs."""
        step = pitch(self.config)
        raw = device.read(self.address, step * len(self.order))
        return [Record.decode(raw[index * step :][:DESCRIPTOR_BYTES]) for index in range(len(self.order))]


def set_bases(device: Device, bases: Sequence[int]) -> None:
    for index, base in enumerate(bases):
        device.set_base(index, base)
