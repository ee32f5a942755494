"""LiteRT, the runtime of TFLite models, to compare results with; it is optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FileError
from weft.hdl.files.schema import printable

HOW_TO_INSTALL = "pip install 'weft[litert]'"
_SHOWN = 200
"""Characters of a message of LiteRT."""


Ends = Mapping[str, tuple[str, tuple[int, ...]]]
"""Inputs or outputs by name: dtype and shape, in order."""


def run(model: Path, inputs: Mapping[str, np.ndarray], wanted: Ends, made: Ends) -> dict[str, np.ndarray]:
    """The outputs of a TFLite model by LiteRT's reference kernels, named as those of a program, which has the inputs
    `wanted` and the outputs `made`.

    Raises
    ------
    FileError
        If LiteRT is not installed or refuses the model, or the model has other inputs and outputs.
    """
    interpreter = _interpreter(model)
    details = interpreter.get_input_details()
    _check(model, "inputs", details, wanted)
    for detail, name in zip(details, wanted, strict=True):
        interpreter.set_tensor(detail["index"], inputs[name])
    _guarded(model, interpreter.invoke)
    details = interpreter.get_output_details()
    _check(model, "outputs", details, made)
    return {name: interpreter.get_tensor(detail["index"]) for name, detail in zip(made, details, strict=True)}


def compared(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> str:
    """How many values differ, and by how much, as a sentence."""
    apart = np.concatenate(
        [np.abs(np.subtract(value, theirs[name], dtype=np.float64)).ravel() for name, value in ours.items()]
    )
    wrong = np.count_nonzero(apart)
    most = f", by {apart.max():g} at most" if wrong else ""
    return f"LiteRT: {wrong:,} of {apart.size:,} output values differ{most}"


def _interpreter(model: Path) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise FileError(f"--against {model} needs LiteRT: {HOW_TO_INSTALL}") from None
    made = _guarded(
        model,
        lambda: Interpreter(
            model_content=model.read_bytes(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
        ),
    )
    _guarded(model, made.allocate_tensors)
    return made


def _guarded(model: Path, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (ValueError, RuntimeError) as error:
        why = printable(" ".join(str(error).split()), _SHOWN).rstrip(".")
        raise FileError(f"{model}: LiteRT does not run it: {why}") from None


def _check(model: Path, kind: str, details: list[dict[str, Any]], ends: Ends) -> None:
    """Raise `FileError` if the model's ends are not those of a program."""
    theirs = [(np.dtype(detail["dtype"]).name, tuple(detail["shape"].tolist())) for detail in details]
    ours = list(ends.values())
    if theirs != ours:
        raise FileError(f"{model} has {kind} {_told(theirs)}, the program {_told(ours)}: it is another model")


def _told(ends: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {'x'.join(map(str, shape))}" for dtype, shape in ends)
