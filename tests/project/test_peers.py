"""The comparison with SCALE-Sim, as far as it needs neither SCALE-Sim nor a network."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MEASURED = {
    (64, 64, 64): (1759, 1503),
    (256, 256, 256): (77311, 73215),
    (1, 1000, 512): (94751, 34145),
    (196, 256, 2304): (557567, 485471),
}
"""WS and OS cycles that SCALE-Sim 3.0.0 reported, by m, n, k."""


@pytest.fixture(scope="module")
def peers() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("peers")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("numbers", MEASURED)
def test_closed_forms_are_what_scale_sim_reported(peers: ModuleType, numbers: tuple[int, int, int]) -> None:
    assert tuple(peers.closed_form(dataflow, *numbers) for dataflow in peers.DATAFLOWS) == MEASURED[numbers]


def test_topologies_have_the_shapes_macs(peers: ModuleType) -> None:
    for shape in (shape for shapes in peers.GROUPS.values() for shape in shapes):
        line = peers.topology(shape).splitlines()[1].split(",")
        ih, iw, fh, fw, channels, filters, stride = map(int, line[1:8])
        # As SCALE-Sim counts: its outputs are rounded up, and the line ends in a comma.
        outputs = [-(-(side - kernel + stride) // stride) for side, kernel in ((ih, fh), (iw, fw))]
        assert outputs[0] * outputs[1] * fh * fw * channels * filters == shape.macs, shape.name
        m, n, k = peers.mnk(shape)
        assert m * n * k == shape.macs
        assert line[8:] == [""]


def made(peers: ModuleType, **changes: Any) -> Any:
    result = peers.Result("a < b", "GEMM 64x64x64", 1, 64, 64, 64, 1759, 1503, 1500, 1100)
    return dataclasses.replace(result, **changes)


def test_ahead_is_of_both_dataflows(peers: ModuleType) -> None:
    assert made(peers).ahead == "yes"
    assert made(peers, whole=1503).ahead == "array"
    assert made(peers, whole=1600, window=1503 - 16).ahead == "**no**"


def test_weft_is_measured_again_beside_kept_figures(peers: ModuleType) -> None:
    kept = [
        made(peers, group="GEMM", whole=1, window=1),
        made(peers, group="GEMM", name="GEMM 64x64x64, on chip", whole=1, window=1),
    ]
    behind, alone = peers.again(kept)
    assert (behind.ws, behind.os, behind.name) == (1759, 1503, "GEMM 64x64x64")
    assert 64**3 / 256 < alone.window < behind.window < behind.whole
    with pytest.raises(peers.PeerError, match="there is no shape 'GEMM 64x64x64' in a < b any more"):
        list(peers.again([made(peers)]))


def test_a_figure_off_its_closed_form_is_wrong(peers: ModuleType) -> None:
    assert not peers.check([made(peers)])[1]
    (sentence,) = peers.check([made(peers, ws=1760)])[1]
    assert "1,760" in sentence
    assert "1,759" in sentence


def test_results_survive_a_file_and_make_a_drawing(peers: ModuleType, tmp_path: Path) -> None:
    results = [made(peers), made(peers, name="other", group="second")]
    peers.save(tmp_path / "results.json", results)
    assert peers.load(tmp_path / "results.json") == results
    root = ElementTree.fromstring(peers.drawing(results))
    texts = ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "second", "GEMM 64x64x64", "other", "68.1% : 68.3%"} <= set(texts)
    (tmp_path / "broken.json").write_text("[]")
    with pytest.raises(peers.PeerError, match="is not what --json writes"):
        peers.load(tmp_path / "broken.json")
