# amaranth: UnusedElaboratable=no
"""Features that the sequential core lacks and reports as missing; `tests/sim/rtl` tests its features on programs."""

from __future__ import annotations

import pytest

from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS
from weft.hdl.sequential.core import SequentialCore


def test_sums_along_rows() -> None:
    with pytest.raises(
        ConfigError, match=r"no sums along rows: configuration field 'depthwise_taps' is 2, not 0$"
    ):
        SequentialCore(PRESETS["tiny"].replace(depthwise_taps=2))


def test_loops() -> None:
    with pytest.raises(
        ConfigError, match=r"runs straight programs only: configuration field 'loops' is 1, not 0$"
    ):
        SequentialCore(PRESETS["tiny"].replace(loops=1, depthwise_taps=0))
