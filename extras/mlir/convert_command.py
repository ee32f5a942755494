"""`weft convert` and `weft.convert`: models as MLIR text of TOSA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import command
from weft.cli.options import Model, Shapes, shapes_of

if TYPE_CHECKING:
    from weft.compiler.onnx.reader import Source


def convert_model(
    model: Source,
    *,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> str:
    """A quantised model as MLIR text: a function ``main`` of TOSA that computes the bytes that the device does.

    Arguments as those of `weft.compile`, which takes the text as any model, and makes a program of the same outputs.
    Attributes of arguments and results hold the quantisation of floats at the ends.

    Raises
    ------
    CompileError, InputError
        As `weft.compile`; also if something but that quantisation runs on the host, TOSA has nothing that computes the
        same bytes, or xDSL is not installed.
    """
    from weft.api import graph_of
    from weft.compiler.onnx.model import COMPLETE
    from weft.extras.mlir.writer import written

    return written(graph_of(model, COMPLETE, shapes, states))


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
