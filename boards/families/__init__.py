"""FPGA families, one file each: tools, memories, PLL, and how to count resources in a netlist."""
