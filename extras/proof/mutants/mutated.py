"""Mutation of a core: one netlist with many faults, of which an environment variable selects one.

Yosys' ``mutate`` changes one bit of one port of one cell: it inverts the bit, ties it, or makes it depend on another
bit. A shared number selects the mutation: 0 is the core as designed, ``k`` is mutant ``k``. So all mutants need one
build. First, the core is flattened, and unused logic is removed, like synthesis does.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.lib import wiring

from weft.hdl.cache import entry
from weft.hdl.errors import WeftError
from weft.hdl.verilog import drop_zero_init, run_yosys_task, yosys_message
from weft.sim.rtl.library import TOP

SELECTED = "WEFT_MUTANT"
"""Environment variable with the number of the mutant, which a model reads when it is opened."""
BITS = 16
"""Width of the number of a mutant."""
PLAIN, NETLIST, MUTANTS, SOURCES = "plain.il", f"{TOP}.v", "mutants.json", "core.il"
MODES = ("inv", "const0", "const1", "cnot0", "cnot1")
"""Yosys' modes: invert a bit, tie it to 0 or 1, or invert it where another bit of its port is 0 or 1."""
_PREPARE = (
    f"read_rtlil {SOURCES}", f"hierarchy -top {TOP}", "proc -norom", "pmuxtree", "memory_collect", "flatten",
    "opt -full", "wreduce", "opt -full", "opt_clean -purge", f"write_rtlil {PLAIN}",
)  # fmt: skip
_SELECT = (
    f"reg [{BITS - 1}:0] mutant;\n"
    f'  initial mutant = $c("static_cast<unsigned short>(std::atoi(std::getenv(\\"{SELECTED}\\")))");'
)


class MutationError(WeftError, RuntimeError):
    """An error of Yosys, or an invalid number of mutants."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    number : int
        Starts at 1.
    unit : str
        Path of the unit in the core, at most two names; ``core`` for logic between units.
    command : str
        Yosys' command that changes the flat core.
    """

    number: int
    unit: str
    command: str

    @property
    def pin(self) -> tuple[str, str, int]:
        """Cell, port and index of the changed bit."""
        words = self.command.split()
        options = dict(zip(words[1::2], words[2::2], strict=False))
        return options["-cell"], options["-port"], int(options["-portbit"])


@dataclass(frozen=True)
class MutatedCore:
    """Core with all its mutants.

    Attributes
    ----------
    verilog : str
        Verilog for `weft.sim.rtl.device.RtlDevice`.
    mutants : list of Mutant
    sizes : dict of str to int
        Number of bits of ports of cells, by unit.
    folder : Path
        Folder with `PLAIN`, the flat core without faults.
    """

    verilog: str
    mutants: list[Mutant]
    sizes: dict[str, int]
    folder: Path


def mutate_core(core: wiring.Component, count: int, seed: int) -> MutatedCore:
    """Add `count` mutants to `core`, distributed over units in proportion to their sizes. The result is cached.

    Raises `MutationError`.
    """
    if not 0 < count < 1 << BITS:
        raise MutationError(f"the number of mutants is from 1 to {(1 << BITS) - 1}, not {count}")
    source = drop_zero_init(rtlil.convert(core, name=TOP, emit_src=False))
    state = hashlib.sha256(f"{version('pyosys')} {count} {seed} {source}".encode())
    state.update(Path(__file__).read_bytes())

    def fill(folder: Path) -> None:
        (folder / SOURCES).write_text(source)
        run_yosys(_mutate, folder, {"count": count, "seed": seed})

    folder = entry(f"mutated-{state.hexdigest()[:24]}", fill)
    record = json.loads((folder / MUTANTS).read_text())
    verilog = (folder / NETLIST).read_text()
    return MutatedCore(verilog, [Mutant(**item) for item in record["mutants"]], record["sizes"], folder)


def run_yosys(task: Callable[[dict[str, Any]], None], folder: Path, job: dict[str, Any]) -> None:
    """Run a task in a subprocess, see `run_yosys_task`. Raises `MutationError` if it fails."""
    succeeded, output = run_yosys_task(task, folder, job)
    if not succeeded:
        raise MutationError(yosys_message(output))


def run_passes(design: Any, commands: Iterable[str]) -> None:
    """Run Yosys' commands on a design."""
    from pyosys import libyosys

    for command in commands:
        libyosys.run_pass(command, design)


@contextmanager
def select_mutant(number: int) -> Iterator[None]:
    """Select mutant `number` for devices that are opened inside the context; 0 is the core as designed."""
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
    """Return the unit of a wire or a cell of the flat core by its name; empty for the core itself.

    `units` are paths of the hierarchy. The result has at most two names.
    """
    path = name.replace("$flatten", "", 1).replace("\\", "")
    while path and path not in units:
        path = path.rpartition(".")[0]
    return ".".join(re.sub(r"\$\d+$", "", part) for part in path.split(".")[:2])


def apportion(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Divide `count` in proportion to `sizes`, by the method of largest remainders."""
    total = sum(sizes.values())
    exact = {unit: count * size / total for unit, size in sizes.items()}
    shares = {unit: int(share) for unit, share in exact.items()}
    by_remainder = sorted(exact, key=lambda unit: (shares[unit] - exact[unit], unit))
    for unit in by_remainder[: count - sum(shares.values())]:
        shares[unit] += 1
    return shares


def _find_places(module: Any, units: set[str]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield, for each cell, its unit, the bits of its ports, and the places to mutate.

    A place is Yosys' options for a bit of a port, and for another bit of that port if there is one.
    """
    for cell in module.cells_.values():
        name, size, wires, places = str(cell.name), 0, [], []
        for port, signal in cell.connections().items():
            bits, label = signal.to_sigbit_vector(), str(port).lstrip("\\")
            size += len(bits)
            if cell.output(port):
                wires += [str(bit.wire.name) for bit in bits if bit.is_wire()]
            if "CLK" not in label:
                places += [
                    f"-cell {name} -port {label} -portbit {index} -ctrlbit {(index + 1) % len(bits)}"
                    for index, bit in enumerate(bits)
                    if bit.is_wire()
                ]
        # Names of wires are better than the cell's: optimisation creates cells with new names.
        names = (unit_of(item, units) for item in [*wires, name])
        yield next(filter(None, names), "core"), size, places


def _mutate(job: dict[str, Any]) -> None:
    """Write the files of a `MutatedCore` to the working folder."""
    from pyosys import libyosys

    from weft.hdl.isa.encoding import widen

    design = libyosys.Design()
    run_passes(design, _PREPARE[:2])
    units = {str(name).removeprefix(f"\\{TOP}.") for name in design.modules_}
    run_passes(design, _PREPARE[2:])
    module = design.top_module()
    sizes: dict[str, int] = collections.Counter()
    places: dict[str, list[str]] = collections.defaultdict(list)
    for unit, bits, cell_places in _find_places(module, units):
        sizes[unit] += bits
        places[unit] += cell_places
    mutants = list(_draw_mutants(places, apportion(sizes, job["count"]), random.Random(job["seed"])))
    selector = f"mutate -ctrl mutant {BITS}"
    run_passes(design, (item.command.replace("mutate", f"{selector} {item.number}", 1) for item in mutants))
    next(wire for name, wire in module.wires_.items() if str(name) == "\\mutant").port_input = False
    module.fixup_ports()
    widen(design, libyosys)
    run_passes(design, ["write_verilog -norename -noattr mutated.v"])
    # Verilator tracks dependencies of whole words, and so warns of loops that no bit has.
    text = "/* verilator lint_off UNOPTFLAT */\n" + Path("mutated.v").read_text()
    Path(NETLIST).write_text(text.replace(f"wire [{BITS - 1}:0] mutant;", _SELECT, 1))
    record = {"sizes": dict(sorted(sizes.items())), "mutants": [asdict(mutant) for mutant in mutants]}
    Path(MUTANTS).write_text(json.dumps(record, indent=0))
    for name in ("mutated.v", SOURCES):
        Path(name).unlink()


def _draw_mutants(
    places: dict[str, list[str]], counts: dict[str, int], rng: random.Random
) -> Iterator[Mutant]:
    """Draw different mutants, `counts` of each unit, or as many as it has places."""
    number = 0
    for unit, count in sorted(counts.items()):
        commands: set[str] = set()
        while len(commands) < min(count, len(places[unit])):
            full_place, mode = rng.choice(places[unit]), rng.choice(MODES)
            place, _, other = full_place.partition(" -ctrlbit ")
            if mode.startswith("cnot"):
                if place.endswith(f" -portbit {other}"):  # a port of one bit
                    continue
                place = full_place
            commands.add(f"mutate -mode {mode} -module {TOP} {place}")
        for command in sorted(commands):
            number += 1
            yield Mutant(number, unit, command)
