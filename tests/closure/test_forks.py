"""Forks of a test process leave the objects of their parent alone."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from support.forks import fork


class Cycle:
    """Garbage that writes a file when it is collected."""

    def __init__(self, path: Path) -> None:
        self.itself, self.path = self, path

    def __del__(self) -> None:
        self.path.touch()


def test_a_child_collects_nothing_of_its_parent(tmp_path: Path) -> None:
    gc.disable()  # or the parent could collect it before it forks
    try:
        Cycle(tmp_path / "collected")
        child = fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not (tmp_path / "collected").exists()
        gc.collect()
        assert (tmp_path / "collected").exists()
    finally:
        gc.enable()
