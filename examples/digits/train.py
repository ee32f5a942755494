"""Train, quantise and store the digits network: ``pip install -e '.[train]'``, then run this file (half a minute).

It writes ``digits.onnx`` (QDQ int8) and ``digits_test.npz`` (the held-out quarter of the data) next to itself.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 7
EPOCHS = 60
BATCH = 64
CALIBRATION_IMAGES = 256
LEAST_ACCURACY = 0.97


def conv(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 3x3 convolution that keeps the size, and batch normalisation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


class Digits(nn.Module):
    """Two convolutions, a residual block, pooling, one more convolution, global average and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(1, 16), conv(16, 32)
        self.residual1, self.residual2 = conv(32, 32), conv(32, 32)
        self.conv3, self.classify = conv(32, 64), nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(image))))
        x = torch.relu(x + self.residual2(torch.relu(self.residual1(x))))
        x = torch.relu(self.conv3(nn.functional.max_pool2d(x, 2)))
        return self.classify(nn.functional.avg_pool2d(x, 4).flatten(1))


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, held-out images, and the labels of both; images are 0 to 16, (count, 1, 8, 8)."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    return tuple(
        train_test_split(images, digits.target, test_size=0.25, stratify=digits.target, random_state=SEED)
    )


def shift_randomly(images: torch.Tensor) -> torch.Tensor:
    """Return every image moved by up to one pixel in each direction."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    y, x = torch.randint(0, 3, (2, len(images), 1, 1))
    grid = torch.arange(8)
    rows, columns = y + grid[None, :, None], x + grid[None, None, :]
    return padded[torch.arange(len(images))[:, None, None], 0, rows, columns][:, None]


def train(images: np.ndarray, labels: np.ndarray) -> Digits:
    torch.manual_seed(SEED)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = Digits()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(
                model(shift_randomly(x[batch])), y[batch], label_smoothing=0.05
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


class Calibration(CalibrationDataReader):
    """Training images, one at a time, under the name of the model's input."""

    def __init__(self, images: np.ndarray) -> None:
        self._images: Iterator[np.ndarray] = iter(images[:CALIBRATION_IMAGES])

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self._images, None)
        return None if image is None else {"image": image[None].astype(np.float32) / 16}


def quantise(model: Digits, images: np.ndarray, target: Path) -> None:
    """Export `model` with static batch 1 and write it as QDQ int8, weights symmetric and per channel."""
    with tempfile.TemporaryDirectory() as folder:
        exported, prepared = Path(folder, "float.onnx"), Path(folder, "prepared.onnx")
        torch.onnx.export(
            model, (torch.zeros(1, 1, 8, 8),), exported, input_names=["image"], output_names=["logits"],
            opset_version=20, dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
        quant_pre_process(exported, prepared)
        quantize_static(
            prepared, target, Calibration(images), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
        )  # fmt: skip
    stored = onnx.load(target)
    tidy(stored)
    give_average_its_scale(stored, images[:CALIBRATION_IMAGES].astype(np.float32) / 16)
    onnx.checker.check_model(stored, full_check=True)
    onnx.save(stored, target)


def tidy(model: onnx.ModelProto) -> None:
    """Name layers after their modules, and drop what the tools left: their metadata and unused operator sets."""
    model.doc_string = "Handwritten digits, 8 by 8; trained and quantised by train.py."
    standard = [opset for opset in model.opset_import if not opset.domain]
    del model.opset_import[:], model.metadata_props[:]
    model.opset_import.extend(standard)
    for value in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            node.name = node.input[1].removesuffix("_DequantizeLinear_Output").split(".")[0]
        elif node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            node.name = {"MaxPool": "max_pool", "AveragePool": "average_pool"}.get(
                node.op_type, node.op_type.lower()
            )


def give_average_its_scale(model: onnx.ModelProto, images: np.ndarray) -> None:
    """Give the global average its own scale; `images` (count, 1, 8, 8) float32 from 0 to 1 show its range.

    The quantiser lets an average keep its input's scale. Averages of 16 values then fall on exact halves all the time,
    which float arithmetic rounds either way, and much of the range goes unused. With a scale of its own the average
    uses all of it, and integer and float arithmetic agree. `model` changes in place.
    """
    average = next(node for node in model.graph.node if node.op_type == "AveragePool")
    low, high = _range(model, average.output[0], images)
    scale = np.float32((high - low) / 255)
    zero = np.int8(np.clip(np.rint(-128 - low / scale), -128, 127))
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.asarray(scale), "average_scale"),
            numpy_helper.from_array(np.asarray(zero), "average_zero_point"),
        ]
    )
    values = {average.output[0]}
    for node in model.graph.node:  # quantised and back, then reshaped, and quantised and back once more
        if node.input[0] in values and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.input[1], node.input[2] = "average_scale", "average_zero_point"
            values.add(node.output[0])
        elif node.input[0] in values and node.op_type == "Reshape":
            values.add(node.output[0])
        elif node.input[0] in values and node.op_type == "Gemm":
            _requantise_bias(model, node, scale)


def _range(model: onnx.ModelProto, name: str, images: np.ndarray) -> tuple[float, float]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options)
    seen = [session.run([name], {"image": image[None]})[0] for image in images]
    return min(0.0, float(np.min(seen))), float(np.max(seen))


def _requantise_bias(model: onnx.ModelProto, gemm: onnx.NodeProto, scale: np.float32) -> None:
    # The bias is stored at the product of input and weight scale.
    makers = {node.output[0]: node for node in model.graph.node}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    bias, weight = makers[gemm.input[2]], makers[gemm.input[1]]
    stored, old = (numpy_helper.to_array(tensors[name]) for name in bias.input[:2])
    new = (scale * numpy_helper.to_array(tensors[weight.input[1]])).astype(np.float32).reshape(old.shape)
    value = np.rint(stored.astype(np.float64) * old / new).astype(np.int32)
    tensors[bias.input[0]].CopyFrom(numpy_helper.from_array(value, bias.input[0]))
    tensors[bias.input[1]].CopyFrom(numpy_helper.from_array(new, bias.input[1]))


def accuracy(model: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images that ONNX Runtime, without its own optimisations, classifies as labelled."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options)
    right = sum(
        int(np.argmax(session.run(None, {"image": image[None].astype(np.float32) / 16})[0]) == label)
        for image, label in zip(images, labels, strict=True)
    )
    return right / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write to")
    folder = parser.parse_args().output
    train_images, test_images, train_labels, test_labels = split()
    model = train(train_images, train_labels)
    with torch.no_grad():
        logits = model(torch.tensor(test_images, dtype=torch.float32) / 16).numpy()
    print(f"float accuracy {np.mean(logits.argmax(1) == test_labels):.4f}")
    quantise(model, train_images, folder / "digits.onnx")
    np.savez_compressed(folder / "digits_test.npz", images=test_images, labels=test_labels.astype(np.uint8))
    reached = accuracy(folder / "digits.onnx", test_images, test_labels)
    print(f"int8 accuracy  {reached:.4f} on {len(test_labels)} held-out images")
    if reached < LEAST_ACCURACY:
        raise SystemExit(f"the quantised network reaches {reached:.4f}, less than {LEAST_ACCURACY}")


if __name__ == "__main__":
    main()
