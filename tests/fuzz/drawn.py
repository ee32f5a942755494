"""Builders of random graphs: values that steps read and add, and extreme parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.qdq_models import Builder, Quantised

Rng = np.random.Generator
LARGEST = 6000
"""Elements of a value, so that an input stays far below its time limit."""


class Wild(Builder):
    """Zero points over the whole range and scales over a decade. A share `wide` of values has 16 bits."""

    wide = 0.0

    def quantise(
        self,
        value: str,
        shape: tuple[int, ...],
        scale: float,
        zero: int,
        unsigned: bool,
        bits: int | None = None,
    ) -> Quantised:
        if bits is None and self.wide:
            bits = 16 if self.rng.random() < self.wide else 8
        return super().quantise(value, shape, scale, zero, unsigned, bits)

    def parameters(self, unsigned: bool | None = None, symmetric: bool = False) -> tuple[float, int, bool]:
        if unsigned is None:
            unsigned = bool(self.rng.integers(2))
        low = 0 if unsigned else -128
        zero = int(self.rng.choice([low, low + 255, low + 128, *self.rng.integers(low, low + 256, 3)]))
        return float(np.float32(10 ** self.rng.uniform(-2, -1))), zero, unsigned

    def weight(
        self, shape: tuple[int, ...], axis: int, *, per_channel: bool, unsigned: bool
    ) -> tuple[str, np.ndarray]:
        """Add weights with zero points over the whole range; for half of them most weights lie around these."""
        rng = self.rng
        unsigned = unsigned or bool(rng.random() < 0.2)
        if rng.random() < 0.4 or not unsigned:
            name, scales = super().weight(shape, axis, per_channel=per_channel, unsigned=unsigned)
            if not unsigned and rng.random() < 0.1:
                self._lowest()
            return name, scales
        channels = shape[axis] if per_channel else 1
        zero = rng.choice([0, 255, 128, *rng.integers(0, 256, 5)], channels).astype(np.uint8)
        scales = (rng.uniform(0.005, 0.02, channels) * (shape[axis] / np.prod(shape)) ** 0.5).astype(
            np.float32
        )
        values = rng.integers(0, 256, shape)
        if rng.random() < 0.7:
            along = zero.reshape([-1 if index == axis else 1 for index in range(len(shape))])
            values = np.clip(np.rint(rng.normal(along, rng.choice([10, 35, 70]), shape)), 0, 255)
        inputs = [self.constant(values.astype(np.uint8), "weight")]
        inputs += [self.constant(item if per_channel else item[0]) for item in (scales, zero)]
        attributes = {"axis": axis} if per_channel else {}
        return self.node("DequantizeLinear", inputs, **attributes), np.broadcast_to(scales, (shape[axis],))

    def _lowest(self) -> None:
        """Set all of the latest weights to -128."""
        at = next(
            index for index in reversed(range(len(self.constants))) if len(self.constants[index].dims) > 1
        )
        found = self.constants[at]
        self.constants[at] = numpy_helper.from_array(np.full(tuple(found.dims), -128, np.int8), found.name)


class Graph:
    """A model under construction: steps may read `values`."""

    def __init__(self) -> None:
        self.builder = Wild(np.random.default_rng(0), opset=23)
        self.values: list[Quantised] = []
        self.inputs: dict[str, Quantised] = {}

    def pick(self, fits: Callable[[Quantised], bool]) -> Quantised | None:
        """Return a value that fits, preferably a late one."""
        found = [value for value in self.values if fits(value)]
        if not found:
            return None
        late = self.builder.rng.random() < 0.6
        return found[-1] if late else found[int(self.builder.rng.integers(len(found)))]

    def add(self, value: Quantised) -> None:
        self.values.append(value)

    def input(self, shape: tuple[int, ...]) -> Quantised:
        value = self.builder.input(shape)
        self.inputs[self.builder.inputs[-1].name] = value
        return value

    def constant(self, shape: tuple[int, ...]) -> Quantised:
        """Add an 8-bit constant, which does not join `values`."""
        builder = self.builder
        scale, zero, unsigned = builder.parameters()
        low = 0 if unsigned else -128
        values = builder.rng.integers(low, low + 256, shape).astype(np.uint8 if unsigned else np.int8)
        return Quantised(builder.constant(values, "constant"), shape, scale, zero, unsigned)

    def finish(self) -> onnx.ModelProto:
        """Return the model; its outputs are all unread values, as floats."""
        builder = self.builder
        read = {name for node in builder.nodes for name in node.input}
        outputs = [
            helper.make_tensor_value_info(builder.dequantise(value), TensorProto.FLOAT, value.shape)
            for value in self.values
            if value.name not in read
        ]
        graph = helper.make_graph(builder.nodes, "random", builder.inputs, outputs, builder.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", builder.opset)], ir_version=10
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def feeds(self, rng: Rng) -> dict[str, np.ndarray]:
        """Draw inputs over the full range of their types."""
        made = {}
        for name, value in self.inputs.items():
            scale, zero = value.exact
            low = int(np.iinfo(zero.dtype).min) - int(zero)
            codes = rng.integers(low, low + (1 << value.bits), value.shape)
            made[name] = np.asarray(codes * scale, np.float32)
        return made


def sizes_of(rng: Rng, count: int) -> tuple[int, ...]:
    """Draw sizes: often 1, odd ones, and sometimes a size above that of small arrays."""
    choices = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 33]
    while True:
        sizes = tuple(int(value) for value in rng.choice(choices, count))
        if np.prod(sizes) <= LARGEST:
            return sizes


def is_image(value: Quantised) -> bool:
    return len(value.shape) == 4
