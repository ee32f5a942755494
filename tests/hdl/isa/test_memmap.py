"""The register map: no two registers share an address, and everything fits the window."""

from __future__ import annotations

import pytest

from weft.hdl.isa import BASES
from weft.hdl.isa.memmap import MAGIC, SIZE, Counter, Reg, base_register, counter_register


def test_registers_are_words_that_do_not_overlap() -> None:
    single = [register for register in Reg if register not in (Reg.BASE, Reg.COUNTER)]
    bases = [base_register(index) for index in range(BASES)]
    low = [counter_register(counter) for counter in Counter]
    words = [*single, *bases, *low, *(word + 4 for word in low)]
    assert len(words) == len(set(words))
    assert all(word % 4 == 0 and 0 <= word < SIZE for word in words)


def test_counters_count_from_zero_without_gaps() -> None:
    assert [int(counter) for counter in Counter] == list(range(len(Counter)))
    assert counter_register(Counter.CYCLES) == Reg.COUNTER
    assert counter_register(Counter.STORE_PORT) == Reg.COUNTER + 8 * 19


def test_magic_is_ascii() -> None:
    assert MAGIC.to_bytes(4, "little") == b"WEFT"


@pytest.mark.parametrize("index", [-1, BASES])
def test_base_registers_that_do_not_exist(index: int) -> None:
    with pytest.raises(ValueError, match=f"^base register {index} does not exist; there are 8$"):
        base_register(index)
