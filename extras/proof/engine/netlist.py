"""Bench of a property as a flat netlist, for Yosys' SAT solver, and as an and-inverter graph for ABC."""

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
from weft.hdl.verilog import drop_zero_init, run_yosys_task, yosys_message

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
    "setundef -anyseq",  # bits that optimisation made undefined
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
        By input, the path of the signal inside the bench that it is connected to.
    outputs : tuple of str
        Outputs of the unit, including those that the bench does not use.
    """

    text: str
    peeks: dict[str, str]
    outputs: tuple[str, ...]


def source(bench: Bench, *, covering: bool = False) -> Source:
    """Elaborate a new bench. With `covering`, its outputs are its covers, and it claims nothing."""
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


def logic(source: Source) -> str:
    """Return the cells of the unit and their connections, which are equal for benches that share mutants.

    The result has no wires and no order of connections, because these depend on the bench.
    """
    modules = re.findall(
        rf"^module \\{TOP}\.{Bench.DUT}(?:\.\S+)?$.*?^end$", source.text, re.MULTILINE | re.DOTALL
    )
    return "\n".join(line for module in modules for line in _logic_lines(module.splitlines()))


def _logic_lines(lines: list[str]) -> list[str]:
    """Return the lines of a module without its wires and the numbers of unnamed signals.

    The lines of a cell are sorted, and the module's own connections, which are not indented, come last.
    """
    result: list[str] = []
    cell: list[str] | None = None
    for line in (re.sub(r"\\port\$\d+", r"\\port", line) for line in lines if line):
        if line.startswith("  cell "):
            result.append(line)
            cell = []
        elif cell is not None and line == "  end":
            result += [*sorted(cell), line]
            cell = None
        elif cell is not None:
            cell.append(line)
        elif not line.startswith(("  wire ", "  attribute ")):
            result.append(line)
    return sorted(result, key=lambda line: line if line.startswith("connect ") else "")


def prepare(source: Source, folder: Path, mutation: str | None = None) -> None:
    """Write `FLAT` and `AIG` into `folder`, after `mutation`, a command of Yosys, if there is one.

    Raises `NetlistError`.
    """
    (folder / "bench.il").write_text(source.text)
    _run(folder, {"peeks": source.peeks, "mutation": mutation})


def mutations(source: Source, folder: Path, count: int, seed: int, but: Iterable[str] = ()) -> list[str]:
    """Return commands of Yosys, each of which changes one bit inside the unit: invert it, tie it, or combine it with
    another.

    Submodules in `but` are not changed.
    """
    (folder / "bench.il").write_text(source.text)
    _run(folder, {"peeks": {}, "mutations": count, "seed": seed, "but": list(but)})
    lines = (folder / "mutations.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("mutate ")]


def changes_nothing(source: Source, folder: Path, mutation: str) -> bool:
    """Return whether the unit after `mutation` is proven equivalent.

    With equal contents of registers and equal inputs, all outputs and all next contents must be equal, even if the
    bench does not use them. Registers without readers are ignored, unless the bench reads them, and so are clocks,
    because a bench has one. False also means that no proof was found.
    """
    (folder / "bench.il").write_text(source.text)
    observed = [path.removeprefix(f"{Bench.DUT}.") for path in source.peeks.values()]
    _run(folder, {"peeks": {}, "same_after": mutation, "kept": [*source.outputs, *observed]})
    return "Equivalence successfully proven!" in (folder / LOG).read_text()


def _run(folder: Path, job: dict[str, Any]) -> None:
    succeeded, output = run_yosys_task(_run_job, folder, job)
    with (folder / LOG).open("a") as log:
        log.write(output)
    if not succeeded:
        raise NetlistError(yosys_message(output))


def _modules(design: Any, paths: Iterable[str]) -> list[str]:
    """Return the modules of the unit's submodules at `paths`, whatever numbers Amaranth appended to their names."""
    modules = {re.sub(r"\$\d+", "", str(name)[1:]): str(name)[1:] for name in design.modules_}
    wanted = [f"{TOP}.{Bench.DUT}.{path}" for path in paths]
    if missing := [name for name in wanted if name not in modules]:
        raise SystemExit(f"ERROR: there is no module {', '.join(missing)}; there are {', '.join(modules)}")
    return [modules[name] for name in wanted]


def _connect(design: Any, path: str, port: str) -> None:
    """Connect the input `port` to the signal at `path`."""
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


def _remove_unread(design: Any, kept: Iterable[str]) -> None:
    """Remove bits without readers, except for the signals in `kept` and their drivers."""
    from pyosys import libyosys

    inside = {str(name)[1:]: wire for name, wire in design.top_module().wires_.items()}
    for path in kept:
        if wire := inside.get(path):
            wire.set_bool_attribute(libyosys.IdString("\\keep"), True)
    for command in ("splitcells", "opt_clean -purge"):
        libyosys.run_pass(command, design)


def _run_job(job: dict[str, Any]) -> None:
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
        _remove_unread(design, job["kept"])
        run("design -stash gold", "design -load before", job["same_after"], *whole)
        _remove_unread(design, job["kept"])
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
