"""A new FPGA family and a new board, which are one file each: those that docs/extending.md shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.documented import read_block

from weft.boards import families, registry, targets
from weft.boards.board import Board
from weft.boards.build import flow
from weft.boards.build.build import bitstream_name, elaborate, make_top
from weft.boards.build.estimate import check_estimate
from weft.cli import main
from weft.hdl.isa.config import PRESETS
from weft.hdl.verilog import generate


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """The board, found among the others; nothing but the two files is added."""
    for package, file in ((families, "families/toy.py"), (targets, "targets/toy_board.py")):
        path = tmp_path / file
        path.parent.mkdir()
        path.write_text(read_block(f"boards/{file}"))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
        module = f"{package.__name__}.{path.stem}"
        # So that the module is forgotten behind the test.
        monkeypatch.setitem(sys.modules, module, None)
        del sys.modules[module]
    monkeypatch.setattr(registry, "BOARDS", registry.load_boards())
    return registry.find("toy-board")


def test_it_is_listed(toy: Board, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(["boards"])
    assert left.value.code == 0
    assert "\ntoy-board " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main.main(["boards", "--json"])
    listed = {board["name"]: board for board in json.loads(capsys.readouterr().out)["boards"]}
    assert listed.keys() == registry.BOARDS.keys()
    assert listed["toy-board"]["family"] == "toy"
    assert listed["toy-board"]["estimated_shares"] == {}


def test_its_design_is_generated(toy: Board) -> None:
    check_estimate(toy, PRESETS["huge"])  # of which nothing is known
    design = elaborate(toy, toy.config, toy.clock)
    assert design.clock == 12e6
    assert "attribute \\top 1" in design.files["top.il"]
    assert "set_io uart_0__tx__io 9" in design.files["top.pcf"]
    text = generate(make_top(toy, toy.config, toy.clock, design.line.divisor), name="board")
    assert "module board(" in text


def test_its_tools_are_called(toy: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(flow, "run", lambda name, command, folder, line=None: calls.append(command))
    flow.place(toy, tmp_path, toy.clock, 1, lambda text: None)
    flow.pack(toy, tmp_path, lambda text: None)
    assert [call[0] for call in calls] == ["nextpnr-toy", "toypack"]
    assert calls[0][1:3] == ["--package", "toy48"]
    assert "synth_toy -top top -run begin:map_luts" in flow.synthesis_commands(toy)
    assert bitstream_name(toy) == "weft.bin"
