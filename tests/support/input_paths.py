"""Outputs of a design that depend on an input in the same clock cycle."""

from __future__ import annotations

from pathlib import Path

from weft.hdl.verilog import run_yosys

_REGISTERED = "t:$*dff* t:$memrd* r:CLK_ENABLE=1 %i"
"""Flip-flops, and read ports of memories that have a register: paths end there."""


def outputs_that_follow_inputs(verilog: str, folder: Path, *, top: str = "weft") -> set[str]:
    """Return the outputs of module `top` with a combinational path from an input other than ``clk`` and ``rst``.

    Yosys follows whole wires, so a path through another bit of a wire counts as well.
    """
    (folder / "design.v").write_text(verilog)
    run_yosys(
        "read_verilog design.v",
        f"hierarchy -top {top}",
        "proc -norom",
        f"delete {_REGISTERED}",
        "flatten",
        "select -write found.txt i:* i:clk i:rst %u %d %co* o:* %i",
        cwd=folder,
    )
    return {line.split("/")[1] for line in (folder / "found.txt").read_text().split()}
