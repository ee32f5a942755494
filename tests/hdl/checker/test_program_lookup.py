"""The program checker on look-up tables: programs it accepts, and programs it refuses with the whole message."""

from __future__ import annotations

import pytest

from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import Instruction
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]


def program(text: str) -> list[Instruction]:
    """Assemble instructions separated by ``/``, followed by END."""
    return assemble(text.replace("/", "\n") + "\nend")


ACCEPTED = (
    "lookup src=90 vectors=64 table=3 / vec lookup=1 table=3 dst=20 params=80",
    "lookup src=90 vectors=1 entry=252",
    "lookup src=90 vectors=63 entry=4",
    "vec table=7 dst=20 params=80",  # not looked at
)

REFUSED = {
    "instruction 0 (LOOKUP): 'entry' and 'vectors' reach entry 259, but a look-up table has 256":
        "lookup vectors=65",
    "instruction 0 (LOOKUP): 'entry' and 'vectors' reach entry 256, but a look-up table has 256":
        "lookup vectors=1 entry=253",
    "instruction 0 (LOOKUP): 'table' writes look-up table 4, but there are 4": "lookup table=4",
    "instruction 0 (LOOKUP): 'src' reads scratchpad vector 1024, but there are 1024": "lookup src=1023 vectors=2",
    "instruction 0 (VEC): 'table' reads look-up table 4, but there are 4":
        "vec lookup=1 table=4 dst=20 params=80",
    "race: instruction 1 (LOOKUP) reads scratchpad vector 12, which instruction 0 (LOAD) writes, and no semaphore "
    "orders them": "load dst=12 / lookup src=10 vectors=3",
}  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    check(program(text), TINY)


@pytest.mark.parametrize(("message", "text"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refused(message: str, text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(program(text), TINY)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lookup", "instruction 0 (LOOKUP): the configuration has no look-up tables ('lookup_tables' is 0)"),
        *(
            (f"vec {field}=1 dst=20 params=80",
             f"instruction 0 (VEC): {field!r} must be 0, because the configuration has no look-up tables"
             " ('lookup_tables' is 0)")
            for field in ("lookup", "table")
        ),
    ],
)  # fmt: skip
def test_look_up_tables_are_an_option(text: str, message: str) -> None:
    check(program(text), TINY)
    with pytest.raises(ProgramError) as caught:
        check(program(text), TINY.replace(lookup_tables=0))
    assert str(caught.value) == message
