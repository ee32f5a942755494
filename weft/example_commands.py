"""The commands for the networks that come with weft."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from weft import arrays, files
from weft import report as reports
from weft.configurations import configuration
from weft.errors import FileError
from weft.options import Configuration, config_file, whole, writes


class Example(enum.StrEnum):
    """Networks that come with weft."""

    DIGITS = "digits"
    ATTENTION = "attention"


def example(
    name: Annotated[Example, typer.Argument(help="The network.")] = Example.DIGITS,
    folder: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to put the example in.", show_default=False)
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of these names.")] = False,
) -> None:
    """Put an example here: a quantised model, and an image for it."""
    from weft.examples import load

    network = load(name.value)
    model, image = folder / f"{name}.onnx", folder / "digit.npz"
    there = [path for path in (model, image) if path.exists() or path.is_symlink()]
    if there and not force:
        raise FileError(
            f"{' and '.join(map(str, there))} exists: --force overwrites it, --output names another folder"
        )
    images, labels = network.held_out()
    with files.whole_file(model) as part:
        part.write_bytes(network.model())
    arrays.save_arrays(image, {"image": images[:1]})
    reports.say(
        f"{model}: a network that reads handwritten digits, quantised to int8",
        f"{image}: its input 'image', a {labels[0]}",
        f"next: weft compile {model} -o program --config small",
        f"      weft run program --input {image} --output logits.npz",
    )


def demo(
    example: Annotated[Example, typer.Argument(help="The network.")] = Example.DIGITS,
    config: Configuration = "default",
    images: Annotated[
        int | None, whole("--images", "Images to run on the RTL; as many as take a minute if not given.", 1)
    ] = None,
    keep: Annotated[Path, typer.Option(help="Folder for Verilog, waveform and report.")] = Path("build/demo"),
) -> None:
    """Run a small network on the simulated accelerator and hold every byte against the golden interpreter."""
    from weft.demo import FILES, Demo

    chosen = configuration(config)
    files.apart({f"--keep ({name})": keep / name for name in FILES}, [config_file(config)])
    demonstration = Demo(example.value, chosen, keep, reports.summary())
    if not demonstration.run(images):
        raise typer.Exit(1)


def add(app: typer.Typer) -> None:
    """Give `app` the commands of this module."""
    for command in (example, demo):
        app.command()(writes(command))
