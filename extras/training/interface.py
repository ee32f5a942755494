"""`weft.grad` and `weft.train`: gradients of models, training on the device, and accuracy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from weft import api
from weft.arguments import integer
from weft.compiler.frontend import other_network
from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.reader import Source, read
from weft.configurations import configuration
from weft.errors import InputError
from weft.extras.training.gradient.network import gradient_network
from weft.extras.training.gradient.real_network import to_real_network
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Epoch, Trainer
from weft.hdl.isa.config import Config
from weft.run.options import DEVICES
from weft.samples import SampleSource, array_of, fit_samples

if TYPE_CHECKING:
    from weft.sim.device import Device

MAX_LAYERS = 10_000
"""Limit for the number of layers to train."""


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes
    ----------
    model : onnx.ModelProto
        The given model with trained weights, as ONNX. It is quantised if the given model was, with matching scales.
    epochs : tuple of Epoch
        Loss, accuracy, and the device's counters (if it has any), of each epoch.
    constants : tuple of str
        Names of the trained constants.
    nodes : list of tuple
        Nodes of the training step and the places where they run, in the form of `weft.check`.
    """

    model: onnx.ModelProto
    epochs: tuple[Epoch, ...]
    constants: tuple[str, ...]
    nodes: list[tuple[str, str, str, str]]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, which stays unchanged if writing fails."""
        from pathlib import Path

        from weft.files import whole_file

        with whole_file(Path(path)) as part:
            part.write_bytes(self.model.SerializeToString())


def grad(model: Source, wanted: Iterable[str] | None = None) -> onnx.ModelProto:
    """Return a model that computes the gradients of a model.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX, TFLite or MLIR model with static shapes. A quantised model is differentiated in real numbers.
    wanted : iterable of str
        Float inputs and constants to differentiate by. Default: all float inputs.

    Returns
    -------
    ModelProto
        Inputs are those of the model, the constants in `wanted`, and ``y/gradient`` for each output ``y``, of its
        shape: the factor of its derivatives. Outputs are ``x/gradient`` for each `x` in `wanted`, float32 of its shape.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator has no gradient.
    """
    if isinstance(wanted, str):
        raise InputError(f"'wanted' must be names, not the string {wanted!r}")
    if not isinstance(model, Source):
        raise InputError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    return model_of(
        gradient_network(to_real_network(other_network(model) or read(model)).with_original_names(), wanted)
    )


def train(
    model: Source, samples: SampleSource, labels: object, config: str | os.PathLike[str] | Config = "default", *,
    layers: int | None = 1, names: Sequence[str] = (), epochs: int = 10, batch: int = 32, rate: float = 0.01,
    momentum: float = 0.9, seed: int = 0, adapter: int = 0, on: str | Device = "golden",
    progress: Callable[[str], None] | None = None,
) -> Trained:  # fmt: skip
    """Train the last layers of a model with steps that run on the device.

    Forward and backward products, activations and gradients have 8 bits, weights and momenta 16. Ranges are measured
    again before each epoch.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX model, quantised or not, or a TFLite or MLIR model. Its one output has a row of classes for each
        sample, with or without a final softmax.
    samples : mapping, array or path
        An array for each input, whose first axis counts samples.
    labels : array
        The class of each sample, from 0: integers (count,).
    config : str, path or Config
        The configuration of the device.
    layers : int or None
        Number of last layers with weights to train; None for all.
    names : sequence of str
        Names of the nodes to train, instead of the last ones.
    epochs, batch, rate, momentum, seed
        Parameters of stochastic gradient descent: see `weft.extras.training.settings.Settings`.
    adapter : int
        If above 0, train a low-rank adapter of this rank for each layer and keep the weights: see
        `weft.extras.training.gradient.training`. The returned model has the adapters merged into its weights.
    on : str or Device
        "golden", "rtl", or a device.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator after the first trained layer has no gradient.
    InputError, FileError
        If samples or labels do not fit the model, or an argument is out of its limits.
    """
    if on == "timing" or (isinstance(on, str) and on not in DEVICES):
        raise InputError(
            f"training takes 'golden', 'rtl' or a device, not {on!r}: it needs the results of steps"
        )
    settings = Settings(epochs, batch, rate, momentum, seed, adapter)
    last = None if layers is None else integer("layers", layers, 1, MAX_LAYERS)
    report = progress or (lambda text: None)
    trainer = Trainer(
        model, configuration(config), settings, layers=last, names=names, on=on, progress=report
    )
    arrays = match_samples(trainer, samples)
    classes = parse_labels(labels, len(next(iter(arrays.values()))))
    epochs_done = tuple(trainer.epochs(arrays, classes))
    return Trained(trainer.trained_model(arrays, classes), epochs_done, tuple(trainer.names), trainer.nodes)


def match_samples(trainer: Trainer, samples: SampleSource) -> dict[str, np.ndarray]:
    """Return the samples of each input: (count, \\*shape of one sample)."""
    shapes = {
        name: (dtype, (1, *(kind.sizes or ())[1:])) for name, (dtype, kind) in trainer.input_types.items()
    }
    fitted = fit_samples(samples, shapes)
    return {name: array.reshape(-1, *shapes[name][1][1:]) for name, array in fitted.arrays.items()}


def parse_labels(labels: object, count: int) -> np.ndarray:
    """Return labels as int64 (count,).

    Raises
    ------
    InputError
        If labels are not integers, or their number differs from that of the samples.
    """
    array = array_of(labels, "labels")
    kind = array.dtype.kind
    if array.ndim != 1 or not (kind in "iub" or (kind == "f" and bool((array == np.rint(array)).all()))):
        raise InputError(
            f"labels must be integers, one for each sample, not {array.dtype.name} of shape {array.shape}"
        )
    if len(array) != count:
        raise InputError(f"there are {len(array)} labels for {count} samples")
    return array.astype(np.int64)


def accuracy(
    model: Source, samples: Mapping[str, np.ndarray], labels: np.ndarray, config: Config
) -> float | None:
    """Return the share of samples that a model classifies correctly on the golden interpreter, or None if it is not
    quantised.

    Raises
    ------
    CompileError
        If the model cannot be compiled.
    InputError
        If samples or labels do not fit it.
    """
    network = other_network(model) or read(model)
    if not any(node.operator == "QuantizeLinear" for node in network.nodes):
        return None
    program = api.compile(model, config)
    if len(program.outputs) != 1:
        raise InputError(f"a classifier has one output; this model has {len(program.outputs)}")
    fitted = fit_samples(samples, program.inputs)
    output = next(iter(program.outputs))
    rows = [program.run(inputs).outputs[output] for inputs in fitted]
    classes = np.concatenate([row.reshape(-1, row.shape[-1]).argmax(1) for row in rows])
    return float((classes == parse_labels(labels, len(classes))).mean())
