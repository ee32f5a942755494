"""The serial link of a board: its hardware, its frames, and the host's side."""
