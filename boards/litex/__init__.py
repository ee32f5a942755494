"""The accelerator in LiteX systems on a chip."""
