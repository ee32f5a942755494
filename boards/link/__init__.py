"""The serial link between host and board, on both ends."""
