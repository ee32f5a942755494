"""A small Llama trained on Python's documentation and on sums, and text that it was not trained on."""

from __future__ import annotations

from importlib.resources import files

PROMPT = "Ada has 23 apples. Ben has 45 apples. How many do they have?"
"""A prompt that asks for the sum of two numbers that the model was not trained on."""


def model() -> bytes:
    """Return the language model as a GGUF file, with matrices of type ``Q8_0``."""
    return (files(__package__) / "model.gguf").read_bytes()


def load() -> tuple[bytes, str]:
    """Return the model as a GGUF file, and a prompt for it."""
    return model(), PROMPT


def held_out() -> list[str]:
    """Return paragraphs from weft's own docstrings: English like the training text, but by other authors."""
    return (files(__package__) / "held_out.txt").read_text("utf-8").splitlines()
