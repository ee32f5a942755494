"""Conversion of Amaranth components to Verilog with the Yosys library `pyosys`."""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Elaboratable, Fragment, Module, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.cache import entry
from weft.hdl.control.control import AXI_LITE
from weft.hdl.errors import PrefixError, YosysError
from weft.hdl.isa import BASES, WORD_BYTES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, SIZE, VERSION, Counter, Reg, Status, base_register, counter_register
from weft.hdl.naming import name_wires

# Runs in a child process because the library logs to the C stdout and aborts the process on an error.
_SCRIPT = """
import sys
from pyosys import libyosys
from weft.hdl.isa.encoding import widen
design = libyosys.Design()
for command in sys.argv[1:]:
    if command == "widen":
        widen(design, libyosys)
    else:
        libyosys.run_pass(command, design)
"""


# Initialisers of all-zero memories. The hardware does not rely on them, and they would be most of the Verilog file.
_ZERO_INIT = re.compile(
    r"  cell \$meminit_v2 [^\n]*\n(?:    (?!connect \\DATA)[^\n]*\n)*    connect \\DATA \d+'0+\n"
    r"(?:    [^\n]*\n)*  end\n"
)


_COMMENT_WIDTH = 100
_JOB = "job.json"
MAX_PREFIX = 64
"""Length of the longest prefix for module names. Tools limit identifiers to 1024 characters or more."""


def yosys_command(*commands: str) -> list[str]:
    """Return the command line that runs Yosys commands in order; ``widen`` runs `weft.hdl.isa.encoding.widen`."""
    return [sys.executable, "-c", _SCRIPT, *commands]


def run_yosys(*commands: str, cwd: Path) -> str:
    """Run Yosys commands as `yosys_command` does, in folder `cwd`, and return the log. Raises `YosysError`."""
    process = subprocess.run(yosys_command(*commands), cwd=cwd, capture_output=True, text=True, check=False)
    if process.returncode:
        raise YosysError(yosys_message(process.stdout + process.stderr))
    return process.stdout


def run_yosys_task(
    task: Callable[[dict[str, Any]], None], folder: Path, job: dict[str, Any]
) -> tuple[bool, str]:
    """Call `task`, a function of a module, with `job`, a JSON value, in a subprocess with working folder `folder`.

    Returns
    -------
    succeeded : bool
        True if the exit code is 0 and Yosys reported no error.
    output : str
        Standard output and standard error.
    """
    (folder / _JOB).write_text(json.dumps(job))
    call = (
        f"import json, pathlib; from {task.__module__} import {task.__name__} as task; "
        f"task(json.loads(pathlib.Path({_JOB!r}).read_text()))"
    )
    process = subprocess.run(
        [sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False
    )
    output = process.stdout + process.stderr
    return not process.returncode and "ERROR:" not in output, output


def yosys_message(output: str) -> str:
    """Return an error message with the last lines of Yosys' output."""
    return "yosys failed: " + "\n".join([line for line in output.splitlines() if line.strip()][-8:])


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    # A netlist is millions of live objects: collections would take longer than building it.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def drop_zero_init(text: str) -> str:
    """Remove the initialisers of all-zero memories from RTLIL; their contents are then undefined at power-up."""
    return _ZERO_INIT.sub("", text)


class _Recorded(Elaboratable):
    """A component that keeps its elaborated fragment, which lists its submodules."""

    def __init__(self, component: wiring.Component) -> None:
        self._component = component
        self.fragment: Fragment | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)

    def elaborate(self, platform: object) -> Fragment:
        self.fragment = Fragment.get(self._component, platform)
        return self.fragment


def _units(fragment: Fragment, path: str) -> Iterator[tuple[str, Elaboratable]]:
    """Yield each module's name, and the object that it was elaborated from."""
    units = [unit for unit in fragment.origins or () if not isinstance(unit, Module)]
    if units:
        yield path, units[-1]
    for submodule, name, _ in fragment.subfragments:
        if name is not None:
            yield from _units(submodule, f"{path}.{name}")


def _members(unit: Elaboratable) -> set[str]:
    if not isinstance(unit, wiring.Component):
        return set()
    return {"__".join(map(str, path)) for path, _, _ in unit.signature.flatten(unit)}


def convert_named(component: wiring.Component, *, name: str) -> tuple[str, dict[str, Elaboratable]]:
    """Convert `component` and its submodules to RTLIL with the names that `generate` gives.

    Returns the RTLIL, and by module name the objects that the modules were elaborated from.
    """
    with _pause_garbage_collection():
        recorded = _Recorded(component)
        text = drop_zero_init(rtlil.convert(recorded, name=name, emit_src=False))
        assert recorded.fragment is not None
        units = dict(_units(recorded.fragment, name))
        return name_wires(text, {path: _members(unit) for path, unit in units.items()}), units


def _add_comments(verilog: str, units: Mapping[str, Elaboratable]) -> str:
    """Write above each module its path, its class, and the first paragraph of the class's docstring."""

    def add(match: re.Match[str]) -> str:
        unit = units.get(match[1])
        if unit is None:
            return match[0]
        summary = (inspect.getdoc(type(unit)) or "").partition("\n\n")[0].replace("`", "")
        text = f"{match[1]} ({type(unit).__name__}): {summary}"
        lines = textwrap.wrap(text, _COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False)
        return "".join(f"// {line}\n" for line in lines) + match[0]

    return re.sub(r"^module \\?([^\s(]+)", add, verilog, flags=re.M)


def generate(component: wiring.Component, *, name: str, comments: bool = False) -> str:
    """Convert `component` and its submodules to Verilog-2005 text with the top module `name`.

    Ports have the flattened member names of the component's signature; ``clk`` and ``rst`` are added. The name of a
    submodule's module is its path, as in ``weft.load.splitter``. Wires have the names of signals
    (`weft.hdl.naming.name_wires`), except for intermediate results of expressions: ``$`` and a number, ``$procmux`` or
    ``$auto``, and ``_0_`` for registers inside memories. With `comments`, one above each module says what it is.
    """
    text, units = convert_named(component, name=name)
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder)
        (path / "design.il").write_text(text)
        # `pmuxtree` because linters report case statements as incomplete or overlapping where the netlist is neither.
        run_yosys(
            "read_rtlil design.il",
            "proc -norom",
            "pmuxtree",
            "memory_collect",
            "widen",
            "write_verilog -norename -noattr design.v",
            cwd=path,
        )
        body = (path / "design.v").read_text()
    # Yosys' own first line has its version.
    body = "\n".join(body.splitlines()[1:]) + "\n"
    return "/* Generated by weft. */\n" + (_add_comments(body, units) if comments else body)


def check_prefix(prefix: str) -> None:
    """Raise `PrefixError` if `prefix` cannot begin the names of Verilog modules."""
    if not isinstance(prefix, str):
        raise PrefixError(f"a prefix of module names is a str, not {type(prefix).__name__}")
    if len(prefix) > MAX_PREFIX:
        raise PrefixError(
            f"the prefix {prefix[:20]!r}... of module names has {len(prefix):,} characters: use at most {MAX_PREFIX}"
        )
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", prefix):
        raise PrefixError(
            f"the prefix {prefix!r} cannot begin a Verilog identifier: use letters, digits and underscores, "
            "with no digit at the start"
        )


def generate_cached(
    make: Callable[[], wiring.Component],
    *,
    name: str,
    of: str,
    sources: Iterable[Path] = (),
    comments: bool = False,
) -> Path:
    """Return the path of a component's Verilog file, generating it unless the cache has it.

    Parameters
    ----------
    make : callable
        Returns the component; called only if the cache has no file.
    name : str
        Name of the top module.
    of : str
        Everything that the component depends on, except for the sources of this package and the files `sources`.
    comments : bool
        See `generate`.

    Raises
    ------
    weft.hdl.errors.CacheError
        If the cache cannot be used.
    """
    digest = hashlib.sha256(f"{version('amaranth')} {version('pyosys')} {name} {comments} {of}".encode())
    package = Path(__file__).parent
    for source in (*sorted(package.rglob("*.py")), *sources):
        digest.update(source.read_bytes())

    def fill(folder: Path) -> None:
        (folder / f"{name}.v").write_text(generate(make(), name=name, comments=comments))

    return entry(f"verilog-{digest.hexdigest()[:24]}", fill) / f"{name}.v"


def describe(config: Config, module: str) -> dict[str, Any]:
    """Return a machine-readable description of the core of `config`, whose top module is `module`.

    ``module`` : name of the top module.
    ``parameters`` : fields of `Config`.
    ``ports`` : name, direction seen from the core, and width in bits, in the order of the Verilog module.
    ``window`` : size of the register window in bytes.
    ``registers`` : name, byte address, access ("r" or "rw"), and the value of constant registers.
    ``status`` : bit numbers of the status register.
    ``counters`` : byte address of each counter's low word; the high word follows it.
    ``instruction_bytes`` : size of an instruction word in bytes.
    """
    return {
        "module": module,
        "parameters": config.to_dict(),
        "ports": _ports(config),
        "window": SIZE,
        "registers": _registers(config),
        "status": {flag.name.lower(): flag.value.bit_length() - 1 for flag in Status if flag.name},
        "counters": {counter.name.lower(): counter_register(counter) for counter in Counter},
        "instruction_bytes": WORD_BYTES,
    }


def _ports(config: Config) -> list[dict[str, Any]]:
    # Built from the signatures because Amaranth warns about a `Core` that is never elaborated.
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
    constants = {Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: config.digest}
    registers: list[dict[str, Any]] = [
        {"name": register.name.lower(), "address": int(register), "access": "r", "value": value}
        for register, value in constants.items()
    ]
    writable = (Reg.CONTROL, Reg.PROGRAM, Reg.WATCHDOG, *((Reg.LIST,) if config.descriptors else ()))
    for register in Reg:
        if register in constants or register in (Reg.BASE, Reg.COUNTER):
            continue
        access = "rw" if register in writable else "r"
        registers.append({"name": register.name.lower(), "address": int(register), "access": access})
    for index in range(BASES):
        registers.append({"name": f"base{index}", "address": base_register(index), "access": "rw"})
    return registers
