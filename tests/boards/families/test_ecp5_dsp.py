"""Places of an array's multipliers: each its own, neighbours close, and written into the netlist they are for."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from weft.boards.families.ecp5 import DspRows
from weft.boards.families.ecp5_sdram import RESOURCES
from weft.boards.registry import find

ULX3S_85F = find("ulx3s-85f").dsp
assert isinstance(ULX3S_85F, DspRows)


def position(place: str) -> tuple[int, int]:
    found = re.fullmatch(r"X(\d+)/Y(\d+)/MULT18_[0145]", place)
    assert found, place
    return int(found[1]), int(found[2])


def test_every_multiplier_has_a_place_of_its_own() -> None:
    places = ULX3S_85F.sites(16)
    assert set(places) == {(row, pair) for row in range(16) for pair in range(8)}
    assert len(set(places.values())) == 128
    assert {position(place)[1] for place in places.values()} == set(ULX3S_85F.rows)


def test_the_fpga_has_as_many_as_its_resources_say() -> None:
    assert 4 * len(ULX3S_85F.groups) * len(ULX3S_85F.rows) == RESOURCES["85"].dsp


def test_partial_sums_go_to_neighbours() -> None:
    places = ULX3S_85F.sites(16)
    turns = 0
    for pair in range(8):
        for row in range(1, 16):
            (x0, y0), (x1, y1) = position(places[row - 1, pair]), position(places[row, pair])
            assert abs(x0 - x1) <= 6
            turns += y0 != y1
            assert x0 != x1 or y0 != y1
    assert turns == 2 * 8
    assert {position(places[15, pair])[1] for pair in range(8)} == {ULX3S_85F.rows[0]}
    # Pairs of columns share the rows of blocks evenly.
    starts = [position(places[15, pair])[0] for pair in range(8)]
    assert all(12 <= after - before <= 18 for before, after in itertools.pairwise(starts))
    assert max(position(place)[0] for place in places.values()) > ULX3S_85F.groups[-1]


@pytest.mark.parametrize(
    ("n", "dsp"),
    [
        (8, DspRows((10, 34), tuple(range(0, 130, 10)))),  # a row of blocks takes it
        (16, DspRows((10, 34), tuple(range(0, 130, 10)))),  # too large
    ],
)
def test_none(n: int, dsp: DspRows) -> None:
    assert dsp.sites(n) == {}


def test_the_netlist_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(netlist: Path, places: dict[tuple[int, int], str]) -> None:
        monkeypatch.setattr(DspRows, "sites", lambda dsp, n: places)
        DspRows((), ()).pin(netlist, 16)

    def cell(kind: str) -> dict[str, object]:
        return {"type": kind, "attributes": {"keep": "1"}}

    names = {
        "top.core.mm.array.row0.multiplier0": "MULT18X18D",
        "top.core.mm.array.row10.multiplier1": "MULT18X18D",
        "top.core.mm.array.row0.multiplier0_P": "TRELLIS_FF",
        "top.other.array.row0.multiplier0": "LUT4",
        "top.core.vec.requantise.multiplier0": "MULT18X18D",
    }
    netlist = tmp_path / "top.json"
    netlist.write_text(
        json.dumps({"modules": {"top": {"cells": {name: cell(kind) for name, kind in names.items()}}}})
    )
    before = netlist.read_text()
    pin(netlist, {})
    assert netlist.read_text() == before
    pin(netlist, {(0, 0): "X4/Y10/MULT18_0", (10, 1): "X5/Y10/MULT18_1"})
    cells = json.loads(netlist.read_text())["modules"]["top"]["cells"]
    assert {name: cell["attributes"].get("BEL") for name, cell in cells.items()} == {
        "top.core.mm.array.row0.multiplier0": "X4/Y10/MULT18_0",
        "top.core.mm.array.row10.multiplier1": "X5/Y10/MULT18_1",
        "top.core.mm.array.row0.multiplier0_P": None,
        "top.other.array.row0.multiplier0": None,
        "top.core.vec.requantise.multiplier0": None,
    }
    with pytest.raises(KeyError):
        pin(netlist, {(1, 0): "X4/Y10/MULT18_0"})
