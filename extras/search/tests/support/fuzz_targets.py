"""Files of tuned plans for fuzzers."""

from __future__ import annotations

from functools import cache, partial

from fuzz import seeds
from fuzz.files import offer_values
from fuzz.targets import Target

import weft
from weft.compiler.plan.conv_plan import ConvPlan, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.extras.search.tune import TunedLayer, Tuning
from weft.hdl.isa.config import PRESETS


@cache
def _tuning() -> bytes:
    """Return the compiler's own plans for the first two layers of the model ``convolutions``, for ``tiny``."""
    layers: dict[str, TunedLayer] = {}

    def record(shape: ConvShape) -> ConvPlan | None:
        plans = plan(shape)
        if plans is not None and len(layers) < 2:
            layers[shape.key] = TunedLayer(shape.op.name, plans.tiling, 200, 100)
        return plans

    weft.compile(seeds.models()["convolutions"], "tiny", choose=record)
    return Tuning(PRESETS["tiny"], 30, None, layers).text().encode()


_OFFER = partial(offer_values, options=("--config", "tiny", "--tuning"))
TARGETS = {"tuning": Target(1, lambda model: _tuning(), _OFFER, values=True)}
