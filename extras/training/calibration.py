"""The ranges of what a training step computes, by ONNX Runtime in real numbers on some batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network
from weft.extras.training.gradient.deployed import depending
from weft.extras.training.gradient.quantised import Range
from weft.extras.training.gradient.training import MOMENTUM, PROBABILITIES, TARGET, Step
from weft.quantiser.float_model import onnx_runtime

_ERRORS = 4
"""Of ONNX Runtime's messages only those that nothing goes on after."""
_STEPS = 10
"""Steps of the largest gradient that weights have room for which are 0."""
_AHEAD = 4.0
"""How many times the largest gradient a momentum may be."""


class Measured:
    """A network whose values are all measured."""

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
        """All values for some inputs."""
        return dict(zip(self._names, self._session.run(None, dict(given)), strict=True))

    def ranges(
        self, batches: Iterable[Mapping[str, np.ndarray]], states: Mapping[str, str] | None = None
    ) -> dict[str, Range]:
        """The lowest and the highest of all values, inputs too; `states` are outputs of the run before."""
        found: dict[str, Range] = {}
        kept: dict[str, np.ndarray] = {}
        for batch in batches:
            given = {**batch, **kept}
            made = self.run(given)
            kept = {name: made[target] for name, target in (states or {}).items()}
            for name, value in (*given.items(), *made.items()):
                if value.size and value.dtype.kind == "f":
                    low, high = found.get(name, (np.inf, -np.inf))
                    found[name] = min(low, float(value.min())), max(high, float(value.max()))
        return found


def room_for(
    found: Mapping[str, Range], step: Step, state: Mapping[str, np.ndarray], headroom: float
) -> dict[str, Range]:
    """Ranges with room for what comes: forward `headroom` times what was, weights twice, momenta four gradients.

    Weights that are 0 have room for some steps.
    """
    rows = (step.network.types[PROBABILITIES].sizes or (1,))[0]
    backward = _backward(step.network)
    made = {
        name: (low, high) if name in backward else (low * headroom, high * headroom)
        for name, (low, high) in found.items()
    }
    for variable in step.variables:
        gradient = max(map(abs, found[step.gradients[variable.name]]))
        reach = _STEPS * step.rate / rows * gradient / (1 - step.momentum)
        largest = max(2 * float(np.abs(state[variable.name]).max()) or reach, 1e-6)
        made[variable.name] = -largest, largest
        most = _AHEAD * gradient or largest
        made[MOMENTUM.format(variable.name)] = -most, most
    return made


def _backward(network: Network) -> set[str]:
    """Values that depend on the target."""
    return depending(network.nodes, (TARGET,))
