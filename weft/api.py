"""The Python API: compile a model, run it on a device, look at what it cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.artefact import Compiled
from weft.compiler.artefact import load as load_compiled
from weft.compiler.artefact_verify import verify
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.conv_plan import Chooser, plan
from weft.compiler.frontend import import_model
from weft.compiler.host import from_buffer, run_host, to_buffer
from weft.compiler.ir import CompileError, DeviceSegment, HostSegment
from weft.hdl.config import Config
from weft.hdl.memmap import Counter
from weft.hdl.program import ProgramError
from weft.hdl.program import check as check_program
from weft.hdl.schema import printable
from weft.runtime import Image

if TYPE_CHECKING:
    import onnx

    from weft.sim.device import Device
    from weft.sim.waves import Waves


class InputError(ValueError):
    """Inputs that do not fit the model; one sentence with name, value and what is expected."""


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes
    ----------
    outputs : dict of str to ndarray
        The model's outputs by name; empty from a device that computes nothing ("timing").
    report : dict
        ``cycles``, ``macs``, ``utilization`` (useful MACs over N * N * cycles), ``dram_bytes``, and the same with
        ``name`` and ``bound`` for every operator under ``layers``; cycles are None on a device without time.
    memory : bytes
        The whole DRAM after the run, one device program after the other; empty like the outputs.
    """

    outputs: dict[str, np.ndarray]
    report: dict[str, Any]
    memory: bytes


class Program:
    """A compiled model. Made by `compile` or `load`."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    @property
    def config(self) -> Config:
        return self._compiled.config

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Input names with (dtype name, shape)."""
        return self._compiled.inputs

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._compiled.outputs

    @property
    def segments(self) -> tuple[DeviceProgram | HostSegment, ...]:
        return self._compiled.segments

    def save(self, folder: str | Path) -> None:
        """Write the program to a folder, which is created if it is missing."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._compiled.save(Path(folder))

    def disassemble(self) -> str:
        """All device programs as assembly text."""
        from weft.hdl.asm import disassemble

        parts = []
        for segment in self.segments:
            if isinstance(segment, DeviceProgram):
                parts.append(f"; {printable(segment.name)}: {len(segment.instructions)} instructions\n")
                parts.append(disassemble(segment.instructions))
        return "".join(part if part.endswith("\n") else part + "\n" for part in parts)

    def run(
        self,
        inputs: dict[str, np.ndarray],
        on: str | Device = "golden",
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        stalls: int | None = None,
        trace: str | Path | Waves | None = None,
        memory: bool = True,
    ) -> Result:
        """Run the model.

        Parameters
        ----------
        inputs : dict of str to ndarray
            One array for each of `self.inputs`, of exactly that dtype and shape.
        on : "golden", "rtl", "timing" or Device
            Where device programs run. A device must be built for this program's configuration. "timing" tells how long
            they take on the RTL, and computes nothing: there are no outputs, and what would follow on the host is left
            out.
        latency, bandwidth : int, float
            Of the simulated memory (rtl, timing): cycles, and bytes a cycle (the bus width if None).
        stalls : int
            Seed of random pauses on every bus channel (rtl); None for none.
        trace : path or Waves
            File for waveforms of the last device program (rtl): FST if it ends so, else VCD.
        memory : bool
            Keep what is in the device's memory in the result; over a serial line that takes time.

        Raises
        ------
        InputError
            If an input is missing or has another dtype or shape.
            If `on` is a device that was built for another configuration, or has too little memory.
        weft.sim.device.DeviceError
            If a device fails.
        """
        values = self._check(inputs)
        kept, totals, complete = b"", _Totals(), True
        layers: list[dict[str, Any]] = []
        for segment in self.segments:
            if isinstance(segment, HostSegment):
                values |= run_host(segment, values) if complete else {}
                continue
            options = {"latency": latency, "bytes_per_cycle": bandwidth, "trace": trace, "stalls": stalls}
            image = Image(segment)
            less = "; with `plain_inputs` it may need less" if segment.rows else ""
            with simulated(on, self.config, image.memory_bytes, options, less) as device:
                complete = complete and computes(device)
                self._run_image(image, device, values)
                kept += device.read(0, image.memory_bytes) if memory and complete else b""
                layers += _layers(segment, device, self.config)
                totals.add(device.counters(), self.config)
        outputs = {name: np.asarray(values[name]) for name in self.outputs} if complete else {}
        return Result(outputs, _report(layers, totals, self.config), kept)

    def _check(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = {}
        for name, (dtype, shape) in self.inputs.items():
            if name not in inputs:
                raise InputError(
                    f"input {name!r} is missing; the model reads {', '.join(map(repr, self.inputs))}"
                )
            value = np.asarray(inputs[name])
            if value.dtype.name != dtype or value.shape != shape:
                raise InputError(
                    f"input {name!r} is {value.dtype.name} of shape {value.shape}; "
                    f"the model reads {dtype} of shape {shape}"
                )
            values[name] = value
        for name in inputs:
            if name not in self.inputs:
                raise InputError(
                    f"the model has no input {name!r}; it reads {', '.join(map(repr, self.inputs))}"
                )
        return values

    def _run_image(self, image: Image, device: Device, values: dict[str, np.ndarray]) -> None:
        """Run one device program; `values` gives what enters it, as far as it is known, and receives what leaves it."""
        names = image.program.buffers
        entering = [item for item in self._compiled.to_device if item.buffer.name in names]
        known = [item for item in entering if computes(device) or item.value in values]
        contents = {item.buffer.name: to_buffer(item, values[item.value]) for item in known}
        image.run(device, contents)
        for item in self._compiled.from_device:
            if item.buffer.name in names and computes(device):
                values[item.value] = from_buffer(item, image.read(device, item.buffer.name))


@contextlib.contextmanager
def simulated(
    on: str | Device, config: Config, memory_bytes: int, options: dict[str, Any], less: str = ""
) -> Iterator[Device]:
    """The device `on`, as `Program.run` takes it; one that is made here is closed again. `less` ends the sentence that
    says that it has too little memory."""
    device = _device(on, config, memory_bytes, options, less)
    try:
        yield device
    finally:
        if isinstance(on, str) and hasattr(device, "close"):
            device.close()


def computes(device: Device) -> bool:
    """Whether results are in the device's memory after a program."""
    return getattr(device, "computes", True)


def report_of(program: DeviceProgram, device: Device, config: Config) -> dict[str, Any]:
    """The report of `Result` for one program that has just run."""
    totals = _Totals()
    totals.add(device.counters(), config)
    return _report(_layers(program, device, config), totals, config)


def _device(
    on: str | Device, config: Config, memory_bytes: int, options: dict[str, Any], less: str
) -> Device:
    if on == "golden":
        from weft.sim.golden import GoldenDevice

        return GoldenDevice(config, memory_bytes)
    if on == "rtl":
        from weft.sim.rtl import RtlDevice

        seed = options.pop("stalls")
        trace = options.pop("trace")
        return RtlDevice(
            config, memory_bytes, trace=Path(trace) if isinstance(trace, str) else trace,
            stall_probability=0.0 if seed is None else 0.3, stall_seed=seed or 0, **options,
        )  # fmt: skip
    if on == "timing":
        from weft.sim.timing import TimingDevice

        memory = {name: options[name] for name in ("latency", "bytes_per_cycle")}
        return TimingDevice(config, memory_bytes, **memory)
    if isinstance(on, str):
        raise InputError(f"unknown device {on!r}; choose 'golden', 'rtl' or 'timing'")
    if on.config != config:
        raise InputError(
            f"the program is for configuration {config.digest:#010x}, the device is {on.config.digest:#010x}: "
            "compile the model for the device's configuration"
        )
    if on.memory_bytes < memory_bytes:
        raise InputError(
            f"the program needs {memory_bytes} bytes of memory, the device has {on.memory_bytes}{less}"
        )
    return on


def _layers(program: DeviceProgram, device: Device, config: Config) -> list[dict[str, Any]]:
    """One row a layer, or several of which only the last one writes to memory. Its cycles reach from the layer before
    it to its own last byte there."""
    marks = getattr(device, "marks", None)
    times = marks() if marks is not None else None
    rows, previous = [], 0
    for index, layer in enumerate(program.timed.values()):
        cycles = None
        if times is not None:
            cycles, previous = times[index] - previous, times[index]
        slowest = max(layer.cycles, key=lambda queue: layer.cycles[queue])
        bound = {"MM": "array", "VEC": "vector unit"}.get(slowest, "memory")
        rows.append({
            "name": layer.name, "kind": layer.kind, "cycles": cycles, "macs": layer.macs,
            "utilization": _utilization(layer.macs, cycles, config), "dram_bytes": layer.dram_bytes, "bound": bound,
        })  # fmt: skip
    return rows


@dataclass
class _Totals:
    cycles: int | None = None
    dram_bytes: int | None = None
    counters: dict[str, int] | None = None

    def add(self, counters: dict[Counter, int], config: Config) -> None:
        if Counter.CYCLES not in counters:
            return
        beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
        self.cycles = (self.cycles or 0) + counters[Counter.CYCLES]
        self.dram_bytes = (self.dram_bytes or 0) + beats * config.bus_bytes
        known = self.counters or {}
        self.counters = {
            item.name.lower(): known.get(item.name.lower(), 0) + value for item, value in counters.items()
        }


def _utilization(macs: int, cycles: int | None, config: Config) -> float | None:
    return macs / (config.n * config.n * cycles) if cycles else None


def _report(layers: list[dict[str, Any]], totals: _Totals, config: Config) -> dict[str, Any]:
    macs = sum(layer["macs"] for layer in layers)
    planned = sum(layer["dram_bytes"] for layer in layers)
    return {
        "config": config.to_dict(),
        "cycles": totals.cycles,
        "macs": macs,
        "utilization": _utilization(macs, totals.cycles, config),
        "dram_bytes": planned if totals.dram_bytes is None else totals.dram_bytes,
        "counters": totals.counters,
        "layers": layers,
    }


def compile(  # the public name, and what it does
    model: str | Path | bytes | onnx.ModelProto,
    config: str | Config = "default",
    *,
    progress: Callable[[str], None] | None = None,
    reuse: bool = True,
    plain_inputs: bool = False,
    choose: Chooser = plan,
) -> Program:
    """Compile a quantised (QDQ) ONNX model.

    Parameters
    ----------
    model : path, bytes or ModelProto
        The model: a file, or serialised, or in memory.
    config : str or Config
        A preset's name, a JSON file, or a configuration.
    progress : callable
        Told the name of every operator before it is lowered.
    reuse : bool
        Let intermediates share memory, and stay on chip between convolutions; without it every one can be looked at
        after the run.
    plain_inputs : bool
        Have all inputs in memory in NHWC order. Otherwise `Program.run` lays rows of an input side by side where that
        makes a first convolution quicker, which takes up to as many times the memory as its kernel has rows.
    choose : Chooser
        Plans convolutions, for example `weft.tuning.Tuning.chooser`; the best by estimate if it is not given.

    Raises
    ------
    weft.compiler.ir.CompileError
        If the model cannot be read or compiled.
    weft.hdl.config.ConfigError
        If the configuration is not valid.
    """
    chosen = config if isinstance(config, Config) else Config.load(config)
    graph = import_model(_parsed(model), softmax=chosen.softmax)
    segments = tuple(
        compile_segment(
            segment, chosen, reuse=reuse, plain_inputs=plain_inputs, progress=progress, choose=choose
        )
        if isinstance(segment, DeviceSegment)
        else segment
        for segment in graph.segments
    )
    return _checked(
        Compiled(
            chosen, segments, graph.to_device, graph.from_device, graph.inputs, graph.outputs, graph.placement
        )
    )


def _checked(compiled: Compiled) -> Program:
    """The program, after a look at every part and instruction: neither compiler nor files are taken on trust."""
    verify(compiled)
    for segment in compiled.segments:
        if isinstance(segment, DeviceProgram):
            try:
                check_program(segment.instructions, compiled.config, extents=segment.areas.extents)
            except ProgramError as error:
                raise ProgramError(f"{printable(segment.name)}: {error}") from None
    return Program(compiled)


def _parsed(model: str | Path | bytes | onnx.ModelProto) -> str | Path | onnx.ModelProto:
    if not isinstance(model, bytes):
        return model
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load_from_string(model)
    except DecodeError:
        raise CompileError(f"these {len(model)} bytes are no ONNX model") from None


def load(folder: str | Path) -> Program:
    """Read a program that `Program.save` wrote.

    Raises
    ------
    weft.compiler.artefact.ProgramFileError
        If it is missing, damaged, or of another version.
    weft.compiler.ir.CompileError
        If its parts do not fit each other.
    weft.hdl.program.ProgramError
        If its instructions leave what they may read and write, can race or can block each other.
    """
    compiled = load_compiled(Path(folder))
    try:
        return _checked(compiled)
    except (CompileError, ProgramError) as error:
        raise type(error)(f"{folder} is damaged: {error}; compile the model again") from None


def check(model: str | Path | bytes | onnx.ModelProto) -> list[tuple[str, str, str, str]]:
    """(name, operator, "device" or "host", reason) of every node of a model."""
    return list(import_model(_parsed(model)).placement)


def verilog(config: str | Config = "default") -> tuple[str, dict[str, Any]]:
    """The accelerator as Verilog, and its description (parameters, ports, register map) as JSON values."""
    from weft.hdl.core import Core
    from weft.hdl.describe import describe
    from weft.hdl.verilog import generate

    chosen = config if isinstance(config, Config) else Config.load(config)
    core = Core(chosen)
    return generate(core, name="weft"), describe(chosen)
