"""Jobs for workers. They are apart from tests, so that a worker loads little before it begins one."""

from __future__ import annotations

import os
import signal


def die(job: object) -> None:
    """End the worker as the system does when there is no memory."""
    os.kill(os.getpid(), signal.SIGKILL)
