"""MLIR: TOSA and StableHLO text as models, and models as text of TOSA."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="MLIR",
    services={
        "read models": "weft.extras.mlir.reader:FORMAT",
        "weft.convert": "weft.extras.mlir.convert_command:convert_model",
    },
)
