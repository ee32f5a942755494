"""Properties of SOFTMAX and NORMALISE."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.hardware.property import Property
from weft.extras.proof.hardware.softmax import kinds, pipe, probabilities, sequence, way


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (probabilities, pipe, way, sequence, kinds):
        yield from module.properties()
