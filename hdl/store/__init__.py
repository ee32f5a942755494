"""The store unit: scratchpad to DRAM."""
