"""The cycle model: how long an encoded program takes on `weft.hdl.core.Core`, and why, without RTL and without data."""

from weft.sim.timing.device import Interval, TimingDevice

__all__ = ["Interval", "TimingDevice"]
