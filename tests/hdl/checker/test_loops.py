"""Programs with loops: what the checker takes, and what it refuses at some number of turns."""

from __future__ import annotations

import dataclasses

import pytest
from support.page_program import extents, page_program

from weft.hdl.checker.extents import Extent, Extents
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import Instruction
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS

LOOPS = PRESETS["tiny"].replace(loops=1, int4=1)


def refusal(text: str | list[Instruction], given: Extents | None = None) -> str:
    program = [*assemble(text), *assemble("end")] if isinstance(text, str) else text
    with pytest.raises(ProgramError) as caught:
        check(program, LOOPS, extents=given)
    return str(caught.value)


def check_accepted(text: str, given: Extents | None = None) -> None:
    check([*assemble(text), *assemble("end")], LOOPS, extents=given)


def test_double_buffering_for_any_number_of_pages() -> None:
    check(page_program(LOOPS), LOOPS)
    check(page_program(LOOPS), LOOPS, extents=extents(LOOPS))
    with pytest.raises(ProgramError, match=r"^instruction 0 \(READ\): the configuration has no loops"):
        check(page_program(LOOPS), PRESETS["tiny"])


def test_every_semaphore_of_the_double_buffering_is_needed() -> None:
    """Without one of them, in both the wait and the signal, some number of turns is a race or a loop is unbalanced."""
    program = page_program(LOOPS)
    for semaphore in range(8):
        keep = ~(1 << semaphore)
        less = [
            dataclasses.replace(item, wait=item.wait & keep, signal=item.signal & keep) for item in program
        ]
        assert refusal(less).startswith("race: instruction ")


COPY = "load base=8 run=1 dst=3 signal=s0\nstore base=9 src=3 wait=s0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop skip=3\nmm\nnext back=2",
         "instruction 0 (LOOP) skips instructions up to 3, which is no NEXT that goes back to it"),
        ("loop skip=2\nmm\nnext back=1",
         "instruction 0 (LOOP) skips instructions up to 2, which is no NEXT that goes back to it"),
        ("mm\nnext", "instruction 1 (NEXT) goes back to instruction 0, which is no LOOP that skips instructions "
         "up to it"),
        ("loop skip=2\nloop skip=2\nnext back=2\nnext back=2",
         "the loop from instruction 1 to 3 does not end inside the one from instruction 0 to 2"),
        ("set signal=s1", "instruction 0 (SET): it has semaphores, but it belongs to no queue"),
        ("set mode2=7", "instruction 0 (SET): the mode of a slot is 7, outside 0 to 3"),
        ("read count=9", "instruction 0 (READ): 'count' is 9, but at most 8 words are read at a time"),
        ("read first=15 count=2", "instruction 0 (READ): 'first' and 'count' reach register 16; there are 16"),
        ("read base=2 count=2\nmm\nstore base=2",
         "instruction 2 (STORE) writes to base register 2, from which instruction 0 (READ) reads registers: they must "
         "be as the host wrote them"),
        ("set register0=9 mode0=2 value0=1\nload base=9\nstore base=9 src=7",
         "instruction 1 (LOAD) reads from base register 9, which the program changes, and instruction 2 (STORE) writes "
         "to it: no order of the two can be checked; use two registers"),
        ("set register0=9 mode0=set value0=6\nload base=9 int4=1 run=1",
         "instruction 0 (SET) gives register 9 the value 6, which is no multiple of the bus width of 4 bytes, "
         "which 'int4' of instruction 1 (LOAD) needs"),
        ("set register0=10 mode0=set value0=6 register1=11 mode1=add_register value1=10 register2=9 mode2=add_register "
         "value2=11\nload base=9 int4=1 run=1",
         "instruction 0 (SET) gives register 10 the value 6, which is no multiple of the bus width of 4 bytes, "
         "which 'int4' of instruction 1 (LOAD) needs"),
        ("loop skip=2\nload signal=s3\nnext back=2",
         "the loop from instruction 0 to 2 waits for semaphore 3 0 times an iteration and signals it 1 times: a loop "
         "must leave all semaphores as they were"),
        ("loop register=8 skip=3\n" + COPY + "\nnext back=3",
         "race: instruction 2 (STORE) reads scratchpad vector 3, which instruction 1 (LOAD) writes, and no semaphore "
         "orders them (iterations of the loops: 3 at instruction 0)"),
        ("load base=1 run=1 dst=3 signal=s0\nloop skip=2\nstore base=3 src=3 wait=s0\nnext back=2",
         "the loop from instruction 1 to 3 waits for semaphore 0 1 times an iteration and signals it 0 times: a loop "
         "must leave all semaphores as they were"),
    ],
)  # fmt: skip
def test_refused(text: str, message: str) -> None:
    found = refusal(text)
    if message.startswith("race"):
        assert found.startswith(
            "race: instruction 1 (LOAD) writes scratchpad vector 3, which instruction 2 (STORE) reads"
        )
        assert found.endswith("(iterations of the loops: 3 at instruction 0)")
    else:
        assert found == message


def test_a_race_when_a_loop_does_not_turn() -> None:
    """The only thing that orders a LOAD and a STORE is in a loop."""
    text = """
    load run=1 dst=3
    loop register=8 skip=3
    load run=1 dst=5 signal=s0
    store base=1 src=6 wait=s0
    next back=3
    store base=1 offset=8 src=3
    """
    assert refusal(text).endswith("no semaphore orders them (iterations of the loops: 0 at instruction 1)")
    check_accepted(text.replace("src=3", "src=9"))


def test_signals_that_are_taken_many_iterations_later() -> None:
    """A buffer of four parts: the store of one is waited for four loads later."""
    start = "\n".join(["store base=1 src=9 signal=s1"] * 4)
    body = "load base=8 run=1 dst=3 wait=s1 signal=s0\nstore base=9 src={src} wait=s0 signal=s1"
    text = start + "\nloop register=10 skip=3\n" + body + "\nnext back=3"
    assert "race" in refusal(text.format(src=3))  # the load of the next turn does not wait for this store
    check_accepted(text.format(src=4))
    many = text.replace(start, "\n".join([start] * 2)).format(src=4)
    assert refusal(many) == (
        "the loop from instruction 8 to 11 starts with semaphore 1 at 8, of which it takes 1 an iteration: that is "
        "more than the 6 iterations ahead that can be checked"
    )


def test_extents_of_registers_that_change() -> None:
    text = "set register0=9 mode0=set value0=64\nload base=9 offset=4 run=4 length=4"
    piece = Extent("page", 9, 0, 8, write=False)
    check_accepted(text, Extents([piece], {}))
    assert refusal(text.replace("offset=4", "offset=5"), Extents([piece], {})) == (
        "instruction 1 (LOAD): reads bytes 5 to 8 of base register 9, which leaves page (bytes 0 to 7)"
    )
    read = "read base=2 offset=32 first=8 count=3"
    check_accepted(read, Extents([Extent("numbers", 2, 32, 12)], {2: 64}))
    assert refusal(read, Extents([Extent("numbers", 2, 32, 11)], {})).startswith(
        "instruction 0 (READ): reads bytes 32 to"
    )
    assert refusal(read, Extents([Extent("numbers", 2, 32, 12)], {2: 4})) == (
        "instruction 0 (READ): DRAM address 0x24 is no multiple of 32 bytes"
    )
    with pytest.raises(ProgramError, match="has base register 9, but there are 8"):
        check(assemble("end"), PRESETS["tiny"], extents=Extents([piece], {}))


def test_registers_that_are_added_are_no_values() -> None:
    """Number 3 of a register is no address; as far as the program shows, it holds words of the bus."""
    check_accepted("set register0=9 mode0=add_register value0=3\nload base=9 int4=1 run=1")


def test_many_loops_are_checked_in_pairs() -> None:
    one = "loop register=8 skip=2\nload run=1 dst=3\nnext back=2\n"
    check_accepted(one * 7)
    assert "race" in refusal(one * 7 + "store base=1 src=3")
