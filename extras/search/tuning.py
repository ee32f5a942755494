"""Tuned plans of convolutions, which `weft.extras.search.tune` writes and the compiler reads."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from weft.compiler.plan.conv_plan import Chooser, ConvPlan, Tiling, candidates, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.errors import FileError
from weft.hdl import schema
from weft.hdl.errors import ConfigError, SchemaError
from weft.hdl.isa.config import Config

FORMAT = "weft tuning 3"
LAYER_FORMAT = "weft tuned layer 2"
"""Format of a layer in the cache."""
TIMING_SOURCES = (
    "weft.compiler",
    "weft.hdl",
    "weft.sim.timing",
    "weft.run.options",
    "weft.run.runtime",
    "weft.extras.search.tune",
)
"""Packages and modules on which cycle counts depend."""
Cycles = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]


@dataclass(frozen=True)
class TunedLayer:
    """Tiling of a layer, and the layer's cycles on its own: with the default plan, and with this tiling."""

    name: str
    tiling: Tiling
    default: Cycles
    cycles: Cycles

    def text(self) -> str:
        """Return the layer as JSON, for the cache."""
        return schema.encode(_LayerFile(LAYER_FORMAT, self))

    @classmethod
    def load(cls, path: Path) -> TunedLayer | None:
        """Read a layer that `text` wrote; return None if the file is missing or invalid."""
        try:
            return schema.decode(schema.read_bytes(path), _LayerFile, format=LAYER_FORMAT).layer
        except (OSError, SchemaError):
            return None


class _LayerFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    layer: TunedLayer


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    sources: str
    config: dict[str, Any]
    latency: Annotated[int, msgspec.Meta(ge=1)]
    bandwidth: Annotated[float, msgspec.Meta(gt=0)] | None
    layers: dict[str, TunedLayer]


@dataclass(frozen=True)
class Tuning:
    """Tilings for the convolutions of one configuration, by `ConvShape.key`.

    Attributes
    ----------
    config : Config
    latency, bandwidth : int, float
        Of the memory that they are for: cycles, and bytes per cycle or None.
    layers : dict of str to TunedLayer
    """

    config: Config
    latency: int
    bandwidth: float | None
    layers: dict[str, TunedLayer]

    @property
    def memory_text(self) -> str:
        """The memory in words."""
        return (
            "for a memory as fast as the bus"
            if self.bandwidth is None
            else f"for {self.bandwidth:g} bytes a cycle"
        )

    def chooser(self) -> Chooser:
        """Return a chooser with the tuned plans, and default plans for other layers."""

        def choose(shape: ConvShape) -> ConvPlan | None:
            layer, default = self.layers.get(shape.key), plan(shape)
            return default if layer is None or default is None else apply_tuning(shape, layer, default)

        return choose

    def text(self) -> str:
        """Return the tuning as JSON."""
        return schema.encode(
            _File(FORMAT, sources_digest(), self.config.to_dict(), self.latency, self.bandwidth, self.layers)
        )

    @classmethod
    def load(cls, path: Path, config: Config) -> Tuning:
        """Read a tuning for `config`.

        Raises
        ------
        FileError
            If the file is missing or invalid, or was made for another configuration or by another version.
        """
        try:
            values = schema.decode(schema.read_bytes(path), _File, format=FORMAT)
            made_for = Config.from_dict(values.config)
        except (SchemaError, ConfigError) as error:
            raise FileError(f"{path} is not a valid tuning: {error}; run `weft tune` again") from None
        if made_for != config:
            raise FileError(
                f"{path} is for configuration {made_for.digest:#010x}, not {config.digest:#010x}: "
                "run `weft tune` with the same --config"
            )
        if values.sources != sources_digest():
            raise FileError(f"{path} is from another version of weft: run `weft tune` again")
        return cls(config, values.latency, values.bandwidth, values.layers)


def apply_tuning(shape: ConvShape, layer: TunedLayer, default: ConvPlan) -> ConvPlan:
    """Return the plan with a layer's tiling, or the default plan if the layer has no such plan.

    Its cycles are the default plan's estimate, reduced by the measured share, so that they compare with the estimates
    of other layers.
    """
    matching = (item for item in candidates(shape) if item.tiling == layer.tiling)
    share = layer.cycles / layer.default
    return next((dataclasses.replace(item, cycles=default.cycles * share) for item in matching), default)


@cache
def sources_digest() -> str:
    """Return a hash of all sources that determine the program of a tiling and its cycles."""
    parts = [f"{source.name}\0".encode() + source.read_bytes() for source in timed_sources()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def timed_sources() -> list[Path]:
    """Return the sources of the compiler, the hardware and its cycle model, and of the memory layout of programs."""
    sources = []
    for name in TIMING_SOURCES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin)
        folder = source.parent.rglob("*") if spec.submodule_search_locations is not None else [source]
        sources += sorted(path for path in folder if path.suffix in (".py", ".h", ".cpp"))
    return sources
