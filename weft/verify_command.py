"""The command that checks certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from weft import files
from weft import report as reports
from weft.options import Folder, Json, load, writes


def verify(
    folder: Folder,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", help="The model that was compiled: is the certificate of it?", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove once more that a program computes its network, and compare with the certificate in its folder."""
    from weft.certificate import verify as again

    program, _ = load(folder)
    raw = None if model is None else files.existing(model).read_bytes()
    with reports.progress() as progress:
        found = again(program, folder, raw, progress)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=1))
    else:
        reports.say(*found.told)


def add(app: typer.Typer) -> None:
    """Give `app` the command of this module."""
    app.command()(writes(verify))
