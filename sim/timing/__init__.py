"""The cycle models: how long an encoded program takes on `weft.hdl.core.Core`, and why, without RTL and without data;
and how long on the sequential core."""

from weft.sim.timing.device import Interval, TimingDevice
from weft.sim.timing.sequential import SequentialTimingDevice

__all__ = ["Interval", "SequentialTimingDevice", "TimingDevice"]
