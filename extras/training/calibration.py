"""Ranges of the values in a training step: ONNX Runtime computes some batches in real numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network
from weft.extras.training.gradient.quantised import Range
from weft.extras.training.gradient.real_network import dependents
from weft.extras.training.gradient.training import MOMENTUM, PROBABILITIES, TARGET, Step
from weft.quantiser.float_model import onnx_runtime

_ERRORS = 4
"""ONNX Runtime's log level for errors only."""
_STEPS = 10
"""Steps with the largest gradient that the range of an all-zero weight allows for."""
_AHEAD = 4.0
"""Largest momentum, in multiples of the largest gradient."""


class Measurement:
    """A network whose values are all outputs, so that their ranges can be measured."""

    def __init__(self, network: Network) -> None:
        model = model_of(network)
        outputs = {item.name for item in model.graph.output}
        for node in network.nodes:
            for name in node.outputs:
                kind = network.types.get(name)
                if name not in outputs and kind is not None and kind.dtype == "float32":
                    made = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, kind.shape)
                    model.graph.output.append(made)
        runtime = onnx_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = _ERRORS
        self._session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._names = [item.name for item in self._session.get_outputs()]

    def run(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all values for some inputs."""
        return dict(zip(self._names, self._session.run(None, dict(given)), strict=True))

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
