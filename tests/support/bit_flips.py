"""Verilog of a core whose memories occasionally flip a bit as they are written."""

from __future__ import annotations

import re

_WRITE = re.compile(r"^ +([^\s\[]+) ?\[.*\] <= (.*);$")
_SLICE = re.compile(r"\]\[(\d+):(\d+)\] <= ")
_MEMORY = re.compile(r"^  reg \[(\d+):0\] (\S+) \[\d+:0\];$")
_PLACES = {
    "weft.scratchpad": "bank",
    "weft.accumulator": "bank",
    "weft.fetch.buffer": "",
    "weft.machine.scratchpad": "",
    "weft.machine": "accumulator",
}
"""Modules, and the name prefixes of their memories that lose bits."""


def flip_bits(verilog: str, one_in: int) -> str:
    """Return Verilog that flips a bit in about one of `one_in` (a power of two) words. It covers words written to the
    scratchpad, the accumulators and the fetch buffer. Raises `ValueError` if there are no such memories."""
    modules = re.split(r"(?m)^(?=module )", verilog)
    changed = [_flip(module, one_in, number) for number, module in enumerate(modules)]
    if changed == modules:
        raise ValueError("no memory was found in the Verilog")
    return "".join(changed)


def _flip(module: str, one_in: int, seed: int) -> str:
    name = re.match(r"module \\?([\w.$]+)", module)
    if name is None or name[1] not in _PLACES:
        return module
    lines, widths, found = [], {}, False
    for line in module.split("\n"):
        memory, write = _MEMORY.match(line), _WRITE.match(line)
        if memory and memory[2].startswith(_PLACES[name[1]]):
            widths[memory[2]] = int(memory[1]) + 1
        if write and write[1] in widths:
            part = _SLICE.search(line)
            width = int(part[1]) - int(part[2]) + 1 if part else widths[write[1]]
            hit = f"flip_state[{one_in.bit_length() + 5}:7] == 0"
            flip = f"({hit} ? {width}'d1 << (flip_state[40:30] % {width}) : {width}'d0)"
            line = line.replace(f"<= {write[2]};", f"<= ({write[2]}) ^ {flip};")
            found = True
        lines.append(line)
    if not found:
        return module
    state = (
        f"  reg [63:0] flip_state = 64'd{0x9E3779B97F4A7C15 * (seed + 1) % (1 << 64) | 1};\n"
        "  wire [63:0] flip_one = flip_state ^ (flip_state << 13);\n"
        "  wire [63:0] flip_two = flip_one ^ (flip_one >> 7);\n"
        "  always @(posedge clk) flip_state <= flip_two ^ (flip_two << 17);\n"
    )
    return "\n".join(lines).replace("endmodule", state + "endmodule")
