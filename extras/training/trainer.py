"""Train a model with steps that run on the device; the host supplies samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from weft import api
from weft.compiler.frontend import other_network
from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network, Node
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import Source, read_proto
from weft.compiler.onnx.reader import read as read_network
from weft.errors import InputError
from weft.extras.training.gradient.network import for_batch
from weft.extras.training.gradient.quantised import Range, quantise_step, scale_of_range
from weft.extras.training.gradient.real_network import RealNetwork, dependents, to_real_network
from weft.extras.training.gradient.training import (
    MOMENTUM,
    PROBABILITIES,
    TARGET,
    Adapter,
    Step,
    strip_softmax,
    training_step,
    with_adapters,
)
from weft.extras.training.model_update import update_weights
from weft.extras.training.settings import Settings
from weft.hdl.isa.config import Config
from weft.hdl.schema import printable
from weft.quantiser.float_model import onnx_runtime
from weft.run.program import Program, Result
from weft.run.stream import stream

if TYPE_CHECKING:
    from weft.sim.device import Device

Progress = Callable[[str], None]
Layer = tuple[Node, tuple[str, ...]]
"""A node with weights, and the names of its trainable constants: weights, bias."""
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with weights."""
_ERRORS = 4
"""ONNX Runtime's log level for errors only."""
_STEPS = 10
"""Steps with the largest gradient that the range of an all-zero weight allows for."""
_AHEAD = 4.0
"""Largest momentum, in multiples of the largest gradient."""
_CALIBRATION_BATCHES = 8
"""Number of batches that ranges are measured on before each epoch."""
_HEADROOM = 1.5
"""Largest forward value, in multiples of the largest calibrated value."""
_LEAST_PROBABILITY = 1e-3
"""Lower bound of probabilities in the reported loss: the device's are multiples of 1/256."""


class Measurement:
    """A network whose values are all outputs, so that their ranges can be measured."""

    def __init__(self, network: Network) -> None:
        model = model_of(network)
        outputs = {item.name for item in model.graph.output}
        for node in network.nodes:
            for name in node.outputs:
                kind = network.types.get(name)
                if name not in outputs and kind is not None and kind.dtype == "float32":
                    info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, kind.shape)
                    model.graph.output.append(info)
        runtime = onnx_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = _ERRORS
        self._session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._names = [item.name for item in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all values for some inputs."""
        return dict(zip(self._names, self._session.run(None, dict(inputs)), strict=True))

    def ranges(
        self, batches: Iterable[Mapping[str, np.ndarray]], states: Mapping[str, str] | None = None
    ) -> dict[str, Range]:
        """Return the least and greatest element of each value, inputs included.

        `states` map inputs to the outputs of the run before that become them.
        """
        ranges: dict[str, Range] = {}
        state: dict[str, np.ndarray] = {}
        for batch in batches:
            inputs = {**batch, **state}
            values = self.run(inputs)
            state = {name: values[target] for name, target in (states or {}).items()}
            for name, value in (*inputs.items(), *values.items()):
                if value.size and value.dtype.kind == "f":
                    low, high = ranges.get(name, (np.inf, -np.inf))
                    ranges[name] = min(low, float(value.min())), max(high, float(value.max()))
        return ranges


def add_headroom(
    measured: Mapping[str, Range], step: Step, state: Mapping[str, np.ndarray], headroom: float
) -> dict[str, Range]:
    """Widen measured ranges: forward values by `headroom`, weights by 2, momenta to four gradients.

    Weights that are 0 get the range that some steps can reach.
    """
    # The step divides the rate by the number of samples, so the mean gradient moves the weights.
    rows = (step.network.types[PROBABILITIES].sizes or (1,))[0]
    backward = _backward(step.network)
    widened = {
        name: (low, high) if name in backward else (low * headroom, high * headroom)
        for name, (low, high) in measured.items()
    }
    for variable in step.variables:
        gradient = max(map(abs, measured[step.gradients[variable.name]]))
        reach = _STEPS * step.rate / rows * gradient / (1 - step.momentum)
        largest = max(2 * float(np.abs(state[variable.name]).max()) or reach, 1e-6)
        widened[variable.name] = -largest, largest
        most = _AHEAD * gradient or largest
        widened[MOMENTUM.format(variable.name)] = -most, most
    return widened


def _backward(network: Network) -> set[str]:
    """Return the values that depend on the target."""
    return dependents(network.nodes, (TARGET,))


def layers_of(network: Network) -> list[Layer]:
    """Return the layers in order, with the float constants of each: weights, bias."""
    layers = []
    for node in network.nodes:
        if node.op in _LAYERS:
            names = tuple(name for name in node.inputs if _is_weight(network, name))
            if names:
                layers.append((node, names))
    return layers


def _is_weight(network: Network, name: str) -> bool:
    value = network.constants.get(name)
    return value is not None and value.dtype.kind == "f" and value.ndim > 0


def select_layers(network: Network, last: int | None, names: Sequence[str]) -> list[Layer]:
    """Return the layers to train: the last `last` ones (None: all), or those called `names`.

    Raises
    ------
    InputError
        If the network has no layers with weights, or no layer with one of the names.
    """
    layers = layers_of(network)
    if not layers:
        raise InputError("the model has no convolution and no matrix product with constant weights to train")
    if names:
        by_name = {node.name: constants for node, constants in layers}
        wrong = [name for name in names if name not in by_name]
        if wrong:
            known = ", ".join(repr(printable(name, 60)) for name in by_name)
            raise InputError(f"the model has no layer {printable(wrong[0], 60)!r} to train; it has {known}")
        layers = [(node, constants) for node, constants in layers if node.name in set(names)]
    elif last is not None:
        layers = layers[-last:]
    return layers


@dataclass(frozen=True)
class Epoch:
    """Results of an epoch: mean loss and share of correct classes during training.

    `cycles` and `utilisation` are those of its last step, if the device counts them.
    """

    loss: float
    accuracy: float
    cycles: int | None
    utilisation: float | None


class Trainer:
    """Trainer of the constants of a model, quantised or in real numbers.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX, TFLite or MLIR model with one output (samples, classes), of one sample or as many as a batch has.
    layers : int or None
        Number of last layers with weights to train; None for all.
    names : sequence of str
        Names of the layers to train, instead of the last ones.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator after the first trained layer has no gradient.
    InputError
        If the model has no such layer.
    """

    def __init__(
        self, model: Source, config: Config, settings: Settings, *, layers: int | None = 1,
        names: Sequence[str] = (), on: str | Device = "golden", progress: Progress = lambda text: None,
    ) -> None:  # fmt: skip
        self.config, self.settings, self.on, self.progress = config, settings, on, progress
        other = other_network(model)
        self.source = read_proto(model if other is None else model_of(resolve(other).network))
        self.real_network: RealNetwork = to_real_network(read_network(self.source))
        network = for_batch(strip_softmax(self.real_network.network), settings.batch)
        self.inputs = {name: network.types[name] for name in network.inputs}
        integers = self.real_network.integers
        self.input_types = {
            name: (integers[name].dtype if name in integers else kind.dtype, kind)
            for name, kind in self.inputs.items()
        }
        picked = select_layers(network, layers, names)
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
        self.measured = Measurement(self.step.network)
        self.state: dict[str, np.ndarray] = {}
        for variable in self.step.variables:
            self.state[variable.name] = variable.to_state(network.constants[variable.name])
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
        """Train, and yield the results of each epoch.

        Samples are (count, \\*shape of one sample), labels integers (count,).

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
                f"label {int(labels[at])} of sample {at} is not a class of the model, which has {self.classes}"
            )

    def _dequantise(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return samples as the network of real numbers takes them."""
        kind = self.real_network.integers.get(name)
        if kind is None:
            return value.astype(np.dtype(self.inputs[name].dtype))
        scale, zero = kind.scale.reshape(()), kind.zero.astype(np.int64).reshape(())
        return ((value.astype(np.int64) - zero) * scale).astype(np.float32)

    def batch(
        self, samples: Mapping[str, np.ndarray], labels: np.ndarray, at: np.ndarray
    ) -> dict[str, np.ndarray]:
        batch = {name: self._dequantise(name, samples[name][at]) for name in self.inputs}
        return batch | {TARGET: np.eye(self.classes, dtype=np.float32)[labels[at]]}

    def prepare(
        self, epoch: int, samples: Mapping[str, np.ndarray], labels: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Measure ranges with the current weights, and compile the program of an epoch."""
        self.progress(f"epoch {epoch + 1}: measuring ranges")
        self.step = self._step(epoch)
        picks = [
            rng.choice(len(labels), self.settings.batch, replace=False) for _ in range(_CALIBRATION_BATCHES)
        ]
        batches = [self.batch(samples, labels, at) | self.state for at in picks]
        measured = self.measured.ranges(batches)
        if any(low == high == 0 for low, high in measured.values()):
            # A value that is 0 now (the second matrix of an adapter) gets the range that a few steps reach.
            later = self.measured.ranges(batches, self.step.states)
            measured = {name: later[name] if item == (0, 0) else item for name, item in measured.items()}
        ranges = add_headroom(measured, self.step, self.state, _HEADROOM)
        self.integers = quantise_step(self.step, ranges, self.real_network)
        # Ranges are constants of the program, so each epoch has a program of its own.
        self.progress(f"epoch {epoch + 1}: compiling")
        self.program = api.compile(model_of(self.integers), self.config, states=self.step.states)
        self._load(ranges)

    def _load(self, ranges: Mapping[str, Range]) -> None:
        """Write weights and momenta into the program, as 16-bit integers."""
        assert self.program is not None
        self.scales = {name: scale_of_range(ranges[name], "int16")[0] for name in self.state}
        # The compiler calls a state that it keeps between runs `NAME/kept`.
        integers = {
            f"{name}/kept": np.clip(np.rint(value / self.scales[name]), -32768, 32767).astype(np.int16)
            for name, value in self.state.items()
        }
        self.program.reset(integers)

    def _unload(self) -> None:
        assert self.program is not None
        states = self.program.states
        for name in self.state:
            self.state[name] = (states[f"{name}/kept"] * np.float32(self.scales[name])).astype(np.float32)

    def _results(self, batches: Sequence[dict[str, np.ndarray]]) -> Iterator[Result]:
        """Run the steps. A device computes one while the host writes the next."""
        assert self.program is not None
        if isinstance(self.on, str):
            return (self.program.run(inputs, on=self.on) for inputs in batches)
        return stream(self.program, batches, self.on)

    def _epoch(
        self, epoch: int, samples: Mapping[str, np.ndarray], labels: np.ndarray, rng: np.random.Generator
    ) -> Epoch:
        assert self.program is not None
        batch, order = self.settings.batch, rng.permutation(len(labels))
        # Samples after the last full batch take part in another epoch, when the order differs.
        steps = len(labels) // batch
        loss, right, report = 0.0, 0, {}
        picks = [order[index * batch : (index + 1) * batch] for index in range(steps)]
        results = self._results([self.batch(samples, labels, at) for at in picks])
        for index, (at, result) in enumerate(zip(picks, results, strict=True)):
            probabilities, report = result.outputs[PROBABILITIES], result.report
            loss -= float(
                np.log(np.maximum(probabilities[np.arange(batch), labels[at]], _LEAST_PROBABILITY)).sum()
            )
            right += int((probabilities.argmax(1) == labels[at]).sum())
            self.progress(
                f"epoch {epoch + 1}: step {index + 1} of {steps}, loss {loss / (batch * (index + 1)):.3f}"
            )
        self._unload()
        count = steps * batch
        return Epoch(loss / count, right / count, report.get("cycles"), report.get("utilisation"))

    def trained_model(self, samples: Mapping[str, np.ndarray], labels: np.ndarray) -> onnx.ModelProto:
        """Return the model with trained constants, quantised as before, with ranges measured on the samples."""
        values = {
            variable.name: variable.from_state(self.state[variable.name]) for variable in self.step.variables
        }
        weights = self.real_network.network.constants
        merged = {item.name: item.merge(weights[item.name], values) for item in self.adapters}
        picks = np.array_split(np.arange(len(labels)), max(len(labels) // self.settings.batch, 1))
        # The network takes batches of one size: of larger parts, the first samples.
        parts = [at for at in picks if len(at) >= self.settings.batch]
        batches = [self.batch(samples, labels, at[: self.settings.batch]) for at in parts[:64]]
        constants = {**self.network.constants, **values}
        measured = Measurement(replace(self.network, constants=constants))
        plain = [{name: batch[name] for name in self.inputs} for batch in batches]
        return update_weights(self.source, self.real_network, merged or values, measured.ranges(plain))
