"""The golden interpreter, compiled: the same results as `weft.sim.golden`, many times faster."""
