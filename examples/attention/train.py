"""Train, quantise and store the attention network: ``pip install -e '.[train]'``, then run this file (a minute).

It writes ``attention.onnx`` (QDQ int8) next to itself. Its data are those of the digits example, held-out quarter
included. The network is a transformer without layer normalisation, so that everything in it runs on the device.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from weft.examples.digits.train import LEAST_ACCURACY, Calibration, accuracy, shift_randomly, split

SEED = 7
EPOCHS = 300
BATCH = 64
TOKENS = 16
HEADS = 4
HIDDEN = 64


class Block(nn.Module):
    """Attention over all tokens and two layers for each token, both added to their input."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mix = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.widen, self.narrow = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        for layer in (self.mix, self.narrow):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is (batch * tokens, hidden): products of matrices then keep their biases when they are exported."""
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(2, 3)) * (HIDDEN // HEADS) ** -0.5
        mixed = torch.matmul(torch.softmax(scores, -1), value).transpose(1, 2)
        x = x + self.mix(mixed.reshape(-1, HIDDEN))
        return x + self.narrow(torch.relu(self.widen(x)))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, TOKENS, HEADS, HIDDEN // HEADS).transpose(1, 2)


class Reader(nn.Module):
    """Patches of 2x2 pixels as tokens, learned positions, two blocks, the mean of all tokens, a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, HIDDEN, 2, stride=2)
        self.position = nn.Parameter(0.3 * torch.randn(1, TOKENS, HIDDEN))
        self.block1, self.block2 = Block(), Block()
        self.classify = nn.Linear(HIDDEN, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.embed(image).flatten(2).transpose(1, 2) + self.position
        x = self.block2(self.block1(x.reshape(-1, HIDDEN)))
        return self.classify(x.reshape(-1, TOKENS, HIDDEN).mean(1))


def train(images: np.ndarray, labels: np.ndarray) -> Reader:
    torch.manual_seed(SEED)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = Reader()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-2)
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=2e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(
                model(shift_randomly(x[batch])), y[batch], label_smoothing=0.05
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    return model.eval()


def quantise(model: Reader, images: np.ndarray, target: Path) -> None:
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
    onnx.checker.check_model(stored, full_check=True)
    onnx.save(stored, target)


def tidy(model: onnx.ModelProto) -> None:
    """Name layers after their modules, and drop what the tools left: their metadata and unused operator sets."""
    model.doc_string = "Handwritten digits, 8 by 8, as 16 tokens; trained and quantised by train.py."
    standard = [opset for opset in model.opset_import if not opset.domain]
    del model.opset_import[:], model.metadata_props[:]
    model.opset_import.extend(standard)
    for value in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    products = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            weight = node.input[1].removesuffix("_DequantizeLinear_Output")
            node.name = weight.removesuffix(".weight")
        elif node.op_type == "MatMul":
            node.name = f"block{products // 2 + 1}.{'attention' if products % 2 else 'scores'}"
            products += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write to")
    target = parser.parse_args().output / "attention.onnx"
    train_images, test_images, train_labels, test_labels = split()
    model = train(train_images, train_labels)
    with torch.no_grad():
        logits = model(torch.tensor(test_images, dtype=torch.float32) / 16).numpy()
    print(f"float accuracy {np.mean(logits.argmax(1) == test_labels):.4f}")
    quantise(model, train_images, target)
    reached = accuracy(target, test_images, test_labels)
    print(f"int8 accuracy  {reached:.4f} on {len(test_labels)} held-out images")
    if reached < LEAST_ACCURACY:
        raise SystemExit(f"the quantised network reaches {reached:.4f}, less than {LEAST_ACCURACY}")


if __name__ == "__main__":
    main()
