"""`weft convert` and `weft.convert`: write a model as TOSA in MLIR text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import Model, Shapes, command, shapes_of

if TYPE_CHECKING:
    from weft.compiler.onnx.reader import Source


def convert_model(
    model: Source,
    *,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> str:
    """Return a quantised model as MLIR text: a TOSA function ``main`` that computes the same bytes as the device.

    The arguments are those of `weft.compile`, which also compiles the returned text. Attributes of arguments and
    results hold the quantisation of float inputs and outputs.

    Raises
    ------
    CompileError, InputError
        As `weft.compile`; also if anything but the quantisation of inputs and outputs runs on the host, if TOSA has no
        operations that compute the same bytes, or if xDSL is not installed.
    """
    from weft.api import graph_of
    from weft.compiler.onnx.model import COMPLETE
    from weft.extras.mlir.writer import write_tosa

    return write_tosa(graph_of(model, COMPLETE, shapes, states))


@command()
def convert(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="MLIR file to write.", show_default=False)],
    shape: Shapes = [],  # noqa: B006
) -> None:
    """Convert a quantised model to MLIR (TOSA) that computes the same bytes."""
    files.require_file(model)
    files.check_overwrites({"--output": output}, [model], {"--output": (".mlir",)})
    with reports.progress() as progress:
        progress(f"reading {model.name}")
        text = convert_model(model, shapes=shapes_of(shape))
    files.write_text(output, text)
    count = text.count('"tosa.') - text.count('"tosa.const')
    reports.say(f"{output}: {model.name} as {count:,} operations of TOSA")
