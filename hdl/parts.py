"""FPGA families that hardware is generated for, and what their synthesis must run besides.

The part changes which cells multiply, and when, never a result: it belongs to hardware generation, not to `Config`.
"""

from __future__ import annotations

from weft.hdl.config import Config, ConfigError

PARTS = ("generic", "ecp5", "ice40", "gowin")
"""Any part whose synthesis infers multipliers; Lattice ECP5; Lattice iCE40 UltraPlus; Gowin, the same as generic."""

MULT18X18D_REGISTERS = {
    f"REG_{stage}_{pin}": f"{pin}0"
    for stage in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
    for pin in ("CLK", "CE", "RST")
}
"""Parameters of an ECP5 multiplier with all its registers, three cycles from operands to product.

Four multipliers share a block that takes no more than four different clock enables: these need one, a constant."""

_MARK = "weft_registers"


def check_part(config: Config, part: str) -> None:
    """Raise `ConfigError` if there is no such part, or it cannot hold `config`."""
    if part not in PARTS:
        raise ConfigError(f"unknown part {part!r}; choose {', '.join(PARTS)}")
    if part == "ice40" and config.wide_activations:
        raise ConfigError(
            "configuration field 'probability_bits' must be 7 or 0 for ice40, whose multipliers take signed bytes, "
            f"not {config.probability_bits}"
        )


def prepare_commands(part: str) -> list[str]:
    """Yosys commands for the design as read, before ``synth_*``.

    ABC9 of Yosys 0.70 fails on multipliers of ECP5 that have parameters; those go, and leave a mark behind.
    """
    if part != "ecp5":
        return []
    unset = " ".join(f"-unset {name}" for name in MULT18X18D_REGISTERS)
    return [f"setattr -set {_MARK} 1 t:MULT18X18D", f"setparam {unset} t:MULT18X18D"]


def finish_commands(part: str) -> list[str]:
    """Yosys commands between ``synth_*`` and writing the netlist: what `prepare_commands` took away."""
    if part != "ecp5":
        return []
    values = " ".join(f'-set {name} "{value}"' for name, value in MULT18X18D_REGISTERS.items())
    return [f"setparam {values} t:MULT18X18D a:{_MARK} %i"]
