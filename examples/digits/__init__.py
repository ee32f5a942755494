"""A small residual network that reads handwritten digits, quantised to int8, and images it has never seen."""

from __future__ import annotations

from importlib.resources import files

import numpy as np


def model() -> bytes:
    """Return the quantised network as a serialised ONNX model: ``image`` float32 (1, 1, 8, 8) to ``logits`` (1, 10)."""
    return (files(__package__) / "digits.onnx").read_bytes()


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Return images (count, 1, 8, 8), float32 from 0 to 1, and labels (count,), int64, that training has never seen."""
    with (files(__package__) / "digits_test.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["images"].astype(np.float32) / np.float32(16), arrays["labels"].astype(np.int64)
