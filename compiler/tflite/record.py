"""What weft knows of one operator of TFLite, or of several that are alike."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.tflite.context import Convert


@dataclass(frozen=True)
class Record:
    """Operators by the format's `names`, the number of inputs that they take at least and at most (None: any), what
    of ONNX they become, for the documentation, and the function that writes it. `states` are inputs that are
    variables, kept from run to run, and with `handles` tensors may be handles of variables.
    """

    names: tuple[str, ...]
    inputs: tuple[int, int | None]
    becomes: str
    convert: Convert
    states: tuple[int, ...] = ()
    handles: bool = False
