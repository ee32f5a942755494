"""Hardware models of FPGA families, by name; "generic" stands for hardware that synthesis infers."""

from __future__ import annotations

from weft.boards.registry import FAMILIES
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.sim.verilate import Libraries


def multipliers(family: str) -> Multipliers:
    return INFERRED if family == "generic" else FAMILIES[family].fabric.multipliers


def models(family: str) -> Libraries:
    """Return models of the family's cells, for simulation."""
    return () if family == "generic" else FAMILIES[family].models
