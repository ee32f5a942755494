"""A property's bench as a flat netlist, for Yosys' SAT solver and as an and-inverter graph for ABC."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Const, Fragment, Value
from amaranth.lib.wiring import Out

from weft.extras.proof.engine.names import Names, NetlistError
from weft.extras.proof.hardware.property import Bench
from weft.hdl.verilog import drop_zero_init
from weft.sim.yosys_process import error_message, run_task

TOP = "top"
FLAT, AIG, MAP, LOG = "flat.il", "flat.aig", "flat.map", "log.txt"
_PREPARE = (
    "chformal -lower",
    "async2sync",
    "setundef -undriven -anyseq",
    "opt_expr",
    "opt_merge",
    "opt_clean",
    "dffunmap",
    "setundef -anyseq",  # what optimisation found to be of no matter
    "opt_clean",
    f"write_rtlil {FLAT}",
    "techmap",
    "simplemap",
    "aigmap",
    "opt_clean",
    f"write_aiger -zinit -map {MAP} {AIG}",
)


@dataclass(frozen=True)
class Source:
    """A bench as RTLIL.

    Attributes
    ----------
    text : str
    peeks : dict
        For inputs that stand for signals inside of the bench, these.
    outputs : tuple of str
        The unit's, also those that the bench does not look at.
    """

    text: str
    peeks: dict[str, str]
    outputs: tuple[str, ...]


def source(bench: Bench, *, covering: bool = False) -> Source:
    """Elaborate a bench that was not elaborated before; with `covering` its outputs are its covers, and it claims
    nothing."""
    bench.covering = covering
    fragment = Fragment.get(bench, None)
    outputs = bench.covers.values() if covering else ()
    design = fragment.prepare(ports=[*bench.inputs, *outputs], hierarchy=(TOP,))
    names = Names(design, bench.DUT)
    text, _ = rtlil.convert_fragment(design, name=TOP, emit_src=False)
    dut = bench.dut
    return Source(
        drop_zero_init(text),
        {signal.name: names.wire(path) for path, signal in bench.peeks.items()},
        tuple(
            Value.cast(value).name
            for _path, member, value in dut.signature.flatten(dut)
            if member.flow is Out and not isinstance(value, Const)  # as the ready of a stream that always is
        ),
    )


def logic(found: Source) -> str:
    """The cells of the unit and how they are connected: two benches with the same can be given the same mutations.

    Wires are left out, and the order of connections, as both differ by what a bench looks at.
    """
    modules = re.findall(
        rf"^module \\{TOP}\.{Bench.DUT}(?:\.\S+)?$.*?^end$", found.text, re.MULTILINE | re.DOTALL
    )
    return "\n".join(line for module in modules for line in _logic_of(module.splitlines()))


def _logic_of(lines: list[str]) -> list[str]:
    """The lines of a module but its wires, without the numbers of what has no name; those of a cell are sorted, and a
    stable sort puts the module's own connections, which are not indented, last."""
    found: list[str] = []
    cell: list[str] | None = None
    for line in (re.sub(r"\\port\$\d+", r"\\port", line) for line in lines if line):
        if line.startswith("  cell "):
            found.append(line)
            cell = []
        elif cell is not None and line == "  end":
            found += [*sorted(cell), line]
            cell = None
        elif cell is not None:
            cell.append(line)
        elif not line.startswith(("  wire ", "  attribute ")):
            found.append(line)
    return sorted(found, key=lambda line: line if line.startswith("connect ") else "")


def prepare(found: Source, folder: Path, mutation: str | None = None) -> None:
    """Write `FLAT` and `AIG` into `folder`, perhaps after a `mutation`, a command of Yosys.

    Raises `NetlistError`.
    """
    (folder / "bench.il").write_text(found.text)
    _run(folder, {"peeks": found.peeks, "mutation": mutation})


def mutations(found: Source, folder: Path, count: int, seed: int, but: Iterable[str] = ()) -> list[str]:
    """Commands of Yosys, each of which changes one bit inside the unit: inverts it, ties it, or makes it depend on
    another. Submodules that `but` names are left out."""
    (folder / "bench.il").write_text(found.text)
    _run(folder, {"peeks": {}, "mutations": count, "seed": seed, "but": list(but)})
    lines = (folder / "mutations.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("mutate ")]


def changes_nothing(found: Source, folder: Path, mutation: str) -> bool:
    """Whether the unit after `mutation` is proven to compute the same: with the same in all registers and at the inputs
    all that comes out of the unit and goes into registers is the same, also where the bench does not look at it.
    Registers that nothing reads do not count, unless the bench does, nor do clocks, as a bench has one.

    False where no proof is found, too.
    """
    (folder / "bench.il").write_text(found.text)
    looked_at = [path.removeprefix(f"{Bench.DUT}.") for path in found.peeks.values()]
    _run(folder, {"peeks": {}, "same_after": mutation, "kept": [*found.outputs, *looked_at]})
    return "Equivalence successfully proven!" in (folder / LOG).read_text()


def _run(folder: Path, job: dict[str, Any]) -> None:
    well, said = run_task(_work, folder, job)
    with (folder / LOG).open("a") as log:
        log.write(said)
    if not well:
        raise NetlistError(error_message(said))


def _modules(design: Any, paths: Iterable[str]) -> list[str]:
    """Return the modules of the unit's submodules at `paths`, whatever numbers Amaranth appended to their names."""
    modules = {re.sub(r"\$\d+", "", str(name)[1:]): str(name)[1:] for name in design.modules_}
    wanted = [f"{TOP}.{Bench.DUT}.{path}" for path in paths]
    if missing := [name for name in wanted if name not in modules]:
        raise SystemExit(f"ERROR: there is no module {', '.join(missing)}; there are {', '.join(modules)}")
    return [modules[name] for name in wanted]


def _connect(design: Any, path: str, port: str) -> None:
    """Let the input `port` be the signal at `path`."""
    module = design.top_module()
    inside = {str(name)[1:]: wire for name, wire in module.wires_.items()}
    if path not in inside:
        raise SystemExit(f"ERROR: the flat netlist has no signal {path!r}")
    wire, signal = inside[port], inside[path]
    if wire.width != signal.width:
        raise SystemExit(f"ERROR: {path} has {signal.width} bits, not {wire.width}")
    wire.port_input = False
    module.fixup_ports()
    from pyosys import libyosys

    module.connect(libyosys.SigSpec(wire), libyosys.SigSpec(signal))


def _without_unread(design: Any, kept: Iterable[str]) -> None:
    """Leave out what nothing reads, bit by bit, but the signals that are `kept`, and what they depend on."""
    from pyosys import libyosys

    inside = {str(name)[1:]: wire for name, wire in design.top_module().wires_.items()}
    for path in kept:
        if wire := inside.get(path):
            wire.set_bool_attribute(libyosys.IdString("\\keep"), True)
    for command in ("splitcells", "opt_clean -purge"):
        libyosys.run_pass(command, design)


def _work(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    run("read_rtlil bench.il", f"hierarchy -top {TOP}", "proc")
    unit = f"{TOP}.{Bench.DUT} {TOP}.{Bench.DUT}.* %u"
    if "mutations" in job:
        for module in _modules(design, job["but"]):
            unit = f"{unit} {module} %d {module}.* %d"
        run(f"mutate -list {job['mutations']} -seed {job['seed']} -o mutations.txt {unit}")
        return
    if "same_after" in job:
        whole = ("flatten", "memory_map", "async2sync")
        gold, gate = f"{TOP}.{Bench.DUT}", "gate"
        run(f"hierarchy -top {gold}", "design -save before", *whole)
        _without_unread(design, job["kept"])
        run("design -stash gold", "design -load before", job["same_after"], *whole)
        _without_unread(design, job["kept"])
        run(f"rename {gold} {gate}")
        run(
            f"design -copy-from gold -as gold {gold}", f"equiv_make gold {gate} equiv", "hierarchy -top equiv"
        )
        run("equiv_simple", "equiv_induct -seq 1", "equiv_status")
        return
    if job["mutation"]:
        run(job["mutation"])
    run("flatten", "memory_map")
    for port, path in job["peeks"].items():
        _connect(design, path, port)
    run(*_PREPARE)
