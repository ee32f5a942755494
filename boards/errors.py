"""Errors of boards."""

from __future__ import annotations

from weft.hdl.errors import WeftError


class BoardError(WeftError, ValueError):
    """Invalid board or request that a board cannot meet. The message is one sentence that says what to change."""


class FrameError(WeftError, ValueError):
    """Body that is not a request, answer or identity."""


class TimingError(WeftError, RuntimeError):
    """Design that misses its clock. The message says by how much."""


class ToolError(WeftError, RuntimeError):
    """Tool that is missing or failed. The message is one sentence with the tool's last error."""


class FlashImageError(WeftError, ValueError):
    """Image that cannot be made, or that is damaged. The message is one sentence."""


class PllError(WeftError, ValueError):
    """Clock that no PLL setting makes. The message names it and the nearest possible clock."""
