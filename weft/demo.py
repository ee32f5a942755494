"""The demonstrations: a real network on the real RTL, every byte compared."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from weft import files
from weft import report as reports
from weft.arguments import integer
from weft.examples import load
from weft.fidelity import attention_errors
from weft.hdl.isa.config import Config

RTL_SECONDS = 25.0
"""Time after which no further image is started on the RTL, the building of the simulator not counted."""
WAVEFORM_LEVELS = 2
"""The waveform shows the wires between the units; what is inside them would take a gigabyte."""
NAME = "image"
FILES = ("weft.v", "weft.json", "report.json", "image0.vcd", "program/program.json")
"""What is written, in the folder."""
ERROR_IMAGES = 20
"""Images whose attention is compared with float64."""


def write_verilog(config: Config, folder: Path) -> str:
    """Write the accelerator's Verilog, and what describes it, to a folder; returns the Verilog."""
    import weft

    text, description = weft.verilog(config)
    files.write_text(folder / "weft.v", text)
    files.write_json(folder / "weft.json", description)
    return text


class Demo:
    """Compile a network of `weft.examples`, run it, compare, and keep what came of it.

    Parameters
    ----------
    example : str
        "digits", a convolutional network, or "attention".
    config : Config
        The accelerator.
    folder : Path
        Where Verilog, waveform, program and report go.
    console : Console
        Where results are printed.
    """

    def __init__(self, example: str, config: Config, folder: Path, console: Console) -> None:
        network = load(example)
        self.config, self.folder, self.console = config, folder, console
        self.model = network.model()
        self.images, self.labels = network.held_out()
        self.verilog = ""

    def run(self, images: int | None = None, seconds: float = RTL_SECONDS) -> bool:
        """Run everything; `images` on the RTL, or what `seconds` allow. Returns whether every byte agreed."""
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
            sample = self.images[:ERROR_IMAGES]
            self.errors = attention_errors(self.model, self.config, NAME, sample, progress)
        assert tally.report is not None
        files.write_json(self.folder / "report.json", tally.report)
        self._show(tally)
        return not tally.wrong

    def _images(self, program: Any, images: int | None, seconds: float, progress: reports.Progress) -> Tally:
        """Run all images on the golden interpreter, and the first ones on the RTL as well."""
        tally = Tally()
        limit = len(self.images) if images is None else images
        with contextlib.ExitStack() as stack:
            device = None
            for index, (image, label) in enumerate(zip(self.images, self.labels, strict=True)):
                golden = program.run({NAME: image[None]}, on="golden")
                tally.right += int(np.argmax(next(iter(golden.outputs.values()))) == label)
                if device is None:
                    progress("building the simulator (about a minute, the first time only)")
                    device = stack.enter_context(contextlib.closing(self._device(len(golden.memory))))
                progress(f"image {index + 1} of {len(self.images)}, mismatching bytes: {tally.wrong}")
                if index == 0 or (index < limit and (images is not None or tally.seconds < seconds)):
                    begin = time.monotonic()
                    result = program.run({NAME: image[None]}, on=device)
                    tally.add(golden, result, time.monotonic() - begin)
        progress("writing the waveform of the first image (its simulator is built the first time)")
        with (
            files.whole_file(self.folder / "image0.vcd") as part,
            contextlib.closing(self._device(len(golden.memory), part)) as device,
        ):
            program.run({NAME: self.images[:1]}, on=device)
        return tally

    def _device(self, memory_bytes: int, trace: Path | None = None) -> Any:
        """The RTL that was written. It serves all images, since every image writes all that it reads."""
        from weft.sim.rtl.device import RtlDevice

        return RtlDevice(
            self.config, memory_bytes, verilog=self.verilog, trace=trace, trace_levels=WAVEFORM_LEVELS
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
    """What the images came to: right answers, images on the RTL, bytes that differ, and the first image's report."""

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
