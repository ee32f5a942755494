"""FPGA families: one file each, with its tools, its memories, its PLL, and what its netlists are counted by."""
