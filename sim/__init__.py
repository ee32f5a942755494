"""Devices that run programs without an FPGA: the golden interpreter and the generated RTL."""
