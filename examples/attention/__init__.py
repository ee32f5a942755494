"""A small transformer that reads handwritten digits, quantised to int8, and images it has never seen."""

from __future__ import annotations

from importlib.resources import files

from weft.examples.digits import held_out

__all__ = ["held_out", "model"]


def model() -> bytes:
    """Return the quantised network as a serialised ONNX model: ``image`` float32 (1, 1, 8, 8) to ``logits`` (1, 10)."""
    return (files(__package__) / "attention.onnx").read_bytes()
