"""FPGA boards: their hardware around the core, their builds, and the host's end of the link."""
