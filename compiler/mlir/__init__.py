"""MLIR text: a reader of StableHLO and TOSA that makes a `weft.compiler.ir.network.Network`, and a writer of TOSA."""
