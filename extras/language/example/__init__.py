"""A small Llama that has read Python's documentation and does sums, and text that it has never seen."""

from __future__ import annotations

from importlib.resources import files

PROMPT = "Ada has 23 apples. Ben has 45 apples. How many do they have?"
"""How a text may begin; the model goes on with a sum of numbers that it has not been trained on."""


def model() -> bytes:
    """The language model as a GGUF file, its matrices of type ``Q8_0``."""
    return (files(__package__) / "model.gguf").read_bytes()


def load() -> tuple[bytes, str]:
    """Return the model as a GGUF file, and a prompt for it."""
    return model(), PROMPT


def held_out() -> list[str]:
    """Paragraphs from weft's own docstrings, which are English like what the model was trained on, but by others."""
    return (files(__package__) / "held_out.txt").read_text("utf-8").splitlines()
