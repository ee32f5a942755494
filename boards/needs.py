"""What a configuration needs on a board, counted by synthesis: half-way to a bitstream, without placement."""

from __future__ import annotations

import json
from pathlib import Path

from weft.boards import flow
from weft.boards.board import Board
from weft.boards.build import elaborate, key
from weft.boards.family import Resources
from weft.boards.flow import Progress
from weft.hdl.files.cache import cache_root, entry
from weft.hdl.isa.config import Config

_FILE = "needs.json"


def needs(board: Board, config: Config, progress: Progress = lambda text: None) -> Resources:
    """What synthesis says that `config` needs on `board`, with its memory and its link; it is kept in the cache.

    Raises
    ------
    BoardError
        If the board's memory or link cannot run at the board's clock.
    weft.boards.tools.ToolError
        If a tool fails, or is not installed.
    """
    design = elaborate(board, config, board.clock)

    def make(folder: Path) -> None:
        for name, text in design.files.items():
            (folder / name).write_text(text)
        flow.synthesise(board, folder, progress)
        found = dict(flow.synthesised(board.family, folder).items())
        for file in folder.iterdir():
            file.unlink()
        (folder / _FILE).write_text(json.dumps(found))

    kept = entry(f"needs-{key(board, design, 0)}", make, cache_root() / "boards")
    return Resources(**json.loads((kept / _FILE).read_text()))
