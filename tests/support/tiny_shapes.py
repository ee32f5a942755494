"""Networks with the shapes of MLPerf Tiny's four references and random weights, as TFLite files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.tflite_networks import Network


class _Network(Network):
    """A network without biases, which would switch off whole channels: these would need no computation and no room."""

    def bias(self, data: int, scales: np.ndarray, depth: int) -> int:
        made = super().bias(data, scales, depth)
        tensor = self.model.tensors[made]
        assert tensor.data is not None
        tensor.data = bytes(len(tensor.data))
        return made


def anomaly_detection(seed: int = 1) -> bytes:
    """Build the autoencoder: 640 values through layers of 128, 8 in the middle."""
    net = _Network(np.random.default_rng(seed))
    value = net.input((1, 640))
    for outputs in (128, 128, 128, 128, 8, 128, 128, 128, 128, 640):
        value = net.dense(value, outputs)
    return net.ends(value)


def keyword_spotting(seed: int = 2) -> bytes:
    """Build DS-CNN: a convolution of 10 x 4, four depthwise and pointwise ones of 64 channels, 12 classes."""
    net = _Network(np.random.default_rng(seed))
    data = net.input((1, 49, 10, 1))
    value = net._conv(data, (64, 10, 4, 1), 0, 40, "CONV_2D", "Conv2D", 2, 0)
    for _ in range(4):
        value = net.conv(net.depthwise(value), 64, kernel=1)
    return net.ends(net.softmax(net.dense(net.flatten(net.pool(value)), 12)))


def image_classification(seed: int = 3) -> bytes:
    """Build ResNet-8 for images of 32 x 32."""
    net = _Network(np.random.default_rng(seed))
    value = net.conv(net.input((1, 32, 32, 3)), 16)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = net.conv(net.conv(value, channels, stride=stride), channels)
        value = net.add(inner, value if stride == 1 else net.conv(value, channels, kernel=1, stride=stride))
    return net.ends(net.softmax(net.dense(net.flatten(net.pool(value)), 10)))


def visual_wake_words(seed: int = 4) -> bytes:
    """Build MobileNetV1 with a quarter of its channels for images of 96 x 96."""
    net = _Network(np.random.default_rng(seed))
    value = net.conv(net.input((1, 96, 96, 3)), 8, stride=2)
    blocks = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
    for channels, stride in blocks:
        value = net.conv(net.depthwise(value, stride=stride), channels, kernel=1)
    return net.ends(net.softmax(net.dense(net.flatten(net.pool(value)), 2)))


NETWORKS: dict[str, Callable[[], bytes]] = {
    "anomaly detection": anomaly_detection,
    "keyword spotting": keyword_spotting,
    "image classification": image_classification,
    "visual wake words": visual_wake_words,
}
"""Networks by their names in ``benchmarks/mlperf_tiny.py``."""
