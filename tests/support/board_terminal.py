"""A board behind a pseudo-terminal, for the host's end of the line."""

from __future__ import annotations

import os
import random
import re
import select
import threading
import tty
from collections.abc import Callable
from typing import Any

import pytest

from support.serial_models import disturb
from weft.boards.link.host import BoardDevice
from weft.hdl.isa.config import PRESETS
from weft.sim.device import DeviceError

CONFIG = PRESETS["tiny"]


class Terminal:
    """A pseudo-terminal with a board behind it.

    Attributes
    ----------
    path : str
    board : Callable[[bytes], bytes]
        Returns the answer to received bytes.
    noise : float
        Share of bytes corrupted, both ways.
    """

    def __init__(self, board: Callable[[bytes], bytes]) -> None:
        self.board, self.noise = board, 0.0
        self.rng = random.Random(random.randrange(1 << 32))
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self.path = os.ttyname(self._slave)
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._master, self._stop], [], [])
            if self._stop in ready:
                return
            heard = disturb(os.read(self._master, 4096), self.noise, self.rng)
            said = disturb(self.board(heard), self.noise, self.rng)
            while said:
                said = said[os.write(self._master, said) :]

    def unplug(self) -> None:
        if self._thread.is_alive():
            os.write(self._stopped, b"!")
            self._thread.join()
            for file in (self._master, self._slave, self._stop, self._stopped):
                os.close(file)


def check_refused(terminal: Terminal, words: str, **arguments: Any) -> None:
    """Check that opening fails with a message that contains `words`."""
    with pytest.raises(DeviceError, match=re.escape(words)) as caught:
        BoardDevice.open(terminal.path, CONFIG, **{"timeout": 0.02, "attempts": 3} | arguments)
    assert terminal.path in str(caught.value)
    assert "\n" not in str(caught.value)
