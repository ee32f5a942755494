"""FPGA boards: platforms, clocks, memory adapters and the host link."""
