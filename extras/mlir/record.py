"""What weft knows of one operation of MLIR, or of several that are alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.extras.mlir.context import Context

Fold = Callable[..., np.ndarray | None]


@dataclass(frozen=True)
class Record:
    """Operations by `names` with their dialect, the number of operands that they take at least and at most (None: any),
    what of ONNX they become, for the documentation, and the function that writes it. `fold` computes the result of
    constant operands: arrays whose axes have one element where a number is repeated; None for what is not
    computed ahead.
    """

    names: tuple[str, ...]
    operands: tuple[int, int | None]
    becomes: str
    convert: Callable[[Context], None]
    fold: Fold | None = None
