"""The clocks that `weft.boards.build.clock` predicts, fitted to recorded builds and to the table of docs/boards.md.

    python benchmarks/clocks.py

Prints for each build what a fit to all others predicts, and writes the fit to all into ``boards/families``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from weft.boards.build import clock, records
from weft.boards.registry import BOARDS, group_equal_boards, titles
from weft.hdl.isa.config import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "boards.md"
BEGIN, END = "<!-- earlier builds -->\n", "<!-- end of earlier builds -->\n"
REACHED = 9
"""The column with the clock."""


def builds(page: str) -> list[clock.Sample]:
    """Return the fastest build of each record, and the builds in the table of a page that reached a clock."""
    samples = [
        clock.Sample(BOARDS[record.boards[-1]], BOARDS[record.boards[-1]].config, record.fastest_hz)
        for record in records.read()
        if record.fastest_hz is not None
    ]
    titled = {titles(boards): boards[-1] for boards in group_equal_boards(BOARDS.values())}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[REACHED]:
            board, named = titled[cells[0]], re.search(r"`(.*)`", cells[1])
            config = PRESETS[named[1]] if named else board.config
            samples.append(clock.Sample(board, config, float(cells[REACHED]) * 1e6))
    return samples


def main() -> int:
    samples = builds(PAGE.read_text())
    fit, others = clock.fit_clocks(samples)
    for sample, predicted in zip(samples, others, strict=True):
        print(
            f"{sample.board.name}, {sample.config.n} x {sample.config.n}: {sample.hz / 1e6:.1f} MHz, predicted from "
            f"the others {predicted / 1e6:.1f} ({predicted / sample.hz - 1:+.0%})"
        )
    clock.FILE.write_text(clock.text(fit))
    print(f"{fit.samples} builds, an error of {fit.error:.1%} at most: {clock.FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
