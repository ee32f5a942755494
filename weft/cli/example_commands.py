"""The commands for the example models that come with weft."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import Whole
from weft.cli.commands import Configuration, Group, command, config_file, configuration
from weft.errors import FileError
from weft.hdl.extras import provider


class Example(enum.StrEnum):
    """Example models: two networks that read images of digits, and a language model."""

    DIGITS = "digits"
    ATTENTION = "attention"
    LANGUAGE = "llm"


@command(Group.EXAMPLES)
def example(
    name: Annotated[Example, typer.Argument(help="Example model.", metavar="NAME")] = Example.DIGITS,
    folder: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the files. Default: the current folder.",
            show_default=False,
        ),
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write an example model with an input: a quantised network and an image, or a language model and a prompt."""
    if name is Example.LANGUAGE:
        _language(folder, force)
    else:
        _network(name.value, folder, force)


def _network(name: str, folder: Path, force: bool) -> None:
    from weft import arrays
    from weft.examples import load

    network = load(name)
    model, image = folder / f"{name}.onnx", folder / "digit.npz"
    _check_free(force, model, image)
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


def _language(folder: Path, force: bool) -> None:
    content, text = provider("load an example language model")()
    model, prompt = folder / "model.gguf", folder / "prompt.txt"
    _check_free(force, model, prompt)
    with files.whole_file(model) as part:
        part.write_bytes(content)
    files.write_text(prompt, text)
    reports.say(
        f"{model}: a language model trained on Python's documentation and on sums, its matrices Q8_0",
        f"{prompt}: a prompt for it",
        f"next: weft generate {model} --prompt-file {prompt}",
    )


def _check_free(force: bool, *targets: Path) -> None:
    """Raise `FileError` if a file exists, unless `force` allows to overwrite it."""
    existing = [path for path in targets if path.exists() or path.is_symlink()]
    if existing and not force:
        raise FileError(
            f"{' and '.join(map(str, existing))} exists: --force overwrites it, --output names another folder"
        )


@command(Group.EXAMPLES)
def demo(
    example: Annotated[Example, typer.Argument(help="Example model.", metavar="NAME")] = Example.DIGITS,
    config: Configuration = "default",
    images: Annotated[
        int | None, Whole("Images to run on the RTL. Default: as many as take a minute.", 1)
    ] = None,
    tokens: Annotated[
        int | None,
        Whole("Maximum number of tokens that the language model generates.", 1, 1 << 24),
    ] = None,
    keep: Annotated[
        Path, typer.Option(help="Folder for Verilog, waveform and report.", metavar="FOLDER")
    ] = Path("build/demo"),
) -> None:
    """Run an example on the simulated accelerator, and compare every byte with the golden interpreter."""
    if example is Example.LANGUAGE:
        _demo_language(config, images, tokens, keep)
        return
    if tokens is not None:
        raise FileError(f"--tokens and the example {example} do not go together: it reads images")
    from weft.cli.demo import FILES, Demo

    chosen = configuration(config)
    files.check_overwrites({f"--keep ({name})": keep / name for name in FILES}, [config_file(config)])
    demonstration = Demo(example.value, chosen, keep, reports.summary())
    if not demonstration.run(images):
        raise typer.Exit(1)


def _demo_language(config: str, images: int | None, tokens: int | None, keep: Path) -> None:
    if images is not None:
        raise FileError("--images and the example llm do not go together: it generates text")
    if not provider("demonstrate a language model")(config, keep, tokens):
        raise typer.Exit(1)
