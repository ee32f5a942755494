"""Planning: sizes of tiles, blocks and chunks, and what stays on chip."""
