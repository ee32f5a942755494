"""Demonstration of a small network on the simulated RTL, compared byte by byte with the golden interpreter."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import weft
from weft import files
from weft import report as reports
from weft.arguments import integer
from weft.compiler.backend import DeviceProgram
from weft.compiler.frontend import import_model
from weft.compiler.ir import products
from weft.compiler.ir.graph import Attention, DeviceSegment
from weft.compiler.ir.views import View
from weft.examples import load
from weft.hdl.isa.config import Config
from weft.run.runtime import Image

RTL_SECONDS = 25.0
"""No further image is started on the RTL after this time, which excludes building the simulator."""
WAVEFORM_LEVELS = 2
"""Levels of hierarchy in the waveform: the wires between the units. Deeper levels would take a gigabyte."""
NAME = "image"
FILES = ("weft.v", "weft.json", "report.json", "image0.vcd", "program/program.json")
"""Files that the demonstration writes to its folder."""
ERROR_IMAGES = 20
"""Number of images whose attention is compared with float64."""


def write_verilog(config: Config, folder: Path) -> str:
    """Write weft.v and its description weft.json to a folder. Returns the Verilog."""
    import weft

    text, description = weft.verilog(config)
    files.write_text(folder / "weft.v", text)
    files.write_json(folder / "weft.json", description)
    return text


class Demo:
    """Compile a network of `weft.examples`, run it, compare all bytes, and write the results.

    Parameters
    ----------
    example : str
        Name of the network: "digits" (convolutional) or "attention".
    config : Config
        The accelerator.
    folder : Path
        Folder for Verilog, waveform, program and report.
    console : Console
        Console for the table of layers.
    """

    def __init__(self, example: str, config: Config, folder: Path, console: Console) -> None:
        network = load(example)
        self.config, self.folder, self.console = config, folder, console
        self.model = network.model()
        self.images, self.labels = network.held_out()
        self.verilog = ""

    def run(self, images: int | None = None, seconds: float = RTL_SECONDS) -> bool:
        """Run the demonstration, on the RTL for `images` or for `seconds`. Returns True if all bytes agree."""
        import weft

        if images is not None:
            integer("images", images, 1)
        with reports.progress() as progress:
            progress(f"compiling for an array of {self.config.n} x {self.config.n}")
            program = weft.compile(self.model, config=self.config)
            program.save(self.folder / "program")
            progress("generating Verilog")
            self.verilog = write_verilog(self.config, self.folder)
            tally = self._images(program, images, seconds, progress)
            # Every image takes a run without reuse of memory, so a few must do.
            sample = self.images[:ERROR_IMAGES]
            self.errors = attention_errors(self.model, self.config, NAME, sample, progress)
        assert tally.report is not None
        files.write_json(self.folder / "report.json", tally.report)
        self._show(tally)
        return not tally.wrong

    def _images(self, program: Any, images: int | None, seconds: float, progress: reports.Progress) -> Tally:
        """Run all images on the golden interpreter, and the first images on the RTL too."""
        tally = Tally()
        limit = len(self.images) if images is None else images
        with contextlib.ExitStack() as stack:
            device = None
            for index, (image, label) in enumerate(zip(self.images, self.labels, strict=True)):
                golden = program.run({NAME: image[None]}, on="golden")
                tally.right += int(np.argmax(next(iter(golden.outputs.values()))) == label)
                # The size of the simulated memory is known after the first run.
                if device is None:
                    progress("building the simulator (about a minute, the first time only)")
                    device = stack.enter_context(contextlib.closing(self._device(len(golden.memory))))
                progress(f"image {index + 1} of {len(self.images)}, mismatching bytes: {tally.wrong}")
                # At least one image runs on the RTL, however slow it is.
                if index == 0 or (index < limit and (images is not None or tally.seconds < seconds)):
                    begin = time.monotonic()
                    result = program.run({NAME: image[None]}, on=device)
                    tally.add(golden, result, time.monotonic() - begin)
        # Tracing slows the simulation down, so it runs in a simulator of its own, for one image.
        progress("writing the waveform of the first image (its simulator is built the first time)")
        with (
            files.whole_file(self.folder / "image0.vcd") as part,
            contextlib.closing(self._device(len(golden.memory), part)) as device,
        ):
            program.run({NAME: self.images[:1]}, on=device)
        return tally

    def _device(self, memory_bytes: int, waves: Path | None = None) -> Any:
        """Return a simulator of the Verilog. All images share it: every run writes whatever it reads."""
        from weft.sim.rtl.device import RtlDevice

        return RtlDevice(
            self.config, memory_bytes, verilog=self.verilog, waves=waves, wave_levels=WAVEFORM_LEVELS
        )

    def _show(self, tally: Tally) -> None:
        count = len(self.images)
        reports.show_layers(tally.report or {}, self.console)
        reports.say(f"accuracy: {tally.right / count:.2%} of {count} images that training never saw")
        if self.errors is not None:
            reports.say(
                f"attention against float64 of the same int8 values, {ERROR_IMAGES} images: {self.errors}"
            )
        speed = f", {tally.cycles / tally.seconds:,.0f} cycles a second" if tally.seconds else ""
        reports.say(f"images on the RTL: {tally.done}{speed}")
        reports.say(f"mismatching bytes: {tally.wrong}")
        reports.say(
            f"{self.folder / 'weft.v'}: the accelerator; weft.json next to it lists parameters, ports and registers"
        )
        reports.say(f"{self.folder / 'image0.vcd'}: waveform of the first image")
        reports.say(f"{self.folder / 'report.json'}: the table above; program/ next to it is what was run")


@dataclass
class Tally:
    """Totals over the images: right answers, images on the RTL, differing bytes, cycles, and the first report."""

    right: int = 0
    done: int = 0
    wrong: int = 0
    cycles: int = 0
    seconds: float = 0.0
    report: dict[str, Any] | None = None

    def add(self, golden: Any, result: Any, seconds: float) -> None:
        self.done += 1
        self.seconds += seconds
        self.cycles += result.report["cycles"]
        self.wrong += reports.difference(golden, result)
        self.report = self.report or result.report


@dataclass(frozen=True)
class Errors:
    """Root mean square and largest error of `count` outputs, in quantisation steps of the output.

    Rounding an exact result to int8 gives 0.29 steps root mean square.
    """

    rms: float
    largest: float
    count: int

    def __str__(self) -> str:
        return f"{self.rms:.2f} LSB RMS, {self.largest:.2f} at most ({self.count:,} outputs; rounding alone is 0.29)"


def attention_errors(
    model: bytes,
    config: Config,
    name: str,
    inputs: np.ndarray,
    progress: Callable[[str], None] = lambda text: None,
) -> Errors | None:
    """Compare the attention operators of a model with float64, over some inputs.

    The program is compiled without reuse of memory, so that every intermediate value can be read after a run. Queries,
    keys and values of the golden interpreter then go through `weft.compiler.ir.products`.

    Returns
    -------
    None if the model has several device segments, or no attention.
    """
    graph = import_model(model, config=config)
    segments = [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]
    ops = [op for segment in segments for op in segment.ops if isinstance(op, Attention)]
    if len(segments) != 1 or not ops:
        return None
    progress("comparing attention with float64")
    program = weft.compile(model, config, reuse=False)
    (compiled,) = (segment for segment in program.segments if isinstance(segment, DeviceProgram))
    image = Image(compiled)
    errors = []
    for value in inputs:
        memory = np.frombuffer(program.run({name: value[None]}).memory, np.int8)
        for op in ops:
            exact = (
                products.unrounded_attention(op, *(_read(memory, image, view) for view in (op.q, op.k, op.v)))
                + op.y_zero
            )
            errors.append((_read(memory, image, op.dst) - np.clip(exact, op.low, op.high)).ravel())
    flat = np.concatenate(errors)
    return Errors(float(np.sqrt(np.mean(flat**2))), float(np.abs(flat).max()), flat.size)


def _read(memory: np.ndarray, image: Image, view: View) -> np.ndarray:
    # Without reuse of memory, every buffer is still in memory after the run.
    start, (_, h, w, c) = image.address(view.buffer.name), view.shape
    values = memory[start : start + view.buffer.size].reshape(view.buffer.shape)
    return values[:, view.y : view.y + h, view.x : view.x + w, view.c : view.c + c]
