"""AXI beside the accelerator: bridges, gates, arbiters and block memory."""
