"""`weft.grad` and `weft.train`: gradients of models, and models that are trained on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from weft.arguments import integer
from weft.compiler.frontend import other_network
from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.reader import Source, read
from weft.configurations import configuration
from weft.errors import InputError
from weft.extras.training.gradient.deployed import in_real_numbers
from weft.extras.training.gradient.network import gradient_network
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Epoch, Trainer
from weft.hdl.isa.config import Config
from weft.run.devices import NAMES
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
        The model that was given with other weights, as ONNX: quantised if it was, with scales that fit them.
    epochs : tuple of Epoch
        Loss, accuracy, and counters of the device where it has some, of each epoch.
    constants : tuple of str
        What was trained.
    nodes : list of tuple
        Nodes of the training step with where they run, as `weft.check` has them.
    """

    model: onnx.ModelProto
    epochs: tuple[Epoch, ...]
    constants: tuple[str, ...]
    nodes: list[tuple[str, str, str, str]]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model: whole, or not at all."""
        from pathlib import Path

        from weft.files import whole_file

        with whole_file(Path(path)) as part:
            part.write_bytes(self.model.SerializeToString())


def grad(model: Source, wanted: Iterable[str] | None = None) -> onnx.ModelProto:
    """The gradients of a model as a model.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX, TFLite or MLIR model with static shapes. Quantised ones count as the real numbers that they stand for.
    wanted : iterable of str
        Inputs and constants of real numbers; all such inputs, if it is not said.

    Returns
    -------
    ModelProto
        Inputs are the model's, what is wanted, and for each output ``y`` a ``y/gradient`` of its shape: what multiplies
        its derivatives. Outputs are ``x/gradient`` for each `x` that is wanted, float32 of its shape.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator has no gradient.
    """
    if isinstance(wanted, str):
        raise InputError(f"'wanted' must be names, not the string {wanted!r}")
    if not isinstance(model, Source):
        raise InputError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    return model_of(gradient_network(in_real_numbers(other_network(model) or read(model)).named(), wanted))


def train(
    model: Source, samples: SampleSource, labels: object, config: str | os.PathLike[str] | Config = "default", *,
    layers: int | None = 1, names: Sequence[str] = (), epochs: int = 10, batch: int = 32, rate: float = 0.01,
    momentum: float = 0.9, seed: int = 0, adapter: int = 0, on: str | Device = "golden",
    progress: Callable[[str], None] | None = None,
) -> Trained:  # fmt: skip
    """Train the last layers of a model with steps that run on the device.

    Forward and backward products, activations and gradients have 8 bits, weights and momenta 16; ranges are measured
    anew for each epoch.

    Parameters
    ----------
    model : path, bytes or ModelProto
        An ONNX model, quantised or not, or a TFLite or MLIR model, whose one output has a row of classes for each
        sample, with a softmax behind it or not.
    samples : mapping, array or path
        An array for each input, whose first axis counts samples.
    labels : array
        The class of each sample, from 0: integers (count,).
    config : str, path or Config
        The configuration of the device.
    layers : int or None
        How many of the last layers with weights are trained; None for all.
    names : sequence of str
        Nodes of layers instead.
    epochs, batch, rate, momentum, seed
        Of stochastic gradient descent: see `weft.extras.training.settings.Settings`.
    adapter : int
        If it is above 0, weights stay, and a low-rank adapter of this rank is trained beside each: see
        `weft.extras.training.gradient.adapters`. The model that is written has weights with it.
    on : str or Device
        "golden", "rtl", or a device.

    Raises
    ------
    CompileError
        If the model cannot be read, or an operator behind the first layer that is trained has no gradient.
    InputError, FileError
        If samples or labels do not fit the model, or an argument is out of its limits.
    """
    if on == "timing" or (isinstance(on, str) and on not in NAMES):
        raise InputError(
            f"training takes 'golden', 'rtl' or a device, not {on!r}: it needs what steps compute"
        )
    settings = Settings(epochs, batch, rate, momentum, seed, adapter)
    last = None if layers is None else integer("layers", layers, 1, MAX_LAYERS)
    told = progress or (lambda text: None)
    trainer = Trainer(model, configuration(config), settings, layers=last, names=names, on=on, told=told)
    arrays = samples_of(trainer, samples)
    classes = labels_of(labels, len(next(iter(arrays.values()))))
    found = tuple(trainer.epochs(arrays, classes))
    return Trained(trainer.trained(arrays, classes), found, tuple(trainer.names), trainer.nodes)


def samples_of(trainer: Trainer, given: SampleSource) -> dict[str, np.ndarray]:
    """Arrays of single samples by input: (count, \\*shape of one)."""
    shapes = {name: (dtype, (1, *(kind.sizes or ())[1:])) for name, (dtype, kind) in trainer.given.items()}
    found = fit_samples(given, shapes)
    return {name: array.reshape(-1, *shapes[name][1][1:]) for name, array in found.arrays.items()}


def labels_of(given: object, count: int) -> np.ndarray:
    """Labels as int64 (count,).

    Raises
    ------
    InputError
        If they are no integers, or not as many as samples.
    """
    found = array_of(given, "labels")
    kind = found.dtype.kind
    if found.ndim != 1 or not (kind in "iub" or (kind == "f" and bool((found == np.rint(found)).all()))):
        raise InputError(
            f"labels must be integers, one for each sample, not {found.dtype.name} of shape {found.shape}"
        )
    if len(found) != count:
        raise InputError(f"there are {len(found)} labels for {count} samples")
    return found.astype(np.int64)
