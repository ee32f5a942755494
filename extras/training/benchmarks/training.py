"""Training on the device, measured: python extras/training/benchmarks/training.py products | scratch | changed | step

products  array utilisation of products of gradients by weights, on the RTL
step      cycles of a training step of the digits network by kind of operator, in the cycle model
scratch   the digits network from random weights, on the golden interpreter; needs scikit-learn for the data
changed   the deployed digits network after a change of the data; needs scikit-learn as well
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import read
from weft.examples import digits
from weft.extras.training.gradient.real_network import to_real_network
from weft.extras.training.interface import accuracy
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Trainer, layers_of

CONFIG = weft.Config.load("default")
SEED = 7
PRODUCTS = {
    "1 x 1, 64 to 64 channels, 2,048 pixels": (64, 2048, 64),
    "3 x 3, 32 to 32 channels, 2,048 pixels": (32, 2048, 288),
    "3 x 3, 128 to 128 channels, 3,136 pixels": (128, 3136, 1152),
    "768 to 768 features, 512 rows": (768, 512, 768),
    "3072 to 768 features, 256 rows": (768, 256, 3072),
}
"""Rows, contraction and columns of gradients by weights: both matrices are transposed on the way."""


def product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Return weight gradients for gradients (depth, rows) of results and inputs (depth, columns)."""
    nodes = []
    for name in ("a", "b"):
        nodes.append(helper.make_node("QuantizeLinear", [name, "one", "zero"], [f"{name}/q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}/q", "one", "zero"], [f"{name}/d"]))
    nodes.append(helper.make_node("Transpose", ["a/d"], ["a/t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["a/t", "b/d"], ["sum"], name="gradient"))
    nodes.append(helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["y/q"]))
    nodes.append(helper.make_node("DequantizeLinear", ["y/q", "scale", "zero"], ["y"]))
    shapes = {"a": (depth, rows), "b": (depth, columns)}
    graph = helper.make_graph(
        nodes, "gradient",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, columns))],
        [numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(np.float32(depth), "scale"),
         numpy_helper.from_array(np.int8(0), "zero")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def products() -> None:
    rng = np.random.default_rng(SEED)
    for name, sizes in PRODUCTS.items():
        program = weft.compile(product(*sizes), CONFIG)
        inputs = {
            key: rng.integers(-127, 128, shape).astype(np.float32)
            for key, (_, shape) in program.inputs.items()
        }
        golden, rtl = (program.run(inputs, on=on) for on in ("golden", "rtl"))
        if golden.memory != rtl.memory:
            raise SystemExit(f"{name}: the RTL's memory is another one than the golden interpreter's")
        (layer,) = rtl.report["layers"]
        print(f"| {name} | {layer['cycles']:,} | {layer['utilisation']:.1%} |", flush=True)


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training and held-out images float32 (count, 1, 8, 8) with labels, split as the example does."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits.images.astype(np.float32)[:, None] / 16
    train, test, labels, test_labels = train_test_split(
        images, digits.target, test_size=0.25, stratify=digits.target, random_state=SEED
    )
    return train, labels, test, test_labels


def random_network() -> onnx.ModelProto:
    """Return the digits network in real numbers with random weights (He et al., 2015) and no biases."""
    real_network = to_real_network(read(digits.model()))
    network, rng = real_network.with_original_names(), np.random.default_rng(SEED)
    constants = dict(network.constants)
    for node, names in layers_of(network):
        for name in names:
            shape = constants[name].shape
            wide = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.0
            # The second half of a residual block begins small, so that the block begins as the identity.
            wide *= 0.1 if node.name == "residual2" else 1.0
            constants[name] = (rng.normal(size=shape) * wide).astype(np.float32)
    return model_of(resolve(dataclasses.replace(network, constants=constants)).network)


def train_from_scratch(epochs: int = 20) -> None:
    train, labels, test, test_labels = data()
    started = time.time()
    trained = weft.train(
        random_network(), {"image": train}, labels, CONFIG, layers=None, epochs=epochs, rate=0.01, seed=SEED,
        progress=_progress(started),
    )  # fmt: skip
    for index, epoch in enumerate(trained.epochs, 1):
        print(f"epoch {index}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.2%}")
    quantised = weft.quantise(trained.model, {"image": train}).model
    print(
        f"held out, on the golden interpreter: {accuracy(quantised, {'image': test}, test_labels, CONFIG):.2%}"
    )
    print(f"{time.time() - started:.0f} s")


def _progress(started: float) -> Callable[[str], None]:
    def report(text: str) -> None:
        if "compiling" in text:
            print(f"{time.time() - started:.0f} s: {text}", file=sys.stderr, flush=True)

    return report


def shift(images: np.ndarray) -> np.ndarray:
    """Shift images two pixels up and to the left."""
    return np.pad(images, ((0, 0), (0, 0), (0, 2), (0, 2)))[:, :, 2:, 2:]


def retrain() -> None:
    train, labels, test, test_labels = data()
    before = accuracy(digits.model(), {"image": test}, test_labels, CONFIG)
    print(f"as deployed: {before:.2%}", flush=True)
    for name, change in (("inverted", lambda images: 1 - images), ("shifted", shift)):
        lost = accuracy(digits.model(), {"image": change(test)}, test_labels, CONFIG)
        for layers, epochs, rate in ((1, 10, 0.03), (3, 10, 0.01), (None, 8, 0.005)):
            trained = weft.train(
                digits.model(),
                {"image": change(train)},
                labels,
                CONFIG,
                layers=layers,
                epochs=epochs,
                rate=rate,
            )
            result = accuracy(trained.model, {"image": change(test)}, test_labels, CONFIG)
            share = (result - lost) / (before - lost)
            print(f"| {name} | {layers or 'all'} | {lost:.1%} | {result:.1%} | {share:.1%} |", flush=True)


def step() -> None:
    rng = np.random.default_rng(SEED)
    images, labels = digits.held_out()
    for layers in (1, 3, None):
        trainer = Trainer(digits.model(), CONFIG, Settings(), layers=layers)
        trainer.prepare(0, {"image": images}, labels, rng)
        program = trainer.program
        report = program.run(trainer.batch({"image": images}, labels, np.arange(32)), on="timing").report
        kinds: Counter[str] = Counter()
        for layer in report["layers"]:
            kinds[layer["kind"]] += layer["cycles"]
        summary = ", ".join(f"{kind} {cycles:,}" for kind, cycles in kinds.most_common())
        on_device = sum(node[2] == "device" for node in trainer.nodes)
        print(
            f"{layers or 'all'} layers: {report['cycles']:,} cycles, {report['utilisation']:.1%} of the array; ",
            end="",
        )
        print(f"{on_device} of {len(trainer.nodes)} nodes on the device; {summary}")


if __name__ == "__main__":
    parts = {"products": products, "scratch": train_from_scratch, "changed": retrain, "step": step}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        raise SystemExit(__doc__)
    parts[sys.argv[1]]()
