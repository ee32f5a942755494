"""Parts: which cells multiply, and what is refused."""

import re

import pytest

from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS, ConfigError
from weft.hdl.lib.parts import PARTS, check_part
from weft.hdl.verilog import generate

TINY = PRESETS["tiny"]
PLAIN = TINY.replace(probability_bits=0)


@pytest.mark.parametrize(
    ("config", "part", "cell", "count"),
    [
        (TINY, "ecp5", "MULT18X18D", 8),
        (TINY.replace(n=8, bus_bytes=8), "ecp5", "MULT18X18D", 32),
        (PLAIN, "ice40", "SB_MAC16", 8),
        (PLAIN, "generic", "MULT18X18D", 0),
        (PLAIN, "gowin", "MULT9X9", 0),
    ],
)
def test_cells(config, part, cell, count):
    verilog = generate(Core(config, part), name="top")
    assert verilog.count(f"  {cell} #(") == count
    # On iCE40 nothing is left to multiply but by constants, as the array takes all there is.
    assert bool(re.search(r" \* (?!\d+'h)", verilog)) == (part != "ice40")


def test_refused_parts():
    with pytest.raises(ConfigError, match=rf"^unknown part 'ecp6'; choose {', '.join(PARTS)}$"):
        check_part(TINY, "ecp6")
    message = r"^configuration field 'probability_bits' must be 7 or 0 for ice40, .* not 8$"
    with pytest.raises(ConfigError, match=message):
        check_part(TINY, "ice40")
