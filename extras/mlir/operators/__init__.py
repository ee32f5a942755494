"""The operations of MLIR that weft reads: each file has records `OPERATORS`, and is found by being there."""
