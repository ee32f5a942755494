"""Compare results with LiteRT, the optional runtime of TFLite models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FileError
from weft.hdl.schema import printable

HOW_TO_INSTALL = "pip install 'weft[litert]'"
# Characters of a message of LiteRT to print
_MESSAGE_LENGTH = 200


Signature = Mapping[str, tuple[str, tuple[int, ...]]]
"""Inputs or outputs in order: (dtype name, shape) by name."""


def run(
    model: Path, runs: Sequence[Mapping[str, np.ndarray]], inputs: Signature, outputs: Signature
) -> list[dict[str, np.ndarray]]:
    """Run a TFLite model on LiteRT's reference kernels, and return the outputs of each of the consecutive `runs`.

    `inputs` and `outputs` are those of the compiled program, whose names the arrays have.

    Raises
    ------
    FileError
        If LiteRT is not installed or refuses the model, or the model's inputs or outputs differ.
    """
    interpreter = _interpreter(model)
    input_details = interpreter.get_input_details()
    _check(model, "inputs", input_details, inputs)
    output_details = interpreter.get_output_details()
    _check(model, "outputs", output_details, outputs)
    results = []
    for arrays in runs:
        for detail, name in zip(input_details, inputs, strict=True):
            interpreter.set_tensor(detail["index"], arrays[name])
        _call(model, interpreter.invoke)
        values = (interpreter.get_tensor(detail["index"]) for detail in output_details)
        results.append(dict(zip(outputs, values, strict=True)))
    return results


def describe_differences(
    ours: Sequence[dict[str, np.ndarray]], theirs: Sequence[dict[str, np.ndarray]]
) -> str:
    """Return a sentence with the number of differing output values of all runs, and the largest difference."""
    pairs = [
        (value, other[name]) for own, other in zip(ours, theirs, strict=True) for name, value in own.items()
    ]
    differences = np.concatenate([np.abs(np.subtract(*pair, dtype=np.float64)).ravel() for pair in pairs])
    wrong = np.count_nonzero(differences)
    most = f", by {differences.max():g} at most" if wrong else ""
    return f"LiteRT: {wrong:,} of {differences.size:,} output values differ{most}"


def _interpreter(model: Path) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise FileError(f"--against {model} needs LiteRT: {HOW_TO_INSTALL}") from None
    interpreter = _call(
        model,
        lambda: Interpreter(
            model_content=model.read_bytes(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
        ),
    )
    _call(model, interpreter.allocate_tensors)
    return interpreter


def _call(model: Path, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (ValueError, RuntimeError) as error:
        why = printable(" ".join(str(error).split()), _MESSAGE_LENGTH).rstrip(".")
        raise FileError(f"{model}: LiteRT does not run it: {why}") from None


def _check(model: Path, kind: str, details: list[dict[str, Any]], signature: Signature) -> None:
    """Raise `FileError` if the model's inputs or outputs differ from the program's."""
    theirs = [(np.dtype(detail["dtype"]).name, tuple(detail["shape"].tolist())) for detail in details]
    ours = list(signature.values())
    if theirs != ours:
        raise FileError(
            f"{model} has {kind} {_signature_text(theirs)}, the program {_signature_text(ours)}: it is another model"
        )


def _signature_text(kinds: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {'x'.join(map(str, shape))}" for dtype, shape in kinds)
