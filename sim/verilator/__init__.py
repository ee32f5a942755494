"""Verilog to simulators."""
