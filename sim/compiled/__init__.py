"""The golden interpreter in C++, with the results of `weft.sim.golden`."""
