"""Search for better plans of a model's convolutions, judged by the cycle model; files of plans for the compiler."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Unpack

import msgspec
import numpy as np

import weft
from weft.arguments import SEED, integer
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Multiply
from weft.compiler.ir.views import View
from weft.compiler.machine.target import Target
from weft.compiler.pipeline import PIPELINE
from weft.compiler.plan.conv_plan import Chooser, ConvPlan, Tiling, candidates, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.configurations import sequential_boards, sequential_core_sentence
from weft.errors import FileError, InputError
from weft.hdl import schema
from weft.hdl.cache import entry
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.report import Progress
from weft.run.options import MemoryKeywords, RunOptions
from weft.run.program import Program
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

FORMAT = "weft tuning 3"
LAYER_FORMAT = "weft tuned layer 2"
"""Format of a layer in the cache."""
TIMING_SOURCES = (
    "weft.compiler",
    "weft.hdl",
    "weft.sim.timing",
    "weft.run.options",
    "weft.run.runtime",
    "weft.extras.search.tune",
)
"""Packages and modules on which cycle counts depend."""
Cycles = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]


@dataclass(frozen=True)
class TunedLayer:
    """Tiling of a layer, and the layer's cycles on its own: with the default plan, and with this tiling."""

    name: str
    tiling: Tiling
    default: Cycles
    cycles: Cycles

    def text(self) -> str:
        """Return the layer as JSON, for the cache."""
        return schema.encode(_LayerFile(LAYER_FORMAT, self))

    @classmethod
    def load(cls, path: Path) -> TunedLayer | None:
        """Read a layer that `text` wrote; return None if the file is missing or invalid."""
        try:
            return schema.decode(schema.read_bytes(path), _LayerFile, format=LAYER_FORMAT).layer
        except (OSError, schema.SchemaError):
            return None


class _LayerFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    layer: TunedLayer


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    sources: str
    config: dict[str, Any]
    latency: Annotated[int, msgspec.Meta(ge=1)]
    bandwidth: Annotated[float, msgspec.Meta(gt=0)] | None
    layers: dict[str, TunedLayer]


@dataclass(frozen=True)
class Tuning:
    """Tilings for the convolutions of one configuration, by `ConvShape.key`.

    Attributes
    ----------
    config : Config
    latency, bandwidth : int, float
        Of the memory that they are for: cycles, and bytes per cycle or None.
    layers : dict of str to TunedLayer
    """

    config: Config
    latency: int
    bandwidth: float | None
    layers: dict[str, TunedLayer]

    @property
    def memory_text(self) -> str:
        """The memory in words."""
        return (
            "for a memory as fast as the bus"
            if self.bandwidth is None
            else f"for {self.bandwidth:g} bytes a cycle"
        )

    def chooser(self) -> Chooser:
        """Return a chooser with the tuned plans, and default plans for other layers."""

        def choose(shape: ConvShape) -> ConvPlan | None:
            layer, default = self.layers.get(shape.key), plan(shape)
            return default if layer is None or default is None else apply_tuning(shape, layer, default)

        return choose

    def text(self) -> str:
        """Return the tuning as JSON."""
        return schema.encode(
            _File(FORMAT, sources_digest(), self.config.to_dict(), self.latency, self.bandwidth, self.layers)
        )

    @classmethod
    def load(cls, path: Path, config: Config) -> Tuning:
        """Read a tuning for `config`.

        Raises
        ------
        FileError
            If the file is missing or invalid, or was made for another configuration or by another version.
        """
        try:
            values = schema.decode(schema.read_bytes(path), _File, format=FORMAT)
            tuned_config = Config.from_dict(values.config)
        except (schema.SchemaError, ConfigError) as error:
            raise FileError(f"{path} is not a valid tuning: {error}; run `weft tune` again") from None
        if tuned_config != config:
            raise FileError(
                f"{path} is for configuration {tuned_config.digest:#010x}, not {config.digest:#010x}: "
                "run `weft tune` with the same --config"
            )
        if values.sources != sources_digest():
            raise FileError(f"{path} is from another version of weft: run `weft tune` again")
        return cls(config, values.latency, values.bandwidth, values.layers)


def apply_tuning(shape: ConvShape, layer: TunedLayer, default: ConvPlan) -> ConvPlan:
    """Return the plan with a layer's tiling, or the default plan if the layer has no such plan.

    Its cycles are the default plan's estimate, reduced by the measured share, so that they compare with the estimates
    of other layers.
    """
    matching = (item for item in candidates(shape) if item.tiling == layer.tiling)
    share = layer.cycles / layer.default
    return next((dataclasses.replace(item, cycles=default.cycles * share) for item in matching), default)


@cache
def sources_digest() -> str:
    """Return a hash of all sources that determine the program of a tiling and its cycles."""
    parts = [f"{source.name}\0".encode() + source.read_bytes() for source in timed_sources()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def timed_sources() -> list[Path]:
    """Return the sources of the compiler, the hardware and its cycle model, and of the memory layout of programs."""
    sources = []
    for name in TIMING_SOURCES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin)
        folder = source.parent.rglob("*") if spec.submodule_search_locations is not None else [source]
        sources += sorted(path for path in folder if path.suffix in (".py", ".h", ".cpp"))
    return sources


RANKED_TRIALS = 8
"""Number of trials in the order of the compiler's estimates, before Optuna proposes plans."""
MAX_TRIALS = 100_000


def tune(
    model: Path,
    config: Config,
    *,
    trials: int = 32,
    seed: int = 0,
    progress: Progress = lambda text: None,
    **memory: Unpack[MemoryKeywords],
) -> tuple[Tuning, int, int]:
    """Search for better plans of all convolutions of a model, each on its own.

    Every distinct layer is tried with the `RANKED_TRIALS` plans that the compiler estimates best. Then Optuna's
    tree-structured Parzen estimator proposes plans (J. Bergstra et al., NIPS 2011). The cache keeps results by layer,
    configuration, memory, trials and seed. Equal arguments give equal results.

    Parameters
    ----------
    model : Path
        Quantised ONNX or TFLite model.
    config : Config
    trials, seed : int
        Plans to try for each distinct layer, and the seed of Optuna's random numbers.
    progress : callable
        Called with a description of each step.
    memory
        ``latency`` and ``bandwidth`` of `RunOptions`.

    Returns
    -------
    tuning, default, cycles : Tuning, int, int
        The tilings, and the cycles of the whole program without and with them. The tuning is empty if it does not make
        the program faster, which can happen because layers overlap.

    Raises
    ------
    InputError
        If a number has a wrong type or is outside its limits, or `config` is that of a board with the sequential core.
    FileError
        If no part of the model is a convolution on the device, or Optuna is needed and not installed.
    CompileError
        If the model cannot be compiled.
    """
    boards = sequential_boards(config)
    if boards:
        raise InputError(f"{sequential_core_sentence(boards)}: tilings are tuned for the pipelined core only")
    integer("trials", trials, 1, MAX_TRIALS)
    integer("seed", seed, *SEED)
    judge = _Judge(config, RunOptions("timing", **memory))
    shapes, default = _convolutions(model, judge)
    layers = {}
    for index, (key, shape) in enumerate(shapes.items()):
        progress(f"layer {index + 1} of {len(shapes)}: {shape.op.name}")
        layers[key] = _tune_layer(shape, judge, trials, seed)
    faster = {key: layer for key, layer in layers.items() if layer.cycles < layer.default}
    tuning = Tuning(config, judge.options.latency, judge.options.bandwidth, faster)
    progress("the whole program")
    cycles = judge.program_cycles(
        weft.compile(model, config, memory=judge.options.bandwidth, choose=tuning.chooser())
    )
    if cycles >= default:
        return dataclasses.replace(tuning, layers={}), default, default
    return tuning, default, cycles


def _convolutions(model: Path, judge: _Judge) -> tuple[dict[str, ConvShape], int]:
    """Return the distinct convolutions of a model's default program, and the program's cycles."""
    shapes: dict[str, ConvShape] = {}

    def collect(finished_pass: str, segment: DeviceSegment) -> None:
        if finished_pass == PIPELINE[-1].name:
            for shape in convolutions(segment, judge.target):
                shapes.setdefault(shape.key, shape)

    cycles = judge.program_cycles(
        weft.compile(model, judge.config, memory=judge.options.bandwidth, watch=collect)
    )
    if not shapes:
        raise FileError(f"{model.name} has no convolution or matrix product on the device: nothing to tune")
    return shapes, cycles


def convolutions(segment: DeviceSegment, target: Target) -> list[ConvShape]:
    """Return the convolutions of a segment after all passes, with the locations of their operands."""
    planner, scratchpad = Planner(target), (0, target.config.scratchpad_size)
    regions = segment.regions or (scratchpad,) * len(segment.ops)
    return [
        ConvShape(op, planner.site(op, segment.resident, region))
        for op, region in zip(segment.ops, regions, strict=True)
        if isinstance(op, Conv)
    ]


@dataclasses.dataclass(frozen=True)
class _Judge:
    """Cycle model with one memory."""

    config: Config
    options: RunOptions

    @property
    def target(self) -> Target:
        return Target(self.config, self.options.bandwidth)

    def program_cycles(self, program: Program) -> int:
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        report = program.run(inputs, self.options).report
        return int(report["cycles"] or 0)

    def cycles(self, shape: ConvShape, chosen: ConvPlan) -> int:
        """Return the cycles of one layer compiled on its own."""
        # No passes: the plan and the on-chip places are those of the whole program.
        image = Image(
            compile_segment(_isolate(shape, chosen), self.config, bandwidth=self.options.bandwidth, passes=())
        )
        device = TimingDevice(self.config, image.memory_bytes, **self.options.memory)
        image.run(device, {})
        return device.counters()[Counter.CYCLES]


def _isolate(shape: ConvShape, chosen: ConvPlan) -> DeviceSegment:
    """Return a segment with one planned convolution, and the on-chip data of the whole program."""
    op = shape.op
    assert isinstance(op, Conv)
    isolated = dataclasses.replace(
        op, src=_with_kind(op.src, "input"), dst=_with_kind(op.dst, "output"), plan=chosen
    )
    if op.epilogue is not None:
        epilogue = dataclasses.replace(op.epilogue, dst=isolated.dst)
        if isinstance(epilogue, Add | Multiply):
            epilogue = dataclasses.replace(epilogue, b=_with_kind(epilogue.b, "input"))
        isolated = dataclasses.replace(isolated, epilogue=epilogue)
    # Only an epilogue with a second operand has a residual.
    operands = zip((op.src, op.dst, *op.sources[1:]), (shape.src, shape.dst, shape.residual), strict=False)
    resident = {
        view.buffer.name: at.resident for view, at in operands if at is not None and at.resident is not None
    }
    return DeviceSegment(op.name, (isolated,), resident=resident, regions=(shape.region,))


def _with_kind(view: View, kind: str) -> View:
    return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind=kind))


def _tune_layer(shape: ConvShape, judge: _Judge, trials: int, seed: int) -> TunedLayer:
    """Return the best plan for a layer, from the cache or by a search."""
    key_parts = (shape.key, sources_digest(), *judge.options.memory.values(), trials, seed)

    def make(folder: Path) -> None:
        (folder / "layer.json").write_text(_search(shape, judge, trials, seed).text())

    cached = TunedLayer.load(entry(f"tuned-{'-'.join(map(str, key_parts))}", make) / "layer.json")
    # Search again if the entry is damaged. Equal layers may have other names.
    return dataclasses.replace(cached or _search(shape, judge, trials, seed), name=shape.op.name)


def _search(shape: ConvShape, judge: _Judge, trials: int, seed: int) -> TunedLayer:
    # Of equal tilings the plan with the best estimate remains; `candidates` sorts by estimate.
    distinct = {plan.tiling: plan for plan in reversed(candidates(shape))}
    plans = list(reversed(distinct.values()))
    cycles_by_plan: dict[int, int] = {}

    def cycles(index: int) -> int:
        if index not in cycles_by_plan:
            cycles_by_plan[index] = judge.cycles(shape, plans[index])
        return cycles_by_plan[index]

    for index in range(min(trials, RANKED_TRIALS, len(plans))):
        cycles(index)
    if trials > RANKED_TRIALS and len(plans) > RANKED_TRIALS:
        _try_proposals(plans, cycles, trials, seed)
    # Of equally fast plans, the one with the best estimate.
    best = min(cycles_by_plan, key=lambda index: (cycles_by_plan[index], index))
    return TunedLayer(shape.op.name, plans[best].tiling, cycles_by_plan[0], cycles_by_plan[best])


def _try_proposals(
    plans: Sequence[ConvPlan], cycles: Callable[[int], int], trials: int, seed: int
) -> list[int]:
    """Try plans that Optuna proposes from earlier results; return their indices."""
    try:
        import optuna
    except ImportError:
        raise FileError(
            f"more than {RANKED_TRIALS} trials need Optuna: pip install 'weft[tune]', "
            f"or set --trials to {RANKED_TRIALS}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    values = {
        name: sorted({getattr(plan.tiling, name) for plan in plans})
        for name in ("tile", "zones", "block", "chunk", "group", "chunked")
    }
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.IntDistribution(0, len(choices) - 1) for name, choices in values.items()
    }

    def parameters(index: int) -> dict[str, int]:
        return {name: choices.index(getattr(plans[index].tiling, name)) for name, choices in values.items()}

    # Optuna starts from the plans that are measured already.
    for index in range(RANKED_TRIALS):
        study.add_trial(
            optuna.trial.create_trial(params=parameters(index), distributions=space, value=cycles(index))
        )
    # Few combinations of values are plans; any other combination counts as the nearest plan.
    vectors = np.array([list(parameters(index).values()) for index in range(len(plans))])
    scale = np.maximum(vectors.max(axis=0), 1)
    proposed = []
    for _ in range(trials - RANKED_TRIALS):
        trial = study.ask(space)
        target = np.array([trial.params[name] for name in values])
        index = int((np.abs(vectors - target) / scale).sum(axis=1).argmin())
        study.tell(trial, cycles(index))
        proposed.append(index)
    return proposed
