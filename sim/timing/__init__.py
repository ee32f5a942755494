"""Cycle models of the pipelined core (without data) and of the sequential core, which need no RTL."""

from weft.sim.timing.device import Interval, SequentialTimingDevice, TimingDevice

__all__ = ["Interval", "SequentialTimingDevice", "TimingDevice"]
