"""Forks of a test process, which has threads of other libraries."""

from __future__ import annotations

import gc
import os


def fork() -> int:
    """Fork as `os.fork` does. The child collects no objects of the parent.

    Their finalizers may wait for threads, which exist in the parent only.
    """
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child
