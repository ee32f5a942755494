"""LiteRT, the runtime of TFLite models, to compare results with; it is optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FileError
from weft.hdl.schema import printable

HOW_TO_INSTALL = "pip install 'weft[litert]'"
_SHOWN = 200
"""Characters of a message of LiteRT."""


Ends = Mapping[str, tuple[str, tuple[int, ...]]]
"""Inputs or outputs by name: dtype and shape, in order."""


def run(
    model: Path, runs: Sequence[Mapping[str, np.ndarray]], wanted: Ends, made: Ends
) -> list[dict[str, np.ndarray]]:
    """The outputs of a TFLite model by LiteRT's reference kernels, in `runs` that follow each other, named as those of
    a program, which has the inputs `wanted` and the outputs `made`.

    Raises
    ------
    FileError
        If LiteRT is not installed or refuses the model, or the model has other inputs and outputs.
    """
    interpreter = _interpreter(model)
    details = interpreter.get_input_details()
    _check(model, "inputs", details, wanted)
    outputs = interpreter.get_output_details()
    _check(model, "outputs", outputs, made)
    found = []
    for inputs in runs:
        for detail, name in zip(details, wanted, strict=True):
            interpreter.set_tensor(detail["index"], inputs[name])
        _guarded(model, interpreter.invoke)
        values = (interpreter.get_tensor(detail["index"]) for detail in outputs)
        found.append(dict(zip(made, values, strict=True)))
    return found


def compared(ours: Sequence[dict[str, np.ndarray]], theirs: Sequence[dict[str, np.ndarray]]) -> str:
    """How many values of the outputs of all runs differ, and by how much, as a sentence."""
    pairs = [
        (value, other[name]) for one, other in zip(ours, theirs, strict=True) for name, value in one.items()
    ]
    apart = np.concatenate([np.abs(np.subtract(*pair, dtype=np.float64)).ravel() for pair in pairs])
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
