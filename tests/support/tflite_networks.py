"""Small TFLite networks, modelled on those that microcontrollers run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.tflite_cases import RELU6, SAME, VALID, Case

NONE = 0


class Network(Case):
    """A network that grows operator by operator; every method returns its output tensor."""

    def _conv(
        self,
        data: int,
        shape: Sequence[int],
        axis: int,
        depth: int,
        name: str,
        kind: str,
        stride: int,
        padding: int,
    ) -> int:
        filters, scales = self.weights(shape, axis, data)
        n, h, w, _ = self.model.tensors[data].shape
        span = shape[1]
        made = [-(-size // stride) if padding == SAME else (size - span) // stride + 1 for size in (h, w)]
        outputs = shape[axis]
        bias = self.bias(data, scales, depth)
        result = self.model.tensor(
            (n, *made, outputs), self.dtype, self.product(data, scales, depth), self.zero()
        )
        self.model.operator(
            name, [data, filters, bias], [result], kind, Padding=padding, StrideH=stride, StrideW=stride,
            DilationHFactor=1, DilationWFactor=1, FusedActivationFunction=RELU6,
        )  # fmt: skip
        return result

    def conv(self, data: int, outputs: int, kernel: int = 3, stride: int = 1, padding: int = SAME) -> int:
        channels = self.model.tensors[data].shape[3]
        shape = (outputs, kernel, kernel, channels)
        return self._conv(data, shape, 0, kernel**2 * channels, "CONV_2D", "Conv2D", stride, padding)

    def depthwise(self, data: int, kernel: int = 3, stride: int = 1, padding: int = SAME) -> int:
        shape = (1, kernel, kernel, self.model.tensors[data].shape[3])
        return self._conv(data, shape, 3, kernel**2, "DEPTHWISE_CONV_2D", "DepthwiseConv2D", stride, padding)

    def like(self, data: int, shape: Sequence[int]) -> int:
        """Add a tensor with the scale of another."""
        item = self.model.tensors[data]
        return self.model.tensor(shape, self.dtype, item.scale[0], item.zero[0])

    def add(self, a: int, b: int) -> int:
        scale = max(self.model.tensors[index].scale[0] for index in (a, b)) * 1.3
        result = self.model.tensor(self.model.tensors[a].shape, self.dtype, scale, self.zero())
        self.model.operator("ADD", [a, b], [result], "Add", FusedActivationFunction=NONE)
        return result

    def pool(self, data: int) -> int:
        """Add the mean of all rows and columns."""
        n, h, w, c = self.model.tensors[data].shape
        result = self.like(data, (n, 1, 1, c))
        self.model.operator("AVERAGE_POOL_2D", [data], [result], "Pool2D", Padding=VALID, FilterHeight=h, FilterWidth=w,
                            StrideH=h, StrideW=w)  # fmt: skip
        return result

    def flatten(self, data: int) -> int:
        n, *sizes = self.model.tensors[data].shape
        shape = (n, int(np.prod(sizes)))
        result = self.like(data, shape)
        self.model.operator("RESHAPE", [data, self.model.constant(shape)], [result], "Reshape")
        return result

    def dense(self, data: int, outputs: int) -> int:
        rows, inputs = self.model.tensors[data].shape
        matrix, scales = self.weights((outputs, inputs), 0, data)
        bias = self.bias(data, scales, inputs)
        result = self.model.tensor(
            (rows, outputs), self.dtype, self.product(data, scales, inputs), self.zero()
        )
        self.model.operator("FULLY_CONNECTED", [data, matrix, bias], [result], "FullyConnected")
        return result

    def softmax(self, data: int) -> int:
        result = self.model.tensor(
            self.model.tensors[data].shape, self.dtype, 1 / 256, -128 + 128 * (self.dtype == "uint8")
        )
        self.model.operator("SOFTMAX", [data], [result], "Softmax", Beta=1.0)
        return result

    def ends(self, *results: int) -> bytes:
        """Return the file with these outputs."""
        for at, index in enumerate(results):
            self.model.tensors[index].name = f"output{at}"
        return self.model.write(self.inputs, results)


def convolutions(seed: int = 1, dtype: str = "int8", softmax: bool = True) -> bytes:
    """Build a residual block of convolutions, some depthwise, a pool and a classifier."""
    net = Network(np.random.default_rng(seed), dtype)
    value = net.conv(net.input((1, 9, 8, 3)), 6, stride=2)
    inner = net.conv(net.depthwise(value), 6, kernel=1)
    value = net.add(inner, value)
    value = net.depthwise(value, stride=2, padding=VALID)
    value = net.dense(net.flatten(net.pool(value)), 4)
    return net.ends(net.softmax(value) if softmax else value)


def rows(seed: int = 2, dtype: str = "uint8") -> bytes:
    """Build an autoencoder."""
    net = Network(np.random.default_rng(seed), dtype)
    value = net.input((2, 10))
    for outputs in (8, 3, 10):
        value = net.dense(value, outputs)
    return net.ends(value)
