"""The demonstration of a language model: it goes on with a text on the RTL, every byte compared."""

from __future__ import annotations

import time
from pathlib import Path

from weft import files
from weft import report as reports
from weft.cli.demo import write_verilog
from weft.cli.options import config_file
from weft.examples import language
from weft.extras.language.run import lm
from weft.extras.language.run.language_report import Took, counted
from weft.hdl.isa.config import Config

ROWS = 4
"""Tokens of the prompt side by side."""
TOKENS = 40
"""Tokens that follow, if nobody says how many."""
FILES = ("weft.v", "weft.json", "report.json")
"""What is written, in the folder."""


def demonstrate(config: str, folder: Path, tokens: int | None = None) -> bool:
    """Run the demonstration with a configuration, and write its files to `folder`; returns whether all bytes agreed.

    Raises
    ------
    FileError
        If the configuration's file would be overwritten.
    """
    files.check_overwrites({f"--keep ({name})": folder / name for name in FILES}, [config_file(config)])
    return LanguageDemo(config, folder).run(tokens)


class LanguageDemo:
    """Load the language model of `weft.examples`, let it go on with its prompt on the RTL, and compare.

    Parameters
    ----------
    config : str
        As for `weft.extras.language.run.lm_config.language_configuration`.
    folder : Path
        Where Verilog and report go.
    """

    def __init__(self, config: str, folder: Path) -> None:
        self._source, self._folder = config, folder

    def run(self, tokens: int | None = None) -> bool:
        """Run everything; returns whether every byte agreed."""
        with reports.progress() as progress:
            progress("compiling, and building the simulator (minutes, the first time only)")
            model = lm.load(language.model(), self._source, rows=ROWS, on="rtl", compare=True)
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
            going = model.generate(language.PROMPT, tokens=TOKENS if tokens is None else tokens)
            print(language.PROMPT, end="", flush=True)
            for piece in going:
                print(piece, end="", flush=True)
            print(flush=True)
            seconds = time.monotonic() - begin
            wrong = model.mismatches + model.compare_memory()
            result, cycles = going.result, sum(step.cycles or 0 for step in model.counted)
            took = Took.of(model.counted, len(result.prompt), config.bus_bytes, None)
        reports.say(
            f"{counted(len(result.tokens), 'token')} behind {len(result.prompt)} of the prompt: {result.reason.value}",
            *took.lines(),
            f"{cycles:,} cycles on the RTL, {cycles / seconds:,.0f} a second",
            f"mismatching bytes: {wrong} (logits of each step, and all of memory behind the last one)",
        )
        self._write_report(config, result.text, list(result.tokens), cycles, wrong)
        return not wrong

    def _write_report(self, config: Config, text: str, tokens: list[int], cycles: int, wrong: int) -> None:
        found = {
            "config": config.to_dict(), "prompt": language.PROMPT, "text": text, "tokens": tokens,
            "cycles": cycles, "mismatching_bytes": wrong,
        }  # fmt: skip
        files.write_json(self._folder / "report.json", found)
        reports.say(f"{self._folder / 'weft.v'}: the accelerator; report.json next to it has what is above")
