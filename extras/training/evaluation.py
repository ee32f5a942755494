"""The accuracy of a classifier, as the device computes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft import api
from weft.compiler.frontend import other_network
from weft.compiler.onnx.reader import Source, read
from weft.errors import InputError
from weft.extras.training.interface import labels_of
from weft.hdl.isa.config import Config
from weft.samples import fit_samples

_QUANTISED = "QuantizeLinear"


def accuracy(
    model: Source, samples: Mapping[str, np.ndarray], labels: np.ndarray, config: Config
) -> float | None:
    """The share of samples whose class a model gets right on the golden interpreter; None if it is not quantised.

    Raises
    ------
    CompileError
        If the model cannot be compiled.
    InputError
        If samples or labels do not fit it.
    """
    network = other_network(model) or read(model)
    if not any(node.operator == _QUANTISED for node in network.nodes):
        return None
    program = api.compile(model, config)
    if len(program.outputs) != 1:
        raise InputError(f"a classifier has one output; this model has {len(program.outputs)}")
    found = fit_samples(samples, program.inputs)
    output = next(iter(program.outputs))
    rows = [program.run(given).outputs[output] for given in found]
    classes = np.concatenate([row.reshape(-1, row.shape[-1]).argmax(1) for row in rows])
    return float((classes == labels_of(labels, len(classes))).mean())
