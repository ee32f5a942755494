"""A core with many faults, of which the environment chooses one: one netlist, and one build, for all mutants.

Yosys' ``mutate`` changes one bit of one port of one cell: inverts it, ties it, or makes it depend on another bit. Each
mutation depends on one number that all share, so that the core is as it was designed where the number is 0, and mutant
``k`` where it is ``k``. Before that, the core is made flat, and logic that does nothing is removed, as synthesis does.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.lib import wiring

from weft.hdl.cache import entry
from weft.hdl.errors import WeftError
from weft.hdl.verilog import drop_zero_init
from weft.sim.rtl.device import TOP
from weft.sim.yosys_process import error_message, run_task

SELECTED = "WEFT_MUTANT"
"""The environment variable with the number of the mutant that a model is, read when the model is opened."""
BITS = 16
PLAIN, NETLIST, MUTANTS, SOURCES = "plain.il", f"{TOP}.v", "mutants.json", "core.il"
MODES = ("inv", "const0", "const1", "cnot0", "cnot1")
"""A bit is inverted, tied, or inverted where another bit of the same port is 0 or 1."""
_PREPARE = (
    f"read_rtlil {SOURCES}", f"hierarchy -top {TOP}", "proc -norom", "pmuxtree", "memory_collect", "flatten",
    "opt -full", "wreduce", "opt -full", "opt_clean -purge", f"write_rtlil {PLAIN}",
)  # fmt: skip
_SELECT = (
    f"reg [{BITS - 1}:0] mutant;\n"
    f'  initial mutant = $c("static_cast<unsigned short>(std::atoi(std::getenv(\\"{SELECTED}\\")))");'
)


class MutationError(WeftError, RuntimeError):
    """Yosys refuses the core, or their number is wrong."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    number : int
        From 1 on.
    unit : str
        Path of the unit in the core, at most two names; ``core`` for what wires units together.
    command : str
        Yosys' command that makes it, of the flat core.
    """

    number: int
    unit: str
    command: str

    @property
    def pin(self) -> tuple[str, str, int]:
        """The cell, its port, and the bit of that which is changed."""
        words = self.command.split()
        options = dict(zip(words[1::2], words[2::2], strict=False))
        return options["-cell"], options["-port"], int(options["-portbit"])


@dataclass(frozen=True)
class Mutated:
    """A core with all its mutants.

    Attributes
    ----------
    verilog : str
        For `weft.sim.rtl.device.RtlDevice`.
    mutants : list of Mutant
    sizes : dict
        By unit the number of bits of ports of its cells.
    folder : Path
        With `PLAIN`, the flat core without faults.
    """

    verilog: str
    mutants: list[Mutant]
    sizes: dict[str, int]
    folder: Path


def mutated(core: wiring.Component, count: int, seed: int) -> Mutated:
    """`core` with `count` mutants, each unit with as many as its size is of the whole.

    Raises `MutationError`.
    """
    if not 0 < count < 1 << BITS:
        raise MutationError(f"the number of mutants is from 1 to {(1 << BITS) - 1}, not {count}")
    source = drop_zero_init(rtlil.convert(core, name=TOP, emit_src=False))
    found = hashlib.sha256(f"{version('pyosys')} {count} {seed} {source}".encode())
    found.update(Path(__file__).read_bytes())

    def fill(folder: Path) -> None:
        (folder / SOURCES).write_text(source)
        _run(folder, {"count": count, "seed": seed})

    folder = entry(f"mutated-{found.hexdigest()[:24]}", fill)
    told = json.loads((folder / MUTANTS).read_text())
    verilog = (folder / NETLIST).read_text()
    return Mutated(verilog, [Mutant(**item) for item in told["mutants"]], told["sizes"], folder)


@contextmanager
def chosen(number: int) -> Iterator[None]:
    """Devices that are opened meanwhile are mutant `number`, or for 0 the core as it was designed."""
    before = os.environ.get(SELECTED)
    os.environ[SELECTED] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SELECTED]
        else:
            os.environ[SELECTED] = before


def unit_of(name: str, units: set[str]) -> str:
    """Which of `units`, paths of the hierarchy, a wire or a cell of the flat core belongs to by its name, cut to two
    names; empty for the core itself."""
    path = name.replace("$flatten", "", 1).replace("\\", "")
    while path and path not in units:
        path = path.rpartition(".")[0]
    return ".".join(re.sub(r"\$\d+$", "", part) for part in path.split(".")[:2])


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """`count` divided in proportion to `sizes`, by the largest remainders."""
    total = sum(sizes.values())
    exact = {unit: count * size / total for unit, size in sizes.items()}
    found = {unit: int(share) for unit, share in exact.items()}
    rest = sorted(exact, key=lambda unit: (found[unit] - exact[unit], unit))
    for unit in rest[: count - sum(found.values())]:
        found[unit] += 1
    return found


def _run(folder: Path, job: dict[str, Any]) -> None:
    well, said = run_task(_work, folder, job)
    if not well:
        raise MutationError(error_message(said))


def _places(module: Any, within: set[str]) -> Iterator[tuple[str, int, list[str]]]:
    """Of each cell its unit, the bits of its ports, and where it can be changed: Yosys' options that name a bit of a
    port, and another of the same port, if it has one."""
    for cell in module.cells_.values():
        name, size, wires, places = str(cell.name), 0, [], []
        for port, signal in cell.connections().items():
            bits, label = signal.to_sigbit_vector(), str(port).lstrip("\\")
            size += len(bits)
            if cell.output(port):
                wires += [str(bit.wire.name) for bit in bits if bit.is_wire()]
            if "CLK" not in label:
                places += [f"-cell {name} -port {label} -portbit {index} -ctrlbit {(index + 1) % len(bits)}"
                           for index, bit in enumerate(bits) if bit.is_wire()]  # fmt: skip
        # The name of what it drives tells more than its own: optimisation makes new cells.
        units = (unit_of(found, within) for found in [*wires, name])
        yield next(filter(None, units), "core"), size, places


def _work(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    from weft.hdl.isa.encoding import widen

    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    run(*_PREPARE[:2])
    within = {str(name).removeprefix(f"\\{TOP}.") for name in design.modules_}
    run(*_PREPARE[2:])
    module = design.top_module()
    sizes: dict[str, int] = collections.Counter()
    places: dict[str, list[str]] = collections.defaultdict(list)
    for unit, bits, found in _places(module, within):
        sizes[unit] += bits
        places[unit] += found
    mutants = list(_drawn(places, shares(sizes, job["count"]), random.Random(job["seed"])))
    for mutant in mutants:
        run(mutant.command.replace("mutate", f"mutate -ctrl mutant {BITS} {mutant.number}", 1))
    next(wire for name, wire in module.wires_.items() if str(name) == "\\mutant").port_input = False
    module.fixup_ports()
    widen(design, libyosys)
    run("write_verilog -norename -noattr mutated.v")
    # What bits of a word depend on is looked at together, which makes loops of bits that are none.
    text = "/* verilator lint_off UNOPTFLAT */\n" + Path("mutated.v").read_text()
    Path(NETLIST).write_text(text.replace(f"wire [{BITS - 1}:0] mutant;", _SELECT, 1))
    told = {"sizes": dict(sorted(sizes.items())), "mutants": [asdict(mutant) for mutant in mutants]}
    Path(MUTANTS).write_text(json.dumps(told, indent=0))
    for name in ("mutated.v", SOURCES):
        Path(name).unlink()


def _drawn(places: dict[str, list[str]], wanted: dict[str, int], pick: random.Random) -> Iterator[Mutant]:
    """As many mutants of each unit as are wanted, no two the same."""
    number = 0
    for unit, share in sorted(wanted.items()):
        commands: set[str] = set()
        while len(commands) < min(share, len(places[unit])):
            where, mode = pick.choice(places[unit]), pick.choice(MODES)
            place, _, other = where.partition(" -ctrlbit ")
            if mode.startswith("cnot"):
                if place.endswith(f" -portbit {other}"):  # a port of one bit
                    continue
                place = where
            commands.add(f"mutate -mode {mode} -module {TOP} {place}")
        for command in sorted(commands):
            number += 1
            yield Mutant(number, unit, command)
