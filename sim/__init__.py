"""Devices that run programs without an FPGA: golden interpreter, cycle models, and simulated RTL."""
