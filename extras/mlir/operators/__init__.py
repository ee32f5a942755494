"""The MLIR operations that weft reads; `weft.extras.mlir.reader` collects `OPERATORS` of every module here."""
