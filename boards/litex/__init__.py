"""The accelerator in LiteX systems: hardware and host."""
