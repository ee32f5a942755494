"""Loops and registers: the golden interpreters against programs without loops, and what they refuse."""

from __future__ import annotations

import pytest
from support import page_program
from support.loop_programs import LoopProgram
from support.random_programs import MEMORY

from weft.hdl.isa import (
    End,
    Instruction,
    Load,
    LoopNext,
    LoopStart,
    ReadRegisters,
    SetRegisters,
    Softmax,
    Store,
)
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.device import MAX_EXECUTED, DeviceError
from weft.sim.golden import interpreter
from weft.sim.golden.interpreter import GoldenDevice

LOOPS = PRESETS["tiny"].replace(loops=1)
CONFIGS = {
    "tiny": LOOPS,
    "no softmax": LOOPS.replace(probability_bits=0),
    "small": PRESETS["small"].replace(loops=1, kernel=32),
}
PLACE = 0x3000


def run(device: GoldenDevice, *instructions: Instruction) -> None:
    device.write(PLACE, b"".join(item.encode() for item in (*instructions, End())))
    device.start(PLACE)
    device.wait()


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(4))
def test_a_loop_does_what_its_body_does_in_turn(name: str, seed: int) -> None:
    config = CONFIGS[name]
    made = LoopProgram(config, seed, 15)
    straight, device = GoldenDevice(config.replace(loops=0), 2 * MEMORY), GoldenDevice(config, MEMORY)
    for _ in range(2):
        assert made.run(device) == made.run(straight, straight=True)
        assert device.instructions == straight.instructions == len(made.straight) - 1


def copies(text: str, config: Config = LOOPS, bases: tuple[int, ...] = ()) -> bytes:
    """A program on a memory whose bytes below 0x100 are their addresses; those from 0x1000 on."""
    device = GoldenDevice(config, 1 << 15)
    device.write(0, bytes(range(256)))
    for index, base in enumerate(bases):
        device.set_base(index, base)
    run(device, *assemble(text))
    return device.read(0x1000, 16)


COPY = "load base=8 run=1 signal=s0 \n store base=9 offset=0x1000 wait=s0 signal=s1 \n"
"""Copy from register 8 to register 9."""


def test_registers_start_as_the_host_set_them_and_as_0() -> None:
    assert (
        copies("load base=1 run=1 offset=2 signal=s0\nstore base=15 offset=0x1000 wait=s0", bases=(1, 40))[0]
        == 42
    )
    device = GoldenDevice(LOOPS, 1 << 15)
    device.write(5, b"\7")
    run(device, *assemble("set register0=3 mode0=set value0=5 register1=15 mode1=add value1=9"))
    run(device, *assemble("load base=3 run=1 offset=5 signal=s0 \n store base=15 offset=0x1000 wait=s0"))
    assert device.read(0x1000, 1) == b"\7"
    assert device.memories.bases[3] == 0


def test_slots_are_in_order_and_wrap() -> None:
    text = """
    set register0=8 mode0=set value0=-1 register1=8 mode1=add value1=12 register2=9 mode2=add value2=3
    set register7=8 mode7=none value7=99
    """
    assert copies(text + COPY)[3] == 11


@pytest.mark.parametrize(("start", "times"), [(0, 0), (-5, 0), (-(1 << 31), 0), (1, 1), (3, 3), (9, 9)])
def test_a_loop_is_left_when_its_register_is_not_above_0(start: int, times: int) -> None:
    text = f"""
    set register0=10 mode0=set value0={start} register1=8 mode1=set value1=7
    loop register=10 skip=4
    {COPY} load wait=s1 dst=3
    next back=4 register0=8 mode0=add value0=1 register1=9 mode1=add value1=1 register2=10 mode2=add value2=-1
    """
    # LOAD may overwrite what STORE has not read yet: here instructions run one after the other.
    assert copies(text) == bytes(range(7, 7 + times)) + bytes(16 - times)


@pytest.mark.parametrize("start", [1 << 30, (1 << 31) - 1])
def test_the_largest_numbers_are_above_0(start: int) -> None:
    text = f"""
    set register0=10 mode0=set value0={start} register1=8 mode1=set value1=7
    loop register=10 skip=3
    {COPY}
    next back=3 register0=10 mode0=set value0=0 register1=9 mode1=add value1=1
    """
    assert copies(text) == bytes([7, *[0] * 15])


def test_loops_in_loops_and_loops_of_one_instruction() -> None:
    text = """
    set register0=10 mode0=set value0=2
    loop register=10 skip=5
    set register0=11 mode0=set value0=3
    loop register=11 skip=2
    store base=9 offset=0x1000 src=5
    next back=2 register0=9 mode0=add value0=1 register1=11 mode1=add value1=-1
    next back=5 register0=10 mode0=add value0=-1
    store base=9 offset=0x1000 src=6
    """
    device = GoldenDevice(LOOPS, 1 << 15)
    device.scratchpad[5:7] = [[1], [2]]
    run(device, *assemble(text))
    assert device.read(0x1000, 8) == bytes([1] * 6 + [2, 0])
    assert device.instructions == 7


def test_read() -> None:
    device = GoldenDevice(LOOPS, 1 << 15)
    device.write(0x260, b"".join(word.to_bytes(4, "little") for word in (2, 0xFFFFFFFF, 0x1000)))
    device.set_base(2, 0x200)
    device.scratchpad[5] = 9
    run(device, *assemble("""
    read base=2 offset=0x60 first=8 count=3
    loop register=9 skip=2
    store base=10 offset=8 src=5
    next back=2 register0=9 mode0=set
    loop register=8 skip=2
    store base=10 src=5
    next back=2 register0=8 mode0=add value0=-1 register1=10 mode1=add value1=1
    """))  # fmt: skip
    assert device.read(0x1000, 9) == bytes([9, 9, *[0] * 7])


ENDLESS = "loop register=8 skip=1\nnext back=1"
REFUSED: list[tuple[str, str]] = [
    ("set wait=s0", "instruction 0 (SET): it has semaphores, but it belongs to no queue"),
    ("mm\nset register3=2 mode3=4", "instruction 1 (SET): the mode of a slot is 4, outside 0 to 3"),
    ("read offset=16", "instruction 0 (READ): DRAM address 0x10 is no multiple of 32 bytes"),
    ("read count=9", "instruction 0 (READ): 'count' is 9, outside 1 to 8"),
    ("read first=12 count=5", "instruction 0 (READ): it reads registers up to 16; there are 16"),
    ("read offset=0x40000", "instruction 0 (READ): 4 bytes at DRAM address 0x40000 leave the memory of 32768 bytes"),
    ("loop skip=2\nmm", "instruction 0 (LOOP): it passes over 2 instructions, and END is among them"),
    ("mm\nnext back=1", "instruction 1 (NEXT): it goes back to instruction 0, which is no LOOP"),
    ("next back=3", "instruction 0 (NEXT): it goes back to instruction -3, which is no LOOP"),
    ("set register0=8 mode0=set value0=1\n" + ENDLESS,
     f"the program goes on after {MAX_EXECUTED} instructions, the last of them instruction 1 (LOOP): does the "
     "register of a loop never fall to 0?"),
    ("read offset=32 count=2\nstore offset=39",
     "instruction 1 (STORE): it writes DRAM bytes 0x27 to 0x27, and READ reads registers from 0x20 on"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "the program goes on" in message:
        monkeypatch.setattr(interpreter, "MAX_EXECUTED", 1000)
        message = message.replace(str(MAX_EXECUTED), "1000").replace(
            "instruction 1 (LOOP)", "instruction 2 (NEXT)"
        )
    with pytest.raises(DeviceError) as caught:
        run(GoldenDevice(LOOPS, 1 << 15), *assemble(text))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "instruction",
    [SetRegisters(), LoopStart(), LoopNext(), ReadRegisters()],
    ids=lambda item: item.OPCODE.name,
)
def test_without_loops_there_are_none(instruction: Instruction) -> None:
    with pytest.raises(DeviceError, match=r"has no loops and registers \('loops' is 0\)$"):
        run(GoldenDevice(PRESETS["tiny"], 1 << 15), instruction)


@pytest.mark.parametrize(
    "instruction",
    [Load(base=8), Load(paged=1, table=9), Store(base=15), Softmax(relative=1, register=8)],
    ids=lambda item: item.OPCODE.name,
)
def test_without_loops_there_are_the_registers_of_the_host(instruction: Instruction) -> None:
    with pytest.raises(
        DeviceError, match=r"' is (8|9|15), and there are 8 base registers, because the configuration"
    ):
        run(GoldenDevice(PRESETS["tiny"], 1 << 15), instruction)


def test_loops_do_not_change_the_hosts_registers() -> None:
    device = GoldenDevice(LOOPS, 1 << 15)
    with pytest.raises(DeviceError, match="base register 8 does not exist"):
        device.set_base(8, 0)


@pytest.mark.parametrize("pages", range(8))
def test_the_number_of_pages_comes_from_memory(pages: int) -> None:
    found, wanted = page_program.run(GoldenDevice(LOOPS, 1 << 16), pages, pages)
    assert found == wanted
