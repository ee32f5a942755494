"""Small valid files that hostile ones are derived from."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from support import attention_models, qdq_models, tflite_cases, tflite_networks

import weft
from weft.boards.link.frames import Answer, Identity, Operation, Request
from weft.hdl.isa.config import PRESETS


def _convolutions() -> onnx.ModelProto:
    """Build a residual block, a pool and a classifier, with a host operator in the middle."""
    builder = qdq_models.Builder(np.random.default_rng(1))
    value = builder.conv(builder.input((1, 3, 7, 6)), 5, pads=(1, 1, 1, 1), relu=True)
    inner = builder.conv(value, 5, pads=(1, 1, 1, 1), per_channel=False)
    value = builder.add(inner, value)
    value = builder.like(builder.node("LogSoftmax", [builder.dequantise(value)]), value.shape, value)
    value = builder.pool(value, "MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    return builder.finish(builder.dense(builder.flatten(value), 4))


def _rows() -> onnx.ModelProto:
    """Build matrix products, a concatenation and softmax."""
    builder = qdq_models.Builder(np.random.default_rng(2))
    source = builder.input((3, 10), True)
    parts = [builder.dense(source, 6, op="MatMul"), builder.dense(source, 5)]
    right = builder.like(builder.dequantise(parts[1]), parts[1].shape, parts[0])
    value = builder.concat([parts[0], right], 1)
    value = builder.quantise(
        builder.node("Softmax", [builder.dequantise(value)]), value.shape, 1 / 256, 0, True
    )
    return builder.finish(value)


def _attention() -> onnx.ModelProto:
    return attention_models.operator(np.random.default_rng(3), attention_models.Sizes())


@cache
def models() -> dict[str, bytes]:
    """Return serialised ONNX models by name."""
    made = {"convolutions": _convolutions(), "rows": _rows(), "attention": _attention()}
    return {name: model.SerializeToString() for name, model in made.items()}


@cache
def tflite() -> dict[str, bytes]:
    """Return TFLite models by the names of `models`."""
    return {
        "convolutions": tflite_networks.convolutions(),
        "rows": tflite_networks.rows(),
        "attention": tflite_cases.chain(5, 8).finish(),
    }


LAYERS = qdq_models.LAYERS | {
    "cnn": lambda rng: qdq_models.random_cnn(rng, size=6, channels=4, blocks=2),
    "attention": attention_models.random_operator,
    "written out": attention_models.random_written_out,
}
"""Generators of random models."""


@cache
def model(name: str) -> bytes:
    """Return one of `models`, or of `LAYERS` with a seed: ``conv 7``."""
    if name in models():
        return models()[name]
    kind, seed = name.rsplit(" ", 1)
    return LAYERS[kind](np.random.default_rng([int(seed), len(kind)])).SerializeToString()


@cache
def program(name: str) -> dict[str, bytes]:
    """Return the files of a model's program for ``tiny``, by name."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        weft.compile(models()[name], "tiny").save(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@cache
def inputs(name: str) -> dict[str, np.ndarray]:
    """Return inputs of a model."""
    return qdq_models.feeds(onnx.load_from_string(models()[name]), np.random.default_rng(4))


@cache
def configuration() -> bytes:
    values = {"preset": "tiny", "lanes": 4, "queue_depth": 2, "table_depth": 256}
    return json.dumps(values, indent=1).encode()


@cache
def frames() -> tuple[bytes, ...]:
    """Return bodies of frames between a host and a board."""
    identity = Identity("ulx3s-85f", PRESETS["small"].digest, 1 << 25, 50_000_000, 1024)
    return (
        Request(7, Operation.WRITE_MEMORY, 0x100, 40, bytes(range(100, 140))).encode(),
        Answer(8, Operation.READ_MEMORY, 1, bytes(range(60))).encode(),
        identity.encode(),
    )


def write(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
