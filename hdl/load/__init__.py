"""The load unit: DRAM to scratchpad."""
