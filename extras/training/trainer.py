"""Training a model with steps that run on the device, from samples that the host gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from weft import api
from weft.compiler.frontend import other_network
from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import Source, read_proto
from weft.compiler.onnx.reader import read as read_network
from weft.errors import InputError
from weft.extras.training.calibration import Measured, room_for
from weft.extras.training.gradient.adapters import Adapter, with_adapters
from weft.extras.training.gradient.batches import for_batch
from weft.extras.training.gradient.deployed import Deployed, in_real_numbers
from weft.extras.training.gradient.quantised import Range, of_range, quantised_step
from weft.extras.training.gradient.training import (
    MOMENTUM,
    PROBABILITIES,
    TARGET,
    Step,
    before_softmax,
    training_step,
)
from weft.extras.training.layers import chosen
from weft.extras.training.settings import Settings
from weft.extras.training.written import with_weights
from weft.hdl.isa.config import Config
from weft.run.program import Program, Result
from weft.run.stream import stream

if TYPE_CHECKING:
    from weft.sim.device import Device

Told = Callable[[str], None]
_CALIBRATED = 8
"""Batches that ranges are taken from, anew for each epoch."""
_HEADROOM = 1.5
"""How many times the largest value of a calibration what is computed forward may be."""
_LEAST = 1e-3
"""Probabilities below count as this much in the loss that is told: the device's are multiples of 1/256."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave: the mean loss and the share of samples whose class was right, while they were trained; and
    the counters of its last step, if the device has some."""

    loss: float
    accuracy: float
    cycles: int | None
    utilisation: float | None


class Trainer:
    """Trains constants of a quantised model, or of one in real numbers.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX, TFLite or MLIR model with one output (samples, classes), of one sample or as many as a batch has.
    layers : int or None
        How many of the last layers with weights are trained; None for all.
    names : sequence of str
        Layers by name instead.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator behind the first layer that is trained has no gradient.
    InputError
        If there is no such layer.
    """

    def __init__(
        self, model: Source, config: Config, settings: Settings, *, layers: int | None = 1,
        names: Sequence[str] = (), on: str | Device = "golden", told: Told = lambda text: None,
    ) -> None:  # fmt: skip
        self.config, self.settings, self.on, self.told = config, settings, on, told
        other = other_network(model)
        self.source = read_proto(model if other is None else model_of(resolve(other).network))
        self.deployed: Deployed = in_real_numbers(read_network(self.source))
        network = for_batch(before_softmax(self.deployed.network), settings.batch)
        self.inputs = {name: network.types[name] for name in network.inputs}
        integers = self.deployed.integers
        self.given = {
            name: (integers[name].dtype if name in integers else kind.dtype, kind)
            for name, kind in self.inputs.items()
        }
        picked = chosen(network, layers, names)
        self.adapters: tuple[Adapter, ...] = ()
        if settings.adapter:
            rng = np.random.default_rng([settings.seed, settings.adapter])
            first = [(node, constants[0]) for node, constants in picked]
            network, self.adapters = with_adapters(network, first, settings.adapter, rng)
            self.names = [name for adapter in self.adapters for name in adapter.constants]
        else:
            self.names = list(dict.fromkeys(name for _, constants in picked for name in constants))
        self.network = network
        self.step = self._step(0)
        self.measured = Measured(self.step.network)
        self.state: dict[str, np.ndarray] = {}
        for variable in self.step.variables:
            self.state[variable.name] = variable.stored(network.constants[variable.name])
            self.state[MOMENTUM.format(variable.name)] = np.zeros(variable.state, np.float32)
        self.program: Program | None = None

    @property
    def nodes(self) -> list[tuple[str, str, str, str]]:
        """Nodes of the last step with where they run, as `weft.check` has them."""
        return [] if self.program is None else list(self.program.assignment)

    @property
    def classes(self) -> int:
        kind = self.step.network.types[TARGET]
        assert kind.sizes is not None
        return kind.sizes[1]

    def _step(self, epoch: int) -> Step:
        rate, momentum = self.settings.rate_in(epoch), self.settings.momentum
        return training_step(self.network, self.names, rate=rate, momentum=momentum)

    def epochs(self, samples: Mapping[str, np.ndarray], labels: np.ndarray) -> Iterator[Epoch]:
        """Train, epoch by epoch. Arrays of samples are (count, \\*shape without samples), labels (count,) integers.

        Raises
        ------
        InputError
            If there are fewer samples than a batch has, or a label is no class.
        """
        self._check(labels)
        rng = np.random.default_rng(self.settings.seed)
        for epoch in range(self.settings.epochs):
            self.prepare(epoch, samples, labels, rng)
            yield self._epoch(epoch, samples, labels, rng)

    def _check(self, labels: np.ndarray) -> None:
        if len(labels) < self.settings.batch:
            raise InputError(
                f"there are {len(labels)} samples, fewer than the {self.settings.batch} of a batch: give more, or a "
                "smaller batch"
            )
        wrong = (labels < 0) | (labels >= self.classes)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"label {int(labels[at])} of sample {at} is no class of the model, which has {self.classes}"
            )

    def _real(self, name: str, value: np.ndarray) -> np.ndarray:
        """Samples as the network in real numbers takes them."""
        kind = self.deployed.integers.get(name)
        if kind is None:
            return value.astype(np.dtype(self.inputs[name].dtype))
        scale, zero = kind.scale.reshape(()), kind.zero.astype(np.int64).reshape(())
        return ((value.astype(np.int64) - zero) * scale).astype(np.float32)

    def batch(
        self, samples: Mapping[str, np.ndarray], labels: np.ndarray, at: np.ndarray
    ) -> dict[str, np.ndarray]:
        given = {name: self._real(name, samples[name][at]) for name in self.inputs}
        return given | {TARGET: np.eye(self.classes, dtype=np.float32)[labels[at]]}

    def prepare(
        self, epoch: int, samples: Mapping[str, np.ndarray], labels: np.ndarray, rng: np.random.Generator
    ) -> None:
        """The program of an epoch: with ranges of what the network computes now."""
        self.told(f"epoch {epoch + 1}: measuring ranges")
        self.step = self._step(epoch)
        picks = [rng.choice(len(labels), self.settings.batch, replace=False) for _ in range(_CALIBRATED)]
        batches = [self.batch(samples, labels, at) | self.state for at in picks]
        found = self.measured.ranges(batches)
        if any(low == high == 0 for low, high in found.values()):
            # What is 0 now, as the second matrix of an adapter is, has the range that a few steps lead to.
            later = self.measured.ranges(batches, self.step.states)
            found = {name: later[name] if item == (0, 0) else item for name, item in found.items()}
        ranges = room_for(found, self.step, self.state, _HEADROOM)
        self.integers = quantised_step(self.step, ranges, self.deployed)
        self.told(f"epoch {epoch + 1}: compiling")
        self.program = api.compile(model_of(self.integers), self.config, states=self.step.states)
        self._load(ranges)

    def _load(self, ranges: Mapping[str, Range]) -> None:
        """Give the program weights and momenta, as integers of 16 bits."""
        assert self.program is not None
        self.scales = {name: of_range(ranges[name], "int16")[0] for name in self.state}
        whole = {
            f"{name}/kept": np.clip(np.rint(value / self.scales[name]), -32768, 32767).astype(np.int16)
            for name, value in self.state.items()
        }
        self.program.reset(whole)

    def _unload(self) -> None:
        assert self.program is not None
        kept = self.program.states
        for name in self.state:
            self.state[name] = (kept[f"{name}/kept"] * np.float32(self.scales[name])).astype(np.float32)

    def _results(self, batches: Sequence[dict[str, np.ndarray]]) -> Iterator[Result]:
        """What the steps give; on a device what comes next is written while it computes."""
        assert self.program is not None
        if isinstance(self.on, str):
            return (self.program.run(given, on=self.on) for given in batches)
        return stream(self.program, batches, self.on)

    def _epoch(
        self, epoch: int, samples: Mapping[str, np.ndarray], labels: np.ndarray, rng: np.random.Generator
    ) -> Epoch:
        assert self.program is not None
        batch, order = self.settings.batch, rng.permutation(len(labels))
        steps = len(labels) // batch
        loss, right, report = 0.0, 0, {}
        picks = [order[index * batch : (index + 1) * batch] for index in range(steps)]
        results = self._results([self.batch(samples, labels, at) for at in picks])
        for index, (at, result) in enumerate(zip(picks, results, strict=True)):
            found, report = result.outputs[PROBABILITIES], result.report
            loss -= float(np.log(np.maximum(found[np.arange(batch), labels[at]], _LEAST)).sum())
            right += int((found.argmax(1) == labels[at]).sum())
            self.told(
                f"epoch {epoch + 1}: step {index + 1} of {steps}, loss {loss / (batch * (index + 1)):.3f}"
            )
        self._unload()
        count = steps * batch
        return Epoch(loss / count, right / count, report.get("cycles"), report.get("utilisation"))

    def trained(self, samples: Mapping[str, np.ndarray], labels: np.ndarray) -> onnx.ModelProto:
        """The model with what was trained, quantised as it was: ranges are those on the samples."""
        values = {
            variable.name: variable.restored(self.state[variable.name]) for variable in self.step.variables
        }
        weights = self.deployed.network.constants
        merged = {item.name: item.merged(weights[item.name], values) for item in self.adapters}
        picks = np.array_split(np.arange(len(labels)), max(len(labels) // self.settings.batch, 1))
        whole = [at for at in picks if len(at) >= self.settings.batch]
        batches = [self.batch(samples, labels, at[: self.settings.batch]) for at in whole[:64]]
        constants = {**self.network.constants, **values}
        measured = Measured(replace(self.network, constants=constants))
        plain = [{name: given[name] for name in self.inputs} for given in batches]
        return with_weights(self.source, self.deployed, merged or values, measured.ranges(plain))
