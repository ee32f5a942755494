"""MLIR: read TOSA and StableHLO text as models, and write models as TOSA text."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="MLIR",
    services={
        "read models": "weft.extras.mlir.reader:FORMAT",
        "weft.convert": "weft.extras.mlir.convert_command:convert_model",
    },
)
