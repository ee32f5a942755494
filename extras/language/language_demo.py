"""Demonstration of a language model: text generation on the RTL, with a comparison of every byte."""

from __future__ import annotations

import time
from pathlib import Path

from weft import files
from weft import report as reports
from weft.cli.commands import config_file
from weft.cli.demo import write_verilog
from weft.extras.language import example
from weft.extras.language.run import lm
from weft.extras.language.run.language_target import Timing
from weft.hdl.isa.config import Config

ROWS = 4
"""Prompt tokens per step."""
TOKENS = 40
"""Default limit for generated tokens."""
FILES = ("weft.v", "weft.json", "report.json")
"""Files that the demonstration writes."""


def demonstrate(config: str, folder: Path, tokens: int | None = None) -> bool:
    """Run the demonstration with a configuration and write its files to `folder`; return whether all bytes agree.

    Raises
    ------
    FileError
        If a file would overwrite the configuration.
    """
    files.check_overwrites({f"--keep ({name})": folder / name for name in FILES}, [config_file(config)])
    return LanguageDemo(config, folder).run(tokens)


class LanguageDemo:
    """Demonstration with the model of `weft.extras.language.example` on the RTL.

    Parameters
    ----------
    config : str
        See `weft.extras.language.run.lm_machine.language_configuration`.
    folder : Path
        Folder for Verilog and report.
    """

    def __init__(self, config: str, folder: Path) -> None:
        self._source, self._folder = config, folder

    def run(self, tokens: int | None = None) -> bool:
        """Run the demonstration; return whether all bytes agree."""
        with reports.progress() as progress:
            progress("compiling, and building the simulator (minutes, the first time only)")
            model = lm.load(example.model(), self._source, rows=ROWS, on="rtl", compare=True)
            config, added = model.decoder.config, model.added
            progress("generating Verilog")
            write_verilog(config, self._folder)
        reports.say(f"configuration: {self._source}{' with ' if added else ''}{', '.join(added)}")
        with model:
            program = len(model.decoder.code)
            reports.say(
                f"one program for every position: {program:,} bytes; the model: {model.memory_bytes:,} bytes"
            )
            begin = time.monotonic()
            generation = model.generate(example.PROMPT, tokens=TOKENS if tokens is None else tokens)
            print(example.PROMPT, end="", flush=True)
            for piece in generation:
                print(piece, end="", flush=True)
            print(flush=True)
            seconds = time.monotonic() - begin
            mismatches = model.mismatches + model.compare_memory()
            result, cycles = generation.result, sum(step.cycles or 0 for step in model.step_costs)
            timing = Timing.of(model.step_costs, len(result.prompt), config.bus_bytes, None)
        reports.say(
            f"{len(result.prompt)} prompt tokens, {len(result.tokens)} generated: {result.reason.value}",
            *timing.lines(),
            f"{cycles:,} cycles on the RTL, {cycles / seconds:,.0f} a second",
            f"mismatching bytes: {mismatches} (logits of each step, and all memory after the last step)",
        )
        self._write_report(config, result.text, list(result.tokens), cycles, mismatches)
        return not mismatches

    def _write_report(
        self, config: Config, text: str, tokens: list[int], cycles: int, mismatches: int
    ) -> None:
        report = {
            "config": config.to_dict(), "prompt": example.PROMPT, "text": text, "tokens": tokens,
            "cycles": cycles, "mismatching_bytes": mismatches,
        }  # fmt: skip
        files.write_json(self._folder / "report.json", report)
        reports.say(f"{self._folder / 'weft.v'}: the accelerator; report.json beside it holds these results")
