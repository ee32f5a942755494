"""The hardware: configuration, instruction set and Amaranth components."""
