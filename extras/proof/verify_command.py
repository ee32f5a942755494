"""The command that proves a compiled program again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import command
from weft.cli.options import Folder, Json, Shapes, States, load, shapes_of, states_of


@command()
def verify(
    folder: Folder,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="The model that was compiled: import it again, and prove that the program computes it.",
            show_default=False,
        ),
    ] = None,
    shape: Shapes = [],  # noqa: B006
    state: States = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Prove again that a compiled program computes its network, and compare with the certificate in its folder.

    Without --model, the network comes from the folder too: anybody who can write there can replace everything.
    """
    from weft.extras.proof.certificate import verify as prove

    source = None if model is None else files.require_file(model)
    sizes, kept = shapes_of(shape), states_of(state)
    program, _ = load(folder)
    with reports.progress() as progress:
        found = prove(program, folder, progress, model=source, shapes=sizes, states=kept)
    if as_json:
        print(json.dumps(found.json, indent=1))
    else:
        reports.say(*found.told)
