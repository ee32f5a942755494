"""An accelerator described for tools and people: parameters, ports, registers, as JSON values."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Shape
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import AXI_LITE
from weft.hdl.isa import BASES, WORD_BYTES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, SIZE, VERSION, Counter, Reg, Status, base_register, counter_register


def describe(config: Config) -> dict[str, Any]:
    """The description of the core of `config`.

    ``parameters`` : the fields of `Config`; ``ports`` : name, direction seen from the core, and width, in the order of
    the Verilog module; ``registers`` : name, byte address, access ("r" or "rw") and reset value where it is fixed;
    ``status`` : bits of the status register; ``counters`` : name and byte address of the low word, the high word
    follows; ``window`` : bytes of the register window; ``instruction_bytes`` : size of an instruction word.
    """
    return {
        "parameters": config.to_dict(),
        "ports": _ports(config),
        "window": SIZE,
        "registers": _registers(config),
        "status": {flag.name.lower(): flag.value.bit_length() - 1 for flag in Status if flag.name},
        "counters": {counter.name.lower(): counter_register(counter) for counter in Counter},
        "instruction_bytes": WORD_BYTES,
    }


def _ports(config: Config) -> list[dict[str, Any]]:
    # From the signatures: a `Core` that nobody elaborates would be reported as forgotten.
    manager = {f"m_axi_{name}": member for name, member in axi4_signature(config).members.items()}
    members = {"clk": In(1), "rst": In(1), **manager, **AXI_LITE, "irq": Out(1)}
    return [
        {
            "name": name,
            "direction": "output" if member.flow is Out else "input",
            "width": Shape.cast(member.shape).width,
        }
        for name, member in members.items()
    ]


def _registers(config: Config) -> list[dict[str, Any]]:
    fixed = {Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: config.digest}
    registers: list[dict[str, Any]] = [
        {"name": register.name.lower(), "address": int(register), "access": "r", "value": value}
        for register, value in fixed.items()
    ]
    written = (Reg.CONTROL, Reg.PROGRAM, Reg.WATCHDOG, *((Reg.LIST,) if config.descriptors else ()))
    for register in Reg:
        if register in fixed or register in (Reg.BASE, Reg.COUNTER):
            continue
        access = "rw" if register in written else "r"
        registers.append({"name": register.name.lower(), "address": int(register), "access": access})
    for index in range(BASES):
        registers.append({"name": f"base{index}", "address": base_register(index), "access": "rw"})
    return registers
