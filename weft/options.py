"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(help="QDQ int8 ONNX model.", show_default=False)]
Configuration = Annotated[
    str, typer.Option("--config", help="Preset, or a JSON file of configuration fields.")
]
