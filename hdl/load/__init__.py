"""The load unit, which copies data from DRAM to the scratchpad."""
