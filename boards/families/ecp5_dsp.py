"""Where the multipliers of a large array go on an ECP5. Left alone, nextpnr scatters them over the rows of DSP blocks,
and a fifth of a large design's wire is lost to that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_OFFSETS = (0, 1, 4, 5)
"""Of the multipliers in a group of DSP blocks, from its first column on; also their numbers in their blocks' names."""


@dataclass(frozen=True)
class DspRows:
    """The multipliers of an ECP5, as nextpnr names their places: ``X4/Y10/MULT18_0``.

    Attributes
    ----------
    rows : tuple of int
        Y of each row of DSP blocks. An array's last rows are put to the first of them.
    groups : tuple of int
        X of each group of four multipliers in such a row.
    """

    rows: tuple[int, ...]
    groups: tuple[int, ...]

    def sites(self, n: int) -> dict[tuple[int, int], str]:
        """Places for the multipliers of an array, by row and by pair of columns; none if one row of blocks takes them
        all, or if all rows are too few.

        Each pair of columns has a part of every row of blocks to itself, where its partial sums go from neighbour to
        neighbour, in the next row of blocks the other way round: they are the widest of what the array passes on.
        """
        columns = [(x + offset, offset) for x in self.groups for offset in _OFFSETS]
        pairs = n // 2
        each = len(columns) // pairs  # rows of the array that a row of blocks has room for
        if n <= each or n > each * len(self.rows):
            return {}
        places = {}
        for row in range(n):
            band, place = divmod(n - 1 - row, each)
            if band % 2:
                place = each - 1 - place
            for pair in range(pairs):
                x, number = columns[pair * len(columns) // pairs + place]
                places[row, pair] = f"X{x}/Y{self.rows[band]}/MULT18_{number}"
        return places

    def pin(self, netlist: Path, n: int) -> None:
        """See `weft.boards.board.DspSites`."""
        places = self.sites(n)
        if not places:
            return
        design = json.loads(netlist.read_text())
        multipliers = {}
        for name, cell in design["modules"]["top"]["cells"].items():
            found = re.search(r"\barray\.row(\d+)\.multiplier(\d+)$", name)
            if found and cell["type"] == "MULT18X18D":
                multipliers[int(found[1]), int(found[2])] = cell
        for position, place in places.items():
            multipliers[position]["attributes"]["BEL"] = place
        netlist.write_text(json.dumps(design))
