"""Search for better plans of a model's convolutions, with the cycle model as the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import weft
from weft.arguments import SEED, integer, memory
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Multiply, View
from weft.compiler.machine.target import Target
from weft.compiler.pipeline import PIPELINE
from weft.compiler.plan.conv_plan import ConvPlan, candidates
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.configurations import sequential_boards, sequential_core_sentence
from weft.errors import FileError, InputError
from weft.extras.search.tuning import TunedLayer, Tuning, sources_digest
from weft.hdl.cache import entry
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.report import Progress
from weft.run.program import Program
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

RANKED = 8
"""Trials that take plans in the order of their estimates, before Optuna chooses."""
TRIALS = 100_000
"""At most."""


def tune(
    model: Path,
    config: Config,
    *,
    trials: int = 32,
    seed: int = 0,
    latency: int = 30,
    bandwidth: float | None = None,
    progress: Progress = lambda text: None,
) -> tuple[Tuning, int, int]:
    """Search plans for all convolutions of a model, each on its own.

    Every distinct layer is tried with the `RANKED` plans that the compiler estimates best, then with what Optuna's
    tree-structured Parzen estimator proposes (J. Bergstra et al., NIPS 2011). What was found is kept in the cache, and
    found again by layer, configuration, memory, trials and seed. The same arguments give the same result.

    Parameters
    ----------
    model : Path
        A quantised ONNX or TFLite model.
    config : Config
    trials, seed : int
        Plans to try for each distinct layer, and where Optuna's random numbers start.
    latency, bandwidth : int, float
        Of the memory: cycles, and bytes a cycle (as many as the bus takes if None).
    progress : callable
        Told what is being done.

    Returns
    -------
    tuning, default, cycles : Tuning, int, int
        The tilings, and the cycles of the whole program without and with them. Layers overlap in a program: if it is
        not faster with them, the tuning has none.

    Raises
    ------
    InputError
        If a number is of a wrong type or outside its limits, or `config` is that of a board with the sequential core.
    FileError
        If no part of the model is a convolution on the device, or if Optuna is needed and not installed.
    CompileError
        If the model cannot be compiled.
    """
    boards = sequential_boards(config)
    if boards:
        raise InputError(f"{sequential_core_sentence(boards)}: tilings are tuned for the pipelined core only")
    integer("trials", trials, 1, TRIALS)
    integer("seed", seed, *SEED)
    judge = _Memory(config, *memory(latency, bandwidth))
    shapes, default = _convolutions(model, judge)
    layers = {}
    for index, (key, shape) in enumerate(shapes.items()):
        progress(f"layer {index + 1} of {len(shapes)}: {shape.op.name}")
        layers[key] = _kept(shape, judge, trials, seed)
    better = {key: layer for key, layer in layers.items() if layer.cycles < layer.default}
    tuning = Tuning(config, judge.latency, judge.bandwidth, better)
    progress("the whole program")
    cycles = judge.cycles_of(weft.compile(model, config, memory=judge.bandwidth, choose=tuning.chooser()))
    if cycles >= default:
        return dataclasses.replace(tuning, layers={}), default, default
    return tuning, default, cycles


def _convolutions(model: Path, judge: _Memory) -> tuple[dict[str, ConvShape], int]:
    """The distinct convolutions of a model's program, and its cycles, as it is by default."""
    shapes: dict[str, ConvShape] = {}

    def watch(done: str, segment: DeviceSegment) -> None:
        if done == PIPELINE[-1].name:
            for shape in convolutions(segment, judge.target):
                shapes.setdefault(shape.key, shape)

    cycles = judge.cycles_of(weft.compile(model, judge.config, memory=judge.bandwidth, watch=watch))
    if not shapes:
        raise FileError(f"{model.name} has no convolution or matrix product on the device: nothing to tune")
    return shapes, cycles


def convolutions(segment: DeviceSegment, target: Target) -> list[ConvShape]:
    """The convolutions of a segment behind all passes, with their operands where they are in the program."""
    planner, whole = Planner(target), (0, target.config.scratchpad_size)
    regions = segment.regions or (whole,) * len(segment.ops)
    return [
        ConvShape(op, planner.site(op, segment.resident, region))
        for op, region in zip(segment.ops, regions, strict=True)
        if isinstance(op, Conv)
    ]


@dataclasses.dataclass(frozen=True)
class _Memory:
    """The cycle model behind one memory."""

    config: Config
    latency: int
    bandwidth: float | None

    @property
    def target(self) -> Target:
        """What plans are for."""
        return Target(self.config, self.bandwidth)

    def cycles_of(self, program: Program) -> int:
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        report = program.run(inputs, on="timing", latency=self.latency, bandwidth=self.bandwidth).report
        return int(report["cycles"] or 0)

    def cycles(self, shape: ConvShape, chosen: ConvPlan) -> int:
        """Of one layer by itself."""
        image = Image(
            compile_segment(_alone(shape, chosen), self.config, bandwidth=self.bandwidth, passes=())
        )
        device = TimingDevice(
            self.config, image.memory_bytes, latency=self.latency, bytes_per_cycle=self.bandwidth
        )
        image.run(device, {})
        return device.counters()[Counter.CYCLES]


def _alone(shape: ConvShape, chosen: ConvPlan) -> DeviceSegment:
    """A planned convolution by itself, with what is on chip in the program at the same place."""
    op = shape.op
    assert isinstance(op, Conv)
    alone = dataclasses.replace(op, src=_as(op.src, "input"), dst=_as(op.dst, "output"), plan=chosen)
    if op.epilogue is not None:
        epilogue = dataclasses.replace(op.epilogue, dst=alone.dst)
        if isinstance(epilogue, Add | Multiply):
            epilogue = dataclasses.replace(epilogue, b=_as(epilogue.b, "input"))
        alone = dataclasses.replace(alone, epilogue=epilogue)
    operands = zip((op.src, op.dst, *op.sources[1:]), (shape.src, shape.dst, shape.residual), strict=False)
    resident = {
        view.buffer.name: at.resident for view, at in operands if at is not None and at.resident is not None
    }
    return DeviceSegment(op.name, (alone,), resident=resident, regions=(shape.region,))


def _as(view: View, kind: str) -> View:
    return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind=kind))


def _kept(shape: ConvShape, memory: _Memory, trials: int, seed: int) -> TunedLayer:
    """What was found for a layer before, or is found now."""
    about = (shape.key, sources_digest(), memory.latency, memory.bandwidth, trials, seed)

    def make(folder: Path) -> None:
        (folder / "layer.json").write_text(_search(shape, memory, trials, seed).text())

    kept = TunedLayer.load(entry(f"tuned-{'-'.join(map(str, about))}", make) / "layer.json")
    return dataclasses.replace(kept or _search(shape, memory, trials, seed), name=shape.op.name)


def _search(shape: ConvShape, memory: _Memory, trials: int, seed: int) -> TunedLayer:
    distinct = {found.tiling: found for found in reversed(candidates(shape))}
    plans = list(reversed(distinct.values()))
    tried: dict[int, int] = {}

    def cycles(index: int) -> int:
        if index not in tried:
            tried[index] = memory.cycles(shape, plans[index])
        return tried[index]

    for index in range(min(trials, RANKED, len(plans))):
        cycles(index)
    if trials > RANKED and len(plans) > RANKED:
        _propose(plans, cycles, trials, seed)
    best = min(tried, key=lambda index: (tried[index], index))
    return TunedLayer(shape.op.name, plans[best].tiling, tried[0], tried[best])


def _propose(plans: Sequence[ConvPlan], cycles: Callable[[int], int], trials: int, seed: int) -> list[int]:
    """Try what Optuna proposes, which learns from the plans tried before it; the plans it wanted, by index."""
    try:
        import optuna
    except ImportError:
        raise FileError(
            f"more than {RANKED} trials need Optuna: pip install 'weft[tune]', or set --trials to {RANKED}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    values = {
        name: sorted({getattr(found.tiling, name) for found in plans})
        for name in ("tile", "zones", "block", "chunk", "group", "chunked")
    }
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.IntDistribution(0, len(found) - 1) for name, found in values.items()
    }

    def parameters(index: int) -> dict[str, int]:
        return {name: found.index(getattr(plans[index].tiling, name)) for name, found in values.items()}

    for index in range(RANKED):
        study.add_trial(
            optuna.trial.create_trial(params=parameters(index), distributions=space, value=cycles(index))
        )
    # Few combinations are plans: what is none counts as the nearest that is.
    vectors = np.array([list(parameters(index).values()) for index in range(len(plans))])
    scale = np.maximum(vectors.max(axis=0), 1)
    proposed = []
    for _ in range(trials - RANKED):
        trial = study.ask(space)
        wanted = np.array([trial.params[name] for name in values])
        index = int((np.abs(vectors - wanted) / scale).sum(axis=1).argmin())
        study.tell(trial, cycles(index))
        proposed.append(index)
    return proposed
