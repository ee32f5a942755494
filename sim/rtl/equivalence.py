"""Whether a mutant of a core is the same hardware: proven by SAT for all inputs and all states, reachable or not.

Registers and memories are cut out of the flat core, so that what they hold is an input, and what goes into them is
an output. A mutant whose outputs are then those of the core for all inputs does in every cycle what the core does. One
that differs only in states that cannot be reached is not found to be equal.

Run as a module it does the work in a process of its own: ``python -m weft.sim.rtl.equivalence JOB.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from weft.sim.rtl.connections import is_memory, is_register
from weft.sim.rtl.device import TOP
from weft.sim.rtl.mutated import Mutant, MutationError
from weft.sim.yosys_process import failure, work

SECONDS = 60
"""Of the solver, for each mutant."""
_SAID: dict[str, bool | None] = {
    "no model found: SUCCESS!": True,
    "model found: FAIL!": False,
    "TIMEOUT!": None,
}
"""What Yosys says of a proof, the first text that is there."""


def equal(plain: Path, mutants: Iterable[Mutant], seconds: int = SECONDS) -> dict[int, bool | None]:
    """By number, whether a mutant is proven equal to the flat core in the file `plain`; None if time was up.

    Raises `MutationError` if Yosys fails.
    """
    found: dict[int, bool | None] = {}
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            job = {"plain": str(plain.resolve()), "command": mutant.command, "seconds": seconds}
            _, said = work(__name__, Path(temporary), job)
        verdicts = [value for text, value in _SAID.items() if text in said]
        if not verdicts:
            raise MutationError(failure(said))
        found[mutant.number] = verdicts[0]
    return found


def cut(module: Any, yosys: Any, kept: Collection[str] = ()) -> None:
    """Take memories out of a module, and registers but those whose cells are `kept`. What goes to a port of a
    memory counts while that is enabled."""
    for cell in list(module.cells_.values()):
        if not (is_memory(cell) or is_register(cell)) or str(cell.name) in kept:
            continue
        asked = _asked(module, yosys, cell) if is_memory(cell) else {}
        for port, signal in list(cell.connections().items()):
            name = f"\\cut {cell.name!s} {port!s}".replace(" ", "/")
            wire = module.addWire(yosys.IdString(name), signal.size())
            if cell.output(port):
                wire.port_input = True
                module.connect(signal, yosys.SigSpec(wire))
            else:
                wire.port_output = True
                module.connect(yosys.SigSpec(wire), asked.get(str(port), signal))
        module.remove(cell)
    module.fixup_ports()


def _asked(module: Any, yosys: Any, memory: Any) -> dict[str, Any]:
    """By port of a memory's cell its addresses and data, 0 where that port of the memory is not enabled."""
    ports = {str(port): signal for port, signal in memory.connections().items()}
    found = {}
    for kind, number in (("RD", ports["\\RD_CLK"].size()), ("WR", ports["\\WR_CLK"].size())):
        enable, address = ports[f"\\{kind}_EN"], ports[f"\\{kind}_ADDR"]
        if not number:
            continue
        own, width = enable.size() // number, address.size() // number
        masks = yosys.SigSpec()
        for index in range(number):
            some = module.addWire(
                yosys.IdString(f"\\asked {memory.name!s} {kind} {index}".replace(" ", "/")), 1
            )
            module.addReduceOr(
                yosys.IdString(f"{some.name!s}/or"), enable.extract(index * own, own), yosys.SigSpec(some)
            )
            for _ in range(width):
                masks.append(yosys.SigSpec(some))
        found[f"\\{kind}_ADDR"] = _masked(module, yosys, f"{memory.name!s} {kind}_ADDR", address, masks)
        if kind == "WR":
            data = ports["\\WR_DATA"]
            found["\\WR_DATA"] = _masked(module, yosys, f"{memory.name!s} WR_DATA", data, enable)
    return found


def _masked(module: Any, yosys: Any, name: str, signal: Any, mask: Any) -> Any:
    wire = module.addWire(yosys.IdString(f"\\asked {name}".replace(" ", "/")), signal.size())
    module.addAnd(yosys.IdString(f"{wire.name!s}/and"), signal, mask, yosys.SigSpec(wire))
    return yosys.SigSpec(wire)


def output_of(register: Any) -> Any:
    """What a register drives."""
    return next(signal for port, signal in register.connections().items() if register.output(port))


def _work(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    run(f"read_rtlil {job['plain']}", f"copy {TOP} gold", f"rename {TOP} gate")
    run(job["command"].replace(f"-module {TOP} ", "-module gate "))
    for module in list(design.modules_.values()):
        cut(module, libyosys)
    run("setattr -unset init w:*")
    run("miter -equiv -flatten gold gate miter", "hierarchy -top miter", "opt_expr", "opt_merge -nomux", "opt -full",
        f"sat -timeout {job['seconds']} -prove trigger 0 miter")  # fmt: skip


if __name__ == "__main__":
    _work(json.loads(Path(sys.argv[1]).read_text()))
