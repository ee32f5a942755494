"""FPGA families that hardware is generated for, and what their synthesis must run besides.

The part changes which cells multiply, and when, never a result: it belongs to hardware generation, not to `Config`.
"""

from __future__ import annotations

from weft.hdl.isa.config import Config, ConfigError

PARTS = ("generic", "ecp5", "ice40", "gowin")
"""Any part whose synthesis infers multipliers; Lattice ECP5; Lattice iCE40 UltraPlus; Gowin, the same as generic."""

MULT18X18D_REGISTERS = {
    f"REG_{stage}_{pin}": f"{pin}0"
    for stage in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
    for pin in ("CLK", "CE", "RST")
}
"""Parameters of an ECP5 multiplier with all its registers, three cycles from operands to product.

Four multipliers share a block that takes no more than four different clock enables: these need one, a constant."""


def check_part(config: Config, part: str) -> None:
    """Raise `ConfigError` if there is no such part, or it cannot hold `config`."""
    if part not in PARTS:
        raise ConfigError(f"unknown part {part!r}; choose {', '.join(PARTS)}")
    if part == "ice40" and config.wide_activations:
        raise ConfigError(
            "configuration field 'probability_bits' must be 7 or 0 for ice40, whose multipliers take signed bytes, "
            f"not {config.probability_bits}"
        )


def synthesis(command: str) -> list[str]:
    """`command` (``synth_ecp5``, ``synth_ice40`` or ``synth_gowin`` with its options) as Yosys commands that succeed.

    When ABC9 writes its netlist back, it makes up names for the bits of wide wires, and fails an assertion
    (``count_id(wire->name) == 0``, Yosys issues 4349 and 4451) where a wire has that name already. There is no such
    name if all wires are split before.
    """
    return [f"{command} -run begin:map_luts", "splitnets", f"{command} -run map_luts:"]
