"""A small core for small parts: one instruction at a time, under a microprogram."""
